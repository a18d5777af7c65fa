"""`gavel grants get`: prints a deployed version of the grants."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server, check_int64


def get_grants(
    version: Annotated[int, typer.Argument(metavar="VERSION", min=0, callback=check_int64, help="The version. 0: the one in force.")] = 0,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the document of a deployed version, unchanged."""
    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        response = client.get_grants(version=version)
    if as_json:
        output.print_json(response)
    else:
        output.print_line(response.document.rstrip("\n"))
