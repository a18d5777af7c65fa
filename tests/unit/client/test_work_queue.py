"""Work queues and the consumer around them, on a real Redis."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import grpc
import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import consumer as consumers
from gavel_client.backoff import Backoff
from gavel_client.consumer import Consumer, ConsumerStoppedError, Verdict
from gavel_client.errors import GavelError, WorkQueueError
from gavel_client.work_queue import DECISIONS, START, Entry, WorkQueue
from gavel_server.embedded import EmbeddedRedis

from tests.unit.client.redis_helpers import LONG_MS, SHORT_MS, WAIT_S, Queue, until, until_equal


@pytest.fixture
async def member(redis_url: str, bus: str, backoff: Backoff) -> AsyncIterator[Callable[..., WorkQueue]]:
    """Makes members of a group on the decisions queue. What they leave comes back only if a test says when."""
    made: list[WorkQueue] = []

    def make(group: str = "g", min_idle_ms: int = LONG_MS, news: asyncio.Event | None = None) -> WorkQueue:
        made.append(WorkQueue(redis_url, queue=DECISIONS, group=group, bus=bus, min_idle_ms=min_idle_ms, backoff=backoff, news=news))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def one_of(consumer: WorkQueue) -> Entry:
    """Read an entry that must be there."""
    entry = await consumer.read()
    assert entry is not None
    return entry


async def drain(consumer: WorkQueue) -> list[int]:
    """Read until there is nothing new; return the sequence numbers."""
    numbers = []
    while (entry := await consumer.read()) is not None:
        numbers.append(entry.envelope().sequence_number)
    return numbers


async def test_read_fills_the_chain_hash(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """An entry is the event with its chain hash filled in, under the event's own number."""
    await queue.add(Envelope(sequence_number=5, event_id="e"), chain_hash=b"h" * 32)
    entry = await member().read()
    assert entry is not None
    assert ("5-0", Envelope(sequence_number=5, event_id="e", chain_hash=b"h" * 32)) == (entry.entry_id, entry.envelope())


