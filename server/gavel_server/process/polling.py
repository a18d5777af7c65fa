"""Waiting for changes that no event announces, such as the end of a process or the release of a file lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

POLL_SECONDS: Final = 0.02


async def wait_until(check: Callable[[], bool], timeout_ms: int) -> bool:
    """Repeat `check` until it is true; return False if it is still false after the timeout."""
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
    while not check():
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True
