"""Work queues, on a real Redis."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client.errors import WorkQueueError
from gavel_client.work_queue import DECISIONS, START, Entry, WorkQueue

from tests.unit.client.redis_helpers import WAIT_S, Member, Queue, until


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


async def test_read_fills_the_chain_hash(queue: Queue, member: Member) -> None:
    """An entry is the event with its chain hash filled in, under the event's own number."""
    await queue.add(Envelope(sequence_number=5, event_id="e"), chain_hash=b"h" * 32)
    entry = await member().read()
    assert entry is not None
    assert ("5-0", Envelope(sequence_number=5, event_id="e", chain_hash=b"h" * 32)) == (entry.entry_id, entry.envelope())


async def test_missing_group_is_made_from_the_start(queue: Queue, member: Member) -> None:
    """A group that does not exist yet misses nothing that still lies in the queue; nor does one that was lost."""
    await queue.add(Envelope(sequence_number=1), Envelope(sequence_number=2))
    consumer = member()
    assert [1, 2] == await drain(consumer)
    await queue.redis.xgroup_destroy(queue.key, "g")
    assert [1, 2] == await drain(consumer)


async def test_queue_that_does_not_exist_yet(member: Member) -> None:
    """A consumer may be there before the server has queued anything."""
    assert await member().read() is None


async def test_who_is_told_of_entries_asks_when_there_is_news(queue: Queue, member: Member) -> None:
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


async def test_members_share_groups_repeat(queue: Queue, member: Member) -> None:
    """Within a group each entry goes to one member; every group gets every entry."""
    await queue.add(*(Envelope(sequence_number=number) for number in range(1, 5)))
    first, second, other = member(), member(), member("other")
    got = [await first.read(), await second.read(), await first.read(), await second.read()]
    assert ["1-0", "2-0", "3-0", "4-0"] == [entry.entry_id for entry in got if entry]
    assert [1, 2, 3, 4] == await drain(other)


async def test_acknowledged_is_kept_for_other_groups_deleted_is_not(queue: Queue, member: Member) -> None:
    """Acknowledging is a group's own affair; deleting takes an entry from the queue for all."""
    await queue.add(Envelope(sequence_number=1), Envelope(sequence_number=2))
    consumer = member()
    assert [1, 2] == await drain(consumer)
    await consumer.acknowledge("1-0")
    await consumer.delete("2-0")
    assert ["1-0"] == await queue.ids()
    assert 0 == await queue.pending("g")


async def test_claim_takes_over_what_is_idle(queue: Queue, member: Member) -> None:
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


async def test_claim_forgets_what_was_deleted(queue: Queue, member: Member) -> None:
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


async def test_keep_does_not_bring_back_what_is_done(queue: Queue, member: Member) -> None:
    """Saying that one is at work on an entry that has been acknowledged meanwhile changes nothing."""
    await queue.add(Envelope(sequence_number=1))
    consumer = member()
    assert [1] == await drain(consumer)
    await consumer.acknowledge("1-0")
    await consumer.keep(["1-0"])
    assert 0 == await queue.pending("g")


async def test_trim(queue: Queue, member: Member) -> None:
    """Trimming deletes exactly what lies before the given sequence number."""
    await queue.add(*(Envelope(sequence_number=number) for number in (1, 2, 5, 6)))
    await member().trim(5)
    assert ["5-0", "6-0"] == await queue.ids()


async def test_leave(queue: Queue, member: Member) -> None:
    """A consumer that leaves takes its name along, unless entries are still pending with it."""
    await queue.add(Envelope(sequence_number=1))
    idle, busy = member(), member()
    assert [1] == await drain(busy)
    assert [] == await drain(idle)
    await idle.leave()
    await busy.leave()
    assert [busy.consumer] == await queue.consumers("g")


async def test_wrong_type_is_an_error(queue: Queue, member: Member) -> None:
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
async def test_damaged_entry(fields: dict[str, bytes], queue: Queue, member: Member) -> None:
    """An entry that lacks its envelope, cannot be decoded or holds another event is refused."""
    await queue.redis.xadd(queue.key, fields, id="1-0")
    entry = await member().read()
    assert entry is not None
    with pytest.raises(WorkQueueError, match="the entry 1-0"):
        entry.envelope()
