"""Expressions over the report of an execution, for derivations and compensations (constitution §4.7.3, §7).

An expression reads the execution, its decision, and the decision's params and subject. Those of derivations also read facts and counters,
whose values the two events hold (`derivation_rules`). The two events and the rule set therefore determine its value. No schema describes
an executor's result: an expression that reads an absent part of it has no value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution, ExecutionStatus

from gavel_rules.errors import GavelRulesError
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.cel.cost import ITERATIONS_MAX, count_elements, estimate_cost
from gavel_rules.language.cel.tree_queries import find_presence_tests, find_variables
from gavel_rules.language.cel.vocabulary import COUNTER_READS
from gavel_rules.language.document.params_schema import ParamsSchema
from gavel_rules.language.engines.case import NO_HISTORY, CaseReader, bare_case
from gavel_rules.values import VALUE_DEPTH_MAX, struct_to_dict

STATUS_PREFIX: Final = "EXECUTION_STATUS_"

_CASE_ROOTS: Final = ("params", "subject", "facts", COUNTER_READS)
_ERROR: Final = "ERROR"
_SCALARS: Final = frozenset({"BOOL", "INT", "UINT", "DOUBLE", "STRING"})


class NoValueError(GavelRulesError):
    """An expression fails, or its value is not of the kind asked for."""


class DecisionEvidence(NamedTuple):
    """What an expression reads besides a report and its decision: facts by declared name, and counters by the variable of the read."""

    facts: dict[str, object]
    history: Mapping[str, float]


NO_EVIDENCE: Final = DecisionEvidence({}, NO_HISTORY)


class ReportExpression:
    """One expression, compiled. `schema` is the params schema of the action that was executed."""

    def __init__(self, scoped: ScopedExpression, schema: ParamsSchema) -> None:
        environment, expression = scoped
        self.scoped = scoped
        self._schema = schema
        self._compiled = environment.compile(expression.source)
        variables = dict(find_variables(expression.tree, environment.types))
        case_variables = [(name, type_) for name, type_ in variables.items() if name.partition(".")[0] in _CASE_ROOTS]
        presences = tuple(find_presence_tests(expression.tree))
        self._reader = CaseReader(case_variables, presences)
        self._reads_case = bool(case_variables or presences)
        self._report_reads = [(name, read) for name, read in _REPORT_READS.items() if name in variables]
        self._decision_reads = [(name, read) for name, read in _DECISION_READS.items() if name in variables]
        self._may_reach_limit = estimate_cost(expression.tree, environment.types).elements > ITERATIONS_MAX

    def scalar(self, execution: Envelope, decision: Envelope, evidence: DecisionEvidence = NO_EVIDENCE) -> str | float | bool:
        """Return the value for a report and its decision. Raises NoValueError unless it is a string, number or boolean."""
        answer = self._evaluate(execution, decision, evidence)
        if answer.type().name() not in _SCALARS:
            raise NoValueError
        value: str | float | bool = answer.plain_value()
        return value

    def json(self, execution: Envelope, decision: Envelope) -> object:
        """Return the value for a report and its decision as JSON data. Raises NoValueError if JSON cannot hold it."""
        return _to_json(self._evaluate(execution, decision, NO_EVIDENCE), 0)

    def _evaluate(self, execution: Envelope, decision: Envelope, evidence: DecisionEvidence) -> Any:
        values: dict[str, object] = {}
        if self._reads_case:
            params = self._schema.typed(struct_to_dict(decision.decision.params))
            values = self._reader.read(bare_case(params, evidence.facts, decision.subject).with_history(evidence.history))
        for name, read in self._report_reads:
            values[name] = read(execution.execution)
        for name, read_decision in self._decision_reads:
            values[name] = read_decision(decision.decision)
        if self._may_reach_limit and count_elements(self.scoped.expression.tree, values) > ITERATIONS_MAX:
            # The keys of a map have no order: a macro could find its key before the library's limit one time and not the next.
            raise NoValueError
        try:
            answer = self._compiled.eval(data=values)
        except RuntimeError as error:  # also the library's limit of iterations
            raise NoValueError from error
        if answer.type().name() == _ERROR:
            raise NoValueError
        return answer


def _to_json(answer: Any, depth: int) -> object:
    """Convert a value of the library part by part: `plain_value` of a null corrupts reference counts (see `engines.cel`)."""
    kind = answer.type().name().partition("<")[0]
    if kind == "NULL":
        return None
    if kind in _SCALARS:
        return answer.plain_value()
    if depth >= VALUE_DEPTH_MAX:
        raise NoValueError
    if kind == "LIST":
        return [_to_json(item, depth + 1) for item in answer.value()]
    if kind == "MAP":
        items = answer.value()
        if all(isinstance(name, str) for name in items):
            return {name: _to_json(items[name], depth + 1) for name in sorted(items)}  # CEL's maps have no order
    raise NoValueError


def execution_values(report: Execution) -> dict[str, object]:
    """Return what expressions read of a report, by variable."""
    return {name: read(report) for name, read in _REPORT_READS.items()}


_REPORT_READS: Final[Mapping[str, Callable[[Execution], object]]] = {
    "execution.status": lambda report: ExecutionStatus.Name(report.status).removeprefix(STATUS_PREFIX),
    "execution.attempt": lambda report: report.attempt,
    "execution.execution_id": lambda report: report.execution_id,
    "execution.reason_code": lambda report: report.reason_code,
    "execution.result": lambda report: struct_to_dict(report.result),
    "execution.error.code": lambda report: report.error.code,
    "execution.error.message": lambda report: report.error.message,
    "execution.completed_steps": lambda report: list(report.completed_steps),
}
_DECISION_READS: Final[Mapping[str, Callable[[Decision], object]]] = {
    "decision.decision_id": lambda decision: decision.decision_id,
    "decision.proposal_id": lambda decision: decision.proposal_id,
    "decision.action_type": lambda decision: decision.action_type,
    "decision.policy_id": lambda decision: decision.policy_id,
    "decision.policy_version": lambda decision: decision.policy_version,
    "decision.rule_id": lambda decision: decision.rule_id,
    "decision.conflict_key": lambda decision: decision.conflict_key,
}
