"""The evidence in the file of a snapshot, read by subject: the pages beside the state of a server.

The file has the evidence in parts of some rows, sorted by subject. In memory are only the place and first subject of each part. The file
stays open, so the evidence can be read even after the snapshot has been removed.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gavel.internal.v1.state_snapshot_pb2 import StateSnapshot, SubjectEvidence
from gavel_rules.state.packed_evidence import EvidencePages
from google.protobuf.message import DecodeError

from gavel_server.history.snapshot_parts import SnapshotError, part_places, read_varint


class SnapshotEvidence:
    """The evidence of one snapshot, whose hash is right. Raises SnapshotError if the file cannot be read."""

    def __init__(self, path: Path, sequence_number: int) -> None:
        self.pages: Final = EvidencePages(sequence_number, self._find, self._rows)
        self._path: Final = path
        self._first_subjects: Final[list[str]] = []
        self._places: Final = array("Q")
        self._sizes: Final = array("Q")
        try:
            self._file: Final = path.open("rb", buffering=_SCAN_BUFFER_BYTES)
            for place, size_bytes in part_places(self._file):
                subject = _first_subject(os.pread(self._file.fileno(), min(size_bytes, _ROW_START_BYTES), place))
                if subject is not None:
                    self._first_subjects.append(subject)
                    self._places.append(place)
                    self._sizes.append(size_bytes)
        except OSError as error:
            raise SnapshotError(f"it cannot be read: {error.strerror}") from error
        except (IndexError, ValueError) as error:
            raise SnapshotError(f"it is damaged: {error}") from error

    @property
    def descriptor(self) -> int:
        """The descriptor of the file, which a forked child must inherit to read the evidence."""
        return self._file.fileno()

    def _find(self, subject: str) -> bytes | None:
        index = bisect_right(self._first_subjects, subject) - 1
        if index < 0:
            return None
        for row in self._read(index):
            if row.subject == subject:
                return row.evidence
        return None

    def _rows(self) -> Iterator[tuple[str, bytes]]:
        for index in range(len(self._first_subjects)):
            for row in self._read(index):
                yield row.subject, row.evidence

    def _read(self, index: int) -> list[SubjectEvidence]:
        """Return the rows of a part. Raises SnapshotError if somebody has changed the file."""
        size_bytes = self._sizes[index]
        try:
            content = os.pread(self._file.fileno(), size_bytes, self._places[index])
            rows = list(StateSnapshot.FromString(content).evidence)
        except OSError as error:
            raise SnapshotError(f"{self._path} cannot be read: {error.strerror}; restart the server") from error
        except DecodeError as error:
            raise SnapshotError(f"{self._path} has been changed or damaged; remove it and restart the server") from error
        if len(content) < size_bytes or not rows or rows[0].subject != self._first_subjects[index]:
            raise SnapshotError(f"{self._path} has been changed or damaged; remove it and restart the server")
        return rows


def is_evidence(part_start: bytes) -> bool:
    """Return whether a part that begins with these bytes has evidence."""
    return part_start.startswith(_EVIDENCE_TAG)


_LENGTH_DELIMITED: Final = 2
_EVIDENCE_TAG: Final = StateSnapshot(evidence=[SubjectEvidence()]).SerializeToString()[:-1]
_SUBJECT_TAG: Final = bytes([SubjectEvidence.SUBJECT_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
# More than a part has up to the end of its first subject, which has at most 321 characters (limits.SUBJECT).
_ROW_START_BYTES: Final = 2_048
# Parts have some kilobytes, of which only the starts are read.
_SCAN_BUFFER_BYTES: Final = 512


def _first_subject(part_start: bytes) -> str | None:
    """Return the subject of the first row of a part with evidence; None: the part has none. Raises IndexError, ValueError."""
    if not is_evidence(part_start):
        return None
    _, place = read_varint(part_start, len(_EVIDENCE_TAG))
    if part_start[place : place + 1] != _SUBJECT_TAG:
        raise ValueError("evidence without a subject")
    length, place = read_varint(part_start, place + 1)
    if place + length > len(part_start):
        raise ValueError("the subject of evidence is cut off")
    return part_start[place : place + length].decode()
