"""Bytes that end grpc.aio's loop for ever: the server builds its listener again on the same address."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from gavel_client import GavelClient, GavelError, fact_envelope

from tests.e2e.world import DEPOT, Server, fronts_of, poll, run_servers
from tests.support.fronts import FRONTS
from tests.support.http2 import END_HEADERS, HEADERS, PREFACE, SETTINGS, Http2Connection, call_headers, frame

NOT_UTF_8 = b"/gavel.v1.\xff\xfe/GetEvent"


def rebuilds(server: Server) -> int:
    """Return how often a server has built its listener again."""
    return server.log().count("listener.rebuilt")


async def wait_for_rebuilds(server: Server, count: int) -> None:
    """Return once a server has built its listener again so often."""

    async def enough() -> bool | None:
        return rebuilds(server) >= count or None

    await poll(enough, server.log)


async def publish(client: GavelClient) -> int:
    """Publish a fact, with the client's retries; return its number."""

    async def number() -> int | None:
        try:
            fact = fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")
            return (await client.publish_event(fact)).envelope.sequence_number
        except GavelError:
            return None

    return await poll(number)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "unix:{}/gavel.sock"], ids=["tcp", "unix"])
async def test_paths_that_are_not_utf_8(tmp_path: Path, listen: str) -> None:
    """After a path that is not UTF-8 the server answers again on the same address, each time, also callers that were connected before."""
    server = Server(tmp_path / "data", listen=listen.format(tmp_path), options=["--front", "none"])
    with run_servers(server):
        address = server.address
        async with server.client() as client:
            first = await publish(client)
            for count in (1, 2):
                await _send_bad_path(address)
                await wait_for_rebuilds(server, count)
                assert first + count == await publish(client)
        async with GavelClient(address) as newcomer:
            assert first + 2 == (await newcomer.get_status()).head_sequence_number
        assert 0 == server.terminate()


async def test_calls_under_way_are_answered(tmp_path: Path) -> None:
    """A subscription that is under way when the listener fails goes on, or ends so that its caller can resume it."""
    server = Server(tmp_path / "data", options=["--front", "none"])
    with run_servers(server):
        async with server.client() as client, server.client() as writer:
            first = await publish(writer)
            stream = client.subscribe_events(from_sequence_number=first)
            assert first == (await anext(aiter(stream))).envelope.sequence_number
            await _send_bad_path(server.address)
            await wait_for_rebuilds(server, 1)
            second = await publish(writer)
            async with asyncio.timeout(60):
                async for item in stream:
                    if item.envelope.sequence_number == second:
                        break
            await stream.aclose()


@pytest.mark.parametrize("front", FRONTS)
async def test_private_socket(tmp_path: Path, front: str) -> None:
    """The listener behind a front is built again on a new private socket, and the front finds it."""
    server = Server(tmp_path / "data", options=["--front", front])
    with run_servers(server):
        async with server.client() as client:
            first = await publish(client)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(_private_path(server))
                connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, call_headers(NOT_UTF_8)))
                await wait_for_rebuilds(server, 1)
            assert first + 1 == await publish(client)
            assert first + 1 == (await client.get_status()).head_sequence_number
        assert 0 == server.terminate()


def _private_path(server: Server) -> str:
    """Return the path of a server's private socket, as other processes of this user reach it."""
    (front,) = fronts_of(server.running.pid)
    arguments = Path(f"/proc/{front}/cmdline").read_text().split("\0")
    (path,) = [argument.removeprefix("unix:") for argument in arguments if argument.startswith("unix:")]
    return path.replace("/self/", f"/{server.running.pid}/")


async def _send_bad_path(address: str) -> None:
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        connection = Http2Connection(reader, writer)
        connection.send(PREFACE + frame(SETTINGS, 0, 0))
    else:
        host, _, port = address.rpartition(":")
        connection = await Http2Connection.open(host, int(port))
    connection.start_call(NOT_UTF_8)
    await connection.wait_closed()
    await connection.close()
