"""The tables of counters, and what reads of them give at a time.

A counter has entries, one for each event that counts, until they lapse: `lapses` orders them by that time. The totals of a group are
kept with each change, so a read costs no more than the entries that have lapsed since the last event. An entry of a reserved approval
lapses only when its decision ends (`NEVER_MS`).

A counter fails closed: it gives no number while an event that it should have counted found no room, or could not be evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from sortedcontainers import SortedList

from gavel_rules.language.counters.counter import (
    COUNT,
    DISTINCT,
    GROUP_LENGTH_MAX,
    LAST,
    MAX,
    MIN,
    NEVER_MS,
    SUM,
    TOTAL_MAX,
    CompiledCounter,
)

# Groups of a counter that lack an event. Beyond, all groups give no number.
FAULTY_GROUPS_MAX: Final = 100


class CounterEntry(NamedTuple):
    """An event that counts."""

    entry_id: str  # the decision_id of an approval, the event_id of any other event
    group: str
    value: int | str
    lapses_at_ms: int
    number: int  # the event's sequence number


class Totals(NamedTuple):
    """The number of a group's entries, and the sum of their values."""

    entries: int
    total: int


class Reading(NamedTuple):
    """The result of reading a counter for a group. `frees_at_ms` is when the next of its entries lapses; 0: none will by itself."""

    value: float
    frees_at_ms: int


_NO_TOTALS: Final = Totals(0, 0)


class CounterTable:
    """The entries of one counter. Read it freely; `transitions.counters` alone changes it."""

    def __init__(self, counter: CompiledCounter, opened_at: int, policy_id: str = "", version: int = 0) -> None:
        self.counter: Final = counter
        self.policy_id: Final = policy_id  # the rule set for which it was opened
        self.version: Final = version
        self.opened_at: Final = opened_at  # the sequence number from which on it counts events itself
        self.entries: Final[dict[str, CounterEntry]] = {}
        self.totals: Final[dict[str, Totals]] = {}
        self.lapses: Final[SortedList] = SortedList()  # (lapses_at_ms, entry_id)
        self.lapses_by_group: Final[dict[str, SortedList]] = {}  # the same for each group
        self.order: Final[dict[str, SortedList]] = {}  # of min, max and last, by group: (value or number, entry_id)
        self.values: Final[dict[str, dict[str, int]]] = {}  # of distinct, by group: the number of entries with each value
        # By group, and "*" for all: until when a read gives no number.
        self.faults: Final[dict[str, int]] = {}
        # Reserved approvals from before `opened_at` that ended before the fill brought their entries: the entry as it is then, or None.
        self.early_ends: Final[dict[str, CounterEntry | None]] = {}
        self.flags: Final[dict[str, bool]] = {}  # "filled", "in force", "pinned"

    @property
    def is_filled(self) -> bool:
        """Whether the counter has the entries of the events before it was opened."""
        return self.flags.get("filled", False)

    @property
    def is_pinned(self) -> bool:
        """Whether the counter counts a log from its beginning, and ignores events that open, fill or drop counters."""
        return self.flags.get("pinned", False)

    def read(self, group: str, now_ms: int, excluded_id: str = "") -> Reading | None:
        """Return the number of a group at `now_ms`, which is not before the last event; None if an entry may be missing, or if a double
        does not hold the number exactly.

        `excluded_id` is the event_id of a proposal that is being decided: one that waits for its contest has been counted already.
        """
        if not self.is_filled or len(group) > GROUP_LENGTH_MAX or self.is_full(group, now_ms):
            return None
        lapses = self.lapses_by_group.get(group)
        if lapses is None:
            return Reading(0, 0)
        lapsed = [entry_id for _, entry_id in lapses.irange(maximum=(now_ms, _HIGHEST))]
        frees_at_ms = lapses[len(lapsed)][0] if len(lapsed) < len(lapses) else 0
        own = self.entries.get(excluded_id)
        if own is not None and own.group == group and own.lapses_at_ms > now_ms:
            lapsed.append(excluded_id)
        value = self._value(group, lapsed)
        if abs(value) > TOTAL_MAX:
            return None
        return Reading(self.counter.number(value), 0 if frees_at_ms == NEVER_MS else frees_at_ms)

    def is_full(self, group: str, now_ms: int) -> bool:
        """Return whether a group gives no number, because an event of the group, or one of an unknown group, could not be entered."""
        faults = self.faults
        return bool(faults) and (faults.get(ALL_GROUPS, 0) > now_ms or faults.get(group, 0) > now_ms)

    def has_room(self, group: str) -> bool:
        """Return whether one more entry of a group finds room. A group that gives no number takes entries too: it may give one again."""
        counter = self.counter
        return len(self.entries) < counter.entries_max and (group in self.totals or len(self.totals) < counter.groups_max)

    def has_room_for_one(self, now_ms: int) -> bool:
        """Return whether one more entry finds room, whatever its group."""
        counter = self.counter
        return (
            self.is_filled
            and not self.is_full(ALL_GROUPS, now_ms)
            and len(self.entries) < counter.entries_max
            and len(self.totals) < counter.groups_max
        )

    def frees_at_ms(self, group: str, now_ms: int, amount: int, limit: int) -> int:
        """Return when enough entries of a group will have lapsed for `amount` to fit under `limit`; 0 if that cannot be foreseen."""
        lapses = self.lapses_by_group.get(group)
        if lapses is None or self.counter.aggregate not in (COUNT, SUM):
            return 0
        total: int = self.totals[group].total
        for lapses_at_ms, entry_id in lapses:
            if lapses_at_ms == NEVER_MS:
                return 0
            total -= _amount(self.entries[entry_id])
            if total + amount <= limit:
                due_ms: int = lapses_at_ms
                return max(due_ms, now_ms)
        return 0

    def _value(self, group: str, lapsed_ids: list[str]) -> int:
        """Return the value of a group without the entries that have lapsed."""
        aggregate = self.counter.aggregate
        if aggregate in (COUNT, SUM):
            total: int = self.totals[group].total
            for entry_id in lapsed_ids:
                total -= _amount(self.entries[entry_id])
            return total
        if aggregate == DISTINCT:
            counts = self.values[group]
            lapsed_counts: dict[str, int] = {}
            for entry_id in lapsed_ids:
                text = str(self.entries[entry_id].value)
                lapsed_counts[text] = lapsed_counts.get(text, 0) + 1
            return len(counts) - sum(1 for text, count in lapsed_counts.items() if counts[text] == count)
        outdated = set(lapsed_ids)
        for entry_id in _ids(self.order[group], from_end=aggregate in (MAX, LAST)):
            if entry_id not in outdated:
                return _amount(self.entries[entry_id])
        return 0


def _amount(entry: CounterEntry) -> int:
    value = entry.value
    return value if isinstance(value, int) else 0


# A group that no event has, for faults of all groups: `by` gives at most 256 characters.
ALL_GROUPS: Final = "*" * 300
# Above every entry_id.
_HIGHEST: Final = "\U0010ffff"


def order_key(table: CounterTable, entry: CounterEntry) -> tuple[Any, str] | None:
    """Return the place of an entry in its group's `order`; None if the counter needs none."""
    aggregate = table.counter.aggregate
    if aggregate in (MIN, MAX):
        return entry.value, entry.entry_id
    return (entry.number, entry.entry_id) if aggregate == LAST else None


def _ids(order: SortedList, *, from_end: bool) -> Iterator[str]:
    return (entry_id for _, entry_id in (reversed(order) if from_end else order))
