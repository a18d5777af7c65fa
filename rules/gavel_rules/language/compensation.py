"""Compensations: the action that makes a half-done execution good, with an expression for each of its params (seeds 002 §7).

The action need not be declared in the same rule set. Where it is, the params that the expressions give are held to its schema:
as far as types go when the rule set is compiled, and whole when there are values. What they give for one report is a function
of the report and its decision; whether and when a compensation is decided is not said here (`execution`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gavel.v1.decision_pb2 import RetryPolicy
from gavel.v1.envelope_pb2 import Envelope
from google.protobuf.struct_pb2 import Struct

from gavel_rules.language.conditions import Condition
from gavel_rules.language.report_expressions import NoValueError, ReportExpression
from gavel_rules.language.schema import ParamsSchema
from gavel_rules.language.suggestions import suggestion
from gavel_rules.language.vocabulary import ValueType
from gavel_rules.limits import COMPENSATION_PARAMS_BYTES_MAX
from gavel_rules.values import problems, python_to_value, struct_to_dict

Report = Callable[[str, str, str, str], None]  # the param or "", code, message, suggestion

# What CEL may give for a param of some type. Numbers travel as doubles.
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
    """The params of a compensation for one report, with everything that keeps them from being used."""

    params: Struct
    failed: tuple[str, ...]  # what is wrong, a line each
    violations: tuple[tuple[str, str], ...]  # (JSON pointer, keyword) of what does not fit the action's schema


class Compensation:
    """What a rule set declares to make good an action that was half done, compiled.

    `target` is the schema of the compensating action's params, None where another rule set declares it. `retry` is how that
    action may be retried.
    """

    def __init__(
        self, action_type: str, expressions: Mapping[str, ReportExpression], target: ParamsSchema | None, retry: RetryPolicy
    ) -> None:
        self.action_type = action_type
        self.retry = retry
        self.expressions = tuple(sorted(expressions.items()))
        self._target = target

    def params(self, report: Envelope, decision: Envelope) -> CompensationParams:
        """Return the params for a PARTIAL report of a decision."""
        params = Struct()
        failed = []
        for name, expression in self.expressions:
            try:
                value = expression.json(report, decision)
            except NoValueError:
                failed.append(f"{name}: its expression gives no value for this report")
                continue
            found = problems(value, name, depth=1)
            if found:
                failed.extend(f"{path} {problem}" for path, problem in found[:1])
            else:
                params.fields[name].CopyFrom(python_to_value(value))
        if not failed and params.ByteSize() > COMPENSATION_PARAMS_BYTES_MAX:
            failed.append(f"the params are {params.ByteSize()} bytes; the limit is {COMPENSATION_PARAMS_BYTES_MAX}")
        violations = () if failed or self._target is None else self._target.violations(struct_to_dict(params))
        return CompensationParams(params, tuple(failed), violations)


def check_compensation(action: str, params: Mapping[str, Condition], target: ParamsSchema | None, report: Report) -> None:
    """Report everything that does not fit in the params of a compensation; `target` is its action's schema, where that is declared."""
    for name, condition in params.items():
        given = condition.result.partition("<")[0].upper()
        if given == "DYN":
            continue
        if given not in _JSON:
            report(name, "type-error", f"a param cannot be a {given.lower()}", "string(x) gives text")
        elif target is not None and name in target.type.fields:
            _check_type(name, given, target.type.fields[name].type, report)
    if target is None:
        return
    known = sorted(target.type.fields)
    unknown = [name for name in params if target.closed and name not in target.type.fields]
    for reported, name in enumerate(unknown):
        report(name, "unknown-name", f"{action} has no param {name}", suggestion(name, known, reported))
    for name in known:
        if target.type.fields[name].required and name not in params:
            report("", "missing-key", f"the param {name} of {action} is missing", "add it")


def _check_type(name: str, given: str, wanted: ValueType, report: Report) -> None:
    accepted = _GIVES.get(wanted.kind)
    if accepted is not None and given not in accepted:
        named = _NAMES.get(wanted.kind, f"a {wanted.kind}")
        report(name, "type-error", f"the param {name} is {named}, and the expression gives {given.lower()}", "")
