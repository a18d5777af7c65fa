"""The calls of a proposal loop on the synchronous client, each in a thread."""

from __future__ import annotations

import asyncio

from gavel.v1.arbitration_service_pb2 import PreflightResponse, SubmitProposalResponse, WaitDecisionResponse
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetEventResponse, PublishEventResponse
from gavel.v1.projection_service_pb2 import GetProjectionResponse

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

    async def wait_decision(self, decision_id: str, *, timeout_ms: int) -> WaitDecisionResponse:
        """Wait until a decision is no longer under review."""
        return await asyncio.to_thread(self._client.wait_decision, decision_id, timeout_ms=timeout_ms)

    async def get_projection(self, subject: str, *, page_token: str = "", timeout_ms: int) -> GetProjectionResponse:
        """Read a page of the state of a subject."""
        return await asyncio.to_thread(self._client.get_projection, subject, page_token=page_token, timeout_ms=timeout_ms)


LoopClient = GavelClient | ThreadedClient
