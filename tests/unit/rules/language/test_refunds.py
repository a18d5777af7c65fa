"""The shipped refunds rule set decides its cases as its comments say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_rules.language.engines.case import Case
from gavel_rules.language.engines.lowering import GUARD
from gavel_rules.language.rule_set import CompiledAction, compile_rule_set

PARAMS = {"amount": 80.0, "currency": "EUR", "customer_id": "c-1"}
FACTS = {"order_status": "delivered", "order_total": 1000.0, "order_customer": "c-1"}


@pytest.fixture(scope="module")
def refund() -> CompiledAction:
    """The refund action of the shipped rule set, which compiles without a warning."""
    compiled = compile_rule_set(shipped_rule_set("refunds"))
    assert compiled.warnings == ()
    return compiled.actions["refund.create"]


@pytest.mark.parametrize(
    ("params", "facts", "fields", "expected"),
    [
        ({}, {}, {}, "delivered"),
        ({}, {"order_status": "shipped"}, {}, None),
        ({"customer_id": "c-2"}, {}, {}, "wrong-customer"),
        ({}, {"order_status": "cancelled"}, {}, "cancelled"),
        ({}, {"order_status": "refunded"}, {}, "already-refunded"),
        ({"amount": 1000.0}, {}, {}, "large"),
        ({"amount": 1000.01}, {}, {}, "more-than-paid"),
        ({"amount": 500.0}, {}, {}, "delivered"),
        ({"amount": 500.01}, {}, {}, "large"),
        ({"amount": 500.01}, {"fraud_score": 0.19}, {}, "delivered"),
        ({"amount": 500.01}, {"fraud_score": 0.2}, {}, "large"),
        ({}, {"fraud_score": 0.9}, {}, "delivered"),
        ({}, {"fraud_score": 0.91}, {}, "fraud"),
        ({}, {"refunded": 10.0}, {}, "second-refund"),
        ({}, {}, {"risk": 0.5}, "agent-unsure"),
        ({}, {}, {"confidence": 0.59}, "agent-unsure"),
        ({"reason": "not_received"}, {"order_status": "lost"}, {}, "not-received"),
        ({"reason": "damaged"}, {"order_status": "lost"}, {}, None),
    ],
)
def test_refund(
    refund: CompiledAction,
    case: Callable[..., Case],
    params: dict[str, Any],
    facts: dict[str, Any],
    fields: dict[str, Any],
    expected: str | None,
) -> None:
    """Each case is decided by its rule, in every mode of evaluation."""
    of = case(**{"risk": 0.1, "confidence": 0.9, **fields}).with_params({**PARAMS, **params}, {**FACTS, **facts})
    assert refund.violations(of.params) == ()
    for verdict in (refund.evaluate(of, cross_check=True), refund.evaluate(of, cross_check=False), refund.evaluate_reference(of)):
        assert (verdict.error, verdict.disagreement) == ("", None)
        assert (verdict.matches[0].id if verdict.matches else None) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"amount": 0.0}, (("/amount", "exclusiveMinimum"),)),
        ({"currency": "GBP"}, (("/currency", "enum"),)),
        ({"customer_id": ""}, (("/customer_id", "minLength"),)),
        ({"surprise": 1.0}, (("/surprise", "additionalProperties"),)),
    ],
)
def test_params(refund: CompiledAction, change: dict[str, Any], expected: tuple[tuple[str, str], ...]) -> None:
    """Params that violate the schema are reported by place and keyword."""
    assert refund.violations({**PARAMS, **change}) == expected


def test_policy(refund: CompiledAction) -> None:
    """The action's limits are those of its document."""
    assert refund.conflict_key_is_subject
    assert (refund.decision_ttl_ms, refund.rejection_limit, refund.retry.max_attempts) == (60_000, 3, 3)
    fraud_score = {fact.name: fact for fact in refund.facts}["fraud_score"]
    assert (fraud_score.key, fraud_score.min_trust, fraud_score.optional) == ("customer.fraud_score", 2, True)
    assert fraud_score.sources == frozenset({"fraud-mcp"})


def test_everything_is_lowered(refund: CompiledAction) -> None:
    """Rete decides every condition of the set without a guard of CEL."""
    assert all(slot.kind != GUARD for slot in refund._checked.plan.slots)
    assert json.loads(refund._checked.plan.definition)
