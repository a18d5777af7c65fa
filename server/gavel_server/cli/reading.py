"""What a server can tell: `gavel log`, `trace`, `projection` and `status`. All of it only reads."""

from __future__ import annotations

import time
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, COUNTABLE_MAX, SERVER_DEFAULT, Bus, Debug, Json, Server, connected, countable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gavel.v1.envelope_pb2 import Envelope
    from gavel.v1.event_service_pb2 import GetTraceResponse, SubscribeEventsResponse
    from gavel.v1.projection_service_pb2 import GetStatusResponse, Projection
    from gavel_client import SyncGavelClient

# What `log tail` shows without --from.
TAIL_EVENTS: Final = 10
LIST_LIMIT_DEFAULT: Final = 100
PAGE_EVENTS: Final = 1000

log = typer.Typer(help="Read the log of events.", no_args_is_help=True)

From = Annotated[int, typer.Option("--from", min=0, callback=countable, metavar="N", help="First sequence number. 0: the start.")]


class Category(Enum):
    """An event category as `log list --category` takes it."""

    FACT = "fact"
    PROPOSAL = "proposal"
    DECISION = "decision"
    EXECUTION = "execution"
    OBSERVATION = "observation"
    TOOL_CALL = "tool-call"
    TOOL_RESULT = "tool-result"
    AGENT_DIAGNOSTIC = "agent-diagnostic"


