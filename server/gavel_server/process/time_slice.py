"""Interrupts long work on the event loop, so that other tasks run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

# How long work may hold the loop before other tasks run, if no single step of it takes longer. Not Final: tests change it, also in the
# compiled build.
SLICE_SECONDS = 0.005
# Passes of the loop after a slice. A short call takes about ten from its arrival to its answer, and gRPC accepts one call in a pass. Eight
# cost a slice of 5 ms a few percent.
CALL_PASSES: Final = 8


async def _one_pass() -> None:
    """Let all other tasks run once."""
    await asyncio.sleep(0)


async def run_call_passes() -> None:
    """Let all other tasks run CALL_PASSES times."""
    for _ in range(CALL_PASSES):
        await asyncio.sleep(0)


class TimeSlice:
    """One slice after the other: each ends after `units` of work, whatever a unit is (bytes, items), or after SLICE_SECONDS."""

    def __init__(
        self, units: int, clock: Callable[[], float] = time.monotonic, give_way: Callable[[], Awaitable[None]] = _one_pass
    ) -> None:
        """`give_way` lets other tasks run, and returns when the next slice may begin (`fairness/turns`); default: all others run once."""
        self._units = units
        self._give_way = give_way
        self._clock = clock
        self._spent = 0
        self._began = clock()

    def is_over(self, units: int) -> bool:
        """Add finished work to the slice. Return whether other tasks should run now."""
        self._spent += units
        return self._spent >= self._units or self._clock() - self._began >= SLICE_SECONDS

    async def end(self) -> None:
        """Let other tasks run, and begin the next slice."""
        await self._give_way()
        self._spent = 0
        self._began = self._clock()

    async def spend(self, units: int) -> None:
        """Add finished work to the slice. Other tasks may run before this returns."""
        if self.is_over(units):
            await self.end()
