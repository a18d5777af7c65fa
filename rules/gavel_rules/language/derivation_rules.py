"""Derivation rules of a rule set: which value of a fact follows from the report of an execution (seeds 002 §4.7.3, §7.2).

A rule is an expression over the report and its decision (`report_expressions`). One that reads what is not there fails, and then
there is no such fact. A value is a string, a finite number or a boolean; anything else, null included, is a failure too.
"""

from __future__ import annotations

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus

from gavel_rules.language.conditions import Condition, Environment, Expression
from gavel_rules.language.parts import DerivationPart
from gavel_rules.language.report_expressions import STATUS_PREFIX, NoValueError, ReportExpression
from gavel_rules.language.schema import ParamsSchema
from gavel_rules.values import problems


class DerivationRule:
    """One rule, compiled."""

    def __init__(self, part: DerivationPart, environment: Environment, condition: Condition, schema: ParamsSchema) -> None:
        self.id = part.id
        self.version = part.version
        self.action_type = part.on.action
        self.status = ExecutionStatus.Value(STATUS_PREFIX + part.on.status)
        self.key = part.key
        self._expression = ReportExpression(Expression(environment, condition), schema)

    def value(self, execution: Envelope, decision: Envelope) -> str | float | bool | None:
        """Return the value that follows from a report and its decision; None where none does."""
        try:
            value = self._expression.scalar(execution, decision)
        except NoValueError:
            return None
        return None if problems(value, "") else value
