"""The life of an approved decision after its approval (constitution §4.4, §7).

An approved decision is executing, then awaits the facts that its reports derive, then ends. It holds its conflict key until its execution
is over, and a human review is requested if work may be half done. Leases are events, so that every replica and every replay knows them.

Half-done work is compensated if the rule set declares how: see `compensation`. A compensation that nobody begins requests a human review.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.decision_pb2 import Warning as DecisionWarning
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules import reason_codes
from gavel_rules.arbitration import retry_hint
from gavel_rules.arbitration.review_policy import assign_policy_of_execution
from gavel_rules.events.ids import derived_event_id
from gavel_rules.events.kinds import GAVEL
from gavel_rules.events.timestamps import timestamp
from gavel_rules.recorder import Recorder
from gavel_rules.state.records import APPROVED, LiveDecision

_NEEDS_HUMAN_REVIEW: Final = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW


def fire_timer(recorder: Recorder, live: LiveDecision) -> None:
    """Expire an approval, or request a human review for a lapsed lease or for a compensation that nobody begins."""
    if live.phase == APPROVED and not live.compensates:
        expired_id = derived_event_id(live.decision_id, live.sequence_number, "expired")
        record_later_decision(recorder, live, decision_pb2.OUTCOME_EXPIRED, reason_codes.APPROVAL_EXPIRED, live.decision, expired_id)
    else:
        is_exhausted = live.attempt >= live.basis.decision.retry_policy.max_attempts
        reason_code = reason_codes.ATTEMPTS_EXHAUSTED if is_exhausted else reason_codes.EXECUTION_ABANDONED
        call_person(recorder, live, reason_code, live.basis, f"lease-lapsed-{live.attempt}")


def call_person(
    recorder: Recorder, live: LiveDecision, reason_code: str, cause: Envelope, kind: str, warnings: Iterable[DecisionWarning] = ()
) -> None:
    """Record that an execution needs human review. The id of the decision is derived from `cause` and `kind`."""
    current = recorder.state.decisions[live.decision_id]
    event_id = derived_event_id(cause.event_id, cause.sequence_number, kind)
    record_later_decision(recorder, current, _NEEDS_HUMAN_REVIEW, reason_code, cause, event_id, warnings)


def record_later_decision(
    recorder: Recorder,
    live: LiveDecision,
    outcome: decision_pb2.Outcome.ValueType,
    reason_code: str,
    cause: Envelope,
    event_id: str,
    warnings: Iterable[DecisionWarning] = (),
) -> Envelope:
    """Record a decision that ends or moves an approved one, and return its envelope."""
    approval = live.decision.decision
    arbiter_version = recorder.state.semantics.arbiter_version
    decision = Decision(
        decision_id=event_id,
        proposal_id=approval.proposal_id,
        previous_decision_id=live.review or live.decision_id,
        arbiter_version=arbiter_version,
        outcome=outcome,
        reason_code=reason_code,
        policy_id=GAVEL,
        policy_version=arbiter_version,
        action_type=approval.action_type,
        params=approval.params,
        evaluated_at=timestamp(recorder.now_ms),
        state_version=recorder.state.head,
        conflict_key=approval.conflict_key,
        warnings=warnings,
    )
    retry_hint.complete(decision, recorder.state)
    if outcome == _NEEDS_HUMAN_REVIEW:
        assign_policy_of_execution(decision, recorder.state, live)
    return recorder.record_decision(
        recorder.new_decision(decision), causation_id=cause.event_id, trace_id=live.decision.trace_id, subject=live.decision.subject
    )
