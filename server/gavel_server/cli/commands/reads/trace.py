"""`gavel trace`: a trace as a timeline, also while it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from gavel_rules.limits import TRACE_EVENTS_MAX

from gavel_server.cli.commands.reads.log import follow_events
from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gavel.v1.envelope_pb2 import Envelope
    from gavel.v1.event_service_pb2 import Checkpoint, GetTraceResponse, SubscribeEventsResponse, ToolPair
    from gavel_client import SyncGavelClient


def trace(
    trace_id: Annotated[str, typer.Argument(metavar="TRACE_ID", help="The trace.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print the trace's events, and new ones as they come, with each result's call.")
    ] = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print a trace as a timeline, with its tool calls, the versions that it is bound to, and what has drifted."""
    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        if follow:
            _follow(client, trace_id, as_json)
            return
        response = client.get_trace(trace_id)
    if as_json:
        output.print_json(response)
    else:
        _print_trace(trace_id, response)
    if response.truncated:
        first = response.envelopes[-1].sequence_number + 1
        output.print_note(
            f"gavel: the trace is longer; print the rest with gavel log list --trace {trace_id} --from {first} --limit {TRACE_EVENTS_MAX}"
        )


def _print_trace(trace_id: str, response: GetTraceResponse) -> None:
    from gavel_rules.text import printable

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.audit import binding_text, print_drifts
    from gavel_server.cli.rendering.events import describe, pair_state, producer_name

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
                ": ".join(part for part in (printable(envelope.event_name), describe(envelope, beside_name=True)) if part),
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
                pair_state(pair),
                pair.execution_id,
            )
            for pair in response.pairs
        ),
        title="Tool calls",
    )
    if response.HasField("version_binding"):
        output.print_line(f"Bound to {binding_text(response.version_binding)}")
    print_drifts(response.drifts, title="Drift")


def _follow(client: SyncGavelClient, trace_id: str, as_json: bool) -> None:
    """Print the events of a trace as they come, each tool event with its pair."""
    from gavel.v1.event_service_pb2 import GetTraceResponse

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.events import describe_pair
    from gavel_server.services.reads.tool_pairs import tool_pairs

    tool_events: dict[str, Envelope] = {}

    def subscribe(first: int, last_read: Checkpoint | None) -> Iterator[SubscribeEventsResponse]:
        return client.subscribe_events(from_sequence_number=first, trace_id=trace_id, last_read=last_read)

    for response in follow_events(1, subscribe):
        if not response.HasField("envelope"):
            continue
        envelope = response.envelope
        pair: ToolPair | None = None
        if envelope.HasField("tool_call") or envelope.HasField("tool_result"):
            tool_events[envelope.event_id] = envelope
            pairs = tool_pairs(tool_events.values())
            pair = next(one for one in pairs if envelope.event_id in (one.call_event_id, one.result_event_id))
        if as_json:
            output.print_json(GetTraceResponse(envelopes=[envelope], pairs=[] if pair is None else [pair]), one_line=True)
            continue
        output.print_event_line(envelope)
        if pair is not None and envelope.HasField("tool_result"):
            output.print_line(f"    {describe_pair(pair, envelope, tool_events.get(pair.call_event_id))}")
