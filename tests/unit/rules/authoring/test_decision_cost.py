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
