"""The cost of the rule engines without server and log: part of `make bench`, or alone `python -m tests.load.bench.engines`.

There are two gates. The cost of an action must not depend on the rules of other actions: ten rules are measured beside ten others
and beside a thousand others. And twenty rules must take at most 40 µs on both engines, and 15 µs on Rete with its guards alone, on
one core of the class that docs/operating.md names. Figures are processor time, the median of several rounds. The call of an empty
function, measured the same way, is the unit of comparison between machines.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction, compile_rule_set
from rich.console import Console

from tests.load.bench.core_part import run_part
from tests.load.workload import FURTHER_CONDITIONS, RULES_OF_THE_LARGE_SET

ROUNDS: Final = 15
CALLS: Final = 2_000
OTHERS: Final = (10, 1_000)
RULES_PER_OTHER_ACTION: Final = 10
RATIO_MAX: Final = 1.2
BOTH_US_MAX: Final = 40.0
RETE_US_MAX: Final = 15.0

ACTION: Final = "refund.create"
PARAMS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["amount", "currency", "customer_id"],
    "properties": {"amount": {"type": "number"}, "currency": {"enum": ["EUR", "USD"]}, "customer_id": {"type": "string"}},
}
FACTS: Final[dict[str, Any]] = {
    "order_status": {"key": "order.status", "type": "string", "max_age_ms": 60_000},
    "order_customer": {"key": "order.customer_id", "type": "string", "max_age_ms": 60_000},
}
CASE: Final = Case(
    params={"amount": 42.5, "currency": "EUR", "customer_id": "customer-7"},
    facts={"order_status": "delivered", "order_customer": "customer-7"},
    risk=0.1,
    cost=1.0,
    confidence=0.9,
    priority=1,
    expected_outcome="The customer gets 42.50 EUR back.",
    subject="order/1",
    producer_type="AGENT",
    producer_id="support-agent",
    producer_version="2.1.0",
    evidence_count=2,
    evidence_worst_trust=1,
    evidence_oldest_age_ms=900,
    consecutive_rejections=0,
    now_ms=1_700_000_000_000,
)


def conditions(count: int) -> list[str]:
    """Return `count` different conditions as authors write them. Only the last one holds for the case."""
    further = [f"({FURTHER_CONDITIONS[number % len(FURTHER_CONDITIONS)]}) && params.amount > {number}.5" for number in range(count - 1)]
    return [*further, 'params.amount <= 100 && facts.order_status == "delivered" && proposal.risk < 0.5']


def action(rules: int, others: int) -> CompiledAction:
    """Return an action with `rules` rules, in a rule set with `others` rules of other actions."""
    names = [f"other.action{number}" for number in range(others // RULES_PER_OTHER_ACTION)]
    declared = {name: {"params": PARAMS, "facts": FACTS} for name in (ACTION, *names)}
    written = [
        {"id": f"{name}.{number}", "action": name, "priority": 1_000 - number, "when": condition, "effect": "approve"}
        for name in (ACTION, *names)
        for number, condition in enumerate(conditions(rules if name == ACTION else RULES_PER_OTHER_ACTION))
    ]
    document = {"gavel": "v1", "rule_set": "bench", "version": 1 + others, "actions": declared, "rules": written}
    compiled = compile_rule_set(json.dumps(document)).actions
    # Start the networks of the other actions as well.
    for one in compiled.values():
        if len(one.evaluate(CASE, cross_check=True).matches) != 1:
            raise RuntimeError(f"{one.action_type} does not match exactly one rule")
    _ALIVE.append(compiled)
    return compiled[ACTION]


_ALIVE: Final[list[object]] = []


def microseconds(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Return the median processor time of each call. The calls take turns, so that other load affects all of them."""
    rounds: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for number, call in enumerate(calls):
            began = time.process_time_ns()
            for _ in range(CALLS):
                call()
            rounds[number].append((time.process_time_ns() - began) / CALLS / 1_000)
    return [median(one) for one in rounds]


def measure() -> dict[str, float]:
    """Return all figures, in µs except the ratio."""
    large = action(RULES_OF_THE_LARGE_SET, 0)
    few, many = (action(10, others) for others in OTHERS)
    empty, both, rete, beside_few, beside_many = microseconds(
        [
            _nothing,
            lambda: large.evaluate(CASE, cross_check=True),
            lambda: large.evaluate(CASE, cross_check=False),
            lambda: few.evaluate(CASE, cross_check=True),
            lambda: many.evaluate(CASE, cross_check=True),
        ]
    )
    return {
        "empty_call_us": empty,
        "twenty_rules_both_us": both,
        "twenty_rules_rete_us": rete,
        "ten_rules_beside_10_us": beside_few,
        "ten_rules_beside_1000_us": beside_many,
        "ratio_1000_to_10": beside_many / beside_few,
    }


def _nothing() -> None:
    return None


def gates(figures: dict[str, float]) -> list[dict[str, Any]]:
    """Return each gate with its bound, its figure, and whether it passed."""
    bounds = {"ratio_1000_to_10": RATIO_MAX, "twenty_rules_both_us": BOTH_US_MAX, "twenty_rules_rete_us": RETE_US_MAX}
    return [{"name": name, "reached": figures[name], "wanted": bound, "passed": figures[name] < bound} for name, bound in bounds.items()]


def show(figures: dict[str, float], console: Console) -> None:
    """Print the figures and the gates."""
    empty = figures["empty_call_us"]
    for name, text in (
        ("twenty_rules_both_us", "an action of twenty rules, both engines"),
        ("twenty_rules_rete_us", "the same, Rete with its guards alone"),
        ("ten_rules_beside_10_us", f"ten rules beside {OTHERS[0]} of other actions, both engines"),
        ("ten_rules_beside_1000_us", f"ten rules beside {OTHERS[1]:,} of other actions, both engines"),
    ):
        console.print(f"engines: {text}: {figures[name]:.1f} µs, {figures[name] / empty:,.0f} times an empty call", highlight=False)
    for gate in gates(figures):
        word = "ok" if gate["passed"] else "MISSED"
        console.print(f"gate: {gate['name']}: {gate['reached']:.2f}, wanted under {gate['wanted']}: {word}", highlight=False)


if __name__ == "__main__":
    sys.exit(run_part("tests.load.bench.engines", "Measures the two rule engines by themselves.", measure, show, gates))
