"""Reads a range of a log page by page, each page while its caller handles the one before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from gavel_server.log import EventLog, Record
from gavel_server.log.protocol import PAGE_EVENTS_MAX


async def read_ahead(log: EventLog, first: int, last: int) -> AsyncGenerator[list[Record], None]:
    """Yield the records from `first` to `last` in pages, none of which is empty. If records are missing, it ends before `last`.

    Close it after use, because a read may be under way. Raises LogUnavailableError and LogCorruptError.
    """
    if first > last:
        return
    reading = asyncio.create_task(log.read(first, last, PAGE_EVENTS_MAX))
    try:
        while records := await reading:
            following = records[-1].sequence_number + 1
            if following <= last:
                reading = asyncio.create_task(log.read(following, last, PAGE_EVENTS_MAX))
                # The request is sent before the caller takes the processor.
                await asyncio.sleep(0)
            yield records
            if following > last:
                return
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
