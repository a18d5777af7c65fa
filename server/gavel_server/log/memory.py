"""The log in memory, for tests and simulation. It ends with the process.

It passes the same contract suites as the log in Redis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT

from gavel_server.log.entries import Entry, Head, Record, check_sequence
from gavel_server.log.protocol import (
    ACCEPTED_LOSSES_MAX,
    CHUNK_BYTES,
    DAY_MS,
    READ_LIMIT,
    EventIdTakenError,
    HeadMovedError,
    IdEntry,
    LossReportedError,
    UntimelyError,
    empty_head,
    window_days,
)
from gavel_server.log.work.memory import MemoryWorkQueues
from gavel_server.log.work.protocol import GROUP_OF_QUEUE
from gavel_server.process.clock import is_timely


class MemoryLog:
    """A log of `bus` in this process. `clock` returns milliseconds since 1970, as the store's clock."""

    def __init__(self, bus: str, clock: Callable[[], int], idempotency_window_ms: int = IDEMPOTENCY_WINDOW_MS_DEFAULT) -> None:
        self.bus = bus
        self._clock = clock
        self.work = MemoryWorkQueues(clock)
        self._window_ms = idempotency_window_ms
        self._records: list[Record] = []
        self._first = 1  # the number of the first of them
        self._head = empty_head(bus)
        self.grants_number = 0  # of the event with the grants in force; 0: none
        self._checkpoint: bytes | None = None
        self._losses: set[Head] = set()
        self._accepted_losses: list[Head] = []  # sorted
        self._ids_of_day: defaultdict[int, dict[str, IdEntry]] = defaultdict(dict)

    async def head(self) -> Head:
        """See EventLog."""
        return self._head

    async def append(
        self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None = None
    ) -> None:
        """See EventLog."""
        check_sequence(expected, entries)
        if expected != self._head:
            raise HeadMovedError(expected, self._head)
        accepts_loss = any(entry.accepts_loss for entry in entries)
        if self._losses and not accepts_loss:
            raise LossReportedError(self.bus)
        if date_ms is not None and not is_timely(date_ms, self._clock()):
            raise UntimelyError(date_ms, self._clock())
        if known_ids := self._known_ids(idempotency_keys, recorded_at_ms):
            raise EventIdTakenError(known_ids)
        self._records.extend(Record(entry.sequence_number, entry.envelope, entry.chain_hash) for entry in entries)
        self.work.add(entries)
        self.grants_number = max([self.grants_number, *(entry.sequence_number for entry in entries if entry.deploys_grants)])
        ids = self._ids_of_day[recorded_at_ms // DAY_MS]
        ids.update((entry.event_id, IdEntry(entry.sequence_number, entry.decision_sequence_number)) for entry in entries)
        self._head = Head(entries[-1].sequence_number, entries[-1].chain_hash)
        if accepts_loss:
            self._accepted_losses = sorted({*self._accepted_losses, *self._losses})[-ACCEPTED_LOSSES_MAX:]
            self._losses.clear()

    def is_confirmed(self, sequence_number: int) -> bool:
        """Return True: a log in memory has no replicas."""
        return True

    async def confirm(self, head: Head) -> None:
        """Do nothing: a log in memory has no replicas."""

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = READ_LIMIT) -> list[Record]:
        """See EventLog."""
        first = max(from_sequence_number, 1)
        records: list[Record] = []
        size_bytes = 0
        start = max(first - self._first, 0)
        for record in self._records[start : max(min(to_sequence_number - self._first + 1, start + limit), 0)]:
            records.append(record)
            size_bytes += len(record.envelope)
            if size_bytes >= CHUNK_BYTES:
                break
        return records

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """See EventLog."""
        last = self._first + len(self._records) - 1
        return {number: self._records[number - self._first] for number in sequence_numbers if self._first <= number <= last}

    async def find(self, event_ids: Sequence[str], now_ms: int) -> dict[str, IdEntry]:
        """See EventLog."""
        return self._known_ids(event_ids, now_ms)

    async def time_ms(self) -> int:
        """See EventLog."""
        return self._clock()

    @property
    def lost_head(self) -> Head | None:
        """See EventLog."""
        return max(self._losses, default=None)

    async def report_loss(self, lost_head: Head) -> None:
        """See EventLog."""
        accepted = self._accepted_losses
        is_forgotten = len(accepted) == ACCEPTED_LOSSES_MAX and lost_head.sequence_number <= accepted[0].sequence_number
        if self._head.sequence_number and lost_head not in accepted and not is_forgotten:
            self._losses.add(lost_head)

    async def trim(self, before: int) -> None:
        """See EventLog."""
        first = max(min(before, self._head.sequence_number), self._first)
        del self._records[: first - self._first]
        self._first = first

    async def published_checkpoint(self) -> bytes | None:
        """See EventLog."""
        return self._checkpoint

    async def publish_checkpoint(self, note: bytes, previous: bytes | None) -> bool:
        """See EventLog."""
        if self._checkpoint != previous:
            return False
        self._checkpoint = note
        return True

    async def durability(self) -> list[str]:
        """A log in memory is never durable."""
        return ["the log is kept in memory and ends with this process; use Redis for anything that must last"]

    async def ensure_groups(self) -> None:
        """See EventLog."""
        for queue, group in GROUP_OF_QUEUE.items():
            self.work.open_group(queue, group)

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _known_ids(self, event_ids: Sequence[str], now_ms: int) -> dict[str, IdEntry]:
        days = [self._ids_of_day[day] for day in window_days(now_ms, self._window_ms) if day in self._ids_of_day]
        return {event_id: day[event_id] for event_id in event_ids for day in days if event_id in day}
