"""Replays on several processes prove what one process proves, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from gavel.v1 import replay_service_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.replay_service_pb2 import ReplayVerdict
from gavel_rules.redis_keys import head_key, log_key
from gavel_rules.state.state import State
from gavel_server.history import parallel
from gavel_server.history.parallel import verify_in_parallel
from gavel_server.history.replay import verify
from gavel_server.history.replay_times import ReplayTimes
from gavel_server.history.segments import Segment
from gavel_server.history.snapshot_files import SnapshotContent, SnapshotFiles
from gavel_server.log import Entry, Head
from gavel_server.log.protocol import empty_head
from gavel_server.log.redis.log import RedisLog
from redis.asyncio import Redis
from structlog.testing import capture_logs

from tests.load.finished_work import write_log
from tests.support.counted_plays import CUSTOMERS, WITH, WITHOUT, play
from tests.support.driver import Core
from tests.support.entries import rechain
from tests.support.state.snapshots import forge

# An order has nine events after the three that open the bus. The second snapshot is between an order's facts and the proposal that cites
# them.
SNAPSHOTS = (3 + 9 * 20, 3 + 9 * 40 + 3, 3 + 9 * 60)


@pytest.fixture
async def log(redis_url: str, bus: str) -> RedisLog:
    """A log of finished work."""
    assert [work async for work in write_log(redis_url, bus, 900, 1.0)]
    return await RedisLog.connect(redis_url, bus)


async def write_snapshots(log: RedisLog, files: SnapshotFiles, numbers: Sequence[int] = SNAPSHOTS) -> None:
    """Write snapshots as a server does."""
    state = State(log.bus)
    for record in await log.read(1, numbers[-1], numbers[-1]):
        state.apply(Envelope.FromString(record.envelope)).pack(record.envelope)
        state.commit()
        if record.sequence_number in numbers:
            files.write(SnapshotContent(state, Head(record.sequence_number, record.chain_hash), "first"))


async def verdict_of(log: RedisLog, data: Path) -> tuple[ReplayVerdict, list[int]]:
    """Return the verdict of two processes, and the progress."""
    responses = [response async for response in verify_in_parallel(log, log.url, data, 2)]
    return responses[-1].verdict, [response.progress.sequence_number for response in responses[:-1]]


@pytest.mark.long
async def test_processes_prove_a_log_together(log: RedisLog, tmp_path: Path) -> None:
    """The verdict of two processes, with snapshots and without, is that of one."""
    files = SnapshotFiles(tmp_path, log.bus)
    await write_snapshots(log, files)
    *_, alone = [response async for response in verify(log, snapshots=files)]
    together, progress = await verdict_of(log, tmp_path)
    assert alone.verdict == together
    assert (replay_service_pb2.REPLAY_STATUS_PROVED, len(SNAPSHOTS)) == (together.status, together.snapshots)
    assert (0, together.events) == (progress[0], progress[-1])
    plain, _ = await verdict_of(log, tmp_path / "none")
    assert (True, 0, together.decisions) == (plain.proved, plain.snapshots, plain.decisions)
    await log.close()


@pytest.mark.long
async def test_a_trimmed_log(log: RedisLog, tmp_path: Path) -> None:
    """A log whose first events are in an archive gets the verdict of one process: its first event is missing."""
    files = SnapshotFiles(tmp_path, log.bus)
    await write_snapshots(log, files)
    await log.trim(SNAPSHOTS[0])
    together, _ = await verdict_of(log, tmp_path)
    *_, alone = [response async for response in verify(log, snapshots=files)]
    assert alone.verdict == together
    assert (replay_service_pb2.REPLAY_STATUS_DAMAGED, 1) == (together.status, together.divergence.sequence_number)
    await log.close()


@pytest.mark.long
@pytest.mark.parametrize("falls_back", [False, True])
async def test_the_time_is_that_of_the_last_try(log: RedisLog, tmp_path: Path, falls_back: bool) -> None:
    """The time of a replay begins before its first progress, and anew when one process replays the log in one piece."""
    files = SnapshotFiles(tmp_path, log.bus)
    await write_snapshots(log, files)
    if falls_back:
        await forge_log(log, SNAPSHOTS[1] + 2)
    times, first_at = ReplayTimes(), 0.0
    async for _ in verify_in_parallel(log, log.url, tmp_path, 2, times=times):
        first_at = first_at or perf_counter()
    assert falls_back == (times.began > first_at)
    await log.close()


async def forge_log(log: RedisLog, number: int) -> None:
    """Replace a decision of the log by one with another reason, and chain all events after it anew."""
    envelopes = [Envelope.FromString(record.envelope) for record in await log.read(1, 10_000, 10_000)]
    envelopes[number - 1].decision.reason_code = "FORGED"
    async with Redis.from_url(log.url) as connection:
        await connection.delete(log_key(log.bus), head_key(log.bus))
    await append(log, envelopes)


async def append(log: RedisLog, envelopes: Sequence[Envelope]) -> None:
    """Append events to an empty log, with a chain."""
    records = rechain(log.bus, envelopes)
    entries = [Entry(one.sequence_number, one.envelope, one.chain_hash, f"entry-{one.sequence_number}", "") for one in records]
    await log.append(empty_head(log.bus), entries, int(envelopes[-1].recorded_at.ToMilliseconds()), ())


@pytest.mark.long
@pytest.mark.parametrize("damage", ["event", "snapshot"])
async def test_a_refusal_is_that_of_one_process(log: RedisLog, tmp_path: Path, damage: str) -> None:
    """If a part cannot be proved, the log says why, and the verdict is that of a replay in one piece, which names the first divergence."""
    files = SnapshotFiles(tmp_path, log.bus)
    await write_snapshots(log, files)
    number = SNAPSHOTS[1]
    if damage == "snapshot":
        state = files.read(number)
        state.store.conflict_keys["order/1"] = "another decision"
        files.write(SnapshotContent(state, Head(number, files.read_position(number).chain_hash), "first"))
        kind = "snapshot-mismatch"
    else:
        number, kind = number + 2, "field-mismatch"
        await forge_log(log, number)
    with capture_logs() as lines:
        together, _ = await verdict_of(log, tmp_path)
    *_, alone = [response async for response in verify(log, snapshots=files)]
    assert alone.verdict == together
    (line,) = [line for line in lines if line["event"] == "replay.in_one_piece"]
    assert f"event {number}" in line["problem"]
    assert (replay_service_pb2.REPLAY_STATUS_DIVERGED, kind) == (together.status, together.divergence.kind)
    assert number == together.divergence.sequence_number
    await log.close()


@pytest.mark.long
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_forged_state_proves_nothing(log: RedisLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    """No events are proved from a snapshot whose tables do not have the hash that it states, also if it changes after the start."""
    files = SnapshotFiles(tmp_path, log.bus)
    await write_snapshots(log, files)
    number = SNAPSHOTS[-1]

    def forge_snapshot() -> None:
        forge(files, number, lambda store: store.conflict_keys.update({"order/1": "another decision"}))

    if is_late:
        find_segments = parallel._segments

        async def find_and_forge(*arguments: Any) -> list[Segment]:
            segments = await find_segments(*arguments)
            forge_snapshot()
            return segments

        monkeypatch.setattr(parallel, "_segments", find_and_forge)
    else:
        forge_snapshot()
    together, _ = await verdict_of(log, tmp_path)
    assert (replay_service_pb2.REPLAY_STATUS_DIVERGED, "snapshot-mismatch") == (together.status, together.divergence.kind)
    assert number == together.divergence.sequence_number
    await log.close()


# Only events before the opening of the counters count for this customer, so that no decision reads a false past.
PAST_CUSTOMER = "zoe"


def counted_events(bus: str) -> list[Envelope]:
    """Return the events of a bus whose counters are opened and filled after some proposals, before others."""
    core = Core(WITHOUT, bus=bus)
    for number, customer in enumerate((*CUSTOMERS, PAST_CUSTOMER) * 2):
        play(core, ("propose", customer, 7.25), number)
    core.activate(WITH[0])
    for number in range(6, 12):
        play(core, ("propose", CUSTOMERS[number % 2], 30.0), number)
    return core.events


@pytest.mark.long
@pytest.mark.parametrize("is_forged", [False, True])
async def test_counters_that_span_segments(
    redis_url: str, bus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_forged: bool
) -> None:
    """Counters that one segment opens and others fill and read are proved by two processes, and a false past of them is found."""
    events = counted_events(bus)
    opened = next(event.sequence_number for event in events if event.event_name == "CountersOpened")
    fills = [event for event in events if event.event_name == "CounterFilled"]
    if is_forged:
        entries = [entry for event in fills for entry in event.fact.counter_filled.entries]
        next(entry for entry in entries if entry.group == PAST_CUSTOMER).group += "x"
    log = await RedisLog.connect(redis_url, bus)
    await append(log, events)
    files = SnapshotFiles(tmp_path, bus)
    await write_snapshots(log, files, (opened - 1, opened + len(fills) // 2, len(events) - 5))
    *_, alone = [response async for response in verify(log, snapshots=files)]
    assert is_forged == (alone.verdict.divergence.kind == "counter-mismatch")
    if not is_forged:
        monkeypatch.setattr(parallel, "verify", None)  # one process alone has nothing to prove again
    together, _ = await verdict_of(log, tmp_path)
    assert alone.verdict == together
    await log.close()
