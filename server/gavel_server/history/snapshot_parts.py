"""The parts of a snapshot: messages, each with its length in front as a varint in the file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, Final

from gavel_rules.state.snapshot.encoding import encode_position, encode_tables
from gavel_rules.state.state import State

from gavel_server.errors import GavelServerError

# A part holds at most some hundred rows, of which each has a few events of at most 1 MiB.
PART_BYTES_MAX: Final = 1 << 31
_VARINT_BYTES_MAX: Final = 5


class SnapshotError(GavelServerError):
    """A snapshot cannot be used; the message says why."""


def state_parts(state: State) -> Iterator[bytes]:
    """Yield the parts that hold a state: equal states have equal parts. The chain hash, which the log has, is left out."""
    yield encode_position(state.store, b"", "")
    yield from encode_tables(state.store)


def state_digest(state: State) -> bytes:
    """Return the SHA-256 over the parts of a state. Unlike `state_sha256`, it covers the head and the arbiter version too."""
    digest = hashlib.sha256()
    for part in state_parts(state):
        digest.update(part)
    return digest.digest()


def part_places(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield the place and the size of each part in a file. The caller may move the file's position. Raises ValueError, OSError."""
    end = 0
    while True:
        file.seek(end)
        start = file.read(_VARINT_BYTES_MAX)
        if not start:
            return
        try:
            size_bytes, length = read_varint(start, 0)
        except IndexError:
            raise ValueError("the length of a part is cut off") from None
        if size_bytes > PART_BYTES_MAX:
            raise ValueError(f"a part has {size_bytes} bytes")
        yield end + length, size_bytes
        end += length + size_bytes


def read_varint(content: bytes, place: int) -> tuple[int, int]:
    """Return a varint and the place after it. Raises IndexError if it is cut off."""
    number, shift = 0, 0
    while True:
        byte = content[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place
