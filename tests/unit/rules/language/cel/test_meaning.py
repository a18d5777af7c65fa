"""Conditions that nest everything decide as CEL says: both engines against an interpreter that shares only the parser with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from gavel_rules.language.cel.library import parse
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import DocumentError, compile_rule_set
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

from tests.fuzz.interpreter import FailureError, InexactError, attempt
from tests.fuzz.nesting import FACTS, PARAMS, documents, facts_values, params_values

Cases = Callable[..., Case]
ACTION = "thing.do"
NOW_MS = 1_700_000_000_500
# A document that nests too much, or costs too much, is refused as it should be.
REFUSALS = {"too-complex", "too-costly", "hidden-input"}


def decide(variables: dict[str, str], conditions: list[str], values: list[tuple[dict[str, Any], dict[str, Any]]], case: Cases) -> None:
    """Compile a document and compare all ways to evaluate it with the interpreter, for each (params, facts)."""
    rules = [
        {"id": f"r{number}", "action": ACTION, "priority": 100 - number, "when": condition, "effect": "approve"}
        for number, condition in enumerate(conditions)
    ]
    data = {"gavel": "v2", "rule_set": "demo", "version": 1, "actions": {ACTION: {"params": PARAMS, "facts": FACTS}}, "rules": rules}
    try:
        action = compile_rule_set(json.dumps({**data, "variables": variables})).actions[ACTION]
    except DocumentError as error:
        if not REFUSALS.isdisjoint(message.code for message in error.messages):
            reject()
        raise AssertionError(f"{variables} {conditions}: {error}") from error
    for params, facts in values:
        one = case(params=action.typed_params(params), facts=facts, now_ms=NOW_MS, producer_id="a", subject="thing/ab")
        names: dict[str, Any] = {
            "params": one.params,
            "facts": facts,
            "now": datetime.fromtimestamp(NOW_MS / 1000, UTC),
            "producer": {"id": "a"},
            "subject": {"type": "thing", "id": "ab"},
        }
        try:
            for name, text in variables.items():
                names[name] = attempt(parse(text, 2), names)
            outcomes = [attempt(parse(condition, 2), names) for condition in conditions]
        except InexactError:
            continue
        error_id = next((f"r{number}" for number, outcome in enumerate(outcomes) if isinstance(outcome, FailureError)), "")
        matches = [] if error_id else [f"r{number}" for number, outcome in enumerate(outcomes) if outcome is True]
        for verdict in (action.evaluate(one, cross_check=True), action.evaluate(one, cross_check=False), action.evaluate_reference(one)):
            actual = ([rule.id for rule in verdict.matches], verdict.error, verdict.disagreement)
            assert (matches, error_id, None) == actual, (variables, conditions, params, facts)


VALUES = st.lists(st.tuples(params_values, facts_values), min_size=4, max_size=4)
BOUNDS = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], report_multiple_bugs=False)


@pytest.mark.long
@settings(BOUNDS, max_examples=25)
@given(documents(), VALUES)
def test_nested_expressions_mean_what_cel_says(
    case: Cases, document: tuple[dict[str, str], list[str]], values: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    """Rules match and fail as the interpreter says, with shared variables, in every way to evaluate them."""
    decide(*document, values, case)


@pytest.mark.long
@pytest.mark.timeout(600)
@settings(BOUNDS, max_examples=400)
@given(documents(), VALUES)
def test_many_nested_expressions_mean_what_cel_says(
    case: Cases, document: tuple[dict[str, str], list[str]], values: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    """The same over many documents."""
    decide(*document, values, case)
