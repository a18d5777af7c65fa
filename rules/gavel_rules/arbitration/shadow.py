"""Shadows: rule sets that evaluate every proposal and decide nothing (constitution §6.2).

A shadow is evaluated on the state, the evidence and the time of the decision, as if it were active. It takes the place of the active
version of its rule set, or stands beside the other rule sets. A different outcome is recorded with the decision, as a diagnostic that a
replay recomputes. An error in a shadow never affects the decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.diagnostic_pb2 import ShadowDifference, ShadowVerdict

from gavel_rules import reason_codes
from gavel_rules.arbitration.evaluation import Evaluate
from gavel_rules.arbitration.pipeline import arbitrate
from gavel_rules.events.citation import CitedEvent
from gavel_rules.events.kinds import GAVEL
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.state.records import ActionShadow
from gavel_rules.state.state import State

KIND: Final = "ShadowDifference"


def find_differences(
    state: State,
    proposal: ProposalView,
    cited_events: Mapping[int, CitedEvent],
    now_ms: int,
    evaluate: Evaluate,
    decision: Decision,
) -> list[ShadowDifference]:
    """Return how the shadows of the proposal's action decide differently, by policy_id; decision_id is left empty.

    Call it before the decision is recorded: the shadows need the state that the decision was made on.
    """
    differences: list[ShadowDifference] = []
    for shadow in state.shadows_by_action.get(proposal.action_type, ()):
        try:
            if shadow.disagrees:
                alternative = failed_decision(state)
            else:
                alternative = arbitrate(state, proposal, cited_events, now_ms, evaluate, shadow.actions)
        except Exception:  # noqa: BLE001  # an engine's bug under a shadow must not cost the decision
            alternative = failed_decision(state)
        differences.extend(compare(shadow, decision, alternative))
    return differences


def compare(shadow: ActionShadow, decision: Decision, alternative: Decision) -> list[ShadowDifference]:
    """Return the difference between a decision and that of a shadow, if there is one."""
    if same_verdict(decision, alternative):
        return []
    return [
        ShadowDifference(
            policy_id=shadow.policy_id,
            policy_version=shadow.version,
            rule_set_digest=shadow.digest,
            decided=_verdict(decision),
            shadowed=_verdict(alternative),
        )
    ]


def same_verdict(decision: Decision, other: Decision) -> bool:
    """Return whether two decisions on a proposal have the same outcome by the same rule, in any version of its rule set."""
    return _key(decision) == _key(other)


def failed_decision(state: State) -> Decision:
    """Return the decision of a shadow that fails, or that disagrees with an active rule set about the action."""
    return Decision(
        outcome=decision_pb2.OUTCOME_REJECTED,
        reason_code=reason_codes.EVALUATION_ERROR,
        policy_id=GAVEL,
        policy_version=state.semantics.arbiter_version,
    )


def _key(decision: Decision) -> tuple[object, ...]:
    return decision.outcome, decision.reason_code, decision.policy_id, decision.rule_id


def _verdict(decision: Decision) -> ShadowVerdict:
    return ShadowVerdict(
        outcome=decision.outcome,
        reason_code=decision.reason_code,
        policy_id=decision.policy_id,
        policy_version=decision.policy_version,
        rule_id=decision.rule_id,
    )
