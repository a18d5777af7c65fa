"""Callers whose proposals wait in contests. Each gets the decision once it is in the log, whichever server committed it.

The proposal is already in the log, and its decision will be, with or without a caller. The server may therefore dismiss a caller at
any time; the error names the event_id to retry with. Nothing here decides, and nothing is stored for absent callers. Each caller has a
share of the places, as in a queue (`fairness/fair_queue`).
"""

from __future__ import annotations

from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import EventAnswer

from gavel_server.bus.answers.confirmed_answers import ConfirmedAnswers
from gavel_server.bus.request import CommittedAnswer, Request
from gavel_server.errors import ServiceError
from gavel_server.fairness.fair_queue import Shares
from gavel_server.log import Record

CALLERS_MAX: Final = 10_000
# Callers that repeat a request have mostly given up the earlier call.
CALLERS_PER_PROPOSAL_MAX: Final = 8


class ContestWaiters:
    """The waiting callers of one bus on this server, by proposal."""

    def __init__(self, answers: ConfirmedAnswers) -> None:
        self._answers = answers
        self._requests: dict[str, list[Request]] = {}
        self._proposal_ids: dict[str, dict[Request, str]] = {}  # by caller, in order
        self._shares = Shares()

    def __bool__(self) -> bool:
        return bool(self._requests)

    @property
    def count(self) -> int:
        """The number of waiting callers."""
        return self._shares.all.count

    def add(self, proposal_id: str, request: Request) -> None:
        """Let a caller wait. At a limit, dismiss this caller, one with more places, or the one waiting longest for this decision.

        A request that waits already, because its append was in the log although its outcome was unknown, keeps its place.
        """
        if request in self._proposal_ids.get(request.caller, {}):
            return
        if self.count >= CALLERS_MAX:
            largest = self._shares.largest_other(request.caller)
            problem = f"{CALLERS_MAX} calls of this bus wait for contests, and the caller has used its share"
            if largest is None:
                request.answer(_dismissal(error_pb2.ERROR_REASON_QUEUE_FULL, problem, proposal_id))
                return
            self._dismiss(next(reversed(self._proposal_ids[largest])), problem)
        requests = self._requests.get(proposal_id, [])
        if len(requests) >= CALLERS_PER_PROPOSAL_MAX:
            self._dismiss(requests[0], f"{CALLERS_PER_PROPOSAL_MAX} later calls wait for the same decision")
        self._requests.setdefault(proposal_id, []).append(request)
        self._proposal_ids.setdefault(request.caller, {})[request] = proposal_id
        self._shares.add(self._shares.usage_of(request.caller))

    def notify(self, event: Envelope, record: Record) -> None:
        """Answer the callers that wait for this committed DECISION, once it is confirmed."""
        if not event.decision.previous_decision_id:
            for request in self._remove(event.decision.proposal_id):
                self._answers.answer(request, CommittedAnswer(EventAnswer(event), record), record.sequence_number)

    def dismiss_all(self, reason: error_pb2.ErrorReason.ValueType, problem: str) -> None:
        """Dismiss every caller. Their proposals stay in their contests."""
        for proposal_id in list(self._requests):
            for request in self._remove(proposal_id):
                request.answer(_dismissal(reason, problem, proposal_id))

    def _remove(self, proposal_id: str) -> list[Request]:
        requests = self._requests.pop(proposal_id, [])
        for request in requests:
            self._forget(request)
        return requests

    def _dismiss(self, request: Request, problem: str) -> None:
        proposal_id = self._forget(request)
        requests = self._requests[proposal_id]
        requests.remove(request)
        if not requests:
            del self._requests[proposal_id]
        request.answer(_dismissal(error_pb2.ERROR_REASON_QUEUE_FULL, problem, proposal_id))

    def _forget(self, request: Request) -> str:
        """Free the place of a request; return its proposal."""
        proposal_ids = self._proposal_ids[request.caller]
        proposal_id = proposal_ids.pop(request)
        if not proposal_ids:
            del self._proposal_ids[request.caller]
        self._shares.remove(self._shares.usage_of(request.caller))
        return proposal_id


def _dismissal(reason: error_pb2.ErrorReason.ValueType, problem: str, proposal_id: str) -> ServiceError:
    return ServiceError(
        reason,
        f"{problem}. The proposal is recorded and will be decided; retry with its event_id, {proposal_id}, to get the decision",
    )
