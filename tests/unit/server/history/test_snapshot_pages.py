"""The paged tables in a snapshot's file, read by key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gavel_rules.limits import TRACE_LAPSE_MS
from gavel_rules.state.packed_evidence import pack_evidence, unpack_outliving_result
from gavel_rules.state.snapshot.encoding import PAGED_ROWS_MAX
from gavel_server.history.snapshot_files import SnapshotContent, SnapshotFiles
from gavel_server.history.snapshot_pages import SnapshotPages
from gavel_server.history.snapshot_parts import SnapshotError
from gavel_server.log import Head
from gavel_server.process.fork import fork

from tests.support.driver import BUS, SUBJECT, Core

SUBJECTS = sorted(f"order/{number}-é" for number in range(3 * PAGED_ROWS_MAX + 1))


@pytest.fixture(scope="module")
def core() -> Core:
    """A bus with facts about many subjects."""
    core = Core()
    for subject in SUBJECTS:
        core.fact("order.status", f"status of {subject}", subject=subject)
    return core


def write(core: Core, data: Path, number: int) -> SnapshotFiles:
    """Write a snapshot of the bus under a number, and return the snapshots of the bus."""
    files = SnapshotFiles(data, BUS)
    files.write(SnapshotContent(core.state, Head(number, bytes(32)), "first"))
    return files


def packed(core: Core) -> dict[str, bytes]:
    """Return the packed evidence of the bus by subject."""
    rows = core.state.store.paged_evidence.rows()
    return {subject: keys if isinstance(keys, bytes) else pack_evidence(keys) for subject, keys in rows}


def test_each_subject_is_found(core: Core, tmp_path: Path) -> None:
    """Each subject has its evidence, in order, and subjects before, between and after them have none."""
    pages = write(core, tmp_path, 7).open_pages(7).pages.evidence
    expected = packed(core)
    assert expected == {subject: pages.find(subject) for subject in SUBJECTS}
    assert list(expected.items()) == list(pages.rows())
    absent = ["a/1", "order/0", "order/0-", f"{SUBJECTS[PAGED_ROWS_MAX - 1]}+", f"{SUBJECTS[-1]}+", "z/1"]
    assert [None] * len(absent) == [pages.find(subject) for subject in absent]
    assert 7 == pages.sequence_number


def test_each_table_has_its_pages(tmp_path: Path) -> None:
    """The readings of a lapsed trace are found by the event_id of their tool result, beside the evidence."""
    core = Core()
    evidence = core.tool_result()
    core.observe("order.score", 0.5, evidence=evidence)
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.fact("order.status", "delivered")
    pages = write(core, tmp_path, 7).open_pages(7).pages
    packed_result = pages.outliving_results.find(evidence.event_id)
    assert packed_result is not None
    assert [{f"{SUBJECT} order.score": "0.5"}, "", 1] == unpack_outliving_result(packed_result).plain()
    assert [(evidence.event_id, packed_result)] == list(pages.outliving_results.rows())
    assert [SUBJECT] == [subject for subject, _ in pages.evidence.rows()]


def test_a_removed_file_stays_readable(core: Core, tmp_path: Path) -> None:
    """After a snapshot has been removed, this process and a child that inherits the descriptor still read its evidence."""
    files = write(core, tmp_path, 7)
    opened = files.open_pages(7)
    files.path(7).unlink()
    expected = packed(core)[SUBJECTS[5]]
    assert expected == opened.pages.evidence.find(SUBJECTS[5])

    def compare() -> None:
        assert expected == opened.pages.evidence.find(SUBJECTS[5])

    _, status = os.waitpid(fork(compare, [opened.descriptor]), 0)
    assert 0 == os.waitstatus_to_exitcode(status)


def test_a_snapshot_of_pages_is_that_of_the_state(core: Core, tmp_path: Path) -> None:
    """A snapshot of a state whose evidence is in the file of an older one has the same bytes as one of a state that holds it all."""
    files = write(core, tmp_path / "whole", 7)
    whole = files.path(7).read_bytes()
    restored = Core()
    restored.state = files.read(7)
    assert {} == restored.state.store.evidence
    assert whole == write(restored, tmp_path / "paged", 7).path(7).read_bytes()


@pytest.mark.parametrize("change", ["truncated", "overwritten"])
def test_a_changed_file_is_an_error(core: Core, tmp_path: Path, change: str) -> None:
    """A file that somebody changes while it is open gives an error that names it, never other evidence."""
    files = write(core, tmp_path, 7)
    opened = files.open_pages(7)
    path = files.path(7)
    with path.open("r+b") as file:
        if change == "truncated":
            file.truncate(path.stat().st_size // 2)
        else:
            file.write(bytes(path.stat().st_size))
    with pytest.raises(SnapshotError, match=f"{path} has been changed or damaged"):
        opened.pages.evidence.find(SUBJECTS[-1])


def test_a_snapshot_without_evidence_has_none(tmp_path: Path) -> None:
    """The snapshot of a bus without evidence finds nothing; a file that is not there cannot be opened."""
    pages = write(Core(), tmp_path, 1).open_pages(1).pages.evidence
    assert (None, []) == (pages.find("order/1"), list(pages.rows()))
    with pytest.raises(SnapshotError, match="it cannot be read: No such file or directory"):
        SnapshotPages(tmp_path / "absent", 1)
