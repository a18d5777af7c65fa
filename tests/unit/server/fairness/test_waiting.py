"""Calls that wait say so. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from gavel_server.fairness.places import Places
from gavel_server.fairness.waiting import announce_by, announce_wait
from gavel_server.fairness.work_slots import Slots

from tests.simulation.virtual_time import run_virtually


def slots() -> Callable[[str], AbstractAsyncContextManager[None]]:
    """Return the entry of one slot."""
    return Slots("scans", 1, wait_seconds_max=5.0, waiting_max=10, retry_after_ms=1_000).occupy


def places() -> Callable[[str], AbstractAsyncContextManager[None]]:
    """Return the entry of one place."""
    return Places("reads wait", 1, waiting_max=10, retry_after_ms=1_000).occupy


@pytest.mark.parametrize("make", [slots, places])
def test_a_call_that_waits_says_so(make: Callable[[], Callable[[str], AbstractAsyncContextManager[None]]]) -> None:
    """A call that finds room says nothing, one that waits announces it, and one whose caller has gone by then leaves no trace."""
    announced: list[str] = []

    async def work(occupy: Callable[[str], AbstractAsyncContextManager[None]], caller: str) -> None:
        async def announce() -> None:
            announced.append(caller)
            if caller == "gone":
                raise ConnectionError

        announce_by(announce)
        async with occupy(caller):
            await asyncio.sleep(1)

    async def run() -> None:
        occupy = make()
        outcomes = await asyncio.gather(*(work(occupy, caller) for caller in ("first", "second", "gone", "third")), return_exceptions=True)
        assert [None, None, ConnectionError, None] == [one and type(one) for one in outcomes]
        assert ["second", "gone", "third"] == announced
        await work(occupy, "last")

    run_virtually(run())
    assert "last" not in announced


def test_a_task_of_no_call_has_nobody_to_tell() -> None:
    """Outside of calls nothing happens."""
    run_virtually(announce_wait())
