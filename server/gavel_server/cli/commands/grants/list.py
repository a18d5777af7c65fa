"""`gavel grants list`: prints every deployed version of the grants."""

from __future__ import annotations

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server


def list_grants(server: Server = SERVER_DEFAULT, bus: Bus = BUS_DEFAULT, as_json: Json = False, debug: Debug = False) -> None:
    """Print every deployed version, newest first."""
    from gavel.v1.administration_service_pb2 import ListGrantsResponse
    from gavel_client.rpc.paging import sync_pages

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.events import format_time, short_digest

    response = ListGrantsResponse()
    with connect(server, bus) as client:
        for page in sync_pages(client.list_grants):
            response.grants.extend(page.grants)
    if as_json:
        output.print_json(response)
        return
    output.print_table(
        ("grants", "version", "in force", "event", "deployed", "by", "digest"),
        (
            (
                grants.name,
                str(grants.version),
                "yes" if grants.in_force else "-",
                f"#{grants.deployed_at_sequence_number}",
                format_time(grants.deployed_at),
                grants.principal or "-",
                short_digest(grants.digest),
            )
            for grants in response.grants
        ),
        empty="No grants are deployed; deploy them with gavel grants deploy FILE",
    )
