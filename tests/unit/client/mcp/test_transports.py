"""The sockets on which the proxy listens, and its connections."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from gavel_client.mcp import transports
from gavel_client.mcp.transports import close_silent, close_silent_forever, is_loopback

SECONDS_MAX = 60
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", True), ("127.0.0.2", True), ("localhost", True), ("0.0.0.0", False)])  # noqa: S104
def test_loopback(host: str, expected: bool) -> None:
    """The address of the socket decides whether other machines reach it, not the name that was given for it."""
    with socket.create_server((host, 0)) as listener:
        assert expected == is_loopback(listener)


class Website:
    """A web server that answers a request when `answers` is set."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, as ASGI has it."""
        await self.answers.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(website: Website) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """Yield a web server and its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        web = uvicorn.Server(uvicorn.Config(website, log_config=None, lifespan="off"))
        task = asyncio.create_task(web.serve(sockets=[listener]))
        async with asyncio.timeout(SECONDS_MAX):
            yield web, listener.getsockname()[1]
        web.should_exit = True
        await task


async def connect(web: uvicorn.Server, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection that the server has accepted."""
    count = len(web.server_state.connections)
    connection = await asyncio.open_connection("127.0.0.1", port)
    while len(web.server_state.connections) <= count:  # noqa: ASYNC110  # it sets no event
        await asyncio.sleep(0.001)
    return connection


async def closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the server closes a connection without a word."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_silent_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that sends no whole request is closed after a while; one whose request waits for its answer stays."""
    monkeypatch.setattr(transports, "SILENT_SECONDS_MAX", 0.2)
    monkeypatch.setattr(transports, "CHECK_SECONDS", 0.01)
    website = Website()
    async with serving(website) as (web, port):
        closing = asyncio.create_task(close_silent_forever(web))
        busy, request = await asyncio.open_connection("127.0.0.1", port)
        request.write(REQUEST)
        for words in (b"", b"GET / HTTP/1.1\r\nHost:"):
            silent, begun = await asyncio.open_connection("127.0.0.1", port)
            begun.write(words)
            assert await closed(silent)
        website.answers.set()
        assert b"HTTP/1.1 204" in await busy.readline()
        request.close()
        closing.cancel()


async def test_the_oldest_of_too_many_silent_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of silent connections the oldest ones are closed at once, so that newcomers find a descriptor."""
    monkeypatch.setattr(transports, "SILENT_CONNECTIONS_MAX", 2)
    monkeypatch.setattr(transports, "SILENT_SECONDS_MAX", math.inf)
    website = Website()
    website.answers.set()
    async with serving(website) as (web, port):
        connections = []
        silent_since: dict[Any, float] = {}
        for _ in range(3):
            connections.append(await connect(web, port))
            silent_since = close_silent(web, silent_since)
        (oldest, _), *others = connections
        assert await closed(oldest)
        newcomer, request = await asyncio.open_connection("127.0.0.1", port)
        request.write(REQUEST)
        assert b"HTTP/1.1 204" in await newcomer.readline()
        assert [False, False] == [reader.at_eof() for reader, _ in others]
        for _, writer in (*others, (newcomer, request)):
            writer.close()
