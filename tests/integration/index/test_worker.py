"""The worker process of the index, on a real Redis: it follows the log, survives its own death, and lets nobody wait for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gavel_server.archive.archive_run import archive_log
from gavel_server.archive.archives import open_archive
from gavel_server.index.event_filter import EventFilter
from gavel_server.index.event_index import BusHead, EventIndex
from gavel_server.log.redis.log import RedisLog

from tests.load.finished_work import write_log
from tests.support.stores.object_store import BUCKET, create_bucket, object_store


@asynccontextmanager
async def following(index: EventIndex, heads: Callable[[], list[BusHead]]) -> AsyncIterator[None]:
    """Let an index follow buses."""
    task = asyncio.create_task(index.follow_forever(heads))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def reach(index: EventIndex, bus: str, number: int) -> None:
    """Wait until an index has an event."""
    async with asyncio.timeout(60):
        while index.head(bus) < number:  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.02)


async def test_the_worker_follows_the_log(redis_url: str, bus: str, tmp_path: Path) -> None:
    """It indexes a log that exists, goes on after a kill, and finds each trace."""
    number = [work.head.sequence_number async for work in write_log(redis_url, bus, 1_500, 1.0)][-1]
    log = await RedisLog.connect(redis_url, bus)
    index = EventIndex(tmp_path, redis_url, minimum=1_000)
    async with following(index, lambda: [BusHead(bus, number), BusHead("small", 999)]):
        await reach(index, bus, number)
        assert 0 == index.head("small")
        trace = EventFilter(trace_id="of-000000000007")
        numbers = await index.select(bus, trace, 1, number, 1_000)
        assert numbers is not None
        assert list(range(4 + 7 * 9, 4 + 8 * 9)) == numbers
        assert [event.content for event in trace.select((await log.read_many(numbers)).values())]
        worker = index._process
        assert worker is not None
        os.kill(worker.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while index._process in (worker, None) or not index.head(bus):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await reach(index, bus, number)
        assert numbers == await index.select(bus, trace, 1, number, 1_000)
        last = index._process
        assert last is not None
    assert last.poll() is not None
    await log.close()


@pytest.mark.long
async def test_the_worker_reads_an_archive_in_an_object_store(
    redis_url: str, bus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the object store by the server's environment, and indexes the events that the log has no more."""
    number = [work.head.sequence_number async for work in write_log(redis_url, bus, 4_500, 1.0)][-1]
    log = await RedisLog.connect(redis_url, bus)
    with object_store() as environment:
        create_bucket(environment, monkeypatch)
        url = f"s3://{BUCKET}/{bus}"
        run = await archive_log(log, await open_archive(url, bus), sys.maxsize, trims=True)
        assert 4_097 == run.first_in_log
        index = EventIndex(tmp_path, redis_url, minimum=1, archive=url)
        async with following(index, lambda: [BusHead(bus, number)]):
            await reach(index, bus, number)
            assert [4 + 7 * 9] == await index.select(bus, EventFilter(trace_id="of-000000000007"), 1, number, 1)
    await log.close()


async def test_the_worker_ends_with_its_server(redis_url: str, bus: str, tmp_path: Path) -> None:
    """A worker whose server was killed while it worked ends without a message."""
    [_ async for _ in write_log(redis_url, bus, 300, 1.0)]
    read_end, write_end = os.pipe()
    os.close(read_end)  # as of a server that is dead
    command = [sys.executable, "-m", "gavel_server.index.worker"]
    worker = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=write_end, stderr=PIPE)
    os.close(write_end)
    orders = ({"store": redis_url, "data": str(tmp_path), "archive": ""}, {"bus": bus})
    assert worker.stdin is not None
    worker.stdin.writelines(json.dumps(order).encode() + b"\n" for order in orders)
    assert worker.stderr is not None
    async with asyncio.timeout(60):
        assert b"" == await worker.stderr.read()
        assert 0 == await worker.wait()


async def test_an_index_is_written_anew_while_reads_go_on(redis_url: str, bus: str, tmp_path: Path) -> None:
    """A read that finds the index damaged gets no answer from it; the worker writes it anew, and it answers again."""
    number = [work.head.sequence_number async for work in write_log(redis_url, bus, 300, 1.0)][-1]
    index = EventIndex(tmp_path, redis_url, minimum=1)
    async with following(index, lambda: [BusHead(bus, number)]):
        await reach(index, bus, number)
        path = tmp_path / "index" / f"{bus}.sqlite"
        with path.open("r+b") as file:
            file.write(b"damaged" * 1_000)
        path.with_name(f"{path.name}-wal").write_bytes(b"")
        index._close_reader(bus)
        assert None is await index.select(bus, EventFilter(subject="order/000000000001"), 1, number, 10)
        assert 0 == index.head(bus)
        await reach(index, bus, number)
        assert 9 == len(await index.select(bus, EventFilter(subject="order/000000000001"), 1, number, 10) or ())
