"""Turns: long work of many calls at one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

from gavel_server.fairness.turns import CANCELLED_PER_PASS_MAX, call_slice, take_turn, turns
from gavel_server.process.time_slice import CALL_PASSES


async def passes_of(work: Callable[[Callable[[], None]], Awaitable[object]]) -> list[int]:
    """Return the pass of the loop in which `work` called the function that it gets, for each call."""
    number = 0
    numbers: list[int] = []

    async def count() -> None:
        nonlocal number
        while True:
            number += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await work(lambda: numbers.append(number))
    counting.cancel()
    return numbers


async def test_one_slice_runs_at_a_time() -> None:
    """Of 50 calls with long work, the slice of one runs, and none for some passes of the loop, so that other work waits for one slice."""

    async def call(caller: str, note: Callable[[], None]) -> None:
        time_slice = call_slice(1, caller)
        for _ in range(3):
            await time_slice.spend(1)
            note()

    async def calls(note: Callable[[], None]) -> None:
        await asyncio.gather(*(call(f"10.0.0.1:{number}", note) for number in range(50)))

    passes = await passes_of(calls)
    assert 150 == len(passes)
    assert [] == [later - earlier for earlier, later in pairwise(passes) if later - earlier < CALL_PASSES - 1]


async def test_work_of_a_few_milliseconds_takes_turns() -> None:
    """Calls that begin work at once begin it one after the other; a call that comes alone begins at once."""
    await take_turn("10.0.0.1:1")

    async def call(note: Callable[[], None]) -> None:
        await take_turn("10.0.0.1:1")
        note()

    passes = await passes_of(lambda note: asyncio.gather(*(call(note) for _ in range(5))))
    assert 5 == len(set(passes))


async def test_addresses_share_the_turns() -> None:
    """A call of another address gets every other slice, however many calls the first address has."""
    order: list[str] = []

    async def call(caller: str, slices: int) -> None:
        time_slice = call_slice(1, caller)
        for _ in range(slices):
            await time_slice.spend(1)
            order.append(caller)

    greedy = [asyncio.create_task(call(f"10.0.0.1:{number}", 5)) for number in range(30)]
    await asyncio.sleep(0)
    await call("10.0.0.2:1", 5)
    assert len(order) <= 2 * 5 + 2
    await asyncio.gather(*greedy)


async def test_a_cancelled_call_gives_up_its_turn() -> None:
    """A call that is cancelled while it waits for its turn leaves it to the next one."""
    time_slice = call_slice(1, "10.0.0.1:1")
    waiting = [asyncio.create_task(call_slice(1, f"10.0.0.1:{number}").spend(1)) for number in range(3)]
    await asyncio.sleep(0)
    for task in waiting[:2]:
        task.cancel()
    await asyncio.wait_for(time_slice.spend(1), 10)
    await asyncio.wait_for(waiting[2], 10)


async def test_cancelled_calls_leave_the_queue_in_their_turn() -> None:
    """Thousands of calls that are cancelled at once leave the queue a part in each pass of the loop, and the next call follows them."""
    await take_turn("10.0.0.1:1")
    waiting = [asyncio.create_task(take_turn("10.0.0.1:1")) for _ in range(3 * CANCELLED_PER_PASS_MAX)]
    last = asyncio.create_task(take_turn("10.0.0.1:1"))
    await asyncio.sleep(0)
    for task in reversed(waiting):
        task.cancel()
    counts = [turns()._waiting.count]
    while not last.done():
        await asyncio.sleep(0)
        counts.append(turns()._waiting.count)
    assert 3 * CANCELLED_PER_PASS_MAX + 1 == counts[0]
    assert CANCELLED_PER_PASS_MAX == max(before - after for before, after in pairwise(counts))
    assert 0 == counts[-1]
