"""The proxy over streamable HTTP, to its clients and to its servers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.e2e.mcp.world import LEDGER_RULES, World, text_of, until
from tests.e2e.runs import run_gavel
from tests.e2e.world import GAVEL, WAIT_SECONDS_MAX
from tests.support.ports import free_port


@contextmanager
def _serving(world: World, *options: str) -> Iterator[str]:
    """Run the proxy over HTTP; yield its URL."""
    command = [GAVEL, *world.arguments("--listen", "127.0.0.1:0", *options)]
    with (world.folder / "proxy.log").open("w") as log:
        process = subprocess.Popen(command, cwd=world.folder, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("gavel: ready on "), (world.folder / "proxy.log").read_text()
        yield line.removeprefix("gavel: ready on ").strip()
        process.terminate()
        assert 0 == process.wait(60), (world.folder / "proxy.log").read_text()
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def _connected(url: str, mode: str = "auto", token: str = "") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=WAIT_SECONDS_MAX) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, cache=None) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_clients_over_http(world: World, mode: str) -> None:
    """Clients of both eras call tools over HTTP as they do over stdio."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)

    with _serving(world) as url:
        async with _connected(url, mode) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            made = await client.call_tool("ledger__append", {"text": "one"})
            pending = await client.call_tool("ledger__append", {"text": "careful"})

    assert ["ledger__append", "ledger__peek", "gavel_decision_status"] == tools
    assert ("appended", ["one"]) == (text_of(made), world.lines)
    assert "PENDING" == pending.structured_content["status"]


async def test_agents_by_token(world: World) -> None:
    """Each agent proposes under its own name, and a request without a token of an agent is refused."""
    (world.folder / "ann.token").write_text("secret-of-ann\n")
    os.environ["BOB_TOKEN"] = "secret-of-bob"  # noqa: S105
    world.configure_ledger(agents=[{"id": "ann", "token": {"from_file": "ann.token"}}, {"id": "bob", "token": {"from_env": "BOB_TOKEN"}}])
    await world.deploy(LEDGER_RULES)

    with _serving(world) as url:
        for token in ("secret-of-ann", "secret-of-bob"):
            async with _connected(url, token=token) as client:
                assert "appended" == text_of(await client.call_tool("ledger__append", {"text": token[-3:]}))
        statuses = [_status(url, headers) for headers in ({}, {"Authorization": "Bearer secret-of-eve"})]

    assert [401, 401] == statuses
    assert ["ann", "bob"] == [event.producer.id for event in await world.events("proposal")]
    log = (world.folder / "proxy.log").read_text()
    assert "secret-of" not in log


def _status(url: str, headers: dict[str, str]) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, b"{}", headers)) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


async def test_no_open_door(world: World) -> None:
    """Without tokens the proxy does not listen beyond the loopback interface."""
    world.configure_ledger()

    finished = run_gavel(["mcp", "proxy", "--config", str(world.folder / "proxy.yaml"), "--listen", "0.0.0.0:0"], os.environ)

    assert (2, True) == (finished.returncode, "every host could call tools at 0.0.0.0:0" in finished.stderr)


async def test_a_server_over_http(world: World, npm_servers: Path) -> None:
    """A server over streamable HTTP is governed like one over stdio, and is connected again after it was away."""
    port = free_port()
    program = ["node", str(npm_servers / "server-everything/dist/index.js"), "streamableHttp"]
    (world.folder / "token").write_text("secret-of-the-server")
    settings: dict[str, Any] = {
        "url": f"http://127.0.0.1:{port}/mcp",
        "headers": {"Authorization": {"from_file": "token", "prefix": "Bearer "}},
        "tools": {"echo": {"mode": "read", "fields": {"echo.text": "result.text"}}},
    }
    world.configure({"all": settings})

    async with world.connect() as client:
        away = await client.call_tool("all__echo", {"message": "hi"})
        with (world.folder / "server.log").open("w") as log:
            server = await asyncio.create_subprocess_exec(*program, env={**os.environ, "PORT": str(port)}, stdout=log, stderr=log)
        try:

            async def answers() -> bool:
                return not (await client.call_tool("all__echo", {"message": "hi"})).is_error

            await until(answers, "the server is not connected again")
            echo = await client.call_tool("all__echo", {"message": "hello"})
        finally:
            server.kill()
            await server.wait()

    assert (True, True) == (away.is_error, "the server all cannot be reached" in text_of(away))
    assert "Echo: hello" == text_of(echo)
