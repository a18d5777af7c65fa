"""Targets of exports: what a run that was killed leaves is removed, so that each event is there once."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from gavel.v1 import common_pb2, decision_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.export.targets import (
    STANDARD_OUTPUT,
    Cursor,
    ExportError,
    LineFile,
    ParquetDirectory,
    StandardOutput,
    Target,
    lock_cursor,
    read_cursor,
    write_cursor,
)
from google.protobuf.timestamp_pb2 import Timestamp

NEW = Cursor("default", "jsonl", "0-0")


def event(number: int) -> Envelope:
    """Return a decision."""
    return Envelope(
        sequence_number=number,
        event_id=f"event-{number}",
        event_name="DecisionRejected",
        event_category=common_pb2.EVENT_CATEGORY_DECISION_EVENT,
        producer=Producer(type=common_pb2.PRODUCER_TYPE_ARBITRATOR, id="gavel"),
        recorded_at=Timestamp(seconds=1_700_000_000, nanos=5_000_000),
        subject="order/ö",
        bus="default",
        chain_hash=b"h" * 32,
        decision=Decision(outcome=decision_pb2.OUTCOME_REJECTED, reason_code="TOO_LARGE", action_type="refund.create"),
    )


def numbers(path: Path) -> list[int]:
    """Return the sequence numbers in a file of lines or a directory of Parquet files."""
    if path.is_dir():
        return [number for file in sorted(path.glob("*.parquet")) for number in pq.read_table(file)["sequence_number"].to_pylist()]
    return [int(json.loads(one)["sequence_number"]) for one in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(params=["lines", "parquet"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of a target."""
    return str(request.param)


def open_target(kind: str, path: Path) -> Target:
    """Return a target that is not resumed."""
    return LineFile("jsonl", path) if kind == "lines" else ParquetDirectory(path)


def test_killed_at_any_moment(kind: str, tmp_path: Path) -> None:
    """Whether a run ends before or after its commit, or before its cursor, the next one leaves each event once."""
    path = tmp_path / "export"
    target = open_target(kind, path)
    cursor = NEW._replace(target=target.name)
    target.resume(cursor, is_new=True)
    target.add(event(1))
    target.commit()  # and is killed before its first cursor
    target = open_target(kind, path)
    target.resume(cursor, is_new=False)
    for number in (1, 2, 3):
        target.add(event(number))
    cursor = cursor._replace(sequence_number=3, size_bytes=target.commit())
    for number in (4, 5):
        target.add(event(number))
    target.commit()  # and is killed before the cursor is written
    target = open_target(kind, path)
    target.resume(cursor, is_new=False)
    target.add(event(4))  # and is killed before a commit
    target = open_target(kind, path)
    target.resume(cursor, is_new=False)
    for number in (4, 5, 6):
        target.add(event(number))
    target.commit()
    assert [1, 2, 3, 4, 5, 6] == numbers(path)


def test_foreign_target(kind: str, tmp_path: Path) -> None:
    """A new export never deletes or continues what another one wrote."""
    path = tmp_path / "export"
    target = open_target(kind, path)
    target.resume(NEW, is_new=True)
    target.add(event(1))
    target.commit()
    with pytest.raises(ExportError, match="the cursor is new"):
        open_target(kind, path).resume(NEW, is_new=True)
    assert [1] == numbers(path)


def test_truncated_file(tmp_path: Path) -> None:
    """A file that is shorter than its cursor says is not continued."""
    (tmp_path / "export").write_text("{}\n", encoding="utf-8")
    with pytest.raises(ExportError, match="has 3 bytes, the cursor expects 9"):
        LineFile("jsonl", tmp_path / "export").resume(NEW._replace(sequence_number=1, size_bytes=9), is_new=False)


def test_a_cursor_belongs_to_one_target(kind: str, tmp_path: Path) -> None:
    """The cursor of one target is refused for every other one, also if nothing has been exported; a link leads to the same target."""
    path, link = tmp_path / "cursor", tmp_path / "link"
    own, others = open_target(kind, tmp_path / "own").name, (open_target(kind, tmp_path / "other").name, STANDARD_OUTPUT)
    link.symlink_to(own)
    assert own == open_target(kind, link).name
    for cursor in (NEW._replace(target=own), NEW._replace(target=own, sequence_number=9, chain_hash="ab" * 32, size_bytes=3)):
        write_cursor(path, cursor)
        assert cursor == read_cursor(path, NEW._replace(target=own))
        for other in others:
            with pytest.raises(ExportError, match=f"to {own}, not to {other}; .* If you have moved the export"):
                read_cursor(path, NEW._replace(target=other))
    write_cursor(path, NEW._replace(target=STANDARD_OUTPUT))
    with pytest.raises(ExportError, match=f"to {STANDARD_OUTPUT}, not to {own}"):
        read_cursor(path, NEW._replace(target=own))


