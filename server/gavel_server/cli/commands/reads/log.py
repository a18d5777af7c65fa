"""`gavel log tail`, `get`, `list` and `search`: read the log of events."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.event_names import read_sequence_number
from gavel_server.cli.options import BUS_DEFAULT, INT64_MAX, SERVER_DEFAULT, Bus, Debug, Json, Server, check_int64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gavel.v1.common_pb2 import EventCategory
    from gavel.v1.decision_pb2 import Outcome
    from gavel.v1.envelope_pb2 import Envelope
    from gavel.v1.event_service_pb2 import Checkpoint, SubscribeEventsResponse
    from gavel_client import SyncGavelClient
    from google.protobuf.timestamp_pb2 import Timestamp

# Events that `log tail` shows without --from.
TAIL_EVENTS: Final = 10
LIST_LIMIT_DEFAULT: Final = 100
# One more event is read, and counted in an int64.
LIST_LIMIT_MAX: Final = INT64_MAX - 1
PAGE_EVENTS: Final = 1000

log = typer.Typer(help="Read the log of events.", no_args_is_help=True)


class Category(Enum):
    """An event category, by its name on the command line."""

    FACT = "fact"
    PROPOSAL = "proposal"
    DECISION = "decision"
    EXECUTION = "execution"
    OBSERVATION = "observation"
    TOOL_CALL = "tool-call"
    TOOL_RESULT = "tool-result"
    AGENT_DIAGNOSTIC = "agent-diagnostic"


class DecisionOutcome(Enum):
    """An outcome of a decision, by its name on the command line."""

    APPROVED = "approved"
    REJECTED = "rejected"
    NEEDS_HUMAN_REVIEW = "needs-human-review"
    EXPIRED = "expired"
    REVOKED = "revoked"


CATEGORIES: Final = ", ".join(category.value for category in Category)
OUTCOMES: Final = ", ".join(outcome.value for outcome in DecisionOutcome)

Categories = Annotated[
    list[Category],
    typer.Option(
        "--category", metavar="CATEGORY", help=f"Only events of this category: {CATEGORIES}. May be repeated, for several categories."
    ),
]
Subject = Annotated[str, typer.Option("--subject", metavar="TYPE/ID", help="Only events about this subject.")]
Actions = Annotated[
    list[str], typer.Option("--action", metavar="ACTION", help="Only proposals and decisions of this action type. May be repeated.")
]
Outcomes = Annotated[
    list[DecisionOutcome],
    typer.Option("--outcome", metavar="OUTCOME", help=f"Only decisions with this outcome: {OUTCOMES}. May be repeated."),
]
From = Annotated[int, typer.Option("--from", min=0, callback=check_int64, metavar="N", help="First sequence number. 0: the start.")]
To = Annotated[int, typer.Option("--to", min=0, callback=check_int64, metavar="N", help="Last sequence number. 0: the head.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=LIST_LIMIT_MAX, metavar="N", help="Print at most this many events.")]
TraceId = Annotated[str, typer.Option("--trace", metavar="TRACE_ID", help="Only events of this trace.")]


@log.command("tail")
def tail(
    from_sequence_number: Annotated[
        int | None,
        typer.Option(
            "--from", min=0, callback=check_int64, metavar="N", help=f"First sequence number. Default: the last {TAIL_EVENTS} events."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events as they come, also after the server restarts, until interrupted.")
    ] = False,
    category: Categories = [],  # noqa: B006 - typer copies it
    subject_prefix: Annotated[
        str, typer.Option("--subject-prefix", metavar="PREFIX", help='Only events about subjects that begin so, e.g. "order/".')
    ] = "",
    trace_id: TraceId = "",
    action: Actions = [],  # noqa: B006
    outcome: Outcomes = [],  # noqa: B006
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print those of the newest events that pass all filters, one per line."""
    from gavel.v1.event_service_pb2 import SubscribeEventsResponse
    from gavel_client import GavelError
    from gavel_client.rpc.backoff import is_unopened_bus

    from gavel_server.cli.rendering import output

    def subscribe(first: int, last_read: Checkpoint | None = None) -> Iterator[SubscribeEventsResponse]:
        return client.subscribe_events(
            from_sequence_number=first,
            last_read=last_read,
            categories=_categories(category),
            subject_prefix=subject_prefix,
            trace_id=trace_id,
            action_types=action,
            outcomes=_outcomes(outcome),
        )

    with connect(server, bus) as client:
        head = 0
        # The head needs the right `read`; whoever follows from a number of their own needs `subscribe` alone.
        if not follow or from_sequence_number is None:
            try:
                head = client.get_status().head_sequence_number
            except GavelError as error:
                if not (follow and is_unopened_bus(error)):
                    raise
        first = max(head - TAIL_EVENTS + 1, 1) if from_sequence_number is None else max(from_sequence_number, 1)
        if not follow and first > head:
            output.print_note(f"gavel: the log of bus {bus} ends at event {head}")
            return
        responses = follow_events(first, subscribe) if follow else subscribe(first)
        for response in responses:
            if response.HasField("envelope"):
                if as_json:
                    output.print_json(SubscribeEventsResponse(envelope=response.envelope), one_line=True)
                else:
                    output.print_event_line(response.envelope)
            reached = response.envelope.sequence_number or response.checkpoint.sequence_number
            if not follow and reached >= head:
                return


