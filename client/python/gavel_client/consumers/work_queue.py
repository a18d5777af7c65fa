"""Work queues: Redis streams whose consumer groups take each entry at least once.

In the same atomic step as the event in the log, the server adds an entry to `gavel:{<bus>}:work:decisions` for every approved
decision and to `gavel:{<bus>}:work:executions` for every execution. The entry's id is `<sequence_number>-0`; its field `e` is the
envelope and its field `h` the chain hash. An entry is only a hint that there may be work; the server decides whether there is. A
queue can be lost, emptied or rebuilt from the log without harm (ADR 0015).

The life of an entry:

- A group delivers it to one consumer, with which it stays pending until acknowledged. Consumers send heartbeats; entries of a
  consumer that has been silent for `min_idle_ms` are claimed by another one. Correctness does not depend on these times.
- A consumer deletes it for all groups once its work has ended in the log. That holds for every group; a group that has not read
  the entry, or does not exist yet, misses nothing.
- An entry that a consumer cannot process stays pending, for another member of the group.

Groups therefore never trim by what they have read. While Redis is unavailable or refuses, every method waits and retries for ever,
with pauses that grow to a second; `problem` tells why. Only a queue that has never been used raises WorkQueueError, for an error that
points to a wrong setting (password, permissions, a wrong type).

Requires Redis 6.2 or later, or Valkey. Commands used: XREADGROUP, XGROUP, XACK, XDEL, XTRIM, XPENDING, XCLAIM, XAUTOCLAIM, XRANGE.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import redis.asyncio
import redis.exceptions
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.redis_keys import work_key
from google.protobuf.message import DecodeError
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gavel_client.consumers.redis_discovery import open_pool
from gavel_client.consumers.work_source import BLOCK_MS, BUS_DEFAULT, DECISIONS, MIN_IDLE_MS_DEFAULT
from gavel_client.rpc.backoff import Backoff
from gavel_client.rpc.errors import WorkQueueError
from gavel_client.timeouts import timeout

# A consumer that waits for the wakeup event reads at least this often without it.
WAKEUP_TIMEOUT_MS: Final = 10_000
# Longer than any command takes; detects a connection to a host that has vanished.
COMMAND_TIMEOUT_SECONDS: Final = 3.0
CLAIM_IDS_MAX: Final = 500
_RAW_COMMANDS: Final = ("XREADGROUP", "XRANGE", "XAUTOCLAIM", "XCLAIM", "XPENDING")

_logger = logging.getLogger(__name__)

# A wrong setting rather than an outage, if the queue has never been used. Any other error is retried.
_SETTING_ERRORS: Final = (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError, redis.exceptions.NoPermissionError)


class Entry(NamedTuple):
    """An entry of the stream: its id and its fields `e` and `h`."""

    entry_id: str
    fields: dict[bytes, bytes]

    def envelope(self) -> Envelope:
        """Return the event with its chain hash. Raises WorkQueueError if the entry is damaged."""
        try:
            envelope = Envelope.FromString(self.fields[b"e"])
            envelope.chain_hash = self.fields[b"h"]
        except (KeyError, DecodeError) as error:
            raise WorkQueueError(f"entry {self.entry_id} cannot be parsed: {type(error).__name__}") from error
        if self.entry_id != f"{envelope.sequence_number}-0":
            raise WorkQueueError(f"entry {self.entry_id} holds event {envelope.sequence_number}; an entry's id is its event's number")
        return envelope


class WorkQueue:
    """One consumer of one work queue. Every method waits until Redis is available. `problem` tells why it waits, "" if it does not.

    `queue` is DECISIONS or EXECUTIONS. `group` is the consumer group; a missing group is created at the queue's start. Each
    consumer generates a unique name. The owner of `wakeup`, if given, sets it whenever there may be a new entry; Redis is then
    read only after that, so that idle queues cost nothing. `connections`, if given, are shared with other consumers (`connection_pool`).
    """

    def __init__(
        self,
        redis_url: str,
        *,
        queue: str,
        group: str,
        bus: str = "",
        min_idle_ms: int = MIN_IDLE_MS_DEFAULT,
        backoff: Backoff | None = None,
        wakeup: asyncio.Event | None = None,
        connections: redis.asyncio.ConnectionPool | None = None,
    ) -> None:
        self._wakeup = wakeup
        self.key = work_key(bus or BUS_DEFAULT, queue)
        self.group = group
        self.consumer = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self.min_idle_ms = min_idle_ms
        self.problem = ""
        self._backoff = backoff or Backoff()
        self._was_used = False
        self._own_connections = connection_pool(redis_url, bus) if connections is None else None
        self._redis: Any = redis.asyncio.Redis(connection_pool=connections or self._own_connections)
        # Raw replies: redis-py drops the cursor of XAUTOCLAIM, and the shapes of its replies differ between releases.
        for command in _RAW_COMMANDS:
            self._redis.set_response_callback(command, lambda response, **_: response)

    @property
    def silence_ms_max(self) -> int:
        """See WorkSource."""
        return self.min_idle_ms

    async def read(self) -> Entry | None:
        """Return the next entry that the group has not delivered.

        Return None if there is none after BLOCK_MS or, with `wakeup`, once it is set again or after WAKEUP_TIMEOUT_MS.
        """
        if self._wakeup is None:
            return await self._next("BLOCK", BLOCK_MS)
        self._wakeup.clear()
        entry = await self._next()
        if entry is None:
            try:
                async with timeout(WAKEUP_TIMEOUT_MS / 1000):
                    await self._wakeup.wait()
            except asyncio.TimeoutError:
                pass  # read without a wakeup, which may have been lost
        return entry

    async def _next(self, *block: str | int) -> Entry | None:
        response = await self._run("XREADGROUP", "GROUP", self.group, self.consumer, "COUNT", 1, *block, "STREAMS", self.key, ">")
        if response is None:
            return None
        [[_, [item]]] = response
        return _entry(item)

    async def claim(self, cursor: str) -> tuple[str, Entry | None]:
        """Claim the next entry, at or after `cursor`, that any consumer has left idle for `min_idle_ms`.

        Return the next cursor (START: the scan is complete) and the entry, if any. Entries deleted in the meantime are
        acknowledged.
        """
        # Ids only: Redis 6.2 returns deleted entries without their ids.
        response = await self._run("XAUTOCLAIM", self.key, self.group, self.consumer, self.min_idle_ms, cursor, "COUNT", 1, "JUSTID")
        next_cursor = response[0].decode()
        for entry_id in response[1]:
            messages = await self._run("XRANGE", self.key, entry_id, entry_id)
            if messages:
                return next_cursor, _entry(messages[0])
            await self.acknowledge(entry_id.decode())
        return next_cursor, None

    async def heartbeat(self, entry_ids: Sequence[str]) -> None:
        """Reset the idle time of these entries, because this consumer still processes them. Skips acknowledged entries."""
        for start in range(0, len(entry_ids), CLAIM_IDS_MAX):
            await self._run("XCLAIM", self.key, self.group, self.consumer, 0, *entry_ids[start : start + CLAIM_IDS_MAX], "JUSTID")

    async def release(self, entry_id: str) -> None:
        """Give up an entry: it stays pending with an idle time at which another consumer may claim it at once."""
        await self._run("XCLAIM", self.key, self.group, self.consumer, 0, entry_id, "IDLE", self.min_idle_ms, "JUSTID")

    async def postpone(self, entry_id: str) -> None:
        """Do nothing: the entry stays pending and is claimed after `min_idle_ms`."""

    def note_pauses(self, count: int) -> None:
        """Do nothing: entries are read one by one, for free slots."""

    async def acknowledge(self, entry_id: str) -> None:
        """Acknowledge an entry for this group."""
        await self._run("XACK", self.key, self.group, entry_id)

    async def delete(self, entry_id: str) -> None:
        """Acknowledge an entry and delete it for all groups, because its work has ended in the log."""
        await self.acknowledge(entry_id)
        await self._run("XDEL", self.key, entry_id)

    async def trim(self, sequence_number: int) -> None:
        """Delete all entries before `sequence_number`, because their work has ended in the log."""
        await self._run("XTRIM", self.key, "MINID", f"{sequence_number}-0")

    async def leave(self) -> None:
        """Remove this consumer from its group, unless it has pending entries, which others will claim.

        Call this after the last read: the group would lose an entry delivered in between.
        """
        if not await self._run("XPENDING", self.key, self.group, "-", "+", 1, self.consumer):
            await self._run("XGROUP DELCONSUMER", self.key, self.group, self.consumer)

    async def close(self) -> None:
        """Close the connections, unless other consumers share them."""
        await self._redis.aclose()
        if self._own_connections is not None:
            await self._own_connections.disconnect()

    async def _run(self, *command: str | bytes | int) -> Any:
        """Run a command until Redis replies; return the reply."""
        failures = 0
        while True:
            try:
                reply = await self._run_once(*command)
            except (redis.exceptions.RedisError, OSError, asyncio.TimeoutError) as error:
                reason = str(error) or type(error).__name__
                if not self._was_used and _points_to_setting(error):
                    raise WorkQueueError(
                        f"work queue {self.key} cannot be used: {reason}; check the Redis URL and the permissions of its user"
                    ) from error
                failures += 1
                self.problem = f"work queue {self.key}: Redis does not serve it: {reason}"
                pause_ms = self._backoff.pause_ms(failures)
                _logger.warning("queue=%s redis unavailable (%s), next try in %d ms", self.key, reason, pause_ms)
                await asyncio.sleep(pause_ms / 1000)
            else:
                self._was_used = True
                self.problem = ""
                if failures:
                    _logger.info("queue=%s redis available again after %d failures", self.key, failures)
                return reply

    async def _run_once(self, *command: str | bytes | int) -> Any:
        """Run a command. Create a missing group at the queue's start; the server refuses work that is already done."""
        async with timeout(COMMAND_TIMEOUT_SECONDS):
            try:
                return await self._redis.execute_command(*command)
            except redis.exceptions.ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
            _logger.info("queue=%s group=%s is missing; creating it", self.key, self.group)
            try:
                await self._redis.execute_command("XGROUP CREATE", self.key, self.group, "0", "MKSTREAM")
            except redis.exceptions.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):  # another consumer created it first
                    raise
            return await self._redis.execute_command(*command)


