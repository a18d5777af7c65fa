"""The snapshots of one bus in a data directory: one file each, named by its sequence number.

A file is written under another name, synced, and renamed, so that a file with its right name is whole whenever the process is killed. It
ends with a hash over everything before. A few snapshots stay: the newest ones for the next start, and some spread over the log, between
which a replay can run on several processors.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from gavel.internal.v1.state_snapshot_pb2 import StateSnapshot
from gavel_rules.codec.fields import length_prefixed
from gavel_rules.events.arbiter_versions import implemented_versions, is_implemented
from gavel_rules.language.rule_set import DocumentError
from gavel_rules.state.snapshot.decoding import StateDecoder
from gavel_rules.state.snapshot.encoding import FORMAT_VERSION, encode_position, encode_tables
from gavel_rules.state.state import State
from google.protobuf.message import DecodeError

from gavel_server.history.snapshot_pages import SnapshotPages, is_paged
from gavel_server.history.snapshot_parts import SnapshotError, part_places, state_digest
from gavel_server.log import Head
from gavel_server.process.private_files import make_directory, open_private, sync_directory

SNAPSHOTS_MAX: Final = 5
# The newest snapshots are never removed: if one is damaged, there is another near the head.
NEWEST_MAX: Final = 2

_SUFFIX: Final = ".snapshot"
_UNFINISHED: Final = ".new"
_BUFFER_BYTES: Final = 1 << 20
_PART_START_BYTES: Final = 16
# The exceptions of a decoder at a snapshot that another build has written.
DECODING_ERRORS: Final = (DocumentError, DecodeError, LookupError, TypeError, ValueError)


class SnapshotFiles:
    """The snapshots of one bus. Write them from one process at a time; others may read them meanwhile."""

    def __init__(self, data: Path, bus: str) -> None:
        """`data` is the data directory of a server."""
        self.data: Final = data
        self.bus: Final = bus
        self.directory: Final = data / "snapshots" / bus

    def numbers(self) -> list[int]:
        """Return the sequence numbers of the snapshots, newest first."""
        try:
            names = [path.name.removesuffix(_SUFFIX) for path in self.directory.iterdir() if path.name.endswith(_SUFFIX)]
        except FileNotFoundError:
            return []
        return sorted((int(name) for name in names if name.isascii() and name.isdecimal()), reverse=True)

    def path(self, number: int) -> Path:
        """Return the path of a snapshot."""
        return self.directory / f"{number:019}{_SUFFIX}"

    def read_position(self, number: int) -> StateSnapshot:
        """Return the first part of a snapshot, which identifies it. Raises SnapshotError."""
        try:
            with self.path(number).open("rb") as file:
                part = next(_parts(file), b"")
            position = StateSnapshot.FromString(part)
        except OSError as error:
            raise SnapshotError(f"it cannot be read: {error.strerror}") from error
        except (DecodeError, ValueError) as error:
            raise SnapshotError(f"it is damaged: {error}") from error
        if position.format_version != FORMAT_VERSION:
            raise SnapshotError(f"it has format version {position.format_version}, and this build reads version {FORMAT_VERSION}")
        if position.bus != self.bus or position.sequence_number != number:
            raise SnapshotError(
                f"it belongs to event {position.sequence_number} of bus {position.bus}, not to event {number} of bus {self.bus}"
            )
        if not is_implemented(position.arbiter_version):
            raise SnapshotError(f"it has arbiter version {position.arbiter_version}, and this build implements {implemented_versions()}")
        return position

    def check(self, number: int) -> None:
        """Check the hash at the end of a snapshot. Raises SnapshotError."""
        digest = hashlib.sha256()
        try:
            with self.path(number).open("rb") as file:
                rest = os.fstat(file.fileno()).st_size - len(_end(digest.digest()))
                while rest > 0 and (block := file.read(min(rest, _BUFFER_BYTES))):
                    digest.update(block)
                    rest -= len(block)
                end = file.read()
        except OSError as error:
            raise SnapshotError(f"it cannot be read: {error.strerror}") from error
        if end != _end(digest.digest()):
            raise SnapshotError("it is damaged: its bytes do not match its hash")

    def read_parts(self, number: int) -> Iterator[StateSnapshot]:
        """Yield the parts of a snapshot that `check` has passed, except those of paged tables. Raises SnapshotError."""
        try:
            with self.path(number).open("rb") as file:
                for content in _parts(file):
                    if not is_paged(content):
                        yield StateSnapshot.FromString(content)
        except OSError as error:
            raise SnapshotError(f"it cannot be read: {error.strerror}") from error
        except (DecodeError, ValueError) as error:
            raise SnapshotError(f"this build cannot restore it: {error}") from error

    def open_pages(self, number: int) -> SnapshotPages:
        """Return the paged tables of a snapshot, which `check` has passed, to be read by key. Raises SnapshotError."""
        return SnapshotPages(self.path(number), number)

    def read_digest(self, number: int) -> bytes:
        """Return the digest of the state that a snapshot gives, whatever hash its file states. Raises SnapshotError."""
        state = self.read(number)
        try:
            return state_digest(state)
        except DECODING_ERRORS as error:  # the rows of paged tables are read here
            raise SnapshotError(f"this build cannot restore it: {error!r}") from error

    def read(self, number: int) -> State:
        """Return the state of a snapshot. Raises SnapshotError."""
        self.check(number)
        decoder = StateDecoder(self.bus, self.open_pages(number).pages)
        try:
            for part in self.read_parts(number):
                decoder.add(part)
            return decoder.finish()
        except DECODING_ERRORS as error:
            raise SnapshotError(f"this build cannot restore it: {error!r}") from error

    def write(self, snapshot: SnapshotContent) -> int:
        """Write a snapshot, atomically; return its size in bytes. Raises OSError."""
        make_directory(self.directory)
        for unfinished in self.directory.glob(f"*{_UNFINISHED}"):
            unfinished.unlink(missing_ok=True)
        path = self.path(snapshot.head.sequence_number)
        temporary = path.with_name(f"{path.name}.{os.getpid()}{_UNFINISHED}")
        with open(temporary, "wb", buffering=_BUFFER_BYTES, opener=open_private) as file:
            for part in snapshot.parts():
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            size_bytes = file.tell()
        temporary.replace(path)
        sync_directory(self.directory)
        return size_bytes

    def prune(self) -> None:
        """Remove all but SNAPSHOTS_MAX snapshots. Raises OSError."""
        for number in surplus(self.numbers()):
            self.remove(number)

    def remove(self, number: int) -> None:
        """Remove a snapshot, if there is one. Raises OSError."""
        self.path(number).unlink(missing_ok=True)


class SnapshotContent:
    """The source of a snapshot. Create it before a fork: it creates the hash objects, and creating one takes locks of OpenSSL."""

    def __init__(self, state: State, head: Head, incarnation: str, more_parts: Iterable[StateSnapshot] = ()) -> None:
        """`incarnation` is the event_id of the first event; `more_parts` are parts that follow the state."""
        self.head: Final = head
        self._state: Final = state
        self._incarnation: Final = incarnation
        self._further: Final = more_parts
        self._digest: Final = hashlib.sha256()
        self._state_digest: Final = hashlib.sha256()

    def parts(self) -> Iterator[bytes]:
        """Yield the parts of the file with their lengths."""
        for part in self._parts():
            content = length_prefixed(part)
            self._digest.update(content)
            yield content
        yield _end(self._digest.digest())

    def _parts(self) -> Iterator[bytes]:
        store = self._state.store
        yield encode_position(store, self.head.chain_hash, self._incarnation)
        for part in encode_tables(store):
            self._state_digest.update(part)
            yield part
        yield StateSnapshot(state_sha256=self._state_digest.digest()).SerializeToString()
        for further in self._further:
            yield further.SerializeToString(deterministic=True)


def surplus(numbers: Iterable[int], count_max: int = SNAPSHOTS_MAX) -> list[int]:
    """Return the snapshots to remove: again and again the one with the smallest gap between its neighbours, never the newest ones."""
    remaining = [0, *sorted(numbers)]  # the start of the log is a neighbour of the first
    removed = []
    while len(remaining) - 1 > count_max:
        index = min(range(1, len(remaining) - NEWEST_MAX), key=lambda index: remaining[index + 1] - remaining[index - 1])
        removed.append(remaining.pop(index))
    return removed


def _end(sha256: bytes) -> bytes:
    """Return the last part, with its length."""
    return length_prefixed(StateSnapshot(sha256=sha256).SerializeToString())


def _parts(file: BinaryIO) -> Iterator[bytes]:
    """Yield the parts of a file; of a part of a paged table, only its first bytes. Raises ValueError, OSError."""
    for place, size_bytes in part_places(file):
        file.seek(place)
        content = file.read(min(size_bytes, _PART_START_BYTES))
        if not is_paged(content):
            content += file.read(size_bytes - len(content))
            if len(content) < size_bytes:
                raise ValueError("a part is cut off")
        yield content
