"""The tables of counters: their entries, their groups, and the number that a read gives at a time.

A counter has entries, one for each event that counts, until they lapse. Each group adds its entries up with each change and queues them in
the order in which they lapse, so a read costs no more than the entries that have lapsed since the last event. A reservation that is not
settled is in no queue: it counts until its decision ends (`NEVER_MS`).

A counter fails closed: it gives no number while an event that it should have counted found no room, or could not be evaluated. For a
reservation that is until its decision ends; it is then entered in a group of its own (`lacking_group`). Any other event that is lacking in
one group alone is entered in such a group too (`faulty_group`), until it would have lapsed. Without room for that, and in arbiter version
2, it is in `faults`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from sortedcontainers import SortedList

from gavel_rules.language.counters.counter import (
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

# Groups of a counter with a fault that is no entry. If more have one, no group gives a number.
FAULTY_GROUPS_MAX: Final = 100
# Lapses that are examined to foresee when a full counter has room.
LAPSES_FORESEEN: Final = 1_000
# Stands for every group in faults. It is longer than any key, so no event has it.
ALL_GROUPS: Final = "*" * (GROUP_LENGTH_MAX + 1)
_FAULTY: Final = ALL_GROUPS + ":"
# The aggregate of a group by `faulty_group`, which has no number: its entries are ordered by when they lapse.
_LONGEST: Final = "longest"

# Flags of a table.
FILLED: Final = "filled"
IN_FORCE: Final = "in force"
PINNED: Final = "pinned"


class CounterEntry:
    """An event that counts: docs/performance.md#plain-classes."""

    def __init__(self, entry_id: str, group: str, value: int | str, lapses_at_ms: int, sequence_number: int) -> None:
        self.entry_id: Final = entry_id  # see the message CounterEntry
        self.group: Final = group
        self.value: Final[int | str] = value
        self.amount: Final[int] = value if isinstance(value, int) else 0  # what it adds to the group's total
        self.lapses_at_ms: Final = lapses_at_ms
        self.sequence_number: Final = sequence_number  # of the event

    def replace(self, value: int | str, sequence_number: int) -> CounterEntry:
        """Return a copy with another value and sequence number."""
        return CounterEntry(self.entry_id, self.group, value, self.lapses_at_ms, sequence_number)

    def plain(self) -> list[object]:
        """Return all fields as JSON values."""
        return [self.entry_id, self.group, self.value, self.lapses_at_ms, self.sequence_number]


class Reading:
    """The result of reading a counter for a group. `frees_at_ms` is when the next of its entries lapses; 0: none will by itself."""

    def __init__(self, value: float, frees_at_ms: int) -> None:
        self.value: Final = value
        self.frees_at_ms: Final = frees_at_ms


_EMPTY: Final = Reading(0, 0)


class CounterGroup:
    """The entries of one group, added up."""

    def __init__(self, aggregate: str) -> None:
        self.aggregate: Final = aggregate
        self.entry_count = 0
        self.total = 0
        self.lapses: Final[deque[CounterEntry]] = deque()  # see `_enqueue`
        # Of min, max and last: see `_place`. Of distinct: the number of entries with each value.
        self.order: Final[SortedList | None] = SortedList() if aggregate in (MIN, MAX, LAST, _LONGEST) else None
        self.values: Final[dict[str, int] | None] = {} if aggregate == DISTINCT else None

    def add(self, entry: CounterEntry) -> None:
        """Add an entry."""
        self.entry_count += 1
        self.total += entry.amount
        if entry.lapses_at_ms != NEVER_MS:
            _enqueue(self.lapses, entry)
        if self.order is not None:
            self.order.add(self._place(entry))
        if self.values is not None:
            text = str(entry.value)
            self.values[text] = self.values.get(text, 0) + 1

    def remove(self, entry: CounterEntry) -> None:
        """Take an entry back."""
        self.entry_count -= 1
        self.total -= entry.amount
        if entry.lapses_at_ms != NEVER_MS:
            _dequeue(self.lapses, entry)
        if self.order is not None:
            self.order.remove(self._place(entry))
        if self.values is not None:
            text = str(entry.value)
            if self.values[text] == 1:
                del self.values[text]
            else:
                self.values[text] -= 1

    def value_without(self, entries: Iterable[CounterEntry], all_entries: Mapping[str, CounterEntry]) -> int:
        """Return the value without some of the group's entries. `all_entries` are those of the counter, by id."""
        if self.order is not None:
            missing = {entry.entry_id for entry in entries}
            for _, _, entry_id in reversed(self.order) if self.aggregate in (MAX, LAST) else self.order:
                if entry_id not in missing:
                    return all_entries[entry_id].amount
            return 0
        if self.values is not None:
            counts: dict[str, int] = {}
            for entry in entries:
                text = str(entry.value)
                counts[text] = counts.get(text, 0) + 1
            return len(self.values) - sum([self.values[text] == count for text, count in counts.items()])
        return self.total - sum([entry.amount for entry in entries])

    @property
    def last_sequence_number(self) -> int:
        """The sequence number of the last entry in order; 0 if it has none."""
        return self.order[-1][1] if self.order else 0

    def _place(self, entry: CounterEntry) -> tuple[int, int, str]:
        key = entry.amount
        if self.aggregate == LAST:
            key = entry.sequence_number
        elif self.aggregate == _LONGEST:
            key = entry.lapses_at_ms
        return key, entry.sequence_number, entry.entry_id


