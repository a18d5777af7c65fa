"""The transports to upstream servers: a message that is too large is refused before it has been read."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from gavel_client.mcp.upstreams.transports import open_http, open_stdio
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

NOTE = '{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}'
BYTES_MAX = 100_000
# Never ends its second line, nor itself.
ENDLESS = f"""
print('{NOTE}', flush=True)
while True:
    print("x" * 65536, end="")
"""
# Answers a line with its length, and leaves a file when its stdin ends.
ECHO = """
import sys
for line in sys.stdin:
    print('{"jsonrpc": "2.0", "id": 1, "result": {"length": %d}}' % len(line), flush=True)
open(sys.argv[1], "w").close()
"""
# Starts a process in its group, names it in a file, and ends when its stdin ends.
PARENT = """
import subprocess, sys
child = subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL)
open(sys.argv[1], "w").write(str(child.pid))
print('{"jsonrpc": "2.0", "method": "notifications/initialized"}', flush=True)
sys.stdin.read()
"""


async def test_an_endless_line(tmp_path: Path) -> None:
    """Messages before an endless line arrive; then the streams end, with a note of the reason."""
    notes: list[str] = []

    async with open_stdio([sys.executable, "-c", ENDLESS], {}, tmp_path, BYTES_MAX, lambda: notes.append("too large")) as (read, _):
        with anyio.fail_after(60):
            messages = [message.message async for message in read]

    assert [JSONRPCNotification.model_validate_json(NOTE)] == messages
    assert ["too large"] == notes


async def test_a_conversation(tmp_path: Path) -> None:
    """A request reaches the server, its answer comes back, and the server ends by itself when its stdin is closed."""
    command = [sys.executable, "-c", ECHO, str(tmp_path / "ended")]
    request = JSONRPCRequest(jsonrpc="2.0", id=1, method="ping", params={"text": "x" * 10})

    async with open_stdio(command, {}, tmp_path, BYTES_MAX, lambda: None) as (read, write):
        with anyio.fail_after(60):
            await write.send(SessionMessage(request))
            answer = (await anext(aiter(read))).message

    assert isinstance(answer, JSONRPCResponse)
    assert {"length": len(request.model_dump_json(exclude_unset=True)) + 1} == answer.result
    assert (tmp_path / "ended").exists()


async def test_descendants_of_a_server_that_ends_by_itself(tmp_path: Path) -> None:
    """The processes that a server has started end with it, also if it ends by itself."""
    async with open_stdio([sys.executable, "-c", PARENT, str(tmp_path / "child")], {}, tmp_path, BYTES_MAX, lambda: None) as (read, _):
        with anyio.fail_after(60):
            await anext(aiter(read))

    command = Path("/proc") / (tmp_path / "child").read_text() / "cmdline"
    with anyio.fail_after(60), suppress(OSError):
        while command.read_bytes():  # noqa: ASYNC110  # an ended process has none, though its parent may not have noticed
            await anyio.sleep(0.01)


@asynccontextmanager
async def serving(content_type: str, body: Callable[[asyncio.StreamWriter], Awaitable[None]], *headers: str) -> AsyncIterator[str]:
    """Serve one kind of answer to every request; yield the URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length"))
            await reader.readexactly(length)
            lines = ["HTTP/1.1 200 OK", f"content-type: {content_type}", "connection: close", *headers]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
            await body(writer)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


async def endless(writer: asyncio.StreamWriter) -> None:
    """Write until the client closes the connection."""
    writer.write(b"data: ")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def pong(writer: asyncio.StreamWriter) -> None:
    """Write the answer to a ping."""
    writer.write(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}}).encode())


async def ask(url: str) -> object:
    """Send one request; return the message that answers it."""
    async with open_http(url, {}, 60, BYTES_MAX) as (read, write):
        with anyio.fail_after(60):
            await write.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method="ping")))
            return (await anext(aiter(read))).message


@pytest.mark.parametrize(
    ("content_type", "problem"),
    [
        ("application/json", "larger than the limit of 100000 bytes"),
        ("text/event-stream", "Server-sent event exceeded the 100000 byte limit"),
    ],
)
async def test_an_endless_answer(content_type: str, problem: str) -> None:
    """An endless answer or event is an error of its request."""
    async with serving(content_type, endless) as url:
        answer = await ask(url)

    assert isinstance(answer, JSONRPCError)
    assert problem in answer.error.message


async def test_a_compressed_answer() -> None:
    """A compressed answer, whose content may have any size, is an error; the same answer as it is is taken."""
    async with serving("application/json", pong, "content-encoding: gzip") as url:
        refused = await ask(url)
    async with serving("application/json", pong) as url:
        answer = await ask(url)

    assert isinstance(refused, JSONRPCError)
    assert "compressed" in refused.error.message
    assert JSONRPCResponse(jsonrpc="2.0", id=1, result={}) == answer


async def test_compressed_events() -> None:
    """A compressed stream of events ends before any of it is unpacked."""

    async def bomb(writer: asyncio.StreamWriter) -> None:
        writer.write(gzip.compress(b'data: {"jsonrpc": "2.0", "id": 1, "result": {}}\n\n'))

    async with serving("text/event-stream", bomb, "content-encoding: gzip") as url:
        answer = await ask(url)

    assert isinstance(answer, JSONRPCError)
    assert CONNECTION_CLOSED == answer.error.code
