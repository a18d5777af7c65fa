"""What people decide: verdicts on open reviews, and approvals taken back (seeds 002 §4.7.2, §5.6).

Whatever a person says is a FACT (human_input: who, what and why), and the DECISION that follows stands right behind it. A
person overrules rules, not facts: to approve reads the latest evidence, as the rule sets require that were asked the first
time, and if that is not as required the review stays open. Whose word may be taken is not decided here.
"""

from __future__ import annotations

from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.decision_pb2 import Decision, RetryHint
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact

from gavel_rules import reasons
from gavel_rules.arbitration import reread
from gavel_rules.budget import note_rejections
from gavel_rules.commands import Fault, Recorded, References, ResolveReview, RevokeDecision
from gavel_rules.emission import Emission
from gavel_rules.endings import ended_fault
from gavel_rules.events import ARBITER_VERSION, GAVEL, SYSTEM_FACT_KEY, SYSTEM_PRODUCER, derived_event_id, set_timestamp, timestamp
from gavel_rules.evidence import citations_of
from gavel_rules.execution import emit_later
from gavel_rules.first_decisions import request_facts
from gavel_rules.made import read
from gavel_rules.proposed import Proposed
from gavel_rules.records import APPROVED, AWAITING_FACTS, UNDER_REVIEW, LiveDecision, Review


def resolve(emission: Emission, command: ResolveReview, references: References) -> Recorded | Fault:
    """Record a verdict and what follows from it, or say why there is nothing to resolve."""
    state = emission.state
    resolved = command.envelope.fact.review_resolved
    review = state.reviews.get(resolved.decision_id)
    if review is None:
        return _no_review(emission, resolved.decision_id, references)
    live = state.decisions[review.approved_decision_id] if review.approved_decision_id else None
    approves = resolved.verdict == fact_pb2.REVIEW_VERDICT_APPROVE
    if approves and not _releases(review, live) and citations_of(Proposed(review.proposal), references.cited)[1]:
        # What it cites was in the log when it was judged. So nobody has looked it up now: the review is of this very moment.
        problem = "asks for a person since this moment; look at it and say so again"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"decision {resolved.decision_id} {problem}")
    if approves and live is not None and (live.carried_out or live.revoked):
        over = "has been carried out" if live.carried_out else "has been revoked"
        problem = f"decision {live.decision_id} {over}, and no attempt is granted any more; reject the review when you have seen to it"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, problem)
    said = _say(emission, command.envelope, "ReviewResolved", review.decision)
    if approves:
        return _approve(emission, review, live, said, references)
    if live is not None:
        return Recorded(_revoke(emission, live, said))
    return _conclude(emission, review, said, _own_refusal(emission, review, said, reasons.REVIEW_REJECTED))


def revoke(emission: Emission, command: RevokeDecision, references: References) -> Recorded | Fault:
    """Take back an approval that nobody has started, or say why that cannot be."""
    decision_id = command.envelope.fact.revocation_requested.decision_id
    live = emission.state.live(decision_id)
    if live is None:
        return ended_fault(decision_id, references, emission.now_ms, "to revoke", "in force")
    if live.compensates and live.phase != UNDER_REVIEW:
        problem = f"it makes good {live.compensates}, which was half done, and ends only by its execution"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"decision {decision_id} cannot be revoked: {problem}")
    if live.phase != APPROVED:
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"decision {decision_id} can no longer be revoked: {_progress(live)}")
    return Recorded(_revoke(emission, live, _say(emission, command.envelope, "RevocationRequested", live.decision)))


def _approve(emission: Emission, review: Review, live: LiveDecision | None, said: Envelope, references: References) -> Recorded:
    """Approve what the evidence allows: the action, or one more attempt at it. Of Gavel's own reviews, that the trace goes on."""
    state = emission.state
    if _releases(review, live):
        released = _own_refusal(emission, review, said, reasons.REVIEW_RELEASED)
        trace_id, subject, action_type = review.decision.trace_id, review.decision.subject, released.action_type
        ended = state.is_ended(trace_id, action_type, subject, state.governing.get(action_type, ()), emission.now_ms)
        released.retry_hint.CopyFrom(RetryHint(retryable=not ended))
        return _conclude(emission, review, said, released)
    asked = review.decision.decision if live is None else live.decision.decision
    decision = _following(emission, review, said, asked)
    if live is not None and live.compensates:
        decision.outcome = decision_pb2.OUTCOME_APPROVED  # it rests on no facts, and has the key
        passes = True
    else:
        holder = "" if live is None else live.decision_id
        passes = reread(decision, state, review.proposal, references.cited, emission.now_ms, state.actions_of(asked), holder)
    if passes:
        decision.policy_id = asked.policy_id
        decision.policy_version = asked.policy_version
        decision.rule_id = asked.rule_id
        decision.rule_set_digest = asked.rule_set_digest
        decision.rule_matches.extend(asked.rule_matches)
        if live is not None:
            # The policy's limit is used up or in doubt. One attempt more; if nobody begins it in time, a person is called again.
            decision.retry_policy.CopyFrom(live.decision.decision.retry_policy)
            decision.retry_policy.max_attempts = live.attempt + 1
            set_timestamp(decision.valid_until, emission.now_ms + decision.retry_policy.human_takeover_after_ms)
    else:
        decision.outcome = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
        note_rejections(decision, state.rejections(said.trace_id, emission.now_ms))
    answer = _conclude(emission, review, said, decision)
    if decision.reason_code == reasons.INSUFFICIENT_EVIDENCE_TIER:
        request_facts(emission, read(answer.envelope))
    return answer


