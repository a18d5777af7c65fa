"""Sample reports of executions: their results have the fields that derivations read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gavel.v1.execution_pb2 import ExecutionStatus

from gavel_rules.authoring.samples.hints import Hints, collect_hints_of
from gavel_rules.language.derivation_rules import DerivationRule
from gavel_rules.language.report_expressions import STATUS_PREFIX

_RESULT: Final = "execution.result."
PLAIN_NUMBER: Final = 1.5


class EarlierReport(NamedTuple):
    """The report of an earlier execution; with an empty `status` there is none."""

    status: str
    result: Mapping[str, Any]


def sample_reports(rules: Iterable[DerivationRule]) -> list[Mapping[str, Any]]:
    """Return reports, as suites write them, from which derivations derive a fact."""
    reports: list[Mapping[str, Any]] = []
    for rule in rules:
        status = ExecutionStatus.Name(rule.status).removeprefix(STATUS_PREFIX)
        for result in sample_results(collect_hints_of((rule.value_expression, rule.subject_expression))):
            report = {"status": status, **({"result": result} if result else {})}
            if report not in reports:
                reports.append(report)
    return reports


def sample_results(hints: Mapping[str, Hints], plain_number: float = PLAIN_NUMBER) -> Iterator[dict[str, Any]]:
    """Yield results of an execution with the fields that an expression reads; their types are not known."""
    plain_values = (plain_number, "text", True)
    fields = [path.removeprefix(_RESULT) for path in hints if path.startswith(_RESULT)]
    names = [name for name in fields if "[]" not in name and not any(other.startswith(f"{name}.") for other in fields)]
    for plain in plain_values:
        result: dict[str, Any] = {}
        for name in names:
            of_field: tuple[object, ...] = hints[f"{_RESULT}{name}"].constants
            _put(result, name.split("."), next(iter(of_field), plain))
        yield result
        if not names:
            return
        if plain is plain_number:
            yield {}  # a report that lacks them


def _put(result: dict[str, Any], steps: Sequence[str], value: object) -> None:
    for step in steps[:-1]:
        result = result.setdefault(step, {})
    result[steps[-1]] = value
