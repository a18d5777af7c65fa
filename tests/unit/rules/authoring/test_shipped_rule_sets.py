"""Each shipped suite passes and covers its rule set."""

from __future__ import annotations

from typing import Final

import pytest
from gavel_rules.authoring.lint import lint_rule_set
from gavel_rules.authoring.shipped_rule_sets import shipped_names
from gavel_rules.authoring.suites.coverage import Coverage
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.runner import run_cases
from gavel_rules.language.rule_set import compile_rule_set

from tests.support.paths import ROOT

SETS: Final = ROOT / "rules/sets"


@pytest.mark.long
@pytest.mark.parametrize("name", shipped_names())
def test_shipped_suite(name: str) -> None:
    """A shipped rule set has no warning, its cases pass, each rule, branch and threshold is covered."""
    rule_set = compile_rule_set((SETS / f"{name}.yaml").read_text(encoding="utf-8"))
    results = list(run_cases(read_suite((SETS / f"{name}_test.yaml").read_text(encoding="utf-8")), rule_set))
    assert [] == [(result.case.name, result.differences) for result in results if not result.passed]
    coverage = Coverage(rule_set)
    coverage.add(results)
    assert [] == [rule.rule_id for rule in coverage.rules() if not rule.decided]
    assert [] == [(rule.rule_id, part.expression) for rule in coverage.rules() for part in rule.branches if not (part.true and part.false)]
    assert [] == [(rule.rule_id, one.expression, one.missing()) for rule in coverage.rules() for one in rule.thresholds if one.missing()]
    assert () == tuple(rule_set.warnings) + tuple(lint_rule_set(rule_set))
