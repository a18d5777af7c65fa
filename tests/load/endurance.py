"""An endurance test of the rule engines: memory must not grow, and every answer must be right.

    python -m tests.load.endurance        (make soak)

First one rule set decides many times on both engines, errors included. Then many rule sets, each with a network of its own, are
compiled, evaluated and dropped, as by many deployments. Memory is the resident set of this process after the first quarter, in
which caches fill; it may grow only by the allocator's slack. The exit status is 1 if it grows more or if an answer is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Final

from gavel_rules.language.rule_set import compile_rule_set
from rich.console import Console
from rich.progress import Progress

from tests.load.bench.engines import ACTION, CASE, FACTS, PARAMS, conditions
from tests.load.redeployments import resident_bytes

SLACK_BYTES: Final = 8 * 1024 * 1024
RULES: Final = 20


def document(version: int) -> str:
    """Return a rule set of twenty rules. Versions share no network; the last rule fails on a customer id that is not a number."""
    rules = [
        {"id": f"r{number}", "action": ACTION, "priority": 1_000 - number, "when": condition, "effect": "approve"}
        for number, condition in enumerate([*conditions(RULES - 1), "int(params.customer_id) > 0"])
    ]
    return json.dumps(
        {
            "gavel": "v1",
            "rule_set": "endurance",
            "version": version,
            "actions": {ACTION: {"params": PARAMS, "facts": FACTS}},
            "rules": rules,
        }
    )


def decide(version: int, times: int) -> None:
    """Compile a version and let it decide `times` times. Raises RuntimeError if a verdict is wrong."""
    action = compile_rule_set(document(version)).actions[ACTION]
    approving = [rule for rule in action.rules if rule.id == f"r{RULES - 2}"]
    numbered = CASE.with_params({**CASE.params, "customer_id": "0"}, {**CASE.facts, "order_customer": "0"})
    for number in range(times):
        # One case in sixteen fails, because "customer-7" is not a number.
        case = CASE if number % 16 == 0 else numbered
        verdict = action.evaluate(case, cross_check=number % 8 != 1)
        expected = ((), f"r{RULES - 1}") if case is CASE else (tuple(approving), "")
        if (verdict.matches, verdict.error) != expected or verdict.disagreement is not None:
            raise RuntimeError(f"version {version} decided wrongly: {verdict}")


def memory_growth(steps: int, step: Callable[[int], None], advance: Callable[[], None]) -> int:
    """Take the steps; return the growth of memory after the first quarter, in bytes."""
    before = 0
    for number in range(steps):
        if number == steps // 4:
            before = resident_bytes()
        step(number)
        advance()
    return resident_bytes() - before


def main() -> int:
    """Run both parts, print the result, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--evaluations", type=int, default=200_000, help="how often one rule set decides (default 200,000)")
    parser.add_argument("--rule-sets", type=int, default=2_000, help="how many rule sets are compiled and dropped (default 2,000)")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    portions = 100
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("deciding", total=portions + arguments.rule_sets)
        of_evaluations = memory_growth(portions, lambda _: decide(1, arguments.evaluations // portions), lambda: progress.advance(task))
        of_rule_sets = memory_growth(arguments.rule_sets, lambda number: decide(2 + number, 8), lambda: progress.advance(task))
    console.print(
        f"{arguments.evaluations:,} evaluations: {of_evaluations / 1e6:.1f} MB more; {arguments.rule_sets:,} rule sets compiled and"
        f" dropped: {of_rule_sets / 1e6:.1f} MB more; {SLACK_BYTES / 1e6:.1f} MB allowed for each",
        highlight=False,
    )
    return 0 if max(of_evaluations, of_rule_sets) <= SLACK_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
