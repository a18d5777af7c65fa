"""Files of snapshots: whole or refused with a reason, and few."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from gavel.internal.v1.state_snapshot_pb2 import StateSnapshot
from gavel_rules.codec.fields import length_prefixed
from gavel_rules.state.snapshot.encoding import FORMAT_VERSION
from gavel_server.history.snapshot_files import SNAPSHOTS_MAX, SnapshotContent, SnapshotFiles, surplus
from gavel_server.history.snapshot_parts import SnapshotError
from gavel_server.log import Head
from gavel_server.process.fork import fork
from hypothesis import given
from hypothesis import strategies as st

from tests.support.driver import BUS
from tests.support.histories.story import play_story
from tests.support.state.snapshots import tables

STATE = play_story().state
LATER = FORMAT_VERSION + 1
THIS_BUILD = f"this build reads version {FORMAT_VERSION}"
HEAD = Head(STATE.head, b"\7" * 32)
OWNERS = StateSnapshot()
OWNERS.trace_owners.add(trace_id="t1", last_proposal_ms=5, producer_id="agent-1")


@pytest.fixture
def files(tmp_path: Path) -> SnapshotFiles:
    """A directory with one snapshot."""
    snapshots = SnapshotFiles(tmp_path, BUS)
    snapshots.write(content())
    return snapshots


def content() -> SnapshotContent:
    """Return the snapshot of the story."""
    return SnapshotContent(STATE, HEAD, "first", [OWNERS])


def problem(files: SnapshotFiles) -> str:
    """Return why the snapshot of the story cannot be used."""
    try:
        files.read_position(HEAD.sequence_number)
        files.read(HEAD.sequence_number)
    except SnapshotError as error:
        return str(error)
    raise AssertionError("the snapshot can be used")


def test_nobody_else_replaces_snapshots(tmp_path: Path) -> None:
    """The directory of the snapshots of all buses is this user's alone, whatever the umask: a server starts from what is in there."""
    before = os.umask(0)
    try:
        SnapshotFiles(tmp_path / "snapshots", BUS).write(content())
    finally:
        os.umask(before)
    assert {0o700} == {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()}


def test_a_snapshot_is_read_as_it_was_written(files: SnapshotFiles) -> None:
    """A file gives the position, the state and the further parts that it was written from, and only its owner may read it."""
    assert [HEAD.sequence_number] == files.numbers()
    position = files.read_position(HEAD.sequence_number)
    assert (BUS, *HEAD, "first") == (position.bus, position.sequence_number, position.chain_hash, position.incarnation)
    assert tables(STATE) == tables(files.read(HEAD.sequence_number))
    merged = StateSnapshot()
    for part in files.read_parts(HEAD.sequence_number):
        merged.MergeFrom(part)
    assert list(OWNERS.trace_owners) == list(merged.trace_owners)
    assert 32 == len(merged.state_sha256)
    path = files.path(HEAD.sequence_number)
    assert 0o600 == path.stat().st_mode & 0o777
    assert [path] == list(files.directory.iterdir())


def test_equal_states_give_equal_files(files: SnapshotFiles, tmp_path: Path) -> None:
    """The encoding is deterministic, file and all."""
    other = SnapshotFiles(tmp_path / "other", BUS)
    other.write(content())
    assert files.path(HEAD.sequence_number).read_bytes() == other.path(HEAD.sequence_number).read_bytes()


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_is_refused(files: SnapshotFiles, seed: int) -> None:
    """Any flipped bit, missing end or further byte is found before the state is used."""
    path = files.path(HEAD.sequence_number)
    whole = path.read_bytes()
    randomness = random.Random(seed)
    place = randomness.randrange(len(whole))
    flipped = bytes([whole[place] ^ 1 << randomness.randrange(8)])
    damaged = randomness.choice((whole[:place], whole[:place] + flipped + whole[place + 1 :], whole + b"\0"))
    path.write_bytes(damaged)
    assert problem(files)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda first: setattr(first, "format_version", LATER), f"it has format version {LATER}, and {THIS_BUILD}"),
        (
            lambda first: setattr(first, "bus", "other"),
            f"it belongs to event {HEAD.sequence_number} of bus other, not to event {HEAD.sequence_number} of bus {BUS}",
        ),
        (
            lambda first: setattr(first, "sequence_number", 1),
            f"it belongs to event 1 of bus {BUS}, not to event {HEAD.sequence_number} of bus {BUS}",
        ),
        (lambda first: setattr(first, "arbiter_version", 9), "it has arbiter version 9, and this build implements 2 and 3"),
    ],
)
def test_a_file_of_another_kind_is_refused(files: SnapshotFiles, change: Callable[[StateSnapshot], None], expected: str) -> None:
    """A newer format, another bus or number, and semantics that this build lacks are named."""
    path = files.path(HEAD.sequence_number)
    first = files.read_position(HEAD.sequence_number)
    encoded = length_prefixed(first.SerializeToString(deterministic=True))
    change(first)
    path.write_bytes(length_prefixed(first.SerializeToString()) + path.read_bytes()[len(encoded) :])
    assert expected == problem(files)