def connection_pool(redis_url: str, bus: str = "", connections_max: int | None = None) -> redis.asyncio.ConnectionPool:
    """Return connections for work queues. With `connections_max`, a command waits for a free one.

    In a cluster they lead to the master that holds `bus`. Raises ValueError for an invalid URL.
    """
    options: dict[str, Any] = {
        "protocol": 2,
        # `_run_once` limits each command. redis-py would use asyncio.wait_for, which may lose a cancellation in Python 3.11.
        "socket_timeout": None,
        "socket_connect_timeout": COMMAND_TIMEOUT_SECONDS,
        # No retries inside redis-py: a repeated read would leave entries pending with a consumer that never received them.
        "retry": Retry(NoBackoff(), 0),
    }
    return open_pool(redis_url, work_key(bus or BUS_DEFAULT, DECISIONS), options, connections_max)


def _entry(item: Any) -> Entry:
    """Parse an entry of Redis's reply: [id, [field, value, field, value]]."""
    entry_id, flat = item
    return Entry(entry_id.decode(), dict(zip(flat[::2], flat[1::2], strict=True)))


def _points_to_setting(error: Exception) -> bool:
    # redis-py wraps errors of connecting, such as a wrong password, in a ConnectionError.
    return isinstance(error, _SETTING_ERRORS) or isinstance(error.__cause__, _SETTING_ERRORS) or str(error).startswith("WRONGTYPE")
