"""The rule engines for a long time: does memory stay where it is, and is every answer right?

    python -m tests.load.endurance        (make soak)

First one rule set decides again and again, by both engines, errors and shared networks included; then rule sets of the fuzz, each
another document with its own network, are compiled, asked and dropped, as by so many deployments. Memory is this process's resident
set, after a first quarter in which caches fill; nothing may grow but by what an allocator keeps for itself. Exit status 1 if more
did, or if an answer was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Final

from gavel_rules.language.ruleset import compile_rule_set
from rich.console import Console
from rich.progress import Progress

from tests.load.engines import ACTION, CASE, FACTS, PARAMS, conditions
from tests.load.redeployments import resident_bytes

SLACK_BYTES: Final = 8 * 1024 * 1024
RULES: Final = 20


def document(version: int) -> str:
    """A rule set of twenty rules; two versions share no network, and the last rule errs on a customer who is no number."""
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
    """Compile a version and let it decide so often, right each time; RuntimeError if it does not."""
    action = compile_rule_set(document(version)).actions[ACTION]
    approving = [rule for rule in action.rules if rule.id == f"r{RULES - 2}"]
    numbered = CASE.with_params({**CASE.params, "customer_id": "0"}, {**CASE.facts, "order_customer": "0"})
    for number in range(times):
        # Most cases end in a verdict, one in sixteen in an error: "customer-7" is no number.
        case = CASE if number % 16 == 0 else numbered
        verdict = action.evaluate(case, both=number % 8 != 1)
        expected = ((), f"r{RULES - 1}") if case is CASE else (tuple(approving), "")
        if (verdict.matched, verdict.error) != expected or verdict.disagreement is not None:
            raise RuntimeError(f"version {version} decided wrongly: {verdict}")


def grown(steps: int, step: Callable[[int], None], advance: Callable[[], None]) -> int:
    """Take the steps; return by how many bytes memory grew after the first quarter."""
    before = 0
    for number in range(steps):
        if number == steps // 4:
            before = resident_bytes()
        step(number)
        advance()
    return resident_bytes() - before


def main() -> int:
    """Run both parts, say what came of it, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--evaluations", type=int, default=200_000, help="how often one rule set decides (default 200,000)")
    parser.add_argument("--rule-sets", type=int, default=2_000, help="how many rule sets are compiled and dropped (default 2,000)")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    portions = 100
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("deciding", total=portions + arguments.rule_sets)
        of_evaluations = grown(portions, lambda _: decide(1, arguments.evaluations // portions), lambda: progress.advance(task))
        of_rule_sets = grown(arguments.rule_sets, lambda number: decide(2 + number, 8), lambda: progress.advance(task))
    console.print(
        f"{arguments.evaluations:,} evaluations: {of_evaluations / 1e6:.1f} MB more; {arguments.rule_sets:,} rule sets compiled and"
        f" dropped: {of_rule_sets / 1e6:.1f} MB more; {SLACK_BYTES / 1e6:.1f} MB allowed for each",
        highlight=False,
    )
    return 0 if max(of_evaluations, of_rule_sets) <= SLACK_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
