"""The parts of a snapshot's file: messages, each with its length in front as a varint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

from gavel_server.errors import GavelServerError

# A part holds at most some hundred rows, of which each has a few events of at most 1 MiB.
PART_BYTES_MAX: Final = 1 << 31
_VARINT_BYTES_MAX: Final = 5


class SnapshotError(GavelServerError):
    """A snapshot cannot be used; the message says why."""


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
