"""A table of which only later changes are in the state; the rest is in pages beside it.

Most rows of a large state are never needed again. A paged table holds in memory the rows that have changed since a snapshot. The others
are in pages: a table of that snapshot, which never changes and is given to the state. Which rows are in pages is no part of the state: it
changes neither a decision nor a digest (docs/decisions/0063-evidence-in-pages.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

# Rows of the pages that stay unpacked. A decision reads the same few rows several times.
_UNPACKED_MAX: Final = 1_024


class Pages:
    """The packed rows of a table after one event. They never change.

    `find` returns the packed row of a key, or None. `rows` yields all of them by key, sorted.
    """

    def __init__(self, sequence_number: int, find: Callable[[str], bytes | None], rows: Callable[[], Iterator[tuple[str, bytes]]]) -> None:
        self.sequence_number: Final = sequence_number
        self.find: Final = find
        self.rows: Final = rows


class StatePages:
    """The pages of all paged tables of a state, after one event."""

    def __init__(self, evidence: Pages, outliving_results: Pages) -> None:
        self.evidence: Final = evidence
        self.outliving_results: Final = outliving_results


def pages_in_memory(sequence_number: int, packed: Mapping[str, bytes]) -> Pages:
    """Return pages of packed rows by key, which must not change any more."""
    return Pages(sequence_number, packed.get, lambda: iter(sorted(packed.items())))


class PagedTable:
    """Rows by key. `changes` has those that are not in the pages, or have changed since; `Store.put` changes it.

    `unpack` makes a row of its packed form. `newest` returns the sequence number of the event that changed a row last.
    """

    def __init__(self, unpack: Callable[[bytes], Any], newest: Callable[[Any], int]) -> None:
        self.changes: Final[dict[str, Any]] = {}
        self.pages: Pages | None = None
        self._unpack: Final = unpack
        self._newest: Final = newest
        self._unpacked: Final[dict[str, Any]] = {}

    def get(self, key: str) -> Any:
        """Return a row, or None. A row in pages must not be changed in place."""
        row = self.changes.get(key)
        if row is not None or self.pages is None:
            return row
        unpacked = self._unpacked
        if key in unpacked:
            return unpacked[key]
        packed = self.pages.find(key)
        row = None if packed is None else self._unpack(packed)
        if len(unpacked) >= _UNPACKED_MAX:
            unpacked.clear()
        unpacked[key] = row
        return row

    def rows(self) -> Iterator[tuple[str, Any]]:
        """Yield all rows by key, sorted; those in pages packed, as bytes."""
        keys = iter(sorted(self.changes))
        key = next(keys, None)
        if self.pages is not None:
            for paged_key, packed in self.pages.rows():
                while key is not None and key < paged_key:
                    yield key, self.changes[key]
                    key = next(keys, None)
                if key != paged_key:  # else it has changed since
                    yield paged_key, packed
        while key is not None:
            yield key, self.changes[key]
            key = next(keys, None)

    def use_pages(self, pages: Pages) -> None:
        """Read the rows that are not in `changes` from these pages, which are of this bus and not beyond its head."""
        self.pages = pages
        self._unpacked.clear()

    def page_out(self, keys: Iterable[str]) -> None:
        """Leave rows to the pages, as far as they have them. The state must hold nothing uncommitted."""
        if self.pages is None:
            return
        for key in keys:
            row = self.changes.get(key)
            if row is not None and self._newest(row) <= self.pages.sequence_number:
                del self.changes[key]
