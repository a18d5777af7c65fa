"""How changes are undone: each one writes down how to take it back before the next is made.

A batch is applied before it is in the log, so that its later commands see what its earlier ones did. If the append fails,
undoing from the end back to where the batch began leaves no trace of it; once it is in, that part is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sortedcontainers import SortedList


class _Missing:
    """Marks a key that was not there."""


_MISSING: Final = _Missing()
Undo = Callable[[], None]
_Entry = tuple[Any, Any, Any] | Undo


class Journal:
    """Something that changes by `_put`, `_drop`, `_set` and the like alone, and can go back."""

    def __init__(self) -> None:
        # What to put back, in a form that costs little to write down: (table, key, old value) of a dict, (sorted
        # list, item, whether it was added), or an action.
        self._journal: list[_Entry] = []
        self._forgotten = 0  # how many entries commits have dropped: positions count from the first ever

    @property
    def position(self) -> int:
        """Where the journal ends now: `commit` takes it."""
        return self._forgotten + len(self._journal)

    def undo(self, mark: int) -> None:
        """Take back every change since the mark, latest first."""
        keep = max(0, mark - self._forgotten)
        while len(self._journal) > keep:
            entry = self._journal.pop()
            if not isinstance(entry, tuple):
                entry()
                continue
            table, key, old = entry
            if not isinstance(table, dict):
                if old:
                    table.remove(key)
                else:
                    table.add(key)
            elif old is _MISSING:
                del table[key]
            else:
                table[key] = old

    def commit(self, mark: int | None = None) -> None:
        """Forget how to undo what came before the mark, or everything: it is in the log."""
        drop = len(self._journal) if mark is None else mark - self._forgotten
        del self._journal[:drop]
        self._forgotten += drop

    @property
    def tentative(self) -> bool:
        """Whether the state holds changes that may still be undone."""
        return bool(self._journal)

    def on_undo(self, action: Undo) -> None:
        """Have `action` run if the changes since the last mark are undone."""
        self._journal.append(action)

    def _put(self, table: dict[Any, Any], key: object, value: object) -> None:
        self._journal.append((table, key, table.get(key, _MISSING)))
        table[key] = value

    def _drop(self, table: dict[Any, Any], key: object) -> None:
        old = table.get(key, _MISSING)
        if old is not _MISSING:
            del table[key]
            self._journal.append((table, key, old))

    def _schedule(self, agenda: SortedList, item: tuple[Any, ...]) -> None:
        agenda.add(item)
        self._journal.append((agenda, item, True))

    def _unschedule(self, agenda: SortedList, item: tuple[Any, ...]) -> None:
        agenda.remove(item)
        self._journal.append((agenda, item, False))

    def _set(self, name: str, value: object) -> None:
        old = getattr(self, name)
        self._journal.append(lambda: setattr(self, name, old))
        setattr(self, name, value)

    def _inner(self, table: dict[str, dict[str, Any]], key: str) -> dict[str, Any]:
        inner = table.get(key)
        if inner is None:
            inner = {}
            self._put(table, key, inner)
        return inner
