"""A log whose oldest events are in an archive.

Its readers do not notice the seam. Reads ask the live log first, and the archive only for events that the live log no longer has. All other
operations are those of the live log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gavel_server.archive.archive import Archive
from gavel_server.archive.storage import ArchiveError
from gavel_server.log import ArchiveUnavailableError, Entry, EventLog, Head, IdEntry, Record
from gavel_server.log.protocol import CHUNK_BYTES, READ_LIMIT, SEQUENCE_NUMBER_MAX
from gavel_server.log.work.protocol import WorkQueues


class ArchivedLog:
    """See EventLog. `live` is the log that is written. An archive that cannot be read raises ArchiveUnavailableError."""

    def __init__(self, live: EventLog, archive: Archive) -> None:
        self.live: Final = live
        self.archive: Final = archive
        self.bus = live.bus

    @property
    def work(self) -> WorkQueues:
        """See EventLog."""
        return self.live.work

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = READ_LIMIT) -> list[Record]:
        """See EventLog. One read returns events of the archive or of the live log."""
        first = max(from_sequence_number, 1)
        records = await self.live.read(first, to_sequence_number, limit)
        if to_sequence_number < first or limit < 1 or (records and records[0].sequence_number == first):
            return records
        last = records[0].sequence_number - 1 if records else to_sequence_number
        try:
            await self._refresh([first])
            return await self.archive.read(first, last, limit, CHUNK_BYTES) or records
        except ArchiveError as error:
            raise ArchiveUnavailableError(str(error)) from error

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """See EventLog."""
        records = await self.live.read_many(sequence_numbers)
        missing = [number for number in sequence_numbers if number > 0 and number not in records]
        if not missing:
            return records
        try:
            await self._refresh(missing)
            if min(missing) <= self.archive.end.sequence_number:
                records |= await self.archive.read_many(missing)
        except ArchiveError as error:
            raise ArchiveUnavailableError(str(error)) from error
        return records

    async def _refresh(self, missing: Sequence[int]) -> None:
        """Look for new segments if some of these events were trimmed. Raises ArchiveError if the archive does not have them either."""
        later = [number for number in missing if number > self.archive.end.sequence_number]
        if not later:
            return
        # An event that the live log lacks is trimmed if a later one is there; it may also have been appended meanwhile.
        records = await self.live.read(min(later), SEQUENCE_NUMBER_MAX, 1)
        trimmed = [number for number in later if records and number < records[0].sequence_number]
        if not trimmed:
            return
        await self.archive.refresh()
        if self.archive.end.sequence_number < max(trimmed):
            raise ArchiveError(
                f"the log of bus {self.bus} begins with event {records[0].sequence_number}, and the archive {self.archive.storage.place} "
                f"ends with event {self.archive.end.sequence_number}; mount it, give the archive of this log, or restore it from a copy"
            )

    async def head(self) -> Head:
        """See EventLog."""
        return await self.live.head()

    async def append(
        self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None = None
    ) -> None:
        """See EventLog."""
        await self.live.append(expected, entries, recorded_at_ms, idempotency_keys, date_ms)

    def is_confirmed(self, sequence_number: int) -> bool:
        """See EventLog."""
        return self.live.is_confirmed(sequence_number)

    async def confirm(self, head: Head) -> None:
        """See EventLog."""
        await self.live.confirm(head)

    async def find(self, event_ids: Sequence[str], now_ms: int) -> dict[str, IdEntry]:
        """See EventLog."""
        return await self.live.find(event_ids, now_ms)

    async def time_ms(self) -> int:
        """See EventLog."""
        return await self.live.time_ms()

    async def published_checkpoint(self) -> bytes | None:
        """See EventLog."""
        return await self.live.published_checkpoint()

    async def publish_checkpoint(self, note: bytes, previous: bytes | None) -> bool:
        """See EventLog."""
        return await self.live.publish_checkpoint(note, previous)

    @property
    def lost_head(self) -> Head | None:
        """See EventLog."""
        return self.live.lost_head

    async def report_loss(self, lost_head: Head) -> None:
        """See EventLog."""
        await self.live.report_loss(lost_head)

    async def trim(self, before: int) -> None:
        """See EventLog."""
        await self.live.trim(before)

    async def durability(self) -> list[str]:
        """See EventLog."""
        return await self.live.durability()

    async def ensure_groups(self) -> None:
        """See EventLog."""
        await self.live.ensure_groups()

    async def close(self) -> None:
        """See EventLog."""
        await self.live.close()
