"""Calls that the review of another call of their task holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest
from gavel.v1.arbitration_service_pb2 import SubmitProposalResponse
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_REJECTED, Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetEventResponse
from gavel.v1.execution_service_pb2 import BeginExecutionResponse, ExecutionStarted
from gavel.v1.projection_service_pb2 import GetProjectionResponse, ListPendingReviewsResponse, PendingReview
from gavel_client import GavelError
from gavel_client.gate import Action, Allowed, Answer, Call, Gate, Pending, ToolActions
from gavel_client.gate.gate import HOLDS_MAX

CALL = Call("refund", {}, "task-1")
NOT_FOUND = GavelError(grpc.StatusCode.NOT_FOUND, "EVENT_NOT_FOUND", "unknown")
LACKING = GavelError(grpc.StatusCode.PERMISSION_DENIED, "RIGHT_LACKING", "lacks the right")
AWAY = GavelError(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", "away", retry_after_ms=3_600_000)


class Bus:
    """A server that refuses the first proposals of a call because of a review. A preflight needs a right that the gate lacks."""

    def __init__(self, holds: int) -> None:
        self.client = AsyncMock()
        self.proposals: dict[str, Envelope] = {}
        self._holds = holds
        self.client.get_projection.return_value = GetProjectionResponse()
        self.client.list_pending_reviews.return_value = ListPendingReviewsResponse()
        self.client.preflight.side_effect = LACKING
        self.client.submit_proposal.side_effect = self._submit
        self.client.get_event.side_effect = self._event
        self.client.begin_execution.side_effect = self._begin

    async def ask(self) -> Answer:
        """Ask a gate about the call."""
        actions = ToolActions()

        @actions.tool("refund")
        def refund(arguments: Mapping[str, Any]) -> Action:
            return Action("refund.create", "order/1", {})

        return await Gate(self.client, actions, agent="agent", executor="tools")(CALL)

    def open_reviews(self, *traces: str) -> None:
        """Open reviews in these traces, each on a page of its own."""
        last = len(traces) - 1
        self.client.list_pending_reviews.side_effect = [
            ListPendingReviewsResponse(reviews=[PendingReview(trace_id=trace)], next_page_token="next" if number < last else "")
            for number, trace in enumerate(traces)
        ]

    async def _submit(self, proposal: Envelope, *, timeout_ms: int) -> SubmitProposalResponse:
        self.proposals.setdefault(proposal.event_id, proposal)
        is_held = list(self.proposals).index(proposal.event_id) < self._holds
        decision = Decision(
            outcome=OUTCOME_REJECTED if is_held else OUTCOME_APPROVED,
            reason_code="UNDER_REVIEW" if is_held else "",
            action_type="refund.create",
        )
        return SubmitProposalResponse(decision=Envelope(event_id=f"on-{proposal.event_id}", subject="order/1", decision=decision))

    async def _event(self, *, event_id: str, timeout_ms: int) -> GetEventResponse:
        if event_id not in self.proposals:
            raise NOT_FOUND
        return GetEventResponse(envelope=self.proposals[event_id])

    async def _begin(self, decision_id: str, **_: Any) -> BeginExecutionResponse:
        return BeginExecutionResponse(started=ExecutionStarted(lease_ms=60_000, decision=Envelope(event_id=decision_id)))


async def test_a_held_call_waits_for_the_reviews_of_its_task() -> None:
    """A call that a review holds is pending while its task has an open review, on whatever page of the reviews; it is proposed once."""
    bus = Bus(holds=1)
    bus.open_reviews("task-2", "task-1")
    assert isinstance(await bus.ask(), Pending)
    assert 1 == len(bus.proposals)


async def test_a_held_call_is_proposed_anew_without_a_preflight() -> None:
    """Once no review of its task is open, a call that a review held is proposed anew; the gate needs no right to preflight."""
    bus = Bus(holds=1)
    bus.open_reviews("task-2")
    assert isinstance(await bus.ask(), Allowed)
    assert 2 == len(bus.proposals)


@pytest.mark.parametrize("problem", [LACKING, AWAY])
@pytest.mark.parametrize("method", ["list_pending_reviews", "get_event"])
async def test_a_held_call_stays_pending_if_the_server_fails(method: str, problem: GavelError) -> None:
    """A call stays pending, and ends no run, if the gate cannot learn whether the review that holds it has ended."""
    bus = Bus(holds=1)
    getattr(bus.client, method).side_effect = problem
    answer = await bus.ask()
    assert isinstance(answer, Pending)
    assert "UNDER_REVIEW" == answer.reason


async def test_a_call_that_many_reviews_held_is_proposed_in_the_end() -> None:
    """One answer makes at most so many proposals, and the next one goes on after them: no call stays pending for ever."""
    bus = Bus(holds=HOLDS_MAX + 1)
    assert isinstance(await bus.ask(), Pending)
    assert HOLDS_MAX == len(bus.proposals)
    assert isinstance(await bus.ask(), Allowed)
