"""Open calls of runtimes that died: closed after their lease, once, and by runtimes of the same name only."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from gavel.v1.event_service_pb2 import TOOL_PAIR_STATE_OPEN, TOOL_PAIR_STATE_PAIRED
from gavel.v1.tool_pb2 import ToolContract, ToolProvider
from gavel_client import GavelClient
from gavel_client.tools import FunctionProvider, ToolContext, ToolData, ToolInvocation, ToolRuntime, errors, lost_calls

from tests.integration.services.world import Clock, World, running_world

TRACE = "trace-1"


@pytest.fixture
async def world() -> Any:
    """A server at the present time, which runtimes compare leases with."""
    clock = Clock()
    clock.now_ms = time.time_ns() // 1_000_000
    async with running_world(clock=clock) as world:
        yield world


@pytest.fixture
async def client(world: World) -> GavelClient:
    """A client of the server; the tool num.wait is registered."""
    client = GavelClient(world.channel)
    await client.register_contract(ToolContract(name="num.wait", version="1", default_provider="numbers"))
    await client.register_provider(ToolProvider(provider_id="numbers", version="1", tools=["num.wait"]))
    return client


class Waiting:
    """A tool that waits until it is released, whatever happens."""

    def __init__(self) -> None:
        self.began, self.released = asyncio.Event(), asyncio.Event()

    async def wait(self, _: ToolInvocation) -> ToolData:
        """Wait, and return."""
        self.began.set()
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                continue
        return ToolData({"done": True})


def runtime_of(client: GavelClient, tool: Waiting, name: str = "tools-1", lease_margin_ms: int = 0) -> ToolRuntime:
    """Return a runtime whose calls are lost at once when their time is over."""
    return ToolRuntime(client, name, providers=[FunctionProvider("numbers", {"num.wait": tool.wait})], lease_margin_ms=lease_margin_ms)


async def states(client: GavelClient) -> list[tuple[int, str]]:
    """Return the pairs of the trace: the state, and the code of the result."""
    trace = await client.get_trace(TRACE)
    codes = {event.event_id: event.tool_result.error_code for event in trace.envelopes}
    return [(pair.state, codes.get(pair.result_event_id, "")) for pair in trace.pairs]


async def test_a_call_is_lost_after_its_lease_only(client: GavelClient) -> None:
    """A runtime of another name closes nothing, one of the same name nothing before the lease ends, and then each call once."""
    tool = Waiting()
    calls = [
        asyncio.create_task(runtime_of(client, tool).invoke("num.wait", {}, ToolContext("n/1", trace_id=TRACE, timeout_ms=timeout_ms)))
        for timeout_ms in (1, 3_600_000)
    ]
    await tool.began.wait()
    while 2 != len(await states(client)):  # noqa: ASYNC110  # the server has the calls
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    assert 0 == await runtime_of(client, tool, "tools-2").close_lost_calls()
    # Several runtimes may find the same call.
    closed = await asyncio.gather(*(runtime_of(client, tool).close_lost_calls() for _ in range(3)))
    assert [1, 1, 1] == closed
    assert sorted([(TOOL_PAIR_STATE_PAIRED, errors.LOST), (TOOL_PAIR_STATE_OPEN, "")]) == sorted(await states(client))
    tool.released.set()
    slow, other = await asyncio.gather(*calls)
    assert slow.error is not None
    # The runtime was slower than its lease: its result came second, and is not given out.
    assert (errors.LOST, None, True) == (slow.error.code, slow.data, other.ok)
    assert sorted([(TOOL_PAIR_STATE_PAIRED, errors.LOST), (TOOL_PAIR_STATE_PAIRED, "")]) == sorted(await states(client))
    assert 0 == await runtime_of(client, tool).close_lost_calls()


async def test_a_running_runtime_closes_the_calls_of_others(client: GavelClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a runtime is in use, it closes what others of its name lose, also what they call later."""
    monkeypatch.setattr(lost_calls, "INTERVAL_MS", 10)
    tool = Waiting()
    async with runtime_of(client, tool):
        calling = asyncio.create_task(runtime_of(client, tool).invoke("num.wait", {}, ToolContext("n/1", trace_id=TRACE, timeout_ms=1)))
        while [(TOOL_PAIR_STATE_PAIRED, errors.LOST)] != await states(client):  # noqa: ASYNC110  # the server has the result
            await asyncio.sleep(0.01)
    tool.released.set()
    assert not (await calling).ok


async def test_old_calls_are_found(world: World, client: GavelClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime begins to read a log at the oldest event that may matter, not at the start."""
    tool = Waiting()
    calling = asyncio.create_task(runtime_of(client, tool).invoke("num.wait", {}, ToolContext("n/1", trace_id=TRACE, timeout_ms=1)))
    await tool.began.wait()
    read: list[int] = []

    class Reader(GavelClient):
        async def list_events(self, **filters: Any) -> Any:
            read.append(filters["from_sequence_number"])
            return await super().list_events(**filters)

    call_number = (await client.get_status()).head_sequence_number
    await asyncio.sleep(0.01)
    world.clock.now_ms += 60_000
    monkeypatch.setattr(lost_calls, "LOOKBACK_MS", 30_000)
    assert 1 == await runtime_of(Reader(world.channel), tool).close_lost_calls()
    assert [1] == read
    for _ in range(5):
        await client.register_provider(ToolProvider(provider_id="numbers", version=str(len(read)), tools=["num.wait"]))
        read.append(0)
    monkeypatch.setattr(lost_calls, "LOOKBACK_MS", -30_000)
    read.clear()
    assert 0 == await runtime_of(Reader(world.channel), tool).close_lost_calls()
    assert read[0] > call_number
    tool.released.set()
    await calling
