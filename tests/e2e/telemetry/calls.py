"""Calls with a trace context."""

from __future__ import annotations

from typing import Any, Final

import grpc
from gavel.v1 import arbitration_service_pb2_grpc, event_service_pb2_grpc
from gavel.v1.arbitration_service_pb2 import SubmitProposalRequest
from gavel.v1.event_service_pb2 import ListEventsRequest, PublishEventRequest
from gavel_client import fact_envelope

from tests.e2e.world import DEPOT, Server, open_bus, proposal

TRACE_ID: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID: Final = "00f067aa0ba902b7"
TRACEPARENT: Final = f"00-{TRACE_ID}-{PARENT_ID}-01"
SUBMIT: Final = "gavel.v1.ArbitrationService/SubmitProposal"
PUBLISH: Final = "gavel.v1.EventService/PublishEvent"
# Exports soon, so that no test waits for an interval.
SOON: Final = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "200"}


async def prepare(server: Server) -> None:
    """Open the default bus, with the tests' rule set."""
    async with server.client() as client:
        await open_bus(client)


async def decide(server: Server, metadata: Any, *, parcel: str = "parcel/1", status: str = "ready") -> str:
    """Publish a fact and propose on it with some metadata; return the proposal's recorded context."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        events: Any = event_service_pb2_grpc.EventServiceStub(channel)
        arbitration: Any = arbitration_service_pb2_grpc.ArbitrationServiceStub(channel)
        fact = fact_envelope(parcel, DEPOT, key="parcel.status", value=status)
        published = (await events.PublishEvent(PublishEventRequest(envelope=fact), metadata=metadata)).envelope
        await arbitration.SubmitProposal(SubmitProposalRequest(envelope=proposal(published)), metadata=metadata)
        listed = (await events.ListEvents(ListEventsRequest(page_size=100))).envelopes
    return [str(event.traceparent) for event in listed if event.HasField("proposal")][-1]
