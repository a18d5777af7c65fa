"""Which rule sets govern and shadow each action, computed from the active rule sets and the shadows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gavel_rules.events.arbiter_versions import Semantics
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet
from gavel_rules.language.shared_action_settings import find_disagreements
from gavel_rules.state.records import ActionShadow, ShadowRuleSet


def actions_by_type(rule_sets: Iterable[CompiledRuleSet]) -> dict[str, tuple[CompiledAction, ...]]:
    """Return the compiled actions of each action type, ordered by policy_id."""
    actions: dict[str, tuple[CompiledAction, ...]] = {}
    for rule_set in sorted(rule_sets, key=lambda rule_set: rule_set.policy_id):
        for action_type, action in rule_set.actions.items():
            actions[action_type] = (*actions.get(action_type, ()), action)
    return actions


def shadows_by_type(
    active: Mapping[str, CompiledRuleSet], shadows: Mapping[str, ShadowRuleSet], semantics: Semantics
) -> dict[str, tuple[ActionShadow, ...]]:
    """Return the shadows of each action type, ordered by policy_id. `active` holds the active rule sets by policy_id.

    A shadow watches the actions that it governs and those that the active version of its rule set governs.
    """
    shadows_of_type: dict[str, tuple[ActionShadow, ...]] = {}
    for policy_id, shadow in sorted(shadows.items()):
        rule_set = shadow.rule_set
        actions = actions_by_type({**active, policy_id: rule_set}.values())
        replaced = active[policy_id].actions if policy_id in active else {}
        disagreements = find_disagreements(rule_set, active.values(), compares_counters=semantics.compares_counters)
        disagreeing = {disagreement.action_type for disagreement in disagreements}
        for action_type in sorted(rule_set.actions.keys() | replaced.keys()):
            action_shadow = ActionShadow(
                policy_id, shadow.version, rule_set.digest, actions.get(action_type, ()), action_type in disagreeing
            )
            shadows_of_type[action_type] = (*shadows_of_type.get(action_type, ()), action_shadow)
    return shadows_of_type
