"""Connections to a distant or busy server, which take long to open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from gavel.v1.projection_service_pb2 import GetStatusResponse
from gavel_client import GavelClient, SyncGavelClient
from gavel_client.rpc.backoff import Backoff

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
