"""What rule sets that share an action have to agree on before they come into force together (seeds 002 §6.2)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1 import error_pb2
from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, RuleSetAt
from gavel_rules.language.agreement import DISAGREEMENTS_NAMED_MAX, SETTING_LENGTH_MAX, described, disagreements
from gavel_rules.language.ruleset import compile_rule_set

from tests.unit.core.driver import ACTION, FACTS, PARAMS, RETRY, Core, compiled, document

TEAM = document(rule_set="team")
FREEZE_RULES: list[dict[str, Any]] = [{"id": "frozen", "when": "facts.frozen", "effect": "reject", "reason_code": "FROZEN"}]
FREEZE_FACTS: dict[str, Any] = {"frozen": {"key": "company.frozen", "subject": '"company/1"', "type": "boolean", "max_age_ms": 60_000}}


def freeze(version: int = 1, **action: Any) -> str:
    """A rule set that only rejects, on the same action as TEAM."""
    return document(FREEZE_FACTS, FREEZE_RULES, rule_set="freeze", version=version, **action)


def activation(core: Core, text: str, *, shadow: bool = False) -> ActivateRuleSet:
    """Deploy a rule set; the command that puts it in force, or lets it watch."""
    rule_set = compiled(text)
    assert isinstance(core.run(DeployRuleSet(core.new_id(), rule_set, text)), RuleSetAt)
    return ActivateRuleSet(core.new_id(), rule_set.policy_id, rule_set.version, None, shadow)


def named(first: str, second: str) -> list[tuple[str, str, str]]:
    """What disagrees when the second comes beside the first: the setting, as wanted and as in force."""
    return [(one.setting, one.wanted, one.in_force) for one in disagreements(compile_rule_set(second), [compile_rule_set(first)])]


def test_rule_sets_that_agree_share_an_action() -> None:
    """Schemas, facts, rules, limits and times to live are each rule set's own: a second one comes into force beside the first."""
    core = Core(TEAM)
    core.activate(freeze(params={"type": "object"}, decision_ttl_ms=1, rejection_limit=2, rejection_limits={"policy": 1}))
    assert ["freeze", "team"] == [action.policy_id for action in core.state.governing[ACTION]]
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
def test_what_they_disagree_on_is_named(setting: str, changes: dict[str, Any], wanted: str, in_force: str, shadow: bool) -> None:
    """Which setting, of which action, as wanted here and there: RULE_SETS_DISAGREE, for an activation and for a shadow."""
    core = Core(TEAM)
    command = activation(core, freeze(**changes), shadow=shadow)
    fault = core.fault(command)
    assert error_pb2.ERROR_REASON_RULE_SETS_DISAGREE == fault.reason
    assert (
        f"{setting} of action {ACTION} is {wanted}, but {in_force} in rule set team version 1, which is in force. "
        "Rule sets that share an action have to agree on this: write it alike, or take team out of force first"
    ) == fault.message
    core.deactivate("team")
    assert isinstance(core.run(command), RuleSetAt)
    core.prove()


@pytest.mark.parametrize(
    ("setting", "wanted", "in_force"),
    [
        ({"contest_window_ms": 5}, "5", "0"),
        ({"compensation": {"action": "refund.reverse"}}, '{"action": "refund.reverse", "params": {}}', "none"),
    ],
)
def test_windows_and_compensations_are_compared_too(setting: dict[str, Any], wanted: str, in_force: str) -> None:
    """Contest windows and compensations have to be alike as well."""
    assert [(*setting, wanted, in_force)] == named(TEAM, freeze(**setting))
    assert [] == named(document(rule_set="team", **setting), freeze(**setting))


def test_the_params_of_a_compensation_are_compared() -> None:
    """By what their expressions mean, not by their layout or order."""

    def compensating(**params: str) -> dict[str, Any]:
        return {"compensation": {"action": "refund.reverse", "params": params}}

    team = document(rule_set="team", **compensating(note="string(params.amount)", reason='"half done"'))
    assert [] == named(team, freeze(**compensating(reason='"half done"', note="string( params.amount )")))
    (found,) = named(team, freeze(**compensating(note="string(params.amount)", reason='"all done"')))
    assert "compensation" == found[0]


def test_everything_is_named_at_once() -> None:
    """Several settings, actions and rule sets in one refusal, in a settled order."""
    core = Core(TEAM)
    core.activate(document(rule_set="audit", action_type="order.cancel"))
    other = {
        "params": PARAMS,
        "facts": FREEZE_FACTS,
        "conflict_key": '"all"',
        "retry": {"max_attempts": 9, "human_takeover_after_ms": 5_000},
    }
    fault = core.fault(activation(core, freeze(score="1.0", conflict_key='"x"', more_actions={"order.cancel": other})))
    beginnings = [sentence.partition(" is ")[0] for sentence in fault.message.split("; ")]
    assert [
        "conflict_key of action order.cancel",
        "retry.max_attempts of action order.cancel",
        f"conflict_key of action {ACTION}",
        f"score of action {ACTION}",
    ] == beginnings
    assert fault.message.endswith("or take audit, team out of force first")


