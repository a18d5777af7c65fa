"""States through snapshots, and states compared table by table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gavel.internal.v1.state_snapshot_pb2 import StateSnapshot
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.stored_event import StoredEvent
from gavel_rules.identity.grants import CompiledGrants
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet
from gavel_rules.state.contest_tables import ContestTables
from gavel_rules.state.counters import CounterTable
from gavel_rules.state.packed_evidence import evidence_rows, pack_evidence, pages_in_memory, unpack_evidence
from gavel_rules.state.records import Candidate, ClosedAction, LiveDecision, Refusals
from gavel_rules.state.refused_traces import RefusedTraces
from gavel_rules.state.snapshot.decoding import StateDecoder
from gavel_rules.state.snapshot.encoding import encode_position, encode_tables
from gavel_rules.state.state import State
from gavel_rules.state.tool_result_tables import ToolResultTables
from gavel_rules.state.tools import ToolRegistry
from gavel_rules.state.versions import TraceVersions
from google.protobuf.message import Message
from sortedcontainers import SortedList

# Attributes of a store that are not tables of the bus, and evidence, which may be in two places.
_LEFT_OUT = {"undo_log", "evidence", "evidence_pages", "semantics"}


def restore(state: State) -> State:
    """Return the state that a snapshot of a state gives."""
    decoder = StateDecoder(state.bus)
    for part in (encode_position(state.store, bytes(32), "first"), *encode_tables(state.store)):
        decoder.add(StateSnapshot.FromString(part))
    return decoder.finish()


def page_out(state: State, subjects: Iterable[str]) -> None:
    """Move the evidence about some subjects of a state into new pages, which have all of its evidence."""
    rows = evidence_rows(state.store.evidence, state.store.evidence_pages)
    packed = {subject: keys if isinstance(keys, bytes) else pack_evidence(keys) for subject, keys in rows}
    state.store.use_pages(pages_in_memory(state.head, packed))
    state.store.page_out(subjects)


def tables(state: State) -> dict[str, Any]:
    """Return every table of a state as plain values, derived ones included."""
    store = state.store
    plain = {name: _plain(value) for name, value in _attributes(store).items() if name not in _LEFT_OUT}
    rows = evidence_rows(store.evidence, store.evidence_pages)
    evidence = {subject: unpack_evidence(keys) if isinstance(keys, bytes) else keys for subject, keys in rows}
    return {**plain, "evidence": _plain(evidence), "semantics": store.semantics.arbiter_version}


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
        case Candidate() | ClosedAction() | Refusals() | TraceVersions():
            return value.plain()
        case LiveDecision():
            return _plain(value.values())
        case CounterTable():
            names = ("opened_at", "policy_id", "version", "entries", "totals", "lapses", "lapses_by_group", "order", "values", "faults")
            return [value.counter.digest, *(_plain(getattr(value, name)) for name in (*names, "early_ends", "flags"))]
        case ContestTables() | RefusedTraces() | ToolRegistry() | ToolResultTables():
            return _plain(_attributes(value))
        case Message():
            return value.SerializeToString(deterministic=True)
        case tuple() | list() | SortedList():
            return [_plain(item) for item in value]
    return value
