"""Backups of logs, which of them is the newest, and logs that are restored from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.archive import backups
from gavel_server.archive.archive import Archive
from gavel_server.archive.archive_run import archive_log
from gavel_server.archive.backups import APPENDED_EVENTS_MAX, read_backup, restore_log, write_backup
from gavel_server.archive.storage import ArchiveError, ArchiveUnreachableError, Directory
from gavel_server.log import Entry, Head, IdEntry, chain, empty_head
from gavel_server.log.memory import MemoryLog

from tests.support.entries import DAY_MS, NOW_MS
from tests.support.stores.archives import BUS, EVENTS, all_records, archive_in, day, extend, new_log

pytestmark = pytest.mark.usefixtures("small_segments")


class GrowingLog(MemoryLog):
    """A log to which others append while it is confirmed."""

    async def confirm(self, head: Head) -> None:
        """See EventLog."""
        await extend(self, 12)


@pytest.mark.parametrize("events", [1, 4, 5, 20, EVENTS])
async def test_backup_and_restore(tmp_path: Path, events: int) -> None:
    """A restored log has the events of the backup byte for byte, also if the restore was interrupted, or the backup repeated."""
    log = await new_log(events)
    await write_backup(log, archive_in(tmp_path), NOW_MS)
    await extend(log, 6)
    await log.publish_checkpoint(b"note", None)
    await write_backup(log, archive_in(tmp_path), NOW_MS)
    source = archive_in(tmp_path)
    backup = await read_backup(source)
    assert await log.head() == backup.head
    for done in (0, 3, events + 6):
        restored = await new_log(done) if done else MemoryLog(BUS, clock=lambda: NOW_MS)
        await restore_log(restored, source, backup, lambda number: None)
        assert await all_records(log) == await all_records(restored)
        assert b"note" == await restored.published_checkpoint()


async def test_restore_of_a_backup_that_the_archive_has_outgrown(tmp_path: Path) -> None:
    """A backup that ends with a segment is restored up to its own head, whatever the archive has got since."""
    log = GrowingLog(BUS, clock=lambda: NOW_MS)
    await extend(log, 20)
    backup = await write_backup(log, archive_in(tmp_path), NOW_MS)
    assert (30, None) == (backup.head.sequence_number, backup.tail)
    before = await log.read(1, 30)
    await archive_log(log, archive_in(tmp_path), 99 * DAY_MS, trims=False)
    source, restored = archive_in(tmp_path), MemoryLog(BUS, clock=lambda: NOW_MS)
    await restore_log(restored, source, await read_backup(source), lambda number: None)
    assert before == await all_records(restored)


async def test_the_newest_backup_after_a_loss(tmp_path: Path) -> None:
    """After a loss the newest backup is the one that was written last, although a lost history had higher numbers."""
    await write_backup(await new_log(), archive_in(tmp_path), NOW_MS)
    log = await new_log(20)
    await extend(log, 2, "after the loss")
    await write_backup(log, archive_in(tmp_path), NOW_MS + 1)
    assert await log.head() == (await read_backup(archive_in(tmp_path))).head


async def two_backups(path: Path, events: int) -> Path:
    """Write a backup of a log and one of `events` more; return the file of the newest."""
    log = await new_log()
    await write_backup(log, archive_in(path), NOW_MS)
    await extend(log, events)
    await write_backup(log, archive_in(path), NOW_MS + 1)
    return path / f"backups/{EVENTS + events:012}.json"


class UnreachableDirectory(Directory):
    """A directory whose newest backup cannot be read for a while."""

    def read(self, name: str) -> bytes | None:
        """See Storage."""
        if name == f"backups/{EVENTS + 1:012}.json":
            raise ArchiveUnreachableError("503")
        return super().read(name)


async def test_the_newest_backup_cannot_be_reached(tmp_path: Path) -> None:
    """An earlier backup is not taken for one that does not answer."""
    await two_backups(tmp_path, 1)
    with pytest.raises(ArchiveUnreachableError, match="503"):
        await read_backup(Archive(UnreachableDirectory(tmp_path), BUS))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2}, "it has format 2, not 1; use the build that wrote it"),
        ({"head": EVENTS}, "it is damaged: it is of bus default and event 23; restore it from a copy"),
        ({"bus": "other"}, "it is damaged: it is of bus other and event 24; restore it from a copy"),
        ({"tail": {"format": 2}}, "its tail has another format than 1; use the build that wrote it"),
        ({"chain_hash": "x"}, "it is damaged: .*; restore it from a copy"),
        (None, "it is damaged: .*; restore it from a copy"),
    ],
)
async def test_the_newest_backup_cannot_be_read(tmp_path: Path, change: dict[str, Any] | None, problem: str) -> None:
    """A damaged backup, or one of a later build, is an error that names it while it may be the newest; removed, it is none."""
    path = await two_backups(tmp_path, 1)
    path.write_bytes(b"{" if change is None else json.dumps({**json.loads(path.read_bytes()), **change}).encode())
    expected = f"the backup {path} cannot be read, and may be the newest: {problem}, or remove it to restore an earlier backup"
    with pytest.raises(ArchiveError, match=expected):
        await read_backup(archive_in(tmp_path))
    path.unlink()
    assert EVENTS == (await read_backup(archive_in(tmp_path))).head.sequence_number


@pytest.mark.parametrize(("events", "is_older"), [(2, False), (3, True)])
async def test_an_earlier_backup_cannot_be_read(tmp_path: Path, events: int, is_older: bool) -> None:
    """A damaged backup is not read if it ends before the segments of a later one: it cannot be of a log that has lost events since."""
    await two_backups(tmp_path, events)
    (tmp_path / f"backups/{EVENTS:012}.json").write_bytes(b"{")
    if is_older:
        assert EVENTS + events == (await read_backup(archive_in(tmp_path))).head.sequence_number
    else:
        with pytest.raises(ArchiveError, match=f"{EVENTS:012}.json cannot be read"):
            await read_backup(archive_in(tmp_path))


async def append(log: MemoryLog, envelopes: Sequence[Envelope]) -> None:
    """Append events at once."""
    entries: list[Entry] = []
    head = await log.head()
    for number, envelope in enumerate(envelopes, head.sequence_number + 1):
        content = envelope.SerializeToString()
        chain_hash = chain(entries[-1].chain_hash if entries else head.chain_hash, content)
        entries.append(Entry(number, content, chain_hash, envelope.event_id, ""))
    await log.append(head, entries, NOW_MS, [])


@pytest.mark.parametrize("payload", ["proposal", "fact"])
async def test_a_decision_between_two_appends(tmp_path: Path, payload: str) -> None:
    """A proposal or verdict is restored in one append with its decision, so that the index has the number of the decision."""
    log = await new_log(APPENDED_EVENTS_MAX - 1)
    decided = Envelope(event_id="decided", recorded_at=day(APPENDED_EVENTS_MAX))
    getattr(decided, payload).SetInParent()
    decision = Envelope(event_id="decision", causation_id="decided", recorded_at=day(APPENDED_EVENTS_MAX))
    decision.decision.SetInParent()
    await append(log, [decided, decision])
    await write_backup(log, archive_in(tmp_path), NOW_MS)
    source, restored = archive_in(tmp_path), MemoryLog(BUS, clock=lambda: NOW_MS)
    await restore_log(restored, source, await read_backup(source), lambda number: None)
    number = APPENDED_EVENTS_MAX
    assert {"decided": IdEntry(number, number + 1)} == await restored.find(["decided"], number * DAY_MS)


class RecordingLog(MemoryLog):
    """A log that notes the numbers of events of its appends."""

    def __init__(self) -> None:
        super().__init__(BUS, clock=lambda: NOW_MS)
        self.appends: list[int] = []

    async def append(self, expected: Head, entries: Sequence[Entry], *arguments: Any, **more: Any) -> None:
        """See EventLog."""
        self.appends.append(len(entries))
        await super().append(expected, entries, *arguments, **more)


async def test_large_events_are_restored_in_small_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append of a restore ends with the event that reaches APPENDED_BYTES, or the decision on it, so a store takes it in time."""
    log = RecordingLog()
    events = [Envelope(event_id=f"event-{number}", recorded_at=day(1)) for number in range(7)]
    events[2].proposal.SetInParent()
    events[3].decision.SetInParent()
    events[3].causation_id = events[2].event_id
    await append(log, events)
    await write_backup(log, archive_in(tmp_path), NOW_MS)
    monkeypatch.setattr(backups, "APPENDED_BYTES", sum(event.ByteSize() for event in events[:3]))
    source, restored = archive_in(tmp_path), RecordingLog()
    await restore_log(restored, source, await read_backup(source), lambda number: None)
    assert [4, 3] == restored.appends
    assert await all_records(log) == await all_records(restored)


