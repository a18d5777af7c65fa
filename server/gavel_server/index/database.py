"""The index of one bus: a SQLite database with a row for each event, derived from the log alone.

One process writes it, and others read it at the same time (WAL mode). It names the event up to which it goes, with its chain hash, in the
transaction that adds the rows. It can be deleted at any time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gavel_rules.events.timestamps import milliseconds

from gavel_server.index.event_filter import EventFilter, read_partially
from gavel_server.log import Head, Record
from gavel_server.log.protocol import empty_head
from gavel_server.process.private_files import PRIVATE_MODE, make_directory

FORMAT_VERSION: Final = 1
# How long a reader waits for a lock, which a writer holds only when it opens or closes the database.
_BUSY_SECONDS: Final = 5.0
_CACHE_SIZE_KIB: Final = 32 * 1024
# Pages of 4 KiB in the write-ahead log from which they are copied into the database. Subjects come in any order, so that a transaction
# changes pages all over the database. A long write-ahead log holds many versions of a page, and only the last one is copied.
_CHECKPOINT_PAGES: Final = 16_384

_SCHEMA: Final = """
CREATE TABLE events (
    sequence_number INTEGER PRIMARY KEY,
    recorded_at_ms INTEGER NOT NULL,
    category INTEGER NOT NULL,
    event_name TEXT NOT NULL,
    subject TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    causation_id TEXT NOT NULL,
    producer_id TEXT NOT NULL,
    action_type TEXT,
    outcome INTEGER,
    reason_code TEXT,
    rule TEXT,
    execution_id TEXT
) STRICT;
CREATE INDEX by_trace ON events (trace_id);
CREATE INDEX by_subject ON events (subject);
CREATE INDEX by_action_type ON events (action_type) WHERE action_type IS NOT NULL;
CREATE INDEX by_outcome ON events (outcome) WHERE outcome IS NOT NULL;
CREATE INDEX by_reason_code ON events (reason_code) WHERE reason_code IS NOT NULL;
CREATE TABLE head (bus TEXT NOT NULL, sequence_number INTEGER NOT NULL, chain_hash BLOB NOT NULL) STRICT;
"""
_INSERT: Final = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class IndexDatabase:
    """The index of one bus, open for writing. Raises sqlite3.Error and OSError; after one, `remove` the index and open it again."""

    def __init__(self, path: Path, bus: str) -> None:
        self.bus: Final = bus
        make_directory(path.parent)
        path.touch(PRIVATE_MODE)  # SQLite gives its other files the mode of this one
        self._connection: Final = sqlite3.connect(path, isolation_level=None)
        try:
            self._prepare()
            self.head = self._read_head()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA journal_mode = WAL")
        # A power cut may lose the last rows, which are then read from the log again.
        execute("PRAGMA synchronous = NORMAL")
        execute(f"PRAGMA cache_size = -{_CACHE_SIZE_KIB}")
        execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        (version,) = execute("PRAGMA user_version").fetchone()
        (tables,) = execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and version != FORMAT_VERSION:
            raise sqlite3.DatabaseError(f"the index has format version {version}, and this build writes version {FORMAT_VERSION}")
        if not tables:
            execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                execute(statement)
            execute("INSERT INTO head VALUES (?, ?, ?)", (self.bus, *empty_head(self.bus)))
            execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            execute("COMMIT")

    def _read_head(self) -> Head:
        row = self._connection.execute("SELECT bus, sequence_number, chain_hash FROM head").fetchone()
        if row is None or row[0] != self.bus:
            raise sqlite3.DatabaseError(f"the index is not of bus {self.bus}")
        return Head(row[1], row[2])

    def add(self, records: Sequence[Record]) -> None:
        """Add the events that follow the head. Raises LogCorruptError."""
        rows = [_row(record) for record in records]
        head = Head(records[-1].sequence_number, records[-1].chain_hash)
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany(_INSERT, rows)
            self._connection.execute("UPDATE head SET sequence_number = ?, chain_hash = ?", head)
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise
        self.head = head

    def close(self) -> None:
        """Close the database."""
        with suppress(sqlite3.Error):
            self._connection.close()


class IndexReader:
    """The index of one bus, open for reading. Any thread may use it, one at a time. Raises sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        self._connection: Final = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS
        )

    def has(self, sequence_number: int) -> bool:
        """Return whether the index has an event. One that is being written anew lacks events that it has had."""
        return self._connection.execute("SELECT 1 FROM events WHERE sequence_number = ?", (sequence_number,)).fetchone() is not None

    def select(self, event_filter: EventFilter, first: int, last: int, limit: int) -> list[int]:
        """Return the sequence numbers of the first `limit` events from `first` to `last` that pass the filter."""
        if event_filter.recorded_from_ms:
            first = max(first, self._first_at(event_filter.recorded_from_ms, last))
        if event_filter.recorded_until_ms:
            last = min(last, self._first_at(event_filter.recorded_until_ms, last) - 1)
        conditions = ["sequence_number BETWEEN ? AND ?"]
        values: list[object] = [first, last]
        for column, accepted in _conditions(event_filter):
            conditions.append(f"{column} IN ({', '.join('?' * len(accepted))})")
            values += accepted
        if event_filter.subject_prefix:
            conditions.append("substr(subject, 1, ?) = ?")
            values += [len(event_filter.subject_prefix), event_filter.subject_prefix]
        statement = f"SELECT sequence_number FROM events WHERE {' AND '.join(conditions)} ORDER BY sequence_number LIMIT ?"  # noqa: S608
        return [number for (number,) in self._connection.execute(statement, [*values, limit])]

    def _first_at(self, recorded_at_ms: int, last: int) -> int:
        """Return the number of the first event that was recorded at a time or later, at most `last` + 1. Times never go back."""
        low, high = 1, last + 1
        while low < high:
            middle = (low + high) // 2
            row = self._connection.execute("SELECT recorded_at_ms FROM events WHERE sequence_number = ?", (middle,)).fetchone()
            if row is None:
                raise sqlite3.DatabaseError(f"the index has no row for event {middle}")
            low, high = (middle + 1, high) if row[0] < recorded_at_ms else (low, middle)
        return low

    def close(self) -> None:
        """Close the database."""
        with suppress(sqlite3.Error):
            self._connection.close()


