"""The recent past of a bus in memory, so that most commands need no read of the log before they are decided.

Two bounded tables are filled from every committed event: events that proposals may cite, by sequence number, and the locations of
event_ids. Older events are read from the log.

Every event enters the table of event_ids and leaves it again. The table therefore consists of two halves: when the newer half is
full it replaces the older one, which is dropped as a whole. Dropping the oldest entries one by one would cost time for every event.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import structlog
from gavel.v1 import decision_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.events.citation import CitedEvent, cited_event
from gavel_rules.events.ids import derived_event_id
from gavel_rules.events.kinds import DECISION, FACT, OBSERVATION

from gavel_server.log import Entry, EventLog

CITABLE_MAX: Final = 65_536
# Characters of the fact keys of an event that is kept. An observation may have 64 keys of 256 characters; one with more than a few is read
# from the log whenever a proposal cites it.
CITABLE_KEYS_LENGTH_MAX: Final = 512
# A location that is not in memory costs a read of the index in Redis.
LOCATIONS_MAX: Final = 16_384
# Cited events read from the log at once. Each may have 1 MiB, of which little is kept, or be in another segment of the archive.
CITED_READ_MAX: Final = 8

_LOG: Final = structlog.get_logger(__name__)


class EventLocation:
    """The place of an event in the log. `decision_sequence_number` is that of a proposal's first decision, else 0."""

    def __init__(self, sequence_number: int, decision_sequence_number: int, trace_id: str) -> None:
        self.sequence_number: Final = sequence_number
        self.decision_sequence_number: Final = decision_sequence_number
        self.trace_id: Final = trace_id


