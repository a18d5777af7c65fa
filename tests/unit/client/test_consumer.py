"""The consumer around a work queue, on a real Redis, also one that goes away."""

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
from gavel_client import consumer as consumers
from gavel_client.backoff import Backoff
from gavel_client.consumer import Consumer, ConsumerStoppedError, Verdict
from gavel_client.errors import GavelError, WorkQueueError
from gavel_client.work_queue import DECISIONS, START, WorkQueue
from gavel_server.embedded import EmbeddedRedis

from tests.unit.client.redis_helpers import LONG_MS, SHORT_MS, WAIT_S, Member, Queue, until, until_equal


@asynccontextmanager
async def running(consumer: Consumer) -> AsyncIterator[None]:
    """Run a consumer and stop it in the end."""
    task = asyncio.create_task(consumer.run())
    try:
        yield
    finally:
        consumer.stop()
        await task


async def test_verdicts(queue: Queue, member: Member) -> None:
    """A verdict decides whether an entry is deleted, acknowledged or left pending."""
    verdicts = {1: Verdict.DELETE, 2: Verdict.ACKNOWLEDGE, 3: Verdict.LEAVE}
    await queue.add(*(Envelope(sequence_number=number) for number in verdicts))
    seen = set()

    async def process(envelope: Envelope) -> Verdict:
        seen.add(envelope.sequence_number)
        return verdicts[envelope.sequence_number]

    async with running(Consumer(member(), process, concurrency=2)):
        await until(lambda: seen == {1, 2, 3})
    assert ["2-0", "3-0"] == await queue.ids()
    assert 1 == await queue.pending("g")


async def test_left_pending_comes_back(queue: Queue, member: Member) -> None:
    """An entry that was left, or whose processing failed, is met again, and in the end done."""
    await queue.add(Envelope(sequence_number=1))
    outcomes: list[Any] = [Verdict.LEAVE, ValueError("secret"), GavelError(grpc.StatusCode.INTERNAL, "INTERNAL", "x"), Verdict.DELETE]

    async def process(_: Envelope) -> Verdict:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, Verdict)
        return outcome

    consumer = Consumer(member(min_idle_ms=SHORT_MS), process, concurrency=1)
    async with running(consumer):
        await until(lambda: not outcomes)
    assert [] == await queue.ids()
    assert (2, 2, 3) == (consumer.statistics.processed, consumer.statistics.failed, consumer.statistics.claimed)


