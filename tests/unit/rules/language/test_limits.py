"""The limits of docs/rule-language.md: at the limit both engines decide correctly, and one more is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from gavel_rules.language.cel.name_analysis import COMPREHENSIONS_MAX
from gavel_rules.language.cel.variables import EXPANDED_LENGTH_MAX
from gavel_rules.language.document.models import ACTIONS_MAX, CONDITION_LENGTH_MAX, FACTS_PER_ACTION_MAX, RULES_MAX, RULES_PER_ACTION_MAX
from gavel_rules.language.engines.case import Case
from gavel_rules.language.engines.lowering import CONDITIONS_PER_CONJUNCTION_MAX, CONJUNCTIONS_MAX
from gavel_rules.language.engines.rete import CHAINS_MAX, SLOTS_MAX
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet, compile_rule_set

Action = Callable[..., CompiledAction]
MakeCase = Callable[..., Case]
Codes = Callable[..., list[str]]
Outcome = Callable[..., bool | str]


def matching_rules(compiled: CompiledAction, case: Case) -> list[int]:
    """The numbers of the rules that both engines match."""
    verdict = compiled.evaluate(case, cross_check=True)
    assert (None, "") == (verdict.disagreement, verdict.error)
    assert verdict == compiled.evaluate(case, cross_check=False)
    return [int(rule.id.removeprefix("r")) for rule in verdict.matches]


@pytest.mark.long
def test_every_rule_of_a_full_action_matches(action: Action, case: MakeCase, codes: Codes) -> None:
    """RULES_PER_ACTION_MAX rules with conditions of their own match all at once, or just those that should; one more is refused."""
    conditions = [f"params.count >= {number}" for number in range(RULES_PER_ACTION_MAX)]
    compiled = action(*conditions)
    for count in (-1, 0, 63, 64, 65, 255, 256, RULES_PER_ACTION_MAX):
        assert list(range(min(count + 1, RULES_PER_ACTION_MAX))) == matching_rules(compiled, case({"count": count}))
    assert ["too-many-rules"] == codes(*conditions, "true")


@pytest.mark.long
def test_every_alternative_matches(action: Action, case: MakeCase, codes: Codes) -> None:
    """CHAINS_MAX alternatives in one action are decided, whether all or one of them hold; one more is refused."""
    conditions = [f"params.count > {number} || params.quota_ > {number}" for number in range(CHAINS_MAX // 2)]
    params = {
        "type": "object",
        "required": ["count", "quota_"],
        "properties": {"count": {"type": "integer"}, "quota_": {"type": "integer"}},
    }
    compiled = action(*conditions, params=params)
    of = case()
    for count, quota in ((CHAINS_MAX, CHAINS_MAX), (-1, CHAINS_MAX), (0, -1), (100, 200), (-1, -1)):
        expected = [number for number in range(CHAINS_MAX // 2) if number < max(count, quota)]
        assert expected == matching_rules(compiled, of.with_params({"count": count, "quota_": quota}))
    assert ["too-complex"] == codes(*conditions[:-1], "params.count in [1, 2, 3]", params=params)


def test_every_slot_is_read(action: Action, case: MakeCase, codes: Codes) -> None:
    """SLOTS_MAX different values in one action's conditions are each compared by themselves; one more is refused."""
    names = [f"p{number}" for number in range(SLOTS_MAX + 1)]
    params = {"type": "object", "required": names, "properties": {name: {"type": "integer"} for name in names}}
    conditions = [f"params.{name} == 1" for name in names]
    compiled = action(*conditions[:-1], params=params)
    assert list(range(SLOTS_MAX)) == matching_rules(compiled, case().with_params(dict.fromkeys(names, 1)))
    for slot in (0, 63, 64, SLOTS_MAX - 1):
        assert [slot] == matching_rules(compiled, case().with_params({name: int(name == names[slot]) for name in names}))
    assert ["too-complex"] == codes(*conditions, params=params)


@pytest.mark.parametrize("count", [64, 65, SLOTS_MAX, SLOTS_MAX + 1])
def test_guards_are_slots(action: Action, case: MakeCase, codes: Codes, count: int) -> None:
    """Guards count as values; within the limit each decides its own rule."""
    conditions = [f"params.count * 2 > {2 * number}" for number in range(count)]
    if count > SLOTS_MAX:
        assert ["too-complex"] == codes(*conditions)
    else:
        assert list(range(50)) == matching_rules(action(*conditions), case({"count": 50}))


@pytest.mark.parametrize("count", [CONJUNCTIONS_MAX, CONJUNCTIONS_MAX + 1])
def test_alternatives_of_one_condition(outcome: Outcome, count: int) -> None:
    """A condition with too many alternatives to be lowered becomes one guard with the same verdict."""
    disjunction = " || ".join(f"params.count == {number}" for number in range(count))
    members = f"params.count in [{', '.join(map(str, range(count)))}]"
    for condition in (disjunction, members):
        assert outcome(condition, {"count": count - 1}) is True
        assert outcome(condition, {"count": count}) is False
        assert outcome(f"!({condition})", {"count": count}) is True
        assert outcome(f"!({condition})", {"count": 0}) is False


