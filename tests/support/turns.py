"""Whether other tasks get their turns while one works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """The number of turns that another task has had."""

    def __init__(self) -> None:
        self.count = 0

    async def take_forever(self) -> None:
        """Take a turn whenever the event loop gives one."""
        while True:
            self.count += 1
            await asyncio.sleep(0)


@asynccontextmanager
async def other_turns() -> AsyncIterator[Turns]:
    """Count the turns of another task while the block runs."""
    turns = Turns()
    other = asyncio.create_task(turns.take_forever())
    try:
        yield turns
    finally:
        other.cancel()
