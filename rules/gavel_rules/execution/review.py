"""Decisions of people: verdicts on open reviews, and revocations of approvals (constitution §4.7.2, §5.6).

Each is a FACT (human_input: who, what and why), followed by the DECISION that it causes. A person overrules rules, not facts: an approval
checks the latest evidence as the rule sets of the first decision require it, and if that fails the review stays open.

A review may need several votes to approve. Each but the last is a FACT alone, and so is a comment; the last vote needed causes the
DECISION, and a rejection causes it at any time. If the evidence does not allow the approval, the earlier votes stay and the last one is
taken again. A review that nobody resolves in time is escalated by a timer. `review_votes` tells who may vote.
"""

from __future__ import annotations

from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, ReviewEscalated
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact, ReviewVoted

from gavel_rules import reason_codes
from gavel_rules.arbitration import retry_hint
from gavel_rules.arbitration.first_decision import request_facts
from gavel_rules.arbitration.pipeline import reread
from gavel_rules.arbitration.rejection_limit import note_rejections
from gavel_rules.commands import EventAnswer, Fault, References, ResolveReview, RevokeDecision
from gavel_rules.events.citation import citations_in, resolve_citations
from gavel_rules.events.ids import derived_event_id
from gavel_rules.events.kinds import GAVEL, SYSTEM_FACT_KEY
from gavel_rules.events.recorded_event import read_event
from gavel_rules.events.timestamps import set_timestamp, timestamp
from gavel_rules.execution import review_votes
from gavel_rules.execution.faults import ended_fault
from gavel_rules.execution.lifecycle import record_later_decision
from gavel_rules.recorder import Recorder
from gavel_rules.state.records import APPROVED, AWAITING_FACTS, UNDER_REVIEW, LiveDecision, Review


def resolve(recorder: Recorder, command: ResolveReview, references: References) -> EventAnswer | Fault:
    """Record a verdict and the decision that it causes."""
    state = recorder.state
    resolution = command.envelope.fact.review_resolved
    review = state.reviews.get(resolution.decision_id)
    if review is None:
        return _review_fault(recorder, resolution.decision_id, references)
    if resolution.verdict == review_votes.COMMENT and not state.semantics.has_review_policies:
        problem = f"bus {state.bus} has arbiter version {state.arbiter_version}, which keeps no comments: approve or reject the review"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, problem)
    fault = review_votes.vote_fault(review, resolution, recorder.attestation)
    if fault is not None:
        return fault
    if resolution.verdict == review_votes.COMMENT:
        return EventAnswer(_record_vote(recorder, command.envelope, review))
    live = state.decisions[review.approved_decision_id] if review.approved_decision_id else None
    is_approval = resolution.verdict == review_votes.APPROVE
    if is_approval:
        fault = _approval_fault(review, live, references)
        if fault is not None:
            return fault
        if review_votes.missing_votes(review) > 1:
            return EventAnswer(_record_vote(recorder, command.envelope, review))
    cause = _record_fact(recorder, command.envelope, "ReviewResolved", review.decision)
    if is_approval and releases_trace(review):
        return _release_trace(recorder, review, cause)
    if is_approval:
        return _approve(recorder, review, live, cause, references)
    if live is not None:
        return EventAnswer(_record_revocation(recorder, live, cause))
    return _record_resolution(recorder, review, cause, _rejection(recorder, review, cause, reason_codes.REVIEW_REJECTED))


def revoke(recorder: Recorder, command: RevokeDecision, references: References) -> EventAnswer | Fault:
    """Revoke an approval that no attempt has begun."""
    decision_id = command.envelope.fact.revocation_requested.decision_id
    live = recorder.state.live_decision(decision_id)
    if live is None:
        return ended_fault(decision_id, references, recorder.now_ms, "to revoke", "in force")
    if live.compensates and live.phase != UNDER_REVIEW:
        problem = f"it compensates {live.compensates}, which is half done, and ends only by its execution"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"decision {decision_id} cannot be revoked: {problem}")
    if live.phase != APPROVED:
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"decision {decision_id} can no longer be revoked: {_progress(live)}")
    cause = _record_fact(recorder, command.envelope, "RevocationRequested", live.decision)
    return EventAnswer(_record_revocation(recorder, live, cause))


