"""Declared compensations are checked completely when a rule set is compiled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel_rules.language.rule_set import DocumentError, compile_rule_set

UNDO = {
    "type": "object",
    "required": ["amount"],
    "additionalProperties": False,
    "properties": {
        "amount": {"type": "number"},
        "pieces": {"type": "integer"},
        "why": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "open": {},
    },
}


def mistakes(action: str, params: dict[str, str]) -> list[tuple[str, str]]:
    """Return (code, message) of every mistake of a compensation."""
    document: dict[str, Any] = {
        "gavel": "v1",
        "rule_set": "demo",
        "version": 1,
        "actions": {
            "thing.do": {
                "params": {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number"}}},
                "compensation": {"action": action, "params": params},
            },
            "thing.undo": {"params": UNDO},
        },
        "rules": [
            {"id": "do", "action": "thing.do", "priority": 1, "when": "true", "effect": "approve"},
            {"id": "undo", "action": "thing.undo", "priority": 1, "when": "true", "effect": "approve"},
        ],
    }
    try:
        compile_rule_set(json.dumps(document))
    except DocumentError as error:
        return [(message.code, message.message) for message in error.messages]
    return []


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"amount": "execution.result.refunded"}, []),
        ({"amount": "params.amount", "pieces": "size(execution.completed_steps)", "why": "execution.error.code"}, []),
        ({"amount": "2", "tags": "execution.completed_steps", "open": "{'a': 1}"}, []),
        ({}, [("missing-key", "the param amount of thing.undo is missing")]),
        ({"amount": "execution.error.code"}, [("type-error", "the param amount must be a number, but the expression gives string")]),
        (
            {"amount": "1.0", "pieces": "params.amount"},
            [("type-error", "the param pieces must be an integer, but the expression gives double")],
        ),
        ({"amount": "1.0", "why": "true"}, [("type-error", "the param why must be a string, but the expression gives bool")]),
        ({"amount": "1.0", "open": 'duration("1s")'}, [("type-error", "a param cannot be a duration")]),
        ({"amount": "1.0", "reason": "'x'"}, [("unknown-name", "thing.undo has no param reason")]),
        ({"amount": "facts.amount"}, [("unknown-name", "there is no name facts")]),
        ({"amount": "params.amont"}, [("unknown-name", "params has no field amont")]),
        ({"amount": "execution.reslt.x"}, [("unknown-name", "execution has no field reslt")]),
    ],
)
def test_params_of_a_declared_action(params: dict[str, str], expected: list[tuple[str, str]]) -> None:
    """Params are CEL over `execution` and `params`; for a declared action they are checked against its schema."""
    assert expected == mistakes("thing.undo", params)


def test_params_of_an_undeclared_action() -> None:
    """An action of another rule set may compensate; its params are not checked."""
    assert [] == mistakes("thing.elsewhere", {"anything": "params.amount"})
    assert [("unknown-name", "params has no field amont")] == mistakes("thing.elsewhere", {"anything": "params.amont"})
