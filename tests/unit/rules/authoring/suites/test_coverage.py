"""Coverage counts the rules that decided and the outcomes of the branches of conditions."""

from __future__ import annotations

import json
from typing import Any

from gavel_rules.authoring.suites.coverage import BranchCoverage, Coverage, Ratio, ThresholdCoverage
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.runner import run_cases
from gavel_server.cli.rendering.suite_report import coverage_lines

from tests.support.driver import RULES, compile_cached
from tests.unit.rules.authoring.suites.test_runner import rule_set, suite


def coverage_of(*cases: dict[str, Any], **changes: Any) -> Coverage:
    """Return what these cases cover of the rule set."""
    rules = rule_set(**changes)
    coverage = Coverage(rules)
    coverage.add(run_cases(read_suite(suite(*cases)), rules))
    return coverage


def test_rules_and_branches() -> None:
    """A rule that matched below the deciding one is not covered; each branch counts its outcomes."""
    coverage = coverage_of({}, {"facts": {"status": "cancelled"}}, {"facts": {"score": 0.95}}, {"facts": {"score": 0.5}})
    cancelled, suspect, delivered = coverage.rules()
    assert ("cancelled", 1, 1) == (cancelled.rule_id, cancelled.matched, cancelled.decided)
    assert ("suspicious", 1, 1) == (suspect.rule_id, suspect.matched, suspect.decided)
    assert ("delivered", 3, 2) == (delivered.rule_id, delivered.matched, delivered.decided)
    assert (BranchCoverage("has(facts.score)", 2, 2), BranchCoverage("facts.score > 0.9", 1, 1)) == suspect.branches
    assert (Ratio(3, 3), Ratio(8, 8)) == (coverage.rule_ratio(), coverage.branch_ratio())


def test_cases_that_never_reach_the_rules() -> None:
    """A rejection before the rules covers nothing."""
    coverage = coverage_of({"facts": {"status": {"age_ms": 60_001}}}, {"params": {"amount": -1}}, {"earlier": [{}]}, {"cites": []})
    assert (0, 0) == (coverage.rule_ratio().covered, coverage.branch_ratio().covered)
    assert (0, 0) == (coverage.rule_ratio().percent, coverage.branch_ratio().percent)


def test_refusals_by_the_rules() -> None:
    """A rejection because no rule matched covers branches."""
    coverage = coverage_of({"facts": {"status": "lost"}})
    assert (Ratio(0, 3), Ratio(3, 8)) == (coverage.rule_ratio(), coverage.branch_ratio())


def test_percent_is_rounded_down() -> None:
    """100 % means all."""
    assert (99, 100, 100) == (Ratio(999, 1000).percent, Ratio(7, 7).percent, Ratio(0, 0).percent)


def test_branches_of_logic() -> None:
    """The branches are the operands of &&, || and !, at any depth, each once; a condition without them is one branch."""
    condition = '!(params.amount > 5 && (facts.status == "a" || !("note" in ["x"]))) || params.amount > 5 || true'
    (rule,) = coverage_of({}, rules=[{"id": "one", "when": condition, "effect": "approve"}]).rules()
    assert ["params.amount > 5", 'facts.status == "a"', '"note" in ["x"]'] == [branch.expression for branch in rule.branches]
    whole = "(params.amount > 5 ? facts.status : 'x') == 'delivered'"
    (rule,) = coverage_of({}, rules=[{"id": "one", "when": whole, "effect": "approve"}]).rules()
    assert (BranchCoverage(whole, 1, 0),) == rule.branches


def test_every_branch_is_explained() -> None:
    """Every branch has its outcome among the terms of the explanation."""
    rules = rule_set()
    (result,) = run_cases(read_suite(suite({"facts": {"score": 0.5}})), rules)
    coverage = Coverage(rules)
    coverage.add([result])
    assert len(RULES) == len(coverage.rules())
    assert coverage.branch_ratio().covered * 2 == coverage.branch_ratio().total