@pytest.mark.parametrize("count", [CONDITIONS_PER_CONJUNCTION_MAX, CONDITIONS_PER_CONJUNCTION_MAX + 1])
def test_length_of_one_conjunction(outcome: Outcome, count: int) -> None:
    """A condition with too many parts for one conjunction becomes one guard with the same verdict."""
    condition = " && ".join(f"params.count != {number}" for number in range(count))
    assert outcome(condition, {"count": -1}) is True
    for number in (0, count - 1):
        assert outcome(condition, {"count": number}) is False
        assert outcome(f"!({condition})", {"count": number}) is True


def test_length_of_a_condition(codes: Codes, outcome: Outcome) -> None:
    """A condition of CONDITION_LENGTH_MAX characters is decided; one more is refused."""
    condition = "params.count == 3".ljust(CONDITION_LENGTH_MAX)
    assert outcome(condition) is True
    assert ["out-of-range"] == codes(condition + " ")


def test_macros_of_a_condition(codes: Codes, outcome: Outcome) -> None:
    """COMPREHENSIONS_MAX macros in a condition are decided; one more is refused."""
    macro = "params.tags.exists(t, t == 'a')"
    assert outcome(f"has(params.tags) && {' && '.join([macro] * COMPREHENSIONS_MAX)}", {"tags": ["b", "a"]}) is True
    assert ["too-complex"] == codes(f"has(params.tags) && {' && '.join([macro] * (COMPREHENSIONS_MAX + 1))}")


def many_actions(actions: int, rules_per_action: int) -> dict[str, Any]:
    """A document with rules over many actions: rule N of each holds for counts above N."""
    params = {"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}}
    rules = [
        {"id": f"r{action}.{rule}", "action": f"act.a{action}", "priority": rule + 1, "when": f"params.count > {rule}", "effect": "approve"}
        for action in range(actions)
        for rule in range(rules_per_action)
    ]
    declared = {f"act.a{action}": {"params": params} for action in range(actions)}
    return {"gavel": "v1", "rule_set": "many", "version": 1, "actions": declared, "rules": rules}


def compiled_many(actions: int, rules_per_action: int) -> CompiledRuleSet:
    """The same, compiled."""
    return compile_rule_set(json.dumps(many_actions(actions, rules_per_action)))


@pytest.mark.long
def test_a_thousand_rules_over_many_actions(case: MakeCase) -> None:
    """With 1,000 rules over 100 actions, each action matches only its own rules."""
    rule_set = compiled_many(100, 10)
    of = case().with_params({"count": 4})
    for name, compiled in rule_set.actions.items():
        verdict = compiled.evaluate(of, cross_check=True)
        assert verdict.disagreement is None
        assert [f"r{name.removeprefix('act.a')}.{rule}" for rule in (3, 2, 1, 0)] == [rule.id for rule in verdict.matches]


@pytest.mark.long
@pytest.mark.parametrize(
    ("actions", "rules_per_action", "code"),
    [(ACTIONS_MAX, 1, ""), (ACTIONS_MAX + 1, 1, "out-of-range"), (4, RULES_MAX // 4, ""), (3, (RULES_MAX + 1) // 3, "out-of-range")],
)
def test_size_of_a_rule_set(refusals: Callable[[str], list[tuple[int, int, str]]], actions: int, rules_per_action: int, code: str) -> None:
    """ACTIONS_MAX actions and RULES_MAX rules compile; one more of either is refused."""
    actual = {of for _, _, of in refusals(json.dumps(many_actions(actions, rules_per_action)))}
    assert code in actual if code else actual == set()


def test_facts_of_an_action(codes: Codes, outcome: Outcome) -> None:
    """FACTS_PER_ACTION_MAX declared facts can each be read; one more is refused."""
    facts = {f"f{number}": {"key": f"k.f{number}", "type": "integer", "max_age_ms": 1000} for number in range(FACTS_PER_ACTION_MAX + 1)}
    condition = f"facts.f{FACTS_PER_ACTION_MAX - 1} == 7"
    assert ["out-of-range"] == codes(condition, facts=facts)
    facts.popitem()
    assert [] == codes(condition, facts=facts)


def test_length_of_an_expression_with_its_variables(document: Callable[..., dict[str, Any]], refusals: Callable[..., list[Any]]) -> None:
    """EXPANDED_LENGTH_MAX characters with expanded variables compile; one more is refused."""
    for extra, expected in ((0, []), (1, ["too-complex"])):
        data = document(["half && half"])
        # Each use stands in parentheses: twice two of them, and " && " in between.
        data["variables"] = {"half": "params.count == 3".ljust((EXPANDED_LENGTH_MAX - 8) // 2 + extra)}
        assert expected == [code for _, _, code in refusals(json.dumps(data))]
