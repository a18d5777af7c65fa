"""What a replay checks before it recomputes: hash chain, sequence numbers, times, causes, and who published what.

The chain is over the recorded bytes; nothing is serialized again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.replay_service_pb2 import Divergence
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from gavel_rules.events.arbiter_versions import is_implemented
from gavel_rules.events.hash_chain import chain, genesis_hash
from gavel_rules.events.kinds import PAYLOAD_OF_CATEGORY
from gavel_rules.events.permissions import CATEGORIES_OF_PRODUCER
from gavel_rules.events.timestamps import TIME_MS_MAX
from gavel_rules.replay.errors import DamagedError, DivergedError, VersionNotImplementedError


class IntegrityStart(NamedTuple):
    """The event before a part of a log, and the idempotency window of the bus."""

    sequence_number: int
    chain_hash: bytes
    recorded_at_ms: int
    window_ms: int


class IntegrityPart(NamedTuple):
    """The findings of one part of a log, for `are_joined`: event_ids with the times when they were recorded, and causes before the part."""

    window_ms: int
    first_ms_of: dict[bytes, int]  # of event_ids that occur again after the window
    last_ms_of: dict[bytes, int]
    earlier_causes: list[bytes]


class Integrity:
    """Checks the integrity of a bus's log, or of a part of it. Feed every record from number 1, or that of the part, in order."""

    def __init__(self, bus: str, start: IntegrityStart | None = None) -> None:
        """`start` is where the part begins; None: at the beginning of the log.

        `are_joined` tells whether intact parts are intact together.
        """
        self._bus = bus
        self._is_part = start is not None
        start = start or IntegrityStart(0, genesis_hash(bus), 0, 0)
        self.events, self._hash, self._recorded_at_ms, self._window_ms = start
        self._recorded_at_ms_of: dict[bytes, int] = {}  # by event_id
        self._first_ms_of: dict[bytes, int] = {}  # of event_ids that occur again after the window
        self._earlier_causes: list[bytes] = []

    @property
    def chain_hash(self) -> bytes:
        """The chain hash of the last record, or of the event before the first one."""
        return self._hash

    @property
    def part(self) -> IntegrityPart:
        """The findings that `are_joined` compares with those of other parts."""
        return IntegrityPart(self._window_ms, self._first_ms_of, self._recorded_at_ms_of, self._earlier_causes)

    def feed(self, sequence_number: int, envelope_bytes: bytes, chain_hash: bytes) -> Envelope:
        """Check one record and return its envelope. Raises DamagedError, DivergedError or VersionNotImplementedError."""
        if sequence_number != self.events + 1:
            message = f"event {self.events + 1} is missing; the next entry is {sequence_number}"
            raise DamagedError(Divergence(sequence_number=self.events + 1, kind="sequence-gap", message=message))
        previous_hash = self._hash
        self._hash = chain(previous_hash, envelope_bytes)
        if self._hash != chain_hash:
            message = f"the chain breaks at event {sequence_number}: its bytes do not match its chain hash"
            raise DamagedError(Divergence(sequence_number=sequence_number, kind="chain-broken", message=message))
        envelope = decode(sequence_number, envelope_bytes)
        self.events = sequence_number
        header = _Header(envelope)
        problem = self._problem(envelope, header)
        if not problem and header.system == "data_loss_accepted":
            problem = self._loss_problem(envelope, previous_hash)
        if problem:
            raise DivergedError(
                Divergence(sequence_number=sequence_number, event_id=envelope.event_id, kind="unlawful-event", message=problem)
            )
        self._remember(envelope, header)
        return envelope

    def _loss_problem(self, envelope: Envelope, previous_hash: bytes) -> str:
        """Return why this event cannot accept a loss after the event before it, or ""."""
        accepted = envelope.fact.data_loss_accepted
        if (accepted.head_sequence_number, accepted.head_chain_hash) == (self.events - 1, previous_hash):
            return ""
        return f"event {self.events} accepts a loss after event {accepted.head_sequence_number}, which is not the event before it"

    def _problem(self, envelope: Envelope, header: _Header) -> str:
        """Return why this event cannot be at this place of a log, or ""."""
        number = self.events
        payload, category = header.payload, envelope.event_category
        if envelope.sequence_number != number or envelope.bus != self._bus:
            return f"entry {number} of bus {self._bus} holds event {envelope.sequence_number} of bus {envelope.bus}"
        if payload is None or PAYLOAD_OF_CATEGORY.get(category) != payload:
            return f"event {number} has category {category} and payload {payload}"
        if (number == 1) != (header.system == "bus_opened"):
            return f"event {number}: a bus begins with BusOpened and has no other"
        producer_type = envelope.producer.type
        if category not in CATEGORIES_OF_PRODUCER.get(producer_type, frozenset()):
            return f"event {number}: producer type {producer_type} may not publish a {payload}"
        if header.recorded_at_ms < 0 or _time_ms(envelope.occurred_at) < 0:
            return f"event {number}: recorded_at or occurred_at is outside the years 1970 to 9999"
        if header.recorded_at_ms < self._recorded_at_ms:
            return f"event {number} was recorded before event {number - 1}"
        known_ms = self._recorded_at_ms_of.get(header.event_id)
        if known_ms is not None and header.recorded_at_ms - known_ms <= self._window_ms:
            return f"event {number} repeats event_id {envelope.event_id} within the bus's idempotency window"
        cause = envelope.causation_id.encode()
        if cause and cause not in self._recorded_at_ms_of:
            if self._is_part:
                self._earlier_causes.append(cause)
                return ""
            return f"event {number} names the cause {envelope.causation_id}, which does not precede it"
        return ""

    def _remember(self, envelope: Envelope, header: _Header) -> None:
        event_id = header.event_id
        self._recorded_at_ms = header.recorded_at_ms
        if event_id in self._recorded_at_ms_of:
            self._first_ms_of.setdefault(event_id, self._recorded_at_ms_of[event_id])
        self._recorded_at_ms_of[event_id] = header.recorded_at_ms
        match header.system:
            case "bus_opened":
                version = envelope.fact.bus_opened.arbiter_version
                self._window_ms = envelope.fact.bus_opened.idempotency_window_ms
            case "arbiter_version_changed":
                version = envelope.fact.arbiter_version_changed.arbiter_version
            case _:
                return
        if not is_implemented(version):
            raise VersionNotImplementedError(envelope.sequence_number, version)


