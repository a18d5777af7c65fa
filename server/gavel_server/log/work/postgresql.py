"""The work queues in PostgreSQL: tables of entries, groups, consumers and deliveries (`postgresql/schema.sql`).

`gavel.append` adds the entries; their envelopes stay in the log, so that an entry whose event was trimmed is taken without one. Consumers
that take rejected or idle entries pass over those that others take at the same moment (SKIP LOCKED). New entries are taken in order: the
place of a group is a row, which one consumer at a time moves on. Commits do not wait for the disk: a step that a crash loses is a delivery
repeated.
"""

# ruff: noqa: S608 - the statements are composed of constants; all values are parameters
from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gavel_server.log.postgresql.connection import ConnectionPool, Statement
from gavel_server.log.work.protocol import (
    GROUP_OF_QUEUE,
    PARKED_MAX,
    TAKE_BYTES_MAX,
    ConsumerGroup,
    ParkedEntry,
    QueueName,
    WorkEntry,
    group_to_remove,
    sort_groups,
)

# The rows of a group, and those of them that one consumer holds.
_OF_GROUP: Final = "bus = %(bus)s AND queue = %(queue)s AND group_name = %(group)s"
_HELD: Final = f"{_OF_GROUP} AND state = 'pending' AND consumer = %(consumer)s"
_NOW: Final = "(SELECT gavel.now_ms())"

_CREATE_GROUP: Final = """
INSERT INTO gavel.work_groups (bus, queue, name, owner) VALUES (%(bus)s, %(queue)s, %(group)s, %(owner)s) ON CONFLICT DO NOTHING
"""
_NOTE_MEMBER: Final = f"""
INSERT INTO gavel.work_members (bus, queue, group_name, consumer, heard_ms) VALUES (%(bus)s, %(queue)s, %(group)s, %(consumer)s, {_NOW})
ON CONFLICT (bus, queue, group_name, consumer) DO UPDATE SET heard_ms = excluded.heard_ms
"""
_GROUP_NAMES: Final = "SELECT name FROM gavel.work_groups WHERE bus = %(bus)s AND queue = %(queue)s"
_REMOVE_GROUP: Final = """
DELETE FROM gavel.work_groups AS g WHERE g.bus = %(bus)s AND g.queue = %(queue)s AND g.name = %(group)s
  AND NOT EXISTS (SELECT FROM gavel.work_members AS m WHERE (m.bus, m.queue, m.group_name) = (g.bus, g.queue, g.name))
"""
# Of `found`, rows with a place in their order: those up to the limit in bytes.
_TAKEN: Final = """taken AS (
  SELECT * FROM (SELECT *, sum(length(envelope)) OVER (ORDER BY place) - length(envelope) AS bytes_before FROM found) AS counted
  WHERE bytes_before < %(bytes)s)"""
