"""An event loop whose time passes only when nothing is left to do: an hour of waiting takes no time and always the same course.

It is asyncio's own selector loop over a selector that never waits: asked to wait until the next timer, it moves the clock
there instead. Tasks, futures and timers keep asyncio's order, so with seeded randomness a run repeats to the last step. A
loop that would wait for ever says so: nothing inside can wake it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class StuckError(Exception):
    """Everything waits for something that nothing will bring about."""


class _Selector(selectors.DefaultSelector):
    """Moves time instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StuckError("every task waits, and no timer is set")
        if timeout > 0:
            self.now_seconds += timeout
        return list(super().select(0))


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. Its time begins at 0."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Seconds since the loop was made, in its own time."""
        return self._virtual.now_seconds


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on a loop of its own and cancel what it leaves behind."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
