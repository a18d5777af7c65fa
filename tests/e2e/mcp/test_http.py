"""The proxy over streamable HTTP, to its clients and to its servers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from mcp import Client, MCPError
from mcp.client.extension import ClientExtension
from mcp.client.streamable_http import streamable_http_client
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from tests.e2e.mcp.test_tasks import CancelTask, GetTask, TaskParams, TaskResult, Tasks
from tests.e2e.mcp.world import LEDGER_RULES, PROXY, World, text_of, until
from tests.e2e.runs import forker, run_gavel
from tests.e2e.world import GAVEL, WAIT_SECONDS_MAX
from tests.support.ports import free_port


@contextmanager
def _serving(world: World, *options: str, installed: bool = False) -> Iterator[str]:
    """Run the proxy over HTTP, `installed` or as a fork; yield its URL."""
    listen = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    program = [GAVEL] if installed else forker().command(PROXY)
    command = [*program, *world.arguments(*listen, *options)]
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
async def _connected(url: str, mode: str = "auto", token: str = "", extensions: Sequence[ClientExtension] = ()) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=WAIT_SECONDS_MAX) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, extensions=extensions, cache=None) as client,
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
            answer = await client.call_tool("ledger__append", {"text": "one"})
            pending = await client.call_tool("ledger__append", {"text": "careful"})

    assert ["ledger__append", "ledger__peek", "gavel_decision_status"] == tools
    assert ("appended", ["one"]) == (text_of(answer), world.lines)
    assert "PENDING" == pending.structured_content["status"]


@pytest.mark.long
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


@pytest.mark.long
async def test_decisions_of_other_agents(world: World) -> None:
    """An agent learns nothing of another agent's decision, and cannot make or cancel the call that it approves."""
    for name in ("ann", "bob"):
        (world.folder / name).write_text(f"secret-of-{name}")
    world.configure_ledger(agents=[{"id": name, "token": {"from_file": name}} for name in ("ann", "bob")])
    await world.deploy(LEDGER_RULES)

    with _serving(world) as url:
        async with _connected(url, token="secret-of-ann") as ann:  # noqa: S106
            pending = await ann.call_tool("ledger__append", {"text": "careful"})
            decision_id = pending.structured_content["decision_id"]
            await world.client.resolve_review(decision_id, REVIEW_VERDICT_APPROVE, reviewer="eve", reason="fine")
            async with _connected(url, token="secret-of-bob", extensions=[Tasks()]) as bob:  # noqa: S106
                status = await bob.call_tool("gavel_decision_status", {"decision_id": decision_id})
                for request in (GetTask, CancelTask):
                    with pytest.raises(MCPError, match=f"there is no task {decision_id}"):
                        await bob.session.send_request(request(params=TaskParams(task_id=decision_id)), TaskResult)
            before = world.lines
            own = await ann.call_tool("gavel_decision_status", {"decision_id": decision_id})
            answer = await ann.call_tool("ledger__append", {"text": "careful"})

    assert (True, "There is no such decision about a call of this proxy.", []) == (status.is_error, text_of(status), before)
    assert ("OUTCOME_APPROVED", "appended", ["careful"]) == (own.structured_content["outcome"], text_of(answer), world.lines)


async def test_sessions_of_other_agents(world: World) -> None:
    """An agent that sends the id of another agent's session neither uses, hears nor ends that session."""
    for name in ("ann", "bob"):
        (world.folder / name).write_text(f"secret-of-{name}")
    world.configure_ledger(agents=[{"id": name, "token": {"from_file": name}} for name in ("ann", "bob")])
    await world.deploy(LEDGER_RULES)
    opening = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": {"name": "ann", "version": "1"}}
    call = {"name": "ledger__append", "arguments": {"text": "one"}}

    with _serving(world) as url:
        async with httpx2.AsyncClient(timeout=WAIT_SECONDS_MAX, headers={"Accept": "application/json, text/event-stream"}) as http:
            headers = {"Authorization": "Bearer secret-of-ann", "MCP-Protocol-Version": LATEST_HANDSHAKE_VERSION}
            opened = await http.post(url, json=_request("initialize", opening), headers=headers)
            headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
            stolen = {**headers, "Authorization": "Bearer secret-of-bob"}
            answers = [
                await http.post(url, json=_request("tools/call", call), headers=stolen),
                await http.get(url, headers=stolen),
                await http.delete(url, headers=stolen),
            ]
            own = await http.post(url, json=_request("tools/call", call), headers=headers)

    assert ([404] * 3, 200) == ([answer.status_code for answer in answers], own.status_code)
    assert ["ann"] == [event.producer.id for event in await world.events("proposal")]


def _request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
async def test_pages_of_browsers(world: World, address: str) -> None:
    """A page whose name leads to a loopback address reaches no tool: its name and its origin are refused."""
    world.configure_ledger()

    with _serving(world, "--listen", f"{address}:0") as url:
        port = url.split(":")[2].partition("/")[0]
        requests: list[dict[str, str]] = [
            {"Host": f"evil.example:{port}"},
            {"Host": f"{address}:{port}", "Origin": "http://evil.example"},
            {"Host": f"{address}:{port}", "Origin": f"http://{address}:{port}"},
        ]
        statuses = [_status(url, {**headers, "Content-Type": "application/json"}) for headers in requests]

    assert [421, 403, 406] == statuses  # the last one lacks an Accept header


async def test_no_open_door(world: World) -> None:
    """Without tokens the proxy does not listen beyond the loopback interface."""
    world.configure_ledger()

    finished = run_gavel(["mcp", "proxy", "--config", str(world.folder / "proxy.yaml"), "--listen", "0.0.0.0:0"], os.environ)

    assert (2, True) == (finished.returncode, "every host could call tools at 0.0.0.0:0" in finished.stderr)


@pytest.mark.long
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
