"""Rule sets that share an action must agree on its settings before they are active together (constitution §6.2)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1 import error_pb2
from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, RuleSetPosition, UpgradeBus
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

NOTED = {**PARAMS, "required": ["amount", "note"]}
SPENT: dict[str, Any] = {"of": "approvals", "action": ACTION, "window_ms": 60_000, "by": "subject", "sum": "params.amount"}
SCORE = "-history.spent(subject)"


def freeze(version: int = 1, **action: Any) -> str:
    """A rule set that only rejects, on the same action as TEAM."""
    return document(FREEZE_FACTS, FREEZE_RULES, rule_set="freeze", version=version, **action)


def activation(core: Core, text: str, *, shadow: bool = False) -> ActivateRuleSet:
    """Deploy a rule set, and return the command that activates it or starts it as a shadow."""
    rule_set = compile_cached(text)
    assert isinstance(core.run(DeployRuleSet(core.new_id(), rule_set, text)), RuleSetPosition)
    return ActivateRuleSet(core.new_id(), rule_set.policy_id, rule_set.version, None, shadow)


def counting(
    score: str, counters: dict[str, Any], *, rule_set: str = "freeze", variables: dict[str, str] | None = None, **action: Any
) -> str:
    """A rule set with counters, whose score may read them."""
    text = document(FREEZE_FACTS, FREEZE_RULES, rule_set=rule_set, gavel="v2", **{"params": NOTED, **action, "score": score})
    return json.dumps({**json.loads(text), "counters": counters, "variables": variables or {}})


def disagreements(first: str, second: str) -> list[tuple[str, str, str]]:
    """Return the disagreements of the second rule set with the first, as (setting, value, other value)."""
    found = find_disagreements(compile_rule_set(second), [compile_rule_set(first)], compares_counters=True)
    return [(one.setting, one.value, one.other_value) for one in found]


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
    actual = find_disagreements(compile_cached(freeze(more_actions=actions)), [team], compares_counters=True)
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
    assert [("conflict_key", '"string(params.amount)"', "the same text, but with other declarations of the names in it")] == disagreements(
        document(rule_set="team", **key), freeze(params=integer_params, **key)
    )


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


@pytest.mark.parametrize(
    ("score", "counter", "wanted"),
    [
        (SCORE, {**SPENT, "window_ms": 120_000}, "the same text, but with other declarations of the names in it"),
        (SCORE, {**SPENT, "of": "proposals"}, "the same text, but with other declarations of the names in it"),
        (SCORE, {**SPENT, "by": "params.note"}, "the same text, but with other declarations of the names in it"),
        ("-history.spent(params.note)", SPENT, json.dumps(SCORE)),
        ('-history.spent(subject + "")', SPENT, json.dumps(SCORE)),
    ],
)
@pytest.mark.parametrize("shadow", [False, True])
def test_counters_that_a_score_reads_matter(score: str, counter: dict[str, Any], wanted: str, shadow: bool) -> None:
    """Scores that read a counter of the same name agree only if it is defined alike and read with the same key."""
    core = Core(counting(SCORE, {"spent": SPENT}, rule_set="team"))
    fault = core.fault(activation(core, counting(score, {"spent": counter}), shadow=shadow))
    assert error_pb2.ERROR_REASON_RULE_SETS_DISAGREE == fault.reason
    assert f"score of action {ACTION} is {json.dumps(score)}, but {wanted} in rule set team" in fault.message
    core.prove()


def test_names_that_the_key_of_a_counter_reads_matter() -> None:
    """The types of params and the declarations of facts that only the key of a counter reads count as read by the score."""
    counters = {"spent": {**SPENT, "by": '"all"', "sum": "1", "action": "order.cancel"}}
    cancel: dict[str, Any] = {"more_actions": {"order.cancel": {"params": PARAMS, "retry": RETRY}}}

    def scores(score: str, **action: Any) -> str:
        return counting(score, counters, **{**cancel, **action})

    by_amount = "-double(history.spent(string(params.amount)))"
    integer_params = {**NOTED, "properties": {**PARAMS["properties"], "amount": {"type": "integer"}}}
    team = counting(by_amount, counters, rule_set="team", **cancel)
    assert [] == disagreements(team, scores(by_amount))
    assert ["score"] == [setting for setting, _, _ in disagreements(team, scores(by_amount, params=integer_params))]

    by_status = "-double(history.spent(facts.status))"
    team = json.loads(counting(by_status, counters, rule_set="team", **cancel))
    other = json.loads(scores(by_status))
    for one, age_ms in ((team, 60_000), (other, 30_000)):
        one["actions"][ACTION]["facts"]["status"] = {**FACTS["status"], "max_age_ms": age_ms}
    assert ["score"] == [setting for setting, _, _ in disagreements(json.dumps(team), json.dumps(other))]
    other["actions"][ACTION]["facts"]["status"]["max_age_ms"] = 60_000
    assert [] == disagreements(json.dumps(team), json.dumps(other))


def test_names_of_counters_do_not_matter() -> None:
    """Equal counters agree under other names, after other reads, with another layout of the key, and inside variables."""
    core = Core(counting(SCORE, {"spent": SPENT}, rule_set="team"))
    other = {**SPENT, "window_ms": 120_000}
    text = counting("-paid", {"outlay": SPENT, "spent": other}, variables={"paid": "history.outlay( (subject) )"})
    data = json.loads(text)
    data["rules"].append({**data["rules"][0], "id": "much", "priority": 1, "when": "history.outlay(params.note) > 9.0"})
    core.activate(json.dumps(data))
    assert ["freeze", "team"] == [action.policy_id for action in core.state.active_actions[ACTION]]
    core.prove()


def test_counters_that_change_places_matter() -> None:
    """Two counters that exchange their names exchange their places in a score."""
    first, second = SPENT, {**SPENT, "window_ms": 120_000}
    score = "history.a(subject) - history.b(subject)"
    team = counting(score, {"a": first, "b": second}, rule_set="team")
    assert [] == disagreements(team, counting("history.b(subject) - history.a(subject)", {"a": second, "b": first}))
    assert ["score"] == [setting for setting, _, _ in disagreements(team, counting(score, {"a": second, "b": first}))]


def test_counters_are_compared_by_name_in_version_2() -> None:
    """A bus of arbiter version 2 accepts what it always accepted, and replays it; after an upgrade a shadow that disagrees is an error."""
    core = Core(counting(SCORE, {"spent": SPENT}, rule_set="team"), arbiter_version=2)
    text = counting(SCORE, {"spent": {**SPENT, "window_ms": 120_000}})
    shadow = activation(core, text, shadow=True)
    core.fill_counters(core.open_counters(compile_cached(text)))
    assert isinstance(core.run(shadow), RuleSetPosition)
    core.activate(counting(SCORE, {"spent": {**SPENT, "by": "params.note"}}, rule_set="other"))
    assert [False] == [one.disagrees for one in core.state.shadows_by_action[ACTION]]
    core.prove()
    core.run(UpgradeBus(core.new_id(), 2, 3, "ada", "to compare counters"))
    assert [True] == [one.disagrees for one in core.state.shadows_by_action[ACTION]]
    assert ["other", "team"] == [action.policy_id for action in core.state.active_actions[ACTION]]
    core.prove()


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
