"""What the state looks like from outside: State -> the contract's projection messages (seeds 002 §10).

Pure and without a clock: the same state gives the same messages on every replica. A fact whose value is null is shown, because
it is its source's last word: it says that the key has no value. Each function reads the state once and keeps nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gavel.v1 import execution_pb2, fact_pb2, projection_service_pb2
from gavel.v1.common_pb2 import EventReference, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.projection_service_pb2 import (
    PendingDecision,
    PendingExecution,
    PendingProposal,
    PendingReview,
    ProjectedFact,
    ProjectedObservation,
    Projection,
)
from gavel.v1.rule_set_service_pb2 import RuleSet
from gavel_rules.events import FACT, set_timestamp
from gavel_rules.projection import State
from gavel_rules.records import EXECUTING, UNDER_REVIEW, Candidate, LiveDecision, Review
from gavel_rules.values import python_to_value


def projection(state: State, subject: str) -> Projection:
    """Return what holds for a subject."""
    answer = Projection(subject=subject, projection_version=state.head)
    for key, candidates in sorted(state.evidence.get(subject, {}).items()):
        for candidate in sorted(candidates, key=lambda candidate: (-candidate.stated_at_ms, -candidate.sequence_number)):
            if candidate.category == FACT:
                answer.facts.append(_fact(key, candidate))
            else:
                answer.observations.append(_observation(key, candidate))
    live = sorted((state.decisions[decision_id] for decision_id in state.decisions_of_subject.get(subject, ())), key=_place)
    answer.pending_decisions.extend(map(pending_decision, live))
    answer.pending_executions.extend(_execution(one) for one in live if _is_executing(one))
    answer.pending_proposals.extend(
        _waiting(state.open_proposals[proposal_id].envelope) for proposal_id in state.waiting_of_subject.get(subject, ())
    )
    return answer


def pending_decisions(state: State, after: int) -> Iterator[PendingDecision]:
    """Yield the live decisions that stand after a sequence number, oldest first."""
    return (pending_decision(live) for live in state.pending_decisions() if live.sequence_number > after)


def pending_decision(live: LiveDecision) -> PendingDecision:
    """Return a live decision."""
    envelope = live.kept_decision.read()
    decision, bounding = envelope.decision, (live.granted or envelope).decision
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


def pending_reviews(state: State, after: int) -> Iterator[PendingReview]:
    """Yield the open reviews that stand after a sequence number, oldest first."""
    return (_review(state, review) for review in state.pending_reviews() if review.sequence_number > after)


def rule_sets(state: State, after: tuple[str, int] | None = None) -> Iterator[RuleSet]:
    """Yield the deployed rule set versions after (policy_id, version), by policy_id and version."""
    return (rule_set(state, *key) for key in sorted(state.rule_sets) if after is None or key > after)


def active_rule_sets(state: State) -> list[RuleSet]:
    """Return the rule sets in force, by policy_id."""
    return [rule_set(state, policy_id, state.active[policy_id].version) for policy_id in sorted(state.active)]


def shadow_rule_sets(state: State) -> list[RuleSet]:
    """Return the shadows, by policy_id."""
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
    active = state.active.get(policy_id)
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


def _place(live: LiveDecision) -> int:
    return live.sequence_number


def _fact(key: str, candidate: Candidate) -> ProjectedFact:
    answer = ProjectedFact(
        key=key,
        value=python_to_value(candidate.value),
        source_event=EventReference(event_id=candidate.event_id, sequence_number=candidate.sequence_number),
        producer=_producer(candidate),
        observed_from=candidate.observed_from,
        max_age_ms=candidate.max_age_ms,
        derivation_rule_id=candidate.derivation_rule_id,
        derivation_rule_version=candidate.derivation_rule_version,
    )
    set_timestamp(answer.occurred_at, candidate.aged_from_ms)
    return answer


def _observation(key: str, candidate: Candidate) -> ProjectedObservation:
    answer = ProjectedObservation(
        key=key,
        value=python_to_value(candidate.value),
        source_event=EventReference(event_id=candidate.event_id, sequence_number=candidate.sequence_number),
        producer=_producer(candidate),
        source_tool=candidate.source,
        trust_tier=candidate.trust_tier,  # type: ignore[arg-type]  # an int of the closed enum
        confidence=candidate.confidence,
        evidence_ref=candidate.evidence_ref,
        evidence_hash=candidate.evidence_hash,
    )
    set_timestamp(answer.observed_at, candidate.aged_from_ms)
    return answer


def _producer(candidate: Candidate) -> Producer:
    return Producer(type=candidate.producer_type, id=candidate.producer_id, version=candidate.producer_version)


def _is_executing(live: LiveDecision) -> bool:
    """Whether an attempt has started and not finally ended: also one whose lease lapsed, while a person looks at it."""
    return live.phase == EXECUTING or (live.phase == UNDER_REVIEW and live.status == execution_pb2.EXECUTION_STATUS_STARTED)


def _execution(live: LiveDecision) -> PendingExecution:
    answer = PendingExecution(
        decision_id=live.decision_id,
        execution_id=live.execution_id,
        attempt=live.attempt,
        producer=Producer(type=live.executor_type, id=live.executor_id, version=live.executor_version),
        status=live.status,  # type: ignore[arg-type]  # an int of the closed enum
        source_event=EventReference(event_id=live.status_event_id, sequence_number=live.status_sequence_number),
    )
    set_timestamp(answer.lease_until, live.lease_until_ms)
    return answer


def _waiting(envelope: Envelope) -> PendingProposal:
    proposal = envelope.proposal
    return PendingProposal(
        proposal_id=envelope.event_id,
        sequence_number=envelope.sequence_number,
        action_type=proposal.action_type,
        params=proposal.params,
        trace_id=envelope.trace_id,
        conflict_key=proposal.contest.conflict_key,
        opened_at=proposal.contest.opened_at,
        closes_at=proposal.contest.closes_at,
    )


def _review(state: State, review: Review) -> PendingReview:
    decision = review.decision.decision
    of_execution = bool(review.approved_decision_id)
    return PendingReview(
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
        compensates_decision_id=state.decisions[review.approved_decision_id].compensates if of_execution else "",
    )
