"""The deadline of a loop's run: it limits every call, pause and function of the agent.

The deadline is one moment on the monotonic clock. The only randomness is the Backoff's jitter.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc

from gavel_client.agents.loop_results import LoopStoppedError, Round, StopReason
from gavel_client.rpc.backoff import Backoff, retry
from gavel_client.rpc.errors import GavelError, describe_error
from gavel_client.threads import call_plain
from gavel_client.timeouts import timeout

# Time beyond the deadline to record events that have already happened.
LAST_RECORD_MS: Final = 3_000

Response = TypeVar("Response")


class Deadline:
    """The time of one run, `deadline_ms` from now. Its methods raise LoopStoppedError once the time is over."""

    def __init__(self, deadline_ms: int, backoff: Backoff) -> None:
        self.backoff = backoff
        self._ends_at = time.monotonic() + deadline_ms / 1000

    def ms_left(self) -> float:
        """Return the time left, in milliseconds; negative after the deadline."""
        return (self._ends_at - time.monotonic()) * 1000

    def call_ms(self, at_most_ms: int) -> int:
        """Return the timeout of a call: the time left, at least LAST_RECORD_MS and at most `at_most_ms`."""
        return int(min(max(self.ms_left(), LAST_RECORD_MS), at_most_ms))

    async def call(self, call: Callable[[], Awaitable[Response]], grace_ms: int = 0) -> Response:
        """Call the server until it accepts or refuses the call, at most until `grace_ms` after the deadline."""

        async def call_in_time() -> Response:
            if self.ms_left() + grace_ms <= 0:
                raise LoopStoppedError(StopReason.DEADLINE, "the deadline has passed")
            return await call()

        return await retry(call_in_time, self.backoff, self._sleep_before_retry)

    async def _sleep_before_retry(self, error: GavelError, pause_ms: float) -> None:
        if error.code is grpc.StatusCode.DEADLINE_EXCEEDED and self.ms_left() <= 0:
            raise LoopStoppedError(StopReason.DEADLINE, "the deadline passed before the server responded") from error
        if pause_ms > self.ms_left():
            detail = f"the server was unavailable until the deadline: {describe_error(error)}"
            raise LoopStoppedError(StopReason.DEADLINE, detail) from error
        await asyncio.sleep(pause_ms / 1000)

    async def pause(self, current: Round, pause_ms: float) -> None:
        """Sleep, unless the deadline comes first; add the pause to the round."""
        if pause_ms > self.ms_left():
            raise LoopStoppedError(StopReason.DEADLINE, f"the next try is due in {pause_ms:.0f} ms, after the deadline")
        current.paused_ms += pause_ms
        await asyncio.sleep(pause_ms / 1000)

    async def within(self, coroutine: Awaitable[Response]) -> Response:
        """Await the agent's coroutine until the deadline."""
        try:
            async with timeout(max(self.ms_left(), 0) / 1000):
                return await coroutine
        except asyncio.TimeoutError:
            if self.ms_left() > 0:
                raise
            raise LoopStoppedError(StopReason.DEADLINE, "the deadline passed before the proposal was revised") from None


async def call_function(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a coroutine function, or a plain function in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    answer = await asyncio.to_thread(call_plain, function, *arguments)
    return await answer if inspect.isawaitable(answer) else answer
