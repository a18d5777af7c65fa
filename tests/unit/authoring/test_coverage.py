"""Coverage says what the cases tried: which rules decided, and which parts of conditions came out both ways."""

from __future__ import annotations

from typing import Any

from gavel_rules.authoring.coverage import BranchCoverage, Coverage, Share
from gavel_rules.authoring.suite import read_suite
from gavel_rules.authoring.testing import run_cases

from tests.unit.authoring.test_runner import rule_set, suite
from tests.unit.core.driver import RULES


def covered(*cases: dict[str, Any], **changes: Any) -> Coverage:
    """What these cases cover of the rule set."""
    rules = rule_set(**changes)
    coverage = Coverage(rules)
    coverage.add(run_cases(read_suite(suite(*cases)), rules))
    return coverage


def test_rules_and_branches() -> None:
    """A rule that matched beneath another one has not decided; each part of its condition is counted by its outcomes."""
    coverage = covered({}, {"facts": {"status": "cancelled"}}, {"facts": {"score": 0.95}}, {"facts": {"score": 0.5}})
    cancelled, suspicious, delivered = coverage.rules()
    assert ("cancelled", 1, 1) == (cancelled.rule_id, cancelled.matched, cancelled.decided)
    assert ("suspicious", 1, 1) == (suspicious.rule_id, suspicious.matched, suspicious.decided)
    assert ("delivered", 3, 2) == (delivered.rule_id, delivered.matched, delivered.decided)
    assert (BranchCoverage("has(facts.score)", 2, 2), BranchCoverage("facts.score > 0.9", 1, 1)) == suspicious.branches
    assert (Share(3, 3), Share(8, 8)) == (coverage.of_rules(), coverage.of_branches())


def test_cases_that_never_reach_the_rules() -> None:
    """A refusal before the rules covers nothing, whatever their conditions would have said."""
    coverage = covered({"facts": {"status": {"age_ms": 60_001}}}, {"params": {"amount": -1}}, {"earlier": [{}]}, {"cites": []})
    assert (0, 0) == (coverage.of_rules().seen, coverage.of_branches().seen)
    assert (0, 0) == (coverage.of_rules().percent, coverage.of_branches().percent)


def test_refusals_by_the_rules() -> None:
    """That no rule matched is something that the rules were asked."""
    coverage = covered({"facts": {"status": "lost"}})
    assert (Share(0, 3), Share(3, 8)) == (coverage.of_rules(), coverage.of_branches())


def test_percent_is_rounded_down() -> None:
    """100 % is all of them."""
    assert (99, 100, 100) == (Share(999, 1000).percent, Share(7, 7).percent, Share(0, 0).percent)


def test_branches_of_logic() -> None:
    """Branches are the operands of && || and !, however deep, each once; what has no logic is one branch."""
    condition = '!(params.amount > 5 && (facts.status == "a" || !("note" in ["x"]))) || params.amount > 5 || true'
    (rule,) = covered({}, rules=[{"id": "one", "when": condition, "effect": "approve"}]).rules()
    assert ["params.amount > 5", 'facts.status == "a"', '"note" in ["x"]'] == [branch.expression for branch in rule.branches]
    whole = "(params.amount > 5 ? facts.status : 'x') == 'delivered'"
    (rule,) = covered({}, rules=[{"id": "one", "when": whole, "effect": "approve"}]).rules()
    assert (BranchCoverage(whole, 1, 0),) == rule.branches


def test_every_branch_is_explained() -> None:
    """Every branch of the sample's rules has its outcome among the explained terms."""
    rules = rule_set()
    (result,) = run_cases(read_suite(suite({"facts": {"score": 0.5}})), rules)
    coverage = Coverage(rules)
    coverage.add([result])
    assert len(RULES) == len(coverage.rules())
    assert coverage.of_branches().seen * 2 == coverage.of_branches().total
