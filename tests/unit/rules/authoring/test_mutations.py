"""Every mutation of a shipped rule set fails a case of its suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.runner import run_cases
from gavel_rules.language.rule_set import compile_rule_set

from tests.support.driver import document
from tests.support.paths import ROOT
from tests.unit.rules.authoring.mutations import mutations, original_documents, survives

SETS = ROOT / "rules" / "sets"
SHIPPED = sorted(path for path in SETS.glob("*.yaml") if not path.stem.endswith("_test"))


@pytest.mark.long
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_literal_matters(path: Path) -> None:
    """The rule set passes its suite, and no mutation of it does."""
    rule_set = compile_rule_set(path.read_text(encoding="utf-8"))
    suite = read_suite(path.with_name(f"{path.stem}_test.yaml").read_text(encoding="utf-8"))
    assert [] == [result.case.name for result in run_cases(suite, rule_set, explain=False) if not result.passed]
    data = json.loads(rule_set.canonical_json)
    assert [] == [same.change for same in original_documents(data) if not survives(same, suite)]
    assert [] == [mutation.change for mutation in mutations(data) if survives(mutation, suite)]


def _suite(*amounts: float) -> Any:
    cases = [
        {"name": str(amount), "params": {"amount": amount}, "facts": {"status": "sent"}, "expect": {"outcome": outcome}}
        for amount in amounts
        for outcome in ["APPROVED" if amount <= 50 else "REJECTED"]
    ]
    return read_suite(json.dumps({"gavel": "v1", "tests": "rules.json", "cases": cases}))


def test_loose_suite_misses_a_mutation() -> None:
    """A suite detects a moved threshold only if it has cases on both sides of it."""
    condition = 'params.amount <= 50.0 && facts.status == "sent"'
    data = json.loads(document(rules=[{"id": "small", "when": condition, "effect": "approve"}]))
    changes = {mutation.change: mutation for mutation in mutations(data)}
    assert {"rule small: 50.0 to 50.1", "rule small: 50.0 to 49.9", 'rule small: "sent" to "sentx"'} == changes.keys()
    loose, tight = _suite(20.0, 80.0), _suite(50.0, 50.01)
    assert ["rule small: 50.0 to 50.1", "rule small: 50.0 to 49.9"] == [name for name, one in changes.items() if survives(one, loose)]
    assert [] == [name for name, one in changes.items() if survives(one, tight)]


def test_derivations_and_compensations_are_mutated() -> None:
    """A suite detects another value of a derived fact or a compensation only if it expects the value."""
    action: dict[str, Any] = {"compensation": {"action": "refund.reverse", "params": {"amount": "params.amount / 2.0"}}}
    data = json.loads(document(rules=[{"id": "all", "when": "true", "effect": "approve"}], **action))
    on = {"action": "refund.create", "status": "SUCCESS"}
    data["derivations"] = [{"id": "half", "version": 1, "on": on, "key": "order.half", "value": "params.amount / 4.0"}]
    changes = {mutation.change: mutation for mutation in mutations(data) if not mutation.rule_id}

    def surviving(derived: dict[str, Any], compensation: dict[str, Any]) -> list[str]:
        cases = [
            {"name": status, "execution": {"status": status}, "expect": {"outcome": "APPROVED", **expected}}
            for status, expected in (("SUCCESS", {"derived": [derived]}), ("PARTIAL", {"compensation": compensation}))
        ]
        defaults = {"params": {"amount": 8}, "facts": {"status": "sent"}}
        suite = read_suite(json.dumps({"gavel": "v1", "tests": "rules.json", "defaults": defaults, "cases": cases}))
        return [name for name, one in changes.items() if survives(one, suite)]

    assert [
        "derivation half: 4.0 to 4.1",
        "derivation half: 4.0 to 3.9",
        "derivation half: another value",
        "compensation of refund.create: amount: 2.0 to 2.1",
        "compensation of refund.create: amount: 2.0 to 1.9",
        "compensation of refund.create: amount: another value",
    ] == surviving({"key": "order.half"}, {"action": "refund.reverse"})
    assert [] == surviving({"key": "order.half", "value": 2}, {"action": "refund.reverse", "params": {"amount": 4}})
    assert {"derivation half: removed", "derivation half: another key", "compensation of refund.create: removed"} < changes.keys()


def test_the_changes_of_literals() -> None:
    """Every kind of literal has its smallest change; names, operators and the literals of expanded macros have none."""
    condition = (
        "params.amount > 1.50 && now.getHours('+02:00') >= 8 && now - timestamp(\"2026-01-01T00:00:00Z\") < duration('36h')"
        " && [1, 2].exists(n, n == 0x10) && true && params.amount > -7.0"
    )
    data = json.loads(document(rules=[{"id": "r", "when": condition, "effect": "approve"}]))
    assert {
        "1.50 to 1.51",
        "1.50 to 1.49",
        "'+02:00' to \"+03:00\"",
        "'+02:00' to \"+01:00\"",
        "8 to 9",
        "8 to 7",
        '"2026-01-01T00:00:00Z" to "2026-01-01T00:00:01+00:00"',
        '"2026-01-01T00:00:00Z" to "2025-12-31T23:59:59+00:00"',
        "'36h' to \"37h\"",
        "'36h' to \"35h\"",
        "1 to 2",
        "1 to 0",
        "2 to 3",
        "2 to 1",
        "0x10 to 17",
        "0x10 to 15",
        "true to false",
        "-7.0 to -6.9",
        "-7.0 to -7.1",
    } == {mutation.change.removeprefix("rule r: ") for mutation in mutations(data)}
