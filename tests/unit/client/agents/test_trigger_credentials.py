"""Triggers of an agent whose credentials expire while it waits."""

from __future__ import annotations

import grpc
import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import SubscribeEventsResponse
from gavel_client import Firing, GavelClient, GavelError, Trigger, TriggerPositions, TriggerSubscription
from gavel_client.rpc.backoff import Backoff

from tests.unit.client.fake_server import FakeServer, refusal

AGENT = Producer(type=PRODUCER_TYPE_AGENT, id="agent-1")


class MemoryPosition:
    """The positions of triggers, in memory."""

    def __init__(self) -> None:
        self.positions = TriggerPositions()

    def read(self) -> TriggerPositions:
        """Return the stored positions."""
        return self.positions

    def keep(self, positions: TriggerPositions) -> None:
        """Store the positions."""
        self.positions = positions


async def test_subscriptions_continue(server: FakeServer, backoff: Backoff) -> None:
    """A subscription whose credentials expire is opened again, after the last event; refused credentials end the agent."""
    events = [
        SubscribeEventsResponse(envelope=Envelope(sequence_number=number, event_id=str(number), chain_hash=bytes([number])))
        for number in (1, 2)
    ]
    expired = refusal(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "the credentials have expired")
    server.script("SubscribeEvents", [events[0], expired], [events[1], expired], [expired])
    fired: list[int] = []

    async def wake(firing: Firing) -> None:
        fired.extend(event.sequence_number for event in firing.events)

    async with GavelClient(server.target, backoff=backoff) as client:
        subscription = TriggerSubscription(client, [Trigger("all")], wake, producer=AGENT, position=MemoryPosition(), backoff=backoff)
        with pytest.raises(GavelError) as raised:
            await subscription.run()
    assert "UNAUTHENTICATED" == raised.value.reason
    assert [1, 2, 3] == [request.from_sequence_number for request in server.requests["SubscribeEvents"]]
    assert [b"", b"\1", b"\2"] == [request.last_read.chain_hash for request in server.requests["SubscribeEvents"]]
    assert [1, 2][: len(fired)] == fired  # the refusal may come before the agent was woken