class EarlyEnd:
    """The end of a reservation that came before its entry, because its counter was still being filled.

    `settled` is the entry that its reports of an effect have settled: the first of them at `since_ms`, the last one is event `reported_at`.
    `is_released` says whether the reservation had ended without an effect before these reports. `undone_before` is the sequence number at
    which a compensation was approved, which undoes what was settled before; 0: none was.
    """

    def __init__(
        self,
        settled: CounterEntry | None = None,
        since_ms: int = 0,
        reported_at: int = 0,
        *,
        is_released: bool = False,
        undone_before: int = 0,
    ) -> None:
        self.settled: Final = settled
        self.since_ms: Final = since_ms
        self.reported_at: Final = reported_at
        self.is_released: Final = is_released
        self.undone_before: Final = undone_before

    def change(self, entry: CounterEntry, counter: CompiledCounter) -> CounterEntry | None:
        """Return what counts in place of the entry that the fill brings; None if nothing does."""
        settled = self.settled
        is_open = entry.lapses_at_ms == NEVER_MS
        is_undone = not is_open and entry.sequence_number < self.undone_before
        if settled is None:
            return None if is_undone or (is_open and self.is_released) else entry
        if is_undone or (is_open and self.is_released) or entry.lapses_at_ms <= self.since_ms:
            return settled
        value = settled.value if is_open else amount_after(counter, entry.value, settled.value)
        return settled.replace(value, max(entry.sequence_number, settled.sequence_number))

    def plain(self) -> list[object]:
        """Return all fields as JSON values."""
        settled = None if self.settled is None else self.settled.plain()
        return [settled, self.since_ms, self.reported_at, self.is_released, self.undone_before]


NO_END: Final = EarlyEnd()


class CounterFault(NamedTuple):
    """An event that a group lacks, and until when the group therefore gives no number. Of two faults, the greater one prevails."""

    until_ms: int
    sequence_number: int  # of the event


_NO_FAULT: Final = CounterFault(0, 0)


class UncountedEvent(NamedTuple):
    """An event that a counter could not count, or could not settle a reservation by. Operators should be told."""

    policy_id: str  # the rule set for which the counter was opened
    counter: str
    sequence_number: int
    until_ms: int  # until when the counter gives no number; 0: until the decision of the reservation ends


class Absence(NamedTuple):
    """Why a counter gives no number, or has no room."""

    cause: str
    until_ms: int = 0  # 0: not known


NOT_COUNTING: Final = Absence("it is not in force, or not filled yet")


