"""Calls of an upstream server: the failure of one call is not that of the others."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from gavel_client.mcp.configuration import ServerSettings
from gavel_client.mcp.errors import UpstreamError
from gavel_client.mcp.upstreams.connection import Upstream
from gavel_client.tools import errors
from mcp_types import CallToolResult, TextContent

# Its tool `hold` is answered when `release` is called, `fail` with the error that its arguments are, and `repeat` with a text.
SERVER = """
import json
import sys

held = []

def answer(identifier, **content):
    print(json.dumps({"jsonrpc": "2.0", "id": identifier, **content}), flush=True)

def say(identifier, text):
    answer(identifier, result={"content": [{"type": "text", "text": text}]})

for line in sys.stdin:
    message = json.loads(line)
    method, parameters, identifier = message["method"], message.get("params", {}), message.get("id")
    if identifier is None:
        continue
    if method == "initialize":
        information = {"name": "faulty", "version": "1"}
        capabilities = {"tools": {}}
        answer(identifier, result={"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": information})
    elif method == "tools/list":
        answer(identifier, result={"tools": [{"name": "hold", "inputSchema": {"type": "object"}}]})
    elif method != "tools/call":
        answer(identifier, error={"code": -32601, "message": "no such method"})
    elif parameters["name"] == "hold":
        held.append(identifier)
    elif parameters["name"] == "fail":
        answer(identifier, error=parameters["arguments"])
    elif parameters["name"] == "repeat":
        say(identifier, parameters["arguments"]["text"])
    else:
        for one in (*held, identifier):
            say(one, "released")
"""


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[Upstream]:
    """Run the server and yield the connection to it."""
    settings = ServerSettings(command=[sys.executable, "-c", SERVER], timeout_ms=60_000, result_bytes_max=1024)
    upstream = Upstream("faulty", settings, folder)
    running = asyncio.create_task(upstream.run())
    with anyio.fail_after(120):
        await upstream.wait_for_first_try()
        assert "" == upstream.problem
        yield upstream
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (-32000, "the database is busy", errors.TOOL),
        (-32001, "the database is slow", errors.TOOL),
        (-32000, "Connection closed", errors.LOST),
        (-32000, "SSE stream ended without a response", errors.LOST),
    ],
)
async def test_an_error_of_a_server_ends_its_call_only(tmp_path: Path, code: int, message: str, expected: str) -> None:
    """An error with a code or message of the SDK's own leaves the connection and the other calls as they are; its effect is unknown."""
    async with connected(tmp_path) as upstream:
        held = asyncio.create_task(upstream.call("hold", {}))
        with pytest.raises(UpstreamError) as failure:
            await upstream.call("fail", {"code": code, "message": message})
        released = await upstream.call("release", {})

        assert ((expected, True), "") == ((failure.value.code, failure.value.may_have_acted), upstream.problem)
        assert ["released", "released"] == [_text(await held), _text(released)]


async def test_the_size_of_a_result_is_in_bytes(tmp_path: Path) -> None:
    """A result whose characters take several bytes is refused by its bytes."""
    async with connected(tmp_path) as upstream:
        with pytest.raises(UpstreamError, match="the limit is 1024") as failure:
            await upstream.call("repeat", {"text": "é" * 700})
        assert 700 == len(_text(await upstream.call("repeat", {"text": "e" * 700})))

    assert errors.QUOTA == failure.value.code


def _text(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text
