"""Tables that nobody reads any more are freed in steps: what one step frees is counted, not timed."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact
from gavel_rules.counter_backlog import ENTRIES_PER_SORT, CounterBacklog
from gavel_rules.language.counters.counter import NEVER_MS
from gavel_rules.state.counters import CounterEntry, CounterTable
from gavel_rules.state.disposal import ROWS_PER_STEP
from gavel_rules.state.transitions.counters import enter

from tests.support.counted_plays import ACTION, WITH, WITHOUT
from tests.support.driver import Core, compile_cached
from tests.support.histories.story import play_story
from tests.support.state.snapshots import restore, tables

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


@pytest.mark.parametrize("groups", [1, ENTRIES])
@pytest.mark.parametrize("name", ["reserved", "smallest", "different"])
def test_entries_that_have_all_lapsed_are_freed_in_steps(name: str, groups: int) -> None:
    """Many entries that lapse together leave a counter at once and are freed in steps; one that never lapses stays; undo restores all."""
    core = Core(WITH[0])
    table = fill(core, name, groups)
    enter(core.state.store, table, CounterEntry("open", "group-open", "7" if name == "different" else 7, NEVER_MS, 1))
    core.state.commit()
    parts, before, digest, mark = parts_of(table), tables(core.state), core.state.digest(), core.state.mark()
    assert (0, 7) != (reading(table, "group-0", core.now_ms), reading(table, "group-open", core.now_ms))
    core.state.apply(next_fact(core, ENTRIES + 10_000))
    emptied = core.state.counters[table.counter.digest]
    assert (["open"], ["group-open"], 0) == (list(emptied.entries), list(emptied.groups), len(emptied.lapses))
    assert emptied in core.state.store.counters_by_event[table.counter.source][ACTION]
    core.state.undo(mark)
    assert (before, digest) == (tables(core.state), core.state.digest())
    left = count(parts)
    core.pass_time(ENTRIES + 10_000)
    core.fact("order.status", "delivered")
    assert left == count(parts)
    while core.state.store.disposal.has_tables:
        core.pass_time(1)
        core.fact("order.status", "delivered")
        freed = left - count(parts)
        assert freed <= ROWS_PER_STEP
        left -= freed
    assert 0 == left
    assert core.state.digest() == restore(core.state).digest()


@pytest.mark.parametrize("groups", [1, ENTRIES])
@pytest.mark.parametrize("name", ["reserved", "smallest", "different"])
def test_entries_that_lapse_before_a_few_others_cost_few_changes(name: str, groups: int) -> None:
    """If most entries of a counter lapse together, the others move to a new table in a few changes, which can be undone."""
    core = Core(WITH[0])
    table = fill(core, name, groups)
    before, digest, mark = tables(core.state), core.state.digest(), core.state.mark()
    core.state.apply(next_fact(core, ENTRIES + 10_000 - 11))
    assert core.state.mark() - mark < 10
    left = core.state.counters[table.counter.digest]
    assert [f"entry-{number}" for number in range(ENTRIES - 10, ENTRIES)] == [entry.entry_id for entry in left.lapses]
    assert (10, min(10, groups)) == (len(left.entries), len(left.groups))
    assert tables(restore(core.state))["counters"] == tables(core.state)["counters"]
    core.state.undo(mark)
    assert (before, digest) == (tables(core.state), core.state.digest())


@pytest.mark.parametrize("lapses_at_ms", [NEVER_MS, NEVER_MS - 1])
def test_entries_that_lapse_before_many_others_are_removed(lapses_at_ms: int) -> None:
    """If many times more entries are left than lapse together, they are not copied: each lapsed one costs one change."""
    core = Core(WITH[0])
    table = next(table for table in core.state.counters.values() if table.counter.name == "approved")
    lapsed = 1_000
    for number in range(10 * lapsed):
        enter(core.state.store, table, CounterEntry(f"entry-{number}", "", 1, core.now_ms + 1 if number < lapsed else lapses_at_ms, number))
    core.state.commit()
    mark = core.state.mark()
    core.state.apply(next_fact(core, 1))
    assert core.state.counters[table.counter.digest] is table
    assert lapsed <= core.state.mark() - mark < lapsed + 10
    assert 9 * lapsed == len(table.entries)


def reading(table: CounterTable, group: str, now_ms: int) -> float:
    """Return the number that a counter gives for a group."""
    result = table.read(group, now_ms)
    assert result is not None
    return result.value


def next_fact(core: Core, pause_ms: int) -> Envelope:
    """Return a fact that the log does not have, recorded a pause after its last event."""
    envelope = Envelope(event_id="next", sequence_number=core.state.head + 1, trace_id="t", subject="order/1", fact=Fact(key="order.note"))
    envelope.recorded_at.FromMilliseconds(core.now_ms + pause_ms)
    return envelope


def test_lapsed_entries_are_not_read_one_by_one() -> None:
    """A group of which every entry has lapsed since the last event is read as empty, without looking at its entries."""
    core = Core(WITH[0])
    table = fill(core, "different", 1)
    assert 1 == reading(table, "group-0", core.now_ms + ENTRIES + 9_998)
    values = table.groups["group-0"].values
    assert values is not None
    values.clear()  # a look at any entry would fail
    assert 0 == reading(table, "group-0", core.now_ms + ENTRIES + 9_999)


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


def test_a_fill_has_the_entries_after_those_that_lapsed_together() -> None:
    """If all entries of a counter lapse while its past is counted, the fill has those of the events after them."""
    core = Core(WITHOUT)
    backlog = CounterBacklog(core.bus, compile_cached(WITH[0]).counters.values(), len(core.events) + 1)
    store = backlog.state.store
    digest = next(table.counter.digest for table in store.counters.values() if table.counter.name == "approved")
    for number in range(ENTRIES):
        enter(store, store.counters[digest], CounterEntry(f"entry-{number}", "", 1, 1, number))
    backlog.feed(core.events[0])
    enter(store, store.counters[digest], CounterEntry("later", "", 1, NEVER_MS, ENTRIES))
    (filled,) = [filled for filled in backlog.fill_steps(core.now_ms, [digest]) if filled is not None]
    assert ["later"] == [entry.entry_id for entry in filled.entries]
