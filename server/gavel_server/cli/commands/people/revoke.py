"""`gavel revoke`: withdraws an approval that nobody has begun to carry out."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, By, Debug, Json, Reason, Server, check_reason, person


def revoke(
    decision_id: Annotated[str, typer.Argument(metavar="DECISION_ID", help="An approved decision whose execution has not begun.")],
    reason: Reason,
    by: By = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Withdraw an approval before its execution begins."""
    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        response = client.revoke_decision(decision_id, revoked_by=person(by), reason=check_reason(reason))
    if as_json:
        output.print_json(response)
        return
    envelope = response.decision
    output.print_line(f"{envelope.decision.previous_decision_id} is revoked at event {envelope.sequence_number}; it cannot be executed.")
