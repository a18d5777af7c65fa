"""Compensations: the action that repairs a half-done execution, with an expression for each of its params (constitution §7, ADR 0022).

The action may belong to another rule set. If it is declared in this one, the expressions are checked against its params schema: their types
when the rule set is compiled, their values when the compensation is approved. The values depend on the report and its decision alone.
`execution` decides whether and when a compensation happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gavel.v1.decision_pb2 import RetryPolicy
from gavel.v1.envelope_pb2 import Envelope
from google.protobuf.struct_pb2 import Struct

from gavel_rules.language.cel.checker import CheckedExpression
from gavel_rules.language.cel.vocabulary import ValueType
from gavel_rules.language.document.params_schema import ParamsSchema
from gavel_rules.language.report_expressions import NoValueError, ReportExpression
from gavel_rules.limits import COMPENSATION_PARAMS_BYTES_MAX
from gavel_rules.text import suggestion
from gavel_rules.values import problems, python_to_value, struct_to_dict

Report = Callable[[str, str, str, str], None]  # the param or "", code, message, suggestion

# The CEL types accepted for a param of each type. Numbers travel as doubles.
_GIVES: Final[Mapping[str, tuple[str, ...]]] = {
    "string": ("STRING",),
    "bool": ("BOOL",),
    "int": ("INT", "UINT"),
    "double": ("DOUBLE", "INT", "UINT"),
    "list": ("LIST",),
    "map": ("MAP",),
    "object": ("MAP",),
}
_JSON: Final = frozenset(kind for kinds in _GIVES.values() for kind in kinds)
_NAMES: Final[Mapping[str, str]] = {
    "bool": "a boolean",
    "int": "an integer",
    "double": "a number",
    "object": "an object",
    "map": "an object",
}


class CompensationParams(NamedTuple):
    """The params of a compensation for one report, and the problems that make them unusable."""

    params: Struct
    failures: tuple[str, ...]  # a line each
    violations: tuple[tuple[str, str], ...]  # (JSON pointer, keyword) of the violations of the action's schema


class Compensation:
    """The compensation that a rule set declares for an action, compiled.

    `target` is the params schema of the compensating action, None where another rule set declares that action. `retry` is the retry
    policy of the compensating action.
    """

    def __init__(
        self, action_type: str, expressions: Mapping[str, ReportExpression], target: ParamsSchema | None, retry: RetryPolicy
    ) -> None:
        self.action_type = action_type
        self.retry = retry
        self.expressions = tuple(sorted(expressions.items()))
        self._target = target

    def params(self, report: Envelope, decision: Envelope, *, searches_long_texts: bool = False) -> CompensationParams:
        """Return the params for a PARTIAL report on a decision, with their violations; see `ParamsSchema.violations`."""
        params = Struct()
        failures = []
        for name, expression in self.expressions:
            try:
                value = expression.json(report, decision)
            except NoValueError:
                failures.append(f"{name}: its expression gives no value for this report")
                continue
            value_problems = problems(value, name, depth=1)
            if value_problems:
                failures.extend(f"{path} {problem}" for path, problem in value_problems[:1])
            else:
                params.fields[name].CopyFrom(python_to_value(value))
        if not failures and params.ByteSize() > COMPENSATION_PARAMS_BYTES_MAX:
            failures.append(f"the params are {params.ByteSize()} bytes; the limit is {COMPENSATION_PARAMS_BYTES_MAX}")
        violations: tuple[tuple[str, str], ...] = ()
        if not failures and self._target is not None:
            violations = self._target.violations(struct_to_dict(params), searches_long_texts=searches_long_texts)
        return CompensationParams(params, tuple(failures), violations)


def check_compensation(action: str, params: Mapping[str, CheckedExpression], target: ParamsSchema | None, report: Report) -> None:
    """Report the params of a compensation that do not fit. `target` is its action's schema, if the document declares that action."""
    for name, condition in params.items():
        result_type = condition.result.partition("<")[0].upper()
        if result_type == "DYN":
            continue
        if result_type not in _JSON:
            report(name, "type-error", f"a param cannot be a {result_type.lower()}", "convert it with string(x)")
        elif target is not None and name in target.type.fields:
            _check_type(name, result_type, target.type.fields[name].type, report)
    if target is None:
        return
    known = sorted(target.type.fields)
    unknown = [name for name in params if target.closed and name not in target.type.fields]
    for reported, name in enumerate(unknown):
        report(name, "unknown-name", f"{action} has no param {name}", suggestion(name, known, reported))
    for name in known:
        if target.type.fields[name].required and name not in params:
            report("", "missing-key", f"the param {name} of {action} is missing", "add it")


def _check_type(name: str, result_type: str, type_: ValueType, report: Report) -> None:
    accepted = _GIVES.get(type_.kind)
    if accepted is not None and result_type not in accepted:
        description = _NAMES.get(type_.kind, f"a {type_.kind}")
        report(name, "type-error", f"the param {name} must be {description}, but the expression gives {result_type.lower()}", "")
