"""The pace of a sequencer: how long to sleep, how long to wait for more commands, how many to take.

grpc.aio delivers requests one by one. On a busy bus, a wait of a millisecond collects many of them for one append. A lone caller
never waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from typing import Final

LINGER_SECONDS: Final = 0.001
LINGER_ROUNDS_MAX: Final = 5


class BatchPacing:
    """The pace of one sequencer's loop. `limit` is the size of the next batch, at most `limit_max`."""

    def __init__(self, limit_max: int) -> None:
        self.limit = limit_max
        self._limit_max = limit_max
        self._last_size = 0
        self._expected_callers = 0
        self._target = 0
        self._sleeper: asyncio.Future[None] | None = None
        self._lingerer: asyncio.Future[None] | None = None

    def record_batch(self, size: int) -> None:
        """Note the size of the batch that was taken."""
        self._last_size = size
        # The size of recent batches, decaying slowly.
        self._expected_callers = max(size, self._expected_callers - 1 - self._expected_callers // 16)

    def halve(self) -> None:
        """Halve the limit: another server writes too, and a smaller batch is decided again sooner."""
        self.limit = max(1, self.limit // 2)

    def grow(self) -> None:
        """Raise the limit slowly, up to its maximum."""
        if self.limit < self._limit_max:
            self.limit = min(self._limit_max, self.limit + max(1, self.limit // 8))

    def notify_queued(self, queue_length: int) -> None:
        """End the sleep after a command was queued, or the linger once `queue_length` commands are enough."""
        if self._lingerer is None:
            self.wake()
        elif queue_length >= self._target:
            _release(self._lingerer)

    def wake(self) -> None:
        """End the sleep, if the loop sleeps."""
        if self._sleeper is not None:
            _release(self._sleeper)

    async def sleep(self, seconds: float | None) -> None:
        """Sleep until `wake`, or for `seconds`."""
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
        """Wait briefly for the next commands of a busy bus's callers, so that one append carries them.

        Ends when half of the expected callers have queued a command, or none has for LINGER_SECONDS. Half is enough: while their commands
        are decided, the other half receives its answers, and neither side idles. Reading many requests takes longer than one round; hence
        up to LINGER_ROUNDS_MAX rounds while requests keep coming.
        """
        self._target = min(self._expected_callers // 2, self.limit)
        if self._last_size <= 1 or len(queue) >= self._target:
            return
        loop = asyncio.get_running_loop()
        for _ in range(LINGER_ROUNDS_MAX):
            before = len(queue)
            self._lingerer = loop.create_future()
            timer = loop.call_later(LINGER_SECONDS, _release, self._lingerer)
            try:
                await self._lingerer
            finally:
                self._lingerer = None
                timer.cancel()
            if len(queue) == before or len(queue) >= self._target:
                return


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