async def test_failure_is_logged_without_its_text(queue: Queue, member: Member, caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged as an error, with its type and place but not its text, which may hold parameters."""
    await queue.add(Envelope(sequence_number=1))

    async def process(_: Envelope) -> Verdict:
        raise ValueError("the secret parameter")

    consumer = Consumer(member(), process, concurrency=1)
    async with running(consumer):
        await until(lambda: consumer.statistics.failed > 0)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "entry=1-0 could not be processed and stays pending: ValueError at test_consumer.py:" in errors[0]
    assert "secret" not in caplog.text


async def test_damaged_entry_harms_no_other(queue: Queue, member: Member) -> None:
    """A damaged entry is counted and stays for an operator to see; the others are processed."""
    await queue.redis.xadd(queue.key, {"e": b"\xff\xff", "h": b"h"}, id="1-0")
    await queue.add(Envelope(sequence_number=2))

    async def process(_: Envelope) -> Verdict:
        return Verdict.DELETE

    consumer = Consumer(member(), process, concurrency=1)
    async with running(consumer):
        await until(lambda: consumer.statistics.processed == 1 and consumer.statistics.failed > 0)
    assert ["1-0"] == await queue.ids()


async def test_concurrency_is_bounded(queue: Queue, member: Member) -> None:
    """No more entries are taken than may be processed at once: the others are left to other members."""
    await queue.add(*(Envelope(sequence_number=number) for number in range(1, 6)))
    active: set[int] = set()
    most = 0
    done = 0
    go_on = asyncio.Event()

    async def process(envelope: Envelope) -> Verdict:
        nonlocal most, done
        active.add(envelope.sequence_number)
        most = max(most, len(active))
        await go_on.wait()
        active.remove(envelope.sequence_number)
        done += 1
        return Verdict.DELETE

    async with running(Consumer(member(), process, concurrency=2)):
        await until(lambda: len(active) == 2)
        assert 2 == await queue.pending("g")
        go_on.set()
        await until(lambda: done == 5)
    assert 2 == most


async def test_resting_gives_the_slot_back(queue: Queue, member: Member) -> None:
    """An entry that waits for something lets another one be processed meanwhile."""
    await queue.add(Envelope(sequence_number=1), Envelope(sequence_number=2))
    order: list[str] = []

    async def process(envelope: Envelope) -> Verdict:
        order.append(f"{envelope.sequence_number} begins")
        if envelope.sequence_number == 1:
            while "2 begins" not in order:
                await consumer.rest(1)
        order.append(f"{envelope.sequence_number} ends")
        return Verdict.DELETE

    consumer = Consumer(member(), process, concurrency=1)
    async with running(consumer):
        await until(lambda: len(order) == 4)
    assert "1 begins" == order[0]
    assert order.index("2 begins") < order.index("1 ends")


async def test_work_in_progress_is_kept(queue: Queue, member: Member) -> None:
    """However long an entry takes, it does not grow idle while its consumer lives: nobody takes it over."""
    await queue.add(Envelope(sequence_number=1))
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def process(_: Envelope) -> Verdict:
        begun.set()
        await go_on.wait()
        return Verdict.DELETE

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
    """A stopping consumer has all the time that it needs to read out what is under way to it, and to leave its group."""
    monkeypatch.setattr(consumers, "BLOCK_MS", WAIT_S * 1000)


@pytest.mark.usefixtures("patient_stop")
async def test_stop_waits_for_what_is_under_way(queue: Queue, member: Member) -> None:
    """After a stop what is under way ends; then the consumer leaves its group."""
    await queue.add(Envelope(sequence_number=1))
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def process(_: Envelope) -> Verdict:
        begun.set()
        await go_on.wait()
        return Verdict.DELETE

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
async def test_stop_hands_on_what_comes_meanwhile(queue: Queue, member: Member) -> None:
    """An entry that a stopping consumer still receives is not begun, and another member gets it at once."""
    seen: list[int] = []
    seen_one, go_on = asyncio.Event(), asyncio.Event()

    async def process(envelope: Envelope) -> Verdict:
        seen.append(envelope.sequence_number)
        seen_one.set()
        await go_on.wait()
        return Verdict.DELETE

    await queue.add(Envelope(sequence_number=1))
    stopping, other = member(), member()
    async with running(consumer := Consumer(stopping, process, concurrency=4)):
        await asyncio.wait_for(seen_one.wait(), WAIT_S)
        consumer.stop()
        await queue.add(Envelope(sequence_number=2))
        go_on.set()
    entry = await other.read() or (await other.claim(START))[1]
    assert entry is not None
    assert ("2-0", [1]) == (entry.entry_id, seen)


async def test_stop_ends_waiting(queue: Queue, member: Member) -> None:
    """What only waits gives up its entry as soon as the consumer stops, and leaves it to others."""
    await queue.add(Envelope(sequence_number=1))
    resting = asyncio.Event()

    async def process(_: Envelope) -> Verdict:
        resting.set()
        await consumer.rest(60_000)
        raise AssertionError("not reached")

    consumer = Consumer(member(), process, concurrency=1)
    async with running(consumer):
        await asyncio.wait_for(resting.wait(), WAIT_S)
    assert 1 == await queue.pending("g")
    assert 0 == consumer.statistics.failed
    with pytest.raises(ConsumerStoppedError):
        await consumer.pause(0)


async def test_stop_cancels_after_the_grace(queue: Queue, member: Member) -> None:
    """What does not end within the grace is cancelled and left to others."""
    await queue.add(Envelope(sequence_number=1))
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def process(_: Envelope) -> Verdict:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return Verdict.DELETE

    consumer = Consumer(member(), process, concurrency=1, stop_grace_ms=1)
    async with running(consumer):
        await asyncio.wait_for(begun.wait(), WAIT_S)
    assert cancelled.is_set()
    assert 1 == await queue.pending("g")


async def test_run_ends_when_the_queue_cannot_be_used(queue: Queue, member: Member) -> None:
    """A queue that becomes unusable ends the run with the error, also when only an acknowledgement met it."""
    await queue.add(Envelope(sequence_number=1))

    async def process(_: Envelope) -> Verdict:
        await queue.redis.delete(queue.key)
        await queue.redis.set(queue.key, "not a stream")
        return Verdict.DELETE

    with pytest.raises(WorkQueueError, match="cannot be used"):
        await asyncio.wait_for(Consumer(member(), process, concurrency=1).run(), WAIT_S)


async def test_persist_waits_for_the_server(member: Member, backoff: Backoff) -> None:
    """A call that may heal is made until it is judged; a refusal is raised."""
    away, refusal = GavelError(grpc.StatusCode.UNAVAILABLE, "", "away"), GavelError(grpc.StatusCode.NOT_FOUND, "EVENT_NOT_FOUND", "")
    outcomes: list[Any] = [away] * 20 + ["answer", away, refusal]

    async def call(argument: str, *, keyword: int) -> str:
        assert ("a", 1) == (argument, keyword)
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    consumer = Consumer(member(), _leave, concurrency=1, backoff=backoff)
    assert "answer" == await consumer.persist(call, "a", keyword=1)
    with pytest.raises(GavelError) as raised:
        await consumer.persist(call, "a", keyword=1)
    assert refusal is raised.value


async def test_stop_ends_persistence_unless_told(member: Member, backoff: Backoff) -> None:
    """A stop ends the tries of an ordinary call; those of what must not go unsaid go on."""
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
        await consumer.persist(call)
    assert "said" == await consumer.persist_through_stop(call)


async def _leave(_: Envelope) -> Verdict:
    return Verdict.LEAVE


# A Redis that goes away


@asynccontextmanager
async def restartable(directory: Path) -> AsyncIterator[EmbeddedRedis]:
    """A Redis of the test's own."""
    async with EmbeddedRedis(directory) as server:
        yield server


async def test_redis_is_killed_and_comes_back(tmp_path: Path, bus: str, backoff: Backoff) -> None:
    """A consumer outlives its Redis: what was under way ends and is acknowledged, what comes later is processed."""
    async with restartable(tmp_path) as server, Queue.open(server.url, bus, DECISIONS) as queue:
        await queue.add(Envelope(sequence_number=1))
        begun, go_on = asyncio.Event(), asyncio.Event()
        done = []

        async def process(envelope: Envelope) -> Verdict:
            begun.set()
            await go_on.wait()
            done.append(envelope.sequence_number)
            return Verdict.DELETE

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


async def test_redis_comes_back_empty(redis_url: str, queue: Queue, member: Member) -> None:
    """A queue that was lost with its group is read again from its new start."""
    done = []

    async def process(envelope: Envelope) -> Verdict:
        done.append(envelope.sequence_number)
        return Verdict.DELETE

    await queue.add(Envelope(sequence_number=1))
    async with running(Consumer(member(), process, concurrency=1)):
        await until_equal(queue.ids, [])  # the verdict on it arrived: it would delete the new one, which has the same number
        await queue.redis.delete(queue.key)
        await queue.add(Envelope(sequence_number=1), Envelope(sequence_number=2))
        await until(lambda: done == [1, 1, 2])
