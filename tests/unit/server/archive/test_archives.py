"""The archives of a server, and the directory that holds them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gavel_server.archive import archive, archives
from gavel_server.archive.archive_run import archive_log
from gavel_server.archive.archives import Archives, join_archive
from gavel_server.archive.segments import Manifest, decode_segment
from gavel_server.log import EventLog, Record
from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.memory import MemoryLog
from structlog.testing import capture_logs

from tests.support.entries import DAY_MS
from tests.support.stores.archives import BUS, EVENTS, archive_in, new_log

pytestmark = pytest.mark.usefixtures("small_segments")


class MemoryLogs:
    """Logs in memory, by their buses."""

    def __init__(self, logs: dict[str, MemoryLog]) -> None:
        self.rounds = 0
        self._logs = logs

    async def names(self) -> list[str]:
        """See Logs. Each round asks once."""
        self.rounds += 1
        return [*self._logs]

    async def open(self, bus: str, *, acknowledgement: Acknowledgement) -> EventLog:
        """See Logs."""
        return self._logs[bus]

    async def envelope(self, bus: str, sequence_number: int) -> bytes | None:
        """See Logs. The archive has the events that are asked for."""
        return None


async def run_rounds(path: Path, logs: dict[str, MemoryLog], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Archive the logs twice; return the problems."""
    store = MemoryLogs(logs)
    return await run(Archives(str(path), 0, store, Acknowledgement()), store, monkeypatch)


async def run(archiving: Archives, store: MemoryLogs, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run two rounds; return the problems."""
    monkeypatch.setattr(archives, "ROUND_SECONDS", 0.01)
    with capture_logs() as lines:
        running = asyncio.create_task(archiving.run_forever(lambda: 99 * DAY_MS))
        async with asyncio.timeout(60):
            while store.rounds < 3:  # noqa: ASYNC110  # archives tell nobody of a round
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return [line["problem"] for line in lines if line["event"] == "archive.failed"]


async def test_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server creates the directory of an archive that is new, and says nothing about it."""
    log = await new_log()
    with capture_logs() as lines:
        joined = await join_archive(log, str(tmp_path / "new/archive"))
    assert [] == lines
    assert [] == await run_rounds(tmp_path / "new/archive", {BUS: log}, monkeypatch)
    assert (1, 21) == ((await joined.read(1, EVENTS))[0].sequence_number, (await log.read(1, EVENTS))[0].sequence_number)


async def test_archives_leave_no_events_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a round no decoded segment stays in memory: an event of the last segment is read from the storage again."""
    log = await new_log()
    envelope = (await log.read(20, 20))[0].envelope
    decoded: list[Manifest] = []

    def decode(manifest: Manifest, content: bytes) -> list[Record]:
        decoded.append(manifest)
        return decode_segment(manifest, content)

    monkeypatch.setattr(archive, "decode_segment", decode)
    store = MemoryLogs({BUS: log})
    archiving = Archives(str(tmp_path), 0, store, Acknowledgement())
    assert [] == await run(archiving, store, monkeypatch)
    decoded.clear()
    assert envelope == await archiving.envelope(BUS, 20)
    assert [20] == [manifest.last for manifest in decoded]


async def test_a_directory_that_is_not_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a log has been trimmed, a missing directory is not created: no other log is archived below a mount point either."""
    trimmed, whole = await new_log(), await new_log()
    await archive_log(trimmed, archive_in(tmp_path / BUS), 99 * DAY_MS, trims=True)
    with capture_logs() as lines:
        await join_archive(trimmed, str(tmp_path / "mount"))
    assert ["archive.unreachable"] == [line["event"] for line in lines]
    problems = await run_rounds(tmp_path / "mount", {"whole": whole, BUS: trimmed}, monkeypatch)
    assert {f"the directory {tmp_path}/mount of the archive does not exist; mount its file system, or create it"} == {*problems}
    assert EVENTS == len(await whole.read(1, EVENTS))
    assert not (tmp_path / "mount").exists()
