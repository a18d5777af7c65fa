"""Transitions of traces: counts of rejections, closed actions, and lapse.

A trace is remembered until it has been silent for TRACE_LAPSE_MS. Evidence outlives the traces that it was recorded in.
"""

from __future__ import annotations

from typing import Final

from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.stored_event import StoredEvent, pack_event
from gavel_rules.limits import TRACE_CLOSED_ACTIONS_MAX, TRACE_LAPSE_MS
from gavel_rules.state.keys import action_key
from gavel_rules.state.records import NO_REJECTIONS, ClosedAction, Rejections, Trace
from gavel_rules.state.store import Store


def has_lapsed(trace: Trace, now_ms: int) -> bool:
    """Return whether a trace has been silent for longer than TRACE_LAPSE_MS."""
    return now_ms - trace.last_event_ms > TRACE_LAPSE_MS


def touch_trace(store: Store, trace_id: str) -> None:
    """Note that a remembered trace has an event now."""
    trace = store.traces.get(trace_id)
    if trace is not None and trace.last_event_ms != store.recorded_at_ms:
        put_trace(store, trace_id, trace.at(store.recorded_at_ms))


def remember_trace(store: Store, trace_id: str) -> None:
    """Begin to remember a trace."""
    if trace_id not in store.traces:
        put_trace(store, trace_id, Trace(NO_REJECTIONS, store.recorded_at_ms))


def count_rejections(store: Store, trace_id: str, rejections: Rejections, review: str, refusal_fingerprint: str) -> None:
    """Set the rejections of a trace after a decision.

    `review` is the review that the decision opens, `refusal_fingerprint` that of the proposal that it refuses; "" if there is none.
    A trace without rejections, review, tool events and closed actions is forgotten.
    """
    trace = store.traces.get(trace_id)
    if rejections.total and trace is not None:
        refusal_fingerprint = refusal_fingerprint or trace.refusal_fingerprint
    review = review or (trace.review if trace else "")
    if rejections.total or review or trace_id in store.tool_calls or trace_id in store.tool_results or trace_id in store.closed_actions:
        put_trace(store, trace_id, Trace(rejections, store.recorded_at_ms, review, refusal_fingerprint))
    elif trace is not None:
        _drop_trace(store, trace_id, trace)


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
    """Forget traces that have lapsed. A trace under review stays, without its tool evidence."""
    horizon_ms = store.recorded_at_ms - TRACE_LAPSE_MS
    lapses = store.trace_lapses
    while lapses and lapses[0][0] < horizon_ms:
        trace_id = lapses[0][1]
        trace = store.traces[trace_id]
        _drop_trace(store, trace_id, trace)
        if trace.review:
            put_trace(store, trace_id, Trace(NO_REJECTIONS, store.recorded_at_ms, trace.review))


def put_trace(store: Store, trace_id: str, trace: Trace) -> None:
    """Set the memory of a trace and schedule its lapse."""
    old = store.traces.get(trace_id)
    if old is not None:
        if old.last_event_ms == trace.last_event_ms:
            store.put(store.traces, trace_id, trace)
            return
        store.unschedule(store.trace_lapses, (old.last_event_ms, trace_id))
    store.put(store.traces, trace_id, trace)
    store.schedule(store.trace_lapses, (trace.last_event_ms, trace_id))


def _drop_trace(store: Store, trace_id: str, trace: Trace) -> None:
    """Forget a trace; actions that a person closed stay closed."""
    store.unschedule(store.trace_lapses, (trace.last_event_ms, trace_id))
    store.drop(store.traces, trace_id)
    by_person = {key: closed for key, closed in store.closed_actions.get(trace_id, {}).items() if closed.by_person}
    store.drop(store.closed_actions, trace_id)
    if by_person:
        store.put(store.closed_actions, trace_id, by_person)
    store.drop(store.tool_calls, trace_id)
    for event_id in store.tool_results.get(trace_id, ()):
        store.drop(store.readings, event_id)
        store.drop(store.contradictions, event_id)
    store.drop(store.tool_results, trace_id)


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
