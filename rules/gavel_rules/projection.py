"""The present state of a bus, as its events make it, and the only place where it changes.

`State` holds what is alive: current evidence, approved decisions on their way, open reviews, running counts, timers, rule
sets. `apply` moves it by one event and knows nothing but the event, so the same log always gives the same state (seeds
002 §10). Every change is written to a journal first; a batch whose append failed is undone and leaves no trace.

Records (`records.py`) are immutable tuples: a change puts another record in place, which is what makes undoing (`journal.py`)
a matter of putting the old one back. Nothing iterates over a dict in an order that matters: undoing may reorder keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gavel.v1 import common_pb2, decision_pb2, execution_pb2, fact_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CrossCheck
from google.protobuf.message import Message
from sortedcontainers import SortedList

from gavel_rules import derivation
from gavel_rules.agreement import disagreements
from gavel_rules.document import digest_of
from gavel_rules.events import FACT, OBSERVATION, milliseconds
from gavel_rules.fingerprint import fingerprint
from gavel_rules.journal import Journal
from gavel_rules.limits import (
    IDEMPOTENCY_WINDOW_MS_DEFAULT,
    LATE_REPORT_MS_MAX,
    READINGS_PER_RESULT_MAX,
    SOURCES_PER_KEY_MAX,
    TRACE_ENDINGS_MAX,
    TRACE_LAPSE_MS,
    TRACE_TOOL_CALLS_MAX,
    TRACE_TOOL_RESULTS_MAX,
)
from gavel_rules.reasons import INVALID_PARAMS, NO_ACTIVE_POLICY, NO_FEASIBLE_PROPOSAL, VERSION_MISMATCH
from gavel_rules.records import (
    NO_REJECTIONS,
    ActiveRuleSet,
    Candidate,
    Departed,
    DeployedRuleSet,
    Ended,
    LiveDecision,
    OpenContest,
    Rejections,
    Review,
    Shadowing,
    ShadowRuleSet,
    ToolEvidence,
    Trace,
)
from gavel_rules.ruleset import CompiledAction, CompiledRuleSet
from gavel_rules.stages import RefusalClass, refusal_class
from gavel_rules.values import value_to_python

# Phases of an approved decision; PendingPhase of the contract.
APPROVED: Final = 1
EXECUTING: Final = 2
AWAITING_FACTS: Final = 3
UNDER_REVIEW: Final = 4


class State(Journal):
    """The decider's state of one bus at its head. Changed by `apply` alone."""

    def __init__(self, bus: str) -> None:
        super().__init__()
        self.bus = bus
        self.head = 0
        self.recorded_at_ms = 0
        self.arbiter_version = 0
        self.cross_check = CrossCheck()
        self.idempotency_window_ms = IDEMPOTENCY_WINDOW_MS_DEFAULT
        self.rule_sets: dict[tuple[str, int], DeployedRuleSet] = {}
        self.active: dict[str, ActiveRuleSet] = {}
        self.governing: dict[str, tuple[CompiledAction, ...]] = {}
        self.shadows: dict[str, ShadowRuleSet] = {}
        self.shadowing: dict[str, tuple[Shadowing, ...]] = {}  # by action type
        self.evidence: dict[str, dict[str, tuple[Candidate, ...]]] = {}
        self.open_proposals: dict[str, Envelope] = {}
        self.contests: dict[str, OpenContest] = {}  # by `contest_name`
        self.waiting_of_subject: dict[str, tuple[str, ...]] = {}  # event_ids of the proposals that wait for contests
        self.decisions: dict[str, LiveDecision] = {}
        self.decisions_of_subject: dict[str, tuple[str, ...]] = {}
        self.holds: dict[str, str] = {}
        self.grants: dict[str, str] = {}  # decision_id of a grant of one more attempt -> that of its approval
        self.departed: dict[str, Departed] = {}  # decisions that ended while attempts of them had not reported
        self.reviews: dict[str, Review] = {}
        self.ended: dict[str, dict[str, Ended]] = {}  # by trace, then action and subject
        self.traces: dict[str, Trace] = {}
        self.tool_calls: dict[str, dict[str, int]] = {}  # by trace: execution_ids, with the number of the call
        self.tool_results: dict[str, dict[str, ToolEvidence]] = {}
        self.readings: dict[str, dict[str, str]] = {}  # by tool result: what was read in it, by subject and key
        self.contradicted: dict[str, str] = {}  # by tool result: a subject and key of which it was read to say two things
        # (due_ms, sequence_number, decision_id), or of a contest the number of its first proposal and its name
        self._timers: SortedList = SortedList()
        self._lapses: SortedList = SortedList()  # (last_event_ms, trace_id)
        self._departures: SortedList = SortedList()  # (ended_at_ms, decision_id)

    # Reading

    def rejections(self, trace_id: str, now_ms: int) -> Rejections:
        """Return how many rejections in a row the trace has had; none once it has been silent for TRACE_LAPSE_MS."""
        trace = self.traces.get(trace_id)
        return trace.rejections if trace is not None and not _has_lapsed(trace, now_ms) else NO_REJECTIONS

    def refused(self, trace_id: str, now_ms: int) -> str:
        """Return the fingerprint of what the trace was refused last, for lack of evidence or by policy, or ""."""
        trace = self.traces.get(trace_id)
        return trace.refused if trace is not None and not _has_lapsed(trace, now_ms) else ""

    def is_ended(self, trace_id: str, action_type: str, subject: str, governing: Sequence[CompiledAction], now_ms: int) -> bool:
        """Whether the trace was told that this action on this subject cannot succeed, and still cannot.

        What a person has rejected stays ended. What the rules could not allow may be tried again after an event about a declared
        fact, or under other rule sets.
        """
        ended = self.ended.get(trace_id, {}).get(_what(action_type, subject))
        if ended is None:
            return False
        if ended.by_person:
            return True
        if _has_lapsed(self.traces[trace_id], now_ms):
            return False
        if governing and ended.digests != tuple([action.digest for action in governing]):
            return False
        return not any(
            candidate.sequence_number > ended.sequence_number
            for key, of_subject in ended.rests_on
            for candidate in self.evidence.get(of_subject, {}).get(key, ())
        )

    def tool_evidence(self, trace_id: str, event_id: str, now_ms: int) -> ToolEvidence | None:
        """Return a tool result of the trace, unless the trace has lapsed."""
        trace = self.traces.get(trace_id)
        if trace is None or _has_lapsed(trace, now_ms):
            return None
        return self.tool_results.get(trace_id, {}).get(event_id)

    def has_room_for_result(self, trace_id: str, now_ms: int) -> bool:
        """Whether a trace can take one more tool result: it has few enough, or has some to spare that nobody has read."""
        results = self.tool_results.get(trace_id, _NO_RESULTS)
        if len(results) < TRACE_TOOL_RESULTS_MAX or _has_lapsed(self.traces[trace_id], now_ms):
            return True
        return bool(self._spare_results(results))

    def has_room_for_readings(self, evidence_ref: str, subject: str, keys: Iterable[str]) -> bool:
        """Whether what an observation has read in a tool result can be remembered, so that another reading cannot contradict it unseen."""
        of_evidence = self.readings.get(evidence_ref)
        if of_evidence is None:
            return True
        return len(of_evidence) + len({_read(subject, key) for key in keys} - of_evidence.keys()) <= READINGS_PER_RESULT_MAX

    def has_room_for_source(self, subject: str, key: str, trust_tier: int, source: str) -> bool:
        """Whether a source may state a key of a subject at a tier: it has done so before, or few enough others have."""
        candidates = self.evidence.get(subject, _NO_KEYS).get(key, ())
        if len(candidates) < SOURCES_PER_KEY_MAX:
            return True
        known = [candidate.source for candidate in candidates if candidate.trust_tier == trust_tier]
        return len(known) < SOURCES_PER_KEY_MAX or source in known

    def open_review(self, trace_id: str) -> str:
        """Return the decision_id of the trace's open review, or ""."""
        trace = self.traces.get(trace_id)
        return trace.review if trace else ""

    def rule_set_of(self, decision: Decision) -> CompiledRuleSet | None:
        """Return the rule set that made a decision; None for one of Gavel's own."""
        if not decision.rule_set_digest:
            return None
        return self._rule_set(decision.policy_id, decision.policy_version)

    def live(self, decision_id: str) -> LiveDecision | None:
        """Return the live decision of this id, or the one that a person granted one more attempt under this id."""
        return self.decisions.get(decision_id) or self.decisions.get(self.grants.get(decision_id, ""))

    def reportable(self, decision_id: str, now_ms: int) -> LiveDecision | None:
        """Return the decision whose attempts may report under this id: the live one, or as it was when it ended without their word."""
        departed = self.departed.get(self.grants.get(decision_id, decision_id)) if self.departed else None
        if departed is None:
            return self.live(decision_id)
        return departed.live if now_ms - departed.ended_at_ms <= LATE_REPORT_MS_MAX else None

    def actions_of(self, decision: Decision) -> list[CompiledAction]:
        """Return what governed a decision's action in the rule sets that were consulted for it, whatever is in force now."""
        return [
            self._rule_set(reference.policy_id, reference.version).actions[decision.action_type] for reference in decision.active_rule_sets
        ]

    def _rule_set(self, policy_id: str, version: int) -> CompiledRuleSet:
        """Return a deployed version: the one in force is at hand, others may have to be compiled."""
        active = self.active.get(policy_id)
        return active.rule_set if active is not None and active.version == version else self.rule_sets[policy_id, version].rule_set

    def next_timer_ms(self) -> int | None:
        """Return when the next timer is due, in milliseconds since the epoch."""
        return self._timers[0][0] if self._timers else None

    def next_due(self, now_ms: int) -> LiveDecision | OpenContest | None:
        """Return the decision or the contest whose timer is due next, by (due, sequence number), if it is due by now."""
        if self._timers and self._timers[0][0] <= now_ms:
            name = self._timers[0][2]
            return self.contests.get(name) or self.decisions[name]
        return None

    def due_count(self, now_ms: int) -> int:
        """Return how many timers are due by now; a contest counts as often as it has candidates, for each is decided."""
        count = int(self._timers.bisect_right((now_ms, 1 << 62, "")))
        if self.contests:
            due = (self.contests.get(name) for _, _, name in self._timers[:count])
            count += sum(len(contest.candidates) - 1 for contest in due if contest is not None)
        return count

    def contest_of(self, proposal_id: str) -> OpenContest | None:
        """Return the contest whose close a proposal waits for."""
        proposal = self.open_proposals.get(proposal_id)
        return self._contest_of(proposal) if proposal is not None else None

    def _contest_of(self, proposal: Envelope) -> OpenContest | None:
        if not self.contests or not proposal.proposal.HasField("contest"):
            return None
        return self.contests.get(contest_name(proposal.proposal.action_type, proposal.proposal.contest.conflict_key))

    def pending_decisions(self) -> list[LiveDecision]:
        """Return all live decisions, oldest first."""
        return sorted(self.decisions.values(), key=lambda live: live.sequence_number)

    def pending_reviews(self) -> list[Review]:
        """Return all open reviews, oldest first."""
        return sorted(self.reviews.values(), key=lambda review: review.sequence_number)

    def mark(self) -> int:
        """Return a point to which `undo` can go back, head and time included."""
        position = self.position
        head, recorded_at_ms = self.head, self.recorded_at_ms

        def restore() -> None:
            self.head, self.recorded_at_ms = head, recorded_at_ms

        self.on_undo(restore)
        return position

    # Changing

    def apply(self, envelope: Envelope) -> None:
        """Move the state by one event. The event is the log's next; it is kept and must not be changed afterwards."""
        self.head = envelope.sequence_number
        recorded_at_ms = milliseconds(envelope.recorded_at)
        if recorded_at_ms != self.recorded_at_ms:
            self.recorded_at_ms = recorded_at_ms
            # First, so that an event of a trace that has lapsed begins the trace anew instead of reviving what it was.
            self._forget_lapsed_traces()
            if self._departures:
                self._forget_departed()
        trace = self.traces.get(envelope.trace_id)
        if trace is not None:
            self._put_trace(envelope.trace_id, trace._replace(last_event_ms=self.recorded_at_ms))
        _APPLY[envelope.WhichOneof("payload")](self, envelope)

    def _apply_proposal(self, envelope: Envelope) -> None:
        self._put(self.open_proposals, envelope.event_id, envelope)
        if envelope.proposal.HasField("contest"):
            self._enter_contest(envelope)

    def _enter_contest(self, envelope: Envelope) -> None:
        proposal = envelope.proposal
        entry = proposal.contest
        name = contest_name(proposal.action_type, entry.conflict_key)
        contest = self.contests.get(name)
        if contest is None:
            number = envelope.sequence_number
            opened_at_ms, closes_at_ms = milliseconds(entry.opened_at), milliseconds(entry.closes_at)
            contest = OpenContest(name, proposal.action_type, entry.conflict_key, number, opened_at_ms, closes_at_ms, (), 0)
            self._add_sorted(self._timers, (closes_at_ms, number, name))
        candidates = (*contest.candidates, envelope.event_id)
        size_bytes = contest.size_bytes + envelope.ByteSize()
        self._put(self.contests, name, contest._replace(candidates=candidates, size_bytes=size_bytes))
        of_subject = self.waiting_of_subject.get(envelope.subject, ())
        self._put(self.waiting_of_subject, envelope.subject, (*of_subject, envelope.event_id))

    def _leave_contest(self, contest: OpenContest, envelope: Envelope) -> None:
        """A candidate is decided; with the last one the contest is over."""
        rest = tuple([candidate for candidate in contest.candidates if candidate != envelope.event_id])
        if rest:
            self._put(self.contests, contest.name, contest._replace(candidates=rest))
        else:
            self._drop(self.contests, contest.name)
            self._remove_sorted(self._timers, (contest.closes_at_ms, contest.sequence_number, contest.name))
        waiting = tuple([other for other in self.waiting_of_subject[envelope.subject] if other != envelope.event_id])
        if waiting:
            self._put(self.waiting_of_subject, envelope.subject, waiting)
        else:
            self._drop(self.waiting_of_subject, envelope.subject)

    def _apply_decision(self, envelope: Envelope) -> None:
        decision = envelope.decision
        if decision.previous_decision_id:
            self._apply_later_decision(envelope)
            return
        proposal = self.open_proposals[decision.proposal_id]
        self._drop(self.open_proposals, decision.proposal_id)
        contest = self._contest_of(proposal)
        if contest is not None:
            self._leave_contest(contest, proposal)
        review = ""
        if decision.outcome == decision_pb2.OUTCOME_APPROVED:
            self._approve(envelope, proposal)
        elif decision.outcome == decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW:
            review = decision.decision_id
            self._put(self.reviews, review, Review(review, envelope.sequence_number, envelope, "", proposal))
        counts = decision.rejection_counts
        rejections = Rejections(counts.evidence, counts.policy, counts.conflict) if decision.consecutive_rejections else NO_REJECTIONS
        if decision.terminal and decision.reason_code != NO_FEASIBLE_PROPOSAL:
            self._end(envelope, by_person=False)
        self._count(envelope.trace_id, rejections, review, _refused(decision, proposal))
        if self.shadowing:
            for shadow in self.shadowing.get(decision.action_type, ()):
                watching = self.shadows[shadow.policy_id]
                self._put(self.shadows, shadow.policy_id, watching._replace(decisions=watching.decisions + 1))

    def _end(self, envelope: Envelope, by_person: bool) -> None:
        """Note that the action on the subject is hopeless for the trace, as the decision says."""
        decision = envelope.decision
        rests_on = (*((pin.key, pin.subject) for pin in decision.pinned_facts), *((one.key, one.subject) for one in decision.absent_facts))
        digests = tuple([rule_set.digest for rule_set in decision.active_rule_sets])
        ended = Ended(decision.decision_id, envelope.sequence_number, rests_on, digests, by_person)
        of_trace = self._inner(self.ended, envelope.trace_id)
        self._put(of_trace, _what(decision.action_type, envelope.subject), ended)
        if len(of_trace) > TRACE_ENDINGS_MAX:
            # What a person has rejected stays so. The rules can be asked again: they come to the same, or the facts have changed.
            by_rules = {what: ended.sequence_number for what, ended in of_trace.items() if not ended.by_person}
            if len(by_rules) > TRACE_ENDINGS_MAX:
                self._drop_oldest(of_trace, by_rules, len(by_rules) // 4)

    def _approve(self, envelope: Envelope, proposal: Envelope) -> None:
        decision = envelope.decision
        decision_id = decision.decision_id
        due_ms = milliseconds(decision.valid_until) if decision.HasField("valid_until") else 0
        sequence_number = envelope.sequence_number
        self._enliven(
            LiveDecision(decision_id, sequence_number, envelope, proposal, decision.conflict_key, APPROVED, sequence_number, due_ms)
        )
        if due_ms:
            self._add_sorted(self._timers, (due_ms, sequence_number, decision_id))
        self._put(self.holds, decision.conflict_key, decision_id)

    def _enliven(self, live: LiveDecision) -> None:
        self._put(self.decisions, live.decision_id, live)
        subject = live.decision.subject
        self._put(self.decisions_of_subject, subject, (*self.decisions_of_subject.get(subject, ()), live.decision_id))

    def _apply_later_decision(self, envelope: Envelope) -> None:
        decision = envelope.decision
        review = self.reviews.get(decision.previous_decision_id)
        if review is not None:
            # One more NEEDS_HUMAN_REVIEW says that the evidence does not allow what the person wanted: it stays open.
            if decision.outcome != decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW:
                self._resolve(envelope, review)
            return
        live = self.decisions.get(decision.previous_decision_id)
        if live is None:
            return
        if decision.compensates_decision_id:
            self._move(live, envelope, compensation=decision.decision_id)
            self._approve(envelope, live.proposal)  # and the key is the compensation's
        elif decision.outcome == decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW:
            self._move(live, envelope, phase=UNDER_REVIEW, running=False, timer_due_ms=0, review=decision.decision_id)
            review = Review(decision.decision_id, envelope.sequence_number, envelope, live.decision_id, live.proposal)
            self._put(self.reviews, decision.decision_id, review)
            if live.conflict_key not in self.holds:
                self._put(self.holds, live.conflict_key, live.decision_id)  # it had ended: nobody else acts while a person looks
        else:
            self._release(live)

    def _resolve(self, envelope: Envelope, review: Review) -> None:
        """Close a review as the DECISION that follows from a person's verdict says."""
        decision = envelope.decision
        trace_id = envelope.trace_id
        self._drop(self.reviews, review.decision_id)
        trace = self.traces.get(trace_id)
        if trace is not None:
            still_open = "" if trace.review == review.decision_id else trace.review
            self._put_trace(trace_id, Trace(NO_REJECTIONS, self.recorded_at_ms, still_open))
        if review.approved_decision_id:
            self._resolve_execution(envelope, self.decisions[review.approved_decision_id])
        elif decision.outcome == decision_pb2.OUTCOME_APPROVED:
            self._approve(envelope, review.proposal)
        elif decision.terminal:
            self._end(envelope, by_person=True)

    def _resolve_execution(self, envelope: Envelope, live: LiveDecision) -> None:
        decision = envelope.decision
        if decision.outcome == decision_pb2.OUTCOME_APPROVED:
            self._put(self.grants, decision.decision_id, live.decision_id)
            self._put(self.holds, live.conflict_key, live.decision_id)  # anew, where its compensation had it and was given up
            due_ms = milliseconds(decision.valid_until)
            grants = (*live.grants, decision.decision_id)
            self._move(live, envelope, phase=EXECUTING, timer_due_ms=due_ms, review="", granted=envelope, grants=grants)
        else:
            # Its key is free; what its reports derive may still be to come (seeds 002 §7.2).
            self._free_key(live)
            self._release_if_over(self._move(live, envelope, phase=AWAITING_FACTS, review="", granted=None, revoked=True))

    def _count(self, trace_id: str, rejections: Rejections, review: str, refused: str) -> None:
        trace = self.traces.get(trace_id)
        if rejections.total and trace is not None:
            refused = refused or trace.refused
        review = review or (trace.review if trace else "")
        if rejections.total or review or trace_id in self.tool_calls or trace_id in self.tool_results or trace_id in self.ended:
            self._put_trace(trace_id, Trace(rejections, self.recorded_at_ms, review, refused))
        elif trace is not None:
            self._drop_trace(trace_id, trace)

    def _drop_oldest(self, table: dict[str, Any], numbers: Mapping[str, int], count: int) -> None:
        """Drop the `count` oldest by sequence number. Many at once: to look for them takes longer than to drop them."""
        for name in sorted(numbers, key=numbers.__getitem__)[:count]:
            self._drop(table, name)

    def _put_trace(self, trace_id: str, trace: Trace) -> None:
        old = self.traces.get(trace_id)
        if old is not None:
            if old.last_event_ms == trace.last_event_ms:
                self._put(self.traces, trace_id, trace)
                return
            self._remove_sorted(self._lapses, (old.last_event_ms, trace_id))
        self._put(self.traces, trace_id, trace)
        self._add_sorted(self._lapses, (trace.last_event_ms, trace_id))

    def _drop_trace(self, trace_id: str, trace: Trace) -> None:
        self._remove_sorted(self._lapses, (trace.last_event_ms, trace_id))
        self._drop(self.traces, trace_id)
        self._forget_endings(trace_id)
        self._drop(self.tool_calls, trace_id)
        for event_id in self.tool_results.get(trace_id, ()):
            self._drop(self.readings, event_id)
            self._drop(self.contradicted, event_id)
        self._drop(self.tool_results, trace_id)

    def _forget_endings(self, trace_id: str) -> None:
        """Drop what the rules have ended in a trace, and keep what a person has."""
        kept = {what: ended for what, ended in self.ended.get(trace_id, {}).items() if ended.by_person}
        self._drop(self.ended, trace_id)
        if kept:
            self._put(self.ended, trace_id, kept)

    def _forget_lapsed_traces(self) -> None:
        """Drop traces that have been silent for too long; one under review stays, without its tool evidence."""
        horizon_ms = self.recorded_at_ms - TRACE_LAPSE_MS
        while self._lapses and self._lapses[0][0] < horizon_ms:
            trace_id = self._lapses[0][1]
            trace = self.traces[trace_id]
            self._drop_trace(trace_id, trace)
            if trace.review:
                self._put_trace(trace_id, Trace(NO_REJECTIONS, self.recorded_at_ms, trace.review))

    def _move(self, live: LiveDecision, envelope: Envelope, **changes: Any) -> LiveDecision:
        moved = live._replace(last_sequence_number=envelope.sequence_number, **changes)
        self._put(self.decisions, live.decision_id, moved)
        if moved.timer_due_ms != live.timer_due_ms:
            if live.timer_due_ms:
                self._remove_sorted(self._timers, (live.timer_due_ms, live.sequence_number, live.decision_id))
            if moved.timer_due_ms:
                self._add_sorted(self._timers, (moved.timer_due_ms, moved.sequence_number, moved.decision_id))
        return moved

    def _free_key(self, live: LiveDecision) -> None:
        """Free a decision's conflict key, unless its compensation has it."""
        if self.holds.get(live.conflict_key) == live.decision_id:
            self._drop(self.holds, live.conflict_key)

    def _release_if_over(self, live: LiveDecision) -> None:
        """End a live decision if all its facts are in; a compensation waits for those of what it makes good as well."""
        if live.phase == AWAITING_FACTS and not live.awaited_facts and (live.revoked or live.compensates not in self.decisions):
            self._release(live)

    def _release(self, live: LiveDecision) -> None:
        """End a live decision and free its conflict key."""
        if live.timer_due_ms:
            self._remove_sorted(self._timers, (live.timer_due_ms, live.sequence_number, live.decision_id))
        self._drop(self.decisions, live.decision_id)
        if live.unreported:
            self._put(self.departed, live.decision_id, Departed(live, self.recorded_at_ms))
            self._add_sorted(self._departures, (self.recorded_at_ms, live.decision_id))
        else:
            self._forget_grants(live)
        self._free_key(live)
        subject = live.decision.subject
        rest = tuple(other for other in self.decisions_of_subject[subject] if other != live.decision_id)
        if rest:
            self._put(self.decisions_of_subject, subject, rest)
        else:
            self._drop(self.decisions_of_subject, subject)
        compensation = self.decisions.get(live.compensation)
        if compensation is not None:
            self._release_if_over(compensation)

    def _forget_grants(self, live: LiveDecision) -> None:
        for grant_id in live.grants:
            self._drop(self.grants, grant_id)

    def _recall(self, departed: Departed) -> LiveDecision:
        """Take a decision up again that has ended, and return it."""
        live = departed.live
        self._drop(self.departed, live.decision_id)
        self._remove_sorted(self._departures, (departed.ended_at_ms, live.decision_id))
        self._enliven(live)
        return live

    def _forget_departed(self) -> None:
        """Drop decisions that ended too long ago for their attempts to report."""
        horizon_ms = self.recorded_at_ms - LATE_REPORT_MS_MAX
        while self._departures and self._departures[0][0] < horizon_ms:
            decision_id = self._departures[0][1]
            departed = self.departed[decision_id]
            self._remove_sorted(self._departures, (departed.ended_at_ms, decision_id))
            self._drop(self.departed, decision_id)
            self._forget_grants(departed.live)

    def _apply_execution(self, envelope: Envelope) -> None:
        execution = envelope.execution
        live = self.decisions.get(execution.decision_id)
        if live is None:
            return
        status = {
            "status": execution.status,
            "status_event_id": envelope.event_id,
            "status_sequence_number": envelope.sequence_number,
        }
        if execution.status == execution_pb2.EXECUTION_STATUS_STARTED:
            lease_until_ms = milliseconds(execution.lease_until)
            policy = live.basis.decision.retry_policy
            patience_ms = policy.human_takeover_after_ms if execution.attempt < policy.max_attempts else 0
            holder = (envelope.producer.type, envelope.producer.id)
            begins = execution.attempt > live.attempt  # else it is renewed
            self._move(
                live,
                envelope,
                phase=EXECUTING,
                holders=(*live.holders[: execution.attempt - 1], holder),
                unreported=(*live.unreported, execution.attempt) if begins else live.unreported,
                attempt=execution.attempt,
                starts=live.starts + 1,
                running=True,
                execution_id=execution.execution_id,
                executor_type=envelope.producer.type,
                executor_id=envelope.producer.id,
                executor_version=envelope.producer.version,
                lease_until_ms=lease_until_ms,
                timer_due_ms=lease_until_ms + patience_ms,
                **status,
            )
            return
        facts = derivation.derive(envelope, live.decision, self.rule_set_of(live.decision.decision))
        awaited = (*live.awaited_facts, *((fact.event_id, envelope) for fact in facts))
        heard = {"running": False, "unreported": _without(live.unreported, execution.attempt), "awaited_facts": awaited}
        if execution.will_retry:
            self._move(live, envelope, **heard, **status)
        else:
            self._move(live, envelope, phase=AWAITING_FACTS, timer_due_ms=0, **heard, **status)

    def _apply_late_report(self, envelope: Envelope) -> None:
        """An attempt that others have superseded has reported. If its decision had ended, it is live again, for a person to look at."""
        execution = envelope.agent_diagnostic.late_execution.execution
        departed = self.departed.get(execution.decision_id)
        live = self._recall(departed) if departed is not None else self.decisions.get(execution.decision_id)
        if live is not None:
            self._move(live, envelope, unreported=_without(live.unreported, execution.attempt))

    def _apply_fact(self, envelope: Envelope) -> None:
        fact = envelope.fact
        system = fact.WhichOneof("system")
        if system is not None:
            apply_system = _APPLY_SYSTEM.get(system)
            if apply_system is not None:
                apply_system(self, envelope)
            return
        claimed_at_ms = milliseconds(envelope.occurred_at)
        producer = envelope.producer
        self._put_candidate(
            envelope.subject,
            fact.key,
            Candidate(
                sequence_number=envelope.sequence_number,
                event_id=envelope.event_id,
                category=FACT,
                trust_tier=common_pb2.TRUST_TIER_1_SYSTEM_FACT,
                source=producer.id,
                value=value_to_python(fact.value),
                claimed_at_ms=claimed_at_ms,
                aged_from_ms=claimed_at_ms,
                max_age_ms=fact.max_age_ms,
                evidence_ref="",
                evidence_hash="",
                confidence=0.0,
                producer_type=producer.type,
                producer_id=producer.id,
                producer_version=producer.version,
                observed_from=fact.observed_from,
                derivation_rule_id=fact.derivation_rule_id,
                derivation_rule_version=fact.derivation_rule_version,
            ),
        )
        if fact.decision_id:
            self._receive_derived(envelope)

    def _receive_derived(self, envelope: Envelope) -> None:
        live = self.decisions.get(envelope.fact.decision_id)
        if live is None:
            return
        awaited = tuple(pair for pair in live.awaited_facts if pair[0] != envelope.event_id)
        self._release_if_over(self._move(live, envelope, awaited_facts=awaited))

    def _apply_observation(self, envelope: Envelope) -> None:
        observation = envelope.observation
        claimed_at_ms = milliseconds(observation.observed_at)
        aged_from_ms = claimed_at_ms
        if observation.HasField("evidence_recorded_at"):
            aged_from_ms = min(aged_from_ms, milliseconds(observation.evidence_recorded_at))
        producer = envelope.producer
        of_evidence = self.readings.get(observation.evidence_ref)
        for key in sorted(observation.extracted_fields):
            value = value_to_python(observation.extracted_fields[key])
            if of_evidence is not None:
                self._note_reading(observation.evidence_ref, of_evidence, _read(envelope.subject, key), _as_read(value))
            self._put_candidate(
                envelope.subject,
                key,
                Candidate(
                    sequence_number=envelope.sequence_number,
                    event_id=envelope.event_id,
                    category=OBSERVATION,
                    trust_tier=observation.trust_tier,
                    source=observation.source_tool,
                    value=value,
                    claimed_at_ms=claimed_at_ms,
                    aged_from_ms=aged_from_ms,
                    max_age_ms=0,
                    evidence_ref=observation.evidence_ref,
                    evidence_hash=observation.evidence_hash,
                    confidence=observation.confidence,
                    producer_type=producer.type,
                    producer_id=producer.id,
                    producer_version=producer.version,
                    observed_from=fact_pb2.OBSERVED_FROM_UNSPECIFIED,
                    derivation_rule_id="",
                    derivation_rule_version=0,
                ),
            )

    def _note_reading(self, evidence_ref: str, of_evidence: dict[str, str], what: str, value: str) -> None:
        """Note what an observation, whoever made it, says that a tool result says (seeds 002 §4.6)."""
        if what not in of_evidence:
            self._put(of_evidence, what, value)
        elif evidence_ref not in self.contradicted and of_evidence[what] != value:
            self._put(self.contradicted, evidence_ref, what)

    def _put_candidate(self, subject: str, key: str, candidate: Candidate) -> None:
        keys = self._inner(self.evidence, subject)
        others = []
        for other in keys.get(key, ()):
            if (other.category, other.source, other.trust_tier) != (candidate.category, candidate.source, candidate.trust_tier):
                others.append(other)
            elif (other.claimed_at_ms, other.sequence_number) > (candidate.claimed_at_ms, candidate.sequence_number):
                return
        self._put(keys, key, (*others, candidate))

    def _apply_tool_call(self, envelope: Envelope) -> None:
        call = envelope.tool_call
        if call.execution_id:
            self._keep_trace(envelope.trace_id)
            calls = self._inner(self.tool_calls, envelope.trace_id)
            if len(calls) >= TRACE_TOOL_CALLS_MAX:
                # What observes a result of theirs from here on is inference.
                self._drop_oldest(calls, calls, TRACE_TOOL_CALLS_MAX // 4)
            self._put(calls, call.execution_id, envelope.sequence_number)

    def _apply_tool_result(self, envelope: Envelope) -> None:
        result = envelope.tool_result
        self._keep_trace(envelope.trace_id)
        results = self._inner(self.tool_results, envelope.trace_id)
        if len(results) >= TRACE_TOOL_RESULTS_MAX:
            for event_id in self._spare_results(results):
                self._drop(results, event_id)
                self._drop(self.readings, event_id)
        number = envelope.sequence_number
        evidence = ToolEvidence(result.execution_id, result.tool_name, result.content_hash, result.is_error, self.recorded_at_ms, number)
        self._put(results, envelope.event_id, evidence)
        self._put(self.readings, envelope.event_id, {})

    def _spare_results(self, results: Mapping[str, ToolEvidence]) -> list[str]:
        """Return the older half of the results that nobody has read: without them an observation is inference, and hides nothing.

        One that has been read is kept: it must show if somebody reads something else in it.
        """
        unread = [event_id for event_id in results if not self.readings.get(event_id)]
        return sorted(unread, key=lambda event_id: results[event_id].sequence_number)[: len(unread) // 2]

    def _keep_trace(self, trace_id: str) -> None:
        if trace_id not in self.traces:
            self._put_trace(trace_id, Trace(NO_REJECTIONS, self.recorded_at_ms))

    def _apply_diagnostic(self, envelope: Envelope) -> None:
        """Hear late reports, and count what shadows would have decided otherwise; other diagnostics change nothing."""
        diagnostic = envelope.agent_diagnostic
        detail = diagnostic.WhichOneof("detail")
        if detail == "late_execution":
            self._apply_late_report(envelope)
        elif detail == "shadow_difference":
            policy_id = diagnostic.shadow_difference.policy_id
            shadow = self.shadows.get(policy_id)
            if shadow is not None:
                self._put(self.shadows, policy_id, shadow._replace(differences=shadow.differences + 1))

    # Facts about Gavel itself

    def _apply_bus_opened(self, envelope: Envelope) -> None:
        opened = envelope.fact.bus_opened
        self._set("arbiter_version", opened.arbiter_version)
        self._set("cross_check", opened.cross_check)
        self._set("idempotency_window_ms", opened.idempotency_window_ms)

    def _apply_arbiter_version_changed(self, envelope: Envelope) -> None:
        self._set("arbiter_version", envelope.fact.arbiter_version_changed.arbiter_version)

    def _apply_cross_check_changed(self, envelope: Envelope) -> None:
        self._set("cross_check", envelope.fact.cross_check_changed.cross_check)

    def _apply_rule_set_deployed(self, envelope: Envelope) -> None:
        deployed = envelope.fact.rule_set_deployed
        canonical_json = deployed.canonical_json
        record = DeployedRuleSet(
            digest_of(canonical_json),
            tuple(sorted(json.loads(canonical_json)["actions"])),
            deployed.document,
            canonical_json,
            envelope.sequence_number,
            self.recorded_at_ms,
        )
        self._put(self.rule_sets, (deployed.policy_id, deployed.version), record)

    def _apply_rule_set_activated(self, envelope: Envelope) -> None:
        activated = envelope.fact.rule_set_activated
        policy_id, version = activated.policy_id, activated.version
        rule_set = self.rule_sets[policy_id, version].rule_set
        shadow = self.shadows.get(policy_id)
        if activated.mode == fact_pb2.ACTIVATION_MODE_SHADOW:
            watching = ShadowRuleSet(version, envelope.sequence_number, activated.previous_version, rule_set)
            self._put(self.shadows, policy_id, watching)
        else:
            active = ActiveRuleSet(version, envelope.sequence_number, activated.previous_version, rule_set)
            self._put(self.active, policy_id, active)
            if shadow is not None and shadow.version == version:
                self._drop(self.shadows, policy_id)
        self._govern()

    def _apply_rule_set_deactivated(self, envelope: Envelope) -> None:
        deactivated = envelope.fact.rule_set_deactivated
        of_shadow = deactivated.mode == fact_pb2.ACTIVATION_MODE_SHADOW
        self._drop(self.shadows if of_shadow else self.active, deactivated.policy_id)
        self._govern()

    def _govern(self) -> None:
        in_force = {policy_id: active.rule_set for policy_id, active in self.active.items()}
        self._set("governing", governing_actions(in_force.values()))
        self._set("shadowing", _shadowing(in_force, self.shadows))

    # The whole, for comparison

    def digest(self) -> str:
        """Return "sha256:" and hex over the whole state: equal states, and only those, have equal digests."""
        content = {
            "head": self.head,
            "recorded_at_ms": self.recorded_at_ms,
            "arbiter_version": self.arbiter_version,
            "cross_check": _plain(self.cross_check),
            "idempotency_window_ms": self.idempotency_window_ms,
            "rule_sets": [
                (policy, version, deployed.digest, deployed.sequence_number)
                for (policy, version), deployed in sorted(self.rule_sets.items())
            ],
            "active": {policy_id: (*active[:3], active.rule_set.digest) for policy_id, active in self.active.items()},
            "shadows": {policy_id: (*shadow[:3], shadow.rule_set.digest, *shadow[4:]) for policy_id, shadow in self.shadows.items()},
            "evidence": {subject: {key: sorted(candidates) for key, candidates in keys.items()} for subject, keys in self.evidence.items()},
            "open_proposals": {key: _plain(value) for key, value in self.open_proposals.items()},
            "contests": self.contests,
            "waiting_of_subject": self.waiting_of_subject,
            "decisions": {key: _plain_tuple(value) for key, value in self.decisions.items()},
            "decisions_of_subject": self.decisions_of_subject,
            "holds": self.holds,
            "grants": self.grants,
            "departed": {key: [_plain_tuple(value.live), value.ended_at_ms] for key, value in self.departed.items()},
            "reviews": {key: _plain_tuple(value) for key, value in self.reviews.items()},
            "ended": self.ended,
            "traces": self.traces,
            "tool_calls": self.tool_calls,
            "tool_results": self.tool_results,
            "readings": self.readings,
            "contradicted": self.contradicted,
            "timers": list(self._timers),
            "lapses": list(self._lapses),
            "departures": list(self._departures),
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def contest_name(action_type: str, conflict_key: str) -> str:
    """Name the contest of an action for a conflict key. No action holds a space, so no other has its name, and no decision's id."""
    return f"{action_type} {conflict_key}"


def _what(action_type: str, subject: str) -> str:
    """Name an action on a subject. Neither holds a space."""
    return f"{action_type} {subject}"


def _refused(decision: Decision, proposal: Envelope) -> str:
    """Return the fingerprint of a proposal that was rejected for lack of evidence or by rules; "" for any other outcome.

    Stages 3 to 5 do not count: as long as what they lack is lacking they refuse it again by themselves, and else it has not been
    judged yet. Above all, versions are no part of the fingerprint, and who mends them does what he was told.
    """
    if decision.outcome != decision_pb2.OUTCOME_REJECTED or decision.reason_code in _BEFORE_JUDGEMENT:
        return ""
    return fingerprint(proposal) if refusal_class(decision.reason_code) in _OF_THE_PROPOSAL else ""


_OF_THE_PROPOSAL: Final = (RefusalClass.EVIDENCE, RefusalClass.POLICY)
_BEFORE_JUDGEMENT: Final = frozenset({NO_ACTIVE_POLICY, INVALID_PARAMS, VERSION_MISMATCH})


def _without(attempts: tuple[int, ...], attempt: int) -> tuple[int, ...]:
    return tuple([other for other in attempts if other != attempt])


def _read(subject: str, key: str) -> str:
    """Name a key of a subject. A subject holds no space."""
    return f"{subject} {key}"


def _as_read(value: Any) -> str:
    """Return what stands for a JSON value among readings: equal if the values are, and short. A boolean is no number."""
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= _READING_LENGTH_MAX else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


# About as long as the hash that stands for what is longer.
_READING_LENGTH_MAX: Final = 64
_NO_RESULTS: Final[Mapping[str, ToolEvidence]] = {}
_NO_KEYS: Final[Mapping[str, tuple[Candidate, ...]]] = {}


def _has_lapsed(trace: Trace, now_ms: int) -> bool:
    return now_ms - trace.last_event_ms > TRACE_LAPSE_MS


def governing_actions(rule_sets: Iterable[CompiledRuleSet]) -> dict[str, tuple[CompiledAction, ...]]:
    """Return, per action type, what governs it, by policy_id."""
    governing: dict[str, tuple[CompiledAction, ...]] = {}
    for rule_set in sorted(rule_sets, key=lambda rule_set: rule_set.policy_id):
        for action_type, action in rule_set.actions.items():
            governing[action_type] = (*governing.get(action_type, ()), action)
    return governing


def _shadowing(in_force: Mapping[str, CompiledRuleSet], shadows: Mapping[str, ShadowRuleSet]) -> dict[str, tuple[Shadowing, ...]]:
    """Return the shadows by action type: of the actions that they govern, and those that the version in force does."""
    shadowing: dict[str, tuple[Shadowing, ...]] = {}
    for policy_id, shadow in sorted(shadows.items()):
        rule_set = shadow.rule_set
        governing = governing_actions({**in_force, policy_id: rule_set}.values())
        replaced = in_force[policy_id].actions if policy_id in in_force else {}
        disagreeing = {found.action_type for found in disagreements(rule_set, in_force.values())}
        for action_type in sorted(rule_set.actions.keys() | replaced.keys()):
            actions = governing.get(action_type, ())
            watching = Shadowing(policy_id, shadow.version, rule_set.digest, actions, action_type in disagreeing)
            shadowing[action_type] = (*shadowing.get(action_type, ()), watching)
    return shadowing


def _plain(message: Message) -> str:
    return message.SerializeToString(deterministic=True).hex()


def _plain_tuple(record: tuple[Any, ...]) -> list[object]:
    return [
        _plain(item) if hasattr(item, "DESCRIPTOR") else [_plain_member(member) for member in item] if isinstance(item, tuple) else item
        for item in record
    ]


def _plain_member(member: Any) -> object:
    if not isinstance(member, tuple):
        return member
    first, second = member
    return [first, second.event_id if hasattr(second, "DESCRIPTOR") else second]


_APPLY: Final[Mapping[str | None, Callable[[State, Envelope], None]]] = {
    "fact": State._apply_fact,
    "proposal": State._apply_proposal,
    "decision": State._apply_decision,
    "execution": State._apply_execution,
    "observation": State._apply_observation,
    "tool_call": State._apply_tool_call,
    "tool_result": State._apply_tool_result,
    "agent_diagnostic": State._apply_diagnostic,
}
_APPLY_SYSTEM: Final[Mapping[str, Callable[[State, Envelope], None]]] = {
    "bus_opened": State._apply_bus_opened,
    "arbiter_version_changed": State._apply_arbiter_version_changed,
    "cross_check_changed": State._apply_cross_check_changed,
    "rule_set_deployed": State._apply_rule_set_deployed,
    "rule_set_activated": State._apply_rule_set_activated,
    "rule_set_deactivated": State._apply_rule_set_deactivated,
}
