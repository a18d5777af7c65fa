"""A log with injected faults, drawn from a seed, for the simulation and for tests of recovery.

It wraps a real log and keeps its contract. A refused append was not applied. An append of unknown outcome was applied, or not, before the
error is raised, and `head` tells which. A rival moves the head by a real append.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gavel_server.log import Entry, EventLog, Head, IdEntry, LogUnavailableError, OutcomeUnknownError, Record
from gavel_server.log.work.protocol import WorkQueues


@dataclass(frozen=True)
class FaultRates:
    """The probability of each fault of an append, 0 to 1. Their sum is at most 1."""

    applied_but_unknown: float = 0.0
    lost_and_unknown: float = 0.0
    unavailable: float = 0.0
    head_moved: float = 0.0


class FaultyLog:
    """`log` with faults of `append`, drawn from `randomness`. `rival` appends an event to move the head."""

    def __init__(
        self, log: EventLog, randomness: random.Random, rates: FaultRates, rival: Callable[[EventLog], Awaitable[None]] | None = None
    ) -> None:
        if rates.head_moved and rival is None:
            raise ValueError("the rate head_moved needs a rival")
        self.bus = log.bus
        self.faults = 0
        self._log = log
        self._randomness = randomness
        self._rates = rates
        self._rival = rival

    async def append(
        self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None = None
    ) -> None:
        """Append, or fail."""
        names = ("applied_but_unknown", "lost_and_unknown", "unavailable", "head_moved")
        weights = [getattr(self._rates, name) for name in names]
        (fault,) = self._randomness.choices((*names, ""), (*weights, 1 - sum(weights)))
        self.faults += bool(fault)
        if fault == "lost_and_unknown":
            raise OutcomeUnknownError("injected: the request was lost")
        if fault == "unavailable":
            raise LogUnavailableError("injected: connection refused")
        if fault == "head_moved" and self._rival is not None:
            await self._rival(self._log)
        await self._log.append(expected, entries, recorded_at_ms, idempotency_keys, date_ms)
        if fault == "applied_but_unknown":
            raise OutcomeUnknownError("injected: the answer was lost")

    async def head(self) -> Head:
        """See EventLog. This and all other methods call the wrapped log."""
        return await self._log.head()

    def is_confirmed(self, sequence_number: int) -> bool:
        """See EventLog."""
        return self._log.is_confirmed(sequence_number)

    async def confirm(self, head: Head) -> None:
        """See EventLog."""
        await self._log.confirm(head)

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = 1000) -> list[Record]:
        """See EventLog."""
        return await self._log.read(from_sequence_number, to_sequence_number, limit)

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """See EventLog."""
        return await self._log.read_many(sequence_numbers)

    async def find(self, event_ids: Sequence[str], now_ms: int) -> dict[str, IdEntry]:
        """See EventLog."""
        return await self._log.find(event_ids, now_ms)

    async def time_ms(self) -> int:
        """See EventLog."""
        return await self._log.time_ms()

    @property
    def lost_head(self) -> Head | None:
        """See EventLog."""
        return self._log.lost_head

    async def report_loss(self, lost_head: Head) -> None:
        """See EventLog."""
        await self._log.report_loss(lost_head)

    async def trim(self, before: int) -> None:
        """See EventLog."""
        await self._log.trim(before)

    async def published_checkpoint(self) -> bytes | None:
        """See EventLog."""
        return await self._log.published_checkpoint()

    async def publish_checkpoint(self, note: bytes, previous: bytes | None) -> bool:
        """See EventLog."""
        return await self._log.publish_checkpoint(note, previous)

    async def durability(self) -> list[str]:
        """See EventLog."""
        return await self._log.durability()

    @property
    def work(self) -> WorkQueues:
        """See EventLog."""
        return self._log.work

    async def ensure_groups(self) -> None:
        """See EventLog."""
        await self._log.ensure_groups()

    async def close(self) -> None:
        """See EventLog."""
        await self._log.close()
