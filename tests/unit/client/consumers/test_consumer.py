"""The consumer of a work queue on a real Redis, including one that stops."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client.consumers import consumer as consumers
from gavel_client.consumers.consumer import Consumer, ConsumerStoppedError, Disposition
from gavel_client.consumers.work_queue import WorkQueue
from gavel_client.consumers.work_source import DECISIONS, START
from gavel_client.rpc.backoff import Backoff
from gavel_client.rpc.errors import GavelError, WorkQueueError
from gavel_server.log.redis.embedded import EmbeddedRedis

from tests.unit.client.work_queues import LONG_MS, SHORT_MS, WAIT_S, Member, Queue, until, until_equal


@asynccontextmanager
async def running(consumer: Consumer) -> AsyncIterator[None]:
    """Run a consumer in the context and stop it at the end."""
    task = asyncio.create_task(consumer.run())
    try:
        yield
    finally:
        consumer.stop()
        await task


async def test_dispositions(queue: Queue, member: Member) -> None:
    """The disposition decides whether an entry is deleted, acknowledged or left pending."""
    verdicts = {1: Disposition.DELETE, 2: Disposition.ACKNOWLEDGE, 3: Disposition.LEAVE}
    await queue.add(*(Envelope(sequence_number=number) for number in verdicts))
    numbers = set()

    async def process(envelope: Envelope) -> Disposition:
        numbers.add(envelope.sequence_number)
        return verdicts[envelope.sequence_number]

    async with running(Consumer(member(), process, concurrency=2)):
        await until(lambda: numbers == {1, 2, 3})
    assert ["2-0", "3-0"] == await queue.ids()
    assert 1 == await queue.pending("g")


async def test_pending_entry_is_delivered_again(queue: Queue, member: Member) -> None:
    """An entry that was left pending, or whose processing failed, is delivered again until it is done."""
    await queue.add(Envelope(sequence_number=1))
    outcomes: list[Any] = [
        Disposition.LEAVE,
        ValueError("secret"),
        GavelError(grpc.StatusCode.INTERNAL, "INTERNAL", "x"),
        Disposition.DELETE,
    ]

    async def process(_: Envelope) -> Disposition:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, Disposition)
        return outcome

    consumer = Consumer(member(min_idle_ms=SHORT_MS), process, concurrency=1)
    async with running(consumer):
        await until(lambda: not outcomes)
    assert [] == await queue.ids()
    assert (2, 2, 3) == (consumer.statistics.processed, consumer.statistics.failed, consumer.statistics.claimed)


async def test_failure_is_logged_without_its_text(queue: Queue, member: Member, caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged with its type and place, not with its text, which may hold parameters."""
    await queue.add(Envelope(sequence_number=1))

    async def process(_: Envelope) -> Disposition:
        raise ValueError("the secret parameter")

    consumer = Consumer(member(), process, concurrency=1)
    async with running(consumer):
        await until(lambda: consumer.statistics.failed > 0)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "entry=1-0 could not be processed and stays pending: ValueError at test_consumer.py:" in errors[0]
    assert "secret" not in caplog.text


async def test_damaged_entry_harms_no_other(queue: Queue, member: Member) -> None:
    """A damaged entry is counted and left for an operator; other entries are processed."""
    await queue.redis.xadd(queue.key, {"e": b"\xff\xff", "h": b"h"}, id="1-0")
    await queue.add(Envelope(sequence_number=2))

    async def process(_: Envelope) -> Disposition:
        return Disposition.DELETE

    consumer = Consumer(member(), process, concurrency=1)
    async with running(consumer):
        await until(lambda: consumer.statistics.processed == 1 and consumer.statistics.failed > 0)
    assert ["1-0"] == await queue.ids()


async def test_concurrency_is_bounded(queue: Queue, member: Member) -> None:
    """A consumer takes at most `concurrency` entries at once and leaves the others to other members."""
    await queue.add(*(Envelope(sequence_number=number) for number in range(1, 6)))
    active: set[int] = set()
    most = 0
    done = 0
    go_on = asyncio.Event()

    async def process(envelope: Envelope) -> Disposition:
        nonlocal most, done
        active.add(envelope.sequence_number)
        most = max(most, len(active))
        await go_on.wait()
        active.remove(envelope.sequence_number)
        done += 1
        return Disposition.DELETE

    async with running(Consumer(member(), process, concurrency=2)):
        await until(lambda: len(active) == 2)
        assert 2 == await queue.pending("g")
        go_on.set()
        await until(lambda: done == 5)
    assert 2 == most


