"""What a decision's rules cost by themselves, without server and log: part of `make bench`, alone `python -m tests.load.engines`.

Two promises, each with a gate. The cost of an action does not depend on the rules of others: ten rules beside ten others, and the
same ten beside a thousand others, take turns. And an action of twenty rules is evaluated by both engines in 40 µs, by the Rete
network with its guards alone in 15 µs, on one core of the class that docs/operating.md names. Every figure is processor time, the
median of rounds of calls; the call of an empty function, measured the same way, tells what the machine makes of a call at all.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

from gavel_rules.language.case import Case
from gavel_rules.language.ruleset import CompiledAction, compile_rule_set
from rich.console import Console

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
    """So many conditions of the kinds that authors write, all different; the last one holds for the case."""
    further = [f"({FURTHER_CONDITIONS[number % len(FURTHER_CONDITIONS)]}) && params.amount > {number}.5" for number in range(count - 1)]
    return [*further, 'params.amount <= 100 && facts.order_status == "delivered" && proposal.risk < 0.5']


def action(rules: int, others: int) -> CompiledAction:
    """The action with so many rules, in a rule set with `others` rules for other actions."""
    names = [f"other.action{number}" for number in range(others // RULES_PER_OTHER_ACTION)]
    declared = {name: {"params": PARAMS, "facts": FACTS} for name in (ACTION, *names)}
    written = [
        {"id": f"{name}.{number}", "action": name, "priority": 1_000 - number, "when": condition, "effect": "approve"}
        for name in (ACTION, *names)
        for number, condition in enumerate(conditions(rules if name == ACTION else RULES_PER_OTHER_ACTION))
    ]
    document = {"gavel": "v1", "rule_set": "bench", "version": 1 + others, "actions": declared, "rules": written}
    compiled = compile_rule_set(json.dumps(document)).actions
    # Those of other actions are at work as well: their networks live in the same process.
    for one in compiled.values():
        if len(one.evaluate(CASE, both=True).matched) != 1:
            raise RuntimeError(f"{one.action_type} does not match the one rule that it should")
    _ALIVE.append(compiled)
    return compiled[ACTION]


_ALIVE: Final[list[object]] = []


def microseconds(calls: Sequence[Callable[[], object]]) -> list[float]:
    """The median processor time of each call, all by turns, so that what else the machine does meets all alike."""
    rounds: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for number, call in enumerate(calls):
            began = time.process_time_ns()
            for _ in range(CALLS):
                call()
            rounds[number].append((time.process_time_ns() - began) / CALLS / 1_000)
    return [median(one) for one in rounds]


def measure() -> dict[str, float]:
    """All figures, in µs but for the ratio."""
    large = action(RULES_OF_THE_LARGE_SET, 0)
    few, many = (action(10, others) for others in OTHERS)
    empty, both, rete, beside_few, beside_many = microseconds(
        [
            _nothing,
            lambda: large.evaluate(CASE, both=True),
            lambda: large.evaluate(CASE, both=False),
            lambda: few.evaluate(CASE, both=True),
            lambda: many.evaluate(CASE, both=True),
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
    """What was wanted, what was reached, and whether it is enough."""
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


def main() -> int:
    """Measure and print; with --gate, 1 if a gate was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.load.engines", description="Measures the two rule engines by themselves.")
    parser.add_argument("--gate", action="store_true", help="exit 1 if a gate is missed")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON, and no gates")
    arguments = parser.parse_args()
    figures = measure()
    if arguments.json:
        print(json.dumps(figures))
        return 0
    show(figures, Console(width=None if sys.stdout.isatty() else 160))
    return 1 if arguments.gate and not all(gate["passed"] for gate in gates(figures)) else 0


if __name__ == "__main__":
    sys.exit(main())
