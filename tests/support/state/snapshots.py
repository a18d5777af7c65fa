"""States through snapshots, and states compared table by table."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any

from gavel.internal.v1.state_snapshot_pb2 import StateSnapshot
from gavel_rules.codec.fields import length_prefixed
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.stored_event import StoredEvent
from gavel_rules.identity.grants import CompiledGrants
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet
from gavel_rules.state.contest_tables import ContestTables
from gavel_rules.state.counters import CounterEntry, CounterGroup, CounterTable, EarlyEnd
from gavel_rules.state.packed_evidence import pack_evidence, pack_outliving_result, unpack_evidence, unpack_outliving_result
from gavel_rules.state.paged_table import PagedTable, StatePages, pages_in_memory
from gavel_rules.state.records import Candidate, ClosedAction, LiveDecision, OutlivingResult, Refusals
from gavel_rules.state.refused_traces import RefusedTraces
from gavel_rules.state.snapshot.decoding import StateDecoder
from gavel_rules.state.snapshot.encoding import encode_position, encode_tables, state_sha256
from gavel_rules.state.state import State
from gavel_rules.state.store import Store
from gavel_rules.state.tool_result_tables import ToolResultTables
from gavel_rules.state.tools import ToolRegistry
from gavel_rules.state.versions import TraceVersions
from gavel_server.history.snapshot_files import SnapshotContent, SnapshotFiles
from gavel_server.log import Head
from google.protobuf.message import Message
from sortedcontainers import SortedList

# Attributes of a store that are not tables of the bus, or have rows in two places.
_LEFT_OUT = {"undo_log", "disposal", "uncounted_events", "evidence", "paged_evidence", "paged_tables", "semantics"}


def restore(state: State) -> State:
    """Return the state that a snapshot of a state gives."""
    decoder = StateDecoder(state.bus)
    for part in (encode_position(state.store, bytes(32), "first"), *encode_tables(state.store)):
        decoder.add(StateSnapshot.FromString(part))
    return decoder.finish()


def forge(files: SnapshotFiles, number: int, change: Callable[[Store], None]) -> None:
    """Change the state of a snapshot. The file still states the hash of its former tables, and ends with the right hash of its bytes."""
    state, position = files.read(number), files.read_position(number)
    stated = state_sha256(state.store)
    change(state.store)
    content = SnapshotContent(state, Head(number, position.chain_hash), position.incarnation)
    *parts, _ = (part.replace(state_sha256(state.store), stated) for part in content.parts())
    body = b"".join(parts)
    end = StateSnapshot(sha256=hashlib.sha256(body).digest())
    files.path(number).write_bytes(body + length_prefixed(end.SerializeToString()))


def page_out(state: State, leaves: Callable[[], bool]) -> None:
    """Give a state new pages with all of its rows, and leave those rows to them for which `leaves` returns true."""
    store = state.store
    pages = [
        pages_in_memory(state.head, {key: row if isinstance(row, bytes) else pack(row) for key, row in table.rows() if not _is_gone(row)})
        for table, pack in zip(store.paged_tables, _PACKS, strict=True)
    ]
    store.use_pages(StatePages(*pages))
    for table in store.paged_tables:
        table.page_out([key for key in table.changes if leaves()])


_PACKS: tuple[Callable[[Any], bytes], ...] = (pack_evidence, pack_outliving_result)


def _is_gone(row: object) -> bool:
    return isinstance(row, OutlivingResult) and not row.candidate_count


def tables(state: State) -> dict[str, Any]:
    """Return every table of a state as plain values, derived ones included."""
    store = state.store
    plain = {name: _plain(value) for name, value in _attributes(store).items() if name not in _LEFT_OUT}
    # Of these numbers only the order counts.
    for table in (plain["decisions_by_subject"], plain["contest_tables"]["open_proposals_by_subject"]):
        table.update({subject: sorted(numbers, key=numbers.__getitem__) for subject, numbers in table.items()})
    return {**plain, "evidence": _plain(_rows(store.paged_evidence, unpack_evidence)), "semantics": store.semantics.arbiter_version}


def _rows(table: PagedTable, unpack: Callable[[bytes], Any]) -> dict[str, Any]:
    """Return all rows of a paged table."""
    rows = {key: unpack(row) if isinstance(row, bytes) else row for key, row in table.rows()}
    return {key: row for key, row in rows.items() if not _is_gone(row)}


def _attributes(value: object) -> dict[str, Any]:
    """Return the public attributes of an object, which may be compiled, without its methods."""
    attributes = {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}
    return {name: attribute for name, attribute in attributes.items() if not callable(attribute)}


def _plain(value: Any) -> Any:  # one line for each kind of record
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case RecordedEvent():
            return [value.sequence_number, value.payload, value.event_id, value.trace_id, value.subject, value.stored.content]
        case StoredEvent():
            return value.content
        case CompiledRuleSet() | CompiledAction() | CompiledGrants():
            return value.digest
        case PagedTable():
            return _plain(_rows(value, unpack_outliving_result))
        case Candidate() | ClosedAction() | CounterEntry() | EarlyEnd() | OutlivingResult() | Refusals() | TraceVersions():
            return value.plain()
        case LiveDecision():
            return _plain(value.plain())
        case CounterTable():
            names = ("opened_at", "policy_id", "version", "entries", "groups", "lapses", "faults", "early_ends", "flags")
            return [value.counter.digest, *(_plain(getattr(value, name)) for name in names)]
        case CounterGroup():
            return _plain(_attributes(value))
        case ContestTables() | RefusedTraces() | ToolRegistry() | ToolResultTables():
            return _plain(_attributes(value))
        case Message():
            return value.SerializeToString(deterministic=True)
        case tuple() | list() | deque() | SortedList():
            return [_plain(item) for item in value]
    return value
