"""Blocking calls of coroutines, from any thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_blocking(call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine to its end in an event loop of its own.

    asyncio refuses a second event loop in a thread, so in a thread that runs one (a notebook, an asynchronous framework) the coroutine
    runs in another thread, with the caller's context variables. An interrupt of the caller (Ctrl-C) cancels the coroutine.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call())
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def cancellable() -> Result:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # this is a coroutine
        running.append((asyncio.get_running_loop(), task))
        return await call()

    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, "gavel-blocking") as threads:
        future = threads.submit(context.run, lambda: asyncio.run(cancellable()))
        try:
            return future.result()
        except BaseException:
            for loop, task in running:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(task.cancel)
            raise