def _releases(review: Review, live: LiveDecision | None) -> bool:
    """Whether to approve means no action, but that the trace may go on."""
    return live is None and review.decision.decision.reason_code in reasons.RELEASING


def _own_refusal(emission: Emission, review: Review, said: Envelope, reason_code: str) -> Decision:
    """Return the refusal that follows from a verdict. A rejection ends the trace for the action and subject."""
    decision = _following(emission, review, said, review.decision.decision)
    decision.outcome = decision_pb2.OUTCOME_REJECTED
    decision.reason_code = reason_code
    decision.terminal = reason_code == reasons.REVIEW_REJECTED
    decision.policy_id = GAVEL
    decision.policy_version = ARBITER_VERSION
    return decision


def _following(emission: Emission, review: Review, said: Envelope, asked: Decision) -> Decision:
    """Return what every decision on a review has in common; `asked` is the one for which the rule sets were consulted."""
    return Decision(
        decision_id=derived_event_id(said.event_id, said.sequence_number, "decision"),
        proposal_id=asked.proposal_id,
        previous_decision_id=review.decision_id,
        arbiter_version=ARBITER_VERSION,
        active_policy_ids=asked.active_policy_ids,
        active_rule_sets=asked.active_rule_sets,
        action_type=asked.action_type,
        params=asked.params,
        evaluated_at=timestamp(emission.now_ms),
        state_version=emission.state.head,
        conflict_key=asked.conflict_key,
    )


def _conclude(emission: Emission, review: Review, said: Envelope, decision: Decision) -> Recorded:
    return Recorded(
        emission.decide(
            emission.decision_event(decision),
            causation_id=said.event_id,
            trace_id=review.decision.trace_id,
            subject=review.decision.subject,
        )
    )


def _revoke(emission: Emission, live: LiveDecision, said: Envelope) -> Envelope:
    """Record REVOKED. Its id follows from the decision alone, as that of an expiry does: so it is found later how it ended.

    What had ended already, and was looked at again, has ended as it did the first time.
    """
    if live.carried_out or live.revoked:
        revoked_id = derived_event_id(said.event_id, said.sequence_number, "decision")
    else:
        revoked_id = derived_event_id(live.decision_id, live.sequence_number, "revoked")
    return emit_later(emission, live, decision_pb2.OUTCOME_REVOKED, reasons.REVOKED, said, revoked_id)


def _say(emission: Emission, sent: Envelope, name: str, about: Envelope) -> Envelope:
    """Record a person's word about a decision, as a fact about its subject, in its trace."""
    fact = Fact(key=SYSTEM_FACT_KEY[name], observed_from=fact_pb2.OBSERVED_FROM_HUMAN_INPUT)
    fact.MergeFrom(sent.fact)
    return emission.record(
        Envelope(
            event_id=sent.event_id,
            event_name=name,
            trace_id=about.trace_id,
            causation_id=about.event_id,
            producer=SYSTEM_PRODUCER,
            subject=about.subject,
            fact=fact,
        ),
        "fact",
    )


def _no_review(emission: Emission, decision_id: str, references: References) -> Fault:
    """Return why a decision has no review to resolve."""
    if references.decision is None:
        return Fault(error_pb2.ERROR_REASON_DECISION_NOT_FOUND, f"no decision {decision_id}")
    state = emission.state
    live = state.live(decision_id)
    decision = references.decision.decision
    if live is not None and live.review:
        problem = f"is not what waits for a person; the review of its execution is {live.review}"
    elif decision.outcome != decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW:
        problem = "has no open review: it did not ask for a person"
    elif decision.previous_decision_id in state.reviews:
        problem = f"left a review open, which is {decision.previous_decision_id}"
    else:
        problem = "has no open review any more: it has been resolved"
    return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"decision {decision_id} {problem}")


def _progress(live: LiveDecision) -> str:
    if live.phase == UNDER_REVIEW:
        return f"its execution is under review; reject review {live.review} to end it"
    if live.phase == AWAITING_FACTS:
        return "it has been revoked" if live.revoked else "its execution has come to its end"
    return "its execution has begun"
