"""The entries of a counter, against a plain list of them: reads, removals in any order, and the undo log."""

from __future__ import annotations

from typing import Any

import pytest
from gavel_rules.language.counters.counter import NEVER_MS
from gavel_rules.language.rule_set import compile_rule_set
from gavel_rules.state.counters import CounterEntry, CounterTable
from gavel_rules.state.state import State
from hypothesis import given
from hypothesis import strategies as st

from tests.support.counted_plays import COUNTERS, rule_set
from tests.support.state.snapshots import tables

COMPILED = {counter.name: counter for counter in compile_rule_set(rule_set(1)).counters.values()}
GROUPS = ("ann", "bob")
TIMES_MS = (1, 2, 3, 5, 8, NEVER_MS)
# The group, amount and time of an entry that is added, or the place of one that is removed.
CHANGE = st.one_of(st.tuples(st.sampled_from(GROUPS), st.integers(-3, 3), st.sampled_from(TIMES_MS)), st.integers(0, 20))


def new_table(name: str) -> tuple[State, CounterTable]:
    """Return a state with one counter, which is filled."""
    state = State("default")
    table = CounterTable(COMPILED[name], 1)
    state.store.put(state.store.counters, table.counter.digest, table)
    state.store.put(table.flags, "filled", True)
    state.commit()
    return state, table


def change(state: State, table: CounterTable, entries: list[CounterEntry], changes: list[Any]) -> None:
    """Make changes to a counter and to the plain list of its entries."""
    for number, one in enumerate(changes, start=len(entries)):
        if isinstance(one, int):
            if one < len(entries):
                state.store.unschedule(table, entries.pop(one))
            continue
        group, amount, lapses_at_ms = one
        value = str(amount) if "distinct" in COUNTERS[table.counter.name] else amount
        entry = CounterEntry(f"{number}-{len(entries)}-{state.position}", group, value, lapses_at_ms, number)
        entries.append(entry)
        state.store.schedule(table, entry)


def plain_value(name: str, entries: list[CounterEntry]) -> int:
    """Return what a counter gives for the entries of a group, in the order of their events."""
    counter = COUNTERS[name]
    amounts = [entry.amount for entry in entries]
    if "distinct" in counter:
        return len({entry.value for entry in entries})
    if not amounts or "sum" in counter or not {"min", "max", "last"} & counter.keys():
        return sum(amounts)
    latest = max(entries, key=lambda entry: (entry.sequence_number, entry.entry_id)).amount
    return min(amounts) if "min" in counter else max(amounts) if "max" in counter else latest


@pytest.mark.parametrize("name", sorted(COUNTERS))
@given(first=st.lists(CHANGE, max_size=20), second=st.lists(CHANGE, max_size=20), now_ms=st.sampled_from(TIMES_MS[:-1]))
def test_reads_and_undo(name: str, first: list[Any], second: list[Any], now_ms: int) -> None:
    """A read gives what the entries that have not lapsed give, and when the next one lapses; undoing changes brings the same back."""
    state, table = new_table(name)
    entries: list[CounterEntry] = []
    change(state, table, entries, first)
    mark = state.mark()
    more = list(entries)
    change(state, table, more, second)
    compare(table, more, now_ms)
    state.undo(mark)
    compare(table, entries, now_ms)
    assert {entry.entry_id for entry in entries} == table.entries.keys()


def compare(table: CounterTable, entries: list[CounterEntry], now_ms: int) -> None:
    """Compare reads of a counter, with and without one of the entries, with the plain list of its entries."""
    for group in GROUPS:
        live = [entry for entry in entries if entry.group == group and entry.lapses_at_ms > now_ms]
        for excluded in (None, *live[:1]):
            reading = table.read(group, now_ms, excluded.entry_id if excluded is not None else "")
            assert reading is not None
            counted = [entry for entry in live if entry is not excluded]
            lapses = [entry.lapses_at_ms for entry in counted if entry.lapses_at_ms != NEVER_MS]
            expected = table.counter.from_units(plain_value(table.counter.name, counted)), min(lapses, default=0)
            assert expected == (reading.value, reading.frees_at_ms)


def test_restored_queues() -> None:
    """Entries that are added in another order than they lapse stand in the same queues."""
    states = []
    for times_ms in ((1, 2, 3, 5), (5, 1, 3, 2)):
        state, table = new_table("approved")
        for lapses_at_ms in times_ms:
            table.add(CounterEntry(str(lapses_at_ms), "ann", 1, lapses_at_ms, lapses_at_ms))
        states.append({**tables(state)["counters"]})
    assert states[0] == states[1]
