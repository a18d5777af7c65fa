"""Work in threads whose callers go."""

from __future__ import annotations

import asyncio
import threading

import pytest
from gavel_server.process.threads import run_in_thread


async def test_result_and_error() -> None:
    """The caller gets what the function returns or raises."""
    assert 3 == await run_in_thread(max, 1, 3)
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(divmod, 1, 0)


async def test_a_cancelled_caller_waits_for_its_thread() -> None:
    """A lock that a cancelled caller holds stays taken until its function has ended, so that such threads do not add up."""
    lock, begins, may_end = asyncio.Lock(), threading.Event(), threading.Event()
    running: list[int] = []

    def work() -> None:
        begins.set()
        may_end.wait(60)
        running.append(threading.active_count())

    async def call() -> None:
        async with lock:
            await run_in_thread(work)

    calling = asyncio.create_task(call())
    await asyncio.to_thread(begins.wait, 60)
    calling.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (True, False) == (lock.locked(), calling.done())
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert (1, False) == (len(running), lock.locked())
