"""What the sequencer remembers of the log's recent past, so that most commands need no read before they are decided.

Two bounded tables, filled from every committed event: what proposals may cite, by sequence number, and where an event_id
stands. What is older is read from the log.

Every event gets into the table of event_ids, and leaves it. So that is kept in two halves: once the newer one is full it takes the
place of the older one, which is forgotten as a whole. That costs nothing for an event; to drop the oldest one by one does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reasons
from gavel_rules.events import DECISION, FACT, OBSERVATION, derived_event_id
from gavel_rules.evidence import Cited, cited
from gavel_rules.proposed import Citation
from mypy_extensions import mypyc_attr

from gavel_server.log import Entry, EventLog

CITED_MAX: Final = 65_536
KNOWN_MAX: Final = 65_536


@mypyc_attr(acyclic=True)  # numbers and text: nothing for the garbage collector to follow
class Known:
    """Where an event stands. `decision_sequence_number` is a proposal's first decision, else 0. No tuple: compiled, those cost more."""

    def __init__(self, sequence_number: int, decision_sequence_number: int, trace_id: str) -> None:
        self.sequence_number: Final = sequence_number
        self.decision_sequence_number: Final = decision_sequence_number
        self.trace_id: Final = trace_id


class Lookup:
    """The recent past of one bus, with the log behind it."""

    def __init__(self, log: EventLog, *, cited_max: int = CITED_MAX, known_max: int = KNOWN_MAX) -> None:
        self._log = log
        self.cited_max = cited_max
        self._known_max = known_max
        # Ordered: a plain dict searches ever longer for its oldest key while that is the one that goes.
        self._cited: OrderedDict[int, Cited] = OrderedDict()
        self._known: dict[str, Known] = {}
        self._known_before: dict[str, Known] = {}

    def note(self, envelope: Envelope) -> None:
        """Remember a committed event that another server made."""
        self._known[envelope.event_id] = Known(envelope.sequence_number, 0, envelope.trace_id)
        self.cite(envelope)
        if envelope.event_category == DECISION:
            self._note_answered(envelope)
        self._bound()

    def note_all(self, entries: list[Entry], trace_ids: list[str]) -> None:
        """Remember a committed batch of this server, whose entries say by which event each proposal was decided.

        What of it may be cited was told by `cite` when it was decided.
        """
        known = self._known
        for index, entry in enumerate(entries):
            known[entry.event_id] = Known(entry.sequence_number, entry.decision_sequence_number, trace_ids[index])
        self._bound()

    def _note_answered(self, decision: Envelope) -> None:
        """Remember what was decided: on a proposal, or on a person's word, which is the only fact that a decision follows."""
        answered_id = decision.decision.proposal_id
        if decision.decision.previous_decision_id:
            before = self._cited.get(decision.sequence_number - 1)
            answered_id = decision.causation_id if before is not None and before.event_id == decision.causation_id else ""
        answered = self.known(answered_id)
        if answered is not None:
            self._known[answered_id] = Known(answered.sequence_number, decision.sequence_number, answered.trace_id)

    def _bound(self) -> None:
        cited_events = self._cited
        while len(cited_events) > self.cited_max:
            cited_events.popitem(last=False)
        if 2 * len(self._known) >= self._known_max:
            self._known_before = self._known
            self._known = {}

    def cite(self, envelope: Envelope) -> None:
        """Let proposals cite an event that is applied but not committed yet; `uncite` it if it is undone."""
        if envelope.event_category in (FACT, OBSERVATION):
            self._cited[envelope.sequence_number] = cited(envelope)

    def uncite(self, sequence_number: int) -> None:
        """Forget an event that was undone."""
        self._cited.pop(sequence_number, None)

    def known(self, event_id: str) -> Known | None:
        """Return where a recent event stands."""
        known = self._known.get(event_id)
        return self._known_before.get(event_id) if known is None else known

    @property
    def cited(self) -> dict[int, Cited]:
        """Recent events that proposals may cite, by sequence number. To be read only."""
        return self._cited

    def missing(self, citations: list[Citation]) -> list[int]:
        """Return the sequence numbers of what is cited and not among the recent events."""
        return [number for number, _ in citations if number not in self._cited]

    async def fetch_cited(self, sequence_numbers: Sequence[int]) -> dict[int, Cited]:
        """Read events to cite from the log; those that it does not hold are absent."""
        found: dict[int, Cited] = {}
        for number, record in (await self._log.read_many(sequence_numbers)).items():
            found[number] = cited(Envelope.FromString(record.envelope))
        return found

    async def find(self, event_id: str, now_ms: int) -> Known | None:
        """Return where an event stands, from memory or from the log."""
        known = self.known(event_id)
        if known is not None:
            return known
        entry = (await self._log.find([event_id], now_ms)).get(event_id)
        if entry is None:
            return None
        records = await self._log.read_many([entry.sequence_number])
        record = records.get(entry.sequence_number)
        if record is None:
            return None
        trace_id = Envelope.FromString(record.envelope).trace_id
        return Known(entry.sequence_number, entry.decision_sequence_number, trace_id)

    async def event(self, event_id: str, now_ms: int) -> Envelope | None:
        """Return an event by id, as the log has it."""
        known = await self.find(event_id, now_ms)
        if known is None:
            return None
        record = (await self._log.read_many([known.sequence_number])).get(known.sequence_number)
        return None if record is None else Envelope.FromString(record.envelope)

    async def approval(self, decision: Envelope, now_ms: int) -> Envelope:
        """Return the approval that a person's grant of one more attempt is about; any other decision itself."""
        if decision.decision.outcome != decision_pb2.OUTCOME_APPROVED or decision.decision.compensates_decision_id:
            return decision
        approved = decision
        # What a person approved names the review; the review of an execution names the approval, that of a proposal nothing.
        for _ in range(2):
            previous_id = approved.decision.previous_decision_id
            previous = await self.event(previous_id, now_ms) if previous_id else None
            if previous is None:
                return decision
            approved = previous
        return approved

    async def ending(self, decision: Envelope, now_ms: int) -> str:
        """Return EXPIRED or REVOKED if an approved decision ended so, else ""."""
        for reason_code in (reasons.EXPIRED, reasons.REVOKED):
            ending_id = derived_event_id(decision.event_id, decision.sequence_number, reason_code.lower())
            if await self.find(ending_id, now_ms) is not None:
                return reason_code
        return ""
