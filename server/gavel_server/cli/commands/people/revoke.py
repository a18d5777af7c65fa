"""`gavel revoke`: withdraws an approval that nobody has begun to carry out."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import as_person, connect
from gavel_server.cli.event_names import find_decision_id
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, By, Debug, Json, Reason, Server, check_reason


def revoke(
    decision: Annotated[
        str, typer.Argument(metavar="ID_OR_NUMBER", help="The id or sequence number of an approved decision whose execution has not begun.")
    ],
    reason: Reason,
    by: By = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Withdraw an approval before its execution begins."""
    from gavel_server.cli.rendering import output

    checked_reason = check_reason(reason)
    with connect(server, bus) as client:
        decision_id = find_decision_id(client, decision)
        response = as_person(by, lambda revoked_by: client.revoke_decision(decision_id, revoked_by=revoked_by, reason=checked_reason))
    if as_json:
        output.print_json(response)
        return
    envelope = response.decision
    output.print_line(f"{envelope.decision.previous_decision_id} is revoked at event {envelope.sequence_number}; it cannot be executed.")