class CounterTable:
    """The entries of one counter. Only `transitions.counters`, `transitions.reservations` and the undo log change it."""

    def __init__(self, counter: CompiledCounter, opened_at: int, policy_id: str = "", version: int = 0) -> None:
        self.counter: Final = counter
        self.policy_id: Final = policy_id  # the rule set for which it was opened
        self.version: Final = version
        self.opened_at: Final = opened_at  # the sequence number from which on it counts events itself
        self.entries: Final[dict[str, CounterEntry]] = {}
        self.groups: Final[dict[str, CounterGroup]] = {}
        self.lapses: Final[deque[CounterEntry]] = deque()  # see `_enqueue`
        # By group, of the events that it lacks the one whose absence lasts longest; ALL_GROUPS stands for every group.
        self.faults: Final[dict[str, CounterFault]] = {}
        # What became of reservations from before `opened_at` before the fill brought their entries.
        self.early_ends: Final[dict[str, EarlyEnd]] = {}
        self.flags: Final[dict[str, bool]] = {}  # FILLED, IN_FORCE and PINNED: True, or not there
        self.lacking_count = 0  # entries of groups that hold what others lack
        self.faulty_group_count = 0  # groups by `faulty_group`, which `groups` has among the others

    @property
    def is_filled(self) -> bool:
        """Whether the counter has the entries of the events before it was opened."""
        return FILLED in self.flags

    @property
    def is_in_force(self) -> bool:
        """Whether a rule set in force reads the counter, or one did."""
        return IN_FORCE in self.flags

    @property
    def is_pinned(self) -> bool:
        """Whether the counter counts a log from its beginning, and ignores events that open, fill or drop counters."""
        return PINNED in self.flags

    def without_lapsed(self, now_ms: int) -> CounterTable:
        """Return a copy without the entries that have lapsed. It passes over these only if others never lapse."""
        copy = CounterTable(self.counter, self.opened_at, self.policy_id, self.version)
        copy.faults.update(self.faults)
        copy.early_ends.update(self.early_ends)
        copy.flags.update(self.flags)
        if len(self.entries) > len(self.lapses):
            for entry in self.entries.values():
                if entry.lapses_at_ms == NEVER_MS:
                    copy.add(entry)
        later = []
        for entry in reversed(self.lapses):
            if entry.lapses_at_ms <= now_ms:
                break
            later.append(entry)
        for entry in reversed(later):
            copy.add(entry)
        return copy

    def add(self, entry: CounterEntry) -> None:
        """Add an entry."""
        self.entries[entry.entry_id] = entry
        group = self.groups.get(entry.group)
        if group is None:
            # The total of a lacking group has no meaning, but a refusal names its latest entry as the cause.
            aggregate = self.counter.aggregate
            if _is_faulty(entry.group):
                aggregate = _LONGEST
                self.faulty_group_count += 1
            elif len(entry.group) > GROUP_LENGTH_MAX:
                aggregate = LAST
            group = self.groups[entry.group] = CounterGroup(aggregate)
        group.add(entry)
        if len(entry.group) > GROUP_LENGTH_MAX:
            self.lacking_count += 1
        if entry.lapses_at_ms != NEVER_MS:
            _enqueue(self.lapses, entry)

    def remove(self, entry: CounterEntry) -> None:
        """Take an entry back: the inverse of `add`."""
        del self.entries[entry.entry_id]
        group = self.groups[entry.group]
        if group.entry_count == 1:
            del self.groups[entry.group]
            self.faulty_group_count -= _is_faulty(entry.group)
        else:
            group.remove(entry)
        if len(entry.group) > GROUP_LENGTH_MAX:
            self.lacking_count -= 1
        if entry.lapses_at_ms != NEVER_MS:
            _dequeue(self.lapses, entry)

    def read(self, group: str, now_ms: int, excluded_id: str = "") -> Reading | None:
        """Return the number of a group; None if an entry may be missing, or if a double does not hold the number exactly.

        `now_ms` is not before the last event. `excluded_id` is the entry of a proposal that is being decided after its contest, which has
        been counted already.
        """
        if not self.is_filled or len(group) > GROUP_LENGTH_MAX or self.has_fault(group, now_ms):
            return None
        counter_group = self.groups.get(group)
        if counter_group is None:
            return _EMPTY
        lapses = counter_group.lapses
        frees_at_ms = lapses[0].lapses_at_ms if lapses else 0
        value = counter_group.total
        if not self.counter.is_additive or 0 < frees_at_ms <= now_ms or (excluded_id and excluded_id in self.entries):
            if len(lapses) == counter_group.entry_count and lapses[-1].lapses_at_ms <= now_ms:
                return _EMPTY  # there may be many
            missing: list[CounterEntry] = []
            own = self.entries.get(excluded_id)
            frees_at_ms = 0
            for entry in lapses:
                if entry.lapses_at_ms <= now_ms:
                    missing.append(entry)
                elif entry is not own:
                    frees_at_ms = entry.lapses_at_ms
                    break
            if own is not None and own.group == group and own.lapses_at_ms > now_ms:
                missing.append(own)
            value = counter_group.value_without(missing, self.entries)
        if not -TOTAL_MAX <= value <= TOTAL_MAX:
            return None
        return Reading(self.counter.from_units(value), frees_at_ms)

    def has_fault(self, group: str, now_ms: int) -> bool:
        """Return whether a group gives no number, because it lacks an event, or any group may lack one."""
        return self._lacks_reservation(group) or (
            (bool(self.faults) or self.faulty_group_count > 0) and self._fault(group).until_ms > now_ms
        )

    def _lacks_reservation(self, group: str) -> bool:
        return bool(self.lacking_count) and (ALL_GROUPS in self.groups or lacking_group(group) in self.groups)

    def _fault(self, group: str) -> CounterFault:
        fault = max(self.faults.get(ALL_GROUPS, _NO_FAULT), self.faults.get(group, _NO_FAULT))
        faulty = self.groups.get(faulty_group(group)) if self.faulty_group_count else None
        if faulty is None:
            return fault
        return max(fault, CounterFault(faulty.lapses[-1].lapses_at_ms, faulty.last_sequence_number))

    def explain_absence(self, group: str, now_ms: int) -> Absence:
        """Return why a group gives no number."""
        if not self.is_filled:
            return NOT_COUNTING
        if len(group) > GROUP_LENGTH_MAX:
            return Absence(f"its key has more than {GROUP_LENGTH_MAX} characters")
        return self._explain_fault(group, now_ms) or Absence("its number is beyond 2^53 of its smallest unit")

    def explain_lack_of_room(self, now_ms: int) -> Absence:
        """Return why one more entry finds no room."""
        if not self.is_filled:
            return NOT_COUNTING
        fault = self._explain_fault(ALL_GROUPS, now_ms)
        if fault is not None:
            return fault
        entries, _ = self._sizes(now_ms)
        counter = self.counter
        full, most = ("groups", counter.groups_max) if entries < counter.entries_max else ("entries", counter.entries_max)
        return Absence(f"it has all {full} that `{full}_max: {most}` permits", self._room_at_ms(now_ms))

    def _room_at_ms(self, now_ms: int) -> int:
        """Return when one more entry finds room if none is added; 0 if the next LAPSES_FORESEEN lapses do not tell."""
        lapsed: dict[str, int] = {}
        empty = 0
        lapses = list(islice(self.lapses, LAPSES_FORESEEN + 1))
        for count, entry in enumerate(lapses[:LAPSES_FORESEEN], 1):
            of_group = lapsed[entry.group] = lapsed.get(entry.group, 0) + 1
            empty += of_group == self.groups[entry.group].entry_count and not _is_faulty(entry.group)
            if count < len(lapses) and lapses[count].lapses_at_ms == entry.lapses_at_ms:
                continue  # they lapse together; their order says nothing, as a snapshot does not keep it
            if entry.lapses_at_ms > now_ms and self._fits_one(len(self.entries) - count, self._group_count - empty):
                return entry.lapses_at_ms
        return 0

    def _explain_fault(self, group: str, now_ms: int) -> Absence | None:
        if self._lacks_reservation(group):
            groups = [self.groups[name] for name in (ALL_GROUPS, lacking_group(group)) if name in self.groups]
            number = max([lacking.last_sequence_number for lacking in groups])
            return Absence(f"the reservation of event {number} could not be counted, and its decision has not ended")
        fault = self._fault(group)
        if fault.until_ms > now_ms:
            return Absence(f"event {fault.sequence_number} could not be counted", fault.until_ms)
        return None

    def has_room(self, name: str, group: CounterGroup | None) -> bool:
        """Return whether one more entry finds room in a group, which is new if `group` is None.

        A group that gives no number takes entries too: it may give one again. Groups by `faulty_group` leave the others their room.
        """
        if group is not None:
            return self._fits_one(len(self.entries), 0)
        return self._fits_one(len(self.entries), self.faulty_group_count if _is_faulty(name) else self._group_count)

    def has_room_for_one(self, now_ms: int) -> bool:
        """Return whether one more entry finds room at `now_ms`, whatever its group."""
        if not self.is_filled or self.has_fault(ALL_GROUPS, now_ms):
            return False
        if self._fits_one(len(self.entries), self._group_count):
            return True
        return self._fits_one(*self._sizes(now_ms))  # it was full at the last event; what has lapsed since makes room

    def _sizes(self, now_ms: int) -> tuple[int, int]:
        """Return the number of entries at `now_ms`, and of groups that have any."""
        lapsed: dict[str, int] = {}
        for entry in self.lapses:
            if entry.lapses_at_ms > now_ms:
                break
            lapsed[entry.group] = lapsed.get(entry.group, 0) + 1
        empty = sum([self.groups[group].entry_count == count for group, count in lapsed.items() if not _is_faulty(group)])
        return len(self.entries) - sum(lapsed.values()), self._group_count - empty

    @property
    def _group_count(self) -> int:
        return len(self.groups) - self.faulty_group_count

    def _fits_one(self, entries: int, groups: int) -> bool:
        counter = self.counter
        return entries < counter.entries_max and (groups < counter.groups_max or not counter.has_groups)

    def frees_at_ms(self, group: str, now_ms: int, most: int) -> int:
        """Return when enough entries of a group will have lapsed for it to have at most `most`; 0 if that cannot be foreseen."""
        if not self.counter.is_additive:
            return 0
        counter_group = self.groups.get(group)
        total = counter_group.total if counter_group is not None else 0
        at_ms = now_ms
        # All entries of a time lapse together. Their order says nothing: a snapshot does not keep it.
        for entry in counter_group.lapses if counter_group is not None else ():
            if entry.lapses_at_ms > at_ms:
                if total <= most:
                    break
                at_ms = entry.lapses_at_ms
            total -= entry.amount
        return at_ms if total <= most else 0


