"""Selects events for a caller, before they are decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.codec.responses import with_chain_hash
from gavel_rules.events.timestamps import milliseconds
from google.protobuf.message import DecodeError

from gavel_server.index.partial_envelope import PartialEnvelope
from gavel_server.log import LogCorruptError, Record


class SelectedEvent(NamedTuple):
    """An event that a caller gets: the fields of its envelope that PartialEnvelope has, and its bytes with the chain hash."""

    envelope: Envelope
    content: bytes


class EventFilter(NamedTuple):
    """Selects events; an empty field selects all."""

    categories: frozenset[int] = frozenset()
    subject: str = ""
    subject_prefix: str = ""
    trace_id: str = ""
    action_types: frozenset[str] = frozenset()  # of proposals and decisions
    outcomes: frozenset[int] = frozenset()  # of decisions
    reason_codes: frozenset[str] = frozenset()  # of decisions
    recorded_from_ms: int = 0
    recorded_until_ms: int = 0  # the first time that does not pass; 0: all times pass

    @property
    def selects_all(self) -> bool:
        """Whether every event passes."""
        return self == EventFilter()

    def select(self, records: Iterable[Record]) -> Iterator[SelectedEvent]:
        """Yield the events that pass all fields, in order. Raises LogCorruptError."""
        needles = [text.encode() for text in (self.subject, self.subject_prefix, self.trace_id) if text]
        for record in records:
            # The bytes hold subject and trace as they are, so most envelopes are ruled out without decoding.
            if all(needle in record.envelope for needle in needles):
                envelope = read_partially(record)
                if self._passes(envelope):
                    yield SelectedEvent(envelope, with_chain_hash(record.envelope, record.chain_hash))

    def _passes(self, envelope: Envelope) -> bool:
        return (
            (not self.categories or envelope.event_category in self.categories)
            and (not self.subject or envelope.subject == self.subject)
            and envelope.subject.startswith(self.subject_prefix)
            and (not self.trace_id or envelope.trace_id == self.trace_id)
            and (not self.action_types or (envelope.proposal.action_type or envelope.decision.action_type) in self.action_types)
            and (not self.outcomes or envelope.decision.outcome in self.outcomes)
            and (not self.reason_codes or envelope.decision.reason_code in self.reason_codes)
            and (not self.recorded_from_ms or milliseconds(envelope.recorded_at) >= self.recorded_from_ms)
            and (not self.recorded_until_ms or milliseconds(envelope.recorded_at) < self.recorded_until_ms)
        )


def read_partially(record: Record) -> Envelope:
    """Return the fields of a record's envelope that PartialEnvelope has. Raises LogCorruptError."""
    try:
        return PartialEnvelope.FromString(record.envelope)
    except DecodeError as error:
        raise undecodable_error(record) from error


def undecodable_error(record: Record) -> LogCorruptError:
    """Return the error for a record that is not an envelope."""
    return LogCorruptError(f"event {record.sequence_number} cannot be decoded; run gavel replay to examine the log")
