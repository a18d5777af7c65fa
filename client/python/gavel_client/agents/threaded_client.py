"""The calls of a proposal loop and of a gate on the synchronous client, each in a thread."""

from __future__ import annotations

import asyncio

from gavel.v1.arbitration_service_pb2 import (
    DECISION_PHASE_DECIDED,
    DecisionPhase,
    PreflightResponse,
    SubmitProposalResponse,
    WaitDecisionResponse,
)
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetEventResponse, PublishEventResponse
from gavel.v1.execution_service_pb2 import BeginExecutionResponse, ReportExecutionResponse
from gavel.v1.projection_service_pb2 import GetProjectionResponse, ListPendingReviewsResponse

from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.sync import SyncGavelClient


class ThreadedClient:
    """Coroutines around a SyncGavelClient. `rpc.calls` documents the calls."""

    def __init__(self, client: SyncGavelClient) -> None:
        self._client = client

    async def submit_proposal(self, envelope: Envelope, *, timeout_ms: int) -> SubmitProposalResponse:
        """Append a proposal and return its decision."""
        return await asyncio.to_thread(self._client.submit_proposal, envelope, timeout_ms=timeout_ms)

    async def preflight(self, envelope: Envelope, *, timeout_ms: int) -> PreflightResponse:
        """Return the decision that a proposal would get now."""
        return await asyncio.to_thread(self._client.preflight, envelope, timeout_ms=timeout_ms)

    async def publish_event(self, envelope: Envelope, *, timeout_ms: int) -> PublishEventResponse:
        """Append an event; return it as recorded."""
        return await asyncio.to_thread(self._client.publish_event, envelope, timeout_ms=timeout_ms)

    async def get_event(self, *, event_id: str, timeout_ms: int) -> GetEventResponse:
        """Read one event."""
        return await asyncio.to_thread(self._client.get_event, event_id=event_id, timeout_ms=timeout_ms)

    async def wait_decision(
        self, decision_id: str, *, phase: DecisionPhase.ValueType = DECISION_PHASE_DECIDED, timeout_ms: int
    ) -> WaitDecisionResponse:
        """Wait until a decision has reached a phase."""
        return await asyncio.to_thread(self._client.wait_decision, decision_id, phase=phase, timeout_ms=timeout_ms)

    async def get_projection(self, subject: str, *, page_token: str = "", timeout_ms: int) -> GetProjectionResponse:
        """Read a page of the state of a subject."""
        return await asyncio.to_thread(self._client.get_projection, subject, page_token=page_token, timeout_ms=timeout_ms)

    async def list_pending_reviews(self, *, page_token: str = "", timeout_ms: int) -> ListPendingReviewsResponse:
        """Read a page of the open reviews."""
        return await asyncio.to_thread(self._client.list_pending_reviews, page_token=page_token, timeout_ms=timeout_ms)

    async def begin_execution(
        self, decision_id: str, *, producer: Producer, lease_ms: int, request_id: str, timeout_ms: int
    ) -> BeginExecutionResponse:
        """Start an attempt of an approved decision."""
        return await asyncio.to_thread(
            self._client.begin_execution, decision_id, producer=producer, lease_ms=lease_ms, request_id=request_id, timeout_ms=timeout_ms
        )

    async def report_execution(self, envelope: Envelope, *, timeout_ms: int) -> ReportExecutionResponse:
        """Record the outcome of an attempt."""
        return await asyncio.to_thread(self._client.report_execution, envelope, timeout_ms=timeout_ms)


LoopClient = GavelClient | ThreadedClient
