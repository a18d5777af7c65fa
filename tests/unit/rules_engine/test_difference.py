"""What two versions of a rule set decide differently, and the cases that show it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from gavel_rules.authoring.difference import Decided, difference
from gavel_rules.authoring.shipped import shipped_rule_set
from gavel_rules.language.ruleset import compile_rule_set
from gavel_rules.language.source import Messages, Source

from tests.unit.rules_engine.conftest import rule_set_data

_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"|\b\d+(?:\.\d+)?\b')


def document(*rules: tuple[str, str, str], **changes: Any) -> dict[str, Any]:
    """A document of rules of these (id, condition, effect), highest first."""
    data = rule_set_data([condition for _, condition, _ in rules], **changes)
    for rule, (rule_id, _, effect) in zip(data["rules"], rules, strict=True):
        rule.update(id=rule_id, effect=effect)
        if effect != "approve":
            rule["reason_code"] = "BECAUSE"
    return data


def compared(before: dict[str, Any], after: dict[str, Any]) -> Any:
    """The difference of two documents."""
    return difference(compile_rule_set(json.dumps(before)), compile_rule_set(json.dumps(after)))


BIG = ("big", "params.amount > 500", "review")
REST = ("rest", "true", "approve")


def test_nothing_differs() -> None:
    """Another version number, another description and another layout of a condition make no difference."""
    before = document(BIG, REST)
    after = {**document(("big", "( params.amount>500 )  // much", "review"), REST), "version": 2, "description": "Newer."}
    assert not compared(before, after)


def test_a_threshold() -> None:
    """A changed threshold is named with both values, and a case between the two shows it."""
    found = compared(document(BIG, REST), document(("big", "params.amount > 600", "review"), REST))
    assert (found.added, found.removed, found.changed) == ((), (), ("big",))
    assert ("rules.big.threshold", 500, 600) in found.edits
    (case,) = found.cases
    assert 500 < case.params["amount"] <= 600
    assert (case.before, case.after) == (Decided("NEEDS_HUMAN_REVIEW", "BECAUSE", "big"), Decided("APPROVED", "", "rest"))


def test_a_threshold_of_the_context() -> None:
    """Where conditions read more than params and facts, the case says what that is."""
    found = compared(
        document(("sure", "proposal.risk < 0.5 && now.getHours() < 12", "approve")),
        document(("sure", "proposal.risk < 0.4 && now.getHours() < 12", "approve")),
    )
    context = found.cases[0].context
    assert 0.4 <= context["proposal.risk"] < 0.5
    assert context["now"].endswith("Z")


def test_rules_that_come_and_go() -> None:
    """An added and a removed rule are named, each with a case that it decides."""
    found = compared(document(BIG, REST), document(("urgent", "params.urgent", "reject"), REST))
    assert (found.added, found.removed, found.changed) == (("urgent",), ("big",), ())
    assert Decided("REJECTED", "BECAUSE", "urgent") in {case.after for case in found.cases}
    assert Decided("NEEDS_HUMAN_REVIEW", "BECAUSE", "big") in {case.before for case in found.cases}


def test_effects_and_priorities() -> None:
    """Another effect, and another order of rules that overlap, change decisions without any change of a condition."""
    found = compared(document(BIG, REST), document(("big", BIG[1], "reject"), REST))
    assert ("rules.big.effect", "review", "reject") in found.edits
    assert [case.after.outcome for case in found.cases] == ["REJECTED"]
    before = document(("urgent", "params.urgent", "reject"), BIG, REST)
    after = json.loads(json.dumps(before))
    after["rules"][0]["priority"], after["rules"][1]["priority"] = after["rules"][1]["priority"], after["rules"][0]["priority"]
    found = compared(before, after)
    assert found.changed == ("urgent", "big")
    assert {(case.before.rule_id, case.after.rule_id) for case in found.cases} == {("urgent", "big")}
    assert found.cases[0].params["urgent"] is True


def test_declarations() -> None:
    """Changed declarations are listed by their place; what the rules can see of them is shown with a case."""
    before, after = document(REST), document(REST)
    action = after["actions"]["thing.do"] = json.loads(json.dumps(after["actions"]["thing.do"]))
    action["params"]["properties"]["amount"]["maximum"] = 1000
    action["facts"]["status"]["max_age_ms"] = 1
    action["facts"]["score"]["optional"] = False
    found = compared(before, after)
    assert found.edits == (
        ("actions.thing.do.facts.score.optional", True, False),
        ("actions.thing.do.facts.status.max_age_ms", 60_000, 1),
        ("actions.thing.do.params.properties.amount.maximum", None, 1000),
    )
    reasons = {case.after.reason_code for case in found.cases}
    assert "NEED_MORE_FACTS" in reasons


def test_a_fact_under_another_name() -> None:
    """Evidence is the same where its key is, whatever a version calls it."""
    before, after = document(("open", 'facts.status == "open"', "approve")), document(("open", 'facts.state == "open"', "approve"))
    facts = after["actions"]["thing.do"]["facts"] = dict(after["actions"]["thing.do"]["facts"])
    facts["state"] = facts.pop("status")
    found = compared(before, after)
    assert found.changed == ("open",)
    assert found.cases == ()


def test_actions_that_come_and_go() -> None:
    """An action that only one version governs is decided by nobody in the other."""
    before = document(REST)
    after = json.loads(json.dumps(before).replace("thing.do", "thing.undo"))
    found = compared(before, after)
    assert {("thing.do", case.after.reason_code) for case in found.cases if case.action == "thing.do"} == {("thing.do", "NO_ACTIVE_POLICY")}
    assert {case.before.reason_code for case in found.cases if case.action == "thing.undo"} == {"NO_ACTIVE_POLICY"}


def mutations(name: str) -> Iterator[Any]:
    """Yield every shipped document with one literal of one condition changed a little: the rule's id, and both texts."""
    text = shipped_rule_set(name)
    data: Any = Source(text, Messages()).data
    for index, rule in enumerate(data["rules"]):
        for literal in _LITERAL.finditer(rule["when"]):
            mutant = json.loads(json.dumps({**data, "version": data["version"] + 1}))
            mutant["rules"][index]["when"] = rule["when"][: literal.start()] + _mutated(literal.group()) + rule["when"][literal.end() :]
            yield pytest.param(text, json.dumps(mutant), rule["id"], id=f"{name}-{rule['id']}-{literal.group()}")


def _mutated(literal: str) -> str:
    if literal.startswith('"'):
        return f'{literal[:-2]}x"' if len(literal) > 2 else '"x"'
    return str(int(literal) + 1) if literal.isdigit() else repr(round(float(literal) * 1.01, 6))


@pytest.mark.parametrize(("before", "after", "rule_id"), list(mutations("refunds")))
def test_every_changed_literal_shows(before: str, after: str, rule_id: str) -> None:
    """Whatever literal of a shipped condition is changed, a case is found that tells the versions apart, with both engines agreeing."""
    older, newer = compile_rule_set(before), compile_rule_set(after)
    found = difference(older, newer)
    assert found.changed == (rule_id,)
    assert rule_id in {found.cases[0].before.rule_id, found.cases[0].after.rule_id}
    assert "ENGINE_DISAGREEMENT" not in {decided.reason_code for case in found.cases for decided in (case.before, case.after)}
