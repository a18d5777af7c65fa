"""`gavel whoami`: prints who the server takes the caller for, and its rights."""

from __future__ import annotations

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server


def whoami(server: Server = SERVER_DEFAULT, bus: Bus = BUS_DEFAULT, as_json: Json = False, debug: Debug = False) -> None:
    """Print who the server takes you for, and your rights on the bus."""
    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        answer = client.who_am_i()
    if as_json:
        output.print_json(answer)
        return
    principal = answer.principal
    output.print_fields(
        [
            ("principal", principal.name),
            ("method", principal.method),
            *([("issuer", principal.issuer)] if principal.issuer else []),
            *([("groups", ", ".join(principal.groups))] if principal.groups else []),
            *([("actors", ", ".join(principal.actors))] if principal.actors else []),
            (f"rights on {bus or BUS_DEFAULT}", ", ".join(answer.rights) or "none"),
            ("grants", answer.grants_digest or ("none in force" if answer.rights else "not shown to callers without rights")),
            ("administrator", "yes" if answer.admin else "no"),
        ]
    )
