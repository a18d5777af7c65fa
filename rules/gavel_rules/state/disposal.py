"""Frees tables that nobody reads any more, in steps.

Python frees a table with all its rows at once, as soon as nothing refers to it. With a hundred thousand rows that takes longer than the
event loop of a server may stand still.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from sortedcontainers import SortedList

from gavel_rules.state.counters import CounterGroup, CounterTable

# Rows that one step frees, at any depth: a fraction of a millisecond.
ROWS_PER_STEP: Final = 512


class Disposal:
    """Tables to be freed: dicts, deques, sorted lists, and counters. Nobody may read them any more."""

    def __init__(self) -> None:
        self._tables: Final[list[Any]] = []
        # (position in the undo log, table), in order: the drop of the table can be undone until that position is committed.
        self._drops: Final[list[tuple[int, Any]]] = []

    @property
    def has_tables(self) -> bool:
        """Whether anything is left to be freed."""
        return bool(self._tables or self._drops)

    def add(self, table: Any) -> None:
        """Add a table."""
        self._tables.extend(_tables_of(table))

    def add_drop(self, table: Any, position: int) -> None:
        """Add a table whose drop is the entry at a position of the undo log."""
        self._drops.append((position, table))

    def withdraw(self) -> None:
        """Take back the last drop, which is undone."""
        self._drops.pop()

    def free(self, commit_position: int) -> bool:
        """Free the next ROWS_PER_STEP rows. Return whether any are left that may be freed.

        `commit_position` is the position of the undo log before which no change can be undone.
        """
        tables, drops = self._tables, self._drops
        while drops and drops[0][0] < commit_position:
            self.add(drops.pop(0)[1])
        rows = ROWS_PER_STEP
        while tables and rows:
            table = tables[-1]
            if not table:
                tables.pop()
                continue
            row = table.popitem()[1] if isinstance(table, dict) else table.pop()
            tables.extend(_tables_of(row))
            rows -= 1
        return bool(tables)


def _tables_of(row: Any) -> tuple[Any, ...]:
    """Return the tables that a row is or has."""
    if isinstance(row, (dict, deque, SortedList)):
        return (row,)
    if isinstance(row, CounterTable):
        # The queues first: they only refer to what the entries free.
        return (row.entries, row.groups, row.early_ends, row.lapses)
    if isinstance(row, CounterGroup):
        return tuple([table for table in (row.order, row.values, row.lapses) if table is not None])
    return ()
