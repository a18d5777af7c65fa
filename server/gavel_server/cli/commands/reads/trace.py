"""`gavel trace`: a trace as a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server

if TYPE_CHECKING:
    from gavel.v1.event_service_pb2 import GetTraceResponse


def trace(
    trace_id: Annotated[str, typer.Argument(metavar="TRACE_ID", help="The trace.")],
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print a trace as a timeline, with its tool calls."""
    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        response = client.get_trace(trace_id)
    if as_json:
        output.print_json(response)
    else:
        _print_trace(trace_id, response)
    if response.truncated:
        output.print_note(f"gavel: the trace is longer; print the rest with gavel log list --trace {trace_id} --from N")


def _print_trace(trace_id: str, response: GetTraceResponse) -> None:
    from gavel.v1.event_service_pb2 import ToolPairState
    from gavel_rules.text import printable

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.events import describe, enum_name, producer_name

    numbers = {envelope.event_id: f"#{envelope.sequence_number}" for envelope in response.envelopes}
    started_ms = response.envelopes[0].recorded_at.ToMilliseconds() if response.envelopes else 0
    output.print_table(
        ("#", "after", "cause", "producer", "event"),
        (
            (
                str(envelope.sequence_number),
                f"+{(envelope.recorded_at.ToMilliseconds() - started_ms) / 1000:.3f} s",
                numbers.get(envelope.causation_id, "elsewhere" if envelope.causation_id else ""),
                producer_name(envelope),
                f"{printable(envelope.event_name)}: {describe(envelope)}",
            )
            for envelope in response.envelopes
        ),
        title=f"Trace {printable(trace_id)}",
        empty=f"Trace {printable(trace_id)} has no events.",
    )
    output.print_table(
        ("tool", "call", "result", "pair", "execution"),
        (
            (
                printable(pair.tool_name),
                numbers.get(pair.call_event_id, pair.call_event_id or "-"),
                numbers.get(pair.result_event_id, pair.result_event_id or "-"),
                enum_name(ToolPairState, pair.state).lower().replace("_", " "),
                pair.execution_id,
            )
            for pair in response.pairs
        ),
        title="Tool calls",
    )
