"""How long an agent's loop may take, and how it waits: for the server, for advice, for the agent itself.

Everything is bounded by one moment, on a monotonic clock. All chance is that of the Backoff's jitter.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc

from gavel_client.backoff import Backoff, may_heal
from gavel_client.errors import GavelError, where_and_what
from gavel_client.loop_results import LoopStoppedError, Round, StopReason

# What has happened is recorded even at the deadline: how long that may take beyond it.
LAST_WORD_MS: Final = 3_000

Response = TypeVar("Response")


class Patience:
    """The time of one run: `deadline_ms` from now. Its waits raise LoopStoppedError once that is over."""

    def __init__(self, deadline_ms: int, backoff: Backoff) -> None:
        self.backoff = backoff
        self._ends_at = time.monotonic() + deadline_ms / 1000

    def ms_left(self) -> float:
        """Return the time left, in milliseconds; negative when it is over."""
        return (self._ends_at - time.monotonic()) * 1000

    def call_ms(self, at_most_ms: int) -> int:
        """Return the deadline of a call: the time left, at least a moment for the last word, and at most so much."""
        return int(min(max(self.ms_left(), LAST_WORD_MS), at_most_ms))

    async def judged(self, call: Callable[[], Awaitable[Response]], grace_ms: int = 0) -> Response:
        """Make a call until the server has judged it or the time is up."""
        failures = 0
        while True:
            if self.ms_left() + grace_ms <= 0:
                raise LoopStoppedError(StopReason.DEADLINE, "the time is up")
            try:
                return await call()
            except GavelError as error:
                if error.code is grpc.StatusCode.DEADLINE_EXCEEDED and self.ms_left() <= 0:
                    raise LoopStoppedError(StopReason.DEADLINE, "the time was up before the server answered") from error
                if not may_heal(error):
                    raise
                failures += 1
                pause_ms = self.backoff.pause_ms(failures, error.retry_after_ms)
                if pause_ms > self.ms_left():
                    detail = f"the server could not be asked in time: {where_and_what(error)}"
                    raise LoopStoppedError(StopReason.DEADLINE, detail) from error
                await asyncio.sleep(pause_ms / 1000)

    async def pause(self, current: Round, pause_ms: float) -> None:
        """Wait, unless the time would be over before; the round keeps how long."""
        if pause_ms > self.ms_left():
            raise LoopStoppedError(StopReason.DEADLINE, f"the next try is due in {pause_ms:.0f} ms, and less is left")
        current.paused_ms += pause_ms
        await asyncio.sleep(pause_ms / 1000)

    async def within(self, coroutine: Awaitable[Response]) -> Response:
        """Let the agent do its part in time."""
        try:
            async with asyncio.timeout(max(self.ms_left(), 0) / 1000):
                return await coroutine
        except TimeoutError:
            if self.ms_left() > 0:
                raise
            raise LoopStoppedError(StopReason.DEADLINE, "the time was up before the proposal was revised") from None


async def called(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a coroutine function, or a plain one in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    answer = await asyncio.to_thread(function, *arguments)
    return await answer if inspect.isawaitable(answer) else answer
