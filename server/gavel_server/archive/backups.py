"""Backups: an archive, the events after it, and the newest snapshots; and a bus that is built from one.

    backups/000000005000.json            a backup of events 1 to 5000: the segments up to its tail, and the chain hash of its head
    backups/000000004097-000000005000.zst  its tail: the events after the last segment

A backup of a running bus is consistent: it is the log up to the head at its start. A restore appends the events through the log's own
append, so indexes and work queues follow. It goes on where an interrupted one ended.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final, NamedTuple

from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.hash_chain import chain
from gavel_rules.events.timestamps import milliseconds

from gavel_server.archive.archive import Archive
from gavel_server.archive.archive_run import archive_log
from gavel_server.archive.segments import BACKUPS_FOLDER, FORMAT, Manifest, decode_manifest, decode_segment, encode_manifest, encode_segment
from gavel_server.archive.storage import ArchiveError
from gavel_server.log import Entry, EventLog, Head, Record
from gavel_server.log.entries import Work
from gavel_server.log.protocol import DAY_MS, PAGE_EVENTS_MAX
from gavel_server.log.stores import StoredLog
from gavel_server.log.work.protocol import REQUEST_KINDS

# Events in one append of a restore, and bytes of envelopes that end it. The decision on the last event still follows.
APPENDED_EVENTS_MAX: Final = 256
APPENDED_BYTES: Final = 4 * 1024 * 1024
_NAME: Final = re.compile(r"(\d{12})\.json")
_GAVEL: Final = "gavel"
# Events that the decision on them follows in the same append.
_DECIDABLE: Final = ("proposal", "fact")
CHECKPOINT: Final = "checkpoint"


class Backup(NamedTuple):
    """A backup: its head, and the manifest of its tail, None if the segments reach the head."""

    head: Head
    tail: Manifest | None

    @property
    def sealed(self) -> Head:
        """The last event of its segments, where the archive ended when the backup was written."""
        return self.head if self.tail is None else Head(self.tail.first - 1, self.tail.chain_hash_before)


async def write_backup(log: EventLog, archive: Archive, now_ms: int) -> Backup:
    """Archive all complete segments of a log, without trimming it, and the events after them, once the log has confirmed all of them.

    Raises ArchiveError, LogError.
    """
    head = await log.head()
    if not head.sequence_number:
        raise ArchiveError(f"bus {log.bus} has no events to back up")
    await log.confirm(head)
    await archive_log(log, archive, now_ms + DAY_MS, trims=False)
    records: list[Record] = []
    first = archive.end.sequence_number + 1
    while first <= head.sequence_number:
        read = await log.read(first, head.sequence_number, PAGE_EVENTS_MAX)
        if not read or read[0].sequence_number != first:
            raise ArchiveError(f"bus {log.bus} has lost event {first}; restore the log")
        records += read
        first = records[-1].sequence_number + 1
    tail = None
    storage = archive.storage
    if records:
        tail, content = encode_segment(log.bus, archive.end.chain_hash, records, BACKUPS_FOLDER)
        await asyncio.to_thread(storage.write, tail.file, content)
        copy = await asyncio.to_thread(storage.read, tail.file)
        await asyncio.to_thread(decode_segment, tail, copy or b"")
    end = Head(records[-1].sequence_number, records[-1].chain_hash) if records else archive.end
    checkpoint = await log.published_checkpoint()
    if checkpoint is not None:
        await asyncio.to_thread(storage.write, CHECKPOINT, checkpoint)
    document: dict[str, Any] = {
        "format": FORMAT,
        "bus": log.bus,
        "head": end.sequence_number,
        "chain_hash": end.chain_hash.hex(),
        "tail": None if tail is None else json.loads(encode_manifest(tail)),
        "written_at_ms": now_ms,
    }
    await asyncio.to_thread(
        storage.write, f"{BACKUPS_FOLDER}/{end.sequence_number:012}.json", json.dumps(document, indent=1).encode() + b"\n"
    )
    return Backup(end, tail)


async def read_backup(archive: Archive) -> Backup:
    """Return the backup of an archive that was written last. Raises ArchiveError, also if one cannot be read that may be the last.

    It need not be the one with the highest number: a log that has lost events goes on from a lower one. But an archive only grows, and
    no backup ends before the archive does. A backup that ends before the segments of another one is therefore older, and is not read.
    """
    await archive.refresh()
    names = await asyncio.to_thread(archive.storage.names, BACKUPS_FOLDER)
    backups: list[tuple[int, Backup]] = []
    sealed = 0
    for number in sorted((int(match[1]) for match in map(_NAME.fullmatch, names) if match), reverse=True):
        if number < sealed:
            break
        written_at_ms, backup = await _read_backup(archive, number)
        backups.append((written_at_ms, backup))
        sealed = max(sealed, backup.sealed.sequence_number)
    if not backups:
        raise ArchiveError(f"{archive.storage.place} has no backup of bus {archive.bus}; make one with gavel backup")
    _, backup = max(backups, key=lambda one: (one[0], one[1].head.sequence_number))
    return backup


async def _read_backup(archive: Archive, number: int) -> tuple[int, Backup]:
    """Return when the backup of events up to a number was written, in milliseconds since 1970, and the backup."""
    name = f"{BACKUPS_FOLDER}/{number:012}.json"
    content = await asyncio.to_thread(archive.storage.read, name)
    try:
        document = json.loads(content or b"")
        if document["format"] != FORMAT:
            raise ArchiveError(f"it has format {document['format']}, not {FORMAT}; use the build that wrote it")
        if (document["bus"], document["head"]) != (archive.bus, number):
            raise ValueError(f"it is of bus {document['bus']} and event {document['head']}")
        tail = None if document["tail"] is None else decode_manifest(json.dumps(document["tail"]).encode(), "its tail")
        return int(document.get("written_at_ms", 0)), Backup(Head(number, bytes.fromhex(document["chain_hash"])), tail)
    except ArchiveError as error:
        problem = str(error)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        problem = f"it is damaged: {error}; restore it from a copy"
    place = f"{archive.storage.place}/{name}"
    raise ArchiveError(f"the backup {place} cannot be read, and may be the newest: {problem}, or remove it to restore an earlier backup")


async def restore_log(log: EventLog, archive: Archive, backup: Backup, note: Callable[[int], None]) -> None:
    """Append a backup's events to a log that is empty or has some of them; call `note` with the number reached.

    Raises ArchiveError if the log has other events, and LogError.
    """
    head = await log.head()
    pending: list[Record] = []
    pending_bytes = 0
    async for records in _records_of(archive, backup):
        if records[0].sequence_number == 1 and isinstance(log, StoredLog):
            # The window is recorded in the bus's first event. The log forgets event_ids that are older.
            log.idempotency_window_ms = _envelope(records[0]).fact.bus_opened.idempotency_window_ms
        if records[-1].sequence_number <= head.sequence_number:
            if records[-1].sequence_number == head.sequence_number:
                _check_same(log, head, records[-1])
            continue
        for record in records:
            if record.sequence_number <= head.sequence_number:
                if record.sequence_number == head.sequence_number:
                    _check_same(log, head, record)
                continue
            is_full = len(pending) >= APPENDED_EVENTS_MAX or pending_bytes >= APPENDED_BYTES
            if is_full and not _decides(_envelope(record), _envelope(pending[-1])):
                head = await _append(log, head, pending)
                pending, pending_bytes = [], 0
                note(head.sequence_number)
            pending.append(record)
            pending_bytes += len(record.envelope)
    if pending:
        head = await _append(log, head, pending)
        note(head.sequence_number)
    if head != backup.head:
        problem = f"the log of bus {log.bus} ends at event {head.sequence_number}, the backup at {backup.head.sequence_number}"
        raise ArchiveError(f"{problem}; restore to an empty Redis")
    checkpoint = await asyncio.to_thread(archive.storage.read, CHECKPOINT)
    if checkpoint is not None:
        await log.publish_checkpoint(checkpoint, await log.published_checkpoint())


def _decides(envelope: Envelope, previous: Envelope) -> bool:
    """Return whether an event is the decision on the one before it, which is then in the same append and has its number in the index."""
    return envelope.HasField("decision") and previous.WhichOneof("payload") in _DECIDABLE and envelope.causation_id == previous.event_id


def _envelope(record: Record) -> Envelope:
    return Envelope.FromString(record.envelope)


async def _records_of(archive: Archive, backup: Backup) -> AsyncGenerator[list[Record], None]:
    """Yield the events of a backup in order. Raises ArchiveError."""
    # The archive may have grown since.
    end = backup.sealed.sequence_number
    number = 1
    while number <= end:
        records = await archive.read(number, end, PAGE_EVENTS_MAX, 1 << 24)
        if not records:
            raise ArchiveError(f"the archive {archive.storage.place} lacks event {number}; restore its segment from a copy")
        yield records
        number = records[-1].sequence_number + 1
    if backup.tail is not None:
        content = await asyncio.to_thread(archive.storage.read, backup.tail.file)
        yield await asyncio.to_thread(decode_segment, backup.tail, content or b"")


def _check_same(log: EventLog, head: Head, record: Record) -> None:
    if head.chain_hash != record.chain_hash:
        raise ArchiveError(f"the log of bus {log.bus} has another event {head.sequence_number} than the backup; restore to an empty Redis")


async def _append(log: EventLog, head: Head, records: Sequence[Record]) -> Head:
    """Append records, as many at once as were recorded on one day: event_ids are kept by day. Return the new head."""
    batch: list[Entry] = []
    day_ms = 0
    previous = Envelope()
    for record in records:
        envelope = _envelope(record)
        recorded_at_ms = milliseconds(envelope.recorded_at)
        if batch and recorded_at_ms // DAY_MS != day_ms // DAY_MS:
            await log.append(head, batch, day_ms, [])
            head, batch = Head(batch[-1].sequence_number, batch[-1].chain_hash), []
        if chain(batch[-1].chain_hash if batch else head.chain_hash, record.envelope) != record.chain_hash:
            problem = f"the chain of the backup of bus {log.bus} breaks at event {record.sequence_number}"
            raise ArchiveError(f"{problem}; restore the archive from a copy")
        day_ms = recorded_at_ms
        entry = _entry(record, envelope)
        if batch and _decides(envelope, previous):
            batch[-1].decision_sequence_number = record.sequence_number
        previous = envelope
        batch.append(entry)
    await log.append(head, batch, day_ms, [])
    return Head(batch[-1].sequence_number, batch[-1].chain_hash)


def _entry(record: Record, envelope: Envelope) -> Entry:
    """Return what the server appended for an event (bus/batch/decision.py)."""
    work: Work = ""
    if envelope.decision.outcome == OUTCOME_APPROVED:
        work = "decisions"
    elif envelope.HasField("execution"):
        work = "executions"
    elif envelope.agent_diagnostic.kind in REQUEST_KINDS and envelope.producer.id == _GAVEL:
        work = "requests"
    return Entry(
        record.sequence_number,
        record.envelope,
        record.chain_hash,
        envelope.event_id,
        work,
        deploys_grants=envelope.fact.HasField("grants_deployed"),
    )
