"""Replays that pass snapshots: the log must give the state that each of them holds."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from gavel.internal.v1.state_snapshot_pb2 import StateSnapshot
from gavel.v1 import replay_service_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.replay_service_pb2 import ReplayVerdict
from gavel_rules.codec.fields import length_prefixed
from gavel_rules.state.state import State
from gavel_rules.state.store import Store
from gavel_server.history.replay import verify
from gavel_server.history.snapshot_files import SnapshotContent, SnapshotFiles
from gavel_server.history.snapshot_pages import is_paged
from gavel_server.history.snapshot_parts import part_places
from gavel_server.log import Entry, Head
from gavel_server.log.memory import MemoryLog
from structlog.testing import capture_logs

from tests.support.driver import BUS, START_MS
from tests.support.histories.story import play_story
from tests.support.state.snapshots import forge

CORE = play_story()


async def story_log() -> MemoryLog:
    """Return the log of the story."""
    log = MemoryLog(BUS, lambda: START_MS)
    entries = [Entry(one.sequence_number, one.envelope, one.chain_hash, str(one.sequence_number), "") for one in CORE.records]
    await log.append(await log.head(), entries, START_MS, ())
    return log


def commit_ends() -> list[int]:
    """Return the numbers of the last events of commits, at which a server may take a snapshot."""
    times = [event.recorded_at.ToMilliseconds() for event in CORE.events]
    return [number for number in range(1, len(times)) if times[number] != times[number - 1]] + [len(times)]


def write_snapshots(files: SnapshotFiles, *numbers: int) -> None:
    """Write snapshots as a server does."""
    state = State(BUS)
    for record in CORE.records:
        state.apply(Envelope.FromString(record.envelope)).pack(record.envelope)
        state.commit()
        if record.sequence_number in numbers:
            files.write(SnapshotContent(state, Head(record.sequence_number, record.chain_hash), "first"))


async def verdict_with(files: SnapshotFiles | None, to: int = 0) -> tuple[ReplayVerdict, list[str]]:
    """Return the verdict of a replay, and the reasons why it left out snapshots."""
    with capture_logs() as lines:
        *_, last = [response async for response in verify(await story_log(), snapshots=files, to_sequence_number=to)]
    return last.verdict, [line["problem"] for line in lines if line["event"] == "snapshot.refused"]


async def test_snapshots_are_confirmed(tmp_path: Path) -> None:
    """Each snapshot on the way holds the recomputed state, and the verdict is otherwise that without snapshots."""
    files = SnapshotFiles(tmp_path, BUS)
    ends = commit_ends()
    chosen = {ends[len(ends) // 4], ends[len(ends) // 2], ends[-1]}
    write_snapshots(files, *chosen)
    verdict, refused = await verdict_with(files)
    assert (replay_service_pb2.REPLAY_STATUS_PROVED, 3, []) == (verdict.status, verdict.snapshots, refused)
    assert verdict.message.endswith("recomputed equal, 3 snapshots confirmed")
    plain, _ = await verdict_with(None)
    verdict.snapshots, verdict.message = 0, plain.message
    assert plain == verdict
    # A replay that ends before compares those that it passes.
    part, _ = await verdict_with(files, ends[len(ends) // 2])
    assert 2 == part.snapshots


@pytest.mark.parametrize("place", ["middle", "head"])
async def test_another_state_diverges(tmp_path: Path, place: str) -> None:
    """A snapshot that the log confirms and that holds another state is a divergence at its event."""
    files = SnapshotFiles(tmp_path, BUS)
    number = commit_ends()[-1 if place == "head" else len(commit_ends()) // 2]
    write_snapshots(files, number)
    state = files.read(number)
    state.store.conflict_keys["order/1"] = "another decision"
    files.write(SnapshotContent(state, Head(number, CORE.records[number - 1].chain_hash), "first"))
    verdict, refused = await verdict_with(files)
    assert (replay_service_pb2.REPLAY_STATUS_DIVERGED, []) == (verdict.status, refused)
    assert ("snapshot-mismatch", number) == (verdict.divergence.kind, verdict.divergence.sequence_number)


@pytest.mark.parametrize("table", ["conflict_keys", "arbiter_version"])
async def test_a_forged_state_diverges(tmp_path: Path, table: str) -> None:
    """A snapshot whose state was changed is a divergence at its event, although its file states the hash of the right tables."""
    files = SnapshotFiles(tmp_path, BUS)
    number = commit_ends()[len(commit_ends()) // 2]
    write_snapshots(files, number)
    assert 1 == (await verdict_with(files))[0].snapshots

    def change(store: Store) -> None:
        if table == "conflict_keys":
            store.conflict_keys["order/1"] = "another decision"
        else:
            store.arbiter_version = 2

    forge(files, number, change)
    verdict, refused = await verdict_with(files)
    assert (replay_service_pb2.REPLAY_STATUS_DIVERGED, []) == (verdict.status, refused)
    assert ("snapshot-mismatch", number) == (verdict.divergence.kind, verdict.divergence.sequence_number)


async def test_a_snapshot_with_a_malformed_row_is_left_out(tmp_path: Path) -> None:
    """A paged row that cannot be parsed, in a file with the right hash, makes that snapshot unusable and not the replay."""
    files = SnapshotFiles(tmp_path, BUS)
    number = commit_ends()[-1]
    write_snapshots(files, number)
    path = files.path(number)
    content = path.read_bytes()
    with path.open("rb") as file:
        *parts, _ = [content[place : place + size] for place, size in part_places(file)]
    paged = next(index for index, part in enumerate(parts) if is_paged(part))
    parts[paged] += b"\xff"
    body = b"".join(map(length_prefixed, parts))
    path.write_bytes(body + length_prefixed(StateSnapshot(sha256=hashlib.sha256(body).digest()).SerializeToString()))
    verdict, refused = await verdict_with(files)
    assert (replay_service_pb2.REPLAY_STATUS_PROVED, 0, 1) == (verdict.status, verdict.snapshots, len(refused))
    assert "has a malformed row" in refused[0]


async def test_unusable_snapshots_are_left_out(tmp_path: Path) -> None:
    """A damaged snapshot and one of another log are named, and do not keep the log from being proved."""
    files = SnapshotFiles(tmp_path, BUS)
    first, second = commit_ends()[1], commit_ends()[2]
    write_snapshots(files, first, second)
    files.path(first).write_bytes(files.path(first).read_bytes()[:-1])
    files.write(SnapshotContent(files.read(second), Head(second, bytes(32)), "first"))
    verdict, refused = await verdict_with(files)
    assert (replay_service_pb2.REPLAY_STATUS_PROVED, 0) == (verdict.status, verdict.snapshots)
    assert [
        f"the log has another event {second}: the snapshot is of another log",
        "it is damaged: its bytes do not match its hash",
    ] == refused
