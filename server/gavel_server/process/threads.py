"""Work in threads, for calls whose callers may go at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def run_in_thread(function: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
    """Return what a function returns in a thread.

    A thread cannot be cancelled. A caller that is cancelled therefore waits for it: the slots and places that the caller holds bound the
    threads that run, also if callers end their calls again and again.
    """
    running = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **options))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # nobody is left to hear it
        raise