COUNTED = """
gavel: v2
rule_set: counted
version: 1
actions:
  refund.create:
    params: {type: object, required: [amount], properties: {amount: {type: integer}}}
    facts: {status: {key: order.status, type: string, max_length: 20, max_age_ms: 60000, sources: [orders-db]}}
    conflict_key: string(params.amount)
counters:
  spent: {of: approvals, action: refund.create, sum: params.amount, window_ms: 3600000}
rules:
  - id: over
    action: refund.create
    priority: 3
    when: history.spent() + params.amount > 10 && !(20 <= history.spent())
    effect: reject
    reason_code: OVER
  - {id: ok, action: refund.create, priority: 1, when: 'facts.status == "delivered"', effect: approve}
"""


def test_thresholds_of_counters() -> None:
    """A threshold of a counter counts the cases just below, at and just above it, and needs those on both sides of the change."""
    amounts = {8: "APPROVED", 9: "APPROVED", 10: "APPROVED", 12: "REJECTED"}
    cases = [{"name": str(amount), "params": {"amount": amount}, "expect": {"outcome": outcome}} for amount, outcome in amounts.items()]

    def covered(*chosen: dict[str, Any]) -> Coverage:
        data = {"gavel": "v1", "tests": "rules.yaml", "defaults": {"facts": {"status": "delivered"}}, "cases": chosen}
        rules = compile_cached(COUNTED)
        coverage = Coverage(rules)
        coverage.add(run_cases(read_suite(json.dumps(data)), rules))
        return coverage

    coverage = covered(*cases)
    after, spent = coverage.rules()[0].thresholds
    assert (ThresholdCoverage("history.spent() + params.amount", ">", 10, 1, 1, 0), ["just above"]) == (after, after.missing())
    assert (ThresholdCoverage("history.spent()", ">=", 20, 0, 0, 0), ["just below", "at"]) == (spent, spent.missing())
    assert Ratio(1, 4) == coverage.threshold_ratio()
    above = {"name": "above", "params": {"amount": 11}, "expect": {"outcome": "REJECTED"}}
    assert Ratio(2, 4) == covered(*cases, above).threshold_ratio()
    lines = list(coverage_lines("rules.yaml", coverage, with_rules=True))
    assert "      just below 1, at 1, just above 0  history.spent() + params.amount > 10" in lines
    assert "  over: history.spent() + params.amount > 10 has no case just above 10" in lines
    assert lines[0].endswith(", sides of thresholds 1 of 4 (25 %)")


def test_thresholds_of_counters_of_facts() -> None:
    """Facts that a case records move a counter of facts to, and past, its threshold; those of another group or too old do not."""
    source = "of: facts, fact: order.failed, where: value == true, by: subject, window_ms: 3600000"
    rules = compile_cached(
        COUNTED.replace("of: approvals, action: refund.create, sum: params.amount, window_ms: 3600000", source).replace(
            "history.spent() + params.amount > 10 && !(20 <= history.spent())", "history.spent(subject) >= 2"
        )
    )
    failed = {"key": "order.failed", "value": True, "source": "orders-db", "age_ms": 3_599_999}
    others = [{**failed, "value": False}, {**failed, "subject": "order/9"}, {**failed, "age_ms": 3_600_000}]
    facts = {"status": "delivered", "first": failed, **{f"other {number}": one for number, one in enumerate(others)}}
    cases = [
        {"name": "below", "facts": facts, "expect": {"outcome": "APPROVED"}},
        {"name": "at", "facts": {**facts, "second": failed}, "expect": {"outcome": "REJECTED", "reason_code": "OVER"}},
    ]
    data = {"gavel": "v1", "tests": "rules.yaml", "defaults": {"params": {"amount": 1}}, "cases": cases}
    results = list(run_cases(read_suite(json.dumps(data)), rules))
    coverage = Coverage(rules)
    coverage.add(results)
    assert all(result.passed for result in results)
    (threshold,) = coverage.rules()[0].thresholds
    assert (ThresholdCoverage("history.spent(subject)", ">=", 2, 1, 1, 0), []) == (threshold, threshold.missing())
