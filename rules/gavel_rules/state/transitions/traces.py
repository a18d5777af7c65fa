"""Transitions of traces: refusals that count against producers, closed actions, and lapse.

A trace is remembered until it has been silent for TRACE_LAPSE_MS. Evidence outlives the traces that it was recorded in, and so do the
readings of a tool result of which one is evidence: they may contradict each other. Refusals are forgotten earlier if they count in more
than REFUSED_TRACES_MAX traces: a producer that is refused in ever new traces would fill the memory. Such a producer loses its own refusals
first. It gains nothing by that: in a new trace it would begin without refusals anyway.

After a busy day and a silent one, a hundred thousand traces may have lapsed, and forgetting them all would hold up the decisions. Each
event therefore forgets some of them. A trace that has lapsed changes nothing until then: reads leave it out, and a transition first
forgets a trace whose memory it would use.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heapreplace
from typing import Final

from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.stored_event import StoredEvent, pack_event
from gavel_rules.limits import REFUSED_TRACES_MAX, TRACE_CLOSED_ACTIONS_MAX, TRACE_LAPSE_MS, TRACE_PRODUCERS_MAX
from gavel_rules.state.keys import action_key, parts_of_reading_key
from gavel_rules.state.records import ClosedAction, OutlivingResult, Refusals, Rejections
from gavel_rules.state.store import Store


def has_lapsed(last_event_ms: int, now_ms: int) -> bool:
    """Return whether a trace has been silent for longer than TRACE_LAPSE_MS."""
    return now_ms - last_event_ms > TRACE_LAPSE_MS


def touch_trace(store: Store, trace_id: str) -> None:
    """Note that a remembered trace has an event now. A trace that has lapsed is forgotten, so that the event begins it anew."""
    last_event_ms = store.traces.get(trace_id)
    if last_event_ms is not None and last_event_ms != store.recorded_at_ms:
        if has_lapsed(last_event_ms, store.recorded_at_ms):
            _drop_trace(store, trace_id)
            return
        store.unschedule(store.trace_lapses, (last_event_ms, trace_id))
        _remember_now(store, trace_id)


def remember_trace(store: Store, trace_id: str) -> None:
    """Begin to remember a trace."""
    if trace_id not in store.traces:
        _remember_now(store, trace_id)


def count_rejections(store: Store, proposal: RecordedEvent, rejections: Rejections, review: str, fingerprint: str) -> None:
    """Set what counts against a proposal's producer after the first decision on it.

    `review` is the review that the decision opens, `fingerprint` that of the proposal if it is refused; "" if there is none. A trace
    without refusals, tool events and closed actions is forgotten.
    """
    trace_id = proposal.trace_id
    of_trace = store.refusals.get(trace_id)
    if of_trace is not None or rejections.total or review:
        producer_type, producer_id = proposal.proposer
        key = store.semantics.refusals_key(producer_type, producer_id)
        if review:
            store.put(store.subtable(store.trace_reviews, trace_id), key, review)
        old = of_trace.get(key) if of_trace is not None else None
        if rejections.total:
            if old is not None:
                fingerprint = fingerprint or old.fingerprint
            _put_refusals(store, trace_id, key, Refusals(rejections, fingerprint, store.head))
        elif old is not None:
            store.drop_from(store.refusals, trace_id, key)
    if trace_id in store.traces and not _has_memory(store, trace_id):
        _drop_trace(store, trace_id)
    elif rejections.total and trace_id not in store.refused_traces.by_trace and store.semantics.limits_refused_traces:
        _note_refused_trace(store, trace_id, store.semantics.refusals_key(*proposal.proposer))


def end_review(store: Store, trace_id: str, producer: Producer, review: str) -> None:
    """Begin a producer's count in a trace anew: a person has resolved a review of its work, which no longer holds its proposals."""
    key = store.semantics.refusals_key(producer.type, producer.id)
    if store.trace_reviews.get(trace_id, _NO_REVIEWS).get(key) == review:
        store.drop_from(store.trace_reviews, trace_id, key)
    if key in store.refusals.get(trace_id, _NO_REFUSALS):
        store.drop_from(store.refusals, trace_id, key)


def begin_counts_anew(store: Store) -> None:
    """Forget all refusals, because the semantics have changed. Open reviews now stop proposals as the new semantics say."""
    for trace_id in list(store.refusals):
        store.drop(store.refusals, trace_id)
    for trace_id in list(store.refused_traces.by_trace):
        _forget_refused_trace(store, trace_id)
    for trace_id, of_trace in list(store.trace_reviews.items()):
        store.drop(store.trace_reviews, trace_id)
        for review in of_trace.values():
            producer = store.reviews[review].proposal.producer
            key = store.semantics.refusals_key(producer.type, producer.id)
            store.put(store.subtable(store.trace_reviews, trace_id), key, review)


