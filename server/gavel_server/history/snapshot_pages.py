"""The paged tables in the file of a snapshot, read by key: the pages beside the state of a server.

The file has a paged table in parts of some rows, sorted by key. In memory are only the place, first key and checksum of each part. The
file stays open, so the rows can be read even after the snapshot has been removed. A part that has changed since is refused.
"""

from __future__ import annotations

import os
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

from gavel.internal.v1.state_snapshot_pb2 import OutlivingResult, StateSnapshot, SubjectEvidence
from gavel_rules.state.paged_table import Pages, StatePages
from google.protobuf.message import DecodeError

from gavel_server.history.snapshot_parts import SnapshotError, part_places, read_varint


class SnapshotPages:
    """The pages of one snapshot, verified by their hash. Raises SnapshotError if the file cannot be read."""

    def __init__(self, path: Path, sequence_number: int) -> None:
        try:
            self._file: Final = path.open("rb", buffering=_SCAN_BUFFER_BYTES)
            evidence = _TablePages(self._file, path, "evidence", "subject", "evidence")
            results = _TablePages(self._file, path, "outliving_results", "event_id", "readings")
            tables = (evidence, results)
            for place, size_bytes in part_places(self._file):
                start = os.pread(self._file.fileno(), min(size_bytes, _ROW_START_BYTES), place)
                if is_paged(start):
                    content = os.pread(self._file.fileno(), size_bytes, place)
                    for table in tables:
                        table.add_part(content, place)
        except OSError as error:
            raise SnapshotError(f"it cannot be read: {error.strerror}") from error
        except (IndexError, ValueError) as error:
            raise SnapshotError(f"it is damaged: {error}") from error
        pages = (Pages(sequence_number, table.find, table.rows) for table in tables)
        self.pages: Final = StatePages(*pages)

    @property
    def descriptor(self) -> int:
        """The descriptor of the file, which a forked child must inherit to read the pages."""
        return self._file.fileno()


def is_paged(part_start: bytes) -> bool:
    """Return whether a part that begins with these bytes is of a paged table."""
    return part_start.startswith(_PART_TAGS)


class _TablePages:
    """The rows of one paged table in a file: a field of StateSnapshot, whose messages have a key and the packed row as fields."""

    def __init__(self, file: BinaryIO, path: Path, field: str, key: str, packed: str) -> None:
        self._file: Final = file
        self._path: Final = path
        self._field: Final = field
        self._tag: Final = _TAGS[field]
        self._key: Final = attrgetter(key)
        self._packed: Final = attrgetter(packed)
        self._first_keys: Final[list[str]] = []
        self._places: Final = array("Q")
        self._sizes: Final = array("Q")
        self._checksums: Final = array("L")

    def add_part(self, content: bytes, place: int) -> None:
        """Note the part at a place of the file, if it is of this table. Raises IndexError, ValueError."""
        if content.startswith(self._tag):
            self._first_keys.append(_first_key(content, len(self._tag)))
            self._places.append(place)
            self._sizes.append(len(content))
            self._checksums.append(zlib.crc32(content))

    def find(self, key: str) -> bytes | None:
        """Return the packed row of a key."""
        index = bisect_right(self._first_keys, key) - 1
        if index < 0:
            return None
        rows = self._read(index)
        place = bisect_left(rows, key, key=self._key)
        if place == len(rows) or self._key(rows[place]) != key:
            return None
        packed: bytes = self._packed(rows[place])
        return packed

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Yield all keys and packed rows, sorted."""
        for index in range(len(self._first_keys)):
            for row in self._read(index):
                yield self._key(row), self._packed(row)

    def _read(self, index: int) -> Any:
        """Return the messages of a part, sorted by key. Raises SnapshotError if somebody has changed the file."""
        try:
            content = os.pread(self._file.fileno(), self._sizes[index], self._places[index])
        except OSError as error:
            raise SnapshotError(f"{self._path} cannot be read: {error.strerror}; restart the server") from error
        if zlib.crc32(content) != self._checksums[index]:
            raise SnapshotError(f"{self._path} has been changed or damaged; remove it and restart the server")
        try:
            return getattr(StateSnapshot.FromString(content), self._field)
        except DecodeError as error:
            raise SnapshotError(f"{self._path} has a malformed row; remove it and restart the server") from error


_LENGTH_DELIMITED: Final = 2
_TAGS: Final = {
    "evidence": StateSnapshot(evidence=[SubjectEvidence()]).SerializeToString()[:-1],
    "outliving_results": StateSnapshot(outliving_results=[OutlivingResult()]).SerializeToString()[:-1],
}
_PART_TAGS: Final = tuple(_TAGS.values())
# The key is the first field of each row, in both messages.
_KEY_TAG: Final = bytes([SubjectEvidence.SUBJECT_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
# More than the tag of a part.
_ROW_START_BYTES: Final = 16
# Parts have some kilobytes, of which only the starts are read.
_SCAN_BUFFER_BYTES: Final = 512


def _first_key(part_start: bytes, tag_length: int) -> str:
    """Return the key of the first row of a part. Raises IndexError, ValueError."""
    _, place = read_varint(part_start, tag_length)
    if part_start[place : place + 1] != _KEY_TAG:
        raise ValueError("a row without a key")
    length, place = read_varint(part_start, place + 1)
    if place + length > len(part_start):
        raise ValueError("the key of a row is cut off")
    return part_start[place : place + length].decode()
