"""Derivation rules of a rule set: which value of a fact follows from the report of an execution (seeds 002 §4.7.3, §7.2).

A rule is a CEL expression over the execution, the decision that was carried out, and the decision's params and subject. It
reads nothing else, so whoever has the two events and the rule set computes the same. What an executor's result holds, no
schema says: a rule that reads what is not there fails, and then there is no such fact. A value is a string, a finite number
or a boolean; anything else, null included, is a failure too.
"""

from __future__ import annotations

from typing import Final

from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution, ExecutionStatus

from gavel_rules.case import Case, Reader
from gavel_rules.conditions import Condition, Environment, presences, reads
from gavel_rules.parts import DerivationPart
from gavel_rules.schema import ParamsSchema
from gavel_rules.values import problems, struct_to_dict

STATUS_PREFIX: Final = "EXECUTION_STATUS_"

_SCALARS: Final = frozenset({"BOOL", "INT", "UINT", "DOUBLE", "STRING"})


class DerivationRule:
    """One rule, compiled."""

    def __init__(self, part: DerivationPart, environment: Environment, condition: Condition, schema: ParamsSchema) -> None:
        self.id = part.id
        self.version = part.version
        self.action_type = part.on.action
        self.status = ExecutionStatus.Value(STATUS_PREFIX + part.on.status)
        self.key = part.key
        self._schema = schema
        self._expression = environment.compile(condition.source)
        read = dict(reads(condition.tree, environment.types))
        of_case = [(name, type_) for name, type_ in read.items() if name.partition(".")[0] in ("params", "subject")]
        self._reader = Reader(of_case, presences(condition.tree))
        self._read = frozenset(read)

    def value(self, execution: Envelope, decision: Envelope) -> str | float | bool | None:
        """Return the value that follows from a report and its decision; None where none does."""
        params = self._schema.typed(struct_to_dict(decision.decision.params))
        values = self._reader.values(Case(params, {}, 0.0, 0.0, 0.0, 0, "", decision.subject, "", "", "", 0, 0, 0, 0, 0))
        known = (*_of_execution(execution.execution), *_of_decision(decision.decision))
        values.update((name, item) for name, item in known if name in self._read)
        try:
            answer = self._expression.eval(data=values)
        except RuntimeError:
            return None
        # The library must not hand out a null, nor what may hold one: see `reference`.
        if answer.type().name() not in _SCALARS:
            return None
        value: str | float | bool = answer.plain_value()
        return None if problems(value, "") else value


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
