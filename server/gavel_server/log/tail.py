"""The newest events of a bus in memory, for the streams that follow it.

Each event is committed once and read by every stream. Two hundred streams that each read it from the log kept Redis busy with 9,000 reads
a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from gavel_server.log.entries import Record

# The memory of the events that are kept: of one bus, and of all buses of a process.
TAIL_BYTES_MAX: Final = 8 * 1024 * 1024
TAILS_BYTES_MAX: Final = 64 * 1024 * 1024
# What an event takes besides its envelope: the record, its hash, its ids and its place here.
RECORD_BYTES: Final = 448


class TailBudget:
    """The memory that tails share. A tail that finds it used up drops events of its own."""

    def __init__(self, bytes_max: int = TAILS_BYTES_MAX) -> None:
        self._bytes_max: Final = bytes_max
        self._bytes = 0

    @property
    def is_overdrawn(self) -> bool:
        """Whether the tails keep more than they may."""
        return self._bytes > self._bytes_max

    def spend(self, count: int) -> None:
        """Note that a tail keeps so many bytes more; fewer if the count is negative."""
        self._bytes += count


class LogTail:
    """The newest committed events of one bus. While nobody follows it, no event is kept."""

    def __init__(self, bytes_max: int = TAIL_BYTES_MAX, budget: TailBudget | None = None) -> None:
        """`budget` is shared with the tails of other buses; None: the tail has one of its own."""
        self._bytes_max: Final = bytes_max
        self._budget: Final = budget or TailBudget()
        self._records: Final[dict[int, Record]] = {}  # consecutive, by number
        self._first = 0  # number of the first one kept
        self._bytes = 0
        self._followers = 0

    @property
    def is_followed(self) -> bool:
        """Whether a stream follows the bus, be it waiting for events or sending some."""
        return self._followers > 0

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Keep events within the block."""
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers:
                self.clear()

    def add(self, records: Sequence[Record]) -> None:
        """Add committed events that follow those that were added last."""
        if not self._followers:
            return
        kept = self._records
        if kept and records[0].sequence_number != self._first + len(kept):
            self.clear()
        if not kept:
            self._first = records[0].sequence_number
        for record in records:
            kept[record.sequence_number] = record
            self._note_kept(len(record.envelope) + RECORD_BYTES)
        while kept and (self._bytes > self._bytes_max or self._budget.is_overdrawn):
            self._note_kept(-len(kept.pop(self._first).envelope) - RECORD_BYTES)
            self._first += 1

    def clear(self) -> None:
        """Keep no event any more: the log may have others with the same numbers."""
        self._records.clear()
        self._note_kept(-self._bytes)

    def read(self, first: int, last: int, limit: int) -> list[Record]:
        """Return at most `limit` consecutive events from `first` on; none if the first one has to be read from the log."""
        records: list[Record] = []
        for number in range(first, min(last, first + limit - 1) + 1):
            record = self._records.get(number)
            if record is None:
                break
            records.append(record)
        return records

    def _note_kept(self, count: int) -> None:
        self._bytes += count
        self._budget.spend(count)
