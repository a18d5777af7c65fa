"""`gavel projection`: the state of a subject."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server


def projection(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help='"type/id", e.g. order/123.')],
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the state of a subject.

    The state is its facts, observations, pending decisions and pending executions.
    """
    from gavel_client.rpc.paging import sync_whole_projection

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.projection import print_projection

    with connect(server, bus) as client:
        response = sync_whole_projection(client.get_projection, subject=subject)
    if as_json:
        output.print_json(response)
    else:
        print_projection(response.projection)
