"""Work queues, on a real Redis."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client.consumers.work_queue import Entry, WorkQueue
from gavel_client.consumers.work_source import DECISIONS, START
from gavel_client.rpc.errors import WorkQueueError

from tests.unit.client.work_queues import WAIT_S, Member, Queue, until


async def one_of(consumer: WorkQueue) -> Entry:
    """Read an entry that must exist."""
    entry = await consumer.read()
    assert entry is not None
    return entry


async def drain(consumer: WorkQueue) -> list[int]:
    """Read until no new entry is left; return the sequence numbers."""
    numbers = []
    while (entry := await consumer.read()) is not None:
        numbers.append(entry.envelope().sequence_number)
    return numbers


async def test_read_fills_the_chain_hash(queue: Queue, member: Member) -> None:
    """An entry holds the event with its chain hash, under the event's sequence number."""
    await queue.add(Envelope(sequence_number=5, event_id="e"), chain_hash=b"h" * 32)
    entry = await member().read()
    assert entry is not None
    assert ("5-0", Envelope(sequence_number=5, event_id="e", chain_hash=b"h" * 32)) == (entry.entry_id, entry.envelope())


async def test_missing_group_starts_at_the_first_entry(queue: Queue, member: Member) -> None:
    """A new group, and one that was lost, reads all entries of the queue."""
    await queue.add(Envelope(sequence_number=1), Envelope(sequence_number=2))
    consumer = member()
    assert [1, 2] == await drain(consumer)
    await queue.redis.xgroup_destroy(queue.key, "g")
    assert [1, 2] == await drain(consumer)


async def test_queue_that_does_not_exist_yet(member: Member) -> None:
    """A consumer may read a queue that does not exist yet."""
    assert await member().read() is None


async def test_read_with_wakeup(queue: Queue, member: Member) -> None:
    """With `wakeup` a read returns an existing entry at once; otherwise it waits for the event, and the next read asks Redis."""

    class News(asyncio.Event):
        """Says whether somebody waits for it."""

        awaited = False

        async def wait(self) -> Literal[True]:
            """Wait."""
            self.awaited = True
            return await super().wait()

    news = News()
    consumer = member(wakeup=news)
    await queue.add(Envelope(sequence_number=1))
    assert "1-0" == (await one_of(consumer)).entry_id
    assert not news.awaited
    waiting = asyncio.create_task(consumer.read())
    await until(lambda: news.awaited)
    await queue.add(Envelope(sequence_number=2))
    news.set()
    assert await asyncio.wait_for(waiting, WAIT_S) is None
    assert "2-0" == (await one_of(consumer)).entry_id


async def test_members_share_entries_of_a_group(queue: Queue, member: Member) -> None:
    """Each entry goes to one member of each group."""
    await queue.add(*(Envelope(sequence_number=number) for number in range(1, 5)))
    first, second, other = member(), member(), member("other")
    got = [await first.read(), await second.read(), await first.read(), await second.read()]
    assert ["1-0", "2-0", "3-0", "4-0"] == [entry.entry_id for entry in got if entry]
    assert [1, 2, 3, 4] == await drain(other)


async def test_acknowledge_and_delete(queue: Queue, member: Member) -> None:
    """Acknowledging affects one group only; deleting removes an entry for all groups."""
    await queue.add(Envelope(sequence_number=1), Envelope(sequence_number=2))
    consumer = member()
    assert [1, 2] == await drain(consumer)
    await consumer.acknowledge("1-0")
    await consumer.delete("2-0")
    assert ["1-0"] == await queue.ids()
    assert 0 == await queue.pending("g")


async def test_claim_takes_idle_entries(queue: Queue, member: Member) -> None:
    """Entries of a silent consumer are claimed after `min_idle_ms`, not before."""
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


async def test_claim_acknowledges_deleted_entries(queue: Queue, member: Member) -> None:
    """An entry that another group deleted leaves this group's pending list, on any version of Redis."""
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


async def test_heartbeat_skips_acknowledged_entries(queue: Queue, member: Member) -> None:
    """A heartbeat for an acknowledged entry changes nothing."""
    await queue.add(Envelope(sequence_number=1))
    consumer = member()
    assert [1] == await drain(consumer)
    await consumer.acknowledge("1-0")
    await consumer.heartbeat(["1-0"])
    assert 0 == await queue.pending("g")


async def test_trim(queue: Queue, member: Member) -> None:
    """Trimming deletes exactly the entries before the given sequence number."""
    await queue.add(*(Envelope(sequence_number=number) for number in (1, 2, 5, 6)))
    await member().trim(5)
    assert ["5-0", "6-0"] == await queue.ids()


async def test_leave(queue: Queue, member: Member) -> None:
    """A consumer that leaves is removed from its group, unless it has pending entries."""
    await queue.add(Envelope(sequence_number=1))
    idle, busy = member(), member()
    assert [1] == await drain(busy)
    assert [] == await drain(idle)
    await idle.leave()
    await busy.leave()
    assert [busy.consumer] == await queue.consumers("g")


async def test_wrong_type_is_an_error(queue: Queue, member: Member) -> None:
    """An error that a retry cannot mend is raised at once, with advice."""
    await queue.redis.set(queue.key, "not a stream")
    with pytest.raises(WorkQueueError, match=r"work:decisions cannot be used: .*check the Redis URL and the permissions"):
        await member().read()


async def test_missing_permissions_are_an_error(queue: Queue, redis_url: str, bus: str) -> None:
    """Missing permissions are an error at once; its message does not hold the password."""
    await queue.redis.acl_setuser(f"user-{bus}", enabled=True, passwords=["+secret"], commands=["+ping", "+client", "+hello"])
    user_url = redis_url.replace("unix://", f"unix://user-{bus}:secret@")
    consumer = WorkQueue(user_url, queue=DECISIONS, group="g", bus=bus)
    with pytest.raises(WorkQueueError) as raised:
        await consumer.read()
    assert "secret" not in str(raised.value)
    await consumer.close()
    await queue.redis.acl_deluser(f"user-{bus}")


async def test_wrong_password_is_an_error(redis_url: str, bus: str) -> None:
    """A wrong password is an error at once, although redis-py reports a lost connection."""
    consumer = WorkQueue(redis_url.replace("unix://", "unix://nobody:wrong@"), queue=DECISIONS, group="g", bus=bus)
    with pytest.raises(WorkQueueError):
        await consumer.read()
    await consumer.close()


@pytest.mark.parametrize(
    "fields", [{"h": b"h"}, {"e": b"\xff\xff", "h": b"h"}, {"e": Envelope(sequence_number=9).SerializeToString(), "h": b"h"}]
)
async def test_damaged_entry(fields: dict[str, bytes], queue: Queue, member: Member) -> None:
    """An entry without envelope, with an undecodable envelope or with another event is an error."""
    await queue.redis.xadd(queue.key, fields, id="1-0")
    entry = await member().read()
    assert entry is not None
    with pytest.raises(WorkQueueError, match="entry 1-0"):
        entry.envelope()
