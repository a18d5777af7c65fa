"""An auditor of budgets: recounts from a log how much of a budget is in use after each event.

It shares only the contract's messages with the code that it audits, and adds with exact fractions. An approval uses its amount from the
event that approves it. It stops using it when it expires, is revoked or is aborted. The report of a success settles it: its amount stays
in use for the budget's window, which is longer than the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.envelope_pb2 import Envelope

_ENDS = frozenset({decision_pb2.OUTCOME_EXPIRED, decision_pb2.OUTCOME_REVOKED})


class BudgetError(AssertionError):
    """The log has more of the budget in use than there is."""


@dataclass
class BudgetAudit:
    """The use of a budget, event by event. `param` is the amount's, `action_type` that of the approvals that use the budget."""

    limit: Fraction
    action_type: str
    param: str
    used: Fraction = Fraction(0)
    used_max: Fraction = Fraction(0)
    approvals: int = 0
    refusals: int = 0
    releases: int = 0
    settled: int = 0
    _amounts: dict[str, Fraction] = field(default_factory=dict)  # of live and settled approvals, by event_id

    def read(self, events: Iterable[Envelope]) -> BudgetAudit:
        """Audit events in the order of the log. Raises BudgetError at the first event after which too much is in use."""
        for event in events:
            self._read_event(event)
            if self.used > self.limit:
                raise BudgetError(f"after event {event.sequence_number}, {float(self.used)} of {float(self.limit)} is in use")
            self.used_max = max(self.used_max, self.used)
        return self

    def _read_event(self, event: Envelope) -> None:
        decision = event.decision
        if event.HasField("decision") and decision.action_type == self.action_type:
            if decision.outcome == decision_pb2.OUTCOME_APPROVED:
                amount = Fraction(str(decision.params[self.param]))
                self._amounts[event.event_id] = amount
                self.used += amount
                self.approvals += 1
            elif decision.outcome == decision_pb2.OUTCOME_REJECTED:
                self.refusals += 1
            elif decision.outcome in _ENDS:
                self._release(decision.previous_decision_id)
        elif event.execution.status == execution_pb2.EXECUTION_STATUS_ABORTED:
            self._release(event.execution.decision_id)
        elif event.execution.status == execution_pb2.EXECUTION_STATUS_SUCCESS:
            self.settled += 1

    def _release(self, decision_id: str) -> None:
        self.used -= self._amounts.pop(decision_id)
        self.releases += 1
