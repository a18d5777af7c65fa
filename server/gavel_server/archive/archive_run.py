"""Archives a log: seals segments of events that are old enough, and trims the log only after reading them back.

The steps of a segment: write its file, read it back and check its chain, write its manifest. A segment without a manifest does not count.
When all segments are recorded, the log is trimmed to the end of the last one whose events are old enough; the newest event always stays.
Before that, every segment is read again whose events the log still has: from then on it is the only copy. A run may end at any step: the
next run repeats the step and so repairs what was left.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.hash_chain import chain
from gavel_rules.events.timestamps import milliseconds

from gavel_server.archive.archive import Archive
from gavel_server.archive.segments import SEGMENT_BYTES, SEGMENT_EVENTS, encode_segment
from gavel_server.archive.storage import ArchiveError
from gavel_server.log import EventLog, Record
from gavel_server.log.protocol import SEQUENCE_NUMBER_MAX

READ_EVENTS_MAX: Final = 128


class ArchiveRun(NamedTuple):
    """The result of a run: segments written, the archive's last event, and the first event that the log still has."""

    segments: int
    last: int
    first_in_log: int


async def archive_log(log: EventLog, archive: Archive, cutoff_ms: int, *, trims: bool) -> ArchiveRun:
    """Seal the segments whose events were all recorded before `cutoff_ms` (since 1970).

    `trims`: then remove them from the log. Raises ArchiveError, also if the archive is not of this log, and LogError.
    """
    await archive.refresh()
    await _check_is_of(log, archive)
    segments = 0
    head = await log.head()
    while True:
        records = await _next_segment(log, archive.end.sequence_number + 1, head.sequence_number - 1, cutoff_ms)
        if not records:
            break
        # A failover may lose what is not confirmed, and the archive would be of another log.
        await log.confirm(head)
        manifest, content = await asyncio.to_thread(encode_segment, log.bus, archive.end.chain_hash, records)
        await archive.add(manifest, content)
        segments += 1
        await asyncio.sleep(0)
    await archive.complete_tree()
    first = 1
    if trims and archive.manifests:
        old = [one for one in archive.manifests if one.last < head.sequence_number]
        if old:
            first = await _trim(log, archive, old[-1].last, cutoff_ms)
    return ArchiveRun(segments, archive.end.sequence_number, first)


async def first_number(log: EventLog) -> int:
    """Return the number of the first event that a log has; 0: it has none. Raises LogError."""
    records = await log.read(1, SEQUENCE_NUMBER_MAX, 1)
    return records[0].sequence_number if records else 0


def recorded_at_ms(record: Record) -> int:
    """Return when an event was recorded, in milliseconds since 1970."""
    return milliseconds(Envelope.FromString(record.envelope).recorded_at)


async def _trim(log: EventLog, archive: Archive, last: int, cutoff_ms: int) -> int:
    """Trim the log to after the newest segment that ends at `last` or before and is old enough; return the first event that stays."""
    first = await first_number(log)
    for manifest in reversed(archive.manifests):
        if manifest.last > last:
            continue
        if manifest.last < first:
            break
        (record,) = (await archive.read_many([manifest.last])).values()
        if recorded_at_ms(record) < cutoff_ms:
            live = (await log.read_many([manifest.last])).get(manifest.last)
            if live is not None and live != record:  # None: another server has trimmed it meanwhile
                raise ArchiveError(
                    f"event {manifest.last} of bus {log.bus} differs in the archive {archive.storage.place}; nothing is trimmed"
                )
            await archive.verify(first, manifest.last)
            await log.trim(manifest.last + 1)
            return manifest.last + 1
    return first


async def _next_segment(log: EventLog, first: int, last: int, cutoff_ms: int) -> list[Record]:
    """Return the events of the next segment from `first` on; [] if it is not complete by `last`, or has events since `cutoff_ms`."""
    records: list[Record] = []
    size = 0
    while first <= last:
        read = await log.read(first, last, min(READ_EVENTS_MAX, SEGMENT_EVENTS - len(records)))
        if not read or read[0].sequence_number != first:
            raise ArchiveError(
                f"the log of bus {log.bus} does not have event {first}, and the archive ends before it. If another archive has it, give "
                "that one; otherwise restore the log from a backup"
            )
        if recorded_at_ms(read[0]) >= cutoff_ms:
            return []
        for record in read:
            records.append(record)
            size += len(record.envelope)
            if len(records) == SEGMENT_EVENTS or size >= SEGMENT_BYTES:
                return records if recorded_at_ms(record) < cutoff_ms else []
        first = read[-1].sequence_number + 1
    return []


async def _check_is_of(log: EventLog, archive: Archive) -> None:
    """Raise ArchiveError if the archive ends with another event than the log has there."""
    end = archive.end
    record = (await log.read_many([end.sequence_number])).get(end.sequence_number) if end.sequence_number else None
    following = await log.read(end.sequence_number + 1, end.sequence_number + 1, 1)
    is_other = record is not None and record.chain_hash != end.chain_hash
    if not is_other and record is None and following:
        is_other = chain(end.chain_hash, following[0].envelope) != following[0].chain_hash
    head = await log.head()
    if is_other or head.sequence_number < end.sequence_number:
        raise ArchiveError(
            f"the archive {archive.storage.place} is not of this log of bus {log.bus}: it ends with event {end.sequence_number}, which "
            "the log does not have; give another archive"
        )
