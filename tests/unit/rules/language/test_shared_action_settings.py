"""Rule sets that share an action must agree on its settings before they are active together (constitution §6.2)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1 import error_pb2
from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, RuleSetPosition
from gavel_rules.language.rule_set import compile_rule_set
from gavel_rules.language.shared_action_settings import (
    DISAGREEMENTS_NAMED_MAX,
    SETTING_LENGTH_MAX,
    find_disagreements,
    format_disagreements,
)

from tests.support.driver import ACTION, FACTS, PARAMS, RETRY, Core, compile_cached, document

TEAM = document(rule_set="team")
FREEZE_RULES: list[dict[str, Any]] = [{"id": "frozen", "when": "facts.frozen", "effect": "reject", "reason_code": "FROZEN"}]
FREEZE_FACTS: dict[str, Any] = {"frozen": {"key": "company.frozen", "subject": '"company/1"', "type": "boolean", "max_age_ms": 60_000}}


def freeze(version: int = 1, **action: Any) -> str:
    """A rule set that only rejects, on the same action as TEAM."""
    return document(FREEZE_FACTS, FREEZE_RULES, rule_set="freeze", version=version, **action)


def activation(core: Core, text: str, *, shadow: bool = False) -> ActivateRuleSet:
    """Deploy a rule set, and return the command that activates it or starts it as a shadow."""
    rule_set = compile_cached(text)
    assert isinstance(core.run(DeployRuleSet(core.new_id(), rule_set, text)), RuleSetPosition)
    return ActivateRuleSet(core.new_id(), rule_set.policy_id, rule_set.version, None, shadow)


def disagreements(first: str, second: str) -> list[tuple[str, str, str]]:
    """Return the disagreements of the second rule set with the first, as (setting, value, other value)."""
    return [(one.setting, one.value, one.other_value) for one in find_disagreements(compile_rule_set(second), [compile_rule_set(first)])]


def test_rule_sets_that_agree_share_an_action() -> None:
    """Schemas, facts, rules, limits and times to live belong to each rule set: two that differ in them can both be active."""
    core = Core(TEAM)
    core.activate(freeze(params={"type": "object"}, decision_ttl_ms=1, rejection_limit=2, rejection_limits={"policy": 1}))
    assert ["freeze", "team"] == [action.policy_id for action in core.state.active_actions[ACTION]]
    core.prove()


@pytest.mark.parametrize(
    ("setting", "changes", "wanted", "in_force"),
    [
        ("conflict_key", {"conflict_key": '"refunds"'}, r'"\"refunds\""', '"subject"'),
        ("score", {"score": "-proposal.cost"}, '"-proposal.cost"', "the default"),
        ("retry.max_attempts", {"retry": {**RETRY, "max_attempts": 3}}, "3", "2"),
        ("retry.backoff_initial_ms", {"retry": {**RETRY, "backoff_initial_ms": 1}}, "1", "500"),
        ("retry.backoff_multiplier", {"retry": {**RETRY, "backoff_multiplier": 3}}, "3.0", "2.0"),
        ("retry.backoff_max_ms", {"retry": {**RETRY, "backoff_max_ms": 1}}, "1", "30000"),
        ("retry.human_takeover_after_ms", {"retry": {**RETRY, "human_takeover_after_ms": 1}}, "1", "5000"),
    ],
)
@pytest.mark.parametrize("shadow", [False, True])
def test_disagreement_names_the_setting(setting: str, changes: dict[str, Any], wanted: str, in_force: str, shadow: bool) -> None:
    """RULE_SETS_DISAGREE names the setting, the action and both values, for an activation and for a shadow."""
    core = Core(TEAM)
    command = activation(core, freeze(**changes), shadow=shadow)
    fault = core.fault(command)
    assert error_pb2.ERROR_REASON_RULE_SETS_DISAGREE == fault.reason
    assert (
        f"{setting} of action {ACTION} is {wanted}, but {in_force} in rule set team version 1, which is in force. "
        "Rule sets that share an action must agree on these settings: change one of them, or take team out of force first"
    ) == fault.message
    core.deactivate("team")
    assert isinstance(core.run(command), RuleSetPosition)
    core.prove()


@pytest.mark.parametrize(
    ("setting", "wanted", "in_force"),
    [
        ({"contest_window_ms": 5}, "5", "0"),
        ({"compensation": {"action": "refund.reverse"}}, '{"action": "refund.reverse", "params": {}}', "none"),
    ],
)
def test_windows_and_compensations_are_compared_too(setting: dict[str, Any], wanted: str, in_force: str) -> None:
    """Contest windows and compensations must be equal too."""
    assert [(*setting, wanted, in_force)] == disagreements(TEAM, freeze(**setting))
    assert [] == disagreements(document(rule_set="team", **setting), freeze(**setting))


def test_the_params_of_a_compensation_are_compared() -> None:
    """Compensations are compared by the meaning of their expressions, not by layout or order."""

    def compensating(**params: str) -> dict[str, Any]:
        return {"compensation": {"action": "refund.reverse", "params": params}}

    team = document(rule_set="team", **compensating(note="string(params.amount)", reason='"half done"'))
    assert [] == disagreements(team, freeze(**compensating(reason='"half done"', note="string( params.amount )")))
    (actual,) = disagreements(team, freeze(**compensating(note="string(params.amount)", reason='"all done"')))
    assert "compensation" == actual[0]


def test_all_disagreements_at_once() -> None:
    """One refusal names several settings, actions and rule sets, in a fixed order."""
    core = Core(TEAM)
    core.activate(document(rule_set="audit", action_type="order.cancel"))
    other = {
        "params": PARAMS,
        "facts": FREEZE_FACTS,
        "conflict_key": '"all"',
        "retry": {"max_attempts": 9, "human_takeover_after_ms": 5_000},
    }
    fault = core.fault(activation(core, freeze(score="1.0", conflict_key='"x"', more_actions={"order.cancel": other})))
    prefixes = [sentence.partition(" is ")[0] for sentence in fault.message.split("; ")]
    assert [
        "conflict_key of action order.cancel",
        "retry.max_attempts of action order.cancel",
        f"conflict_key of action {ACTION}",
        f"score of action {ACTION}",
    ] == prefixes
    assert fault.message.endswith("or take audit, team out of force first")


def test_very_many_disagreements_are_counted() -> None:
    """A refusal names the first disagreements and the number of the others; very long values are cut."""
    long = {"params": PARAMS, "conflict_key": '"' + "x" * 300 + '"'}
    actions = {f"a{number:02d}": long for number in range(DISAGREEMENTS_NAMED_MAX + 4)}
    team = compile_cached(document(rule_set="team", more_actions={name: {"params": PARAMS} for name in actions}))
    actual = find_disagreements(compile_cached(freeze(more_actions=actions)), [team])
    assert f"; and {4} more. Rule sets" in format_disagreements(actual)
    assert SETTING_LENGTH_MAX == len(actual[0].value)


def test_layout_and_variables_do_not_matter() -> None:
    """Expressions are compared by meaning, with variables expanded."""
    key: dict[str, Any] = {"conflict_key": 'subject.id + "/" + string(params.amount)'}
    expanded = document(rule_set="team", **key)
    data = json.loads(freeze(conflict_key='order+"/"+  string( params.amount )'))
    data["variables"] = {"order": "subject.id"}
    assert [] == disagreements(expanded, json.dumps(data))


def test_types_of_params_matter() -> None:
    """The same text over a param that is an integer in one rule set and a number in the other gives different keys: 1 and 1.0."""
    integer_params = {**PARAMS, "properties": {**PARAMS["properties"], "amount": {"type": "integer"}}}
    key: dict[str, Any] = {"conflict_key": "string(params.amount)"}
    assert [
        ("conflict_key", '"string(params.amount)"', "the same text, but with other declarations of its params or facts")
    ] == disagreements(document(rule_set="team", **key), freeze(params=integer_params, **key))


@pytest.mark.parametrize("changes", [{"key": "order.points"}, {"min_trust": 3}, {"subject": '"a/1"'}, {"sources": ["x"]}])
def test_facts_that_a_score_reads_matter(changes: dict[str, Any]) -> None:
    """Scores that read a fact of the same name are equal only if both declare the fact alike."""
    score: dict[str, Any] = {"score": "has(facts.score) ? facts.score : 0.0"}
    facts = {**FREEZE_FACTS, "score": FACTS["score"]}
    team = document(rule_set="team", **score)
    equal = document(facts, FREEZE_RULES, rule_set="freeze", **score)
    other = document({**facts, "score": {**FACTS["score"], **changes}}, FREEZE_RULES, rule_set="freeze", **score)
    assert [] == disagreements(team, equal)
    assert ["score"] == [setting for setting, _, _ in disagreements(team, other)]


def test_previous_version_is_not_compared() -> None:
    """A new version may change a setting, and be rolled back, while no other rule set shares the action."""
    core = Core(TEAM)
    newer = document(rule_set="team", version=2, conflict_key='"refunds"')
    assert isinstance(core.run(activation(core, newer)), RuleSetPosition)
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "team", 1, 2)), RuleSetPosition)
    core.activate(freeze())
    assert error_pb2.ERROR_REASON_RULE_SETS_DISAGREE == core.fault(ActivateRuleSet(core.new_id(), "team", 2, 1)).reason
    core.prove()


def test_shadow_does_not_prevent_an_activation() -> None:
    """A shadow does not stop the activation of a rule set that disagrees with it."""
    core = Core(TEAM)
    assert isinstance(core.run(activation(core, freeze(), shadow=True)), RuleSetPosition)
    newer = document(rule_set="team", version=2, conflict_key='"refunds"')
    assert isinstance(core.run(activation(core, newer)), RuleSetPosition)
    core.approve()
    core.prove()


@pytest.mark.parametrize("window_ms", [0, 1_000])
def test_disagreeing_shadow_is_an_evaluation_error(window_ms: int) -> None:
    """A shadow that could not be activated gives EVALUATION_ERROR until it agrees again."""
    team: dict[str, Any] = {"contest_window_ms": window_ms}
    core = Core(document(rule_set="team", **team))
    core.run(activation(core, freeze(**team), shadow=True))
    newer = document(rule_set="team", version=2, conflict_key='"refunds"', **team)
    assert isinstance(core.run(activation(core, newer)), RuleSetPosition)
    core.fact("company.frozen", True, subject="company/1")

    def decided(trace_id: str) -> list[tuple[str, str]]:
        proposal = core.proposal([core.fact("order.status", "delivered")], trace_id=trace_id)
        before = len(core.events)
        core.run(proposal)
        core.tick(window_ms)
        differences = [event.agent_diagnostic.shadow_difference for event in core.events[before:] if event.event_name == "ShadowDifference"]
        return [(one.policy_id, one.shadowed.reason_code) for one in differences]

    assert [("freeze", "EVALUATION_ERROR")] == decided("a")
    core.tick(20_000)
    core.fact("company.frozen", True, subject="company/1")
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "team", 1, 2)), RuleSetPosition)
    assert [("freeze", "FROZEN")] == decided("b")
    core.prove()


def test_expected_version_is_of_the_same_rule_set() -> None:
    """Expecting version 0 means that no version of this rule set is active; other rule sets do not matter."""
    core = Core(TEAM)
    activation(core, freeze())
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "freeze", 1, 0)), RuleSetPosition)
    fault = core.fault(ActivateRuleSet(core.new_id(), "team", 1, 0))
    assert error_pb2.ERROR_REASON_ACTIVATION_RACED == fault.reason
