"""A server's connection to the log, with latency and outages. It can be cut, as if the server were killed.

It wraps a `FaultyLog`, which injects faults into appends. A call over a link that is down is not carried out. A call over a link
that is cut never returns, whether it was carried out or not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from gavel_server.log import Entry, EventLog, Head, IdEntry, LogUnavailableError, Record
from gavel_server.log.work.protocol import WorkQueues

Answer = TypeVar("Answer")

# Latencies of a message, in seconds; most are short.
_LATENCIES_SECONDS = (0.0, 0.0, 0.0005, 0.001, 0.002, 0.02)


class Link:
    """One server's connection to `log`."""

    def __init__(self, log: EventLog, randomness: random.Random) -> None:
        self.bus = log.bus
        self.down = False
        self._cut = False
        self._log = log
        self._randomness = randomness

    def cut(self) -> None:
        """Let no call return from now on, and carry out no further call."""
        self._cut = True

    async def _call(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        await self._delay()
        if self.down:
            raise LogUnavailableError("injected: the link is down")
        try:
            return await call()
        finally:
            await self._delay()

    async def _delay(self) -> None:
        await asyncio.sleep(self._randomness.choice(_LATENCIES_SECONDS))
        if self._cut:
            await asyncio.get_running_loop().create_future()

    async def append(
        self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None = None
    ) -> None:
        """See EventLog. All calls go over the link."""
        await self._call(lambda: self._log.append(expected, entries, recorded_at_ms, idempotency_keys, date_ms))

    async def head(self) -> Head:
        """See EventLog."""
        return await self._call(self._log.head)

    def is_confirmed(self, sequence_number: int) -> bool:
        """See EventLog."""
        return self._log.is_confirmed(sequence_number)

    async def confirm(self, head: Head) -> None:
        """See EventLog."""
        await self._call(lambda: self._log.confirm(head))

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = 1000) -> list[Record]:
        """See EventLog."""
        return await self._call(lambda: self._log.read(from_sequence_number, to_sequence_number, limit))

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """See EventLog."""
        return await self._call(lambda: self._log.read_many(sequence_numbers))

    async def find(self, event_ids: Sequence[str], now_ms: int) -> dict[str, IdEntry]:
        """See EventLog."""
        return await self._call(lambda: self._log.find(event_ids, now_ms))

    async def time_ms(self) -> int:
        """See EventLog."""
        return await self._call(self._log.time_ms)

    @property
    def lost_head(self) -> Head | None:
        """See EventLog."""
        return self._log.lost_head

    async def report_loss(self, lost_head: Head) -> None:
        """See EventLog."""
        await self._call(lambda: self._log.report_loss(lost_head))

    async def trim(self, before: int) -> None:
        """See EventLog."""
        await self._call(lambda: self._log.trim(before))

    async def published_checkpoint(self) -> bytes | None:
        """See EventLog."""
        return await self._call(self._log.published_checkpoint)

    async def publish_checkpoint(self, note: bytes, previous: bytes | None) -> bool:
        """See EventLog."""
        return await self._call(lambda: self._log.publish_checkpoint(note, previous))

    async def durability(self) -> list[str]:
        """See EventLog."""
        return await self._call(self._log.durability)

    @property
    def work(self) -> WorkQueues:
        """See EventLog. No simulated server consumes work."""
        return self._log.work

    async def ensure_groups(self) -> None:
        """See EventLog."""
        await self._call(self._log.ensure_groups)

    async def close(self) -> None:
        """See EventLog."""
        await self._log.close()
