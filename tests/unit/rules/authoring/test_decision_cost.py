"""The bound on the cost of a decision, which holds for what a server deploys and not for what compiles."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from gavel_rules.authoring.decision_cost import COSTLY, find_costly_actions, total_steps
from gavel_rules.authoring.lint import lint_rule_set
from gavel_rules.authoring.shipped_rule_sets import shipped_names, shipped_rule_set
from gavel_rules.language.cel.cost import DECISION_STEPS_MAX
from gavel_rules.language.rule_set import DocumentError, compile_rule_set
from gavel_server.compile.worker import report_on

from tests.unit.rules.conftest import rule_set_data

SEARCH = " || ".join(f'facts.status.contains("{number}")' for number in range(10))


def searching(**fact: Any) -> str:
    """Return a rule set that searches a fact ten times. `fact` are more keys of its declaration."""
    data = copy.deepcopy(rule_set_data([SEARCH]))
    for action in data["actions"].values():
        action["facts"]["status"].update(fact)
    return json.dumps(data)


def test_costly_action_is_not_deployed() -> None:
    """A server refuses an action whose decision may take too long, and names the expression and the bound to declare; lint warns."""
    document = searching()
    compiled = compile_rule_set(document)
    ((_, message, suggestion),) = find_costly_actions(compiled)
    steps = total_steps(compiled.actions.values())
    assert steps > DECISION_STEPS_MAX
    assert f"may take {steps:,} steps" in message
    assert "of them in rule " in message
    assert "declare max_length for facts.status" == suggestion
    assert [(COSTLY, message)] == [(one.code, one.message) for one in lint_rule_set(compiled) if one.code == COSTLY]
    report = report_on(document, with_analysis=False)
    assert (False, "", [COSTLY]) == (report.valid, report.digest, [error.code for error in report.errors])
    assert [(1, suggestion)] == [(error.line, error.suggestion) for error in report.errors]


def test_declared_length_bounds_the_cost() -> None:
    """With a declared length of the fact the same rules are deployed."""
    document = searching(max_length=500)
    assert [] == find_costly_actions(compile_rule_set(document))
    report = report_on(document, with_analysis=True)
    assert (True, []) == (report.valid, [*report.errors])


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_rule_sets_are_deployed(name: str) -> None:
    """Every shipped rule set is below the bound."""
    assert [] == find_costly_actions(compile_rule_set(shipped_rule_set(name)))


@pytest.mark.parametrize("max_length", [0, 65_537, "long"])
def test_length_must_be_possible(max_length: object) -> None:
    """A length that no text has is a mistake."""
    with pytest.raises(DocumentError):
        compile_rule_set(searching(max_length=max_length))


def test_only_strings_have_a_length() -> None:
    """A length of a fact that is no string is a mistake."""
    data = copy.deepcopy(rule_set_data(["params.amount > 1.0"]))
    for action in data["actions"].values():
        action["facts"]["status"].update({"type": "number", "max_length": 5})
    with pytest.raises(DocumentError) as failure:
        compile_rule_set(json.dumps(data))
    assert ["unknown-key"] == [message.code for message in failure.value.messages]


@pytest.mark.parametrize("place", ["params", "facts.status"])
def test_costly_pattern_is_not_deployed(place: str) -> None:
    """A server refuses an action with a costly pattern in a schema, at its place; the compiler takes it, as logs may hold it."""
    text: dict[str, Any] = {"type": "string", "pattern": "(a|b)*a(a|b){20}x"}
    params = {"type": "object", "properties": {"t": text if place == "params" else {"type": "string"}}}
    facts = {"status": {"key": "order.status", "value": text, "max_age_ms": 60_000}} if place == "facts.status" else {}
    document = json.dumps({**rule_set_data(["true"], params=params, facts=facts), "gavel": "v2"}, indent=1)
    assert ["thing.do"] == [*compile_rule_set(document).actions]
    (error,) = report_on(document, with_analysis=False).errors
    assert (COSTLY, True) == (error.code, f"of them in a pattern of {place};" in error.message)
    assert error.suggestion.startswith("declare maxLength beside the pattern")
    assert '"pattern"' in document.splitlines()[error.line - 1]
    text["maxLength"] = 40
    document = json.dumps({**rule_set_data(["true"], params=params, facts=facts), "gavel": "v2"})
    assert [] == [*report_on(document, with_analysis=False).errors]


def test_values_of_many_subjects_are_all_searched() -> None:
    """The pattern of a fact of many subjects counts once for each of them."""
    fact = {"key": "order.code", "value": {"type": "string", "pattern": "^[a-z]+$"}, "max_age_ms": 60_000}
    many = {"status": {**fact, "subjects": '["order/1"]', "max": 20}}
    one, all_ = (
        next(cost.steps for cost in action.costs if cost.name == "a pattern of facts.status")
        for facts in ({"status": fact}, many)
        for action in compile_rule_set(json.dumps({**rule_set_data(["true"], facts=facts), "gavel": "v2"})).actions.values()
    )
    assert 20 * one == all_
