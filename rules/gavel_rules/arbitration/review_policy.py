"""The policy of a review, which says who has to resolve it.

A rule set declares it for an action, or for one of its rules. The policy is recorded in the decision that opens the review, and holds for
it whatever rule sets are activated meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gavel.v1.decision_pb2 import Decision, ReviewPolicy

from gavel_rules.events.kinds import GAVEL
from gavel_rules.language.rule_set import CompiledAction
from gavel_rules.state.records import LiveDecision
from gavel_rules.state.state import State


def assign_policy(decision: Decision, state: State, actions: Sequence[CompiledAction]) -> None:
    """Name who has to resolve the review that a first decision opens. `actions` are those of the rule sets consulted."""
    if not state.semantics.has_review_policies:
        return
    if decision.policy_id != GAVEL:
        for action in actions:
            own = action.review_policies.get(decision.rule_id) if action.policy_id == decision.policy_id else None
            if own is not None:
                decision.review_policy.CopyFrom(own)
                return
    _assign_declared(decision, (action.review_policy for action in actions))


def assign_policy_of_execution(decision: Decision, state: State, live: LiveDecision) -> None:
    """Name who has to resolve the review of an execution: the same people as for its action, or for the one that it compensates."""
    if not state.semantics.has_review_policies:
        return
    compensated = state.decisions.get(live.compensates) if live.compensates else None
    approval = (live if compensated is None else compensated).decision.decision
    policies = []
    for reference in approval.active_rule_sets:
        # Most rule sets have no policy, and those that are no longer active need not be compiled to see that.
        if _MENTION in state.rule_sets[reference.policy_id, reference.version].canonical_json:
            action = state.store.rule_set(reference.policy_id, reference.version).actions.get(approval.action_type)
            policies.append(action.review_policy if action is not None else None)
    _assign_declared(decision, policies)


# A review policy, as canonical JSON has it. Elsewhere the same text is only a reason to look closer.
_MENTION: Final = '"review":{'


def _assign_declared(decision: Decision, policies: Iterable[ReviewPolicy | None]) -> None:
    """Set the policy that rule sets declare: rule sets that share an action agree on it, or say nothing."""
    for policy in policies:
        if policy is not None:
            decision.review_policy.CopyFrom(policy)
            return