_TAKE_NEW: Final = f"""
WITH one AS (SELECT last_taken FROM gavel.work_groups WHERE bus = %(bus)s AND queue = %(queue)s AND name = %(group)s FOR UPDATE),
found AS (
  SELECT w.sequence_number, w.sequence_number AS place, coalesce(e.envelope, '') AS envelope, coalesce(e.chain_hash, '') AS chain_hash
  FROM one, gavel.work_entries AS w LEFT JOIN gavel.events AS e USING (bus, sequence_number)
  WHERE w.bus = %(bus)s AND w.queue = %(queue)s AND w.sequence_number > one.last_taken ORDER BY w.sequence_number LIMIT %(count)s),
{_TAKEN},
moved AS (
  UPDATE gavel.work_groups SET last_taken = (SELECT max(sequence_number) FROM taken)
  WHERE bus = %(bus)s AND queue = %(queue)s AND name = %(group)s AND EXISTS (SELECT FROM taken)),
noted AS (
  INSERT INTO gavel.work_deliveries (bus, queue, group_name, sequence_number, state, consumer, deliveries, heard_ms)
  SELECT %(bus)s, %(queue)s, %(group)s, sequence_number, 'pending', %(consumer)s, 1, {_NOW} FROM taken
  ON CONFLICT (bus, queue, group_name, sequence_number) DO UPDATE
    SET state = 'pending', consumer = excluded.consumer, deliveries = 1, heard_ms = excluded.heard_ms)
SELECT sequence_number, envelope, chain_hash, 1::bigint FROM taken ORDER BY place
"""
# Takes the deliveries of `chosen`, and forgets those whose entries the queue has lost.
_TAKE_CHOSEN: Final = f"""
found AS (
  SELECT c.sequence_number, c.place, c.deliveries, coalesce(e.envelope, '') AS envelope, coalesce(e.chain_hash, '') AS chain_hash
  FROM chosen AS c JOIN gavel.work_entries AS w ON w.bus = %(bus)s AND w.queue = %(queue)s AND w.sequence_number = c.sequence_number
    LEFT JOIN gavel.events AS e ON e.bus = w.bus AND e.sequence_number = w.sequence_number),
{_TAKEN},
lost AS (
  DELETE FROM gavel.work_deliveries WHERE {_OF_GROUP}
    AND sequence_number IN (SELECT sequence_number FROM chosen EXCEPT SELECT sequence_number FROM found)),
moved AS (
  UPDATE gavel.work_deliveries SET state = 'pending', consumer = %(consumer)s, deliveries = deliveries + 1, heard_ms = {_NOW}
  WHERE {_OF_GROUP} AND sequence_number IN (SELECT sequence_number FROM taken)),
joined AS (
  INSERT INTO gavel.work_members (bus, queue, group_name, consumer, heard_ms)
  SELECT %(bus)s, %(queue)s, %(group)s, %(consumer)s, {_NOW} WHERE EXISTS (SELECT FROM taken)
  ON CONFLICT (bus, queue, group_name, consumer) DO UPDATE SET heard_ms = excluded.heard_ms)
SELECT sequence_number, envelope, chain_hash, deliveries + 1 FROM taken ORDER BY place
"""
_TAKE_DUE: Final = f"""
WITH chosen AS (
  SELECT sequence_number, ROW(due_ms, sequence_number) AS place, deliveries FROM gavel.work_deliveries
  WHERE {_OF_GROUP} AND state = 'delayed' AND due_ms <= {_NOW}
  ORDER BY due_ms, sequence_number LIMIT %(count)s FOR UPDATE SKIP LOCKED), {_TAKE_CHOSEN}
"""
_CLAIM: Final = f"""
WITH chosen AS (
  SELECT sequence_number, array_position(%(numbers)s::bigint[], sequence_number) AS place, deliveries FROM gavel.work_deliveries
  WHERE {_OF_GROUP} AND state = 'pending' AND sequence_number = ANY(%(numbers)s::bigint[]) AND heard_ms <= {_NOW} - %(idle_ms)s
  ORDER BY sequence_number FOR UPDATE SKIP LOCKED), {_TAKE_CHOSEN}
"""
_IDLE: Final = f"""
SELECT sequence_number FROM gavel.work_deliveries
WHERE {_OF_GROUP} AND state = 'pending' AND sequence_number > %(after)s AND heard_ms <= {_NOW} - %(idle_ms)s
ORDER BY sequence_number LIMIT %(count)s
"""
_RENEW: Final = f"""
UPDATE gavel.work_deliveries SET heard_ms = {_NOW} WHERE {_HELD} AND sequence_number = ANY(%(numbers)s::bigint[]) RETURNING sequence_number
"""
_TRANSFER: Final = f"""
WITH moved AS (
  UPDATE gavel.work_deliveries SET consumer = %(receiver)s, heard_ms = {_NOW} WHERE {_HELD} AND sequence_number = %(number)s RETURNING 1),
joined AS (
  INSERT INTO gavel.work_members (bus, queue, group_name, consumer, heard_ms)
  SELECT %(bus)s, %(queue)s, %(group)s, %(receiver)s, {_NOW} FROM moved
  ON CONFLICT (bus, queue, group_name, consumer) DO UPDATE SET heard_ms = excluded.heard_ms)
SELECT 1 FROM moved
"""
_ACKNOWLEDGE: Final = (
    f"DELETE FROM gavel.work_deliveries WHERE {_OF_GROUP} AND state = 'pending' AND sequence_number = ANY(%(numbers)s::bigint[])"
)
_RELEASE: Final = f"""
UPDATE gavel.work_deliveries AS d SET deliveries = released.deliveries, heard_ms = {_NOW} - %(idle_ms)s
FROM unnest(%(numbers)s::bigint[], %(deliveries)s::bigint[]) AS released(number, deliveries)
WHERE {_HELD} AND d.sequence_number = released.number
"""
_REJECT: Final = f"""
UPDATE gavel.work_deliveries SET state = 'delayed', deliveries = %(deliveries)s, due_ms = {_NOW} + %(delay_ms)s
WHERE {_HELD} AND sequence_number = %(number)s RETURNING 1
"""
# Drops the parked entries that the queue has lost: that of requests keeps the newest ones.
_DROP_LOST: Final = f"""
DELETE FROM gavel.work_deliveries AS d WHERE {_OF_GROUP} AND state = 'parked' AND NOT EXISTS (
  SELECT FROM gavel.work_entries AS w WHERE (w.bus, w.queue, w.sequence_number) = (d.bus, d.queue, d.sequence_number))
"""
_PARK: Final = f"""
WITH held AS (SELECT FROM gavel.work_deliveries WHERE {_HELD} AND sequence_number = %(number)s FOR UPDATE),
parked AS (
  UPDATE gavel.work_deliveries SET state = 'parked', deliveries = %(deliveries)s, event_id = %(event_id)s, reason = %(reason)s,
    parked_at_ms = {_NOW}
  WHERE {_HELD} AND sequence_number = %(number)s AND EXISTS (SELECT FROM held)
    AND (SELECT count(*) FROM gavel.work_deliveries WHERE {_OF_GROUP} AND state = 'parked') < %(parked_max)s
  RETURNING 1)
SELECT NOT EXISTS (SELECT FROM held) OR EXISTS (SELECT FROM parked)
"""
_PARKED: Final = f"""
SELECT sequence_number, event_id, deliveries, reason, parked_at_ms FROM gavel.work_deliveries
WHERE {_OF_GROUP} AND state = 'parked' AND sequence_number > %(after)s ORDER BY sequence_number LIMIT %(count)s
"""
_RETRY_PARKED: Final = f"""
UPDATE gavel.work_deliveries SET state = 'delayed', due_ms = 0, deliveries = 0 WHERE {_OF_GROUP} AND state = 'parked'
  AND (%(numbers)s::bigint[] IS NULL OR sequence_number = ANY(%(numbers)s::bigint[])) RETURNING 1
"""
_DISCARD_PARKED: Final = f"""
DELETE FROM gavel.work_deliveries WHERE {_OF_GROUP} AND state = 'parked' AND sequence_number = ANY(%(numbers)s::bigint[]) RETURNING 1
"""
_GROUPS: Final = """
SELECT g.name, g.queue,
  (SELECT count(*) FROM gavel.work_entries AS w WHERE (w.bus, w.queue) = (g.bus, g.queue) AND w.sequence_number > g.last_taken),
  (SELECT count(*) FROM gavel.work_deliveries AS d WHERE (d.bus, d.queue, d.group_name) = (g.bus, g.queue, g.name) AND d.state <> 'parked'),
  (SELECT count(*) FROM gavel.work_members AS m WHERE (m.bus, m.queue, m.group_name) = (g.bus, g.queue, g.name)),
  (SELECT count(*) FROM gavel.work_deliveries AS d WHERE (d.bus, d.queue, d.group_name) = (g.bus, g.queue, g.name) AND d.state = 'parked'),
  g.owner
FROM gavel.work_groups AS g WHERE g.bus = %(bus)s
"""
_LEAVE: Final = f"""
DELETE FROM gavel.work_members AS m WHERE {_OF_GROUP} AND m.consumer = %(consumer)s AND NOT EXISTS (
  SELECT FROM gavel.work_deliveries AS d WHERE (d.bus, d.queue, d.group_name, d.consumer) = (m.bus, m.queue, m.group_name, m.consumer)
    AND d.state = 'pending')
"""
_REMOVE_SILENT: Final = f"""
DELETE FROM gavel.work_members AS m WHERE {_OF_GROUP} AND m.heard_ms <= {_NOW} - %(silent_ms)s AND NOT EXISTS (
  SELECT FROM gavel.work_deliveries AS d WHERE (d.bus, d.queue, d.group_name, d.consumer) = (m.bus, m.queue, m.group_name, m.consumer)
    AND d.state = 'pending')
"""
_NUMBERS: Final = """
SELECT sequence_number FROM gavel.work_entries WHERE bus = %(bus)s AND queue = %(queue)s AND sequence_number > %(after)s
ORDER BY sequence_number LIMIT %(count)s
"""
_REMOVE: Final = """
WITH removed AS (
  DELETE FROM gavel.work_deliveries
  WHERE bus = %(bus)s AND queue = %(queue)s AND sequence_number = ANY(%(numbers)s::bigint[]))
DELETE FROM gavel.work_entries WHERE bus = %(bus)s AND queue = %(queue)s AND sequence_number = ANY(%(numbers)s::bigint[])
"""