def escalate(recorder: Recorder, review: Review) -> None:
    """Record that nobody has resolved a review in time. From now on more groups may vote."""
    recorder.record_diagnostic(
        AgentDiagnostic(
            kind="ReviewEscalated",
            review_escalated=ReviewEscalated(decision_id=review.decision_id, groups=review.policy.escalate_to),
        ),
        event_id=derived_event_id(review.decision_id, review.sequence_number, "escalated"),
        causation_id=review.decision_id,
        trace_id=review.decision.trace_id,
        subject=review.decision.subject,
    )


def _approve(recorder: Recorder, review: Review, live: LiveDecision | None, cause: Envelope, references: References) -> EventAnswer:
    """Record an approval of the action, or of one more attempt, if the evidence allows it; otherwise the review stays open."""
    state = recorder.state
    basis = review.decision.decision if live is None else live.decision.decision
    decision = _new_decision(recorder, review, cause, basis)
    if live is not None and live.compensates:
        decision.outcome = decision_pb2.OUTCOME_APPROVED  # a compensation rests on no facts and holds the key
        passes = True
    else:
        own_decision_id = "" if live is None else live.decision_id
        actions = state.actions_of(basis)
        # Facts are derived from the approval, also if a person grants another attempt.
        digest = basis.rule_set_digest if live is None else ""
        passes = reread(decision, state, review.proposal, references.cited_events, recorder.now_ms, actions, own_decision_id, digest)
    if passes:
        decision.policy_id = basis.policy_id
        decision.policy_version = basis.policy_version
        decision.rule_id = basis.rule_id
        decision.rule_set_digest = basis.rule_set_digest
        decision.rule_matches.extend(basis.rule_matches)
        if live is not None:
            # One more attempt than the policy's limit. If nobody begins it in time, a human review is requested again.
            decision.retry_policy.CopyFrom(live.decision.decision.retry_policy)
            decision.retry_policy.max_attempts = live.attempt + 1
            set_timestamp(decision.valid_until, recorder.now_ms + decision.retry_policy.human_takeover_after_ms)
    else:
        decision.outcome = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
        if review.decision.decision.HasField("review_policy"):
            decision.review_policy.CopyFrom(review.policy)
        producer = review.proposal.producer
        note_rejections(decision, state.rejections(cause.trace_id, producer.type, producer.id, recorder.now_ms))
    answer = _record_resolution(recorder, review, cause, decision)
    if decision.reason_code == reason_codes.INSUFFICIENT_EVIDENCE_TIER:
        request_facts(recorder, read_event(answer.envelope))
    return answer


def _release_trace(recorder: Recorder, review: Review, cause: Envelope) -> EventAnswer:
    """Record that the trace may go on; no action is approved."""
    state = recorder.state
    decision = _rejection(recorder, review, cause, reason_codes.REVIEW_RELEASED)
    trace_id, subject, action_type = review.decision.trace_id, review.decision.subject, decision.action_type
    is_closed = state.is_action_closed(trace_id, action_type, subject, state.active_actions.get(action_type, ()), recorder.now_ms)
    decision.retry_hint.CopyFrom(retry_hint.of_released_trace(is_closed=is_closed))
    return _record_resolution(recorder, review, cause, decision)


def releases_trace(review: Review) -> bool:
    """Return whether an approval lets the trace go on and approves no action, so that it needs no citations."""
    return not review.approved_decision_id and review.decision.decision.reason_code in reason_codes.RELEASING_CODES


def _rejection(recorder: Recorder, review: Review, cause: Envelope, reason_code: str) -> Decision:
    """Return the rejection that a verdict causes. REVIEW_REJECTED closes the action on the subject for the trace."""
    decision = _new_decision(recorder, review, cause, review.decision.decision)
    decision.outcome = decision_pb2.OUTCOME_REJECTED
    decision.reason_code = reason_code
    decision.terminal = reason_code == reason_codes.REVIEW_REJECTED
    decision.policy_id = GAVEL
    decision.policy_version = decision.arbiter_version
    return decision


def _new_decision(recorder: Recorder, review: Review, cause: Envelope, basis: Decision) -> Decision:
    """Return the common part of decisions on a review; `basis` is the decision that consulted the rule sets."""
    return Decision(
        decision_id=derived_event_id(cause.event_id, cause.sequence_number, "decision"),
        proposal_id=basis.proposal_id,
        previous_decision_id=review.decision_id,
        arbiter_version=recorder.state.semantics.arbiter_version,
        active_policy_ids=basis.active_policy_ids,
        active_rule_sets=basis.active_rule_sets,
        action_type=basis.action_type,
        params=basis.params,
        evaluated_at=timestamp(recorder.now_ms),
        state_version=recorder.state.head,
        conflict_key=basis.conflict_key,
    )


