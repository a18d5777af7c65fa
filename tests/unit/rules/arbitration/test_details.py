"""The details of rules: values that a decision shows, whatever its effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW, OUTCOME_REJECTED, Decision
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.runner import run_cases
from gavel_rules.language.rule_set import DocumentError, compile_rule_set
from gavel_rules.values import struct_to_dict

from tests.support.driver import Core, compile_cached, document

FACTS = {"status": {"key": "order.status", "type": "string", "max_age_ms": 60_000}}
LEFT = "constants.limit - history.spent(producer.id)"
RULES: list[dict[str, Any]] = [
    {
        "id": "over",
        "when": "history.spent(producer.id) + params.amount > constants.limit",
        "effect": "reject",
        "reason_code": "OVER",
        "detail": {"left": LEFT, "asked": "params.amount", "who": "producer.id"},
    },
    {
        "id": "large",
        "when": "params.amount > 50",
        "effect": "review",
        "reason_code": "LARGE",
        "detail": {"large": "params.amount > 60.0", "broken": "1 / int(params.amount - params.amount)"},
    },
    {"id": "small", "when": "true", "effect": "approve", "detail": {"left": f"{LEFT} - params.amount"}},
]
COUNTER = {"of": "approvals", "action": "refund.create", "by": "producer.id", "sum": "params.amount", "window_ms": 86_400_000}


def rules(**changes: Any) -> str:
    """Return the rule set."""
    data = json.loads(document(FACTS, RULES, gavel="v2"))
    return json.dumps({**data, "constants": {"limit": 100}, "counters": {"spent": COUNTER}, **changes})


def decide(core: Core, amount: float) -> Decision:
    """Propose a refund, and return the decision."""
    subject = f"order/{amount:g}"
    return core.decide([core.fact("order.status", "new", subject=subject)], params={"amount": amount}, subject=subject, trace_id=subject)


def test_every_effect_shows_its_details() -> None:
    """A rejection, a review and an approval show the values of their own rule; a replay computes them again."""
    core = Core(rules())
    decisions = [decide(core, amount) for amount in (30, 55, 80)]
    assert [OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW, OUTCOME_REJECTED] == [decision.outcome for decision in decisions]
    expected: list[dict[str, Any]] = [{"left": 70}, {"large": False}, {"left": 70, "asked": 80, "who": "agent-1"}]
    assert expected == [struct_to_dict(decision.details) for decision in decisions]
    core.prove()


def test_a_detail_that_fails_is_left_out() -> None:
    """A failing detail changes no outcome: its value is missing, and a warning names it."""
    decision = decide(Core(rules()), 55)
    assert "large" == decision.rule_id
    assert [("DETAIL_FAILED", "refunds/large: broken could not be computed")] == [(one.code, one.message) for one in decision.warnings]


def test_gavels_own_refusals_show_none() -> None:
    """A refusal by Gavel has no details, though rules have them."""
    decision = Core(rules()).decide(params={})
    assert ("INVALID_PARAMS", False) == (decision.reason_code, decision.HasField("details"))


def test_suites_compare_details() -> None:
    """A case expects all values of the details; another value is a difference."""
    cases = [
        {"name": "left", "params": {"amount": 30}, "expect": {"outcome": "APPROVED", "details": {"left": 70}}},
        {"name": "other", "params": {"amount": 30}, "expect": {"outcome": "APPROVED", "details": {"left": 71}}},
    ]
    suite = {"gavel": "v1", "tests": "rules.json", "defaults": {"facts": {"status": "new"}}, "cases": cases}
    results = run_cases(read_suite(json.dumps(suite)), compile_cached(rules()))
    assert [[], ["details"]] == [[one.what for one in result.differences] for result in results]


@pytest.mark.parametrize(
    ("detail", "code"),
    [
        ({"a": "params.amont"}, "unknown-name"),
        ({"a": "[1, 2]"}, "type-error"),
        ({"a": "dyn(1)"}, "type-error"),
        ({"a": "null"}, "type-error"),
        ({"a b": "1"}, "bad-name"),
        ({"a": "params.note"}, "unguarded-optional"),
        ({f"a{number}": "1" for number in range(17)}, "out-of-range"),
    ],
)
def test_mistakes_of_details(detail: dict[str, str], code: str) -> None:
    """A detail is checked like a condition, and gives a scalar of known type."""
    with pytest.raises(DocumentError) as refused:
        compile_rule_set(document({}, [{"id": "a", "when": "true", "effect": "approve", "detail": detail}], gavel="v2"))
    assert [code] == [message.code for message in refused.value.messages]


def test_the_first_version_has_no_details() -> None:
    """In documents of the first version the key is unknown."""
    with pytest.raises(DocumentError, match="detail needs the language's second version"):
        compile_rule_set(document({}, [{"id": "a", "when": "true", "effect": "approve", "detail": {"a": "1"}}]))