class _Header:
    """The fields of an event that several checks read, read once: docs/performance.md#protobuf-fields."""

    def __init__(self, envelope: Envelope) -> None:
        payload = envelope.WhichOneof("payload")
        self.payload: Final = payload
        self.system: Final = envelope.fact.WhichOneof("system") if payload == "fact" else None  # of a fact about Gavel
        self.event_id: Final = envelope.event_id.encode()
        self.recorded_at_ms: Final = _time_ms(envelope.recorded_at)


def are_joined(parts: Iterable[IntegrityPart]) -> bool:
    """Return whether intact parts of a log, in order, are intact together: causes precede, and event_ids repeat only after the window."""
    last_ms_of: dict[bytes, int] = {}
    for part in parts:
        if not all(cause in last_ms_of for cause in part.earlier_causes):
            return False
        for event_id in part.last_ms_of.keys() & last_ms_of.keys():
            first_ms = part.first_ms_of.get(event_id, part.last_ms_of[event_id])
            if first_ms - last_ms_of[event_id] <= part.window_ms:
                return False
        last_ms_of.update(part.last_ms_of)
    return True


def decode(sequence_number: int, envelope_bytes: bytes) -> Envelope:
    """Return the envelope of an entry. Raises DamagedError if the bytes are not an envelope."""
    try:
        return Envelope.FromString(envelope_bytes)
    except DecodeError as error:
        message = f"event {sequence_number} cannot be decoded"
        raise DamagedError(Divergence(sequence_number=sequence_number, kind="undecodable", message=message)) from error


def _time_ms(timestamp: Timestamp) -> int:
    """Return the milliseconds of a time that a bus records, or -1; admission refuses any other time."""
    seconds, nanos = timestamp.seconds, timestamp.nanos
    if 0 <= seconds <= TIME_MS_MAX // 1000 and 0 <= nanos < 1_000_000_000:
        return seconds * 1000 + nanos // 1_000_000
    return -1
