"""The work queues in Redis: streams with consumer groups, and for each group its delayed and its parked entries.

`append.lua` adds the entries. The steps of `work.lua` are atomic, so that servers, and consumers that read Redis themselves, can share a
group.
A step whose reply is lost may have taken entries that nobody holds: they are claimed like those of a server that was killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gavel_rules.redis_keys import work_delayed_key, work_key, work_owners_key, work_parked_key

from gavel_server.log.redis.connection import Channel
from gavel_server.log.redis.replies import chunks, pairs, reason
from gavel_server.log.redis.resp import Argument, Command
from gavel_server.log.redis.script import Script
from gavel_server.log.work.protocol import (
    GROUP_OF_QUEUE,
    PARKED_MAX,
    QUEUES,
    TAKE_BYTES_MAX,
    ConsumerGroup,
    ParkedEntry,
    QueueName,
    WorkEntry,
    group_to_remove,
    sort_groups,
)

_WORK: Final = Script("work.lua", Path(__file__).parent)
# Ids without envelopes: XRANGE would return whole entries.
_NUMBERS: Final = Script("numbers.lua", Path(__file__).parent)


class RedisWorkQueues:
    """The work queues of one bus. `check` raises LogError for the first reply that is an error, and returns the replies."""

    def __init__(self, pool: Channel, bus: str, check: Callable[[list[Any]], list[Any]]) -> None:
        self._pool = pool
        self._bus = bus
        self._check = check
        # Streams that a caller opens at once must not pass its limit together.
        self._creating = asyncio.Lock()

    async def join(self, queue: QueueName, group: str, consumer: str, owner: str = "") -> None:
        """See WorkQueues. Servers that create groups at the same moment may exceed the limits by one group each."""
        if group not in await self._names(queue):
            async with self._creating:
                await self._create_owned(queue, group, owner)
                await self._note_member(queue, group, consumer)  # a group without members may be removed for another one
        else:
            await self._note_member(queue, group, consumer)

    async def take_new(self, queue: QueueName, group: str, consumer: str, count: int) -> list[WorkEntry]:
        """See WorkQueues."""
        return _entries(await self._run("new", queue, group, consumer, count, TAKE_BYTES_MAX))

    async def take_due(self, queue: QueueName, group: str, consumer: str, count: int) -> list[WorkEntry]:
        """See WorkQueues."""
        return _entries(await self._run("due", queue, group, consumer, count, TAKE_BYTES_MAX))

    async def idle(self, queue: QueueName, group: str, idle_ms: int, after: int, count: int) -> list[int]:
        """See WorkQueues."""
        return [int(number) for number in await self._run("idle", queue, group, "", idle_ms, after, count)]

    async def claim(self, queue: QueueName, group: str, consumer: str, numbers: Sequence[int], idle_ms: int) -> list[WorkEntry]:
        """See WorkQueues."""
        return _entries(await self._run("claim", queue, group, consumer, idle_ms, TAKE_BYTES_MAX, *numbers)) if numbers else []

    async def renew(self, queue: QueueName, group: str, consumer: str, numbers: Sequence[int]) -> list[int]:
        """See WorkQueues."""
        held_numbers: list[int] = []
        for part in chunks(numbers):
            held_numbers += map(int, await self._run("renew", queue, group, consumer, *part))
        return held_numbers

    async def transfer(self, queue: QueueName, group: str, consumer: str, number: int, receiver: str) -> bool:
        """See WorkQueues."""
        return bool(await self._run("transfer", queue, group, consumer, number, receiver))

    async def acknowledge(self, queue: QueueName, group: str, numbers: Sequence[int]) -> None:
        """See WorkQueues."""
        for part in chunks(numbers):
            await self._run("acknowledge", queue, group, "", *part)

    async def release(self, queue: QueueName, group: str, consumer: str, deliveries: Mapping[int, int], idle_ms: int) -> None:
        """See WorkQueues."""
        for part in chunks(list(deliveries.items())):
            await self._run("release", queue, group, consumer, idle_ms, *(value for item in part for value in item))

    async def reject(self, queue: QueueName, group: str, consumer: str, number: int, deliveries: int, delay_ms: int) -> bool:
        """See WorkQueues."""
        return bool(await self._run("reject", queue, group, consumer, number, deliveries, delay_ms))

    async def park(self, queue: QueueName, group: str, consumer: str, parked: ParkedEntry) -> bool:
        """See WorkQueues."""
        arguments = parked.sequence_number, parked.deliveries, parked.event_id, parked.reason
        return bool(await self._run("park", queue, group, consumer, *arguments, PARKED_MAX))

    async def read_parked(self, queue: QueueName, group: str, after: int, limit: int) -> list[ParkedEntry]:
        """See WorkQueues."""
        key = work_parked_key(self._bus, queue, group)
        names = await self._run("parked", queue, group, "")
        numbers = sorted(number for number in map(int, names) if number > after)[:limit]
        if not numbers:
            return []
        (values,) = self._check(await self._pool.read(("HMGET", key, *numbers)))
        return [_decode_parked(number, value) for number, value in zip(numbers, values, strict=True) if value is not None]

    async def retry_parked(self, queue: QueueName, group: str, numbers: Sequence[int] | None) -> int:
        """See WorkQueues."""
        if numbers is not None and not numbers:
            return 0
        return int(await self._run("retry", queue, group, "", *(numbers or ())))

    async def discard_parked(self, queue: QueueName, group: str, numbers: Sequence[int]) -> int:
        """See WorkQueues."""
        if not numbers:
            return 0
        (count,) = self._check(await self._pool.read(("HDEL", work_parked_key(self._bus, queue, group), *numbers)))
        return int(count)

    async def groups(self) -> list[ConsumerGroup]:
        """See WorkQueues.

        Redis before version 7, and any Redis after entries were deleted, does not know a group's lag. The lag is then the number of
        entries in the queue minus the group's pending ones, which includes entries that are acknowledged and not trimmed yet.
        """
        consumer_groups: list[ConsumerGroup] = []
        for queue in QUEUES:
            key = work_key(self._bus, queue)
            stream, rows = await self._pool.read(("XINFO", "STREAM", key), ("XINFO", "GROUPS", key))
            if _is_missing(rows):
                continue
            stream, rows = self._check([stream, rows])
            queue_info = pairs(stream)
            groups = [pairs(row) for row in rows]
            names = [group[b"name"].decode() for group in groups]
            counts = [("ZCARD", work_delayed_key(self._bus, queue, name)) for name in names]
            counts += [("HLEN", work_parked_key(self._bus, queue, name)) for name in names]
            *sizes, owners = self._check(await self._pool.read(*counts, _owners(self._bus, queue, names))) if names else [[]]
            for index, (name, group) in enumerate(zip(names, groups, strict=True)):
                pending = int(group[b"pending"])
                lag = group.get(b"lag")
                if group[b"last-delivered-id"] == queue_info[b"last-generated-id"]:
                    lag = 0
                elif lag is None:
                    lag = max(int(queue_info[b"length"]) - pending, 0)
                delayed, parked = int(sizes[index]), int(sizes[len(names) + index])
                owner = (owners[index] or b"").decode()
                members = int(group[b"consumers"])
                consumer_groups.append(ConsumerGroup(name, queue, int(lag), pending + delayed, members, parked, owner))
        return sort_groups(consumer_groups)

    async def leave(self, queue: QueueName, group: str, consumer: str) -> None:
        """See WorkQueues."""
        await self._run("leave", queue, group, consumer)

    async def remove_silent(self, queue: QueueName, group: str, silent_ms: int) -> None:
        """See WorkQueues."""
        (rows,) = await self._pool.read(("XINFO", "CONSUMERS", work_key(self._bus, queue), group))
        if isinstance(rows, Exception):
            return
        for row in map(pairs, rows):
            if int(row[b"idle"]) >= silent_ms and not int(row[b"pending"]):
                await self.leave(queue, group, row[b"name"].decode())

    async def numbers(self, queue: QueueName, after: int, count: int) -> list[int]:
        """See WorkQueues."""
        (reply,) = await _NUMBERS.run(self._pool.read, (1, work_key(self._bus, queue), after, count, TAKE_BYTES_MAX))
        return [] if _is_missing(reply) else [int(number) for number in self._check([reply])[0]]

    async def remove(self, queue: QueueName, numbers: Sequence[int]) -> None:
        """See WorkQueues."""
        key = work_key(self._bus, queue)
        names = await self._names(queue)
        for part in chunks(numbers):
            ids = [f"{number}-0" for number in part]
            removals: list[Command] = [("HDEL", work_parked_key(self._bus, queue, name), *part) for name in names]
            removals += [("XACK", key, name, *ids) for name in names]
            self._check(await self._pool.read(("XDEL", key, *ids), *removals))

    async def ensure_groups(self) -> None:
        """Create the missing groups of Gavel's own clients. Nothing is written if all of them exist."""
        for queue, group in GROUP_OF_QUEUE.items():
            if group not in await self._names(queue):
                await self._create(queue, group)

    async def _names(self, queue: QueueName) -> list[str]:
        (rows,) = await self._pool.read(("XINFO", "GROUPS", work_key(self._bus, queue)))
        # A queue of another type has no groups; the next append that uses it begins it anew.
        return [] if _is_missing(rows) else [pairs(row)[b"name"].decode() for row in self._check([rows])[0]]

    async def _create(self, queue: QueueName, group: str) -> None:
        (reply,) = await self._pool.read(("XGROUP", "CREATE", work_key(self._bus, queue), group, "0", "MKSTREAM"))
        if not (isinstance(reply, Exception) and reason(reply).startswith("BUSYGROUP")):
            self._check([reply])

    async def _note_member(self, queue: QueueName, group: str, consumer: str) -> None:
        self._check(await self._pool.read(("XGROUP", "CREATECONSUMER", work_key(self._bus, queue), group, consumer)))

    async def _create_owned(self, queue: QueueName, group: str, owner: str) -> None:
        """Create a group of a caller, unless it exists. Raises GroupsFullError."""
        groups = [one for one in await self.groups() if one.queue == queue]
        if any(one.group == group for one in groups):
            return
        removed = group_to_remove(groups, owner)
        owners = work_owners_key(self._bus, queue)
        commands: list[Command] = []
        if removed:
            commands += [("XGROUP", "DESTROY", work_key(self._bus, queue), removed), ("HDEL", owners, removed)]
        # Before the group: a group whose owner is lost would count for nobody.
        commands.append(("HSET", owners, group, owner) if owner else ("HDEL", owners, group))
        self._check(await self._pool.read(*commands))
        await self._create(queue, group)

    async def _run(self, step: str, queue: QueueName, group: str, consumer: str, *arguments: Argument) -> Any:
        keys = work_key(self._bus, queue), work_delayed_key(self._bus, queue, group), work_parked_key(self._bus, queue, group)
        body = (len(keys), *keys, step, group, consumer, *arguments)
        send: Callable[..., Awaitable[list[Any]]] = self._pool.read
        (reply,) = await _WORK.run(send, body)
        if isinstance(reply, Exception) and "NOGROUP" in reason(reply):
            await self._create(queue, group)
            (reply,) = await _WORK.run(send, body)
        return self._check([reply])[0]


def _owners(bus: str, queue: str, groups: Sequence[str]) -> Command:
    return ("HMGET", work_owners_key(bus, queue), *groups)


def _entries(rows: list[Any]) -> list[WorkEntry]:
    return [WorkEntry(int(number), envelope, chain_hash, int(deliveries)) for number, envelope, chain_hash, deliveries in rows]


def _decode_parked(number: int, value: bytes) -> ParkedEntry:
    deliveries, parked_at_ms, event_id, reason_text = value.decode(errors="replace").split(" ", 3)
    return ParkedEntry(number, event_id, int(deliveries), reason_text, int(parked_at_ms))


def _is_missing(reply: object) -> bool:
    return isinstance(reply, Exception) and ("no such key" in str(reply) or "WRONGTYPE" in str(reply))