async def test_missing_group_is_made_from_the_start(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """A group that does not exist yet misses nothing that still lies in the queue; nor does one that was lost."""
    await queue.add(Envelope(sequence_number=1), Envelope(sequence_number=2))
    consumer = member()
    assert [1, 2] == await drain(consumer)
    await queue.redis.xgroup_destroy(queue.key, "g")
    assert [1, 2] == await drain(consumer)


async def test_queue_that_does_not_exist_yet(member: Callable[..., WorkQueue]) -> None:
    """A consumer may be there before the server has queued anything."""
    assert await member().read() is None


async def test_who_is_told_of_entries_asks_when_there_is_news(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """With `news` a read takes what there is; where there is nothing it waits until it is told, and the next one looks."""

    class News(asyncio.Event):
        """Says whether somebody waits for it."""

        awaited = False

        async def wait(self) -> Literal[True]:
            """Wait."""
            self.awaited = True
            return await super().wait()

    news = News()
    consumer = member(news=news)
    await queue.add(Envelope(sequence_number=1))
    assert "1-0" == (await one_of(consumer)).entry_id
    assert not news.awaited
    waiting = asyncio.create_task(consumer.read())
    await until(lambda: news.awaited)
    await queue.add(Envelope(sequence_number=2))
    news.set()
    assert await asyncio.wait_for(waiting, WAIT_S) is None
    assert "2-0" == (await one_of(consumer)).entry_id


async def test_members_share_groups_repeat(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """Within a group each entry goes to one member; every group gets every entry."""
    await queue.add(*(Envelope(sequence_number=number) for number in range(1, 5)))
    first, second, other = member(), member(), member("other")
    got = [await first.read(), await second.read(), await first.read(), await second.read()]
    assert ["1-0", "2-0", "3-0", "4-0"] == [entry.entry_id for entry in got if entry]
    assert [1, 2, 3, 4] == await drain(other)


async def test_acknowledged_is_kept_for_other_groups_deleted_is_not(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """Acknowledging is a group's own affair; deleting takes an entry from the queue for all."""
    await queue.add(Envelope(sequence_number=1), Envelope(sequence_number=2))
    consumer = member()
    assert [1, 2] == await drain(consumer)
    await consumer.acknowledge("1-0")
    await consumer.delete("2-0")
    assert ["1-0"] == await queue.ids()
    assert 0 == await queue.pending("g")


async def test_claim_takes_over_what_is_idle(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """Entries of a silent consumer are claimed once they have been idle for long enough, not before."""
    await queue.add(Envelope(sequence_number=1), Envelope(sequence_number=2))
    silent, heir = member(), member()
    assert [1, 2] == await drain(silent)
    assert (START, None) == await heir.claim(START)
    heir.min_idle_ms = 0
    cursor, entry = await heir.claim(START)
    assert entry is not None
    assert "1-0" == entry.entry_id
    cursor, entry = await heir.claim(cursor)
    assert entry is not None
    assert "2-0" == entry.entry_id


async def test_claim_forgets_what_was_deleted(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """An entry that another group has deleted leaves the pending list of this one, whatever the version of Redis."""
    await queue.add(Envelope(sequence_number=1), Envelope(sequence_number=2))
    consumer = member()
    assert [1, 2] == await drain(consumer)
    await queue.redis.xdel(queue.key, "1-0")
    consumer.min_idle_ms = 0
    cursor, claimed = START, []
    while True:
        cursor, entry = await consumer.claim(cursor)
        claimed += [entry.entry_id] if entry else []
        if cursor == START:
            break
    assert ["2-0"] == claimed
    assert 1 == await queue.pending("g")


async def test_keep_does_not_bring_back_what_is_done(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """Saying that one is at work on an entry that has been acknowledged meanwhile changes nothing."""
    await queue.add(Envelope(sequence_number=1))
    consumer = member()
    assert [1] == await drain(consumer)
    await consumer.acknowledge("1-0")
    await consumer.keep(["1-0"])
    assert 0 == await queue.pending("g")


async def test_trim(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """Trimming deletes exactly what lies before the given sequence number."""
    await queue.add(*(Envelope(sequence_number=number) for number in (1, 2, 5, 6)))
    await member().trim(5)
    assert ["5-0", "6-0"] == await queue.ids()


async def test_leave(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """A consumer that leaves takes its name along, unless entries are still pending with it."""
    await queue.add(Envelope(sequence_number=1))
    idle, busy = member(), member()
    assert [1] == await drain(busy)
    assert [] == await drain(idle)
    await idle.leave()
    await busy.leave()
    assert [busy.consumer] == await queue.consumers("g")


async def test_wrong_type_is_an_error(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """What waiting cannot heal is raised at once, with what to look at."""
    await queue.redis.set(queue.key, "not a stream")
    with pytest.raises(WorkQueueError, match=r"work:decisions cannot be used: .*check the Redis URL and the rights"):
        await member().read()


async def test_missing_rights_are_an_error(queue: Queue, redis_url: str, bus: str) -> None:
    """A user who may not read the queue hears so at once; the password stays out of the message."""
    await queue.redis.acl_setuser(f"user-{bus}", enabled=True, passwords=["+secret"], commands=["+ping", "+client", "+hello"])
    user_url = redis_url.replace("unix://", f"unix://user-{bus}:secret@")
    consumer = WorkQueue(user_url, queue=DECISIONS, group="g", bus=bus)
    with pytest.raises(WorkQueueError) as raised:
        await consumer.read()
    assert "secret" not in str(raised.value)
    await consumer.close()
    await queue.redis.acl_deluser(f"user-{bus}")


async def test_wrong_password_is_an_error(redis_url: str, bus: str) -> None:
    """So does one with a wrong password, although redis-py counts that as a lost connection."""
    consumer = WorkQueue(redis_url.replace("unix://", "unix://nobody:wrong@"), queue=DECISIONS, group="g", bus=bus)
    with pytest.raises(WorkQueueError):
        await consumer.read()
    await consumer.close()


@pytest.mark.parametrize(
    "fields", [{"h": b"h"}, {"e": b"\xff\xff", "h": b"h"}, {"e": Envelope(sequence_number=9).SerializeToString(), "h": b"h"}]
)
async def test_damaged_entry(fields: dict[str, bytes], queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """An entry that lacks its envelope, cannot be decoded or holds another event is refused."""
    await queue.redis.xadd(queue.key, fields, id="1-0")
    entry = await member().read()
    assert entry is not None
    with pytest.raises(WorkQueueError, match="the entry 1-0"):
        entry.envelope()


# The consumer


@asynccontextmanager
async def running(consumer: Consumer) -> AsyncIterator[None]:
    """Run a consumer and stop it in the end."""
    task = asyncio.create_task(consumer.run())
    try:
        yield
    finally:
        consumer.stop()
        await task


async def test_verdicts(queue: Queue, member: Callable[..., WorkQueue]) -> None:
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


async def test_left_pending_comes_back(queue: Queue, member: Callable[..., WorkQueue]) -> None:
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


async def test_failure_is_logged_without_its_text(queue: Queue, member: Callable[..., WorkQueue], caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged as an error, with its type and place but not its text, which may hold parameters."""
    await queue.add(Envelope(sequence_number=1))

    async def process(_: Envelope) -> Verdict:
        raise ValueError("the secret parameter")

    consumer = Consumer(member(), process, concurrency=1)
    async with running(consumer):
        await until(lambda: consumer.statistics.failed > 0)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "entry=1-0 could not be processed and stays pending: ValueError at test_work_queue.py:" in errors[0]
    assert "secret" not in caplog.text


async def test_damaged_entry_harms_no_other(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """A damaged entry is counted and stays for an operator to see; the others are processed."""
    await queue.redis.xadd(queue.key, {"e": b"\xff\xff", "h": b"h"}, id="1-0")
    await queue.add(Envelope(sequence_number=2))

    async def process(_: Envelope) -> Verdict:
        return Verdict.DELETE

    consumer = Consumer(member(), process, concurrency=1)
    async with running(consumer):
        await until(lambda: consumer.statistics.processed == 1 and consumer.statistics.failed > 0)
    assert ["1-0"] == await queue.ids()


async def test_concurrency_is_bounded(queue: Queue, member: Callable[..., WorkQueue]) -> None:
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


async def test_resting_gives_the_slot_back(queue: Queue, member: Callable[..., WorkQueue]) -> None:
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


async def test_work_in_progress_is_kept(queue: Queue, member: Callable[..., WorkQueue]) -> None:
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
async def test_stop_waits_for_what_is_under_way(queue: Queue, member: Callable[..., WorkQueue]) -> None:
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
async def test_stop_hands_on_what_comes_meanwhile(queue: Queue, member: Callable[..., WorkQueue]) -> None:
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


async def test_stop_ends_waiting(queue: Queue, member: Callable[..., WorkQueue]) -> None:
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


async def test_stop_cancels_after_the_grace(queue: Queue, member: Callable[..., WorkQueue]) -> None:
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


async def test_run_ends_when_the_queue_cannot_be_used(queue: Queue, member: Callable[..., WorkQueue]) -> None:
    """A queue that becomes unusable ends the run with the error, also when only an acknowledgement met it."""
    await queue.add(Envelope(sequence_number=1))

    async def process(_: Envelope) -> Verdict:
        await queue.redis.delete(queue.key)
        await queue.redis.set(queue.key, "not a stream")
        return Verdict.DELETE

    with pytest.raises(WorkQueueError, match="cannot be used"):
        await asyncio.wait_for(Consumer(member(), process, concurrency=1).run(), WAIT_S)


async def test_persist_waits_for_the_server(member: Callable[..., WorkQueue], backoff: Backoff) -> None:
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


async def test_stop_ends_persistence_unless_told(member: Callable[..., WorkQueue], backoff: Backoff) -> None:
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


async def test_redis_comes_back_empty(redis_url: str, queue: Queue, member: Callable[..., WorkQueue]) -> None:
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
