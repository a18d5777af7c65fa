"""`gavel bus list`: prints the buses that the caller may read."""

from __future__ import annotations

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Debug, Json, Server


def list_buses(server: Server = SERVER_DEFAULT, as_json: Json = False, debug: Debug = False) -> None:
    """Print the buses that you may read."""
    from gavel.v1.administration_service_pb2 import ListBusesResponse
    from gavel_client.rpc.paging import sync_pages

    from gavel_server.cli.rendering import output

    response = ListBusesResponse()
    with connect(server, BUS_DEFAULT) as client:
        for page in sync_pages(client.list_buses):
            response.buses.extend(page.buses)
    if as_json:
        output.print_json(response)
        return
    output.print_table(
        ("bus", "events"),
        ((bus.name, str(bus.head_sequence_number)) for bus in response.buses),
        empty="There is no bus that you may read",
    )