def _categories(names: list[Category]) -> list[EventCategory.ValueType]:
    from gavel.v1.common_pb2 import EventCategory

    return [EventCategory.Value(f"EVENT_CATEGORY_{one.name}_EVENT") for one in names]


def follow_events(
    first: int, subscribe: Callable[[int, Checkpoint | None], Iterator[SubscribeEventsResponse]]
) -> Iterator[SubscribeEventsResponse]:
    """Yield the events of a bus that `subscribe` selects, from sequence number `first` on, for ever.

    `subscribe` gets the first sequence number and the last event that was read, None at first. Wait while the server is away, and for the
    first write to a bus that does not exist yet. Raises GavelError if the server refuses.
    """
    from gavel_client import GavelError, checkpoint_after
    from gavel_client.rpc.backoff import BUS_POLL_MS, AcceptedStream, Backoff, is_unopened_bus
    from gavel_client.rpc.errors import describe_error

    from gavel_server.cli.rendering import output

    failures = 0
    is_opened = True
    last_read: Checkpoint | None = None
    while True:
        accepted = AcceptedStream()
        try:
            for response in subscribe(first, last_read):
                failures = 0
                accepted.note_response()
                last_read = checkpoint_after(response)
                first = last_read.sequence_number + 1
                yield response
        except GavelError as error:
            if is_unopened_bus(error):
                if is_opened:
                    is_opened = False
                    output.print_note("gavel: the bus does not exist yet; waiting for the first write to it")
                time.sleep(BUS_POLL_MS / 1000)
                continue
            if not accepted.may_continue(error):
                raise
            failures += 1
            if error.reason == "UNAUTHENTICATED":
                output.print_note(f"gavel: {error.message}; continuing from event {first} with the present ones")
            elif failures == 1:
                output.print_note(f"gavel: the server is away ({describe_error(error)}); continuing from event {first} when it is back")
            time.sleep(Backoff().pause_ms(failures, error.retry_after_ms) / 1000)