def test_a_missing_or_empty_file_is_refused(files: SnapshotFiles) -> None:
    """A file that somebody has removed or emptied is named as such."""
    path = files.path(HEAD.sequence_number)
    path.write_bytes(b"")
    assert f"it has format version 0, and {THIS_BUILD}" == problem(files)
    path.unlink()
    assert "it cannot be read: No such file or directory" == problem(files)
    assert [] == SnapshotFiles(files.directory, "none").numbers()


@pytest.mark.long
def test_a_write_that_is_killed_leaves_nothing_half(files: SnapshotFiles) -> None:
    """A process that is killed while it writes leaves the older snapshots as they are, and the next write removes its file."""
    number = HEAD.sequence_number

    class Killed(SnapshotContent):
        """A snapshot whose writer is killed after some parts."""

        def parts(self):  # type: ignore[no-untyped-def]
            """Yield some parts, then die."""
            for count, part in enumerate(super().parts()):
                yield part * 100_000
                if count == 2:
                    os.kill(os.getpid(), signal.SIGKILL)

    newer = Killed(STATE, Head(number + 1, b"\7" * 32), "first")
    _, status = os.waitpid(fork(lambda: files.write(newer)), 0)
    assert -signal.SIGKILL == os.waitstatus_to_exitcode(status)
    assert [number] == files.numbers()
    assert 2 == len(list(files.directory.iterdir()))
    files.write(content())
    assert [files.path(number)] == list(files.directory.iterdir())
    files.read(number)


def test_a_full_disk_leaves_the_older_snapshots(files: SnapshotFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails raises the error of the disk, and a child that writes ends with its number."""

    def refuse(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        files.write(content())
    _, status = os.waitpid(fork(lambda: files.write(content())), 0)
    assert 28 == os.waitstatus_to_exitcode(status)
    files.read(HEAD.sequence_number)


def test_few_snapshots_stay(files: SnapshotFiles) -> None:
    """Pruning removes files beyond the limit, and never the newest."""
    for number in range(1, 3 * SNAPSHOTS_MAX):
        files.path(HEAD.sequence_number + number).touch()
    files.prune()
    assert SNAPSHOTS_MAX == len(files.numbers())
    assert [HEAD.sequence_number + 14, HEAD.sequence_number + 13] == files.numbers()[:2]


@given(st.integers(1, 60), st.integers(1, 1_000))
def test_snapshots_stay_spread_over_the_log(count: int, every: int) -> None:
    """However long a log grows, the newest snapshots stay, and the others leave no gap of more than two thirds of the log."""
    snapshots: list[int] = []
    for number in range(every, (count + 1) * every, every):
        snapshots.append(number)
        for removed in surplus(snapshots):
            snapshots.remove(removed)
    assert [number for number in (count * every, (count - 1) * every) if number] == sorted(snapshots, reverse=True)[: min(count, 2)]
    assert len(snapshots) == min(count, SNAPSHOTS_MAX)
    places = [0, *snapshots]
    if count >= SNAPSHOTS_MAX:
        assert max(after - before for before, after in pairwise(places)) <= count * every * 2 / 3
