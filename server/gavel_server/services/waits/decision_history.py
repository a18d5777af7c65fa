"""The history of one proposal after its first decision: its latest decision, its last report, and the phase that follows from both.

The state knows live decisions and open reviews, so that a look at a decision in progress is a few lookups. A decision that has ended is
followed in the log, from where it was seen last to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.arbitration_service_pb2 import (
    DECISION_PHASE_CLOSED,
    DECISION_PHASE_DECIDED,
    DECISION_PHASE_EXECUTED,
    DECISION_PHASE_UNSPECIFIED,
    DecisionPhase,
)
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_STARTED, Execution
from gavel_rules.arbitration.first_decision import first_decision_id
from gavel_rules.state.records import AWAITING_FACTS
from gavel_rules.state.state import State

from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.index.event_filter import EventFilter
from gavel_server.services.reads.log_reader import envelope_of, read_chunks

# Until the state has reached an event that another server has just written.
BEHIND_MS_MAX: Final = 5_000
# Events that are read for an ended decision without a slot for scans of the log. Most decisions end soon after they were made.
NEAR_EVENTS_MAX: Final = 1_024

ScanSlot = Callable[[], AbstractAsyncContextManager[None]]


class DecisionHistory:
    """The decisions and reports on one proposal, as far as they have been read. `decision` is the latest; None: it has none yet."""

    def __init__(self, sequencer: Sequencer, proposal_id: str, trace_id: str, caller: str, scan_slot: ScanSlot) -> None:
        self.decision: Envelope | None = None
        self.execution: Envelope | None = None
        self._sequencer = sequencer
        self._proposal_id = proposal_id
        self._trace_id = trace_id
        self._caller = caller
        self._scan_slot = scan_slot
        self._first_id = ""  # of the first decision, while the proposal competes
        self._decision_ids: set[str] = set()
        self._approval_id = ""  # the decision that is or was live
        self._review_id = ""  # the open review
        self._compensation_id = ""
        self._read_to = 0  # the last event that was looked at

    @classmethod
    async def find(cls, sequencer: Sequencer, event_id: str, caller: str, scan_slot: ScanSlot) -> DecisionHistory:
        """Return the history of a decision or a proposal. Raises ServiceError DECISION_NOT_FOUND, LogError."""
        event = await _event(sequencer, event_id)
        if event is not None and event.HasField("proposal"):
            history = cls(sequencer, event.event_id, event.trace_id, caller, scan_slot)
            history._first_id = first_decision_id(event)
            await history._read_first()
            return history
        if event is None or not event.HasField("decision"):
            message = f"bus {sequencer.bus} has no decision or proposal {event_id}"
            raise ServiceError(error_pb2.ERROR_REASON_DECISION_NOT_FOUND, message)
        # A compensation has a history of its own, which begins with it.
        decisions = [event]
        while decisions[-1].decision.previous_decision_id and not decisions[-1].decision.compensates_decision_id:
            earlier = await _event(sequencer, decisions[-1].decision.previous_decision_id)
            if earlier is None:
                break
            decisions.append(earlier)
        history = cls(sequencer, event.decision.proposal_id, event.trace_id, caller, scan_slot)
        for decision in reversed(decisions):
            history._note_decision(decision)
        # Reports come after the approval, also before the decision that the caller named.
        history._read_to = decisions[-1].sequence_number
        return history

    async def phase(self) -> DecisionPhase.ValueType:
        """Return the phase in the committed state, after reading what the state no longer knows. Raises ServiceError, LogError."""
        while True:
            state = await self._sequencer.settled_state()
            phase = self.phase_in(state)
            if phase is not None:
                return phase
            if self.decision is None:
                await self._read_first()
                if self.decision is None:
                    return DECISION_PHASE_UNSPECIFIED
            elif not await self._read_on():
                return DECISION_PHASE_UNSPECIFIED if self._review_id else DECISION_PHASE_CLOSED

    def phase_in(self, state: State) -> DecisionPhase.ValueType | None:
        """Return the phase in a state, or None if more of the log has to be read. Does not wait."""
        if self.decision is None:
            return DECISION_PHASE_UNSPECIFIED if self._proposal_id in state.open_proposals else None
        if self._review_id and not self._approval_id:
            return DECISION_PHASE_UNSPECIFIED if self._review_id in state.reviews else None
        if not self._approval_id:
            return DECISION_PHASE_CLOSED
        live = state.decisions.get(self._approval_id)
        if live is not None:
            if live.compensation:
                self._compensation_id = live.compensation
            return DECISION_PHASE_EXECUTED if live.phase == AWAITING_FACTS else DECISION_PHASE_DECIDED
        if self._compensation_id in state.decisions:
            return DECISION_PHASE_EXECUTED  # it holds the conflict key
        return DECISION_PHASE_CLOSED if self._has_ended() else None

    async def complete(self) -> None:
        """Read the latest decision and the last report of a decision that is live. Raises LogError."""
        state = await self._sequencer.settled_state()
        live = state.decisions.get(self._approval_id)
        if live is None:
            return
        review = state.reviews.get(live.review)
        later = [event for event in (live.grant, review.decision if review is not None else None) if event is not None]
        for event in later:
            if event.event_id not in self._decision_ids:
                # The state's copy has no chain hash.
                recorded = await _read(self._sequencer, event.sequence_number)
                self._note_decision(recorded if recorded is not None else event)
        self._decision_ids.update(live.grant_ids)
        number = live.status_sequence_number if live.status not in (0, EXECUTION_STATUS_STARTED) else 0
        if number and (self.execution is None or self.execution.sequence_number < number):
            self.execution = await _read(self._sequencer, number)

    def _note_decision(self, event: Envelope) -> None:
        """Note a later decision, in the order of the log."""
        decision = event.decision
        self.decision = event
        self._decision_ids.add(event.event_id)
        if decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
            # A person's approval that lacks evidence leaves the review open.
            if not self._review_id or decision.previous_decision_id != self._review_id:
                self._review_id = event.event_id
        else:
            self._review_id = ""
        if decision.outcome == OUTCOME_APPROVED and not self._approval_id:
            self._approval_id = event.event_id

    def _has_ended(self) -> bool:
        """Return whether the end of an approval has been read."""
        if self.decision is None or self._review_id:
            return False
        if self.decision.decision.outcome != OUTCOME_APPROVED:
            return True
        report = self.execution
        # A person may have granted another attempt since the report. What follows from a report is in its commit, so the event after it
        # tells whether a review does.
        return (
            report is not None
            and not report.execution.will_retry
            and self.decision.sequence_number < report.sequence_number < self._read_to
        )

    async def _read_first(self) -> None:
        """Read the first decision of a proposal, if it is made."""
        event = await _event(self._sequencer, self._first_id)
        if event is not None:
            self._note_decision(event)
            self._read_to = event.sequence_number

    async def _read_on(self) -> bool:
        """Read the log on to a verdict on the review, to the end of the decision, or to the head; return whether anything was read."""
        is_enough = self._has_ended if self._approval_id else self._has_verdict
        head = self._sequencer.head.sequence_number
        first = self._read_to + 1
        near = min(head, first + NEAR_EVENTS_MAX - 1)
        await self._read_events(first, near, is_enough)
        if near < head and not is_enough():
            async with self._scan_slot():
                await self._read_events(near + 1, head, is_enough)
        return self._read_to >= first

    def _has_verdict(self) -> bool:
        return not self._review_id

    async def _read_events(self, first: int, last: int, is_complete: Callable[[], bool]) -> None:
        """Note the events of the trace from `first` to `last` until it is enough."""
        async with aclosing(read_chunks(self._sequencer.log, first, last, self._caller)) as chunks:
            async for records in chunks:
                by_number = {record.sequence_number: record for record in records}
                for event in EventFilter(trace_id=self._trace_id).select(records):
                    number = event.envelope.sequence_number
                    self._read_to = number - 1
                    if is_complete():
                        return
                    self._note_event(envelope_of(by_number[number]))
                self._read_to = records[-1].sequence_number
                if is_complete():
                    return

    def _note_event(self, event: Envelope) -> None:
        """Note an event of the trace if it is about this proposal."""
        if event.HasField("decision") and event.decision.previous_decision_id in self._decision_ids:
            if event.decision.compensates_decision_id:
                self._compensation_id = event.event_id
            else:
                self._note_decision(event)
        elif event.HasField("execution") and self._is_report(event.execution):
            self.execution = event

    def _is_report(self, execution: Execution) -> bool:
        return execution.decision_id == self._approval_id and execution.status != EXECUTION_STATUS_STARTED


async def _event(sequencer: Sequencer, event_id: str) -> Envelope | None:
    """Return an event that the state covers, or None if the bus does not know its id. Raises ServiceError, LogError."""
    state = await sequencer.settled_state()
    known = state.decisions.get(event_id) or state.reviews.get(event_id)
    located = known or await sequencer.recent_events.find_location(event_id, sequencer.now_ms())
    if located is None:
        return None
    number = located.sequence_number
    await sequencer.wait_for(number, BEHIND_MS_MAX)
    event = await _read(sequencer, number)
    return event if event is not None and event.event_id == event_id else None


async def _read(sequencer: Sequencer, sequence_number: int) -> Envelope | None:
    """Return an event of the log with its chain hash."""
    record = (await sequencer.log.read_many([sequence_number])).get(sequence_number)
    return None if record is None else envelope_of(record)
