"""Archiving a log, reading across the seam, and crashes at every step of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import zstandard
from gavel_server.archive import segments
from gavel_server.archive.archive import Archive
from gavel_server.archive.archive_run import archive_log
from gavel_server.archive.archived_log import ArchivedLog
from gavel_server.archive.archives import join_archive
from gavel_server.archive.backups import write_backup
from gavel_server.archive.storage import ArchiveError, Directory
from gavel_server.log import ArchiveUnavailableError, Head, LogUnavailableError, NotReplicatedError, Record
from gavel_server.log.memory import MemoryLog
from gavel_server.proofs.tiles import Tiles
from gavel_server.proofs.tree import CompactRange, root
from gavel_server.proofs.verifier import entry_of, leaf_hash

from tests.support.entries import DAY_MS, NOW_MS
from tests.support.stores.archives import BUS, EVENTS, all_records, archive_in, extend, new_log

pytestmark = pytest.mark.usefixtures("small_segments")


async def across(log: MemoryLog, path: Path, limit: int = 7) -> list[Record]:
    """Return the whole log, read page by page across the seam."""
    archived = ArchivedLog(log, archive_in(path))
    head = (await log.head()).sequence_number
    records: list[Record] = []
    while len(records) < head:
        page = await archived.read(len(records) + 1, head, limit)
        assert page, f"no event {len(records) + 1}"
        records += page
    return records


class UnconfirmedLog(MemoryLog):
    """A log whose replicas are away."""

    async def confirm(self, head: Head) -> None:
        """See EventLog."""
        raise NotReplicatedError(f"events up to {head.sequence_number} are in the log, but it has no replica")


async def test_single_reads_of_events_archived_meanwhile(tmp_path: Path) -> None:
    """An event that another process has archived and trimmed is found by its number; one after the head is absent."""
    log = await new_log()
    records = await all_records(log)
    archived = ArchivedLog(log, archive_in(tmp_path))
    await archive_log(log, archive_in(tmp_path), 99 * DAY_MS, trims=True)
    assert {3: records[2], 22: records[21]} == await archived.read_many([3, 22, EVENTS + 1])


async def test_trimmed_events_that_the_archive_lacks(tmp_path: Path) -> None:
    """An empty archive of a trimmed log is not mounted, or of another log: reads fail, and nobody takes the events for lost."""
    log = await new_log()
    records = await all_records(log)
    await archive_log(log, archive_in(tmp_path / "one"), 99 * DAY_MS, trims=True)
    archived = ArchivedLog(log, archive_in(tmp_path / "other"))
    problem = "the log of bus default begins with event 21, and the archive .*/other ends with event 0"
    for reading in (archived.read(3, EVENTS), archived.read(3, 4), archived.read_many([3, EVENTS])):
        with pytest.raises(ArchiveUnavailableError, match=problem):
            await reading
    assert records[20:] == await archived.read(21, EVENTS)
    assert [] == await archived.read(EVENTS + 1, EVENTS + 9)
    assert [] == await archived.read(3, EVENTS, 0)
    assert {21: records[20]} == await archived.read_many([21, EVENTS + 1])


async def test_readers_find_a_new_segment_at_once(tmp_path: Path) -> None:
    """Several readers that need a new segment at the same time all get its events."""
    log = await new_log()
    records = await all_records(log)
    archived = ArchivedLog(log, archive_in(tmp_path))
    await archive_log(log, archive_in(tmp_path), 99 * DAY_MS, trims=True)
    assert [records[:3]] * 8 == await asyncio.gather(*(archived.read(1, 3) for _ in range(8)))


async def test_unconfirmed_events_are_not_archived(tmp_path: Path) -> None:
    """Events that replicas have not confirmed stay in the log alone: a failover may lose them, and the archive must be of the log."""
    log = UnconfirmedLog(BUS, clock=lambda: NOW_MS)
    await extend(log, EVENTS)
    with pytest.raises(NotReplicatedError):
        await archive_log(log, archive_in(tmp_path), 18 * DAY_MS, trims=True)
    archive = archive_in(tmp_path)
    await archive.refresh()
    assert (0, EVENTS) == (archive.end.sequence_number, len(await all_records(log)))


async def test_archived_and_trimmed(tmp_path: Path) -> None:
    """Old complete segments leave the log; what is newer than the cutoff, or in no complete segment, stays."""
    log = await new_log()
    records = await all_records(log)
    done = await archive_log(log, archive_in(tmp_path), 18 * DAY_MS, trims=True)
    assert (3, 15, 16) == done
    assert records[15:] == await all_records(log)
    assert records == await across(log, tmp_path)
    assert (0, 15, 16) == await archive_log(log, archive_in(tmp_path), 18 * DAY_MS, trims=True)
    assert (1, 20, 21) == await archive_log(log, archive_in(tmp_path), 99 * DAY_MS, trims=True)
    assert records == await across(log, tmp_path)


async def test_not_trimmed(tmp_path: Path) -> None:
    """Without trimming the log keeps all events; a later run may trim what an earlier one archived."""
    log = await new_log()
    records = await all_records(log)
    assert (4, 20, 1) == await archive_log(log, archive_in(tmp_path), 99 * DAY_MS, trims=False)
    assert records == await all_records(log)
    assert (0, 20, 11) == await archive_log(log, archive_in(tmp_path), 12 * DAY_MS, trims=True)
    assert records == await across(log, tmp_path)


async def test_reads_across_the_seam(tmp_path: Path) -> None:
    """Reads with any bounds, and reads of single events, are those of a log that was never trimmed."""
    whole, log = await new_log(), await new_log()
    await archive_log(log, archive_in(tmp_path), 99 * DAY_MS, trims=True)
    archive = archive_in(tmp_path)
    await archive.refresh()
    archived = ArchivedLog(log, archive)
    for first in range(EVENTS + 2):
        for last in range(EVENTS + 2):
            expected = await whole.read(first, last)
            read: list[Record] = []
            while len(read) < len(expected):
                read += await archived.read(max(first, 1) + len(read), last)
            assert expected == read
            assert [] == await archived.read(last + 1, last)
    numbers = [0, 1, 5, 6, 20, 21, EVENTS, EVENTS + 1]
    assert await whole.read_many(numbers) == await archived.read_many(numbers)


class Crash(Exception):  # noqa: N818  # the end of a process
    """The process ends."""


class CrashingDirectory(Directory):
    """A directory whose process ends before a write or deletion."""

    def __init__(self, path: Path, steps: int) -> None:
        super().__init__(path)
        self.steps = steps

    def step(self) -> None:
        """Count a step. Raises Crash."""
        self.steps -= 1
        if self.steps < 0:
            raise Crash

    def write(self, name: str, content: bytes) -> None:
        """See Storage."""
        self.step()
        super().write(name, content)

    def delete(self, name: str) -> None:
        """See Storage."""
        self.step()
        super().delete(name)


class CrashingLog(MemoryLog):
    """A log whose process ends before it is trimmed."""

    crashes = True

    async def trim(self, before: int) -> None:
        """See EventLog."""
        if self.crashes:
            raise Crash
        await super().trim(before)


async def test_crash_at_each_step(tmp_path: Path) -> None:
    """Wherever the process ends, no event is lost, and the next run completes the work."""
    steps = 0
    while True:
        path = tmp_path / str(steps)
        log = await new_log(11)
        records = await all_records(log)
        storage = CrashingDirectory(path, steps)
        try:
            await archive_log(log, Archive(storage, BUS), 99 * DAY_MS, trims=True)
            break
        except Crash:
            assert records == await across(log, path)
        assert 11 == (await archive_log(log, archive_in(path), 99 * DAY_MS, trims=True)).first_in_log
        assert records == await across(log, path)
        assert root_of(records[:10]) == root(Tiles(Directory(path)), 10)
        steps += 1
    assert steps > 10


def root_of(records: list[Record]) -> bytes:
    """Return the root of the tree of some events."""
    compact = CompactRange()
    for record in records:
        compact.append(leaf_hash(entry_of(record.envelope)))
    return compact.root()


async def test_crash_before_the_trim(tmp_path: Path) -> None:
    """A process that ends between archive and trim leaves both; the next run trims."""
    log = CrashingLog(BUS, clock=lambda: NOW_MS)
    await extend(log, EVENTS)
    records = await all_records(log)
    with pytest.raises(Crash):
        await archive_log(log, archive_in(tmp_path), 99 * DAY_MS, trims=True)
    assert records == await all_records(log)
    log.crashes = False
    assert (0, 20, 21) == await archive_log(log, archive_in(tmp_path), 99 * DAY_MS, trims=True)


async def test_two_servers(tmp_path: Path) -> None:
    """Servers that archive one log one after the other write the same segments."""
    log = await new_log()
    one, other = archive_in(tmp_path), archive_in(tmp_path)
    await one.refresh()
    await other.refresh()
    await archive_log(log, one, 12 * DAY_MS, trims=True)
    assert (2, 20, 21) == await archive_log(log, other, 99 * DAY_MS, trims=True)
    assert (0, 20, 21) == await archive_log(log, one, 99 * DAY_MS, trims=True)


class OvertakenDirectory(Directory):
    """A directory in which another server, with another version of zstd, writes a segment while this one writes its manifest."""

    def write(self, name: str, content: bytes) -> None:
        """See Storage."""
        super().write(name, content)
        if name.endswith(".zst"):
            self.others = zstandard.ZstdCompressor(level=19).compress(zstandard.decompress(content))
            assert self.others != content
        elif name.startswith(segments.FOLDER):
            super().write(name.replace(".json", ".zst"), self.others)


async def test_two_versions_of_zstd(tmp_path: Path) -> None:
    """Servers that compress differently may leave the manifest of one beside the segment of the other: its events are read."""
    log = await new_log()
    records = await all_records(log)
    assert (4, 20, 21) == await archive_log(log, Archive(OvertakenDirectory(tmp_path), BUS), 99 * DAY_MS, trims=True)
    assert records == await across(log, tmp_path)


@pytest.mark.parametrize("damage", ["flip", "delete", "manifest", "other manifest"])
async def test_nothing_is_trimmed_to_a_damaged_segment(tmp_path: Path, damage: str) -> None:
    """Each segment is read again before the log is trimmed, also if it was written and read earlier; later a whole one is trimmed to."""
    log, archive = await new_log(), archive_in(tmp_path)
    records = await all_records(log)
    await archive_log(log, archive, 99 * DAY_MS, trims=False)
    assert records[5:10] == await archive.read(6, 10, 10, 10_000)
    segment = tmp_path / "segments/000000000006-000000000010.zst"
    path = segment.with_suffix(".json") if "manifest" in damage else segment
    content = path.read_bytes()
    if damage == "flip":
        path.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    elif damage == "other manifest":
        path.write_bytes((tmp_path / "segments/000000000011-000000000015.json").read_bytes())
    else:
        path.unlink()
    with pytest.raises(ArchiveError, match="000000000006-000000000010"):
        await archive_log(log, archive, 99 * DAY_MS, trims=True)
    assert records == await all_records(log)
    path.write_bytes(content)
    assert (0, 20, 21) == await archive_log(log, archive, 99 * DAY_MS, trims=True)
    segment.unlink()  # the log no longer has its events
    await extend(log, 5)
    assert (1, 25, 26) == await archive_log(log, archive, 99 * DAY_MS, trims=True)


async def test_archive_of_another_log(tmp_path: Path) -> None:
    """Nothing is archived, trimmed or read from the archive of another log."""
    await archive_log(await new_log(name="other"), archive_in(tmp_path), 99 * DAY_MS, trims=False)
    for events in (EVENTS, 4, 40):
        log = await new_log(events)
        with pytest.raises(ArchiveError, match="is not of this log of bus default"):
            await archive_log(log, archive_in(tmp_path), 99 * DAY_MS, trims=True)
        assert events == len(await all_records(log))


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "manifest", "swap"])
async def test_damaged_segment(tmp_path: Path, damage: str) -> None:
    """A damaged or missing segment is an error that names it, never wrong events."""
    log = await new_log()
    await archive_log(log, archive_in(tmp_path), 99 * DAY_MS, trims=True)
    path = tmp_path / "segments/000000000006-000000000010.zst"
    content = path.read_bytes()
    if damage == "flip":
        path.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    elif damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "delete":
        path.unlink()
    elif damage == "manifest":
        path.with_suffix(".json").unlink()
    else:
        path.write_bytes((tmp_path / "segments/000000000001-000000000005.zst").read_bytes())
    archived = ArchivedLog(log, archive_in(tmp_path))
    with pytest.raises(LogUnavailableError, match=r"000000000006|lacks event 6"):
        await archived.read(6, 10)


async def test_manifest(tmp_path: Path) -> None:
    """A manifest names bus, range, chain hashes and the file's SHA-256, and is read as it was written."""
    log = await new_log()
    archive = archive_in(tmp_path)
    await archive_log(log, archive, 99 * DAY_MS, trims=False)
    records = await all_records(log)
    one = segments.decode_manifest((tmp_path / "segments/000000000006-000000000010.json").read_bytes(), "name")
    assert (BUS, 6, 10, records[4].chain_hash, records[9].chain_hash, 5) == (
        one.bus,
        one.first,
        one.last,
        one.chain_hash_before,
        one.chain_hash,
        one.events,
    )
    assert one == archive.manifests[1]


