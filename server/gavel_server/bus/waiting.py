"""Callers whose proposals compete: each hears the decision when it is in the log, whichever server has put it there.

The proposal is in the log already and its decision will be, whoever listens. So a caller may be sent away at any time, with
what he needs to come back: the event_id of his proposal. Nothing here decides, and nothing is kept for anybody who does not wait.
"""

from __future__ import annotations

from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import Recorded

from gavel_server.bus.planning import Completed, Pending
from gavel_server.errors import ServiceError
from gavel_server.log import Record

CALLERS_MAX: Final = 10_000
# Of one proposal. Most of those who ask again have given up the call before.
CALLERS_PER_PROPOSAL_MAX: Final = 8


class WaitingRoom:
    """Who waits for the first decision on which proposal, on one bus of this server."""

    def __init__(self) -> None:
        self._callers: dict[str, list[Pending]] = {}
        self.count = 0

    def __bool__(self) -> bool:
        return bool(self._callers)

    def join(self, proposal_id: str, pending: Pending) -> None:
        """Let a caller wait; where there is no room left, he hears so, or he who has waited longest for the same decision."""
        if self.count >= CALLERS_MAX:
            pending.answer(_come_back(error_pb2.ERROR_REASON_QUEUE_FULL, f"{CALLERS_MAX} callers wait for decisions", proposal_id))
            return
        callers = self._callers.setdefault(proposal_id, [])
        if len(callers) >= CALLERS_PER_PROPOSAL_MAX:
            problem = f"{CALLERS_PER_PROPOSAL_MAX} others wait for the same decision"
            callers.pop(0).answer(_come_back(error_pb2.ERROR_REASON_QUEUE_FULL, problem, proposal_id))
            self.count -= 1
        callers.append(pending)
        self.count += 1

    def hear(self, event: Envelope, record: Record) -> None:
        """Hand on a DECISION that has been committed, here or elsewhere, to those who wait for it."""
        if not event.decision.previous_decision_id:
            for pending in self._leave(event.decision.proposal_id):
                pending.answer(Completed(Recorded(event), record))

    def dismiss(self, reason: error_pb2.ErrorReason.ValueType, problem: str) -> None:
        """Send everybody away. Their proposals compete on."""
        for proposal_id in list(self._callers):
            for pending in self._leave(proposal_id):
                pending.answer(_come_back(reason, problem, proposal_id))

    def _leave(self, proposal_id: str) -> list[Pending]:
        callers = self._callers.pop(proposal_id, [])
        self.count -= len(callers)
        return callers


def _come_back(reason: error_pb2.ErrorReason.ValueType, problem: str, proposal_id: str) -> ServiceError:
    return ServiceError(
        reason, f"{problem}; the proposal is in the log and will be decided: to hear how, retry with the same event_id, {proposal_id}"
    )
