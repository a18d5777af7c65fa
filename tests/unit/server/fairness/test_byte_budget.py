"""A budget of bytes: what streams hold at once, and how callers share it. In virtual time."""

from __future__ import annotations

import asyncio

from gavel_server.fairness.byte_budget import ByteBudget

from tests.simulation.virtual_time import run_virtually


class Streams:
    """Streams that hold bytes for a second each; records what they hold at most, and in which order they ended."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held: dict[str, int] = {}
        self.most = 0
        self.most_of_caller: dict[str, int] = {}
        self.order: list[str] = []

    async def run(self, caller: str, size_bytes: int, needed_bytes: int | None = None) -> None:
        """Reserve bytes, shrink to those that are needed, and hold them."""
        async with self._budget.reserve(caller, size_bytes) as reservation:
            reservation.shrink(size_bytes if needed_bytes is None else needed_bytes)
            self._held[caller] = self._held.get(caller, 0) + reservation.size_bytes
            self.most = max(self.most, sum(self._held.values()))
            self.most_of_caller[caller] = max(self.most_of_caller.get(caller, 0), self._held[caller])
            await asyncio.sleep(1)
            self._held[caller] -= reservation.size_bytes
        self.order.append(caller)


def test_streams_share_the_budget() -> None:
    """Streams hold no more than the budget, and a caller no more than its part; another caller need not wait for it."""
    streams = Streams(ByteBudget(100, 60))

    async def run() -> None:
        await asyncio.gather(*(streams.run("greedy", 20) for _ in range(9)), streams.run("other", 20))

    run_virtually(run())
    assert ({"greedy": 60, "other": 20}, 80) == (streams.most_of_caller, streams.most)
    assert "other" in streams.order[:4]
    assert 10 == len(streams.order)


def test_shrinking_makes_room() -> None:
    """Streams that need less than they reserved leave the rest to others."""
    streams = Streams(ByteBudget(100, 100))

    async def run() -> None:
        await asyncio.gather(*(streams.run("one", 50, 10) for _ in range(10)))

    run_virtually(run())
    assert 50 < streams.most <= 100


def test_a_stream_that_gives_up_leaves_the_budget_whole() -> None:
    """Streams that are cancelled while they wait, or at the moment of their turn, take nothing with them."""
    budget = ByteBudget(100, 100)
    streams = Streams(budget)

    async def run() -> None:
        holding = asyncio.create_task(streams.run("one", 100))
        waiting = [asyncio.create_task(streams.run("two", 100)) for _ in range(3)]
        await asyncio.sleep(0.5)
        waiting[0].cancel()
        holding.cancel()  # gives the bytes to the next
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.gather(holding, *waiting, return_exceptions=True)
        await streams.run("three", 100)

    run_virtually(run())
    assert ["two", "three"] == streams.order