async def test_pause_without_slot(queue: Queue, member: Member) -> None:
    """An entry that pauses without a slot lets another one be processed."""
    await queue.add(Envelope(sequence_number=1), Envelope(sequence_number=2))
    order: list[str] = []

    async def process(envelope: Envelope) -> Disposition:
        order.append(f"{envelope.sequence_number} begins")
        if envelope.sequence_number == 1:
            while "2 begins" not in order:
                await consumer.pause_without_slot(1)
        order.append(f"{envelope.sequence_number} ends")
        return Disposition.DELETE

    consumer = Consumer(member(), process, concurrency=1)
    async with running(consumer):
        await until(lambda: len(order) == 4)
    assert "1 begins" == order[0]
    assert order.index("2 begins") < order.index("1 ends")


async def test_entry_in_progress_is_not_claimed(queue: Queue, member: Member) -> None:
    """An entry in progress is never claimed while its consumer sends heartbeats."""
    await queue.add(Envelope(sequence_number=1))
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def process(_: Envelope) -> Disposition:
        begun.set()
        await go_on.wait()
        return Disposition.DELETE

    async def idle_ms() -> int:
        rows = await queue.redis.xpending_range(queue.key, "g", "-", "+", 1)
        return int(rows[0]["time_since_delivered"]) if rows else 0

    async with running(Consumer(member(min_idle_ms=SHORT_MS), process, concurrency=4)):
        await asyncio.wait_for(begun.wait(), WAIT_S)
        for _ in range(3):
            before = await idle_ms()
            async with asyncio.timeout(WAIT_S):
                while (now := await idle_ms()) >= before:
                    before = now
        go_on.set()


