"""A stream of work follows the grants: its consumer neither gets nor settles an item that its caller may no longer work on. It is small."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from typing import Final

import pytest
from gavel.v1.error_pb2 import ERROR_REASON_RIGHT_LACKING
from gavel_server.errors import ServiceError
from gavel_server.log import empty_head
from gavel_server.log.memory import MemoryLog
from gavel_server.log.work.protocol import WorkEntry
from gavel_server.work.permissions import Traits
from gavel_server.work.stream import Item, UnsentBytes, WorkStream

from tests.support.entries import NOW_MS, entries_after

GROUP: Final = "executors"
IDLE_MS: Final = 60_000


class Permits:
    """Grants that a test withdraws."""

    def __init__(self) -> None:
        self.is_granted = True

    def __call__(self, _: Traits) -> bool:
        """Return whether the caller may work on an item."""
        return self.is_granted


class Consumer:
    """A stream that holds two items of a log."""

    def __init__(self, log: MemoryLog) -> None:
        self.log: Final = log
        self.permits: Final = Permits()
        self.unsent: Final = UnsentBytes()
        self.stream: Final = WorkStream("caller", (), 16, 16, self.unsent, log.work, self.permits)
        self.settling: Final = asyncio.create_task(self.stream.run_settling("decisions", GROUP, asyncio.Event()))

    async def take(self) -> None:
        """Take the items."""
        head = empty_head(self.log.bus)
        await self.log.append(head, entries_after(head, 2, works=("decisions", "decisions")), NOW_MS, [])
        for entry in await self.log.work.take_new("decisions", GROUP, self.stream.consumer, 2):
            self.stream.push(Item(entry, f"id-{entry.sequence_number}", Traits("refund.create", "refund.create", "order/1")))

    async def left(self) -> dict[int, int]:
        """End the stream; return the items that others get then, with their deliveries."""
        await self.stream.leave("decisions", GROUP, self.settling, IDLE_MS)
        numbers = await self.log.work.idle("decisions", GROUP, IDLE_MS, 0, 9)
        entries = await self.log.work.claim("decisions", GROUP, "another", numbers, IDLE_MS)
        return {entry.sequence_number: entry.deliveries for entry in entries}


@pytest.fixture
async def consumer() -> AsyncIterator[Consumer]:
    """A consumer of a log in memory."""
    log = MemoryLog("test", clock=lambda: NOW_MS)
    consumer = Consumer(log)
    await consumer.take()
    yield consumer
    consumer.settling.cancel()
    await log.close()


async def refused(stream: WorkStream) -> int:
    """Return why a stream ends."""
    with pytest.raises(ServiceError) as caught:
        await stream.next()
    return caught.value.reason


async def test_an_item_is_not_sent_once_it_is_forbidden(consumer: Consumer) -> None:
    """An item that waits to be sent stays unsent, and counts as not delivered; the stream ends."""
    first = await consumer.stream.next()
    assert isinstance(first, Item)
    consumer.permits.is_granted = False
    assert ERROR_REASON_RIGHT_LACKING == await refused(consumer.stream)
    assert {1: 2, 2: 1} == await consumer.left()
    assert consumer.unsent.has_room("caller")


async def test_a_settlement_that_waits_is_not_carried_out_once_it_is_forbidden(consumer: Consumer) -> None:
    """Settlements that the log store has not carried out when the grants change have no effect; earlier ones stand."""
    for _ in range(2):
        await consumer.stream.next()
    consumer.stream.settle(1)
    for _ in range(9):
        await asyncio.sleep(0)  # the log in memory needs a few turns of the loop
    assert [2] == consumer.stream.numbers
    consumer.stream.settle(2)  # carried out by the task, which has not run yet
    consumer.permits.is_granted = False
    await asyncio.sleep(0)
    assert ERROR_REASON_RIGHT_LACKING == await refused(consumer.stream)
    assert {2: 2} == await consumer.left()


@pytest.mark.parametrize(("delay_ms", "reason"), [(None, None), (1_000, "later"), (None, "poison")])
async def test_nothing_is_settled_after_the_end(consumer: Consumer, delay_ms: int | None, reason: str | None) -> None:
    """A stream that has ended for lack of a right settles nothing, even if grants allow it again."""
    for _ in range(2):
        await consumer.stream.next()
    consumer.permits.is_granted = False
    consumer.stream.settle(1, delay_ms, reason)
    consumer.permits.is_granted = True
    consumer.stream.settle(2, delay_ms, reason)
    assert ERROR_REASON_RIGHT_LACKING == await refused(consumer.stream)
    assert {1: 2, 2: 2} == await consumer.left()


async def test_an_item_that_was_sent_takes_no_memory_for_its_event() -> None:
    """A consumer that settles nothing costs the server the numbers of its items, and not their events."""
    log = MemoryLog("test", clock=lambda: NOW_MS)
    stream = WorkStream("caller", (), 64, 16, UnsentBytes(), log.work, Permits())
    tracemalloc.start()
    for number in range(1, 33):
        entry = WorkEntry(number, bytes(500_000), bytes(32), 1)
        stream.push(Item(entry, f"id-{number}", Traits("refund.create", "refund.create", "order/1")))
        del entry
        await stream.next()
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert list(range(1, 33)) == stream.numbers
    assert held_bytes < 2 * 500_000, "the last event may still be on its way"
    await log.close()
