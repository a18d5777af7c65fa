"""`gavel rules diff`, `graph` and `bench`: what a rule set decides, looked at offline with made cases."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gavel_server.cli.documents import STANDARD_INPUT
from gavel_server.cli.errors import EXIT_FAILURE, InvalidInputError
from gavel_server.cli.options import Debug, JsonReport
from gavel_server.cli.rules import RuleSetFile

if TYPE_CHECKING:
    from gavel_rules.authoring.difference import Decided, Difference
    from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet

# Like diff(1): the documents differ.
EXIT_DIFFERENT: Final = EXIT_FAILURE
BENCH_CASES_MAX: Final = 64
BENCH_ROUNDS: Final = 5
BENCH_ROUND_MS: Final = 50


class GraphFormat(StrEnum):
    """Languages for diagrams."""

    MERMAID = "mermaid"
    DOT = "dot"


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A rule set in YAML or JSON; - is standard input.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Another version of it.")],
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Show what two versions of a rule set decide differently.

    Lists edited rules, thresholds and declarations, and made cases on which the versions differ. Exit status 0 if nothing differs
    but the version and the description, 1 if something does, 2 if a document is not valid.
    """
    from gavel_rules.authoring.difference import difference

    from gavel_server.cli import output

    if old == new == STANDARD_INPUT:
        raise InvalidInputError("standard input can be one of the two versions only; name a file for the other")
    older, newer = _compiled(old), _compiled(new)
    found = difference(older, newer)
    if as_json:
        output.say(json.dumps(_as_json(older, newer, found), ensure_ascii=False, indent=2))
    else:
        for line in _lines(found):
            output.say(line)
        output.note(f"gavel: {_counted(found)}")
    if found:
        raise typer.Exit(EXIT_DIFFERENT)


def graph(
    file: RuleSetFile,
    language: Annotated[GraphFormat, typer.Option("--format", help="The language of the diagram.")] = GraphFormat.MERMAID,
    as_json: JsonReport = False,
    debug: Debug = False,
) -> None:
    """Print a diagram of a rule set: its actions, the facts that their rules read, the order in which rules are asked."""
    from gavel_rules.authoring import graph as drawing

    from gavel_server.cli import output

    if as_json:
        output.say(json.dumps(drawing.described(_compiled(file)), ensure_ascii=False, indent=2))
        return
    draw = {GraphFormat.MERMAID: drawing.mermaid, GraphFormat.DOT: drawing.dot}[language]
    output.say(draw(_compiled(file)))


def bench(file: RuleSetFile, as_json: JsonReport = False, debug: Debug = False) -> None:
    """Measure how long the rules of each action take on made cases: both engines, Rete alone, the reference engine alone.

    Times are microseconds a case, the best of several rounds; an empty call is what Python itself takes.
    """
    from gavel_server.cli import output

    rule_set = _compiled(file)
    measured = [_measured(action) for action in rule_set.actions.values()]
    if as_json:
        output.say(
            json.dumps({"policy_id": rule_set.policy_id, "version": rule_set.version, "actions": measured}, ensure_ascii=False, indent=2)
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
            for one in measured
        ),
        title="Microseconds a case",
    )


def _compiled(file: str) -> CompiledRuleSet:
    from gavel_server.cli import documents

    return documents.compiled(documents.read_rule_set(file), file)


def _as_json(older: CompiledRuleSet, newer: CompiledRuleSet, found: Difference) -> dict[str, Any]:
    return {
        "old": _identity(older),
        "new": _identity(newer),
        "added": found.added,
        "removed": found.removed,
        "changed": found.changed,
        "edits": [edit._asdict() for edit in found.edits],
        "cases": [{**case._asdict(), "before": case.before._asdict(), "after": case.after._asdict()} for case in found.cases],
    }


def _identity(rule_set: CompiledRuleSet) -> dict[str, object]:
    return {"policy_id": rule_set.policy_id, "version": rule_set.version, "digest": rule_set.digest}


def _lines(found: Difference) -> Sequence[str]:
    lines = [f"+ rule {rule_id}" for rule_id in found.added]
    lines.extend(f"- rule {rule_id}" for rule_id in found.removed)
    lines.extend(f"~ rule {rule_id}" for rule_id in found.changed)
    lines.extend(f"  {edit.path}: {_value(edit.before)} -> {_value(edit.after)}" for edit in found.edits)
    for case in found.cases:
        parts = [f"params {_value(case.params)}", *([f"facts {_value(case.facts)}"] if case.facts else [])]
        parts.extend(f"{name} {_value(value)}" for name, value in case.context.items())
        lines.extend([f"case {case.action}: {', '.join(parts)}", f"  before: {_said(case.before)}", f"  after:  {_said(case.after)}"])
    return lines


def _value(value: object) -> str:
    return "(none)" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _said(decided: Decided) -> str:
    return " ".join(filter(None, (decided.outcome, decided.reason_code, f"by {decided.rule_id}" if decided.rule_id else "")))


def _counted(found: Difference) -> str:
    if not found:
        return "the two decide the same"
    if not found.cases:
        return "no case was found that the two decide differently"
    return f"kinds of cases that the two decide differently: {len(found.cases)}"


def _measured(action: CompiledAction) -> dict[str, Any]:
    """Return the times of one action, in microseconds for one case."""
    from gavel_rules.authoring.cases import generated_cases

    cases = [generated.case for generated in generated_cases(action, BENCH_CASES_MAX)]
    if not cases:
        raise InvalidInputError(f"no params were found that fit the schema of {action.action_type}; give `examples` in the schema")

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
    """Return how long a call takes on one of the cases: the best mean of several rounds, for others only ever slow it down."""
    from time import perf_counter

    best = float("inf")
    for _ in range(BENCH_ROUNDS):
        calls = 0
        begun = perf_counter()
        while (taken := perf_counter() - begun) < BENCH_ROUND_MS / 1000 or not calls:
            for case in cases:
                call(case)
            calls += len(cases)
        best = min(best, taken / calls)
    return best * 1_000_000
