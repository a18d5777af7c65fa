"""`gavel bus create`: opens a bus."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import SERVER_DEFAULT, Debug, Json, Server, check_bus


def create_bus(
    name: Annotated[str, typer.Argument(metavar="NAME", callback=check_bus, help="Name of the new bus.")],
    server: Server = SERVER_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Open a new bus. With authentication no other command does."""
    from gavel_server.cli.rendering import output

    with connect(server, name) as client:
        created = client.create_bus()
    if as_json:
        output.print_json(created)
    else:
        output.print_line(f"bus {name} is open; its incarnation is {created.bus_incarnation}")
