"""`gavel accept-clock`: allows writes to a bus whose last event is ahead of the clocks."""

from __future__ import annotations

from gavel_server.cli.connection import as_person, connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, By, Debug, Json, Reason, Server, check_reason


def accept_clock(
    reason: Reason,
    by: By = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Allow writes to a bus whose last event is ahead of the clocks."""
    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.events import format_duration

    checked_reason = check_reason(reason)
    with connect(server, bus) as client:
        response = as_person(by, lambda accepted_by: client.accept_clock(accepted_by=accepted_by, reason=checked_reason))
    if as_json:
        output.print_json(response)
        return
    envelope = response.envelope
    ahead_ms = envelope.recorded_at.ToMilliseconds() - envelope.fact.clock_accepted.clock.ToMilliseconds()
    output.print_line(
        f"bus {bus} takes writes again from event {envelope.sequence_number} on. It is {format_duration(ahead_ms)} ahead; its time runs at "
        f"half speed for {format_duration(2 * ahead_ms)}, until the clocks have caught up."
    )
