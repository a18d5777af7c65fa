"""The limit of consecutive rejections, by class: at the limit a human review is requested, so no agent loops (constitution §5.6, §6.3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from gavel.v1.decision_pb2 import Decision
from gavel.v1.decision_pb2 import Warning as DecisionWarning

from gavel_rules import reason_codes
from gavel_rules.arbitration.retry_hint import forbid_retry
from gavel_rules.events.kinds import GAVEL, OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW, OUTCOME_REJECTED
from gavel_rules.language.rule_set import CompiledAction
from gavel_rules.limits import REJECTION_LIMIT_DEFAULT
from gavel_rules.reason_codes import RefusalClass, refusal_class
from gavel_rules.state.records import Rejections
from gavel_rules.state.state import State

# Bound once: docs/performance.md#module-constants
_EVIDENCE: Final = RefusalClass.EVIDENCE
_POLICY: Final = RefusalClass.POLICY


def count_rejection(
    decision: Decision,
    state: State,
    trace_id: str,
    producer_type: int,
    producer_id: str,
    now_ms: int,
    actions: Sequence[CompiledAction],
) -> None:
    """Count a rejection of a producer in a trace, and request a human review if it reaches a limit."""
    outcome = decision.outcome
    if outcome == OUTCOME_APPROVED:
        return
    rejections = state.rejections(trace_id, producer_type, producer_id, now_ms)
    rejection_class = refusal_class(decision.reason_code) if outcome == OUTCOME_REJECTED else None
    if rejection_class is not None:
        rejections = _add(rejections, rejection_class)
    note_rejections(decision, rejections)
    if rejection_class is not None and _reaches_limit(rejections, rejection_class, actions):
        _call_person(decision)


def note_rejections(decision: Decision, rejections: Rejections) -> None:
    """Fill a decision's counts of consecutive rejections."""
    total = rejections.total
    if total:
        decision.consecutive_rejections = total
        counts = decision.rejection_counts
        counts.evidence = rejections.evidence
        counts.policy = rejections.policy
        counts.conflict = rejections.conflict


def _add(rejections: Rejections, rejection_class: RefusalClass) -> Rejections:
    evidence, policy, conflict = rejections.evidence, rejections.policy, rejections.conflict
    if rejection_class is _POLICY:
        return Rejections(evidence, policy + 1, conflict)
    if rejection_class is _EVIDENCE:
        return Rejections(evidence + 1, policy, conflict)
    return Rejections(evidence, policy, conflict + 1)


def _reaches_limit(rejections: Rejections, rejection_class: RefusalClass, actions: Sequence[CompiledAction]) -> bool:
    """Return whether a rejection reaches the limit of any rule set.

    A class with a limit of its own counts by itself; `rejection_limit` is for the other classes. Gavel's default holds for a class that no
    rule set limits.
    """
    is_limited = False
    for action in actions:
        if rejection_class in action.rejection_limits:
            is_limited = True
            if getattr(rejections, rejection_class) >= action.rejection_limits[rejection_class]:
                return True
        elif action.rejection_limit is not None:
            is_limited = True
            if _count_outside(rejections, action.rejection_limits) >= action.rejection_limit:
                return True
    if is_limited:
        return False
    limited_classes = {name for action in actions for name in action.rejection_limits}
    return _count_outside(rejections, limited_classes) >= REJECTION_LIMIT_DEFAULT


def _count_outside(rejections: Rejections, classes: Collection[str]) -> int:
    """Return the number of rejections of other classes than these."""
    inside: list[int] = [getattr(rejections, name) for name in classes]
    return rejections.total - sum(inside)


def _call_person(decision: Decision) -> None:
    """Turn a rejection into a call for a person. Its reason code becomes a warning."""
    count = decision.consecutive_rejections
    decision.warnings.append(
        DecisionWarning(code=decision.reason_code, message=f"rejection {count} in a row of this trace; the limit calls a person")
    )
    decision.outcome = OUTCOME_NEEDS_HUMAN_REVIEW
    decision.reason_code = reason_codes.REJECTION_LIMIT
    decision.policy_id = GAVEL
    decision.policy_version = decision.arbiter_version
    decision.rule_set_digest = ""
    decision.rule_id = ""
    forbid_retry(decision)
