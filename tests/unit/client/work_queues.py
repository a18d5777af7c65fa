"""A work queue in a real Redis, as the server and an operator see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from gavel.v1.envelope_pb2 import Envelope
from gavel_client.consumers.work_queue import WorkQueue
from gavel_rules.redis_keys import work_key

# Longest wait for an expected condition: it limits the duration of a failure, and a slow machine never reaches it.
WAIT_S = 100.0
# Values of `min_idle_ms`: short enough for a test to wait for a pending entry, and too long for it ever to be claimed. With a value
# between the two, a machine that pauses for a moment would claim entries in progress.
SHORT_MS = 60
LONG_MS = 600_000

# Creates a member of a group on the decisions queue.
Member = Callable[..., WorkQueue]


@dataclass
class Queue:
    """One work queue in a real Redis."""

    redis: Any
    key: str

    @staticmethod
    @asynccontextmanager
    async def open(redis_url: str, bus: str, queue: str) -> AsyncIterator[Queue]:
        """Connect to the queue of a bus."""
        async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as connection:
            yield Queue(connection, work_key(bus, queue))

    async def add(self, *envelopes: Envelope, chain_hash: bytes = b"\0" * 32) -> None:
        """Queue events as the server does."""
        for envelope in envelopes:
            fields = {"e": envelope.SerializeToString(), "h": chain_hash}
            await self.redis.xadd(self.key, fields, id=f"{envelope.sequence_number}-0")

    async def ids(self) -> list[str]:
        """The ids that lie in the queue."""
        return [entry_id.decode() for entry_id, _ in await self.redis.xrange(self.key)]

    async def pending(self, group: str) -> int:
        """How many entries a group has not acknowledged."""
        return int((await self.redis.xpending(self.key, group))["pending"])

    async def consumers(self, group: str) -> list[str]:
        """The names of a group's members."""
        return [row["name"].decode() for row in await self.redis.xinfo_consumers(self.key, group)]


async def until(condition: Callable[[], bool]) -> None:
    """Return once a condition holds; fail after WAIT_S."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  what is waited for happens in Redis or in another process
            await asyncio.sleep(0.002)


async def until_equal(question: Callable[[], Awaitable[object]], expected: object) -> None:
    """Return once `question` returns `expected`; fail after WAIT_S."""
    async with asyncio.timeout(WAIT_S):
        while await question() != expected:  # noqa: ASYNC110  likewise
            await asyncio.sleep(0.005)
