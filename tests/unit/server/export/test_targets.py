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
from gavel_server.export.targets import Cursor, ExportError, LineFile, ParquetDirectory, Target, read_cursor, write_cursor
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
    path, cursor = tmp_path / "export", NEW
    target = open_target(kind, path)
    target.resume(cursor, is_new=True)
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


@pytest.mark.parametrize("other", ["output", ""])
def test_a_file_is_not_emptied_by_a_foreign_cursor(tmp_path: Path, other: str) -> None:
    """A file that this export has not written is kept, also if the cursor is of another target or of a run killed at its start."""
    path = tmp_path / "export"
    path.write_text("{}\n", encoding="utf-8")
    for cursor in (NEW._replace(kind=other), NEW._replace(kind=other, sequence_number=9, chain_hash="ab" * 32)):
        with pytest.raises(ExportError, match="exists and the cursor is new"):
            LineFile("jsonl", path).resume(cursor, is_new=False)
    assert "{}\n" == path.read_text(encoding="utf-8")
    LineFile("jsonl", path).resume(NEW._replace(kind="file"), is_new=False)  # a run of its own that was killed before its first commit


def test_cursor(tmp_path: Path) -> None:
    """A cursor is read as it was written, and is that of one bus, incarnation and format."""
    path = tmp_path / "cursor"
    assert read_cursor(path, NEW) is None
    cursor = NEW._replace(sequence_number=7, chain_hash="ab" * 32, size_bytes=70)
    write_cursor(path, cursor)
    assert cursor == read_cursor(path, NEW)
    write_cursor(path, cursor._replace(kind="output"))
    with pytest.raises(ExportError, match="to a target of kind output, not file"):
        read_cursor(path, NEW._replace(kind="file"))
    for other in (NEW._replace(bus="other"), NEW._replace(format="ocsf"), NEW._replace(incarnation="1-1")):
        with pytest.raises(ExportError, match="belongs to an export of jsonl of bus default"):
            read_cursor(path, other)
    whole = path.read_text(encoding="utf-8")
    for damaged in ("{", "[]", whole.replace("abab", "xx", 1), whole.replace("70", "-1", 1), whole.replace("70", '"70"', 1)):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(ExportError, match="is damaged"):
            read_cursor(path, NEW)


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