@log.command("get")
def get_event(
    event: Annotated[str, typer.Argument(metavar="ID_OR_NUMBER", help="An event_id or a sequence number.")],
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print one event with all its fields."""
    from gavel_server.cli.rendering import output

    number = read_sequence_number(event)
    with connect(server, bus) as client:
        response = client.get_event(sequence_number=number) if number else client.get_event(event_id=event)
    if not as_json:
        output.print_event_line(response.envelope)
    output.print_json(response if as_json else response.envelope)


@log.command("list")
def list_events(
    category: Categories = [],  # noqa: B006 - typer copies it
    subject: Subject = "",
    trace_id: TraceId = "",
    from_sequence_number: From = 0,
    to_sequence_number: To = 0,
    limit: Limit = LIST_LIMIT_DEFAULT,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the events that pass all filters, oldest first."""
    print_events(
        server,
        bus,
        limit,
        as_json=as_json,
        categories=_categories(category),
        subject=subject,
        trace_id=trace_id,
        from_sequence_number=from_sequence_number,
        to_sequence_number=to_sequence_number,
    )


@log.command("search")
def search(
    category: Categories = [],  # noqa: B006 - typer copies it
    subject: Subject = "",
    trace_id: TraceId = "",
    action: Actions = [],  # noqa: B006
    outcome: Outcomes = [],  # noqa: B006
    reason: Annotated[
        list[str],
        typer.Option("--reason", metavar="CODE", help="Only decisions with this reason code, e.g. NEED_MORE_FACTS. May be repeated."),
    ] = [],  # noqa: B006
    since: Annotated[
        str,
        typer.Option(
            "--since", metavar="WHEN", help='Only events recorded at this time or later: "2h" ago, "7d" ago, or a time in RFC 3339.'
        ),
    ] = "",
    until: Annotated[str, typer.Option("--until", metavar="WHEN", help="Only events recorded before this time.")] = "",
    from_sequence_number: From = 0,
    to_sequence_number: To = 0,
    limit: Limit = LIST_LIMIT_DEFAULT,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Find events by any combination of filters, oldest first.

    An event must pass every filter. A repeated option accepts each of its values.
    """
    now = datetime.now(UTC)
    recorded_from, recorded_until = _time("--since", since, now), _time("--until", until, now)
    if recorded_from and recorded_until and recorded_until.ToNanoseconds() <= recorded_from.ToNanoseconds():
        raise InvalidInputError("--until is not after --since")
    print_events(
        server,
        bus,
        limit,
        as_json=as_json,
        categories=_categories(category),
        subject=subject,
        trace_id=trace_id,
        action_types=action,
        outcomes=_outcomes(outcome),
        reason_codes=reason,
        recorded_from=recorded_from,
        recorded_until=recorded_until,
        from_sequence_number=from_sequence_number,
        to_sequence_number=to_sequence_number,
    )


def print_events(server: str, bus: str, limit: int, *, as_json: bool, **filters: Any) -> None:
    """Print the first `limit` events that pass the filters of ListEvents, and whether there are more."""
    from gavel.v1.event_service_pb2 import ListEventsResponse
    from gavel_client.rpc.paging import sync_pages

    from gavel_server.cli.rendering import output

    def events(client: SyncGavelClient) -> Iterator[Envelope]:
        for page in sync_pages(client.list_events, **filters, page_size=min(limit + 1, PAGE_EVENTS)):
            yield from page.envelopes

    with connect(server, bus) as client:
        # One event beyond the limit tells whether there are more.
        envelopes = list(islice(events(client), limit + 1))
    listed, rest = envelopes[:limit], envelopes[limit:]
    if as_json:
        output.print_json(ListEventsResponse(envelopes=listed))
    elif listed:
        for envelope in listed:
            output.print_event_line(envelope)
    else:
        output.print_line("No events.")
    if rest:
        output.print_note(f"gavel: there are more events; continue with --from {rest[0].sequence_number}, or raise --limit")


def _outcomes(names: list[DecisionOutcome]) -> list[Outcome.ValueType]:
    from gavel.v1.decision_pb2 import Outcome

    return [Outcome.Value(f"OUTCOME_{one.name}") for one in names]


_AGE: Final = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _time(option: str, text: str, now: datetime) -> Timestamp | None:
    """Return the time that an option names. Raises InvalidInputError."""
    from google.protobuf.timestamp_pb2 import Timestamp

    if not text:
        return None
    ago = _AGE.fullmatch(text)
    try:
        at = now - timedelta(seconds=int(ago[1]) * _UNIT_SECONDS[ago[2]]) if ago else datetime.fromisoformat(text)
        timestamp = Timestamp()
        timestamp.FromDatetime(at if at.tzinfo else at.replace(tzinfo=UTC))
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(f'{option}: {text[:40]!r} is not a time; use "2h", "7d", or RFC 3339, e.g. 2026-11-26T09:00:00Z') from error
    return timestamp
