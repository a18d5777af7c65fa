"""A page of the log is read while the one before is handled; missing events and failed reads reach the caller."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from gavel_server.history import read_ahead as module
from gavel_server.history.read_ahead import read_ahead
from gavel_server.log import LogUnavailableError, Record
from gavel_server.log.memory import MemoryLog

PAGE = 4


class SlowLog(MemoryLog):
    """A log of records without content, which notes what is read and fails from `fails_at` on."""

    def __init__(self, events: int, fails_at: int | None = None) -> None:
        super().__init__("shop", lambda: 0)
        self.begun: list[int] = []
        self.cancelled = 0
        self._events = events
        self._fails_at = fails_at

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = 1) -> list[Record]:
        """Return up to `limit` records after one turn of the event loop."""
        self.begun.append(from_sequence_number)
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self._fails_at is not None and from_sequence_number >= self._fails_at:
            raise LogUnavailableError("the log is away")
        end = min(from_sequence_number + limit - 1, to_sequence_number, self._events)
        return [Record(number, b"", b"") for number in range(from_sequence_number, end + 1)]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_EVENTS_MAX", PAGE)


async def numbers_of(log: SlowLog, first: int, last: int) -> list[list[int]]:
    """Return the sequence numbers of each page."""
    async with aclosing(read_ahead(log, first, last)) as pages:
        return [[record.sequence_number for record in records] async for records in pages]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(1, 10, [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]), (3, 6, [[3, 4, 5, 6]]), (5, 5, [[5]]), (1, 0, []), (9, 8, [])],
)
async def test_each_event_of_the_range_once(first: int, last: int, expected: list[list[int]]) -> None:
    """The pages hold the events of the range in order and no others."""
    assert expected == await numbers_of(SlowLog(20), first, last)


async def test_the_next_page_is_asked_for_before_a_page_is_handled() -> None:
    """When the caller gets a page, the read of the next one has begun, and none beyond it."""
    log = SlowLog(20)
    async with aclosing(read_ahead(log, 1, 12)) as pages:
        async for records in pages:
            assert min(records[0].sequence_number + PAGE, 9) == log.begun[-1]
    assert [1, 5, 9] == log.begun


async def test_missing_events_end_it_early() -> None:
    """A log that lacks events of the range gives those it has, and no empty page."""
    assert [[1, 2, 3, 4], [5, 6]] == await numbers_of(SlowLog(6), 1, 12)
    assert [] == await numbers_of(SlowLog(0), 1, 12)


async def test_a_failed_read_follows_the_pages_before_it() -> None:
    """A read that fails is reported after the pages that were read before."""
    async with aclosing(read_ahead(SlowLog(20, fails_at=5), 1, 12)) as pages:
        assert 4 == (await anext(pages))[-1].sequence_number
        with pytest.raises(LogUnavailableError, match="the log is away"):
            await anext(pages)


async def test_a_caller_that_stops_leaves_no_read_behind() -> None:
    """A caller that stops at a page ends the read of the next one."""
    log = SlowLog(20)
    async with aclosing(read_ahead(log, 1, 12)) as pages:
        await anext(pages)
    assert ([1, 5], 1) == (log.begun, log.cancelled)
