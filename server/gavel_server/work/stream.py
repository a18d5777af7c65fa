"""One stream of work: the items that its consumer holds, those that are still to be sent, and how they are settled.

The stream never reads the queue; its group does (`group`). One task for each stream settles its items, in the order of the requests. It
repeats a step while the log cannot be reached, and sends acknowledgements that wait together in one call.

The grants in force decide each time: when an item is sent, when its consumer settles it, and when the settlement is carried out. If they
no longer permit the item, nothing is done with it, the stream ends, and others get the item.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

import structlog
from gavel.v1 import error_pb2

from gavel_server.errors import ServiceError
from gavel_server.log import LogError
from gavel_server.log.work.protocol import ParkedEntry, QueueName, WorkEntry, WorkQueues
from gavel_server.work.limits import (
    ADDRESS_UNSENT_BYTES_MAX,
    FAILURE_PAUSE_SECONDS,
    NOT_HELD_MAX,
    PARK_RETRY_MS,
    UNSENT_BYTES_MAX,
    WAITING_ITEMS_MAX,
)
from gavel_server.work.permissions import Traits

DELIVERIES_MAX_REASON: Final = "deliveries_max"
# A leaving stream settles what its consumer has sent for at most this time.
LEAVE_SECONDS_MAX: Final = 2.0

_LOG: Final = structlog.get_logger(__name__)


class Item(NamedTuple):
    """An entry with what decides to whom it goes."""

    entry: WorkEntry
    event_id: str
    traits: Traits


class UnheldItem(NamedTuple):
    """A settlement of an item that the consumer does not hold."""

    number: int


class UnsentBytes:
    """The bytes of items that are read and not sent, in all and by address."""

    def __init__(self) -> None:
        self._bytes = 0
        self._of_address: Counter[str] = Counter()

    def add(self, address: str, size_bytes: int) -> None:
        """Count bytes; a negative size takes them back."""
        self._bytes += size_bytes
        self._of_address[address] += size_bytes
        if not self._of_address[address]:
            del self._of_address[address]

    def has_room(self, address: str) -> bool:
        """Return whether another item may be read for an address."""
        return self._bytes < UNSENT_BYTES_MAX and self._of_address[address] < ADDRESS_UNSENT_BYTES_MAX


class _Settlement(NamedTuple):
    """A consumer's request for an item: acknowledgement, a later delivery, or parking with a reason."""

    item: Item
    delay_ms: int | None = None
    reason: str | None = None


