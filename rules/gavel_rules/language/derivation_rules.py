"""Derivation rules of a rule set: the facts that follow from reports of executions (constitution §4.7.3, §7.2).

A rule is an expression over a report and its decision. Its value is a string, a finite number or a boolean. If it fails, or gives
anything else, there is no fact.
"""

from __future__ import annotations

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus

from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.document.models import DerivationPart
from gavel_rules.language.document.params_schema import ParamsSchema
from gavel_rules.language.report_expressions import STATUS_PREFIX, NoValueError, ReportExpression
from gavel_rules.values import problems


class DerivationRule:
    """One derivation rule, compiled."""

    def __init__(self, part: DerivationPart, expression: ScopedExpression, schema: ParamsSchema) -> None:
        self.id = part.id
        self.version = part.version
        self.action_type = part.on.action
        self.status = ExecutionStatus.Value(STATUS_PREFIX + part.on.status)
        self.key = part.key
        self._expression = ReportExpression(expression, schema)

    def value(self, execution: Envelope, decision: Envelope) -> str | float | bool | None:
        """Return the fact's value for a report and its decision; None where there is no fact."""
        try:
            value = self._expression.scalar(execution, decision)
        except NoValueError:
            return None
        return None if problems(value, "") else value
