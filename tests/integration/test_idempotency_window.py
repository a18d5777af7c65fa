"""The idempotency window of a bus is the one it was opened with, whatever a later server's setting is."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.archive.archive import Archive
from gavel_server.archive.backups import read_backup, restore_log, write_backup
from gavel_server.archive.storage import Directory
from gavel_server.bootstrap.buses import complete_opening, open_sequencer
from gavel_server.config import load
from gavel_server.log import Entry, chain, empty_head
from gavel_server.log.memory import MemoryLog
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.redis.logs import RedisLogs
from gavel_server.log.stores import connect_log
from gavel_server.process.clock import GuardedClock
from google.protobuf.timestamp_pb2 import Timestamp

DAY_MS = 24 * 60 * 60 * 1000


async def test_the_bus_keeps_its_own_idempotency_window(redis_url: str, bus: str) -> None:
    """A server with another setting applies the bus's window; a shorter one would accept repeated ids that replay refuses."""
    logs = RedisLogs(redis_url)
    for setting in (7, 1, 30):
        settings = load(options={"idempotency_window_days": setting})
        sequencer = await open_sequencer(settings, logs, bus, GuardedClock())
        await complete_opening(sequencer)
        log = sequencer.log
        assert isinstance(log, RedisLog)
        assert 7 * DAY_MS == log.idempotency_window_ms
        await sequencer.stop()
    await logs.close()


@pytest.mark.parametrize("store", ["redis_url", "postgresql_url"])
async def test_a_restored_bus_keeps_its_idempotency_window(request: pytest.FixtureRequest, store: str, bus: str, tmp_path: Path) -> None:
    """A restored log knows the event_ids of the bus's own window, so that no repeated request is decided again."""
    now_ms = 1_700_000_000_000
    origin = MemoryLog(bus, clock=lambda: now_ms)
    entries: list[Entry] = []
    chain_hash = empty_head(bus).chain_hash
    for number, age_days in enumerate((29, 20, 0), 1):
        recorded_at = Timestamp(seconds=(now_ms - age_days * DAY_MS) // 1000)
        envelope = Envelope(sequence_number=number, event_id=f"{bus}-{number}", bus=bus, recorded_at=recorded_at)
        if number == 1:
            envelope.fact.bus_opened.idempotency_window_ms = 30 * DAY_MS
        content = envelope.SerializeToString()
        chain_hash = chain(chain_hash, content)
        entries.append(Entry(number, content, chain_hash, envelope.event_id, ""))
    await origin.append(empty_head(bus), entries, now_ms, [])
    archive = Archive(Directory(tmp_path), bus)
    await write_backup(origin, archive, now_ms)
    restored = await connect_log(request.getfixturevalue(store), bus)
    await restore_log(restored, archive, await read_backup(archive), lambda number: None)
    assert 30 * DAY_MS == restored.idempotency_window_ms
    assert {entry.event_id for entry in entries} == set(await restored.find([entry.event_id for entry in entries], now_ms))
    await restored.close()