def amount_after(counter: CompiledCounter, settled: int | str, reported: int | str) -> int | str:
    """Return what counts for a decision after another report of an effect: the larger amount, or what was settled first."""
    if isinstance(settled, int) and isinstance(reported, int) and counter.aggregate in (SUM, MAX):
        return max(settled, reported)
    return settled


def lacking_group(group: str) -> str:
    """Return the group that holds the reservations which a group lacks. While it has an entry, the other group gives no number."""
    return group if group == ALL_GROUPS else f"{ALL_GROUPS}/{group}"


def faulty_group(group: str) -> str:
    """Return the group that holds the other events which a group lacks. Until they have lapsed, the other group gives no number."""
    return _FAULTY + group


def _is_faulty(group: str) -> bool:
    return group.startswith(_FAULTY)


CountersByName = dict[str, tuple[CounterTable, ...]]
NO_COUNTERS: Final[CountersByName] = {}


def index_counters(tables: Iterable[CounterTable]) -> dict[str, CountersByName]:
    """Return the counters by the source and then the action type or fact key of the events that they count."""
    index: dict[str, CountersByName] = {}
    for table in tables:
        names = index.setdefault(table.counter.source, {})
        for name in (*table.counter.actions, *table.counter.fact_keys):
            names[name] = (*names.get(name, ()), table)
    return index


def _enqueue(queue: deque[CounterEntry], entry: CounterEntry) -> None:
    """Put an entry into a queue of entries, the next one to lapse first.

    New entries lapse last. The first place is that of an entry that lapses by an event that is undone, and any other that of a fill.
    """
    lapses_at_ms = entry.lapses_at_ms
    if not queue or queue[-1].lapses_at_ms <= lapses_at_ms:
        queue.append(entry)
    elif queue[0].lapses_at_ms >= lapses_at_ms:
        queue.appendleft(entry)
    else:
        queue.insert(bisect_right(queue, lapses_at_ms, key=_lapse_ms), entry)


def _lapse_ms(entry: CounterEntry) -> int:
    return entry.lapses_at_ms


def _dequeue(queue: deque[CounterEntry], entry: CounterEntry) -> None:
    if queue[0] is entry:
        queue.popleft()
    elif queue[-1] is entry:
        queue.pop()
    else:
        queue.remove(entry)
