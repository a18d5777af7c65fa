"""Work queues: Redis streams from which consumer groups take entries, each at least once.

The server adds an entry, in the same atomic step as the event in the log, to `gavel:{<bus>}:work:decisions` for every approved
decision and to `gavel:{<bus>}:work:executions` for every execution. An entry has the event's sequence number as id
(`<sequence_number>-0`), the envelope as field `e` and its chain hash as `h`. The queue only says that there may be something to
do: whether there is, the server decides. It may be lost, emptied or rebuilt from the log without harm.

How an entry lives:

- A group delivers it to one consumer, where it stays pending until it is acknowledged. A consumer keeps saying that it is alive;
  entries of one that does not (for `min_idle_ms`) are claimed by another. Nothing depends on that being exact.
- It is deleted, for all groups, by whoever learns that its work has come to its end *in the log*. That is true for every group,
  and so one that has not read it yet, or does not exist yet, misses nothing.
- An entry that a consumer can do nothing with stays pending, for another member of its group.

Groups therefore never trim by what they have read, and Redis may go away at any time: everything here waits for it, for ever,
with growing pauses. Only what waiting cannot heal (rights, a wrong type) is raised, as WorkQueueError.

Needs Redis 6.2 or later, or Valkey; the commands used are XREADGROUP, XGROUP, XACK, XDEL, XTRIM, XPENDING, XCLAIM,
XAUTOCLAIM and XRANGE.
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
from google.protobuf.message import DecodeError
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gavel_client.backoff import Backoff
from gavel_client.errors import WorkQueueError

BUS_DEFAULT: Final = "default"
DECISIONS: Final = "decisions"
EXECUTIONS: Final = "executions"

# How long a consumer's silence lasts before its entries are taken over.
MIN_IDLE_MS_DEFAULT: Final = 30_000
# How long one read waits for an entry; also how long a stop may wait for a read.
BLOCK_MS: Final = 200
# How long who is told of new entries waits for that before it looks by itself.
SILENCE_MS: Final = 10_000
# Longer than any command takes, so that a connection to a host that vanished is noticed.
COMMAND_TIMEOUT_S: Final = 10.0
CLAIM_IDS_MAX: Final = 500
# Where XAUTOCLAIM starts, and what it returns when it is through.
START: Final = "0-0"
_COMMANDS_READ_RAW: Final = ("XREADGROUP", "XRANGE", "XAUTOCLAIM", "XCLAIM", "XPENDING")

_logger = logging.getLogger(__name__)

# Errors of Redis that pass: it is away, starting, or failing over.
_PASSING_ERRORS: Final = (
    TimeoutError,
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
    redis.exceptions.TryAgainError,
)
_LASTING_ERRORS: Final = (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError)


class Entry(NamedTuple):
    """One entry as it lies in the stream: its id, and its fields `e` and `h`."""

    entry_id: str
    fields: dict[bytes, bytes]

    def envelope(self) -> Envelope:
        """Return the event, its chain hash filled in. Raises WorkQueueError if the entry is damaged."""
        try:
            envelope = Envelope.FromString(self.fields[b"e"])
            envelope.chain_hash = self.fields[b"h"]
        except (KeyError, DecodeError) as error:
            raise WorkQueueError(f"the entry {self.entry_id} cannot be read: {type(error).__name__}") from error
        if self.entry_id != f"{envelope.sequence_number}-0":
            raise WorkQueueError(f"the entry {self.entry_id} holds the event {envelope.sequence_number}")
        return envelope


class WorkQueue:
    """One consumer's view of one work queue. Every method waits for Redis as long as it takes.

    `queue` is DECISIONS or EXECUTIONS; `group` the consumer group, made from the queue's start when missing. Consumers have
    names of their own, so that two never share one. `news`, where given, is set by somebody who knows whenever there may be a new
    entry: then Redis is asked only after that, and many idle queues cost nothing.
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
        news: asyncio.Event | None = None,
    ) -> None:
        self._news = news
        self.key = f"gavel:{{{bus or BUS_DEFAULT}}}:work:{queue}"
        self.group = group
        self.consumer = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self.min_idle_ms = min_idle_ms
        self._backoff = backoff or Backoff()
        # No retries inside redis-py: a read that is repeated unseen would leave entries with a consumer that never got them.
        self._redis: Any = redis.asyncio.Redis.from_url(
            redis_url,
            protocol=2,
            # `_run_once` bounds each command; redis-py does it with asyncio.wait_for, which may lose a cancellation (Python 3.11).
            socket_timeout=None,
            socket_connect_timeout=COMMAND_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        # As Redis answers them: redis-py drops the cursor of XAUTOCLAIM, and its shapes differ between releases.
        for command in _COMMANDS_READ_RAW:
            self._redis.set_response_callback(command, lambda response, **_: response)

    async def read(self) -> Entry | None:
        """Return the next entry that the group has not delivered to anybody yet.

        None after BLOCK_MS without one; with `news`, once that is set again, or after SILENCE_MS.
        """
        if self._news is None:
            return await self._next("BLOCK", BLOCK_MS)
        self._news.clear()
        entry = await self._next()
        if entry is None:
            try:
                async with asyncio.timeout(SILENCE_MS / 1000):
                    await self._news.wait()
            except TimeoutError:
                pass  # what nobody has told of: it is looked for as well
        return entry

    async def _next(self, *block: str | int) -> Entry | None:
        response = await self._run("XREADGROUP", "GROUP", self.group, self.consumer, "COUNT", 1, *block, "STREAMS", self.key, ">")
        if response is None:
            return None
        [[_, [item]]] = response
        return _entry(item)

    async def claim(self, cursor: str) -> tuple[str, Entry | None]:
        """Take over the next entry from `cursor` on that has been idle for `min_idle_ms`, whoever held it.

        Returns where to go on (START: that was all) and the entry, if there was one. What has been deleted meanwhile is
        acknowledged here: nobody needs it.
        """
        # Ids only: Redis 6.2 would return entries that were deleted without their ids.
        response = await self._run("XAUTOCLAIM", self.key, self.group, self.consumer, self.min_idle_ms, cursor, "COUNT", 1, "JUSTID")
        next_cursor = response[0].decode()
        for entry_id in response[1]:
            found = await self._run("XRANGE", self.key, entry_id, entry_id)
            if found:
                return next_cursor, _entry(found[0])
            await self.acknowledge(entry_id.decode())
        return next_cursor, None

    async def keep(self, entry_ids: Sequence[str]) -> None:
        """Say that this consumer is alive and still at work on these entries. Those acknowledged meanwhile are passed over."""
        for start in range(0, len(entry_ids), CLAIM_IDS_MAX):
            await self._run("XCLAIM", self.key, self.group, self.consumer, 0, *entry_ids[start : start + CLAIM_IDS_MAX], "JUSTID")

    async def release(self, entry_id: str) -> None:
        """Give an entry up undone: it stays pending, and counts as idle for so long that another consumer may claim it at once."""
        await self._run("XCLAIM", self.key, self.group, self.consumer, 0, entry_id, "IDLE", self.min_idle_ms, "JUSTID")

    async def acknowledge(self, entry_id: str) -> None:
        """Say that this group is done with an entry."""
        await self._run("XACK", self.key, self.group, entry_id)

    async def delete(self, entry_id: str) -> None:
        """Acknowledge an entry and delete it for every group: its work has come to its end in the log."""
        await self.acknowledge(entry_id)
        await self._run("XDEL", self.key, entry_id)

    async def trim(self, sequence_number: int) -> None:
        """Delete every entry before `sequence_number`: the work of all of them has come to its end in the log."""
        await self._run("XTRIM", self.key, "MINID", f"{sequence_number}-0")

    async def leave(self) -> None:
        """Take this consumer out of its group, unless entries are still pending with it: then others will claim them.

        Only for a consumer that has stopped reading: an entry delivered in between would be lost to the group.
        """
        if not await self._run("XPENDING", self.key, self.group, "-", "+", 1, self.consumer):
            await self._run("XGROUP DELCONSUMER", self.key, self.group, self.consumer)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _run(self, *command: str | bytes | int) -> Any:
        """Run a command until Redis has answered it, and return the answer."""
        failures = 0
        while True:
            try:
                answer = await self._run_once(*command)
            except (redis.exceptions.RedisError, TimeoutError) as error:
                if not _passes(error):
                    raise WorkQueueError(
                        f"the work queue {self.key} cannot be used: {error}; check the Redis URL and the rights of its user"
                    ) from error
                failures += 1
                pause_ms = self._backoff.pause_ms(failures)
                _logger.warning("queue=%s redis is away (%s), next try in %d ms", self.key, str(error) or type(error).__name__, pause_ms)
                await asyncio.sleep(pause_ms / 1000)
            else:
                if failures:
                    _logger.info("queue=%s redis is back after %d failures", self.key, failures)
                return answer

    async def _run_once(self, *command: str | bytes | int) -> Any:
        """Run a command, making the group where it is missing: from the start, as the server refuses what was done before."""
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            try:
                return await self._redis.execute_command(*command)
            except redis.exceptions.ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
            _logger.info("queue=%s group=%s is missing and will be made", self.key, self.group)
            try:
                await self._redis.execute_command("XGROUP CREATE", self.key, self.group, "0", "MKSTREAM")
            except redis.exceptions.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):  # another consumer made it first
                    raise
            return await self._redis.execute_command(*command)


def _entry(item: Any) -> Entry:
    """Read one entry as Redis answers it: [id, [field, value, field, value]]."""
    entry_id, flat = item
    return Entry(entry_id.decode(), dict(zip(flat[::2], flat[1::2], strict=True)))


def _passes(error: Exception) -> bool:
    # What goes wrong while connecting, a wrong password too, comes wrapped in a ConnectionError.
    if isinstance(error, _LASTING_ERRORS) or isinstance(error.__cause__, _LASTING_ERRORS):
        return False
    # The stream may be removed while a read waits on it, and again while its group is being made.
    return isinstance(error, _PASSING_ERRORS) or str(error).startswith(("UNBLOCKED", "NOGROUP"))