def test_very_many_disagreements_are_counted() -> None:
    """A refusal names the first of them and says how many more there are; what is very long is cut."""
    long = {"params": PARAMS, "conflict_key": '"' + "x" * 300 + '"'}
    actions = {f"a{number:02d}": long for number in range(DISAGREEMENTS_NAMED_MAX + 4)}
    team = compiled(document(rule_set="team", more_actions={name: {"params": PARAMS} for name in actions}))
    found = disagreements(compiled(freeze(more_actions=actions)), [team])
    assert f"; and {4} more. Rule sets" in described(found)
    assert SETTING_LENGTH_MAX == len(found[0].wanted)


def test_layout_and_variables_do_not_matter() -> None:
    """Expressions are compared by what they mean, with variables written out."""
    key: dict[str, Any] = {"conflict_key": 'subject.id + "/" + string(params.amount)'}
    written_out = document(rule_set="team", **key)
    data = json.loads(freeze(conflict_key='order+"/"+  string( params.amount )'))
    data["variables"] = {"order": "subject.id"}
    assert [] == named(written_out, json.dumps(data))


def test_types_of_what_is_read_matter() -> None:
    """One text over a param that is a whole number here and any number there gives different keys: 1 and 1.0."""
    whole = {**PARAMS, "properties": {**PARAMS["properties"], "amount": {"type": "integer"}}}
    key: dict[str, Any] = {"conflict_key": "string(params.amount)"}
    assert [("conflict_key", '"string(params.amount)"', "the same text over params or facts that are declared differently")] == named(
        document(rule_set="team", **key), freeze(params=whole, **key)
    )


@pytest.mark.parametrize("changes", [{"key": "order.points"}, {"min_trust": 3}, {"subject": '"a/1"'}, {"sources": ["x"]}])
def test_facts_that_a_score_reads_matter(changes: dict[str, Any]) -> None:
    """A score that reads a fact of the same name means the same only if it is the same fact, with the same demands."""
    score: dict[str, Any] = {"score": "has(facts.score) ? facts.score : 0.0"}
    facts = {**FREEZE_FACTS, "score": FACTS["score"]}
    team = document(rule_set="team", **score)
    same = document(facts, FREEZE_RULES, rule_set="freeze", **score)
    other = document({**facts, "score": {**FACTS["score"], **changes}}, FREEZE_RULES, rule_set="freeze", **score)
    assert [] == named(team, same)
    assert ["score"] == [setting for setting, _, _ in named(team, other)]


def test_what_a_version_replaces_is_not_asked() -> None:
    """A new version may want it otherwise as long as no other rule set shares the action, and it rolls back the same way."""
    core = Core(TEAM)
    newer = document(rule_set="team", version=2, conflict_key='"refunds"')
    assert isinstance(core.run(activation(core, newer)), RuleSetAt)
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "team", 1, 2)), RuleSetAt)
    core.activate(freeze())
    assert error_pb2.ERROR_REASON_RULE_SETS_DISAGREE == core.fault(ActivateRuleSet(core.new_id(), "team", 2, 1)).reason
    core.prove()


def test_shadows_bind_nobody() -> None:
    """What only watches does not stop a rule set that disagrees with it from coming into force."""
    core = Core(TEAM)
    assert isinstance(core.run(activation(core, freeze(), shadow=True)), RuleSetAt)
    newer = document(rule_set="team", version=2, conflict_key='"refunds"')
    assert isinstance(core.run(activation(core, newer)), RuleSetAt)
    core.approve()
    core.prove()


@pytest.mark.parametrize("window_ms", [0, 1_000])
def test_a_shadow_that_has_come_to_disagree_has_no_say(window_ms: int) -> None:
    """While it could not be put in force its verdict is EVALUATION_ERROR, whatever its rules say; where it agrees again it is asked."""
    team: dict[str, Any] = {"contest_window_ms": window_ms}
    core = Core(document(rule_set="team", **team))
    core.run(activation(core, freeze(**team), shadow=True))
    newer = document(rule_set="team", version=2, conflict_key='"refunds"', **team)
    assert isinstance(core.run(activation(core, newer)), RuleSetAt)
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
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "team", 1, 2)), RuleSetAt)
    assert [("freeze", "FROZEN")] == decided("b")
    core.prove()


def test_expected_versions_are_each_rule_sets_own() -> None:
    """0 expects that no version of this rule set is in force, whatever else governs its actions."""
    core = Core(TEAM)
    activation(core, freeze())
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "freeze", 1, 0)), RuleSetAt)
    fault = core.fault(ActivateRuleSet(core.new_id(), "team", 1, 0))
    assert error_pb2.ERROR_REASON_ACTIVATION_RACED == fault.reason
