"""An event loop in virtual time: an hour of waiting takes no time, and a run with seeded randomness repeats exactly.

It is asyncio's selector loop with a selector that never waits: instead of waiting for the next timer, it moves the clock to it.
Tasks, futures and timers keep asyncio's order. A loop that would wait for ever raises StuckError.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class StuckError(Exception):
    """Every task waits and no timer is set."""


class _Selector(selectors.DefaultSelector):
    """A selector that moves the clock instead of waiting."""

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
    """An event loop whose time begins at 0."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the seconds of virtual time since the loop was created."""
        return self._virtual.now_seconds


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on a loop of its own in virtual time, and cancel the tasks that it leaves behind."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