async def test_an_archive_that_cannot_be_reached(tmp_path: Path) -> None:
    """A log is opened although its archive does not answer; reads of archived events fail until it does, and no others."""
    log, records = await new_log(), await all_records(await new_log())
    (tmp_path / "archive").mkdir()
    await archive_log(log, archive_in(tmp_path / "archive" / BUS), 99 * DAY_MS, trims=True)
    (tmp_path / "archive").rename(tmp_path / "away")
    missing = await join_archive(log, str(tmp_path / "archive"))
    with pytest.raises(LogUnavailableError, match="archive of the archive does not exist; mount its file system"):
        await missing.read(1, EVENTS)
    (tmp_path / "archive").touch()  # no directory
    joined = await join_archive(log, str(tmp_path / "archive"))
    assert records[-3:] == await joined.read(EVENTS - 2, EVENTS)
    with pytest.raises(LogUnavailableError, match="cannot be used"):
        await joined.read(1, EVENTS)
    (tmp_path / "archive").unlink()
    (tmp_path / "away").rename(tmp_path / "archive")
    assert records[0] == (await joined.read(1, EVENTS))[0]


async def test_a_log_whose_events_are_in_another_archive(tmp_path: Path) -> None:
    """A trimmed log is not archived to an empty place, and the message does not advise to restore it over what it has."""
    log = await new_log()
    await archive_log(log, archive_in(tmp_path / "one"), 99 * DAY_MS, trims=True)
    with pytest.raises(ArchiveError, match="If another archive has it, give that one"):
        await archive_log(log, archive_in(tmp_path / "other"), 99 * DAY_MS, trims=False)
    whole = ArchivedLog(log, archive_in(tmp_path / "one"))
    backup = await write_backup(whole, archive_in(tmp_path / "other"), NOW_MS)
    assert await log.head() == backup.head
