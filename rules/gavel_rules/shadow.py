"""Shadows: rule sets that are asked about every proposal and decide nothing (seeds 002 §6.2).

A shadow is judged as if it were in force in place of the active version of its rule set, or beside the others where that has
none, on the same state, the same evidence and the same time as the decision. What it would have decided otherwise goes into
the log with the decision, as a diagnostic that a replay recomputes. Nothing that goes wrong in a shadow reaches the decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.diagnostic_pb2 import ShadowDifference, ShadowVerdict

from gavel_rules import reasons
from gavel_rules.arbitration import Judge, arbitrate
from gavel_rules.events import ARBITER_VERSION, GAVEL
from gavel_rules.evidence import Cited
from gavel_rules.projection import State
from gavel_rules.proposed import Proposed
from gavel_rules.records import Shadowing

KIND: Final = "ShadowDifference"


def same_verdict(one: Decision, other: Decision) -> bool:
    """Whether two decisions on a proposal come to the same, by rules of the same name in rule sets of the same name."""
    return _essence(one) == _essence(other)


def _essence(decision: Decision) -> tuple[object, ...]:
    return decision.outcome, decision.reason_code, decision.policy_id, decision.rule_id


def differences(
    state: State, asked: Proposed, known: Mapping[int, Cited], now_ms: int, judge: Judge, decided: Decision
) -> list[ShadowDifference]:
    """Return what the shadows of the proposal's action would have decided otherwise, by policy_id.

    To be asked before the decision is recorded: the state is still the one that it was made on, and decision_id is not known yet.
    """
    found: list[ShadowDifference] = []
    for shadow in state.shadowing.get(asked.action_type, ()):
        try:
            shadowed = failed() if shadow.disagrees else arbitrate(state, asked, known, now_ms, judge, shadow.governing)
        except Exception:  # noqa: BLE001  # a bug in an engine; it would cost the decision that the shadow only watches
            shadowed = failed()
        found.extend(difference(shadow, decided, shadowed))
    return found


def difference(shadow: Shadowing, decided: Decision, shadowed: Decision) -> list[ShadowDifference]:
    """Return the difference between a decision and a shadow's, if there is one."""
    if same_verdict(decided, shadowed):
        return []
    return [
        ShadowDifference(
            policy_id=shadow.policy_id,
            policy_version=shadow.version,
            rule_set_digest=shadow.digest,
            decided=_verdict(decided),
            shadowed=_verdict(shadowed),
        )
    ]


def failed() -> Decision:
    """Return what a shadow comes to that cannot be evaluated, or that could not be in force: it disagrees about the action."""
    return Decision(
        outcome=decision_pb2.OUTCOME_REJECTED, reason_code=reasons.EVALUATION_ERROR, policy_id=GAVEL, policy_version=ARBITER_VERSION
    )


def _verdict(decision: Decision) -> ShadowVerdict:
    return ShadowVerdict(
        outcome=decision.outcome,
        reason_code=decision.reason_code,
        policy_id=decision.policy_id,
        policy_version=decision.policy_version,
        rule_id=decision.rule_id,
    )
