"""Finds the events of a log that pass a filter: by the index as far as it goes, then in the log itself.

An answer is never older than the head that its caller has seen, and no event is missing because the index lags behind or lacks it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple

from gavel_server.fairness.turns import take_turn
from gavel_server.index.event_filter import EventFilter, SelectedEvent
from gavel_server.index.event_index import EventIndex
from gavel_server.log import EventLog, Record
from gavel_server.services.reads.log_reader import missing_event, read_chunks

# Events that one query of the index names at most, and those that are read from the log at once.
QUERY_EVENTS_MAX: Final = 1_000
READ_EVENTS_MAX: Final = 32


class SearchResult(NamedTuple):
    """Events that pass, how far the search has come, and how much of the log it read for that."""

    events: list[SelectedEvent]
    reached: int
    events_read: int
    bytes_read: int


async def search(
    log: EventLog, index: EventIndex | None, event_filter: EventFilter, first: int, last: int, caller: str
) -> AsyncGenerator[SearchResult, None]:
    """Yield the events from `first` to `last` that pass, in order. Raises the errors of `read_chunks`."""
    if index is not None and not event_filter.selects_all:
        indexed = min(last, await index.head_in(log))
        async with aclosing(_search_index(log, index, event_filter, first, indexed, caller)) as results:
            async for part in results:
                first = part.reached + 1
                yield part
    async with aclosing(read_chunks(log, first, last, caller)) as history:
        async for records in history:
            yield _select(event_filter, records, records[-1].sequence_number)


async def _search_index(
    log: EventLog, index: EventIndex, event_filter: EventFilter, first: int, last: int, caller: str
) -> AsyncGenerator[SearchResult, None]:
    """Yield the events that the index names. Ends early if it cannot be read."""
    while first <= last:
        numbers = await index.select(log.bus, event_filter, first, last, QUERY_EVENTS_MAX)
        if numbers is None:
            return
        reached = last if len(numbers) < QUERY_EVENTS_MAX else numbers[-1]
        for start in range(0, len(numbers), READ_EVENTS_MAX):
            batch = numbers[start : start + READ_EVENTS_MAX]
            records = await _read(log, batch)
            await take_turn(caller)
            yield _select(event_filter, records, batch[-1])
        yield SearchResult([], reached, 0, 0)
        first = reached + 1


def _select(event_filter: EventFilter, records: list[Record], reached: int) -> SearchResult:
    return SearchResult(list(event_filter.select(records)), reached, len(records), sum(len(record.envelope) for record in records))


async def _read(log: EventLog, numbers: list[int]) -> list[Record]:
    records = await log.read_many(numbers)
    missing = [number for number in numbers if number not in records]
    if missing:
        raise await missing_event(log, missing[0])
    return [records[number] for number in numbers]
