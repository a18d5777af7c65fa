"""`gavel accept-loss`: allows writes to a bus whose log has lost acknowledged events."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import as_person, connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, By, Debug, Json, Reason, Server, check_int64, check_reason

# The server may have to read the whole log.
TIMEOUT_MS = 600_000


def accept_loss(
    at: Annotated[int, typer.Option("--at", min=1, callback=check_int64, metavar="N", help="The last event that the log still holds.")],
    reason: Reason,
    by: By = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Allow writes to a bus whose log has lost acknowledged events (LOG_REGRESSED).

    The lost events stay lost. Restore the log instead if any copy still has them.
    """
    from gavel_server.cli.rendering import output

    checked_reason = check_reason(reason)
    with connect(server, bus) as client:
        response = as_person(
            by,
            lambda accepted_by: client.accept_loss(
                head_sequence_number=at, accepted_by=accepted_by, reason=checked_reason, timeout_ms=TIMEOUT_MS
            ),
        )
    if as_json:
        output.print_json(response)
        return
    accepted = response.envelope.fact.data_loss_accepted
    output.print_line(
        f"bus {bus} takes writes again from event {response.envelope.sequence_number} on. It goes on after event "
        f"{accepted.head_sequence_number}; the last acknowledged event, {accepted.acknowledged_sequence_number}, is lost."
    )
