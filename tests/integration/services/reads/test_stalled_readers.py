"""Callers that start a stream of answers and read nothing, on a connection without a flow-control window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gavel.v1.arbitration_service_pb2 import StreamProposalsRequest
from gavel.v1.event_service_pb2 import SubscribeEventsRequest
from gavel.v1.replay_service_pb2 import VerifyReplayRequest
from gavel_server.errors import ServiceError
from gavel_server.process.polling import wait_until
from gavel_server.rpc import errors as rpc_errors
from gavel_server.rpc import messages

from tests.integration.services.world import World, fact, proposal
from tests.support.http2 import Http2Connection, message

WAIT_MS_MAX = 60_000


@pytest.fixture
async def deaf(world: World) -> AsyncIterator[Http2Connection]:
    """A connection whose caller takes no answers."""
    host, _, port = world.address.rpartition(":")
    connection = await Http2Connection.open(host, int(port), window_bytes=0)
    yield connection
    await connection.close()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods whose answers were not read, as the interceptor refuses them after a stall of a tenth of a second."""
    methods: list[str] = []

    def note(method: str, error: Exception) -> ServiceError:
        if "the answers were not read for" in str(error):
            methods.append(method.rpartition("/")[2])
        return rpc_errors.refuse(method, error)

    monkeypatch.setattr(messages, "STALL_SECONDS_MAX", 0.1)
    monkeypatch.setattr(messages, "refuse", note)
    return methods


async def wait_for(ended: list[str], *methods: str) -> None:
    """Return once the answers of these methods have stalled."""
    assert await wait_until(lambda: ended == [*methods], WAIT_MS_MAX)


async def test_streams_that_stall_are_ended(world: World, deaf: Http2Connection, ended: list[str]) -> None:
    """A replay, a subscription and a stream of proposals whose answers nobody reads end; the caller's next replay is served."""
    for _ in range(2):
        deaf.send_data(deaf.start_call(b"/gavel.v1.ReplayService/VerifyReplay"), message(b""))
        await wait_for(ended, "VerifyReplay")
        replayed = [item async for item in world.replays.VerifyReplay(VerifyReplayRequest())]
        assert replayed[-1].verdict.proved
        ended.clear()
    deaf.send_data(deaf.start_call(b"/gavel.v1.EventService/SubscribeEvents"), message(b""))
    await wait_for(ended, "SubscribeEvents")
    ended.clear()
    request = StreamProposalsRequest(envelope=proposal("order/1")).SerializeToString()
    deaf.send_data(deaf.start_call(b"/gavel.v1.ArbitrationService/StreamProposals"), message(request), end=False)
    await wait_for(ended, "StreamProposals")


async def test_a_stream_that_is_read_goes_on(world: World, ended: list[str]) -> None:
    """A subscriber that has nothing to read for longer than a stall may last gets the next event."""
    stream = world.events.SubscribeEvents(SubscribeEventsRequest(from_sequence_number=2))
    reading: asyncio.Future[Any] = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0.3)
    recorded = await world.publish(fact("order/1", "order.status", "paid"))
    assert recorded == (await reading).envelope
    assert [] == ended
    stream.cancel()