def pair_tool_calls(store: Store) -> None:
    """Find the trace of every remembered tool call by its execution_id, because the semantics have changed.

    Before, several traces could use one execution_id. Only one of these calls stays: observations of results of the others are inference.
    """
    if not store.semantics.pairs_tool_calls:
        return
    for trace_id in sorted(store.tool_calls):
        for execution_id in list(store.tool_calls[trace_id]):
            if store.trace_of_execution.get(execution_id, trace_id) != trace_id:
                store.drop(store.tool_calls[trace_id], execution_id)
            else:
                store.put(store.trace_of_execution, execution_id, trace_id)


def assign_tool_result(store: Store, event_id: str, trace_id: str) -> None:
    """Make a trace the only one that has a tool result."""
    tables = store.tool_result_tables
    forget_if_lapsed(store, tables.trace_of_result.get(event_id, ""))
    former = tables.trace_of_result.get(event_id, trace_id)
    if former != trace_id:
        store.drop_from(tables.tool_results, former, event_id)
    store.put(tables.trace_of_result, event_id, trace_id)


def assign_tool_results(store: Store) -> None:
    """Find the trace of every remembered tool result, because the semantics have changed.

    Before, several traces could have results of one event_id. Only the last of these results stays.
    """
    if not store.semantics.keeps_readings:
        return
    for _, event_id, trace_id in sorted(
        (result.sequence_number, event_id, trace_id)
        for trace_id, results in store.tool_result_tables.tool_results.items()
        for event_id, result in results.items()
    ):
        assign_tool_result(store, event_id, trace_id)
        if event_id not in store.tool_result_tables.readings:  # dropped with another trace that had the event_id
            store.put(store.tool_result_tables.readings, event_id, {})


def count_candidates(store: Store) -> None:
    """Count the candidates that were read in each remembered tool result, because the semantics have changed.

    Every candidate of a result has a reading there. Results whose traces lapsed before are forgotten.
    """
    if not store.semantics.keeps_readings:
        return
    tables = store.tool_result_tables
    for event_id in sorted(tables.readings):
        count = 0
        for name in tables.readings[event_id]:
            subject, key = parts_of_reading_key(name)
            for candidate in store.evidence_of(subject).get(key, ()):
                if candidate.evidence_ref == event_id:
                    count += 1
        if count:
            store.put(tables.candidate_counts, event_id, count)


