"""The contract's view of the state: from State to projection messages (constitution §10).

Pure functions without a clock: the same state gives the same messages on every replica. A fact whose value is null is shown: with it, its
source says that the key has no value. Lists are read from the state when a function is called, and their messages are built one by one,
from records that never change. A subject's own view is in `subject_projection`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gavel.v1 import fact_pb2, projection_service_pb2
from gavel.v1.fact_pb2 import ReviewResolved
from gavel.v1.projection_service_pb2 import (
    PendingDecision,
    PendingReview,
)
from gavel.v1.rule_set_service_pb2 import RuleSet
from gavel.v1.work_service_pb2 import Consumer, WorkQueue
from gavel_rules.authorization import attestation_of, may_review
from gavel_rules.events.timestamps import set_timestamp
from gavel_rules.execution.review_votes import vote_fault
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.state.records import GrantsInForce, LiveDecision, Review
from gavel_rules.state.state import State

from gavel_server.log.work.protocol import ConsumerGroup


def pending_decision(live: LiveDecision) -> PendingDecision:
    """Return a live decision."""
    envelope = live.stored_decision.read()
    decision, bounding = envelope.decision, (live.grant or envelope).decision
    return PendingDecision(
        decision_id=live.decision_id,
        sequence_number=live.sequence_number,
        proposal_id=decision.proposal_id,
        action_type=decision.action_type,
        params=decision.params,
        subject=envelope.subject,
        trace_id=envelope.trace_id,
        conflict_key=live.conflict_key,
        phase=live.phase,  # type: ignore[arg-type]  # the state's phases are PendingPhase's numbers
        valid_until=bounding.valid_until if bounding.HasField("valid_until") else None,
        last_sequence_number=live.last_sequence_number,
        compensates_decision_id=decision.compensates_decision_id,
    )


def compensated_decisions(state: State) -> dict[str, str]:
    """Return which decision each live compensation under review undoes, by the id of the compensation."""
    approvals = [review.approved_decision_id for review in state.reviews.values() if review.approved_decision_id]
    return {
        approval: live.compensates for approval in approvals if (live := state.decisions.get(approval)) is not None and live.compensates
    }


def pending_reviews(
    reviews: Iterable[Review],
    compensated: Mapping[str, str],
    bus: str,
    in_force: GrantsInForce | None = None,
    caller: Principal = ANONYMOUS,
) -> Iterator[PendingReview]:
    """Yield open reviews as `caller` sees them under the grants of its bus. `compensated` is `compensated_decisions` of the state."""
    for review in reviews:
        compensates = compensated.get(review.approved_decision_id, "")
        yield _review(review, compensates, _may_vote(review, bus, in_force, caller))


def rule_sets(state: State, after: tuple[str, int] | None = None) -> Iterator[RuleSet]:
    """Yield the deployed rule set versions after (policy_id, version), sorted by both."""
    return (rule_set(state, *key) for key in sorted(state.rule_sets) if after is None or key > after)


def consumer(group: ConsumerGroup) -> Consumer:
    """Return a consumer group of a work queue."""
    queue = WorkQueue.Value(f"WORK_QUEUE_{group.queue.upper()}")
    return Consumer(group=group.group, queue=queue, lag=group.lag, pending=group.pending, members=group.members, parked=group.parked)


def active_rule_sets(state: State) -> list[RuleSet]:
    """Return the active rule sets, sorted by policy_id."""
    return [rule_set(state, policy_id, state.active_rule_sets[policy_id].version) for policy_id in sorted(state.active_rule_sets)]


def shadow_rule_sets(state: State) -> list[RuleSet]:
    """Return the shadow rule sets, sorted by policy_id."""
    return [rule_set(state, policy_id, state.shadows[policy_id].version) for policy_id in sorted(state.shadows)]


def rule_set(state: State, policy_id: str, version: int) -> RuleSet:
    """Return a deployed version."""
    deployed = state.rule_sets[policy_id, version]
    answer = RuleSet(
        policy_id=policy_id,
        version=version,
        digest=deployed.digest,
        deployed_at_sequence_number=deployed.sequence_number,
        action_types=deployed.action_types,
    )
    set_timestamp(answer.deployed_at, deployed.recorded_at_ms)
    active = state.active_rule_sets.get(policy_id)
    shadow = state.shadows.get(policy_id)
    if active is not None and active.version == version:
        answer.mode = fact_pb2.ACTIVATION_MODE_ACTIVE
        answer.activated_at_sequence_number = active.sequence_number
        answer.previous_version = active.previous_version
    elif shadow is not None and shadow.version == version:
        answer.mode = fact_pb2.ACTIVATION_MODE_SHADOW
        answer.activated_at_sequence_number = shadow.sequence_number
        answer.previous_version = shadow.previous_version
        answer.shadow_decisions = shadow.decisions
        answer.shadow_differences = shadow.differences
    return answer


def _may_vote(review: Review, bus: str, in_force: GrantsInForce | None, caller: Principal) -> bool:
    vote = ReviewResolved(decision_id=review.decision_id, verdict=fact_pb2.REVIEW_VERDICT_APPROVE, reviewer=caller.name)
    return may_review(in_force, bus, review.decision, caller) and vote_fault(review, vote, attestation_of(caller)) is None


def _review(review: Review, compensates: str, may_vote: bool) -> PendingReview:
    decision = review.decision.decision
    of_execution = bool(review.approved_decision_id)
    pending = PendingReview(
        decision_id=review.decision_id,
        sequence_number=review.sequence_number,
        kind=projection_service_pb2.REVIEW_KIND_EXECUTION if of_execution else projection_service_pb2.REVIEW_KIND_PROPOSAL,
        proposal_id=decision.proposal_id,
        approved_decision_id=review.approved_decision_id,
        reason_code=decision.reason_code,
        action_type=decision.action_type,
        params=decision.params,
        subject=review.decision.subject,
        trace_id=review.decision.trace_id,
        opened_at=review.decision.recorded_at,
        compensates_decision_id=compensates,
        review_policy=decision.review_policy if decision.HasField("review_policy") else None,
        escalated=review.is_escalated,
        may_vote=may_vote,
    )
    for vote in review.votes:
        voted = vote.fact.review_voted
        pending.votes.add(reviewer=voted.reviewer, verdict=voted.verdict, reason=voted.reason, voted_at=vote.recorded_at)
    return pending
