"""How proposals, decisions and executions change the present of a bus: the layer of `projection` above evidence and traces.

A decision lives from its approval until its work has come to an end, and holds its conflict key for about as long.
"""

from __future__ import annotations

from typing import Any, Final

from gavel.v1 import execution_pb2
from gavel.v1.decision_pb2 import Decision

from gavel_rules import derivation
from gavel_rules.events import OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW, milliseconds
from gavel_rules.fingerprint import fingerprint
from gavel_rules.limits import LATE_REPORT_MS_MAX
from gavel_rules.made import Made
from gavel_rules.projected_evidence import EvidenceProjection
from gavel_rules.reasons import DUPLICATE_PROPOSAL, INVALID_PARAMS, NO_ACTIVE_POLICY, NO_FEASIBLE_PROPOSAL, VERSION_MISMATCH
from gavel_rules.records import (
    AWAITING_FACTS,
    EXECUTING,
    NO_REJECTIONS,
    UNDER_REVIEW,
    Departed,
    Kept,
    LiveDecision,
    OpenContest,
    Rejections,
    Review,
    Trace,
    approved,
    packed,
)
from gavel_rules.stages import STAGES, RefusalClass
from gavel_rules.tables import action_on, waiting_key


class DecisionProjection(EvidenceProjection):
    """The tables, with what changes proposals, contests, decisions, reviews and executions."""

    def _apply_proposal(self, made: Made) -> None:
        self._put(self.open_proposals, made.event_id, made)
        if made.competes:
            self._enter_contest(made)

    def _enter_contest(self, made: Made) -> None:
        proposal = made.envelope.proposal
        entry = proposal.contest
        name = action_on(proposal.action_type, entry.conflict_key)
        contest = self.contests.get(name)
        if contest is None:
            number = made.sequence_number
            opened_at_ms, closes_at_ms = milliseconds(entry.opened_at), milliseconds(entry.closes_at)
            contest = OpenContest(name, proposal.action_type, entry.conflict_key, number, opened_at_ms, closes_at_ms, (), 0)
            self._schedule(self._timers, (closes_at_ms, number, name))
        candidates = (*contest.candidates, made.event_id)
        # Of the payload alone: when its room was looked for, the envelope had not been filled in yet.
        size_bytes = contest.size_bytes + proposal.ByteSize()
        self._put(self.contests, name, contest._replace(candidates=candidates, size_bytes=size_bytes))
        of_subject = self.waiting_of_subject.get(made.subject, ())
        self._put(self.waiting_of_subject, made.subject, (*of_subject, made.event_id))
        of_trace = self._inner(self.waiting_of_trace, made.trace_id)
        self._put(of_trace, waiting_key(made.asked, entry.conflict_key), made.event_id)

    def _leave_contest(self, contest: OpenContest, made: Made) -> None:
        """A candidate is decided; with the last one the contest is over."""
        rest = tuple([candidate for candidate in contest.candidates if candidate != made.event_id])
        if rest:
            self._put(self.contests, contest.name, contest._replace(candidates=rest))
        else:
            self._drop(self.contests, contest.name)
            self._unschedule(self._timers, (contest.closes_at_ms, contest.sequence_number, contest.name))
        waiting = tuple([other for other in self.waiting_of_subject[made.subject] if other != made.event_id])
        if waiting:
            self._put(self.waiting_of_subject, made.subject, waiting)
        else:
            self._drop(self.waiting_of_subject, made.subject)
        of_trace = self.waiting_of_trace[made.trace_id]
        self._drop(of_trace, waiting_key(made.asked, contest.conflict_key))
        if not of_trace:
            self._drop(self.waiting_of_trace, made.trace_id)

    def _apply_decision(self, made: Made) -> None:
        decision = made.envelope.decision
        if decision.previous_decision_id:
            self._apply_later_decision(made, decision)
            return
        proposal_id = decision.proposal_id
        proposal = self.open_proposals[proposal_id]
        self._drop(self.open_proposals, proposal_id)
        contest = self._contest_of(proposal)
        if contest is not None:
            self._leave_contest(contest, proposal)
        if made.outcome == OUTCOME_APPROVED:
            self._approve(made, decision, proposal.kept)
            self._count(made.trace_id, NO_REJECTIONS, "", "")
        else:
            self._refuse(made, decision, proposal)
        if self.shadowing:
            for shadow in self.shadowing.get(decision.action_type, ()):
                watching = self.shadows[shadow.policy_id]
                self._put(self.shadows, shadow.policy_id, watching._replace(decisions=watching.decisions + 1))

    def _refuse(self, made: Made, decision: Decision, proposal: Made) -> None:
        """A proposal is rejected, or left to a person."""
        reason_code = decision.reason_code
        review = refused = ""
        if made.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
            review = made.event_id
            self._put(self.reviews, review, Review(review, made.sequence_number, made.envelope, "", proposal.envelope))
        elif _is_of_the_proposal(reason_code):
            refused = fingerprint(proposal.asked)
        rejections = NO_REJECTIONS
        if decision.consecutive_rejections:
            counts = decision.rejection_counts
            rejections = Rejections(counts.evidence, counts.policy, counts.conflict)
        if reason_code != NO_FEASIBLE_PROPOSAL and decision.terminal:
            self._end(made, decision, by_person=False)
        self._count(made.trace_id, rejections, review, refused)

    def _approve(self, made: Made, decision: Decision, proposal: Kept) -> None:
        decision_id = made.event_id
        if decision.compensates_decision_id:
            # It does not expire; but if nobody begins it, a person is told of what lies half done.
            due_ms = milliseconds(decision.evaluated_at) + decision.retry_policy.human_takeover_after_ms
        else:
            due_ms = milliseconds(decision.valid_until)
        number = self.head
        conflict_key = decision.conflict_key
        self._enliven(approved(decision_id, number, made.kept, proposal, conflict_key, due_ms), made.subject)
        self._schedule(self._timers, (due_ms, number, decision_id))
        self._put(self.holds, conflict_key, decision_id)

    def _enliven(self, live: LiveDecision, subject: str) -> None:
        self._put(self.decisions, live.decision_id, live)
        self._put(self.decisions_of_subject, subject, (*self.decisions_of_subject.get(subject, ()), live.decision_id))

    def _apply_later_decision(self, made: Made, decision: Decision) -> None:
        review = self.reviews.get(decision.previous_decision_id)
        if review is not None:
            # One more NEEDS_HUMAN_REVIEW says that the evidence does not allow what the person wanted: it stays open.
            if made.outcome != OUTCOME_NEEDS_HUMAN_REVIEW:
                self._resolve(made, decision, review)
            return
        live = self.decisions.get(decision.previous_decision_id)
        if live is None:
            return
        if decision.compensates_decision_id:
            self._move(live, made, compensation=made.event_id)
            self._approve(made, decision, live.kept_proposal)  # and the key is the compensation's
        elif made.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
            self._move(live, made, phase=UNDER_REVIEW, running=False, timer_due_ms=0, review=made.event_id)
            review = Review(made.event_id, made.sequence_number, made.envelope, live.decision_id, live.proposal)
            self._put(self.reviews, made.event_id, review)
            if live.conflict_key not in self.holds:
                self._put(self.holds, live.conflict_key, live.decision_id)  # it had ended: nobody else acts while a person looks
        else:
            self._release(live)

    def _resolve(self, made: Made, decision: Decision, review: Review) -> None:
        """Close a review as the DECISION that follows from a person's verdict says."""
        trace_id = made.trace_id
        self._drop(self.reviews, review.decision_id)
        trace = self.traces.get(trace_id)
        if trace is not None:
            still_open = "" if trace.review == review.decision_id else trace.review
            self._put_trace(trace_id, Trace(NO_REJECTIONS, self.recorded_at_ms, still_open))
        if review.approved_decision_id:
            self._resolve_execution(made, decision, self.decisions[review.approved_decision_id])
        elif made.outcome == OUTCOME_APPROVED:
            self._approve(made, decision, packed(review.proposal))
        elif decision.terminal:
            self._end(made, decision, by_person=True)

    def _resolve_execution(self, made: Made, decision: Decision, live: LiveDecision) -> None:
        if made.outcome == OUTCOME_APPROVED:
            self._put(self.grants, made.event_id, live.decision_id)
            self._put(self.holds, live.conflict_key, live.decision_id)  # anew, where its compensation had it and was given up
            due_ms = milliseconds(decision.valid_until)
            grants = (*live.grants, made.event_id)
            self._move(live, made, phase=EXECUTING, timer_due_ms=due_ms, review="", granted=made.envelope, grants=grants)
        else:
            # Its key is free; what its reports derive may still be to come (seeds 002 §7.2).
            self._free_key(live)
            self._release_if_over(self._move(live, made, phase=AWAITING_FACTS, review="", granted=None, revoked=True))

    def _apply_execution(self, made: Made) -> None:
        envelope = made.envelope
        execution = envelope.execution
        live = self.decisions.get(execution.decision_id)
        if live is None:
            return
        status = {
            "status": execution.status,
            "status_event_id": made.event_id,
            "status_sequence_number": made.sequence_number,
        }
        if execution.status == execution_pb2.EXECUTION_STATUS_STARTED:
            lease_until_ms = milliseconds(execution.lease_until)
            policy = live.basis.decision.retry_policy
            patience_ms = policy.human_takeover_after_ms if execution.attempt < policy.max_attempts else 0
            holder = (envelope.producer.type, envelope.producer.id)
            begins = execution.attempt > live.attempt  # else it is renewed
            self._move(
                live,
                made,
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
            self._move(live, made, **heard, **status)
        else:
            self._move(live, made, phase=AWAITING_FACTS, timer_due_ms=0, **heard, **status)

    def _apply_late_report(self, made: Made) -> None:
        """An attempt that others have superseded has reported. If its decision had ended, it is live again, for a person to look at."""
        execution = made.envelope.agent_diagnostic.late_execution.execution
        departed = self.departed.get(execution.decision_id)
        live = self._recall(departed) if departed is not None else self.decisions.get(execution.decision_id)
        if live is not None:
            self._move(live, made, unreported=_without(live.unreported, execution.attempt))

    def _receive_derived(self, made: Made) -> None:
        live = self.decisions.get(made.envelope.fact.decision_id)
        if live is None:
            return
        awaited = tuple(pair for pair in live.awaited_facts if pair[0] != made.event_id)
        self._release_if_over(self._move(live, made, awaited_facts=awaited))

    def _move(self, live: LiveDecision, made: Made, **changes: Any) -> LiveDecision:
        moved = live._replace(last_sequence_number=made.sequence_number, **changes)
        self._put(self.decisions, live.decision_id, moved)
        if moved.timer_due_ms != live.timer_due_ms:
            if live.timer_due_ms:
                self._unschedule(self._timers, (live.timer_due_ms, live.sequence_number, live.decision_id))
            if moved.timer_due_ms:
                self._schedule(self._timers, (moved.timer_due_ms, moved.sequence_number, moved.decision_id))
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
            self._unschedule(self._timers, (live.timer_due_ms, live.sequence_number, live.decision_id))
        self._drop(self.decisions, live.decision_id)
        if live.unreported:
            self._put(self.departed, live.decision_id, Departed(live, self.recorded_at_ms))
            self._schedule(self._departures, (self.recorded_at_ms, live.decision_id))
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
        self._unschedule(self._departures, (departed.ended_at_ms, live.decision_id))
        self._enliven(live, live.decision.subject)
        return live

    def _forget_departed(self) -> None:
        """Drop decisions that ended too long ago for their attempts to report."""
        horizon_ms = self.recorded_at_ms - LATE_REPORT_MS_MAX
        while self._departures and self._departures[0][0] < horizon_ms:
            decision_id = self._departures[0][1]
            departed = self.departed[decision_id]
            self._unschedule(self._departures, (departed.ended_at_ms, decision_id))
            self._drop(self.departed, decision_id)
            self._forget_grants(departed.live)


def _is_of_the_proposal(reason_code: str) -> bool:
    """Whether a rejection is for lack of evidence or by rules: then the same proposal would be rejected again.

    Stages 3 to 5 do not count: as long as what they lack is lacking they refuse it again by themselves, and else it has not been
    judged yet. Above all, versions are no part of the fingerprint, and who mends them does what he was told. Nor does a repetition:
    it is what was refused already, or what competes, which nobody has refused.
    """
    return reason_code not in _NOT_OF_THE_PROPOSAL


_UNJUDGED: Final = frozenset({NO_ACTIVE_POLICY, INVALID_PARAMS, VERSION_MISMATCH, DUPLICATE_PROPOSAL})
_NOT_OF_THE_PROPOSAL: Final = _UNJUDGED | {
    code for stage in STAGES for code in stage.reason_codes if stage.refusal_class in (None, RefusalClass.CONFLICT)
}


def _without(attempts: tuple[int, ...], attempt: int) -> tuple[int, ...]:
    return tuple([other for other in attempts if other != attempt])
