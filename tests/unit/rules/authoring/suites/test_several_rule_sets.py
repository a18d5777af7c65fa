"""Suites over several rule sets, which are in force together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel_rules.authoring.suites.case_bus import CaseBusError
from gavel_rules.authoring.suites.coverage import Coverage
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.runner import CaseResult, run_cases
from gavel_rules.authoring.suites.suite import Suite
from gavel_rules.language.rule_set import DocumentError

from tests.support.driver import compile_cached, document

FREEZE: dict[str, Any] = {"frozen": {"key": "company.frozen", "subject": '"company/1"', "type": "boolean", "max_age_ms": 60_000}}
FREEZE_RULES = [{"id": "freeze", "when": "facts.frozen", "effect": "reject", "reason_code": "FROZEN"}]
TEAM = compile_cached(document())
COMPANY = compile_cached(document(FREEZE, FREEZE_RULES, rule_set="company"))
CASES: list[dict[str, Any]] = [
    {"name": "thawed", "expect": {"outcome": "APPROVED", "rule_id": "delivered"}},
    {"name": "frozen", "facts": {"frozen": True}, "expect": {"outcome": "REJECTED", "reason_code": "FROZEN", "rule_id": "freeze"}},
    {
        "name": "unknown",
        "facts": {"frozen": None},
        "expect": {"outcome": "REJECTED", "hint": [{"key": "company.frozen", "subject": "company/1"}]},
    },
]


def suite(**changes: Any) -> Suite:
    """Return a suite over both rule sets."""
    defaults = {"params": {"amount": 50}, "facts": {"status": "delivered", "frozen": False}}
    return read_suite(json.dumps({"gavel": "v1", "tests": ["team.json", "company.json"], "defaults": defaults, "cases": CASES, **changes}))


def results() -> list[CaseResult]:
    """Run the cases with both rule sets in force."""
    return list(run_cases(suite(), TEAM, [COMPANY]))


def test_rule_sets_decide_together() -> None:
    """The strictest effect of all rule sets decides, each with its own facts, about the subjects that it names."""
    assert [()] * 3 == [result.differences for result in results()]
    assert {"refunds", "company"} == {one.policy_id for one in results()[0].explanations}


def test_coverage_counts_each_rule_set() -> None:
    """A rule counts in the coverage of its own rule set only."""
    covered = {}
    for rule_set in (TEAM, COMPANY):
        coverage = Coverage(rule_set)
        coverage.add(results())
        covered[rule_set.policy_id] = {rule.rule_id for rule in coverage.rules() if rule.decided}
    assert {"refunds": {"delivered"}, "company": {"freeze"}} == covered


def test_rule_sets_that_disagree_cannot_be_tested_together() -> None:
    """Rule sets that could not be in force together are refused with the core's reason."""
    other = compile_cached(document(FREEZE, FREEZE_RULES, rule_set="company", conflict_key="'all'"))
    with pytest.raises(CaseBusError, match="conflict_key"):
        list(run_cases(suite(), TEAM, [other]))


def test_a_shared_counter() -> None:
    """Rule sets that count the same are tested together, as they share the counter on a bus."""
    counters = {"spent": {"of": "approvals", "action": "refund.create", "window_ms": 60_000}}
    both = [
        compile_cached(json.dumps({**json.loads(document(rule_set=name)), "gavel": "v2", "counters": counters})) for name in ("one", "two")
    ]
    case = {"name": "x", "facts": {"frozen": None}, "expect": {"outcome": "APPROVED"}}
    (result,) = run_cases(suite(cases=[case]), both[0], both[1:])
    assert () == result.differences


def test_attempts_of_an_action_of_another_rule_set() -> None:
    """An earlier proposal has at most the attempts of its action, whichever of the rule sets governs it."""
    own = [{"id": "all", "when": "true", "effect": "approve"}]
    other = compile_cached(document({}, own, rule_set="notes", action_type="note.send", retry={"max_attempts": 3}))
    earlier = {"action": "note.send", "execution": {"status": "FAILED", "attempt": 9}}
    case = {"name": "noted", "facts": {"frozen": None}, "earlier": [earlier], "expect": {"outcome": "APPROVED"}}
    with pytest.raises(DocumentError, match=r"out-of-range: note\.send allows at most 3 attempts"):
        list(run_cases(suite(cases=[case]), TEAM, [other]))


@pytest.mark.parametrize("tests", [[], [1], {"a": "b"}, 5])
def test_tests_are_files(tests: Any) -> None:
    """`tests` is a file, or a list of at least one."""
    with pytest.raises(DocumentError, match="tests: input should be a valid string"):
        suite(tests=tests)
