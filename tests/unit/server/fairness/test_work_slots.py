"""Slots: how callers share work that is limited. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from gavel.v1 import error_pb2
from gavel_server.errors import ServiceError
from gavel_server.fairness.work_slots import Slots

from tests.simulation.virtual_time import run_virtually


def virtually(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    """Run a test in virtual time."""

    def run() -> None:
        run_virtually(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def two_slots(*, wait_seconds_max: float = 5.0, waiting_max: int = 10) -> Slots:
    """Return two slots."""
    return Slots("scans", 2, wait_seconds_max=wait_seconds_max, waiting_max=waiting_max, retry_after_ms=1_000)


class Work:
    """Work that callers do in slots, one second each; records who ran, and how many at once."""

    def __init__(self, slots: Slots) -> None:
        self.order: list[str] = []
        self.running: list[str] = []
        self.most = 0
        self._slots = slots

    async def do(self, caller: str) -> None:
        """Work for a second in a slot."""
        async with self._slots.occupy(caller):
            assert caller not in self.running
            self.order.append(caller)
            self.running.append(caller)
            self.most = max(self.most, len(self.running))
            await asyncio.sleep(1)
            self.running.remove(caller)


@virtually
async def test_a_caller_has_one_slot() -> None:
    """Two callers run at once, each in one slot, and a caller with much work leaves room for the others."""
    work = Work(two_slots(wait_seconds_max=100))
    await asyncio.gather(*(work.do(caller) for caller in "aaaabbc"))
    assert 2 == work.most
    assert ["a", "b", "c"] == sorted(work.order[:3])


@virtually
async def test_a_caller_that_finds_no_slot_is_refused_after_a_while() -> None:
    """A caller waits for a slot at most as long as the limit, and only so many wait; the refusal names the limit."""
    slots = two_slots(wait_seconds_max=5, waiting_max=1)
    loop = asyncio.get_running_loop()
    async with slots.occupy("a"), slots.occupy("b"):
        waiting = asyncio.create_task(Work(slots).do("c"))
        await asyncio.sleep(0)
        with pytest.raises(ServiceError, match="scans are limited to 2 at once, and 1 for each address") as at_once:
            await Work(slots).do("d")
        assert (error_pb2.ERROR_REASON_QUEUE_FULL, 1_000) == (at_once.value.reason, at_once.value.retry_after_ms)
        began = loop.time()
        with pytest.raises(ServiceError):
            await waiting
        assert 5 == loop.time() - began
    async with slots.occupy("c"), slots.occupy("d"):
        pass


@virtually
async def test_an_address_that_fills_the_waiting_room_makes_room_for_others() -> None:
    """A newcomer is let in for the newest call of the address with the most waiting calls; that address itself is refused."""
    work = Work(two_slots(wait_seconds_max=100, waiting_max=4))
    greedy = [asyncio.create_task(work.do("a")) for _ in range(5)]
    other = asyncio.create_task(work.do("b"))
    await asyncio.sleep(0)
    with pytest.raises(ServiceError, match="scans are limited"):
        await work.do("a")
    newcomers = [asyncio.create_task(work.do(caller)) for caller in "cd"]
    ended = await asyncio.gather(*greedy, other, *newcomers, return_exceptions=True)
    assert [False, False, False, True, True, False, False, False] == [isinstance(one, ServiceError) for one in ended]
    assert {"c", "d"} <= {*work.order[:5]}
    assert ["a", "a", "a", "b", "c", "d"] == sorted(work.order)


@virtually
async def test_a_caller_that_goes_away_leaves_no_slot_behind() -> None:
    """A caller that is cancelled while it waits, or just as it gets a slot, or while it runs, leaves both slots free."""
    slots = two_slots()
    for turns in range(4):
        work = Work(slots)
        first, second = (asyncio.create_task(work.do("a")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        async with slots.occupy("a"), slots.occupy("b"):
            pass
