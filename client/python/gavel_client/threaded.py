"""The calls that an agent's loop makes, of either client: those of the blocking one each run in a thread."""

from __future__ import annotations

import asyncio

from gavel.v1.arbitration_service_pb2 import PreflightResponse, SubmitProposalResponse
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetEventResponse, PublishEventResponse
from gavel.v1.projection_service_pb2 import GetProjectionResponse

from gavel_client.client import GavelClient
from gavel_client.sync import SyncGavelClient


class ThreadedClient:
    """A blocking client, awaited. See `calls` for what the calls do."""

    def __init__(self, client: SyncGavelClient) -> None:
        self._client = client

    async def submit_proposal(self, envelope: Envelope, *, timeout_ms: int) -> SubmitProposalResponse:
        """Append a proposal and return its decision."""
        return await asyncio.to_thread(self._client.submit_proposal, envelope, timeout_ms=timeout_ms)

    async def preflight(self, envelope: Envelope, *, timeout_ms: int) -> PreflightResponse:
        """Return the decision that a proposal would get now."""
        return await asyncio.to_thread(self._client.preflight, envelope, timeout_ms=timeout_ms)

    async def publish_event(self, envelope: Envelope, *, timeout_ms: int) -> PublishEventResponse:
        """Append an event and return it as recorded."""
        return await asyncio.to_thread(self._client.publish_event, envelope, timeout_ms=timeout_ms)

    async def get_event(self, *, event_id: str, timeout_ms: int) -> GetEventResponse:
        """Read one event."""
        return await asyncio.to_thread(self._client.get_event, event_id=event_id, timeout_ms=timeout_ms)

    async def get_projection(self, subject: str, *, timeout_ms: int) -> GetProjectionResponse:
        """Read a subject's state."""
        return await asyncio.to_thread(self._client.get_projection, subject, timeout_ms=timeout_ms)


AgentCalls = GavelClient | ThreadedClient
