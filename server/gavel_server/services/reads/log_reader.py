"""Reads the log for callers, in chunks without a gap.

An event is returned as the log's own bytes followed by its chain hash; its payload is never parsed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.common_pb2 import EventCategory
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetEventResponse, GetTraceResponse, ListEventsResponse, SubscribeEventsResponse
from gavel_rules.codec.fields import Field
from gavel_rules.limits import ACTION_TYPE_LENGTH_MAX, ACTION_TYPES_MAX, CATEGORIES_MAX, OUTCOMES_MAX, REASON_CODE, REASON_CODES_MAX
from google.protobuf.message import DecodeError

from gavel_server.bus.request import CommittedAnswer
from gavel_server.errors import ServiceError, invalid
from gavel_server.fairness.turns import take_turn
from gavel_server.history.replay import ReplayRangeError
from gavel_server.index.event_filter import undecodable_error
from gavel_server.intake.formats import is_dotted_name
from gavel_server.log import EventLog, Record
from gavel_server.log.protocol import SEQUENCE_NUMBER_MAX

# Events per read at most, however small they are. A chunk is held in memory whole, and other tasks wait while it is filtered.
CHUNK_EVENTS_MAX: Final = 128

# The field of each response that holds an event.
LIST_ENVELOPES: Final = Field(ListEventsResponse, "envelopes")
TRACE_ENVELOPES: Final = Field(GetTraceResponse, "envelopes")
FOLLOWED: Final = Field(SubscribeEventsResponse, "envelope")
FOUND: Final = Field(GetEventResponse, "envelope")


async def read_chunks(log: EventLog, first: int, last: int, caller: str) -> AsyncGenerator[list[Record], None]:
    """Yield the events from `first` to `last` in chunks, without a gap. Each chunk is a turn of the caller.

    Raises ServiceError: EVENT_NOT_FOUND if the log begins after `first`, LOG_REGRESSED if it ends before `last`; and the errors of
    EventLog.read.
    """
    number = first
    while number <= last:
        records = await read_chunk(log, number, last)
        number = records[-1].sequence_number + 1
        await take_turn(caller)
        yield records


async def read_chunk(log: EventLog, number: int, last: int) -> list[Record]:
    """Return events from `number` on, at most up to `last`, at least one. Raises the errors of `read_chunks`."""
    records = await log.read(number, last, CHUNK_EVENTS_MAX)
    if not records:
        raise lost_event(log.bus, f"event {number}")
    if records[0].sequence_number != number:
        message = f"bus {log.bus} has no events before {records[0].sequence_number}; read from that number"
        raise ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message)
    return records


async def missing_event(log: EventLog, number: int, name: str = "") -> ServiceError:
    """Return the error for an event up to the head that the log does not have. Raises LogError.

    It is EVENT_NOT_FOUND if the event was trimmed, and LOG_REGRESSED if it is lost.
    """
    event = name or f"event {number}"
    first = await log.read(1, number, 1)
    if not first:
        first = await log.read(number, SEQUENCE_NUMBER_MAX, 1)
        if first:
            message = f"the log of bus {log.bus} begins with event {first[0].sequence_number}, after {event}"
            return ServiceError(
                error_pb2.ERROR_REASON_EVENT_NOT_FOUND, f"{message}; start the server with the archive of the log (--archive)"
            )
    return lost_event(log.bus, event)


def lost_event(bus: str, event: str) -> ServiceError:
    """Return the error LOG_REGRESSED for an event that the log of a bus has lost."""
    return ServiceError(error_pb2.ERROR_REASON_LOG_REGRESSED, f"the log of bus {bus} has lost {event}; restore the log")


def envelope_of(record: Record) -> Envelope:
    """Return a record's envelope with its chain hash. Raises LogCorruptError."""
    try:
        envelope = Envelope.FromString(record.envelope)
    except DecodeError as error:
        raise undecodable_error(record) from error
    envelope.chain_hash = record.chain_hash
    return envelope


def committed_envelope(answer: CommittedAnswer) -> Envelope:
    """Return the committed event that answers a command, with its chain hash."""
    return envelope_of(record_of(answer))


def record_of(answer: CommittedAnswer) -> Record:
    """Return the record of the committed event that answers a command."""
    if answer.record is None:
        raise TypeError(f"a command was answered with {type(answer.answer).__name__}, which is not an event of the log")
    return answer.record


def category_violations(categories: Sequence[int]) -> list[tuple[str, str]]:
    """Return the violations of a request's categories."""
    return enum_violations("categories", categories, EventCategory.values(), CATEGORIES_MAX, "a category of events")


def outcome_violations(outcomes: Sequence[int]) -> list[tuple[str, str]]:
    """Return the violations of a request's outcomes."""
    return enum_violations("outcomes", outcomes, Outcome.values(), OUTCOMES_MAX, "an outcome of decisions")


def enum_violations(field: str, values: Sequence[int], accepted: Collection[int], items_max: int, noun: str) -> list[tuple[str, str]]:
    """Return the violations of a list of enum values: too many, unspecified or unknown ones."""
    if len(values) > items_max:
        return [(field, f"has more than {items_max} items")]
    return [(f"{field}[{index}]", f"is not {noun}") for index, value in enumerate(values) if value == 0 or value not in accepted]


def action_type_violations(action_types: Sequence[str]) -> list[tuple[str, str]]:
    """Return the violations of a request's action types."""
    if len(action_types) > ACTION_TYPES_MAX:
        return [("action_types", f"has more than {ACTION_TYPES_MAX} items")]
    return [
        (f"action_types[{index}]", 'is not an action type, e.g. "refund.create"')
        for index, action_type in enumerate(action_types)
        if len(action_type) > ACTION_TYPE_LENGTH_MAX or not is_dotted_name(action_type)
    ]


def reason_code_violations(reason_codes: Sequence[str]) -> list[tuple[str, str]]:
    """Return the violations of a request's reason codes."""
    if len(reason_codes) > REASON_CODES_MAX:
        return [("reason_codes", f"has more than {REASON_CODES_MAX} items")]
    return [
        (f"reason_codes[{index}]", 'is not a reason code: A-Z, 0-9 and _, e.g. "NEED_MORE_FACTS"')
        for index, reason_code in enumerate(reason_codes)
        if not re.fullmatch(REASON_CODE, reason_code)
    ]


def range_violations(**numbers: int) -> list[tuple[str, str]]:
    """Return a violation for each negative sequence number, given by field name."""
    return [(name, "is negative") for name, number in numbers.items() if number < 0]


def range_beyond_log(to_sequence_number: int, error: ReplayRangeError) -> ServiceError:
    """Return the refusal of a replay of events that the log does not hold. Without an end, the range begins beyond the log."""
    return invalid([("to_sequence_number" if to_sequence_number else "from_sequence_number", f"is out of range: {error}")])
