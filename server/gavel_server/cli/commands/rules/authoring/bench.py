"""`gavel rules bench`: measures how long a rule set takes to decide."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import Debug, JsonReport, RuleSetFile

if TYPE_CHECKING:
    from gavel_rules.language.rule_set import CompiledAction

BENCH_CASES_MAX: Final = 64
BENCH_ROUNDS: Final = 5
BENCH_ROUND_MS: Final = 50


def bench(file: RuleSetFile, as_json: JsonReport = False, debug: Debug = False) -> None:
    """Measure how long the rules of each action take.

    Measures both engines, Rete alone and the reference engine alone, on generated cases. Times are microseconds per case, the best
    of several rounds. An empty call is the cost of Python itself.
    """
    from gavel_server.cli import documents
    from gavel_server.cli.rendering import output

    rule_set = documents.read_compiled(file)
    measurements = [_measure(action) for action in rule_set.actions.values()]
    if as_json:
        output.print_line(
            json.dumps(
                {"policy_id": rule_set.policy_id, "version": rule_set.version, "actions": measurements}, ensure_ascii=False, indent=2
            )
        )
        return
    output.print_table(
        ("action", "rules", "cases", "both", "rete", "reference", "empty call"),
        (
            (
                str(one["action"]),
                str(one["rules"]),
                str(one["cases"]),
                *(f"{one[name]:.2f}" for name in ("both_us", "rete_us", "reference_us", "empty_call_us")),
            )
            for one in measurements
        ),
        title="Microseconds per case",
    )


def _measure(action: CompiledAction) -> dict[str, Any]:
    """Return the times of one action, in microseconds per case."""
    from gavel_rules.authoring.samples.cases import generate_cases

    cases = [sample.case for sample in generate_cases(action, BENCH_CASES_MAX)]
    if not cases:
        raise InvalidInputError(f"cannot generate params that fit the schema of {action.action_type}; add `examples` to the schema")

    def empty_call(case: object) -> object:
        return case

    times = {
        "both_us": _time_us(lambda case: action.evaluate(case, True), cases),
        "rete_us": _time_us(lambda case: action.evaluate(case, False), cases),
        "reference_us": _time_us(action.evaluate_reference, cases),
        "empty_call_us": _time_us(empty_call, cases),
    }
    return {
        "action": action.action_type,
        "rules": len(action.rules),
        "cases": len(cases),
        **{name: round(time_us, 3) for name, time_us in times.items()},
        "both_to_empty_call": round(times["both_us"] / times["empty_call_us"], 1),
        "rete_to_empty_call": round(times["rete_us"] / times["empty_call_us"], 1),
    }


def _time_us(call: Callable[[Any], object], cases: Sequence[Any]) -> float:
    """Return how long a call takes per case: the best mean of several rounds, because other processes can only slow a round down."""
    from time import perf_counter

    best = float("inf")
    for _ in range(BENCH_ROUNDS):
        calls = 0
        started = perf_counter()
        while (elapsed := perf_counter() - started) < BENCH_ROUND_MS / 1000 or not calls:
            for case in cases:
                call(case)
            calls += len(cases)
        best = min(best, elapsed / calls)
    return best * 1_000_000