def _record_resolution(recorder: Recorder, review: Review, cause: Envelope, decision: Decision) -> EventAnswer:
    retry_hint.complete(decision, recorder.state)
    return EventAnswer(
        recorder.record_decision(
            recorder.new_decision(decision),
            causation_id=cause.event_id,
            trace_id=review.decision.trace_id,
            subject=review.decision.subject,
        )
    )


def _record_revocation(recorder: Recorder, live: LiveDecision, cause: Envelope) -> Envelope:
    """Record REVOKED and return its envelope.

    The event_id is derived from the approval, as that of an expiry is, so that a lookup by this id tells how the approval ended. A decision
    that had ended before its review keeps its first end: the event_id is then derived from the cause.
    """
    if live.is_carried_out or live.is_revoked:
        event_id = derived_event_id(cause.event_id, cause.sequence_number, "decision")
    else:
        event_id = derived_event_id(live.decision_id, live.sequence_number, "revoked")
    return record_later_decision(recorder, live, decision_pb2.OUTCOME_REVOKED, reason_codes.REVOKED, cause, event_id)


def _record_vote(recorder: Recorder, sent: Envelope, review: Review) -> Envelope:
    """Record a vote to approve that is not the last one needed, or a comment."""
    resolution = sent.fact.review_resolved
    is_vote = resolution.verdict == review_votes.APPROVE
    voted = ReviewVoted(
        decision_id=resolution.decision_id,
        verdict=resolution.verdict,
        reviewer=resolution.reviewer,
        reason=resolution.reason,
        votes=len(review_votes.approvers(review)) + is_vote,
        quorum=max(1, review.policy.quorum),
    )
    vote = Envelope(event_id=sent.event_id, traceparent=sent.traceparent, fact=Fact(review_voted=voted))
    return _record_fact(recorder, vote, "ReviewVoted", review.decision)


def _record_fact(recorder: Recorder, sent: Envelope, name: str, decision: Envelope) -> Envelope:
    """Record a person's verdict on a decision as a fact about its subject, in its trace."""
    fact = Fact(key=SYSTEM_FACT_KEY[name], observed_from=fact_pb2.OBSERVED_FROM_HUMAN_INPUT)
    fact.MergeFrom(sent.fact)
    return recorder.record(
        Envelope(
            event_id=sent.event_id,
            event_name=name,
            trace_id=decision.trace_id,
            causation_id=decision.event_id,
            producer=recorder.state.semantics.system,
            subject=decision.subject,
            traceparent=sent.traceparent,
            fact=fact,
        ),
        "fact",
    )


def _approval_fault(review: Review, live: LiveDecision | None, references: References) -> Fault | None:
    """Return why a review cannot be approved now, or None."""
    if not releases_trace(review):
        _, unknown = resolve_citations(citations_in(review.proposal.proposal), references.cited_events)
        if unknown:
            # The log holds these events, because the first decision resolved them. The shell did not look them up, because the review
            # opened after its lookup.
            problem = "entered review just now; read it again and resubmit the verdict"
            return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"decision {review.decision_id} {problem}")
    if live is not None and (live.is_carried_out or live.is_revoked):
        end = "has been carried out" if live.is_carried_out else "has been revoked"
        problem = f"decision {live.decision_id} {end} and allows no more attempts; reject the review to close it"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, problem)
    return None


def _review_fault(recorder: Recorder, decision_id: str, references: References) -> Fault:
    """Return why a decision has no review to resolve."""
    if references.decision is None:
        message = f"decision {decision_id} does not exist on this bus; check the id and the bus"
        return Fault(error_pb2.ERROR_REASON_DECISION_NOT_FOUND, message)
    state = recorder.state
    live = state.live_decision(decision_id)
    decision = references.decision.decision
    if live is not None and live.review:
        problem = f"is not under review itself; the review of its execution is {live.review}"
    elif decision.outcome != decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW:
        problem = "has no open review: it did not ask for a person"
    elif decision.previous_decision_id in state.reviews:
        problem = f"left a review open, which is {decision.previous_decision_id}"
    else:
        problem = "has no open review: it has been resolved"
    return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"decision {decision_id} {problem}")


def _progress(live: LiveDecision) -> str:
    if live.phase == UNDER_REVIEW:
        return f"its execution is under review; reject review {live.review} to end it"
    if live.phase == AWAITING_FACTS:
        return "it has been revoked" if live.is_revoked else "its execution is over"
    return "its execution has begun"
