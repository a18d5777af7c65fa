"""Warnings about rules that never decide and approvals that overrule refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel_rules.authoring.lint import LINT_RULES_MAX, lint_rule_set
from gavel_rules.language.rule_set import compile_rule_set

from tests.unit.rules.conftest import ACTION, rule_set_data


def warnings(*rules: tuple[str, str], **changes: Any) -> list[tuple[str, str]]:
    """Return the (code, message) of every warning about rules of these (condition, effect), highest first."""
    data = rule_set_data([condition for condition, _ in rules], **changes)
    for rule, (_, effect) in zip(data["rules"], rules, strict=True):
        rule["effect"] = effect
        if effect != "approve":
            rule["reason_code"] = "BECAUSE"
    return [(warning.code, warning.message) for warning in lint_rule_set(compile_rule_set(json.dumps(data)))]


def test_rules_that_never_decide() -> None:
    """A warning names the higher rules that leave a rule no case, or says that no case fulfils its condition."""
    actual = warnings(
        ("params.amount > 100", "reject"),
        ("params.urgent", "review"),
        ("params.amount > 200 && params.name == 'x'", "approve"),
        ("params.amount > 3 && params.amount < 2", "approve"),
        ("!params.urgent || params.amount > 100", "approve"),
        ("params.name == 'a'", "approve"),
    )
    assert actual == [
        ("unreachable-rule", "r2 never decides: r0 decides every case that it matches"),
        ("unreachable-rule", "r3 never matches: no case fulfils its condition"),
        ("unreachable-rule", "r5 never decides: r1 or r4 decides every case that it matches"),
    ]


def test_stricter_rule_above_gives_no_warning() -> None:
    """A refusal or a review above an approval gives no warning."""
    assert warnings(("params.amount > 100", "reject"), ("params.urgent", "review"), ("params.amount < 500", "approve")) == []


def test_an_approval_above_a_refusal() -> None:
    """The warning about an approval that overrules lower rules contains a case, with the attributes that matter."""
    actual = warnings(
        ("proposal.risk < 0.2", "approve"),
        ("params.amount > 100 && has(facts.score) && facts.score > 0.9", "reject"),
        ("params.urgent", "review"),
    )
    assert len(actual) == 1
    code, message = actual[0]
    assert code == "overlapping-rules"
    assert message.startswith("r0 approves a case that the lower rule r1 would refuse: params {")
    assert '"amount": 100.01' in message
    assert '"score": 0.91' in message
    assert "proposal.risk 0.19" in message
    assert message.endswith("; the same holds for r2")


def test_incomplete_analysis() -> None:
    """A warning names an action whose schema no params fit, and one with too many rules."""
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}, "minProperties": 5}
    assert [code for code, _ in warnings(("params.a == 'x'", "approve"), params=schema)] == ["not-analysed"]
    many = [(f"params.count == {number}", "approve") for number in range(LINT_RULES_MAX + 1)]
    assert [code for code, _ in warnings(*many)] == ["not-analysed"]


def test_a_rule_that_could_not_be_analysed() -> None:
    """A rule about which neither a case nor a proof is found gets a warning, and does not silence the analysis of the others."""
    span = {"key": "order.age", "type": "string", "max_length": 20, "max_age_ms": 1_000}
    actual = warnings(
        ('duration(facts.age) > duration("1h")', "reject"),
        ('duration(facts.age) > duration("2h")', "reject"),
        ("params.amount > 100", "reject"),
        ("params.amount > 200", "approve"),
        ("params.urgent", "approve"),
        facts={"age": span},
    )
    assert [
        ("not-analysed", "no case was found that rule r1 decides; it may still decide some"),
        ("unreachable-rule", "r3 never decides: r2 decides every case that it matches"),
    ] == actual


COUNTED = """
gavel: v2
rule_set: counted
version: 1
actions:
  mail.send: {params: {type: object, required: [cost], properties: {cost: {type: number}}}}
counters:
  mails: {of: approvals, action: mail.send, window_ms: 60000, entries_max: 500}
  people: {of: approvals, action: mail.send, distinct: subject, window_ms: 60000, distinct_max: 50}
  cost: {of: approvals, action: mail.send, sum: params.cost, window_ms: 60000}
rules:
  - {id: over, action: mail.send, priority: 2, when: CONDITION, effect: reject, reason_code: OVER}
  - {id: all, action: mail.send, priority: 1, when: 'true', effect: approve}
"""


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("history.mails() >= 500", []),
        ("history.mails() > 500", ["over never matches: no case fulfils its condition; history.mails gives 0 to 500"]),
        ("history.mails() < 0", ["over never matches: no case fulfils its condition; history.mails gives 0 to 500"]),
        ("history.people() > 50", ["over never matches: no case fulfils its condition; history.people gives 0 to 50"]),
        ("history.cost() < 0.0", []),
        (
            "history.cost() > 1e14",
            ["over never matches: no case fulfils its condition; history.cost gives -90071992547409 to 90071992547409"],
        ),
    ],
)
def test_thresholds_that_no_counter_reaches(condition: str, expected: list[str]) -> None:
    """A threshold beyond the numbers that a counter can give is never met; a sum may be negative."""
    compiled = compile_rule_set(COUNTED.replace("CONDITION", condition))
    assert expected == [one.message for one in lint_rule_set(compiled) if one.code == "unreachable-rule"]


def test_places() -> None:
    """A warning is placed at the id of its rule."""
    data = rule_set_data(["params.amount > 1", "params.amount > 2"])
    text = json.dumps(data, indent=1)
    (warning,) = lint_rule_set(compile_rule_set(text))
    line = text.splitlines()[warning.line - 1]
    assert line[warning.column - 1 :].startswith('"r1"')
    assert ACTION in text


def test_merge_keys() -> None:
    """A merge key in a schema compiles, as a log may hold it, and is noted with its place; a quoted one is a name like others."""
    text = json.dumps(rule_set_data(["true"], params={"type": "object", "properties": {"<<": {"type": "string"}}}), indent=1)
    assert [] == [one for one in lint_rule_set(compile_rule_set(text)) if one.code == "non-string-key"]
    merged = "# YAML\n" + text.replace('"<<"', "<<")
    (warning,) = [one for one in lint_rule_set(compile_rule_set(merged)) if one.code == "non-string-key"]
    assert merged.splitlines()[warning.line - 1][warning.column - 1 :].startswith("<<")
