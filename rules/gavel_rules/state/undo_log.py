"""The undo log: how to take changes of the state back, latest first.

A batch changes the state before it is in the log, so that its later commands see what its earlier ones did. If the append fails, `undo`
goes back to where the batch began; once the batch is in the log, `commit` forgets that part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Action = Callable[[], None]
# (table, key, old value or ABSENT) of a dict; (list, item, whether it was added) of a sorted list or a counter; or an action.
Entry = tuple[Any, Any, Any] | Action


class _Absent:
    """The old value of a key that was not in its table."""


ABSENT: Final = _Absent()


class UndoLog:
    """A list of inverse changes. Positions count all entries ever made, so they stay valid when older entries are dropped."""

    def __init__(self) -> None:
        self.entries: Final[list[Entry]] = []
        self._dropped = 0

    @property
    def position(self) -> int:
        """The position after the last entry."""
        return self._dropped + len(self.entries)

    @property
    def commit_position(self) -> int:
        """The position before which no change can be undone any more."""
        return self._dropped

    def undo(self, position: int) -> None:
        """Take back every change after a position, latest first."""
        entries = self.entries
        length = max(0, position - self._dropped)
        while len(entries) > length:
            entry = entries.pop()
            if not isinstance(entry, tuple):
                entry()
                continue
            table, key, old = entry
            if not isinstance(table, dict):
                if old:
                    table.remove(key)
                else:
                    table.add(key)
            elif old is ABSENT:
                del table[key]
            else:
                table[key] = old

    def commit(self, position: int | None = None) -> None:
        """Drop the entries before a position, or all of them: the log has their events."""
        count = len(self.entries) if position is None else position - self._dropped
        del self.entries[:count]
        self._dropped += count
