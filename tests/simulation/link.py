"""A server's connection to the log: it takes its time, goes down and comes up, and can be cut as if the server were killed.

It wraps a `FaultyLog`, which draws what becomes of appends. A call over a link that is down was certainly not carried out;
a call over one that was cut never returns, whatever became of it: what a server that is killed would have heard.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from gavel_server.log import ConsumerGroup, Entry, EventLog, Head, IdEntry, LogUnavailableError, Record

Answer = TypeVar("Answer")

# How long a message is on its way, in seconds; most are quick.
_LATENCIES_SECONDS = (0.0, 0.0, 0.0005, 0.001, 0.002, 0.02)


class Link:
    """`log` as one server reaches it."""

    def __init__(self, log: EventLog, randomness: random.Random) -> None:
        self.bus = log.bus
        self.down = False
        self._cut = False
        self._log = log
        self._randomness = randomness

    def cut(self) -> None:
        """No call returns from now on, and none that is made from now on is carried out."""
        self._cut = True

    async def _over(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        await self._travel()
        if self.down:
            raise LogUnavailableError("injected: the link is down")
        try:
            return await call()
        finally:
            await self._travel()

    async def _travel(self) -> None:
        await asyncio.sleep(self._randomness.choice(_LATENCIES_SECONDS))
        if self._cut:
            await asyncio.get_running_loop().create_future()

    async def append(self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, check_ids: Sequence[str]) -> None:
        """Over the link, like everything below."""
        await self._over(lambda: self._log.append(expected, entries, recorded_at_ms, check_ids))

    async def head(self) -> Head:
        """See EventLog."""
        return await self._over(self._log.head)

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = 1000) -> list[Record]:
        """See EventLog."""
        return await self._over(lambda: self._log.read(from_sequence_number, to_sequence_number, limit))

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """See EventLog."""
        return await self._over(lambda: self._log.read_many(sequence_numbers))

    async def find(self, event_ids: Sequence[str], now_ms: int) -> dict[str, IdEntry]:
        """See EventLog."""
        return await self._over(lambda: self._log.find(event_ids, now_ms))

    async def time_ms(self) -> int:
        """See EventLog."""
        return await self._over(self._log.time_ms)

    async def durability(self) -> list[str]:
        """See EventLog."""
        return await self._over(self._log.durability)

    async def consumers(self) -> list[ConsumerGroup]:
        """See EventLog."""
        return await self._over(self._log.consumers)

    async def ensure_groups(self) -> None:
        """See EventLog."""
        await self._over(self._log.ensure_groups)

    async def close(self) -> None:
        """See EventLog."""
        await self._log.close()
