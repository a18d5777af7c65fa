"""Warnings about how the rules of an action stand to each other."""

from __future__ import annotations

import json
from typing import Any

from gavel_rules.authoring.analysis import RULES_ANALYSED_MAX, analyse
from gavel_rules.language.ruleset import compile_rule_set

from tests.unit.rules_engine.conftest import ACTION, rule_set_data


def warnings(*rules: tuple[str, str], **changes: Any) -> list[tuple[str, str]]:
    """The (code, message) of every warning about rules of these (condition, effect), highest first."""
    data = rule_set_data([condition for condition, _ in rules], **changes)
    for rule, (_, effect) in zip(data["rules"], rules, strict=True):
        rule["effect"] = effect
        if effect != "approve":
            rule["reason_code"] = "BECAUSE"
    return [(warning.code, warning.message) for warning in analyse(compile_rule_set(json.dumps(data)))]


def test_rules_that_never_decide() -> None:
    """A rule that those above it leave nothing is named with them, one that contradicts itself by itself."""
    found = warnings(
        ("params.amount > 100", "reject"),
        ("params.urgent", "review"),
        ("params.amount > 200 && params.name == 'x'", "approve"),
        ("params.amount > 3 && params.amount < 2", "approve"),
        ("!params.urgent || params.amount > 100", "approve"),
        ("params.name == 'a'", "approve"),
    )
    assert found == [
        ("unreachable-rule", "r2 never decides: wherever it matches, r0 decides before it"),
        ("unreachable-rule", "r3 never matches: no case fulfils its condition"),
        ("unreachable-rule", "r5 never decides: wherever it matches, r1 or r4 decides before it"),
    ]


def test_the_stricter_rule_above_is_fine() -> None:
    """Rules that refuse or ask a person above those that approve are what priorities are for."""
    assert warnings(("params.amount > 100", "reject"), ("params.urgent", "review"), ("params.amount < 500", "approve")) == []


def test_an_approval_above_a_refusal() -> None:
    """An approval that overrules lower rules is shown with a case, which says all that was chosen on purpose."""
    found = warnings(
        ("proposal.risk < 0.2", "approve"),
        ("params.amount > 100 && has(facts.score) && facts.score > 0.9", "reject"),
        ("params.urgent", "review"),
    )
    assert len(found) == 1
    code, message = found[0]
    assert code == "overlapping-rules"
    assert message.startswith("r0 approves what r1, which is lower, would refuse: params {")
    assert '"amount": 100.01' in message
    assert '"score": 0.91' in message
    assert "proposal.risk 0.19" in message
    assert message.endswith(", and so for r2")


def test_what_cannot_be_analysed_is_said() -> None:
    """An action without params that fit, and one with too many rules, are named as not analysed in full."""
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}, "minProperties": 5}
    assert [code for code, _ in warnings(("params.a == 'x'", "approve"), params=schema)] == ["not-analysed"]
    many = [(f"params.count == {number}", "approve") for number in range(RULES_ANALYSED_MAX + 1)]
    assert [code for code, _ in warnings(*many)] == ["not-analysed"]


def test_places() -> None:
    """A warning stands at the id of its rule."""
    data = rule_set_data(["params.amount > 1", "params.amount > 2"])
    text = json.dumps(data, indent=1)
    (warning,) = analyse(compile_rule_set(text))
    line = text.splitlines()[warning.line - 1]
    assert line[warning.column - 1 :].startswith('"r1"')
    assert ACTION in text
