"""Reading the log for callers: in chunks, checked to be without a gap, and filtered before anything is decoded.

A filter by subject or trace has no index: whoever uses one reads the log from end to end, a few microseconds per event that
does not pass. What comes from the log is answered with its chain hash.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Final, NamedTuple

from gavel.v1 import error_pb2
from gavel.v1.common_pb2 import EventCategory
from gavel.v1.envelope_pb2 import Envelope
from google.protobuf.message import DecodeError

from gavel_server.bus.planning import Completed
from gavel_server.errors import ServiceError
from gavel_server.log import EventLog, LogCorruptError, Record

# Events read in one go: a chunk is held in memory whole, and other tasks wait while it is filtered.
CHUNK_EVENTS: Final = 200


class Filter(NamedTuple):
    """Which events a caller wants; empty parts take all."""

    categories: frozenset[int] = frozenset()
    subject: str = ""
    subject_prefix: str = ""
    trace_id: str = ""

    def passing(self, records: Iterable[Record]) -> Iterable[Envelope]:
        """Yield the envelopes that pass, in order."""
        needles = [text.encode() for text in (self.subject, self.subject_prefix, self.trace_id) if text]
        for record in records:
            # An envelope holds its subject and trace as they are, so most need not be decoded to be ruled out.
            if all(needle in record.envelope for needle in needles):
                envelope = envelope_of(record)
                if self._passes(envelope):
                    yield envelope

    def _passes(self, envelope: Envelope) -> bool:
        return (
            (not self.categories or envelope.event_category in self.categories)
            and (not self.subject or envelope.subject == self.subject)
            and envelope.subject.startswith(self.subject_prefix)
            and (not self.trace_id or envelope.trace_id == self.trace_id)
        )


async def chunks(log: EventLog, first: int, last: int) -> AsyncGenerator[list[Record], None]:
    """Yield the events from `first` to `last`, chunk by chunk, without a gap.

    Raises ServiceError EVENT_NOT_FOUND where the log begins only after `first`, LOG_REGRESSED where it ends before `last`,
    and what EventLog.read does.
    """
    number = first
    while number <= last:
        records = await log.read(number, last, CHUNK_EVENTS)
        if not records:
            raise ServiceError(error_pb2.ERROR_REASON_LOG_REGRESSED, f"event {number} of bus {log.bus} has been in the log and is no more")
        if records[0].sequence_number != number:
            message = f"bus {log.bus} holds no events before {records[0].sequence_number}: read from there on"
            raise ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message)
        yield records
        number = records[-1].sequence_number + 1


def envelope_of(record: Record) -> Envelope:
    """Return a record's envelope with its chain hash. Raises LogCorruptError."""
    try:
        envelope = Envelope.FromString(record.envelope)
    except DecodeError as error:
        raise LogCorruptError(f"event {record.sequence_number} cannot be decoded; gavel replay tells what is wrong with the log") from error
    envelope.chain_hash = record.chain_hash
    return envelope


def recorded(completed: Completed) -> Envelope:
    """Return the event that answers a command, as the log has it."""
    if completed.record is None:
        raise TypeError(f"a command was answered with {type(completed.answer).__name__}, which is no event of the log")
    return envelope_of(completed.record)


def category_violations(categories: Iterable[int]) -> list[tuple[str, str]]:
    """Return what is wrong with the categories that a caller wants."""
    return [
        (f"categories[{index}]", "is not a category of events")
        for index, category in enumerate(categories)
        if category == 0 or category not in EventCategory.values()
    ]


def range_violations(**numbers: int) -> list[tuple[str, str]]:
    """Return which sequence numbers, by field name, are negative."""
    return [(name, "is negative") for name, number in numbers.items() if number < 0]
