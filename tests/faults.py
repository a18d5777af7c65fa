"""A log that fails as real ones do, from a seed: for simulation and for tests of recovery.

It wraps a real log and never lies: an append that it reports as refused was not applied, and one of unknown outcome was
applied or not before the error is raised, so that `head` settles it as the contract demands. A moved head is made by a
rival that really appends.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gavel_server.log import ConsumerGroup, Entry, EventLog, Head, IdEntry, LogUnavailableError, OutcomeUnknownError, Record


@dataclass(frozen=True)
class FaultRates:
    """How often each fault meets an append, 0..1; their sum is at most 1."""

    applied_but_unknown: float = 0.0
    lost_and_unknown: float = 0.0
    unavailable: float = 0.0
    head_moved: float = 0.0


class FaultyLog:
    """`log` with faults on `append`, drawn from `randomness`. `rival` appends something, for the rate `head_moved`."""

    def __init__(
        self, log: EventLog, randomness: random.Random, rates: FaultRates, rival: Callable[[EventLog], Awaitable[None]] | None = None
    ) -> None:
        if rates.head_moved and rival is None:
            raise ValueError("a moved head needs a rival that moves it")
        self.bus = log.bus
        self.faults = 0
        self._log = log
        self._randomness = randomness
        self._rates = rates
        self._rival = rival

    async def append(self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, check_ids: Sequence[str]) -> None:
        """Append, or fail as drawn."""
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
        await self._log.append(expected, entries, recorded_at_ms, check_ids)
        if fault == "applied_but_unknown":
            raise OutcomeUnknownError("injected: the answer was lost")

    async def head(self) -> Head:
        """Of the wrapped log, like everything below."""
        return await self._log.head()

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

    async def durability(self) -> list[str]:
        """See EventLog."""
        return await self._log.durability()

    async def consumers(self) -> list[ConsumerGroup]:
        """See EventLog."""
        return await self._log.consumers()

    async def ensure_groups(self) -> None:
        """See EventLog."""
        await self._log.ensure_groups()

    async def close(self) -> None:
        """See EventLog."""
        await self._log.close()
