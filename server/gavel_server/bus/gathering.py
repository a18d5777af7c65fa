"""When to take the next batch: how long to sleep, how long to wait for company, how much to take.

grpc.aio hands requests in one by one. On a busy bus, taking them as they come would make one append of each; a moment's
patience makes one append of many. A lone caller never waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from typing import Final

LINGER_SECONDS: Final = 0.001
LINGER_MOMENTS_MAX: Final = 5


class Gathering:
    """The pace of one sequencer's loop."""

    def __init__(self, limit_max: int) -> None:
        self.limit = limit_max
        self._limit_max = limit_max
        self._last = 0
        self._company = 0
        self._target = 0
        self._sleeper: asyncio.Future[None] | None = None
        self._lingerer: asyncio.Future[None] | None = None

    def took(self, count: int) -> None:
        """Note the size of the batch that was taken."""
        self._last = count
        # How many callers to expect at once: as many as lately came, forgotten slowly.
        self._company = max(count, self._company - 1 - self._company // 16)

    def halve(self) -> None:
        """Take less: another server writes as well, and the smaller batch is decided again sooner."""
        self.limit = max(1, self.limit // 2)

    def grow(self) -> None:
        """Take more again, slowly."""
        if self.limit < self._limit_max:
            self.limit = min(self._limit_max, self.limit + max(1, self.limit // 8))

    def arrived(self, queued: int) -> None:
        """A command was queued."""
        if self._lingerer is None:
            self.wake()
        elif queued >= self._target:
            _release(self._lingerer)

    def wake(self) -> None:
        """End the sleep, if the loop sleeps."""
        if self._sleeper is not None:
            _release(self._sleeper)

    async def sleep(self, seconds: float | None) -> None:
        """Sleep until something wakes the loop, or for so long."""
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer = loop.call_later(seconds, self.wake) if seconds is not None else None
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            if timer is not None:
                timer.cancel()

    async def linger(self, queue: Sized) -> None:
        """Give the callers of a busy bus a moment to come back, so that the next append carries all of them.

        It ends when half as many wait as lately came, or when nobody came for LINGER_SECONDS. Half: while this half is
        decided, the other one's answers are on their way, and nothing stands still. Reading many requests takes longer
        than a moment, hence more moments while they keep coming.
        """
        self._target = min(self._company // 2, self.limit)
        if self._last <= 1 or len(queue) >= self._target:
            return
        loop = asyncio.get_running_loop()
        for _ in range(LINGER_MOMENTS_MAX):
            waiting = len(queue)
            self._lingerer = loop.create_future()
            timer = loop.call_later(LINGER_SECONDS, _release, self._lingerer)
            try:
                await self._lingerer
            finally:
                self._lingerer = None
                timer.cancel()
            if len(queue) == waiting or len(queue) >= self._target:
                return


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