@pytest.fixture
def patient_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a stopping consumer all the time it needs for its last read and for leaving its group."""
    monkeypatch.setattr(consumers, "BLOCK_MS", WAIT_S * 1000)


@pytest.mark.usefixtures("patient_stop")
async def test_stop_waits_for_entries_in_progress(queue: Queue, member: Member) -> None:
    """After a stop entries in progress end; then the consumer leaves its group."""
    await queue.add(Envelope(sequence_number=1))
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def process(_: Envelope) -> Disposition:
        begun.set()
        await go_on.wait()
        return Disposition.DELETE

    consumer = Consumer(member(), process, concurrency=4)
    task = asyncio.create_task(consumer.run())
    await asyncio.wait_for(begun.wait(), WAIT_S)
    consumer.stop()
    await asyncio.sleep(0.05)
    assert not task.done()
    go_on.set()
    await asyncio.wait_for(task, WAIT_S)
    assert [] == await queue.ids()
    assert [] == await queue.consumers("g")


@pytest.mark.usefixtures("patient_stop")
async def test_stop_releases_late_deliveries(queue: Queue, member: Member) -> None:
    """An entry delivered to a stopping consumer is not processed and goes to another member at once."""
    numbers: list[int] = []
    seen_one, go_on = asyncio.Event(), asyncio.Event()

    async def process(envelope: Envelope) -> Disposition:
        numbers.append(envelope.sequence_number)
        seen_one.set()
        await go_on.wait()
        return Disposition.DELETE

    await queue.add(Envelope(sequence_number=1))
    stopping, other = member(), member()
    async with running(consumer := Consumer(stopping, process, concurrency=4)):
        await asyncio.wait_for(seen_one.wait(), WAIT_S)
        consumer.stop()
        await queue.add(Envelope(sequence_number=2))
        go_on.set()
    entry = await other.read() or (await other.claim(START))[1]
    assert entry is not None
    assert ("2-0", [1]) == (entry.entry_id, numbers)


async def test_stop_ends_pauses(queue: Queue, member: Member) -> None:
    """A paused entry is given up at once when the consumer stops."""
    await queue.add(Envelope(sequence_number=1))
    resting = asyncio.Event()

    async def process(_: Envelope) -> Disposition:
        resting.set()
        await consumer.pause_without_slot(60_000)
        raise AssertionError("not reached")

    consumer = Consumer(member(), process, concurrency=1)
    async with running(consumer):
        await asyncio.wait_for(resting.wait(), WAIT_S)
    assert 1 == await queue.pending("g")
    assert 0 == consumer.statistics.failed
    with pytest.raises(ConsumerStoppedError):
        await consumer.pause(0)


async def test_stop_cancels_after_the_grace(queue: Queue, member: Member) -> None:
    """An entry that exceeds the grace is cancelled and left pending."""
    await queue.add(Envelope(sequence_number=1))
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def process(_: Envelope) -> Disposition:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return Disposition.DELETE

    consumer = Consumer(member(), process, concurrency=1, stop_grace_ms=1)
    async with running(consumer):
        await asyncio.wait_for(begun.wait(), WAIT_S)
    assert cancelled.is_set()
    assert 1 == await queue.pending("g")


async def test_queue_with_wrong_settings_ends_the_run(queue: Queue, member: Member) -> None:
    """A queue that cannot be used from the start ends the run with an error, so that somebody mends the settings."""
    await queue.redis.set(queue.key, "not a stream")
    with pytest.raises(WorkQueueError, match="cannot be used"):
        await asyncio.wait_for(Consumer(member(), _leave, concurrency=1).run(), WAIT_S)


async def test_unusable_queue_is_mended(queue: Queue, member: Member) -> None:
    """A queue that becomes unusable is a visible problem, and no end: once it is mended, entries are processed again."""
    await queue.add(Envelope(sequence_number=1))
    done = []

    async def process(entry: Envelope) -> Disposition:
        done.append(entry.sequence_number)
        if entry.sequence_number == 1:
            await queue.redis.delete(queue.key)
            await queue.redis.set(queue.key, "not a stream")
        return Disposition.DELETE

    consumer = Consumer(member(), process, concurrency=1)
    async with running(consumer):
        await until(lambda: "WRONGTYPE" in consumer.problem)
        await queue.redis.delete(queue.key)
        await queue.add(Envelope(sequence_number=2))
        await until(lambda: done == [1, 2])
        await until(lambda: not consumer.problem)


async def test_call_retries_transient_errors(member: Member, backoff: Backoff) -> None:
    """A call is retried after transient errors; a refusal is raised."""
    away, refusal = GavelError(grpc.StatusCode.UNAVAILABLE, "", "away"), GavelError(grpc.StatusCode.NOT_FOUND, "EVENT_NOT_FOUND", "")
    outcomes: list[Any] = [away] * 20 + ["answer", away, refusal]

    async def call(argument: str, *, keyword: int) -> str:
        assert ("a", 1) == (argument, keyword)
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    consumer = Consumer(member(), _leave, concurrency=1, backoff=backoff)
    assert "answer" == await consumer.call(call, "a", keyword=1)
    with pytest.raises(GavelError) as raised:
        await consumer.call(call, "a", keyword=1)
    assert refusal is raised.value


async def test_call_through_stop(member: Member, backoff: Backoff) -> None:
    """A stop ends the retries of `call`, not those of `call_through_stop`."""
    failures = 3

    async def call() -> str:
        nonlocal failures
        failures -= 1
        if failures:
            raise GavelError(grpc.StatusCode.UNAVAILABLE, "", "away")
        return "said"

    consumer = Consumer(member(), _leave, concurrency=1, backoff=backoff)
    consumer.stop()
    with pytest.raises(ConsumerStoppedError):
        await consumer.call(call)
    assert "said" == await consumer.call_through_stop(call)


async def _leave(_: Envelope) -> Disposition:
    return Disposition.LEAVE


# A Redis that goes away


@asynccontextmanager
async def restartable(directory: Path) -> AsyncIterator[EmbeddedRedis]:
    """A Redis for this test alone."""
    async with EmbeddedRedis(directory) as server:
        yield server


async def test_restart_of_redis(tmp_path: Path, bus: str, backoff: Backoff) -> None:
    """A consumer survives a restart of Redis: the entry in progress is acknowledged and later entries are processed."""
    async with restartable(tmp_path) as server, Queue.open(server.url, bus, DECISIONS) as queue:
        await queue.add(Envelope(sequence_number=1))
        begun, go_on = asyncio.Event(), asyncio.Event()
        done = []

        async def process(envelope: Envelope) -> Disposition:
            begun.set()
            await go_on.wait()
            done.append(envelope.sequence_number)
            return Disposition.DELETE

        own = WorkQueue(server.url, queue=DECISIONS, group="g", bus=bus, min_idle_ms=LONG_MS, backoff=backoff)
        async with running(Consumer(own, process, concurrency=2)):
            await asyncio.wait_for(begun.wait(), WAIT_S)
            assert server.process_id is not None
            os.kill(server.process_id, signal.SIGKILL)
            await server.wait()
            go_on.set()
            await until(lambda: done == [1])
            await server.ensure_running()
            await queue.add(Envelope(sequence_number=2))
            await until(lambda: done == [1, 2])
            await until_equal(queue.ids, [])


async def test_restart_of_redis_without_data(redis_url: str, queue: Queue, member: Member) -> None:
    """A queue that was lost with its group is read from its new start."""
    done = []

    async def process(envelope: Envelope) -> Disposition:
        done.append(envelope.sequence_number)
        return Disposition.DELETE

    await queue.add(Envelope(sequence_number=1))
    async with running(Consumer(member(), process, concurrency=1)):
        # The disposition of the first entry: arriving later, it would delete the new entry, which has the same number.
        await until_equal(queue.ids, [])
        await queue.redis.delete(queue.key)
        await queue.add(Envelope(sequence_number=1), Envelope(sequence_number=2))
        await until(lambda: done == [1, 1, 2])