def close_action(store: Store, event: RecordedEvent, decision: Decision, by_person: bool) -> None:
    """Close the decision's action on its subject for its trace."""
    closed = ClosedAction(_stored_reasons(event, decision), event.event_id, store.head, by_person)
    actions = store.subtable(store.closed_actions, event.trace_id)
    store.put(actions, action_key(decision.action_type, event.subject), closed)
    if len(actions) > TRACE_CLOSED_ACTIONS_MAX:
        # A person's rejection stays. A closure by rules may be forgotten: the rules close the action again unless the facts have changed.
        by_rules = {key: closed.sequence_number for key, closed in actions.items() if not closed.by_person}
        if len(by_rules) > TRACE_CLOSED_ACTIONS_MAX:
            store.drop_oldest(actions, by_rules, len(by_rules) // 4)


def forget_lapsed_traces(store: Store) -> None:
    """Forget the next traces that have lapsed. Open reviews do not lapse."""
    lapses = store.trace_lapses
    count = LAPSED_TRACES_PER_EVENT if store.semantics.forgets_in_steps else len(lapses)
    while count and lapses and has_lapsed(lapses[0][0], store.recorded_at_ms):
        _drop_trace(store, lapses[0][1])
        count -= 1


def forget_if_lapsed(store: Store, trace_id: str) -> None:
    """Forget a trace if it is still remembered and has lapsed."""
    last_event_ms = store.traces.get(trace_id)
    if last_event_ms is not None and has_lapsed(last_event_ms, store.recorded_at_ms):
        _drop_trace(store, trace_id)


# Traces that have lapsed and that one event forgets: about two milliseconds.
LAPSED_TRACES_PER_EVENT: Final = 256
# Finding the producers with the most traces takes longer than forgetting one, and forgetting many would hold up the decisions.
_FORGOTTEN_AT_ONCE: Final = 64
_NO_REVIEWS: Final[Mapping[str, str]] = {}
_NO_REFUSALS: Final[Mapping[str, Refusals]] = {}


def _put_refusals(store: Store, trace_id: str, key: str, refusals: Refusals) -> None:
    remember_trace(store, trace_id)
    of_trace = store.refusals.get(trace_id)
    if of_trace is None:
        store.put(store.refusals, trace_id, {key: refusals})
        return
    store.put(of_trace, key, refusals)
    if len(of_trace) > TRACE_PRODUCERS_MAX:
        store.drop_oldest(of_trace, {key: each.sequence_number for key, each in of_trace.items()}, len(of_trace) // 4)


def _remember_now(store: Store, trace_id: str) -> None:
    """Set the time of a trace's last event, and schedule its lapse."""
    store.put(store.traces, trace_id, store.recorded_at_ms)
    store.schedule(store.trace_lapses, (store.recorded_at_ms, trace_id))


def _has_memory(store: Store, trace_id: str) -> bool:
    tool_results = store.tool_result_tables.tool_results
    return trace_id in store.refusals or trace_id in store.tool_calls or trace_id in tool_results or trace_id in store.closed_actions


def _note_refused_trace(store: Store, trace_id: str, producer: str) -> None:
    """Note that refusals count in a trace from now on; beyond REFUSED_TRACES_MAX, forget older refusals."""
    item = (producer, store.head, trace_id)
    refused = store.refused_traces
    store.put(refused.by_trace, trace_id, item)
    store.schedule(refused.by_producer, item)
    store.put(refused.counts, producer, refused.counts.get(producer, 0) + 1)
    # Refusals that have lapsed must not displace others. The next events forget them, and until then there may be more.
    if len(refused.by_trace) > REFUSED_TRACES_MAX and not has_lapsed(store.trace_lapses[0][0], store.recorded_at_ms):
        _forget_refusals(store)


def _forget_refused_trace(store: Store, trace_id: str) -> None:
    """Undo what `_note_refused_trace` noted, if it did."""
    refused = store.refused_traces
    item = refused.by_trace.get(trace_id)
    if item is None:
        return
    store.drop(refused.by_trace, trace_id)
    store.unschedule(refused.by_producer, item)
    count = refused.counts[item[0]] - 1
    if count:
        store.put(refused.counts, item[0], count)
    else:
        store.drop(refused.counts, item[0])


def _forget_refusals(store: Store) -> None:
    """Forget the refusals of _FORGOTTEN_AT_ONCE traces, one after the other: the oldest one of the producer that then has the most."""
    largest = [(-count, producer) for producer, count in store.refused_traces.counts.items()]
    heapify(largest)
    for _ in range(_FORGOTTEN_AT_ONCE):
        count, producer = largest[0]
        refused = store.refused_traces.by_producer
        trace_id = refused[refused.bisect_left((producer,))][2]
        if trace_id in store.tool_calls or trace_id in store.tool_result_tables.tool_results:
            _forget_refused_trace(store, trace_id)
            store.drop(store.refusals, trace_id)
            _keep_closed_by_person(store, trace_id)
        else:
            _drop_trace(store, trace_id)
        heapreplace(largest, (count + 1, producer))


def _keep_closed_by_person(store: Store, trace_id: str) -> None:
    """Forget the actions that rules closed for a trace; those that a person closed stay closed."""
    by_person = {key: closed for key, closed in store.closed_actions.get(trace_id, {}).items() if closed.by_person}
    store.drop(store.closed_actions, trace_id)
    if by_person:
        store.put(store.closed_actions, trace_id, by_person)


def _drop_trace(store: Store, trace_id: str) -> None:
    """Forget a trace; actions that a person closed stay closed."""
    store.unschedule(store.trace_lapses, (store.traces[trace_id], trace_id))
    store.drop(store.traces, trace_id)
    _forget_refused_trace(store, trace_id)
    store.drop(store.refusals, trace_id)
    _keep_closed_by_person(store, trace_id)
    for execution_id in store.tool_calls.get(trace_id, ()):
        store.drop(store.trace_of_execution, execution_id)
    store.drop(store.tool_calls, trace_id)
    tables = store.tool_result_tables
    for event_id in tables.tool_results.get(trace_id, ()):
        count = tables.candidate_counts.get(event_id, 0)
        if count:
            result = OutlivingResult(tables.readings[event_id], tables.contradictions.get(event_id, ""), count, store.head)
            store.put(tables.outliving_results.changes, event_id, result)
            store.drop(tables.candidate_counts, event_id)
        store.drop(tables.readings, event_id)
        store.drop(tables.contradictions, event_id)
        store.drop(tables.trace_of_result, event_id)
    store.drop(tables.tool_results, trace_id)


# A trace may close TRACE_CLOSED_ACTIONS_MAX actions a day, and params may have a megabyte.
_STORED_PARAMS_BYTES_MAX: Final = 1_024


def _stored_reasons(event: RecordedEvent, decision: Decision) -> StoredEvent:
    """Return the decision for a ClosedAction to keep; if its params are large, only the fields that a ClosedAction reads."""
    if decision.params.ByteSize() <= _STORED_PARAMS_BYTES_MAX:
        return event.stored
    return pack_event(
        Envelope(
            decision=Decision(
                active_rule_sets=decision.active_rule_sets, pinned_facts=decision.pinned_facts, absent_facts=decision.absent_facts
            )
        )
    )
