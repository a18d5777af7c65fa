"""The digest of a state: a hash over all of its content (`projection_digest` of the contract).

Equal states have equal digests, in whatever order their dicts were filled. The names of the parts enter the hash, so they stay when a
table is renamed.

A state may take seconds to hash. `digest_parts` therefore yields its text in parts of some hundred bytes; a caller may do something else
between two of them, as long as the state does not change.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from gavel.v1.envelope_pb2 import Envelope
from google.protobuf.message import Message

from gavel_rules.events.stored_event import StoredEvent
from gavel_rules.state.counters import CounterTable
from gavel_rules.state.packed_evidence import unpack_evidence, unpack_outliving_result
from gavel_rules.state.store import Store
from gavel_rules.state.tools import ToolRegistry

# Keys that are sorted at once, and items of a list that are encoded at once.
CHUNK_ITEMS: Final = 2048
# Values with more parts are encoded piece by piece, which takes longer.
VALUE_PARTS_MAX: Final = 1000

_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(store: Store) -> str:
    """Return "sha256:" and the hex digits of the SHA-256 over the store as sorted JSON."""
    return digest_of(digest_parts(store))


def digest_of(parts: Iterable[str]) -> str:
    """Return the digest of a text in parts."""
    text = hashlib.sha256()
    for part in parts:
        text.update(part.encode())
    return digest_text(text)


def digest_text(text: Any) -> str:
    """Return a finished hash of the text as a digest."""
    return "sha256:" + str(text.hexdigest())


def digest_parts(store: Store) -> Iterator[str]:
    """Yield the store as canonical JSON. An empty part comes after work that has no text, such as sorting keys."""
    tables: dict[str, Iterator[str]] = {
        "head": _text(store.head),
        "recorded_at_ms": _text(store.recorded_at_ms),
        "arbiter_version": _text(store.arbiter_version),
        "cross_check": _text(_plain_message(store.cross_check)),
        "idempotency_window_ms": _text(store.idempotency_window_ms),
        "clock_acceptance": _text(store.clock_acceptance),
        "rule_sets": _text(
            [
                (policy_id, version, deployed.digest, deployed.sequence_number)
                for (policy_id, version), deployed in sorted(store.rule_sets.items())
            ]
        ),
        "active": _table(store.active_rule_sets, lambda active: _text((*active[:3], active.rule_set.digest))),
        "shadows": _table(store.shadows, lambda shadow: _text((*shadow[:3], shadow.rule_set.digest, *shadow[4:]))),
        "evidence": _evidence(store),
        "open_proposals": _table(store.contest_tables.open_proposals, lambda event: _text(_plain_message(event.envelope))),
        "contests": _table(store.contest_tables.contests, _text),
        "waiting_of_subject": _table(store.contest_tables.open_proposals_by_subject, _in_order),
        "waiting_of_trace": _table(store.contest_tables.open_proposals_by_trace, _text),
        "decisions": _table(store.decisions, lambda live: _text(_plain_record(live.plain()))),
        "decisions_of_subject": _table(store.decisions_by_subject, _in_order),
        "holds": _table(store.conflict_keys, _text),
        "grants": _table(store.grants, _text),
        "departed": _table(store.ended_decisions, lambda ended: _text([_plain_record(ended.live.plain()), ended.ended_at_ms])),
        "reviews": _table(store.reviews, lambda review: _text(_plain_record(review))),
        "ended": _table(store.closed_actions, lambda actions: _text({key: closed.plain() for key, closed in actions.items()})),
        "traces": _table(store.traces, _text),
        "trace_reviews": _table(store.trace_reviews, _text),
        "refusals": _table(store.refusals, lambda refusals: _text({key: each.plain() for key, each in refusals.items()})),
        "tool_calls": _table(store.tool_calls, lambda calls: _text({key: call.sequence_number for key, call in calls.items()})),
        "tool_results": _table(store.tool_result_tables.tool_results, _text),
        "readings": _table(store.tool_result_tables.readings, _text),
        "contradicted": _table(store.tool_result_tables.contradictions, _text),
        "timers": _list(store.timers),
        "lapses": _list(store.trace_lapses),
        "departures": _list(store.decision_ends),
    }
    if store.refused_traces.by_trace:  # digests of buses of earlier arbiter versions stay what they were
        tables["refused_traces"] = _list(store.refused_traces.by_producer)
    if store.tool_result_tables.candidate_counts:
        tables["candidate_counts"] = _table(store.tool_result_tables.candidate_counts, _text)
    if store.semantics.keeps_readings:
        tables["outliving_results"] = _outliving_results(store)
    if store.trace_versions:
        tables["trace_versions"] = _table(store.trace_versions, lambda versions: _text(versions.plain()))
    if store.answers:
        tables["answers"] = _table(store.answers, _text)
    if store.tools.contracts or store.tools.providers:
        tables["tools"] = _text(_plain_tools(store.tools))
    if store.counters:
        tables["counters"] = _table(store.counters, _counter)
    if store.grants_in_force is not None:  # digests of buses without grants stay what they were
        tables["access_grants"] = _text(
            [(version, deployed.digest, deployed.sequence_number) for version, deployed in sorted(store.grants_versions.items())]
        )
        in_force = store.grants_in_force
        tables["access_grants_in_force"] = _text((in_force.deployed.version, in_force.deployed.sequence_number, in_force.binds_anonymous))
    yield from _table(tables, lambda parts: parts)


def _counter(table: CounterTable) -> Iterator[str]:
    """Yield a counter. Groups and queues follow from its entries."""
    parts: dict[str, Iterator[str]] = {
        "opened_at": _text(table.opened_at),
        "entries": _table(table.entries, lambda entry: _text(entry.plain())),
        "faults": _text(table.faults),
        "early_ends": _table(table.early_ends, lambda end: _text(end.plain())),
        "flags": _text(table.flags),
    }
    yield from _table(parts, lambda part: part)


def _plain_tools(tools: ToolRegistry) -> list[object]:
    """Return the registry of tools as plain values. Aliases follow from the contracts."""
    contracts = [[_plain_message(one.contract), one.sequence_number] for _, one in sorted(tools.contracts.items())]
    providers = [[_plain_message(one.provider), one.sequence_number] for _, one in sorted(tools.providers.items())]
    return [contracts, providers, sorted([*key, *bound] for key, bound in tools.bindings.items())]


def _table(table: Mapping[str, Any], parts_of: Callable[[Any], Iterator[str]]) -> Iterator[str]:
    """Yield a table as a JSON object, its keys sorted."""
    start = "{"
    runs: list[list[str]] = []
    names = iter(list(table))
    while run := sorted(islice(names, CHUNK_ITEMS)):
        runs.append(run)
        if len(run) == CHUNK_ITEMS:
            yield ""
    for name in heapq.merge(*runs) if len(runs) > 1 else (runs[0] if runs else ()):
        yield f"{start}{json.dumps(name)}:"
        yield from parts_of(table[name])
        start = ","
    yield "{}" if start == "{" else "}"


def _list(items: Any) -> Iterator[str]:
    """Yield a sorted list of plain tuples as a JSON array."""
    yield "["
    for first in range(0, len(items), CHUNK_ITEMS):
        yield ("," if first else "") + _ENCODER.encode(list(items[first : first + CHUNK_ITEMS]))[1:-1]
    yield "]"


def _in_order(numbers: Mapping[str, int]) -> Iterator[str]:
    """Yield keys as a JSON array, in the order of their numbers."""
    return _text(sorted(numbers, key=numbers.__getitem__))


def _evidence(store: Store) -> Iterator[str]:
    """Yield the evidence by subject. That in pages is read row by row."""
    start = "{"
    for subject, keys in store.paged_evidence.rows():
        yield f"{start}{json.dumps(subject)}:"
        yield from _table(unpack_evidence(keys) if isinstance(keys, bytes) else keys, _candidates)
        start = ","
    yield "{}" if start == "{" else "}"


def _outliving_results(store: Store) -> Iterator[str]:
    """Yield the tool results that have outlived their traces. Those in pages are read row by row."""
    start = "{"
    for event_id, row in store.tool_result_tables.outliving_results.rows():
        result = unpack_outliving_result(row) if isinstance(row, bytes) else row
        if result.candidate_count:
            yield f"{start}{json.dumps(event_id)}:"
            yield from _text(result.plain())
            start = ","
    yield "{}" if start == "{" else "}"


def _candidates(candidates: Iterable[Any]) -> Iterator[str]:
    return _text(sorted([candidate.plain() for candidate in candidates]))


def _text(value: object) -> Iterator[str]:
    """Yield a plain value as JSON."""
    if _has_many_parts(value):
        yield from _ENCODER.iterencode(value)
    else:
        yield _ENCODER.encode(value)


def _has_many_parts(value: object) -> bool:
    """Return whether a plain value has more parts than VALUE_PARTS_MAX, at any depth. Looks at no more than that."""
    waiting: list[Any] = [value]
    count = 0
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            item = item.values()
        elif not isinstance(item, (list, tuple)):
            continue
        count += len(item)
        if count > VALUE_PARTS_MAX:
            return True
        waiting.extend(part for part in item if isinstance(part, (dict, list, tuple)))
    return False


def _plain_message(message: Message) -> str:
    return message.SerializeToString(deterministic=True).hex()


def _plain_record(record: tuple[Any, ...]) -> list[object]:
    return [_plain_item(item) for item in record]


def _plain_item(item: Any) -> object:
    if isinstance(item, StoredEvent):
        return item.content.hex()
    if isinstance(item, tuple):
        return [_plain_member(member) for member in item]
    return _plain_message(item) if isinstance(item, Message) else item


def _plain_member(member: Any) -> object:
    if isinstance(member, Envelope):
        return member.event_id
    if not isinstance(member, tuple):
        return member
    return [part.event_id if isinstance(part, Envelope) else part for part in member]
