"""What falls due, in the order of its time: timers, traces that lapse, decisions that nobody will report on any more.

Nearly everything is added at the end, since time only moves forward, and taken away at the beginning, or anywhere when it is settled
before its time. So it is a list of short lists, each in order and all of them together: none is so long that to change it in the middle
would matter, however much is waiting.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, Final

# Begins with a time in milliseconds since the epoch; what follows tells items of one time apart, and orders them.
Item = tuple[Any, ...]

_CHUNK_LENGTH_MAX: Final = 512


class Agenda:
    """Items in their order, each of them once."""

    def __init__(self) -> None:
        self._chunks: list[list[Item]] = []  # none is empty

    def __bool__(self) -> bool:
        return bool(self._chunks)

    @property
    def first(self) -> Item:
        """The item that comes first; there must be one."""
        return self._chunks[0][0]

    def add(self, item: Item) -> None:
        """Put in an item that is not there."""
        chunks = self._chunks
        if not chunks:
            chunks.append([item])
            return
        index = len(chunks) - 1
        chunk = chunks[index]
        if chunk[-1] < item:
            chunk.append(item)
        else:
            if item < chunk[0]:
                index = bisect_left(chunks, item, key=_last)
                chunk = chunks[index]
            insort(chunk, item)
        if len(chunk) > _CHUNK_LENGTH_MAX:
            half = _CHUNK_LENGTH_MAX // 2
            chunks.insert(index + 1, chunk[half:])
            del chunk[half:]

    def remove(self, item: Item) -> None:
        """Take an item away; LookupError if it is not there."""
        chunks = self._chunks
        index = bisect_left(chunks, item, key=_last)
        chunk = chunks[index]
        place = bisect_left(chunk, item)
        if chunk[place] != item:
            raise LookupError(f"{item} is not on the agenda")
        del chunk[place]
        if not chunk:
            del chunks[index]

    def until(self, now_ms: int) -> list[Item]:
        """Return what is due by now, in order."""
        due: list[Item] = []
        for chunk in self._chunks:
            if chunk[-1][0] > now_ms:
                return due + [item for item in chunk if item[0] <= now_ms]
            due += chunk
        return due

    def items(self) -> list[Item]:
        """Return everything, in order."""
        return [item for chunk in self._chunks for item in chunk]


def _last(chunk: list[Item]) -> Item:
    return chunk[-1]
