"""Connections to a distant or busy server, which take long to open, and connections whose peer has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from gavel.v1.projection_service_pb2 import GetStatusResponse
from gavel_client import GavelClient, GavelError, SyncGavelClient
from gavel_client.rpc import client as client_module
from gavel_client.rpc.backoff import Backoff
from gavel_client.rpc.connection import CHANNEL_OPTIONS, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS
from gavel_server.rpc.limits import PING_SECONDS_MIN

from tests.unit.client.fake_server import FakeServer

# Longer than all the pauses between a client's tries together, so that only one that waits for a connection gets one.
DELAY_SECONDS = 0.5


@pytest.fixture
async def distant(server: FakeServer) -> AsyncIterator[str]:
    """The address of a proxy that delays every answer of `server` by DELAY_SECONDS."""
    host, _, port = server.target.rpartition(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_seconds: float) -> None:
        while content := await reader.read(65_536):
            await asyncio.sleep(delay_seconds)
            writer.write(content)
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(reader, to_server, 0), carry(from_server, writer, DELAY_SECONDS), return_exceptions=True)

    listening = await asyncio.start_server(connect, "127.0.0.1", 0)
    async with listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def test_asynchronous_client(distant: str, server: FakeServer, backoff: Backoff) -> None:
    """A call over a slow connection succeeds."""
    server.script("GetStatus", GetStatusResponse(head_sequence_number=7))
    async with GavelClient(distant, backoff=backoff) as client:
        assert 7 == (await client.get_status()).head_sequence_number


async def test_synchronous_client(distant: str, server: FakeServer, backoff: Backoff) -> None:
    """A blocking call over a slow connection succeeds."""
    server.script("GetStatus", GetStatusResponse(head_sequence_number=7))
    with SyncGavelClient(distant, backoff=backoff) as client:
        assert 7 == (await asyncio.to_thread(client.get_status)).head_sequence_number


class Link:
    """A proxy to a server. Once it is cut, it keeps its connections and carries nothing, as a network without a route."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._is_cut = False

    def cut(self) -> None:
        """Carry nothing more."""
        self._is_cut = True

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        from_server, to_server = await asyncio.open_connection(self._host, int(self._port))
        await asyncio.gather(self._carry(reader, to_server), self._carry(from_server, writer), return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while content := await reader.read(65_536):
            if not self._is_cut:
                writer.write(content)
        writer.close()


async def test_half_open_connection(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet stream over a connection whose peer has gone without a word ends with UNAVAILABLE."""
    options = dict(CHANNEL_OPTIONS)
    assert KEEPALIVE_MS == options["grpc.keepalive_time_ms"]
    assert KEEPALIVE_TIMEOUT_MS == options["grpc.keepalive_timeout_ms"] == options["grpc.http2.ping_timeout_ms"]
    hastened = {"grpc.keepalive_time_ms": 100, "grpc.keepalive_timeout_ms": 500, "grpc.http2.ping_timeout_ms": 500}
    monkeypatch.setattr(client_module, "CHANNEL_OPTIONS", tuple({**options, **hastened}.items()))
    link = Link(server.target)
    begun = asyncio.Event()

    async def quiet(_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    server.answers["SubscribeEvents"] = quiet
    listening = await asyncio.start_server(link.connect, "127.0.0.1", 0)
    async with listening, GavelClient(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}") as client:
        reading = asyncio.ensure_future(anext(client.subscribe_events()))
        await begun.wait()
        link.cut()
        with pytest.raises(GavelError) as raised:
            await reading
    assert grpc.StatusCode.UNAVAILABLE is raised.value.code


def test_servers_permit_the_pings() -> None:
    """A client pings less than half as often as a server permits, so that no delay of a ping brings two too close together."""
    assert 2 * PING_SECONDS_MIN * 1000 <= KEEPALIVE_MS