async def test_restore_to_another_log(tmp_path: Path) -> None:
    """A log with other events is not restored to."""
    await write_backup(await new_log(), archive_in(tmp_path), NOW_MS)
    source = archive_in(tmp_path)
    backup = await read_backup(source)
    for other in (await new_log(3, "other"), await new_log(40)):
        with pytest.raises(ArchiveError, match=r"another event|ends at event 40"):
            await restore_log(other, source, backup, lambda number: None)


async def test_backup_of_trimmed_log(tmp_path: Path) -> None:
    """A log that was trimmed is backed up to its archive."""
    log = await new_log()
    records = await all_records(log)
    await archive_log(log, archive_in(tmp_path), 99 * DAY_MS, trims=True)
    await write_backup(log, archive_in(tmp_path), NOW_MS)
    source = archive_in(tmp_path)
    restored = MemoryLog(BUS, clock=lambda: NOW_MS)
    await restore_log(restored, source, await read_backup(source), lambda number: None)
    assert records == await all_records(restored)


async def test_no_backup(tmp_path: Path) -> None:
    """Without a backup there is nothing to restore, and an empty log has nothing to back up."""
    with pytest.raises(ArchiveError, match="has no backup of bus default"):
        await read_backup(archive_in(tmp_path))
    with pytest.raises(ArchiveError, match="bus default has no events"):
        await write_backup(MemoryLog(BUS, clock=lambda: NOW_MS), archive_in(tmp_path), NOW_MS)
    assert empty_head(BUS) == archive_in(tmp_path).end
