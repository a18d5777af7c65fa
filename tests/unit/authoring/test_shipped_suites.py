"""The suites that ship: each passes, and together with its rule set shows every rule decide and every condition both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from gavel_rules.authoring.analysis import analyse
from gavel_rules.authoring.coverage import Coverage
from gavel_rules.authoring.shipped import shipped_names
from gavel_rules.authoring.suite import read_suite
from gavel_rules.authoring.testing import run_cases
from gavel_rules.language.ruleset import compile_rule_set

SETS: Final = Path(__file__).parents[3] / "rules/sets"


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_suite(name: str) -> None:
    """A shipped set gives no warning and decides its cases as they say; each rule decides one, each condition comes out both ways."""
    rule_set = compile_rule_set((SETS / f"{name}.yaml").read_text(encoding="utf-8"))
    results = list(run_cases(read_suite((SETS / f"{name}_test.yaml").read_text(encoding="utf-8")), rule_set))
    assert [] == [(result.case.name, result.differences) for result in results if not result.passed]
    coverage = Coverage(rule_set)
    coverage.add(results)
    assert [] == [rule.rule_id for rule in coverage.rules() if not rule.decided]
    assert [] == [(rule.rule_id, part.expression) for rule in coverage.rules() for part in rule.branches if not (part.true and part.false)]
    assert () == tuple(rule_set.warnings) + tuple(analyse(rule_set))
