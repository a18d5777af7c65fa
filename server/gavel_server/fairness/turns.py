"""Turns at the event loop: one slice of the long work of all calls runs, then the loop makes a few passes without any.

Long work of a call, such as decoding a large batch or filling a page, is done in slices (`process/time_slice`). If each call only let
others run between two slices, a pass of the loop would take as long as the slices of all calls together: seconds, with a few hundred
calls. A short call waits for several passes, so it would wait for several times that. Here the slices of all calls wait in one queue, which
is fair between addresses and callers (`fair_queue`).

A short call takes several passes of the loop from its arrival to its answer. Therefore a few passes without a slice follow each slice;
such a pass takes microseconds.

The sequencers' own work takes no turns, since everybody waits for it; it lets the loop make as many passes between two slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from gavel_server.fairness.fair_queue import TURN_BYTES, FairQueue
from gavel_server.process.time_slice import CALL_PASSES, TimeSlice

# Each waiting slice belongs to a call, and the transports limit those. Slices of calls that were cancelled since leave in their turn.
_UNLIMITED: Final = 1 << 60
# Cancelled slices that leave in one pass of the loop: thousands of calls may be cancelled at once.
CANCELLED_PER_PASS_MAX: Final = 256


class Turns:
    """The turns at one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Not the loop itself, which holds this object.
        self._call_soon: Final[Callable[[Callable[[], None]], object]] = loop.call_soon
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(_UNLIMITED, _UNLIMITED)
        self._is_taken = False
        self._passes = 0  # until the next slice

    async def take(self, caller: str) -> None:
        """Return when the caller's next slice may run: at once if no slice has run in the last passes of the loop."""
        if not self._is_taken:
            self._take()
            return
        await self._wait(caller)

    async def end(self, caller: str) -> None:
        """End the caller's slice, let other tasks run, and return when its next one may run."""
        if not self._is_taken:
            self._take()
        await self._wait(caller)

    async def _wait(self, caller: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(caller, turn, TURN_BYTES)
        await turn

    def _take(self) -> None:
        self._is_taken = True
        self._passes = CALL_PASSES
        self._call_soon(self._pass_on)

    def _pass_on(self) -> None:
        """Give the next slice its turn, CALL_PASSES after the last one. Runs in each pass until then."""
        self._passes -= 1
        if self._passes > 0:
            self._call_soon(self._pass_on)
            return
        for _ in range(CANCELLED_PER_PASS_MAX):
            if not self._waiting.count:
                self._is_taken = False
                return
            turn = self._waiting.take()
            if not turn.done():  # else its call was cancelled
                turn.set_result(None)
                self._take()
                return
        self._call_soon(self._pass_on)


_TURNS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]] = WeakKeyDictionary()


def turns() -> Turns:
    """Return the turns at the running loop."""
    loop = asyncio.get_running_loop()
    turns_of_loop = _TURNS.get(loop)
    if turns_of_loop is None:
        turns_of_loop = _TURNS[loop] = Turns(loop)
    return turns_of_loop


async def take_turn(caller: str) -> None:
    """Return when a caller's work of a few milliseconds may begin."""
    await turns().take(caller)


def call_slice(units: int, caller: str) -> TimeSlice:
    """Return a time slice for the long work of one caller's call; `fairness/callers` says what a caller is."""
    return TimeSlice(units, give_way=partial(turns().end, caller))
