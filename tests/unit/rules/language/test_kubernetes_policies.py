"""Policies of the kind of Gatekeeper's public library, written the natural way (tests/data/kubernetes)."""

from __future__ import annotations

import pytest
from gavel_rules.authoring.decision_cost import find_costly_actions
from gavel_rules.authoring.suites.coverage import Coverage
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.runner import run_cases
from gavel_rules.language.rule_set import compile_rule_set

from tests.support.paths import ROOT

POLICIES = ROOT / "tests/data/kubernetes"
NAMES = sorted(path.stem for path in POLICIES.glob("*.yaml") if not path.stem.endswith("_test"))


def test_there_are_a_dozen() -> None:
    """A dozen policies are tested, each with a suite."""
    assert 12 <= len(NAMES)
    assert NAMES == sorted(path.stem.removesuffix("_test") for path in POLICIES.glob("*_test.yaml"))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_policy(name: str) -> None:
    """A policy may be deployed, its cases pass on both engines, each rule decides one, and each branch comes out true and false."""
    rule_set = compile_rule_set((POLICIES / f"{name}.yaml").read_text(encoding="utf-8"))
    assert () == tuple(find_costly_actions(rule_set)) + tuple(rule_set.warnings)
    results = list(run_cases(read_suite((POLICIES / f"{name}_test.yaml").read_text(encoding="utf-8")), rule_set))
    assert [] == [(result.case.name, result.differences) for result in results if not result.passed]
    coverage = Coverage(rule_set)
    coverage.add(results)
    assert [] == [rule.rule_id for rule in coverage.rules() if not rule.decided]
    assert [] == [(rule.rule_id, part.expression) for rule in coverage.rules() for part in rule.branches if not (part.true and part.false)]