class RecentEvents:
    """The recent past of one bus, backed by its log."""

    def __init__(self, log: EventLog, *, citable_max: int = CITABLE_MAX, locations_max: int = LOCATIONS_MAX) -> None:
        self._log = log
        self.citable_max = citable_max
        self._locations_max = locations_max
        # An OrderedDict: finding the oldest key of a plain dict slows down while the oldest keys are removed.
        self._citable: OrderedDict[int, CitedEvent] = OrderedDict()
        self._large: list[int] = []  # citable events that leave once they are committed
        self._locations: dict[str, EventLocation] = {}
        self._older_locations: dict[str, EventLocation] = {}

    @property
    def tables(self) -> tuple[dict[Any, Any], ...]:
        """Its tables, to be freed."""
        return self._citable, self._locations, self._older_locations

    def add(self, envelope: Envelope) -> None:
        """Add a committed event of another server."""
        self._locations[envelope.event_id] = EventLocation(envelope.sequence_number, 0, envelope.trace_id)
        self.add_citable(envelope)
        if envelope.event_category == DECISION:
            self._add_decision(envelope)
        self._drop_large(envelope.sequence_number)
        self._bound()

    def add_batch(self, entries: list[Entry], trace_ids: list[str]) -> None:
        """Add a committed batch of this server; its entries name the first decisions of proposals.

        `add_citable` has added the citable events when they were decided.
        """
        locations = self._locations
        for index, entry in enumerate(entries):
            locations[entry.event_id] = EventLocation(entry.sequence_number, entry.decision_sequence_number, trace_ids[index])
        if self._large:
            self._drop_large(entries[-1].sequence_number)
        self._bound()

    def add_citable(self, envelope: Envelope) -> None:
        """Let proposals cite an event, if it is a fact or an observation. It may be uncommitted: `remove_citable` takes it back."""
        if envelope.event_category in (FACT, OBSERVATION):
            event = cited_event(envelope)
            self._citable[envelope.sequence_number] = event
            if sum(map(len, event.keys)) > CITABLE_KEYS_LENGTH_MAX:
                self._large.append(envelope.sequence_number)

    def _drop_large(self, last: int) -> None:
        """Drop the large events up to a committed one: the log has them."""
        for number in self._large:
            if number <= last:
                self._citable.pop(number, None)
        self._large = [number for number in self._large if number > last]

    def remove_citable(self, sequence_number: int) -> None:
        """Remove an event that was undone."""
        self._citable.pop(sequence_number, None)

    @property
    def citable(self) -> dict[int, CitedEvent]:
        """Recent events that proposals may cite, by sequence number. Read-only."""
        return self._citable

    def location(self, event_id: str) -> EventLocation | None:
        """Return the location of a recent event."""
        location = self._locations.get(event_id)
        return self._older_locations.get(event_id) if location is None else location

    async def read_citable(self, sequence_numbers: Sequence[int]) -> dict[int, CitedEvent]:
        """Read events to cite from the log; numbers that it does not hold are absent."""
        events: dict[int, CitedEvent] = {}
        numbers = sorted(set(sequence_numbers))  # neighbours are in one segment of the archive
        for first in range(0, len(numbers), CITED_READ_MAX):
            for number, record in (await self._log.read_many(numbers[first : first + CITED_READ_MAX])).items():
                events[number] = cited_event(Envelope.FromString(record.envelope))
        return events

    async def find_location(self, event_id: str, now_ms: int) -> EventLocation | None:
        """Return the location of an event, from memory or from the log.

        The log's index of event_ids is a hint: an entry that names another event, or no event of the log, counts as absent.
        """
        location = self.location(event_id)
        if location is not None:
            return location
        entry = (await self._log.find([event_id], now_ms)).get(event_id)
        if entry is None:
            return None
        records = await self._log.read_many([entry.sequence_number])
        record = records.get(entry.sequence_number)
        envelope = None if record is None else Envelope.FromString(record.envelope)
        if envelope is None or envelope.event_id != event_id:
            _LOG.error("index.damaged", event_id=event_id, sequence_number=entry.sequence_number)
            return None
        return EventLocation(entry.sequence_number, entry.decision_sequence_number, envelope.trace_id)

    async def find_unknown(self, event_ids: Iterable[str], now_ms: int) -> list[str]:
        """Return the event_ids that neither memory nor the log's index has. The events, which may be large, are not read."""
        unknown = [event_id for event_id in event_ids if self.location(event_id) is None]
        entries = await self._log.find(unknown, now_ms) if unknown else {}
        return [event_id for event_id in unknown if event_id not in entries]

    async def find_event(self, event_id: str, now_ms: int) -> Envelope | None:
        """Return an event as the log has it."""
        location = await self.find_location(event_id, now_ms)
        if location is None:
            return None
        record = (await self._log.read_many([location.sequence_number])).get(location.sequence_number)
        return None if record is None else Envelope.FromString(record.envelope)

    async def find_approval(self, decision: Envelope, now_ms: int) -> Envelope:
        """Return the approval that a person's grant of another attempt extends; any other decision is returned unchanged."""
        if decision.decision.outcome != decision_pb2.OUTCOME_APPROVED or decision.decision.compensates_decision_id:
            return decision
        approved = decision
        # A person's approval names the review. The review of an execution names the approval, that of a proposal names nothing.
        for _ in range(2):
            previous_id = approved.decision.previous_decision_id
            previous = await self.find_event(previous_id, now_ms) if previous_id else None
            if previous is None:
                return decision
            approved = previous
        return approved

    async def find_end_reason(self, decision: Envelope, now_ms: int) -> str:
        """Return the reason why an approved decision ended without an execution, else "".

        It is EXPIRED, REVOKED, or the reason of the ABORTED by which its first start was refused: STALE_FACT or FACT_SUPERSEDED.
        """
        for reason_code in (reason_codes.EXPIRED, reason_codes.REVOKED):
            end_event_id = derived_event_id(decision.event_id, decision.sequence_number, reason_code.lower())
            if await self.find_location(end_event_id, now_ms) is not None:
                return reason_code
        aborted = await self.find_event(derived_event_id(decision.event_id, decision.sequence_number, "aborted"), now_ms)
        return "" if aborted is None else aborted.execution.reason_code

    def _add_decision(self, decision: Envelope) -> None:
        """Add a decision to the location of the event that it answers: a proposal, or a person's verdict."""
        answered_id = decision.decision.proposal_id
        if decision.decision.previous_decision_id:
            before = self._citable.get(decision.sequence_number - 1)
            answered_id = decision.causation_id if before is not None and before.event_id == decision.causation_id else ""
        answered = self.location(answered_id)
        if answered is not None:
            self._locations[answered_id] = EventLocation(answered.sequence_number, decision.sequence_number, answered.trace_id)

    def _bound(self) -> None:
        citable = self._citable
        while len(citable) > self.citable_max:
            citable.popitem(last=False)
        if 2 * len(self._locations) >= self._locations_max:
            self._older_locations = self._locations
            self._locations = {}
