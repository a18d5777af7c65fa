"""The store: every change can be undone until it is committed."""

from __future__ import annotations

from gavel_rules.state.packed_evidence import KeyCandidates, pack_evidence
from gavel_rules.state.paged_table import StatePages, pages_in_memory
from gavel_rules.state.records import Candidate, ToolCallRecord
from gavel_rules.state.store import Store

from tests.support.driver import Core


def changed_store() -> Store:
    """Return a store with one committed entry in each kind of table."""
    store = Store("orders")
    store.put(store.conflict_keys, "order/1", "a")
    store.put(store.subtable(store.tool_calls, "trace-1"), "exec_1", ToolCallRecord(7, "t"))
    store.schedule(store.timers, (10, 1, "a"))
    store.set("arbiter_version", 2)
    store.undo_log.commit()
    return store


def test_undo_restores_every_kind_of_change() -> None:
    """Undoing takes back replaced, added and dropped keys, scheduled items, attributes and actions."""
    store = changed_store()
    actions: list[str] = []
    position = store.undo_log.position
    store.put(store.conflict_keys, "order/1", "b")
    store.put(store.conflict_keys, "order/2", "c")
    store.drop(store.conflict_keys, "order/1")
    store.drop(store.conflict_keys, "order/3")
    store.put(store.subtable(store.tool_calls, "trace-2"), "exec_2", ToolCallRecord(8, "t"))
    store.drop_oldest(store.tool_calls["trace-1"], {"exec_1": 7}, 1)
    store.unschedule(store.timers, (10, 1, "a"))
    store.schedule(store.timers, (20, 2, "b"))
    store.set("arbiter_version", 3)
    store.undo_log.entries.append(lambda: actions.append("undone"))
    store.undo_log.undo(position)
    assert ({"order/1": "a"}, {"trace-1": {"exec_1": ToolCallRecord(7, "t")}}) == (store.conflict_keys, store.tool_calls)
    assert ([(10, 1, "a")], 2, ["undone"]) == (list(store.timers), store.arbiter_version, actions)


def test_undo_stops_at_its_position() -> None:
    """Undoing to a position keeps the changes before it, also if older entries are committed."""
    store = changed_store()
    store.put(store.conflict_keys, "order/2", "b")
    first = store.undo_log.position
    store.put(store.conflict_keys, "order/3", "c")
    store.undo_log.commit(first)
    second = store.undo_log.position
    store.put(store.conflict_keys, "order/4", "d")
    store.undo_log.undo(second)
    assert {"order/1": "a", "order/2": "b", "order/3": "c"} == store.conflict_keys
    store.undo_log.undo(first)
    assert {"order/1": "a", "order/2": "b"} == store.conflict_keys


def test_commit_forgets_everything() -> None:
    """Committed changes cannot be undone."""
    store = changed_store()
    store.put(store.conflict_keys, "order/2", "b")
    store.undo_log.commit()
    store.undo_log.undo(0)
    assert {"order/1": "a", "order/2": "b"} == store.conflict_keys


def test_evidence_in_pages_is_changed_in_a_copy() -> None:
    """Evidence in pages is changed in the own table of the store; undoing shows the pages again. What they have can be paged out."""
    candidate, later = candidates(sequence_number=5), candidates(sequence_number=6)
    store = Store("orders")
    store.use_pages(evidence_pages(5, {"order.status": candidate}))
    position = store.undo_log.position
    store.put(store.changeable_evidence("order/1"), "order.status", later)
    assert 6 == store.evidence_of("order/1")["order.status"][0].sequence_number
    store.undo_log.undo(position)
    assert ({}, 5) == (store.evidence, store.evidence_of("order/1")["order.status"][0].sequence_number)
    store.put(store.changeable_evidence("order/1"), "order.status", later)
    store.changeable_evidence("order/2")
    store.undo_log.commit()
    store.paged_evidence.page_out(["order/1", "order/2", "order/3"])
    assert {"order/1"} == store.evidence.keys()
    store.use_pages(evidence_pages(6, store.evidence["order/1"]))
    store.paged_evidence.page_out(["order/1"])
    assert ({}, 6) == (store.evidence, store.evidence_of("order/1")["order.status"][0].sequence_number)


def evidence_pages(number: int, keys: KeyCandidates) -> StatePages:
    """Return pages with the evidence about order/1."""
    return StatePages(pages_in_memory(number, {"order/1": pack_evidence(keys)}), pages_in_memory(number, {}))


def candidates(sequence_number: int) -> tuple[Candidate, ...]:
    """Return one candidate that an event has stated."""
    core = Core()
    for _ in range(sequence_number - core.state.head):
        core.fact("order.status", "delivered")
    evidence = core.state.store.evidence["order/1"]["order.status"]
    assert sequence_number == evidence[0].sequence_number
    return evidence
