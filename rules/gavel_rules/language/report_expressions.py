"""Expressions over the report of an execution: what derivations and compensations are made of (seeds 002 §4.7.3, §7).

An expression names the execution, the decision that was carried out, and that decision's params and subject. It reads nothing
else, so whoever has the two events and the rule set computes the same. What an executor's result holds, no schema says: an
expression that reads what is not there has no value.
"""

from __future__ import annotations

from typing import Any, Final

from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution, ExecutionStatus

from gavel_rules.errors import GavelRulesError
from gavel_rules.language.case import Reader, bare_case
from gavel_rules.language.conditions import Expression
from gavel_rules.language.cost import ITERATIONS_MAX, cost_of, elements_of
from gavel_rules.language.reading import presences, reads
from gavel_rules.language.schema import ParamsSchema
from gavel_rules.values import VALUE_DEPTH_MAX, struct_to_dict

STATUS_PREFIX: Final = "EXECUTION_STATUS_"

_ERROR: Final = "ERROR"
_SCALARS: Final = frozenset({"BOOL", "INT", "UINT", "DOUBLE", "STRING"})


class NoValueError(GavelRulesError):
    """An expression errs, or gives what is no JSON value."""


class ReportExpression:
    """One expression, compiled. `schema` is that of the params of the action that was carried out."""

    def __init__(self, expression: Expression, schema: ParamsSchema) -> None:
        environment, condition = expression
        self.expression = expression
        self._schema = schema
        self._compiled = environment.compile(condition.source)
        read = dict(reads(condition.tree, environment.types))
        of_case = [(name, type_) for name, type_ in read.items() if name.partition(".")[0] in ("params", "subject")]
        self._reader = Reader(of_case, presences(condition.tree))
        self._read = frozenset(read)
        self._may_reach_limit = cost_of(condition.tree, environment.types).elements > ITERATIONS_MAX

    def scalar(self, execution: Envelope, decision: Envelope) -> str | float | bool:
        """Return the value for a report and its decision; NoValueError where it is no string, number or boolean."""
        answer = self._answer(execution, decision)
        if answer.type().name() not in _SCALARS:
            raise NoValueError
        value: str | float | bool = answer.plain_value()
        return value

    def json(self, execution: Envelope, decision: Envelope) -> object:
        """Return the value for a report and its decision as JSON in Python; NoValueError where it is none."""
        return _json(self._answer(execution, decision), 0)

    def _answer(self, execution: Envelope, decision: Envelope) -> Any:
        params = self._schema.typed(struct_to_dict(decision.decision.params))
        values = self._reader.values(bare_case(params, {}, decision.subject))
        known = (*_of_execution(execution.execution), *_of_decision(decision.decision))
        values.update((name, item) for name, item in known if name in self._read)
        if self._may_reach_limit and elements_of(self.expression.condition.tree, values) > ITERATIONS_MAX:
            # The keys of a map have no order: whether what is sought is found before the library's limit would differ from time to time.
            raise NoValueError
        try:
            answer = self._compiled.eval(data=values)
        except RuntimeError as error:  # among others: the limit of iterations
            raise NoValueError from error
        if answer.type().name() == _ERROR:
            raise NoValueError
        return answer


def _json(answer: Any, depth: int) -> object:
    """Read a value of the library part by part. It must not hand out a null, nor what may hold one: see `reference`."""
    kind = answer.type().name().partition("<")[0]
    if kind == "NULL":
        return None
    if kind in _SCALARS:
        return answer.plain_value()
    if depth >= VALUE_DEPTH_MAX:
        raise NoValueError
    if kind == "LIST":
        return [_json(item, depth + 1) for item in answer.value()]
    if kind == "MAP":
        items = answer.value()
        if all(isinstance(name, str) for name in items):
            return {name: _json(items[name], depth + 1) for name in items}
    raise NoValueError


def _of_execution(report: Execution) -> list[tuple[str, object]]:
    return [
        ("execution.status", ExecutionStatus.Name(report.status).removeprefix(STATUS_PREFIX)),
        ("execution.attempt", report.attempt),
        ("execution.execution_id", report.execution_id),
        ("execution.reason_code", report.reason_code),
        ("execution.result", struct_to_dict(report.result)),
        ("execution.error.code", report.error.code),
        ("execution.error.message", report.error.message),
        ("execution.completed_steps", list(report.completed_steps)),
    ]


def _of_decision(decision: Decision) -> list[tuple[str, object]]:
    return [
        ("decision.decision_id", decision.decision_id),
        ("decision.proposal_id", decision.proposal_id),
        ("decision.action_type", decision.action_type),
        ("decision.policy_id", decision.policy_id),
        ("decision.policy_version", decision.policy_version),
        ("decision.rule_id", decision.rule_id),
        ("decision.conflict_key", decision.conflict_key),
    ]
