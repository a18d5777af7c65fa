"""Logs of days and their archives in directories."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel_server.archive.archive import Archive
from gavel_server.archive.storage import Directory
from gavel_server.log import Entry, Record, chain
from gavel_server.log.memory import MemoryLog
from google.protobuf.timestamp_pb2 import Timestamp

from tests.support.entries import DAY_MS, NOW_MS, head_of

BUS: Final = "default"
EVENTS: Final = 23
# Of the fixture `small_segments`.
SEGMENT: Final = 5


async def new_log(events: int = EVENTS, name: str = "event") -> MemoryLog:
    """Return a log whose event n was recorded at day n."""
    log = MemoryLog(BUS, clock=lambda: NOW_MS)
    await extend(log, events, name)
    return log


async def extend(log: MemoryLog, events: int, name: str = "event") -> None:
    """Append events."""
    head = await log.head()
    entries: list[Entry] = []
    chain_hash = head.chain_hash
    for number in range(head.sequence_number + 1, head.sequence_number + events + 1):
        envelope = Envelope(sequence_number=number, event_id=f"{name}-{number}", bus=BUS, recorded_at=day(number))
        content = envelope.SerializeToString()
        chain_hash = chain(chain_hash, content)
        entries.append(Entry(number, content, chain_hash, envelope.event_id, ""))
    await log.append(head, entries, NOW_MS, [])
    assert head_of(entries) == await log.head()


def day(number: int) -> Timestamp:
    """Return the time at which an event was recorded."""
    return Timestamp(seconds=number * DAY_MS // 1000)


def archive_in(path: Path) -> Archive:
    """Return the archive in a directory, as a new process has it."""
    return Archive(Directory(path), BUS)


async def all_records(log: MemoryLog) -> list[Record]:
    """Return the whole log."""
    return await log.read(1, 10_000, 10_000)