def test_a_cursor_without_a_target_removes_nothing(kind: str, tmp_path: Path) -> None:
    """With a cursor of an earlier build, which names no target, nothing is removed until the user says that it is of this one."""
    path, cursor_path = tmp_path / "export", tmp_path / "cursor"
    target = open_target(kind, path)
    target.resume(NEW, is_new=True)
    sizes = []
    for number in (1, 2):
        target.add(event(number))
        sizes.append(target.commit())
    exported = NEW._replace(sequence_number=1, chain_hash="ab" * 32, size_bytes=sizes[0])
    for cursor in (NEW, exported):
        fields = {**cursor._asdict(), "kind": "file"}
        del fields["target"]
        cursor_path.write_text(json.dumps(fields), encoding="utf-8")
        assert cursor == read_cursor(cursor_path, NEW._replace(target=target.name))
        with pytest.raises(ExportError, match="has more events than the cursor") as refusal:
            open_target(kind, path).resume(cursor, is_new=False)
        assert f'"target": "{target.name}"' in str(refusal.value)
    assert [1, 2] == numbers(path)
    open_target(kind, path).resume(exported._replace(target=target.name), is_new=False)
    assert [1] == numbers(path)
    open_target(kind, path).resume(exported, is_new=False)
    assert [1] == numbers(path)


def test_standard_output_and_files_of_earlier_cursors(tmp_path: Path) -> None:
    """A cursor that names no target, and whose size shows that it is of a file, is refused for standard output, and vice versa."""
    of_file, of_output = (NEW._replace(sequence_number=9, chain_hash="ab" * 32, size_bytes=size) for size in (3, 0))
    with pytest.raises(ExportError, match="to a file; name the file with --to"):
        StandardOutput("jsonl").resume(of_file, is_new=False)
    with pytest.raises(ExportError, match="to standard output; export to another file"):
        LineFile("jsonl", tmp_path / "export").resume(of_output, is_new=False)
    StandardOutput("jsonl").resume(of_output, is_new=False)
    assert [] == [*tmp_path.iterdir()]


def test_cursor(tmp_path: Path) -> None:
    """A cursor is read as it was written, and is that of one bus, incarnation and format; one of another form is damaged."""
    path = tmp_path / "cursor"
    assert read_cursor(path, NEW) is None
    cursor = NEW._replace(sequence_number=7, chain_hash="ab" * 32, size_bytes=70)
    write_cursor(path, cursor)
    assert cursor == read_cursor(path, NEW)
    for other in (NEW._replace(bus="other"), NEW._replace(format="ocsf"), NEW._replace(incarnation="1-1")):
        with pytest.raises(ExportError, match="belongs to an export of jsonl of bus default"):
            read_cursor(path, other)
    whole = path.read_text(encoding="utf-8")
    for damaged in (
        "{",
        "[]",
        "[1]",
        "7",
        '"ab"',
        whole.replace("abab", "xx", 1),
        whole.replace("70", "-1", 1),
        whole.replace("70", '"70"', 1),
    ):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(ExportError, match="is damaged"):
            read_cursor(path, NEW)


def test_a_cursor_has_one_user(tmp_path: Path) -> None:
    """A cursor is locked until its user is done, also while it is replaced; another cursor is free."""
    path = tmp_path / "cursor"
    with lock_cursor(path):
        write_cursor(path, NEW)
        with pytest.raises(ExportError, match="another export uses this cursor"), lock_cursor(path):
            raise AssertionError("two users of one cursor")
        with lock_cursor(tmp_path / "other"):
            pass
    with lock_cursor(path):
        assert NEW == read_cursor(path, NEW)


def test_parquet_columns(tmp_path: Path) -> None:
    """A row has typed columns: UTC times, the outcome, the chain hash as bytes, and the whole envelope."""
    target = ParquetDirectory(tmp_path)
    target.resume(NEW, is_new=True)
    target.add(event(9))
    target.commit()
    (row,) = pq.read_table(tmp_path / "events-0000000000000000009-0000000000000000009.parquet").to_pylist()
    assert "2023-11-14T22:13:20.005000+00:00" == row["recorded_at"].isoformat()
    expected = ("DECISION_EVENT", "ARBITRATOR", "REJECTED", "TOO_LARGE", None, b"h" * 32, "order/ö")
    assert expected == tuple(
        row[name] for name in ("event_category", "producer_type", "outcome", "reason_code", "policy_id", "chain_hash", "subject")
    )
    assert "TOO_LARGE" == json.loads(row["envelope"])["decision"]["reason_code"]