class WorkStream:
    """The items of one consumer. `labels` are those it takes; empty: all. `permits` tells which ones its caller may work on, and
    `is_own` whether that is the server itself.

    Call `run_settling` in a task.
    """

    def __init__(
        self,
        address: str,
        labels: Collection[str],
        in_flight_max: int,
        deliveries_max: int,
        unsent: UnsentBytes,
        work: WorkQueues,
        permits: Callable[[Traits], bool],
        is_own: bool = False,
    ) -> None:
        self.is_own: Final = is_own
        self.consumer: Final = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(6).hex()}"
        self.address: Final = address
        self.deliveries_max: Final = deliveries_max
        self.work: Final = work
        self._labels: Final = frozenset(labels)
        self._permits: Final = permits
        # Items that were given back because the stream had no room for them, oldest first.
        self._waiting: dict[int, None] = {}
        self._in_flight_max: Final = in_flight_max
        self._unsent: Final = unsent
        self._held: dict[int, Item] = {}
        self._outgoing: deque[Item] = deque()
        self._sending: Item | None = None
        self._not_held: deque[UnheldItem] = deque()
        self._has_room_for_answers = asyncio.Event()
        self._settlements: deque[_Settlement] = deque()
        self._settling: list[_Settlement] = []
        self._changed = asyncio.Event()
        self._has_settlements = asyncio.Event()
        self._is_settled = asyncio.Event()
        self._is_settled.set()
        self._ending: ServiceError | None = None
        self._ended = False

    def takes(self, traits: Traits) -> bool:
        """Return whether the consumer takes such items, and its caller may work on them now."""
        return (not self._labels or traits.label in self._labels) and self._permits(traits)

    def end_if_forbidden(self) -> None:
        """End the stream if the consumer holds an item that its caller may no longer work on: the grants have changed."""
        all(self._may_work_on(item) for item in self._held.values())

    @property
    def room(self) -> int:
        """How many items may be read for the stream now."""
        if self._ended or not self._unsent.has_room(self.address):
            return 0
        return max(0, self._in_flight_max - len(self._held) - len(self._settlements) - len(self._settling))

    @property
    def numbers(self) -> list[int]:
        """The numbers of all items that the consumer holds, those that are being settled included; none once it has failed."""
        if self._ending is not None:
            return []  # a stream that cannot be written to may take long to end; others take its items
        return [*self._held, *(one.item.entry.sequence_number for one in (*self._settlements, *self._settling))]

    @property
    def waiting(self) -> int:
        """How many items wait for room."""
        return len(self._waiting)

    def add_waiting(self, number: int) -> None:
        """Note an item that was given back for lack of room. Beyond WAITING_ITEMS_MAX, a sweep finds it again."""
        if len(self._waiting) < WAITING_ITEMS_MAX:
            self._waiting[number] = None

    def pop_waiting(self, count: int) -> list[int]:
        """Remove and return the items that have waited longest."""
        numbers = list(islice(self._waiting, count))
        for number in numbers:
            del self._waiting[number]
        return numbers

    def push(self, item: Item) -> None:
        """Give the consumer an item."""
        self._held[item.entry.sequence_number] = item
        self._outgoing.append(item)
        self._unsent.add(self.address, len(item.entry.envelope))
        self._changed.set()

    def keep(self, numbers: Collection[int]) -> None:
        """Forget the items that the consumer has lost: another server has taken them over."""
        for number in self._held.keys() - set(numbers):
            del self._held[number]

    async def next(self) -> Item | UnheldItem | None:
        """Return what is to be sent next, or None at the end. Call it once the last one has been sent. Raises ServiceError."""
        self._note_sent()
        while True:
            self._changed.clear()
            if self._ending is not None:
                raise self._ending.copy()
            if self._not_held:
                self._has_room_for_answers.set()
                return self._not_held.popleft()
            if self._ended:
                return None
            self._sending = self._pop_outgoing()
            if self._sending is not None:
                return self._sending
            await self._changed.wait()

    def end(self, error: ServiceError | None = None) -> None:
        """Let `next` return None, or raise the error."""
        self._ended = True
        self._ending = self._ending or error
        self._changed.set()
        self._has_room_for_answers.set()

    def settle(self, number: int, delay_ms: int | None = None, reason: str | None = None) -> None:
        """Settle an item: acknowledge it, deliver it again after a delay, or park it with a reason.

        An item that the consumer does not hold, or holds no longer, is left alone, and the consumer is told. An item that its caller may no
        longer work on is left alone, too, and ends the stream. So is every item once the stream has ended.
        """
        item = self._held.get(number)
        if item is None:
            self._not_held.append(UnheldItem(number))
            self._changed.set()
        elif self._ending is None and self._may_work_on(item):
            del self._held[number]
            self._settlements.append(_Settlement(item, delay_ms, reason))
            self._has_settlements.set()
            self._is_settled.clear()

    async def wait_for_answers(self) -> None:
        """Wait while NOT_HELD_MAX answers are not sent: a consumer that does not read them is not read either."""
        while len(self._not_held) >= NOT_HELD_MAX and not self._ended:
            self._has_room_for_answers.clear()
            await self._has_room_for_answers.wait()

    async def run_settling(self, queue: QueueName, group: str, settled: asyncio.Event) -> None:
        """Settle items for ever; set `settled` when there may be room for another item."""
        while True:
            await self._has_settlements.wait()
            self._has_settlements.clear()
            while self._settlements or self._settling:
                try:
                    await self._settle_some(queue, group)
                except LogError as error:
                    _LOG.warning("work.not_settled", queue=queue, group=group, problem=str(error))
                    await asyncio.sleep(FAILURE_PAUSE_SECONDS)
                settled.set()
            self._is_settled.set()

    async def _settle_some(self, queue: QueueName, group: str) -> None:
        """Settle the first items: all acknowledgements up to the next other settlement, or that one."""
        if not self._settling:
            self._settling.append(self._settlements.popleft())
            while _is_acknowledgement(self._settling[0]) and self._settlements and _is_acknowledgement(self._settlements[0]):
                self._settling.append(self._settlements.popleft())
        for one in [one for one in self._settling if not self._may_work_on(one.item)]:
            self._settling.remove(one)
            self._held[one.item.entry.sequence_number] = one.item
        if not self._settling:
            return
        first = self._settling[0]
        if _is_acknowledgement(first):
            await self.work.acknowledge(queue, group, [one.item.entry.sequence_number for one in self._settling])
        elif first.delay_ms is not None:
            await self._reject(queue, group, first.item, first.delay_ms, first.reason or "")
        else:
            await self.park(queue, group, first.item, first.reason or "", first.item.entry.deliveries)
        self._settling.clear()

    async def _reject(self, queue: QueueName, group: str, item: Item, delay_ms: int, reason: str) -> None:
        number, deliveries = item.entry.sequence_number, item.entry.deliveries
        if deliveries >= self.deliveries_max:
            await self.park(queue, group, item, reason or DELIVERIES_MAX_REASON, deliveries)
        else:
            await self.work.reject(queue, group, self.consumer, number, deliveries, delay_ms)

    async def park(self, queue: QueueName, group: str, item: Item, reason: str, deliveries: int) -> None:
        """Park an item of the consumer. If the group has too many, it is delivered again later."""
        number = item.entry.sequence_number
        if not await self.work.park(queue, group, self.consumer, ParkedEntry(number, item.event_id, deliveries, reason, 0)):
            _LOG.warning("work.parked_full", queue=queue, group=group, sequence_number=number)
            await self.work.reject(queue, group, self.consumer, number, deliveries, PARK_RETRY_MS)

    async def leave(self, queue: QueueName, group: str, settling: asyncio.Task[None], idle_ms: int) -> None:
        """End the stream: settle what the consumer has asked for, and give up what it still holds. Raises LogError.

        Items that were not sent count as not delivered. The consumer stays a member: its group may have a step under way that reads for it.
        """
        self.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS_MAX):
                await self._is_settled.wait()
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)
        unsent = {item.entry.sequence_number for item in self._outgoing}
        deliveries = {number: item.entry.deliveries - (number in unsent) for number, item in self._held.items()}
        for one in (*self._settling, *self._settlements):
            deliveries[one.item.entry.sequence_number] = one.item.entry.deliveries
        self._held.clear()
        self._note_sent()
        while self._outgoing:
            self._unsent.add(self.address, -len(self._outgoing.popleft().entry.envelope))
        await self.work.release(queue, group, self.consumer, deliveries, idle_ms)

    def _pop_outgoing(self) -> Item | None:
        """Return the next item to send. None: there is none, or it is forbidden; then it counts as not delivered."""
        while self._outgoing:
            item = self._outgoing[0]
            is_held = item.entry.sequence_number in self._held
            if is_held and not self._may_work_on(item):
                return None
            self._outgoing.popleft()
            if is_held:
                return item
            self._unsent.add(self.address, -len(item.entry.envelope))
        return None

    def _may_work_on(self, item: Item) -> bool:
        """Return whether the grants in force let the caller work on an item that it holds. If not, end the stream."""
        is_permitted = self._permits(item.traits)
        if not is_permitted:
            message = "the grants have changed, and do not allow the caller to execute items that it holds; open the stream again"
            self.end(ServiceError(error_pb2.ERROR_REASON_RIGHT_LACKING, message))
        return is_permitted

    def _note_sent(self) -> None:
        """Forget the event of the item that was sent last: what is held of it may be held for long, and is not counted as unsent."""
        if self._sending is None:
            return
        item, self._sending = self._sending, None
        entry = item.entry
        self._unsent.add(self.address, -len(entry.envelope))
        if entry.sequence_number in self._held:
            self._held[entry.sequence_number] = item._replace(entry=entry._replace(envelope=b""))


def _is_acknowledgement(settlement: _Settlement) -> bool:
    return settlement.delay_ms is None and settlement.reason is None
