"""Tables that nobody reads any more are freed in steps: what one step frees is counted, not timed."""

from __future__ import annotations

from typing import Any

import pytest
from gavel_rules.counter_backlog import ENTRIES_PER_SORT, CounterBacklog
from gavel_rules.language.counters.counter import NEVER_MS
from gavel_rules.state.counters import CounterEntry, CounterTable
from gavel_rules.state.disposal import ROWS_PER_STEP
from gavel_rules.state.transitions.counters import enter

from tests.support.counted_plays import WITH, WITHOUT
from tests.support.driver import Core, compile_cached
from tests.support.histories.story import play_story
from tests.support.state.snapshots import tables

ENTRIES = 3 * ENTRIES_PER_SORT
# Rule sets, grants and tools are few; deployments and registrations limit them.
FEW = {"rule_sets", "active_rule_sets", "active_actions", "shadows", "shadows_by_action", "grants_versions", "tools"}


def fill(core: Core, name: str, groups: int) -> CounterTable:
    """Enter many entries into a counter of a bus and return it. The latest entries come first, as after settlements."""
    store = core.state.store
    table = next(table for table in core.state.counters.values() if table.counter.name == name)
    for number in reversed(range(ENTRIES)):
        value = str(number % 900) if name == "different" else number  # a counter has at most 1,000 different values
        enter(store, table, CounterEntry(f"entry-{number}", f"group-{number % groups}", value, core.now_ms + 10_000 + number, number))
    core.state.commit()
    assert ENTRIES == len(table.entries)
    return table


def parts_of(counter: CounterTable) -> list[Any]:
    """Return the tables of a counter and of its groups."""
    groups = [part for group in counter.groups.values() for part in (group.lapses, group.values, group.order) if part is not None]
    return [counter.entries, counter.groups, counter.lapses, *groups]


def count(parts: list[Any]) -> int:
    """Return the number of rows in tables."""
    return sum(len(part) for part in parts)


@pytest.mark.parametrize("groups", [1, ENTRIES])
@pytest.mark.parametrize("name", ["approved", "smallest", "different"])
def test_a_dropped_counter_is_freed_in_steps(name: str, groups: int) -> None:
    """Each event after the activation that drops a counter frees at most ROWS_PER_STEP of its rows, until all are freed."""
    core = Core(WITH[0])
    parts = parts_of(fill(core, name, groups))
    left = count(parts)
    core.activate(WITHOUT)
    assert (left, True) == (count(parts), core.state.store.disposal.has_tables)
    while core.state.store.disposal.has_tables:
        core.pass_time(1)
        core.fact("order.status", "delivered")
        freed = left - count(parts)
        assert 0 < freed <= ROWS_PER_STEP
        left -= freed
    assert 0 == left


def test_a_drop_that_is_undone_frees_nothing() -> None:
    """While the drop of a counter can be undone, no row is freed; after undoing it the counter is as it was."""
    core = Core(WITH[0])
    state, table = core.state, fill(core, "approved", 1)
    before = tables(state)
    position = state.mark()
    state.store.dispose(state.store.counters, table.counter.digest)
    assert not state.store.disposal.free(state.store.undo_log.commit_position)
    assert ENTRIES == len(table.entries)
    state.undo(position)
    state.commit()
    assert (before, False) == (tables(state), state.store.disposal.has_tables)


def test_a_state_is_freed_in_steps() -> None:
    """A whole state is freed in steps of at most ROWS_PER_STEP rows, and no table that grows with the log is left out."""
    core = play_story()
    backlog = CounterBacklog(core.bus, compile_cached(WITH[0]).counters.values(), len(core.events) + 1)
    for event in core.events:
        backlog.feed(event)
    counters = list(backlog.state.counters.values())
    for number in range(ENTRIES):
        enter(backlog.state.store, counters[0], CounterEntry(f"entry-{number}", "", 1, NEVER_MS, number))
    backlog.state.commit()
    parts = [part for counter in counters for part in parts_of(counter)]
    left = count(parts)
    disposal = backlog.state.store.dispose_all()
    while disposal.free(backlog.state.position):
        freed = left - count(parts)
        assert freed <= ROWS_PER_STEP
        left -= freed
    assert {} == {name: table for name, table in tables(backlog.state).items() if name not in FEW and is_filled(table)}


def is_filled(table: Any) -> bool:
    """Return whether a table has rows, or has tables with rows."""
    if isinstance(table, dict):
        return any(is_filled(row) if isinstance(row, (dict, list)) else True for row in table.values())
    return isinstance(table, list) and bool(table)


def test_the_entries_of_a_fill_are_sorted_in_steps() -> None:
    """The events that fill a counter have its entries by event, and no step sorts more than ENTRIES_PER_SORT of them."""
    core = Core(WITHOUT)
    backlog = CounterBacklog(core.bus, compile_cached(WITH[0]).counters.values(), len(core.events) + 1)
    table = next(table for table in backlog.state.counters.values() if table.counter.name == "approved")
    for number in reversed(range(ENTRIES)):
        enter(backlog.state.store, table, CounterEntry(f"entry-{number}", "", 1, number, number))
    steps = list(backlog.fill_steps(9))
    fills = [step for step in steps if step is not None]
    assert steps.count(None) >= ENTRIES / ENTRIES_PER_SORT
    assert fills == list(backlog.fills(9))
    entries = [entry.sequence_number for filled in fills if filled.digest == table.counter.digest for entry in filled.entries]
    assert list(range(10, ENTRIES)) == entries
    assert len(backlog.state.counters) == sum(filled.complete for filled in fills)
