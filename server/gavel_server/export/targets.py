"""The targets of an export (a file of lines, standard output, a directory of Parquet files), and its cursor.

A target takes events, and `commit` makes them durable. The cursor is written after that; a run that resumes first removes the events after
the cursor from the target. So a target that is a file or a directory has every event once, whenever a run was killed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from gavel.v1.common_pb2 import EventCategory, ProducerType
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.timestamps import milliseconds

from gavel_server.errors import GavelServerError
from gavel_server.export.formats import jsonl, line
from gavel_server.process.private_files import sync_directory

_PARQUET_NAME: Final = re.compile(r"events-(\d{19})-(\d{19})\.parquet")


class ExportError(GavelServerError):
    """An export cannot go on; the message says why and what to do."""


class Cursor(NamedTuple):
    """How far an export has come: its bus and format, the bus's incarnation, the last event, and the size of the file in bytes.

    `kind` is that of the target; "" in cursors of earlier builds. `chain_hash` is that of the last event, in hexadecimal; empty if nothing
    has been exported.
    """

    bus: str
    format: str
    incarnation: str
    kind: str = ""
    sequence_number: int = 0
    chain_hash: str = ""
    size_bytes: int = 0


class Target(Protocol):
    """Takes events in their order. `kind` says what it is."""

    kind: str

    def resume(self, cursor: Cursor, *, is_new: bool) -> None:
        """Remove the events after the cursor. If the cursor is new, the target must be empty. Raises ExportError, OSError."""

    def add(self, envelope: Envelope) -> None:
        """Take an event."""

    def commit(self) -> int:
        """Sync the added events to disk; return the size of the file, 0 if there is none. Raises OSError."""


class LineFile:
    """A file of lines."""

    kind = "file"

    def __init__(self, format_name: str, path: Path) -> None:
        self._format = format_name
        self._path = path
        self._file: BinaryIO | None = None

    def resume(self, cursor: Cursor, *, is_new: bool) -> None:
        """See Target."""
        self._file = self._path.open("ab")
        size = self._file.tell()
        if size < cursor.size_bytes:
            raise ExportError(f"{self._path} has {size} bytes, the cursor expects {cursor.size_bytes}; export to another file and cursor")
        if size and (is_new or (not cursor.size_bytes and cursor.kind != self.kind)):
            raise ExportError(f"{self._path} exists and the cursor is new; export to another file, or give the cursor of this one")
        self._file.truncate(cursor.size_bytes)

    def add(self, envelope: Envelope) -> None:
        """See Target."""
        assert self._file is not None  # noqa: S101  # after `resume`
        self._file.write(line(self._format, envelope))

    def commit(self) -> int:
        """See Target."""
        assert self._file is not None  # noqa: S101
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()


class StandardOutput:
    """Lines on standard output. A run that was killed may repeat the events since the cursor."""

    kind = "output"

    def __init__(self, format_name: str) -> None:
        self._format = format_name

    def resume(self, cursor: Cursor, *, is_new: bool) -> None:
        """See Target."""

    def add(self, envelope: Envelope) -> None:
        """See Target."""
        sys.stdout.buffer.write(line(self._format, envelope))

    def commit(self) -> int:
        """See Target."""
        sys.stdout.buffer.flush()
        return 0


class ParquetDirectory:
    """A directory of Parquet files, one a commit, named by their first and last event."""

    kind = "directory"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rows: list[dict[str, Any]] = []

    def resume(self, cursor: Cursor, *, is_new: bool) -> None:
        """See Target."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in self._directory.iterdir():
            match = _PARQUET_NAME.fullmatch(path.name)
            if match is not None and (is_new or int(match[2]) > cursor.sequence_number):
                if is_new:
                    message = f"{self._directory} holds an export and the cursor is new; export to another directory, or give its cursor"
                    raise ExportError(message)
                path.unlink()

    def add(self, envelope: Envelope) -> None:
        """See Target."""
        self._rows.append(parquet_row(envelope))

    def commit(self) -> int:
        """See Target."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._rows:
            first, last = (self._rows[index]["sequence_number"] for index in (0, -1))
            path = self._directory / f"events-{first:019}-{last:019}.parquet"
            temporary = path.with_suffix(".new")
            pq.write_table(pa.Table.from_pylist(self._rows, schema=parquet_schema()), temporary, compression="zstd")
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_directory(self._directory)
            self._rows = []
        return 0


def parquet_schema() -> Any:
    """Return the columns of Parquet files."""
    import pyarrow as pa

    moment = pa.timestamp("ms", tz="UTC")
    texts = ("event_id", "event_category", "event_name", "trace_id", "causation_id", "producer_type", "producer_id", "subject", "bus")
    decided = ("action_type", "outcome", "reason_code", "policy_id", "rule_id")
    return pa.schema(
        [
            pa.field("sequence_number", pa.int64(), nullable=False),
            pa.field("recorded_at", moment, nullable=False),
            pa.field("occurred_at", moment, nullable=False),
            *(pa.field(name, pa.string(), nullable=False) for name in texts),
            *(pa.field(name, pa.string()) for name in decided),
            pa.field("chain_hash", pa.binary(32), nullable=False),
            pa.field("envelope", pa.string(), nullable=False),
        ]
    )


def parquet_row(envelope: Envelope) -> dict[str, Any]:
    """Return an event as a row: its header, the decision, and the whole envelope as JSON. An empty text of a decision is null."""
    decision = envelope.decision
    return {
        "sequence_number": envelope.sequence_number,
        "recorded_at": milliseconds(envelope.recorded_at),
        "occurred_at": milliseconds(envelope.occurred_at),
        "event_id": envelope.event_id,
        "event_category": EventCategory.Name(envelope.event_category).removeprefix("EVENT_CATEGORY_"),
        "event_name": envelope.event_name,
        "trace_id": envelope.trace_id,
        "causation_id": envelope.causation_id,
        "producer_type": ProducerType.Name(envelope.producer.type).removeprefix("PRODUCER_TYPE_"),
        "producer_id": envelope.producer.id,
        "subject": envelope.subject,
        "bus": envelope.bus,
        "action_type": envelope.proposal.action_type or decision.action_type or None,
        "outcome": Outcome.Name(decision.outcome).removeprefix("OUTCOME_") if decision.outcome else None,
        "reason_code": decision.reason_code or None,
        "policy_id": decision.policy_id or None,
        "rule_id": decision.rule_id or None,
        "chain_hash": envelope.chain_hash,
        "envelope": json.dumps(jsonl(envelope), ensure_ascii=False, separators=(",", ":")),
    }


def read_cursor(path: Path, new: Cursor) -> Cursor | None:
    """Return the cursor of a file; None if there is no file. Raises ExportError if it is damaged, or not of the same export as `new`."""
    try:
        cursor = Cursor(**json.loads(path.read_bytes()))
        bytes.fromhex(cursor.chain_hash)
        if min(cursor.sequence_number, cursor.size_bytes) < 0:
            raise ValueError("a number is negative")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ExportError(f"the cursor {path} is damaged; export to another file and cursor: {error}") from error
    if cursor[:3] != new[:3]:
        what = f"{cursor.format} of bus {cursor.bus} with incarnation {cursor.incarnation}"
        raise ExportError(f"the cursor {path} belongs to an export of {what}; give another cursor to export {new.format} of bus {new.bus}")
    if cursor.kind not in ("", new.kind):
        raise ExportError(f"the cursor {path} belongs to an export to a target of kind {cursor.kind}, not {new.kind}; give another cursor")
    return cursor


def write_cursor(path: Path, cursor: Cursor) -> None:
    """Replace the cursor. Raises OSError."""
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(cursor._asdict(), file)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)
