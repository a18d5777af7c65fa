"""Feasibility: a refusal is certain only if no proposal can pass, and is recognised in the plain cases."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from gavel_rules.language.engines.case import Case
from gavel_rules.language.feasibility import HOPELESS, POSSIBLE, SILENT, KnownFacts, PossibleOutcomes
from gavel_rules.language.rule_set import CompiledAction, compile_rule_set
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.rules.conftest import ACTION, FACTS, rule_set_data
from tests.unit.rules.language.strategies import CASES, CONDITIONS

EFFECTS = ("approve", "reject", "review")
RULES = st.deferred(lambda: st.lists(st.tuples(CONDITIONS, st.sampled_from(EFFECTS)), min_size=1, max_size=4))


def compiled(rules: list[tuple[str, str]]) -> CompiledAction:
    """An action with these rules, (condition, effect), the highest first."""
    data = rule_set_data([condition for condition, _ in rules])
    for rule, (_, effect) in zip(data["rules"], rules, strict=True):
        rule["effect"] = effect
        if effect != "approve":
            rule["reason_code"] = "BECAUSE"
    return compile_rule_set(json.dumps(data)).actions[ACTION]


@pytest.mark.long
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(RULES, CASES, st.sets(st.sampled_from(sorted(FACTS))))
def test_feasibility_is_sound(
    case: Callable[..., Case], rules: list[tuple[str, str]], values: tuple[dict[str, Any], ...], known: set[str]
) -> None:
    """For all values of the unknown facts, the verdict is among those that the known facts allow."""
    params, facts, proposal = values
    action = compiled(rules)
    there = {name: facts[name] for name in known if facts[name] is not None}
    prospect = action.assess_feasibility(KnownFacts(there, known - there.keys()))
    verdict = action.evaluate_reference(case(params, facts, **proposal))
    speaks = verdict.matches[0].effect if verdict.matches and not verdict.error else ""
    assert prospect.may_pass or speaks not in ("approve", "review")
    assert not prospect.surely_rejects or speaks == "reject" or verdict.error


STATUS = KnownFacts({"status": "cancelled", "pieces": 3.0}, {"score"})


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([("facts.status == 'cancelled'", "reject"), ("true", "approve")], HOPELESS),
        ([("params.amount > 5.0", "approve"), ("facts.status == 'cancelled'", "reject")], POSSIBLE),
        ([("facts.status == 'delivered' && params.amount < 5.0", "approve")], SILENT),
        ([("facts.status != 'delivered' && params.amount < 5.0", "approve")], POSSIBLE),
        ([("facts.status != 'delivered' && params.amount < 5.0", "reject"), ("true", "approve")], POSSIBLE),
        ([("facts.status in ['cancelled', 'lost'] || params.urgent", "reject"), ("true", "review")], HOPELESS),
        ([("facts.pieces >= 3 && !(facts.pieces > 3)", "reject"), ("true", "approve")], HOPELESS),
        ([("has(facts.score) && facts.score > 0.5", "approve")], SILENT),
        ([("!has(facts.score) || facts.score > 0.5", "reject"), ("true", "approve")], HOPELESS),
        ([("has(facts.owner) && facts.owner == subject", "approve")], POSSIBLE),
        ([("facts.open", "approve")], POSSIBLE),
        ([("facts.status.startsWith('can')", "reject"), ("true", "approve")], HOPELESS),
        ([("facts.status.startsWith('del') && params.amount < 5.0", "approve")], SILENT),
        ([("facts.status.startsWith(params.name)", "reject"), ("true", "approve")], POSSIBLE),
        ([("10 / (facts.pieces - 3) > 2", "approve")], SILENT),
        ([("has(facts.score) && facts.score * 2.0 > 1.0", "approve")], SILENT),
        ([("facts.pieces == params.count", "approve")], POSSIBLE),
        ([("false", "approve")], SILENT),
        ([("true", "review")], POSSIBLE),
    ],
)
def test_verdicts_under_known_facts(rules: list[tuple[str, str]], expected: PossibleOutcomes) -> None:
    """With status and pieces known and score absent, the possible verdicts are the expected ones."""
    assert expected == compiled(rules).assess_feasibility(STATUS)
