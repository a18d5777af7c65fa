"""The work queues in memory, for tests and simulation. They pass the same contract suite as those in Redis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gavel_server.log.entries import Entry
from gavel_server.log.work.protocol import (
    PARKED_MAX,
    QUEUES,
    REQUESTS_MAX,
    TAKE_BYTES_MAX,
    ConsumerGroup,
    ParkedEntry,
    QueueName,
    WorkEntry,
    as_queue,
    group_to_remove,
    sort_groups,
)


class _Pending:
    """An entry that a consumer holds."""

    def __init__(self, consumer: str, deliveries: int, heard_ms: int) -> None:
        self.consumer = consumer
        self.deliveries = deliveries
        self.heard_ms = heard_ms


class _Group:
    """A group: its place in the queue, and what its consumers have not acknowledged."""

    def __init__(self, owner: str = "") -> None:
        self.owner = owner
        self.last = 0
        self.pending: dict[int, _Pending] = {}
        self.delayed: dict[int, tuple[int, int]] = {}  # number -> when it is due, deliveries
        self.parked: dict[int, ParkedEntry] = {}
        self.members: dict[str, int] = {}  # consumer -> when it was heard

    def pending_of(self, number: int, consumer: str) -> _Pending | None:
        pending = self.pending.get(number)
        return pending if pending is not None and pending.consumer == consumer else None


class MemoryWorkQueues:
    """The work queues of one bus in this process. `clock` returns milliseconds since 1970."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._entries: dict[QueueName, dict[int, Entry]] = {queue: {} for queue in QUEUES}
        self._groups: dict[tuple[QueueName, str], _Group] = {}

    def add(self, entries: Sequence[Entry]) -> None:
        """Add appended entries to their queues."""
        for entry in entries:
            queue = as_queue(entry.work)
            if queue is not None:
                self._entries[queue][entry.sequence_number] = entry
        requests = self._entries["requests"]
        while len(requests) > REQUESTS_MAX:
            del requests[next(iter(requests))]

    async def join(self, queue: QueueName, group: str, consumer: str, owner: str = "") -> None:
        """See WorkQueues."""
        if (queue, group) not in self._groups:
            self._groups.pop((queue, group_to_remove([one for one in await self.groups() if one.queue == queue], owner)), None)
            self._groups[queue, group] = _Group(owner)
        self._groups[queue, group].members[consumer] = self._clock()

    def open_group(self, queue: QueueName, group: str) -> None:
        """Create one of Gavel's own groups, unless it exists."""
        self._group(queue, group)

    async def take_new(self, queue: QueueName, group: str, consumer: str, count: int) -> list[WorkEntry]:
        """See WorkQueues."""
        one = self._group(queue, group)
        one.members[consumer] = self._clock()
        numbers = [number for number in self._entries[queue] if number > one.last]
        work_entries = self._take(queue, one, consumer, [(number, 0) for number in numbers[:count]])
        one.last = max([one.last, *(entry.sequence_number for entry in work_entries)])
        return work_entries

    async def take_due(self, queue: QueueName, group: str, consumer: str, count: int) -> list[WorkEntry]:
        """See WorkQueues."""
        one = self._group(queue, group)
        now_ms = self._clock()
        due = sorted((due_ms, number, deliveries) for number, (due_ms, deliveries) in one.delayed.items() if due_ms <= now_ms)[:count]
        work_entries = self._take(queue, one, consumer, [(number, deliveries) for _, number, deliveries in due])
        for _, number, _ in due:
            if number in one.pending or number not in self._entries[queue]:
                del one.delayed[number]
        return work_entries

    async def idle(self, queue: QueueName, group: str, idle_ms: int, after: int, count: int) -> list[int]:
        """See WorkQueues."""
        pending = self._group(queue, group).pending
        now_ms = self._clock()
        return sorted(number for number, one in pending.items() if number > after and now_ms - one.heard_ms >= idle_ms)[:count]

    async def claim(self, queue: QueueName, group: str, consumer: str, numbers: Sequence[int], idle_ms: int) -> list[WorkEntry]:
        """See WorkQueues."""
        one = self._group(queue, group)
        now_ms = self._clock()
        idle = [number for number in numbers if number in one.pending and now_ms - one.pending[number].heard_ms >= idle_ms]
        for number in idle:
            if number not in self._entries[queue]:
                del one.pending[number]
        return self._take(queue, one, consumer, [(number, one.pending[number].deliveries) for number in idle if number in one.pending])

    async def renew(self, queue: QueueName, group: str, consumer: str, numbers: Sequence[int]) -> list[int]:
        """See WorkQueues."""
        one = self._group(queue, group)
        now_ms = one.members[consumer] = self._clock()
        held = [number for number in numbers if one.pending_of(number, consumer)]
        for number in held:
            one.pending[number].heard_ms = now_ms
        return held

    async def transfer(self, queue: QueueName, group: str, consumer: str, number: int, receiver: str) -> bool:
        """See WorkQueues."""
        one = self._group(queue, group)
        pending = one.pending_of(number, consumer)
        if pending is not None:
            pending.consumer, pending.heard_ms = receiver, self._clock()
            one.members[receiver] = pending.heard_ms
        return pending is not None

    async def acknowledge(self, queue: QueueName, group: str, numbers: Sequence[int]) -> None:
        """See WorkQueues."""
        one = self._group(queue, group)
        for number in numbers:
            one.pending.pop(number, None)

    async def release(self, queue: QueueName, group: str, consumer: str, deliveries: Mapping[int, int], idle_ms: int) -> None:
        """See WorkQueues."""
        one = self._group(queue, group)
        for number, count in deliveries.items():
            pending = one.pending_of(number, consumer)
            if pending is not None:
                pending.deliveries, pending.heard_ms = count, self._clock() - idle_ms

    async def reject(self, queue: QueueName, group: str, consumer: str, number: int, deliveries: int, delay_ms: int) -> bool:
        """See WorkQueues."""
        one = self._group(queue, group)
        if one.pending_of(number, consumer) is None:
            return False
        del one.pending[number]
        one.delayed[number] = self._clock() + delay_ms, deliveries
        return True

    async def park(self, queue: QueueName, group: str, consumer: str, parked: ParkedEntry) -> bool:
        """See WorkQueues."""
        one = self._group(queue, group)
        number = parked.sequence_number
        if one.pending_of(number, consumer) is None:
            return True
        self._drop_lost(queue, one)
        if len(one.parked) >= PARKED_MAX and number not in one.parked:
            return False
        del one.pending[number]
        one.parked[number] = parked._replace(parked_at_ms=self._clock())
        return True

    async def read_parked(self, queue: QueueName, group: str, after: int, limit: int) -> list[ParkedEntry]:
        """See WorkQueues."""
        one = self._groups.get((queue, group), _Group())
        self._drop_lost(queue, one)
        return [one.parked[number] for number in sorted(one.parked) if number > after][:limit]

    async def retry_parked(self, queue: QueueName, group: str, numbers: Sequence[int] | None) -> int:
        """See WorkQueues."""
        one = self._groups.get((queue, group), _Group())
        self._drop_lost(queue, one)
        chosen = {number for number in (one.parked if numbers is None else numbers) if number in one.parked}
        for number in chosen:
            del one.parked[number]
            one.delayed[number] = 0, 0
        return len(chosen)

    async def discard_parked(self, queue: QueueName, group: str, numbers: Sequence[int]) -> int:
        """See WorkQueues."""
        one = self._groups.get((queue, group), _Group())
        return sum(one.parked.pop(number, None) is not None for number in set(numbers))

    async def groups(self) -> list[ConsumerGroup]:
        """See WorkQueues."""
        groups = []
        for (queue, name), one in self._groups.items():
            lag = sum(number > one.last for number in self._entries[queue])
            pending = len(one.pending) + len(one.delayed)
            groups.append(ConsumerGroup(name, queue, lag, pending, len(one.members), len(one.parked), one.owner))
        return sort_groups(groups)

    async def leave(self, queue: QueueName, group: str, consumer: str) -> None:
        """See WorkQueues."""
        one = self._group(queue, group)
        if not any(pending.consumer == consumer for pending in one.pending.values()):
            one.members.pop(consumer, None)

    async def remove_silent(self, queue: QueueName, group: str, silent_ms: int) -> None:
        """See WorkQueues."""
        one = self._group(queue, group)
        now_ms = self._clock()
        for consumer in [name for name, heard_ms in one.members.items() if now_ms - heard_ms >= silent_ms]:
            await self.leave(queue, group, consumer)

    async def numbers(self, queue: QueueName, after: int, count: int) -> list[int]:
        """See WorkQueues."""
        return [number for number in self._entries[queue] if number > after][:count]

    async def remove(self, queue: QueueName, numbers: Sequence[int]) -> None:
        """See WorkQueues."""
        for number in numbers:
            self._entries[queue].pop(number, None)
            for (of_queue, _), one in self._groups.items():
                if of_queue == queue:
                    one.parked.pop(number, None)
                    one.pending.pop(number, None)

    def _group(self, queue: QueueName, group: str) -> _Group:
        return self._groups.setdefault((queue, group), _Group())

    def _drop_lost(self, queue: QueueName, one: _Group) -> None:
        """Drop the parked entries that the queue has lost."""
        for number in one.parked.keys() - self._entries[queue].keys():
            del one.parked[number]

    def _take(self, queue: QueueName, one: _Group, consumer: str, numbers: Sequence[tuple[int, int]]) -> list[WorkEntry]:
        """Take entries, with their deliveries before this one, until TAKE_BYTES_MAX."""
        work_entries: list[WorkEntry] = []
        size_bytes = 0
        for number, deliveries in numbers:
            entry = self._entries[queue].get(number)
            if entry is not None and size_bytes < TAKE_BYTES_MAX:
                one.pending[number] = _Pending(consumer, deliveries + 1, self._clock())
                one.members[consumer] = self._clock()
                work_entries.append(WorkEntry(number, entry.envelope, entry.chain_hash, deliveries + 1))
                size_bytes += len(entry.envelope)
        return work_entries