class PostgresqlWorkQueues:
    """The work queues of one bus. Every method may raise LogCorruptError too."""

    def __init__(self, pool: ConnectionPool, bus: str) -> None:
        self._pool = pool
        self._bus = bus
        # Streams that a caller opens at once must not pass its limit together.
        self._creating = asyncio.Lock()

    async def join(self, queue: QueueName, group: str, consumer: str, owner: str = "") -> None:
        """See WorkQueues. Servers that create groups at the same moment may exceed the limits by one group each."""
        if (group,) not in await self._run(_GROUP_NAMES, queue):
            async with self._creating:
                await self._create_owned(queue, group, owner)
                await self._run(_NOTE_MEMBER, queue, group, consumer=consumer)  # a group without members may be removed for another one
        else:
            await self._run(_NOTE_MEMBER, queue, group, consumer=consumer)

    async def take_new(self, queue: QueueName, group: str, consumer: str, count: int) -> list[WorkEntry]:
        """See WorkQueues."""
        rows = await self._pool.read_all(
            self._statement(_CREATE_GROUP, queue, group, owner=""),
            self._statement(_NOTE_MEMBER, queue, group, consumer=consumer),
            self._statement(_TAKE_NEW, queue, group, consumer=consumer, count=count, bytes=TAKE_BYTES_MAX),
        )
        return _entries(rows)

    async def take_due(self, queue: QueueName, group: str, consumer: str, count: int) -> list[WorkEntry]:
        """See WorkQueues."""
        return _entries(await self._run(_TAKE_DUE, queue, group, consumer=consumer, count=count, bytes=TAKE_BYTES_MAX))

    async def idle(self, queue: QueueName, group: str, idle_ms: int, after: int, count: int) -> list[int]:
        """See WorkQueues."""
        return [number for (number,) in await self._run(_IDLE, queue, group, idle_ms=idle_ms, after=after, count=count)]

    async def claim(self, queue: QueueName, group: str, consumer: str, numbers: Sequence[int], idle_ms: int) -> list[WorkEntry]:
        """See WorkQueues."""
        if not numbers:
            return []
        values = {"consumer": consumer, "numbers": list(numbers), "idle_ms": idle_ms, "bytes": TAKE_BYTES_MAX}
        return _entries(await self._run(_CLAIM, queue, group, **values))

    async def renew(self, queue: QueueName, group: str, consumer: str, numbers: Sequence[int]) -> list[int]:
        """See WorkQueues."""
        if not numbers:
            return []
        member = self._statement(_NOTE_MEMBER, queue, group, consumer=consumer)
        rows = await self._pool.read_all(member, self._statement(_RENEW, queue, group, consumer=consumer, numbers=list(numbers)))
        held = {number for (number,) in rows}
        return [number for number in numbers if number in held]

    async def transfer(self, queue: QueueName, group: str, consumer: str, number: int, receiver: str) -> bool:
        """See WorkQueues."""
        return bool(await self._run(_TRANSFER, queue, group, consumer=consumer, number=number, receiver=receiver))

    async def acknowledge(self, queue: QueueName, group: str, numbers: Sequence[int]) -> None:
        """See WorkQueues."""
        if numbers:
            await self._run(_ACKNOWLEDGE, queue, group, numbers=list(numbers))

    async def release(self, queue: QueueName, group: str, consumer: str, deliveries: Mapping[int, int], idle_ms: int) -> None:
        """See WorkQueues."""
        if deliveries:
            values = {"numbers": list(deliveries), "deliveries": list(deliveries.values()), "idle_ms": idle_ms}
            await self._run(_RELEASE, queue, group, consumer=consumer, **values)

    async def reject(self, queue: QueueName, group: str, consumer: str, number: int, deliveries: int, delay_ms: int) -> bool:
        """See WorkQueues."""
        values = {"number": number, "deliveries": deliveries, "delay_ms": delay_ms}
        return bool(await self._run(_REJECT, queue, group, consumer=consumer, **values))

    async def park(self, queue: QueueName, group: str, consumer: str, parked: ParkedEntry) -> bool:
        """See WorkQueues."""
        values = {
            "consumer": consumer,
            "number": parked.sequence_number,
            "deliveries": parked.deliveries,
            "event_id": parked.event_id,
            "reason": parked.reason.replace("\0", "\ufffd"),  # PostgreSQL's text has no NUL
            "parked_max": PARKED_MAX,
        }
        ((is_done,),) = await self._run(_PARK, queue, group, **values)
        if not is_done:
            ((is_done,),) = await self._run_without_lost(_PARK, queue, group, **values)
        return bool(is_done)

    async def read_parked(self, queue: QueueName, group: str, after: int, limit: int) -> list[ParkedEntry]:
        """See WorkQueues."""
        return [ParkedEntry(*row) for row in await self._run_without_lost(_PARKED, queue, group, after=after, count=limit)]

    async def retry_parked(self, queue: QueueName, group: str, numbers: Sequence[int] | None) -> int:
        """See WorkQueues."""
        if numbers is not None and not numbers:
            return 0
        chosen = None if numbers is None else list(numbers)
        return len(await self._run_without_lost(_RETRY_PARKED, queue, group, numbers=chosen))

    async def discard_parked(self, queue: QueueName, group: str, numbers: Sequence[int]) -> int:
        """See WorkQueues."""
        return len(await self._run(_DISCARD_PARKED, queue, group, numbers=list(numbers))) if numbers else 0

    async def groups(self) -> list[ConsumerGroup]:
        """See WorkQueues."""
        rows = await self._pool.read(_GROUPS, {"bus": self._bus})
        return sort_groups(ConsumerGroup(*row) for row in rows)

    async def leave(self, queue: QueueName, group: str, consumer: str) -> None:
        """See WorkQueues."""
        await self._run(_LEAVE, queue, group, consumer=consumer)

    async def remove_silent(self, queue: QueueName, group: str, silent_ms: int) -> None:
        """See WorkQueues."""
        await self._run(_REMOVE_SILENT, queue, group, silent_ms=silent_ms)

    async def numbers(self, queue: QueueName, after: int, count: int) -> list[int]:
        """See WorkQueues."""
        return [number for (number,) in await self._run(_NUMBERS, queue, after=after, count=count)]

    async def remove(self, queue: QueueName, numbers: Sequence[int]) -> None:
        """See WorkQueues."""
        if numbers:
            await self._run(_REMOVE, queue, numbers=list(numbers))

    async def ensure_groups(self) -> None:
        """Create the missing groups of Gavel's own clients."""
        for queue, group in GROUP_OF_QUEUE.items():
            await self._run(_CREATE_GROUP, queue, group, owner="")

    async def _create_owned(self, queue: QueueName, group: str, owner: str) -> None:
        """Create a group of a caller, unless it exists. Raises GroupsFullError."""
        groups = [one for one in await self.groups() if one.queue == queue]
        if any(one.group == group for one in groups):
            return
        removed = group_to_remove(groups, owner)
        if removed:
            await self._run(_REMOVE_GROUP, queue, removed)
        await self._run(_CREATE_GROUP, queue, group, owner=owner.replace("\0", "\ufffd"))

    def _statement(self, statement: str, queue: QueueName, group: str = "", **values: Any) -> Statement:
        return statement, {"bus": self._bus, "queue": queue, "group": group, **values}

    async def _run(self, statement: str, queue: QueueName, group: str = "", **values: Any) -> list[tuple[Any, ...]]:
        return await self._pool.read(*self._statement(statement, queue, group, **values))

    async def _run_without_lost(self, statement: str, queue: QueueName, group: str, **values: Any) -> list[tuple[Any, ...]]:
        """Drop the parked entries that the queue has lost, then run a statement."""
        return await self._pool.read_all(self._statement(_DROP_LOST, queue, group), self._statement(statement, queue, group, **values))


def _entries(rows: list[tuple[Any, ...]]) -> list[WorkEntry]:
    return [WorkEntry(number, bytes(envelope), bytes(chain_hash), deliveries) for number, envelope, chain_hash, deliveries in rows]
