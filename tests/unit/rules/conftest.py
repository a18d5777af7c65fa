"""Fixtures of the rule language's tests: rule sets of a few conditions, and cases for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction, DocumentError, compile_rule_set

ACTION = "thing.do"
PARAMS: dict[str, Any] = {
    "type": "object",
    "required": ["amount", "count", "name", "urgent"],
    "properties": {
        "amount": {"type": "number"},
        "limit": {"type": "number"},
        "count": {"type": "integer"},
        "quota": {"type": "integer"},
        "name": {"type": "string"},
        "note": {"type": "string"},
        "urgent": {"type": "boolean"},
        "tags": {"type": "array", "maxItems": 200, "items": {"type": "string"}},
        "many": {"type": "array", "items": {"type": "string"}},
        "items": {
            "type": "array",
            "maxItems": 200,
            "items": {
                "type": "object",
                "required": ["price"],
                "properties": {"price": {"type": "number"}, "units": {"type": "integer"}, "sku": {"type": "string"}},
            },
        },
        "address": {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}, "zip": {"type": "string"}}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "open": {},
    },
}
FACTS: dict[str, Any] = {
    "status": {"key": "order.status", "type": "string", "max_age_ms": 60_000},
    "total": {"key": "order.total", "type": "number", "max_age_ms": 60_000},
    "pieces": {"key": "order.pieces", "type": "integer", "max_age_ms": 60_000},
    "open": {"key": "order.open", "type": "boolean", "max_age_ms": 60_000},
    "score": {"key": "order.score", "type": "number", "max_age_ms": 60_000, "optional": True},
    "owner": {"key": "order.owner", "type": "string", "max_age_ms": 60_000, "optional": True},
    "flag": {"key": "order.flag", "type": "boolean", "max_age_ms": 60_000, "optional": True},
}


def rule_set_data(conditions: Sequence[str], **changes: Any) -> dict[str, Any]:
    """A document with one rule per condition, r0 first and highest. `changes` are merged into its action."""
    action = {"params": PARAMS, "facts": FACTS, **changes}
    rules = [
        {"id": f"r{number}", "action": ACTION, "priority": 60_000 - number, "when": condition, "effect": "approve"}
        for number, condition in enumerate(conditions)
    ]
    return {"gavel": "v1", "rule_set": "demo", "version": 1, "actions": {ACTION: action}, "rules": rules}


@pytest.fixture(scope="session")
def document() -> Callable[..., dict[str, Any]]:
    """Makes the data of a rule set out of conditions."""
    return rule_set_data


@pytest.fixture(scope="session")
def action() -> Callable[..., CompiledAction]:
    """Makes a compiled action out of conditions."""

    def make(*conditions: str, **changes: Any) -> CompiledAction:
        return compile_rule_set(json.dumps(rule_set_data(conditions, **changes))).actions[ACTION]

    return make


@pytest.fixture(scope="session")
def refusals() -> Callable[..., list[tuple[int, int, str]]]:
    """Compiles a document and returns (line, column, code) of every mistake."""

    def compile_to_refusals(text: str) -> list[tuple[int, int, str]]:
        try:
            compile_rule_set(text)
        except DocumentError as error:
            return [(message.line, message.column, message.code) for message in error.messages]
        return []

    return compile_to_refusals


@pytest.fixture(scope="session")
def codes(refusals: Callable[[str], list[tuple[int, int, str]]]) -> Callable[..., list[str]]:
    """Compiles conditions and returns the codes of all their mistakes."""

    def compile_to_codes(*conditions: str, **changes: Any) -> list[str]:
        return sorted(code for _, _, code in refusals(json.dumps(rule_set_data(conditions, **changes))))

    return compile_to_codes


@pytest.fixture(scope="session")
def case() -> Callable[..., Case]:
    """Makes a case with all required values. `params` and `facts` add to it; None removes a value."""

    def make(params: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None, **changes: Any) -> Case:
        all_params = {"amount": 10.0, "count": 3, "name": "a", "urgent": False, **(params or {})}
        all_facts = {"status": "delivered", "total": 100.0, "pieces": 2, "open": True, **(facts or {})}
        fields: dict[str, Any] = {
            "params": {name: value for name, value in all_params.items() if value is not None},
            "facts": {name: value for name, value in all_facts.items() if value is not None},
            "risk": 0.25,
            "cost": 4.0,
            "confidence": 0.75,
            "priority": 5,
            "expected_outcome": "done",
            "subject": "order/123",
            "producer_type": "AGENT",
            "producer_id": "agent-1",
            "producer_version": "1.0",
            "evidence_count": 4,
            "evidence_worst_trust": 2,
            "evidence_oldest_age_ms": 1500,
            "consecutive_rejections": 1,
            "now_ms": 1_700_000_000_000,
        }
        return Case(**{**fields, **changes})

    return make


@pytest.fixture(scope="session")
def outcome(action: Callable[..., CompiledAction], case: Callable[..., Case]) -> Callable[..., bool | str]:
    """Evaluates one condition on one case in every mode, which must agree; True, False, or the id of the erring rule."""

    def evaluate(
        condition: str, params: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None, **changes: Any
    ) -> bool | str:
        compiled = action(condition)
        of = case(params, facts, **changes)
        verdicts = {compiled.evaluate(of, cross_check=True), compiled.evaluate(of, cross_check=False), compiled.evaluate_reference(of)}
        assert len(verdicts) == 1, verdicts
        verdict = verdicts.pop()
        assert verdict.disagreement is None
        return verdict.error or bool(verdict.matches)

    return evaluate