def index_path(data: Path, bus: str) -> Path:
    """Return the path of the index of a bus in a data directory."""
    return data / "index" / f"{bus}.sqlite"


def remove(path: Path) -> None:
    """Remove an index. Raises OSError."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)


def _conditions(event_filter: EventFilter) -> Iterable[tuple[str, list[object]]]:
    """Yield the columns that the filter restricts, each with its accepted values."""
    columns: list[tuple[str, Iterable[object]]] = [
        ("category", event_filter.categories),
        ("subject", [event_filter.subject] if event_filter.subject else ()),
        ("trace_id", [event_filter.trace_id] if event_filter.trace_id else ()),
        ("action_type", event_filter.action_types),
        ("outcome", event_filter.outcomes),
        ("reason_code", event_filter.reason_codes),
    ]
    return ((column, list(accepted)) for column, accepted in columns if accepted)


def _row(record: Record) -> tuple[object, ...]:
    envelope = read_partially(record)
    decision = envelope.decision
    rule = f"{decision.policy_id}/{decision.rule_id}" if decision.rule_id else decision.policy_id
    execution_id = (
        envelope.execution.execution_id
        or envelope.fact.execution_id
        or envelope.tool_call.execution_id
        or envelope.tool_result.execution_id
    )
    return (
        record.sequence_number,
        milliseconds(envelope.recorded_at),
        envelope.event_category,
        envelope.event_name,
        envelope.subject,
        envelope.trace_id,
        envelope.causation_id,
        envelope.producer.id,
        envelope.proposal.action_type or decision.action_type or None,
        decision.outcome or None,
        decision.reason_code or None,
        rule or None,
        execution_id or None,
    )
