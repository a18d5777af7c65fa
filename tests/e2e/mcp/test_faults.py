"""Faults: Gavel away, servers that die, and proxies that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_ABORTED, EXECUTION_STATUS_SUCCESS, ExecutionStatus
from gavel_server.log.redis.embedded import EmbeddedRedis
from mcp import MCPError

from tests.e2e.mcp.world import LEDGER_RULES, World, text_of, until
from tests.e2e.world import Server, run_servers


@pytest.mark.long
async def test_gavel_away(redis_server: EmbeddedRedis, bus: str, tmp_path: Path) -> None:
    """While Gavel cannot be reached no call is made, neither a read nor an effect; once it is back, calls are made again."""
    server = Server(tmp_path / "gavel", redis_url=redis_server.url, options=["--no-front"])
    with run_servers(server):
        async with server.client(bus) as client:
            world = World(tmp_path, server, bus, client)
            world.configure_ledger()
            await world.deploy(LEDGER_RULES)
            async with world.connect() as connected:
                await connected.call_tool("ledger__append", {"text": "before"})
                server.kill()
                away = [
                    await connected.call_tool("ledger__append", {"text": "away"}),
                    await connected.call_tool("ledger__peek", {}),
                    await connected.call_tool("gavel_decision_status", {"decision_id": "x"}),
                ]

    assert all(result.is_error for result in away)
    assert all(
        "The call was not made: Gavel, which decides about it, cannot be reached (UNAVAILABLE)" in text_of(result) for result in away
    )
    assert ["before"] == world.lines


@pytest.mark.long
async def test_a_server_that_dies(world: World) -> None:
    """A server that dies is started again; a call that it had begun has an unknown effect, which a person looks at."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)
    (world.folder / "hold").touch()

    async with world.connect() as client:

        async def kill_server() -> None:
            await until(lambda: world.lines == ["one"], "the call has no effect")
            process_id = process_of("ledger_server", str(world.folder))
            os.kill(process_id, signal.SIGKILL)
            await until(lambda: has_ended(process_id), "the server is not killed")
            (world.folder / "hold").unlink()

        async with together(kill_server):
            lost = await client.call_tool("ledger__append", {"text": "one"})

        async def peeks() -> bool:
            return not (await client.call_tool("ledger__peek", {})).is_error

        await until(peeks, "the server is not started again")
        again = await client.call_tool("ledger__append", {"text": "one"})

    assert lost.is_error
    assert "the connection to ledger ended before it answered" in text_of(lost)
    assert (True, ["one"]) == (again.is_error, world.lines)
    assert 2 == len((world.folder / "started").read_text().splitlines())
    (review,) = [event.decision for event in await world.events("decision") if event.decision.reason_code == "PARTIAL_EXECUTION"]
    assert "ledger.append" == review.action_type


@pytest.mark.long
async def test_results_that_are_too_large(world: World) -> None:
    """A result above the limit is an error; a message that is far larger is not read to its end, and its server is started again."""
    world.configure_ledger()
    document = json.loads((world.folder / "proxy.yaml").read_text())
    document["servers"]["ledger"]["result_bytes_max"] = 1024
    (world.folder / "proxy.yaml").write_text(json.dumps(document))
    characters = world.folder / "characters"

    async with world.connect() as client:
        texts = []
        for number in (2_000, 5_000_000):
            characters.write_text(str(number))
            texts.append(text_of(await client.call_tool("ledger__peek", {})))
        characters.unlink()

        async def peeks() -> bool:
            return not (await client.call_tool("ledger__peek", {})).is_error

        await until(peeks, "the server is not started again")

    assert texts[0].startswith("E_QUOTA: the result of ledger has 2")
    assert "the connection to ledger ended before it answered: it sent a message of more than 4194304 bytes" in texts[1]
    assert [] == await open_tool_calls(world)


