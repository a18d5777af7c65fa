"""Reads of a log with large events: what they read at once, and how long they keep other tasks from running."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
from gavel.v1.event_service_pb2 import (
    TOOL_PAIR_STATE_PAIRED,
    GetEventRequest,
    GetTraceRequest,
    ListEventsRequest,
    SubscribeEventsRequest,
)
from gavel_server.log import EventLog, Record
from gavel_server.log.memory import MemoryLog
from gavel_server.log.protocol import CHUNK_BYTES

from tests.integration.services.world import Clock, Refusal, World, fact, observation, refusal, running_world, tool_call, tool_result

SMALL = 100
LARGE = 40
# About 600 KB.
NOTES = ["x" * 60_000] * 10


class WatchedLog(MemoryLog):
    """A log in memory that records the bytes of each read, and how many reads run at once."""

    def __init__(self, bus: str, clock: Clock) -> None:
        super().__init__(bus, clock)
        self.read_bytes: list[int] = []
        self.running = self.most = 0

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = 1_000) -> list[Record]:
        """Read copies, after a turn of the loop, as Redis would."""
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        shared_records = await super().read(from_sequence_number, to_sequence_number, limit)
        records = [Record(record.sequence_number, bytes(bytearray(record.envelope)), record.chain_hash) for record in shared_records]
        self.running -= 1
        self.read_bytes.append(sum(len(record.envelope) for record in records))
        return records


@pytest.fixture
async def watched() -> Any:
    """A world on a log with small and then large events, and that log."""
    logs: dict[str, WatchedLog] = {}

    async def open_log(bus: str, clock: Clock) -> EventLog:
        return logs.setdefault(bus, WatchedLog(bus, clock))

    async with running_world(open_log) as world:
        for number in range(SMALL):
            await world.publish(fact(f"order/{number}", "order.status", "paid", trace_id="small"))
        for number in range(LARGE):
            await world.publish(fact(f"order/{number}", "order.notes", NOTES, trace_id="large"))
        yield world, logs["default"]


async def gather(calls: Sequence[Awaitable[Any]]) -> list[Any]:
    """Wait for calls that run at once."""
    return await asyncio.gather(*calls)


async def test_reads_of_large_events_are_bounded(watched: tuple[World, WatchedLog]) -> None:
    """A read of the log has a megabyte and at most one event more, whatever the call and the events before."""
    world, log = watched
    log.read_bytes.clear()
    trace = await world.events.GetTrace(GetTraceRequest(trace_id="large"))
    assert trace.truncated
    assert 5 == len(trace.envelopes)
    listed = await world.events.ListEvents(ListEventsRequest(trace_id="large", page_size=1_000))
    assert 3 == len(listed.envelopes)
    stream = world.events.SubscribeEvents(SubscribeEventsRequest())
    followed: list[Any] = [await stream.read() for _ in range(1 + SMALL + LARGE)]
    stream.cancel()
    assert list(range(1, 2 + SMALL + LARGE)) == [item.envelope.sequence_number for item in followed]
    assert CHUNK_BYTES <= max(log.read_bytes) < 2 * CHUNK_BYTES


async def test_subscriptions_keep_nothing_that_they_have_sent(watched: tuple[World, WatchedLog]) -> None:
    """A subscription that waits for the next event holds no memory of those before."""
    world, _ = watched
    streams = []
    for _ in range(10):
        stream = world.events.SubscribeEvents(SubscribeEventsRequest(from_sequence_number=1 + SMALL + LARGE))
        await stream.initial_metadata()
        streams.append(stream)
    for stream in streams:
        await stream.read()
    tracemalloc.start()
    try:
        await world.publish(fact("order/1", "order.notes", NOTES))
        for stream in streams:
            await stream.read()
        async with asyncio.timeout(60):
            while tracemalloc.get_traced_memory()[0] > 5 * len(NOTES) * len(NOTES[0]):  # noqa: ASYNC110 - freeing memory sets no event
                await asyncio.sleep(0.01)
    finally:
        tracemalloc.stop()
    for stream in streams:
        stream.cancel()


async def test_scans_wait_for_their_turn(watched: tuple[World, WatchedLog]) -> None:
    """Many traces asked for at once by one caller are read one after the other, and all are answered."""
    world, log = watched
    log.most = 0
    traces = await gather([world.events.GetTrace(GetTraceRequest(trace_id="large")) for _ in range(16)])
    assert [5] * 16 == [len(trace.envelopes) for trace in traces]
    assert 1 == log.most


async def test_waiting_scans_are_refused(watched: tuple[World, WatchedLog], monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan beyond the limit of waiting scans is RESOURCE_EXHAUSTED and names the limit; writes and other reads go on."""
    world, log = watched
    reading = asyncio.Event()
    unlocked = asyncio.Event()
    read = log.read

    async def stuck(*arguments: Any) -> list[Record]:
        reading.set()
        await unlocked.wait()
        return await read(*arguments)

    monkeypatch.setattr(log, "read", stuck)
    scans = [asyncio.ensure_future(world.events.GetTrace(GetTraceRequest(trace_id="small"))) for _ in range(257)]
    await reading.wait()
    problems: list[Refusal] = []
    while not problems:
        call = asyncio.ensure_future(world.events.GetTrace(GetTraceRequest(trace_id="small")))
        done, _ = await asyncio.wait([call], timeout=0.05)
        problems = [await refusal(call)] if done else []
        scans.append(call)
    assert ("QUEUE_FULL", True) == (problems[0].reason, problems[0].retry_after_ms > 0)
    assert "scans of the log are limited to 2 at once" in problems[0].message
    recorded = await world.publish(fact("order/1", "order.status", "sent"))
    assert recorded == (await world.events.GetEvent(GetEventRequest(sequence_number=recorded.sequence_number))).envelope
    for scan in scans:
        scan.cancel()
    await asyncio.gather(*scans, return_exceptions=True)
    unlocked.set()


async def test_the_same_event_by_every_read(world: World) -> None:
    """GetEvent, ListEvents, SubscribeEvents and GetTrace return the same envelopes, with chain hash and payload, of every kind."""
    await world.publish(tool_call("one", execution_id="exec_000000000001"))
    await world.publish(tool_result("one", execution_id="exec_000000000001"))
    await world.publish(fact("order/1", "order.status", {"a": [1, None, "x"]}, trace_id="one"))
    await world.publish(observation("order/1", "order.status", "paid", trace_id="one"))
    numbers = range(2, 6)
    envelopes = [(await world.events.GetEvent(GetEventRequest(sequence_number=number))).envelope for number in numbers]
    assert envelopes == list((await world.events.ListEvents(ListEventsRequest(from_sequence_number=2))).envelopes)
    trace = await world.events.GetTrace(GetTraceRequest(trace_id="one"))
    assert (envelopes, [TOOL_PAIR_STATE_PAIRED]) == (list(trace.envelopes), [pair.state for pair in trace.pairs])
    stream = world.events.SubscribeEvents(SubscribeEventsRequest(from_sequence_number=2))
    followed: list[Any] = [await stream.read() for _ in numbers]
    assert envelopes == [item.envelope for item in followed]
    stream.cancel()