@log.command("tail")
def log_tail(
    from_sequence_number: Annotated[
        int | None,
        typer.Option(
            "--from", min=0, callback=countable, metavar="N", help=f"First sequence number. Without: the last {TAIL_EVENTS} events."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until interrupted; through restarts of the server too.")
    ] = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the newest events, one per line."""
    from gavel.v1.event_service_pb2 import SubscribeEventsResponse

    from gavel_server.cli import output

    with connected(server, bus) as client:
        head = client.get_status().head_sequence_number
        first = max(head - TAIL_EVENTS + 1, 1) if from_sequence_number is None else max(from_sequence_number, 1)
        if not follow and first > head:
            output.note(f"gavel: the log of bus {bus} ends at event {head}")
            return
        responses = following(client, first) if follow else client.subscribe_events(from_sequence_number=first)
        for response in responses:
            if response.HasField("envelope"):
                if as_json:
                    output.print_json(SubscribeEventsResponse(envelope=response.envelope), one_line=True)
                else:
                    output.print_event_line(response.envelope)
            reached = response.envelope.sequence_number or response.checkpoint.sequence_number
            if not follow and reached >= head:
                return


def following(client: SyncGavelClient, first: int) -> Iterator[SubscribeEventsResponse]:
    """Yield a bus's events from number `first` on, for ever: where a server goes away, it goes on when there is one again.

    Raises GavelError: the server refuses.
    """
    from gavel_client import GavelError
    from gavel_client.backoff import Backoff, may_heal
    from gavel_client.errors import where_and_what

    from gavel_server.cli import output

    failures = 0
    while True:
        try:
            for response in client.subscribe_events(from_sequence_number=first):
                failures = 0
                first = (response.envelope.sequence_number or response.checkpoint.sequence_number) + 1
                yield response
        except GavelError as error:
            if not may_heal(error):
                raise
            failures += 1
            if failures == 1:
                output.note(f"gavel: the server is away ({where_and_what(error)}); going on from event {first} when it is back")
            time.sleep(Backoff().pause_ms(failures, error.retry_after_ms) / 1000)


@log.command("get")
def log_get(
    event: Annotated[str, typer.Argument(metavar="ID_OR_NUMBER", help="An event_id, or a sequence number.")],
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print one event whole."""
    from gavel_server.cli import output

    is_number = event.isascii() and event.isdigit()
    # Digits beyond those of the largest number are not even read.
    number = int(event[: len(str(COUNTABLE_MAX)) + 1]) if is_number else 0
    if is_number and not 0 < number <= COUNTABLE_MAX:
        raise InvalidInputError(f"{event[:40]} is no sequence number; they go from 1 to 2^63 - 1")
    with connected(server, bus) as client:
        response = client.get_event(sequence_number=number) if number else client.get_event(event_id=event)
    if not as_json:
        output.print_event_line(response.envelope)
    output.print_json(response if as_json else response.envelope)


@log.command("list")
def log_list(
    category: Annotated[list[Category], typer.Option("--category", help="Only events of this category. May be repeated.")] = [],  # noqa: B006 - typer copies it
    subject: Annotated[str, typer.Option("--subject", metavar="TYPE/ID", help="Only events about this subject.")] = "",
    trace_id: Annotated[str, typer.Option("--trace", metavar="TRACE_ID", help="Only events of this trace.")] = "",
    from_sequence_number: From = 0,
    to_sequence_number: Annotated[
        int, typer.Option("--to", min=0, callback=countable, metavar="N", help="Last sequence number. 0: the head.")
    ] = 0,
    limit: Annotated[
        int, typer.Option("--limit", min=1, callback=countable, metavar="N", help="How many events at most.")
    ] = LIST_LIMIT_DEFAULT,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the events that pass all filters, oldest first."""
    from gavel.v1.common_pb2 import EventCategory
    from gavel.v1.event_service_pb2 import ListEventsResponse
    from gavel_client.paging import sync_pages

    from gavel_server.cli import output

    categories = [EventCategory.Value(f"EVENT_CATEGORY_{chosen.name}_EVENT") for chosen in category]

    def events(client: SyncGavelClient) -> Iterator[Envelope]:
        for page in sync_pages(
            client.list_events,
            categories=categories,
            subject=subject,
            trace_id=trace_id,
            from_sequence_number=from_sequence_number,
            to_sequence_number=to_sequence_number,
            page_size=min(limit + 1, PAGE_EVENTS),
        ):
            yield from page.envelopes

    with connected(server, bus) as client:
        # One more than asked for tells whether there are more.
        found = list(islice(events(client), limit + 1))
    shown, more = found[:limit], found[limit:]
    if as_json:
        output.print_json(ListEventsResponse(envelopes=shown))
    elif shown:
        for envelope in shown:
            output.print_event_line(envelope)
    else:
        output.say("No events.")
    if more:
        output.note(f"gavel: there are more; go on with --from {more[0].sequence_number}, or raise --limit")


def trace(
    trace_id: Annotated[str, typer.Argument(metavar="TRACE_ID", help="The trace.")],
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print a trace as a timeline, with its tool calls."""
    from gavel_server.cli import output

    with connected(server, bus) as client:
        response = client.get_trace(trace_id)
    if as_json:
        output.print_json(response)
    else:
        _print_trace(trace_id, response)
    if response.truncated:
        output.note(f"gavel: the trace is longer; see the rest with gavel log list --trace {trace_id} --from N")


def projection(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help='"type/id", e.g. order/123.')],
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print what holds for a subject, and what is under way."""
    from gavel_server.cli import output

    with connected(server, bus) as client:
        response = client.get_projection(subject)
    if as_json:
        output.print_json(response)
    else:
        print_projection(response.projection)


def status(
    digest: Annotated[bool, typer.Option("--digest", help="Also compute the projection's digest; it reads the whole state.")] = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the state of the bus and of the server."""
    from gavel_server.cli import output

    with connected(server, bus) as client:
        response = client.get_status(include_projection_digest=digest)
    if as_json:
        output.print_json(response)
    else:
        _print_status(bus, response)


def print_projection(projection: Projection) -> None:
    """Print a subject's state as tables."""
    from gavel.v1.execution_pb2 import ExecutionStatus
    from gavel.v1.projection_service_pb2 import PendingPhase

    from gavel_server.cli import output
    from gavel_server.cli.describe import moment, pending_line, printable, short, value_text

    output.say(f"{printable(projection.subject)} as of event {projection.projection_version}")
    output.print_table(
        ("fact", "value", "event", "said by", "occurred"),
        (
            (
                fact.key,
                value_text(fact.value),
                f"#{fact.source_event.sequence_number}",
                printable(fact.producer.id),
                moment(fact.occurred_at, "seconds"),
            )
            for fact in projection.facts
        ),
        title="Facts",
        fold="value",
        empty="No facts.",
    )
    output.print_table(
        ("observation", "value", "event", "read through", "tier", "observed"),
        (
            (
                seen.key,
                value_text(seen.value),
                f"#{seen.source_event.sequence_number}",
                printable(seen.source_tool),
                str(int(seen.trust_tier)),
                moment(seen.observed_at, "seconds"),
            )
            for seen in projection.observations
        ),
        title="Observations",
        fold="value",
    )
    output.print_table(
        ("event", "phase", "valid until", "action"),
        (
            (
                f"#{pending.sequence_number}",
                short(PendingPhase, pending.phase),
                moment(pending.valid_until),
                pending_line(pending),
            )
            for pending in projection.pending_decisions
        ),
        title="Pending decisions",
    )
    output.print_table(
        ("execution", "attempt", "status", "leased until", "executor"),
        (
            (
                pending.execution_id,
                str(pending.attempt),
                short(ExecutionStatus, pending.status),
                moment(pending.lease_until),
                printable(pending.producer.id),
            )
            for pending in projection.pending_executions
        ),
        title="Pending executions",
    )


def _print_trace(trace_id: str, response: GetTraceResponse) -> None:
    from gavel.v1.event_service_pb2 import ToolPairState

    from gavel_server.cli import output
    from gavel_server.cli.describe import describe, printable, producer_name, short

    numbers = {envelope.event_id: f"#{envelope.sequence_number}" for envelope in response.envelopes}
    started = response.envelopes[0].recorded_at.ToMilliseconds() if response.envelopes else 0
    output.print_table(
        ("#", "after", "cause", "producer", "event"),
        (
            (
                str(envelope.sequence_number),
                f"+{(envelope.recorded_at.ToMilliseconds() - started) / 1000:.3f} s",
                numbers.get(envelope.causation_id, "elsewhere" if envelope.causation_id else ""),
                producer_name(envelope),
                f"{printable(envelope.event_name)}: {describe(envelope)}",
            )
            for envelope in response.envelopes
        ),
        title=f"Trace {printable(trace_id)}",
        empty=f"No event belongs to trace {printable(trace_id)}.",
    )
    output.print_table(
        ("tool", "call", "result", "paired", "execution"),
        (
            (
                printable(pair.tool_name),
                numbers.get(pair.call_event_id, pair.call_event_id or "-"),
                numbers.get(pair.result_event_id, pair.result_event_id or "-"),
                short(ToolPairState, pair.state).lower().replace("_", " "),
                pair.execution_id,
            )
            for pair in response.pairs
        ),
        title="Tool calls",
    )


def _print_status(bus: str, response: GetStatusResponse) -> None:
    from gavel.v1.fact_pb2 import CrossCheckMode

    from gavel_server.cli import output
    from gavel_server.cli.describe import moment, short, short_digest

    every = f" every {response.cross_check.sample_every}" if response.cross_check.sample_every else ""
    rows = [
        ("server", response.server_version),
        ("bus", bus),
        ("head", f"{response.head_sequence_number}, recorded {moment(response.head_recorded_at)}"),
        ("chain hash", response.head_chain_hash.hex()),
        ("arbiter version", str(response.arbiter_version)),
        ("cross-check", short(CrossCheckMode, response.cross_check.mode).lower() + every),
        ("durable", "yes" if response.durable else "no"),
        *(("", warning) for warning in response.durability_warnings),
        ("writable", "yes" if response.writable else f"no: {response.unwritable_reason}"),
        ("queued commands", str(response.queued_commands)),
    ]
    if response.projection_digest:
        rows.append(("projection", response.projection_digest))
    output.print_fields(rows)
    output.print_table(
        ("rule set", "version", "digest", "actions"),
        (
            (found.policy_id, str(found.version), short_digest(found.digest), ", ".join(found.action_types))
            for found in response.active_rule_sets
        ),
        title="In force",
        empty="No rule set is in force; deploy one with gavel rules deploy FILE --activate",
    )
    output.print_table(
        ("rule set", "version", "since", "would differ"),
        (
            (
                found.policy_id,
                str(found.version),
                f"#{found.activated_at_sequence_number}",
                f"{found.shadow_differences} of {found.shadow_decisions}",
            )
            for found in response.shadow_rule_sets
        ),
        title="Shadows",
    )
    output.print_table(
        ("group", "queue", "not delivered", "not acknowledged", "members"),
        ((found.group, found.queue, str(found.lag), str(found.pending), str(found.members)) for found in response.consumers),
        title="Consumers",
    )