@pytest.mark.long  # the same call waits for the first one for some time
async def test_a_killed_proxy(world: World) -> None:
    """A proxy that is killed while a call has its effect leaves no second effect: the same call waits for the outcome of the first."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)
    (world.folder / "hold").touch()

    async def kill_proxy() -> None:
        await until(lambda: world.lines == ["one"], "the call has no effect")
        os.kill(process_of("proxy", world.bus), signal.SIGKILL)
        (world.folder / "hold").unlink()

    async with world.connect() as client, together(kill_proxy):
        with pytest.raises(MCPError, match="closed"):
            await client.call_tool("ledger__append", {"text": "one"})
    async with world.connect() as client:
        again = await client.call_tool("ledger__append", {"text": "one"})

    assert (True, ["one"]) == (again.is_error, world.lines)
    assert ("ALREADY_RUNNING", True) == (again.structured_content["reason_code"], "it may have been made" in text_of(again))


@pytest.mark.long
async def test_a_proxy_killed_after_the_report(world: World) -> None:
    """A call whose report is in the log, but whose answer never came, is answered with the first result when it is sent again."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)
    (world.folder / "hold").touch()
    open_calls = world.folder / "gavel-mcp-state/open-calls"
    copies: list[tuple[Path, bytes]] = []

    async def keep_open_call() -> None:
        await until(lambda: world.lines == ["one"], "the call has no effect")
        copies.extend((path, path.read_bytes()) for path in open_calls.rglob("*.json"))
        (world.folder / "hold").unlink()

    async with world.connect() as client, together(keep_open_call):
        answer = await client.call_tool("ledger__append", {"text": "one"})
    assert [] == list(open_calls.rglob("*.json"))
    # What a proxy leaves that is killed between the report and the answer.
    ((path, content),) = copies
    path.write_bytes(content)
    async with world.connect() as client:
        again = await client.call_tool("ledger__append", {"text": "one"})
        anew = await client.call_tool("ledger__append", {"text": "one"})

    assert (text_of(answer), answer.structured_content) == (text_of(again), again.structured_content)
    assert {"lines": 2} == anew.structured_content
    assert ["one", "one"] == world.lines


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.long
async def test_a_cancelled_call_that_has_not_begun(world: World, mode: str) -> None:
    """A call that is cancelled while its proposal is under way is not made, and leaves nothing open; the same call is another one."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)

    async with world.connect(mode=mode) as client:
        await client.list_tools()
        (world.folder / "hold-list").touch()
        with anyio.CancelScope() as scope:
            async with together(lambda: cancel(world, scope, "hold-list")):
                await client.call_tool("ledger__append", {"text": "one"})
        await until(lambda: has_status(world, EXECUTION_STATUS_ABORTED), "the call is not given up")
        assert [] == world.lines
        answer = await client.call_tool("ledger__append", {"text": "one"})

    assert {"lines": 1} == answer.structured_content
    assert [] == await open_tool_calls(world)


@pytest.mark.long
async def test_a_cancelled_call_that_has_begun(world: World) -> None:
    """A call that is cancelled while the tool acts runs to its end, and the same call gets its result."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)
    (world.folder / "hold").touch()

    async with world.connect() as client:
        with anyio.CancelScope() as scope:
            async with together(lambda: cancel(world, scope, "hold")):
                await client.call_tool("ledger__append", {"text": "one"})
        await until(lambda: has_status(world, EXECUTION_STATUS_SUCCESS), "the call does not end")
        again = await client.call_tool("ledger__append", {"text": "one"})

    assert ({"lines": 1}, ["one"]) == (again.structured_content, world.lines)
    assert [] == await open_tool_calls(world)


@pytest.mark.long
async def test_a_proxy_that_stops_during_a_read(world: World) -> None:
    """A proxy whose client goes away while a tool reads leaves no open call."""
    world.configure_ledger()
    async with world.connect() as client:
        await client.list_tools()
        (world.folder / "hold-peek").touch()
        with anyio.CancelScope() as scope:
            async with together(lambda: cancel(world, scope, "hold-peek")):
                await client.call_tool("ledger__peek", {})

    (result,) = [event.tool_result for event in await world.events("tool_result")]
    assert ("E_TIMEOUT", []) == (result.error_code, await open_tool_calls(world))


async def cancel(world: World, scope: anyio.CancelScope, hold: str) -> None:
    """Cancel a call once the tool that waits for the file `hold` acts; then let it go on."""
    await until(lambda: has_open_call(world), "no tool acts")
    if hold == "hold":
        await until(lambda: world.lines == ["one"], "the call has no effect")
    scope.cancel()
    if hold != "hold-peek":
        (world.folder / hold).unlink()


async def has_open_call(world: World) -> bool:
    """Return whether a tool call has no result yet."""
    return await open_tool_calls(world) != []


async def open_tool_calls(world: World) -> list[str]:
    """Return the tools of the calls without a result."""
    results = {event.tool_result.execution_id for event in await world.events("tool_result")}
    return [event.tool_call.tool_name for event in await world.events("tool_call") if event.tool_call.execution_id not in results]


async def has_status(world: World, status: ExecutionStatus.ValueType) -> bool:
    """Return whether an execution has a status."""
    return status in [event.execution.status for event in await world.events("execution")]


def process_of(*words: str) -> int:
    """Return the id of the process whose command line has all words."""
    process_ids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if all(word in path.read_bytes().decode(errors="replace") for word in words):
                process_ids.append(int(path.parent.name))
    (process_id,) = process_ids
    return process_id


def has_ended(process_id: int) -> bool:
    """Return whether a process runs no more, though its parent may not have noticed."""
    try:
        return not Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return True


@asynccontextmanager
async def together(other: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run something beside the body; its failure fails the test."""
    task = asyncio.ensure_future(other())
    yield
    await task
