"""Generated histories of counters whose versions count few proposals differently."""

from __future__ import annotations

import pytest
from gavel_rules.authoring.suites.histories.compare import HistoryChange, compare_histories
from gavel_rules.language.rule_set import compile_rule_set

RULES = """\
gavel: v2
rule_set: payments
version: 1
constants: {large: 100, kinds: [a, b]}
variables: {group: params.customer}
actions:
  payment.send:
    params:
      type: object
      required: [amount, customer, kind]
      properties: {amount: {type: integer, minimum: 0}, customer: {type: string, maxLength: 20}, kind: {enum: [a, b, c]}}
counters:
  sent:
    of: approvals
    action: payment.send
    by: group
    where: params.amount > constants.large && params.kind in constants.kinds
    window_ms: 60000
  failures: {of: executions, action: payment.send, by: params.customer, where: 'execution.status != "SUCCESS"', window_ms: 60000}
rules:
  - {id: many, action: payment.send, priority: 3, when: history.sent(params.customer) >= 2, effect: reject, reason_code: MANY}
  - {id: failing, action: payment.send, priority: 2, when: history.failures(params.customer) >= 2, effect: reject, reason_code: FAILING}
  - {id: rest, action: payment.send, priority: 1, when: 'true', effect: approve}
"""


def histories(old: str, new: str) -> tuple[HistoryChange, ...]:
    """Return the histories that tell the rule set from a changed version, and that show its edit."""
    assert old in RULES
    diff = compare_histories(compile_rule_set(RULES), compile_rule_set(RULES.replace(old, new)))
    assert () == diff.not_analysed
    return diff.changes


@pytest.mark.parametrize(
    ("old", "new", "kinds", "least", "most"),
    [
        pytest.param("> constants.large", "> 500", "ab", 101, 500, id="a greater threshold"),
        pytest.param("> constants.large", "> 50", "ab", 51, 100, id="a smaller threshold"),
        pytest.param("> constants.large", ">= constants.large", "ab", 100, 100, id="a threshold that counts"),
        pytest.param("large: 100", "large: 900", "ab", 101, 900, id="a constant"),
        pytest.param("in constants.kinds", 'in ["a"]', "b", 101, 1e9, id="a shorter list"),
        pytest.param("kinds: [a, b]", "kinds: [a, b, c]", "c", 101, 1e9, id="a constant list"),
        pytest.param("group: params.customer", "group: params.kind", "ab", 101, 1e9, id="a variable"),
    ],
)
def test_edited_conditions(old: str, new: str, kinds: str, least: int, most: int) -> None:
    """The earlier proposals have params with which only one version counts them, between the thresholds of both."""
    (change,) = histories(old, new)
    assert {"MANY", ""} == {change.before.reason_code, change.after.reason_code}
    assert change.earlier is not None
    assert 2 == change.earlier.proposals
    params = change.earlier.params
    assert str(params["kind"]) in kinds
    assert isinstance(params["amount"], int)
    assert least <= params["amount"] <= most


@pytest.mark.parametrize(
    ("condition", "statuses"),
    [
        ('execution.status == "FAILED"', {"ABORTED"}),
        ('execution.status in ["ABORTED"]', {"FAILED"}),
        ('execution.status in ["FAILED", "TIMEOUT", "PARTIAL"]', {"ABORTED"}),
        ('!(execution.status in ["SUCCESS", "TIMEOUT"])', {"TIMEOUT"}),
    ],
)
def test_edited_statuses(condition: str, statuses: set[str]) -> None:
    """The earlier proposals have reports that only one version counts; a failed one holds its conflict key, so others need another."""
    changes = histories('execution.status != "SUCCESS"', condition)
    assert statuses == {change.earlier.status for change in changes if change.earlier is not None}


@pytest.mark.parametrize("source", ["approvals", "rejections"])
def test_an_edited_source(source: str) -> None:
    """A proposal with the conflict key of an open decision is rejected: a counter of proposals counts it, and one of approvals does not."""
    text = RULES[: RULES.index("  sent:")] + "  tried: {of: proposals, action: payment.send, window_ms: 60000}\nrules:\n"
    text += "  - {id: many, action: payment.send, priority: 3, when: history.tried() >= 5, effect: reject, reason_code: MANY}\n"
    text = (text + RULES[RULES.index("  - {id: rest") :]).replace("    params:\n", "    conflict_key: params.customer\n    params:\n")
    diff = compare_histories(compile_rule_set(text), compile_rule_set(text.replace("of: proposals", f"of: {source}")))
    assert () == diff.not_analysed
    assert [("MANY", "")] == [(change.before.reason_code, change.after.reason_code) for change in diff.changes]
