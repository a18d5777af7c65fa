"""The sockets on which the proxy listens, and its connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from gavel_client.mcp import transports
from gavel_client.mcp.transports import close_silent_forever, is_loopback

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
async def serving(website: Website) -> AsyncIterator[int]:
    """Yield the port of a web server whose silent connections are closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        web = uvicorn.Server(uvicorn.Config(website, log_config=None, lifespan="off"))
        tasks = [asyncio.create_task(web.serve(sockets=[listener])), asyncio.create_task(close_silent_forever(web))]
        async with asyncio.timeout(SECONDS_MAX):
            yield listener.getsockname()[1]
        tasks[1].cancel()
        web.should_exit = True
        await tasks[0]


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
    async with serving(website) as port:
        busy, request = await asyncio.open_connection("127.0.0.1", port)
        request.write(REQUEST)
        for words in (b"", b"GET / HTTP/1.1\r\nHost:"):
            silent, begun = await asyncio.open_connection("127.0.0.1", port)
            begun.write(words)
            assert await closed(silent)
        website.answers.set()
        assert b"HTTP/1.1 204" in await busy.readline()
        request.close()


async def test_the_oldest_of_too_many_silent_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of silent connections the oldest ones are closed at once, so that newcomers find a descriptor."""
    monkeypatch.setattr(transports, "SILENT_CONNECTIONS_MAX", 2)
    monkeypatch.setattr(transports, "CHECK_SECONDS", 0.01)
    website = Website()
    website.answers.set()
    async with serving(website) as port:
        first, *_ = await asyncio.open_connection("127.0.0.1", port)
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert await closed(first)
        newcomer, request = await asyncio.open_connection("127.0.0.1", port)
        request.write(REQUEST)
        assert b"HTTP/1.1 204" in await newcomer.readline()
        for _, writer in (*others, (newcomer, request)):
            writer.close()
