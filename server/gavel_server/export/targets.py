"""The targets of an export (a file of lines, standard output, a directory of Parquet files), and its cursor.

A target takes events, and `commit` makes them durable. The cursor is written after that; a run that resumes first removes the events after
the cursor from the target. One run at a time uses a cursor. So a target that is a file or a directory has every event once, whenever a run
was killed. The cursor names its target, and nothing is ever removed from a target that the cursor does not name.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from gavel.v1.common_pb2 import EventCategory, ProducerType
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.timestamps import milliseconds

from gavel_server.errors import GavelServerError
from gavel_server.export.formats import jsonl, line
from gavel_server.process.private_files import sync_directory

# The name of a target that is no path; the paths in cursors are absolute.
STANDARD_OUTPUT: Final = "standard output"
_PARQUET_NAME: Final = re.compile(r"events-(\d{19})-(\d{19})\.parquet")


class ExportError(GavelServerError):
    """An export cannot go on; the message says why and what to do."""


class Cursor(NamedTuple):
    """How far an export has come: its bus and format, the bus's incarnation, its target, the last event, and the size of the file in bytes.

    `target` is the name of the target; "" in cursors of earlier builds. `chain_hash` is that of the last event, in hexadecimal; empty if
    nothing has been exported.
    """

    bus: str
    format: str
    incarnation: str
    target: str = ""
    sequence_number: int = 0
    chain_hash: str = ""
    size_bytes: int = 0


class Target(Protocol):
    """Takes events in their order. `name` is the path of a file or directory without symbolic links, or STANDARD_OUTPUT."""

    name: str

    def resume(self, cursor: Cursor, *, is_new: bool) -> None:
        """Remove the events after the cursor. Raises OSError.

        Raises ExportError if the cursor is of another target, if it is new and the target is not empty, and if there are events to remove
        and the cursor names no target.
        """

    def add(self, envelope: Envelope) -> None:
        """Take an event."""

    def commit(self) -> int:
        """Sync the added events to disk; return the size of the file, 0 if there is none. Raises OSError."""


class LineFile:
    """A file of lines."""

    def __init__(self, format_name: str, path: Path) -> None:
        self.name = os.path.realpath(path)
        self._format = format_name
        self._path = path
        self._file: BinaryIO | None = None

    def resume(self, cursor: Cursor, *, is_new: bool) -> None:
        """See Target."""
        if cursor.chain_hash and not cursor.size_bytes:
            raise ExportError(f"the cursor belongs to an export to {STANDARD_OUTPUT}; export to another file and cursor")
        self._file = self._path.open("ab")
        size = self._file.tell()
        if size < cursor.size_bytes:
            raise ExportError(f"{self._path} has {size} bytes, the cursor expects {cursor.size_bytes}; export to another file and cursor")
        if size and is_new:
            raise ExportError(f"{self._path} exists and the cursor is new; export to another file, or give the cursor of this one")
        if size > cursor.size_bytes and not cursor.target:
            raise _unnamed_target(self.name)
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

    name = STANDARD_OUTPUT

    def __init__(self, format_name: str) -> None:
        self._format = format_name

    def resume(self, cursor: Cursor, *, is_new: bool) -> None:
        """See Target. Nothing can be removed, and events may be repeated."""
        if cursor.size_bytes:
            raise ExportError("the cursor belongs to an export to a file; name the file with --to, or give another cursor")

    def add(self, envelope: Envelope) -> None:
        """See Target."""
        sys.stdout.buffer.write(line(self._format, envelope))

    def commit(self) -> int:
        """See Target."""
        sys.stdout.buffer.flush()
        return 0


class ParquetDirectory:
    """A directory of Parquet files, one a commit, named by their first and last event."""

    def __init__(self, directory: Path) -> None:
        self.name = os.path.realpath(directory)
        self._directory = directory
        self._rows: list[dict[str, Any]] = []

    def resume(self, cursor: Cursor, *, is_new: bool) -> None:
        """See Target."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in self._directory.iterdir():
            match = _PARQUET_NAME.fullmatch(path.name)
            if match is not None and is_new:
                message = f"{self._directory} holds an export and the cursor is new; export to another directory, or give its cursor"
                raise ExportError(message)
            if match is not None and int(match[2]) > cursor.sequence_number:
                if not cursor.target:
                    raise _unnamed_target(self.name)
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


@contextmanager
def lock_cursor(path: Path) -> Iterator[None]:
    """Hold the lock of a cursor. The file that is locked lies beside it and stays: the cursor itself is replaced by each commit.

    Raises ExportError if another run holds the lock, and OSError.
    """
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ExportError(f"another export uses this cursor, {path}; end it first, or give another file and cursor") from error
        yield
    finally:
        os.close(descriptor)


def read_cursor(path: Path, new: Cursor) -> Cursor | None:
    """Return the cursor of a file; None if there is no file. Raises ExportError if it is damaged, or not of the same export as `new`."""
    try:
        fields = dict(json.loads(path.read_bytes()))
        fields.pop("kind", None)  # of an earlier build
        cursor = Cursor(**fields)
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
    if cursor.target not in ("", new.target):
        raise ExportError(
            f"the cursor {path} belongs to an export to {cursor.target}, not to {new.target}; export to its target or give another cursor. "
            'If you have moved the export, change "target" in the cursor to its new path'
        )
    return cursor


def _unnamed_target(name: str) -> ExportError:
    """Return the error for events to remove from a target that the cursor, of an earlier build, does not name."""
    return ExportError(
        f"{name} has more events than the cursor, which does not name its target. If this is the cursor of {name}, add "
        f'"target": {json.dumps(name)} to it, and the next run removes these events; if not, export to another target'
    )


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
