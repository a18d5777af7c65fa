"""`gavel rules bench`: measures how long a rule set takes to decide."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import Debug, JsonReport, RuleSetFile

if TYPE_CHECKING:
    from gavel.v1.envelope_pb2 import Envelope
    from gavel_rules.language.engines.case import Case
    from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet
    from gavel_rules.state.state import State

BENCH_CASES_MAX: Final = 64
BENCH_ROUNDS: Final = 5
BENCH_ROUND_MS: Final = 50


def bench(file: RuleSetFile, as_json: JsonReport = False, debug: Debug = False) -> None:
    """Measure how long the rules, the counters and the derivations of each action take.

    Measures both engines, Rete alone and the reference engine alone, on generated cases. Also what it takes to read the action's counters,
    to count a proposal with its approval and its report, and to derive facts from a report. Times are microseconds per case, the best of
    several rounds. An empty call is the cost of Python itself.
    """
    from gavel_server.cli import documents
    from gavel_server.cli.rendering import output

    rule_set = documents.read_compiled(file)
    measurements = [_measure(rule_set, action) for action in rule_set.actions.values()]
    if as_json:
        output.print_report({"policy_id": rule_set.policy_id, "version": rule_set.version, "actions": measurements})
        return
    output.print_table(
        ("action", "rules", "both", "rete", "reference", "read", "count", "derive", "empty"),
        (
            (
                str(one["action"]),
                str(one["rules"]),
                *(
                    f"{one[name]:.2f}"
                    for name in ("both_us", "rete_us", "reference_us", "read_us", "count_us", "derive_us", "empty_call_us")
                ),
            )
            for one in measurements
        ),
        title="Microseconds per case",
    )


def _measure(rule_set: CompiledRuleSet, action: CompiledAction) -> dict[str, Any]:
    """Return the times of one action, in microseconds per case."""
    from gavel_rules.arbitration.history import read_history
    from gavel_rules.authoring.samples.cases import generate_cases
    from gavel_rules.derivation import derive

    cases = [sample.case for sample in generate_cases(action, BENCH_CASES_MAX)]
    if not cases:
        raise InvalidInputError(f"cannot generate params that fit the schema of {action.action_type}; add `examples` to the schema")

    def empty_call(case: object) -> object:
        return case

    state, count = _count_events(rule_set, action)
    for case in cases:
        count(case)  # so that reads find something
    reports = _reports(rule_set, action, cases)
    times = {
        "both_us": _time_us(lambda case: action.evaluate(case, True), cases),
        "rete_us": _time_us(lambda case: action.evaluate(case, False), cases),
        "reference_us": _time_us(action.evaluate_reference, cases),
        "read_us": _time_us(lambda case: read_history(state, action, case, case.now_ms, ""), cases),
        "count_us": _time_us(count, cases),
        "derive_us": _time_us(lambda report: derive(report[0], report[1], rule_set), reports),
        "empty_call_us": _time_us(empty_call, cases),
    }
    return {
        "action": action.action_type,
        "rules": len(action.rules),
        "cases": len(cases),
        "counters": len({counter.name for counter in action.read_counters}),
        **{name: round(time_us, 3) for name, time_us in times.items()},
        "both_to_empty_call": round(times["both_us"] / times["empty_call_us"], 1),
        "rete_to_empty_call": round(times["rete_us"] / times["empty_call_us"], 1),
    }


def _count_events(rule_set: CompiledRuleSet, action: CompiledAction) -> tuple[State, Callable[[Case], None]]:
    """Return a state with the counters of a rule set, and what counts a proposal, its approval and its report there."""
    from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS as SUCCESS
    from gavel.v1.execution_pb2 import Execution
    from gavel_rules.language.counters.counter import CountedEvent
    from gavel_rules.language.report_expressions import execution_values
    from gavel_rules.state.state import State
    from gavel_rules.state.transitions.counters import enter_event, open_counters

    state = State("bench")
    open_counters(state.store, rule_set.counters.values(), is_pinned=True)
    index = state.store.counters_by_event
    decided = {"outcome": "APPROVED", "reason_code": ""}
    events = [
        (source, index.get(source, {}).get(action.action_type, ()), {"trace.id": "bench", **others})
        for source, others in (("proposals", {}), ("approvals", decided), ("executions", execution_values(Execution(status=SUCCESS))))
    ]
    numbers = itertools.count()

    def count(case: Case) -> None:
        number = next(numbers)
        producer = (case.producer_type, case.producer_id, case.producer_version)
        for source, tables, others in events:
            if tables:
                event = CountedEvent(action.action_type, case.params, case.subject, *producer, others)
                enter_event(state.store, tables, f"{source}-{number}", event)
        state.commit()

    return state, count


def _reports(rule_set: CompiledRuleSet, action: CompiledAction, cases: Sequence[Case]) -> list[tuple[Envelope, Envelope]]:
    """Return a report of success for each case, with its approval and a number for each counter that derivations read."""
    from gavel.v1.decision_pb2 import Decision, FactValue
    from gavel.v1.envelope_pb2 import Envelope
    from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS, Execution
    from gavel_rules.derivation import applicable_rules
    from gavel_rules.values import python_to_value

    reports = []
    for case in cases:
        decision = Decision(action_type=action.action_type, params=python_to_value(case.params).struct_value)
        decision.fact_values.extend(
            FactValue(name=name, value=python_to_value(case.facts[name])) for name in action.derivation_facts if name in case.facts
        )
        decided = Envelope(event_id="decision", subject=case.subject, decision=decision)
        report = Envelope(event_id="report", sequence_number=2, execution=Execution(status=EXECUTION_STATUS_SUCCESS))
        for rule in applicable_rules(report, decided, rule_set):
            for key in rule.counter_keys(report, decided):
                report.execution.counters.add(counter=key.counter.name, key=key.key, value=1)
        reports.append((report, decided))
    return reports


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
