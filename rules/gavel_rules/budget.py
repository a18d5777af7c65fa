"""How many rejections in a row a trace may have, by class, until a person is called (seeds 002 §5.6, §6.3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from gavel.v1.decision_pb2 import Decision
from gavel.v1.decision_pb2 import Warning as DecisionWarning

from gavel_rules import reasons
from gavel_rules.events import ARBITER_VERSION, GAVEL, OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW, OUTCOME_REJECTED
from gavel_rules.language.ruleset import CompiledAction
from gavel_rules.limits import REJECTION_LIMIT_DEFAULT
from gavel_rules.projection import State
from gavel_rules.records import Rejections
from gavel_rules.stages import RefusalClass, refusal_class

_EVIDENCE: Final = RefusalClass.EVIDENCE
_POLICY: Final = RefusalClass.POLICY


def count_rejection(decision: Decision, state: State, trace_id: str, now_ms: int, actions: Sequence[CompiledAction]) -> None:
    """Count a rejection and, at a limit, call a person instead of letting the trace loop (seeds 002 §5.6, §6.3)."""
    outcome = decision.outcome
    if outcome == OUTCOME_APPROVED:
        return
    rejections = state.rejections(trace_id, now_ms)
    of_class = refusal_class(decision.reason_code) if outcome == OUTCOME_REJECTED else None
    if of_class is not None:
        rejections = _one_more(rejections, of_class)
    note_rejections(decision, rejections)
    if of_class is not None and _limit_reached(rejections, of_class, actions):
        _call_person(decision)


def note_rejections(decision: Decision, rejections: Rejections) -> None:
    """Say in a decision how many rejections in a row its trace has had."""
    total = rejections.total
    if total:
        decision.consecutive_rejections = total
        counts = decision.rejection_counts
        counts.evidence = rejections.evidence
        counts.policy = rejections.policy
        counts.conflict = rejections.conflict


def _one_more(rejections: Rejections, of_class: RefusalClass) -> Rejections:
    evidence, policy, conflict = rejections.evidence, rejections.policy, rejections.conflict
    if of_class is _POLICY:
        return Rejections(evidence, policy + 1, conflict)
    if of_class is _EVIDENCE:
        return Rejections(evidence + 1, policy, conflict)
    return Rejections(evidence, policy, conflict + 1)


def _limit_reached(rejections: Rejections, of_class: RefusalClass, actions: Sequence[CompiledAction]) -> bool:
    """Whether a rejection of a class was one too many for any rule set.

    A class that a rule set limits is counted by itself; its `rejection_limit` is for the classes that it does not limit. Where
    no rule set says anything about the class, Gavel's own limit holds.
    """
    limited = False
    for action in actions:
        if of_class in action.rejection_limits:
            limited = True
            if getattr(rejections, of_class) >= action.rejection_limits[of_class]:
                return True
        elif action.rejection_limit is not None:
            limited = True
            if _outside(rejections, action.rejection_limits) >= action.rejection_limit:
                return True
    if limited:
        return False
    own = {name for action in actions for name in action.rejection_limits}
    return _outside(rejections, own) >= REJECTION_LIMIT_DEFAULT


def _outside(rejections: Rejections, classes: Collection[str]) -> int:
    """Return how many rejections there were of other classes than these, of which none comes twice."""
    inside: list[int] = [getattr(rejections, name) for name in classes]
    return rejections.total - sum(inside)


def _call_person(decision: Decision) -> None:
    """Make a rejection a call for a person; what was wrong becomes a warning."""
    count = decision.consecutive_rejections
    decision.warnings.append(
        DecisionWarning(code=decision.reason_code, message=f"rejection {count} in a row of this trace; the limit calls a person")
    )
    decision.outcome = OUTCOME_NEEDS_HUMAN_REVIEW
    decision.reason_code = reasons.REJECTION_LIMIT
    decision.policy_id = GAVEL
    decision.policy_version = ARBITER_VERSION
    decision.rule_set_digest = ""
    decision.rule_id = ""
    decision.retry_hint.retryable = False
