"""How each kind of event changes the state: one table from payload to transition.

A transition reads the event and the store, and nothing else, so one log always gives one state (constitution §10).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.state.store import Store
from gavel_rules.state.transitions.approvals import forget_ended_decisions
from gavel_rules.state.transitions.counters import count_event, expire_entries
from gavel_rules.state.transitions.decisions import apply_decision, apply_proposal
from gavel_rules.state.transitions.evidence import apply_fact, apply_observation, apply_tool_call, apply_tool_result
from gavel_rules.state.transitions.executions import apply_execution, apply_late_report, receive_derived_fact
from gavel_rules.state.transitions.reviews import add_vote, escalate_review
from gavel_rules.state.transitions.system import apply_system_fact
from gavel_rules.state.transitions.traces import forget_lapsed_traces, touch_trace
from gavel_rules.state.transitions.versions import note_versions


def apply_event(store: Store, event: RecordedEvent, recorded_at_ms: int) -> None:
    """Apply the log's next event to the store."""
    store.head = event.sequence_number
    if store.uncounted_events:
        store.uncounted_events.clear()
    if recorded_at_ms != store.recorded_at_ms:
        store.recorded_at_ms = recorded_at_ms
        forget_lapsed_traces(store)
        if store.decision_ends:
            forget_ended_decisions(store)
        if store.counters:
            expire_entries(store)
        if store.disposal.has_tables:
            store.disposal.free(store.undo_log.commit_position)
    touch_trace(store, event.trace_id)
    if store.semantics.binds_versions:
        note_versions(store, event)
    if store.counters:
        count_event(store, event)
    _TRANSITIONS[event.payload](store, event)


def _apply_fact(store: Store, event: RecordedEvent) -> None:
    fact = event.envelope.fact
    kind = fact.WhichOneof("system")
    if kind == "review_voted":
        add_vote(store, event.envelope, fact.review_voted.decision_id)
        return
    if kind is not None:
        apply_system_fact(store, event.envelope, kind)
        return
    apply_fact(store, event, fact)
    if fact.decision_id:
        receive_derived_fact(store, event, fact.decision_id)


def _apply_diagnostic(store: Store, event: RecordedEvent) -> None:
    """Apply late reports and escalations, and count differences of shadows. Other diagnostics change nothing."""
    diagnostic = event.envelope.agent_diagnostic
    detail = diagnostic.WhichOneof("detail")
    if detail == "late_execution":
        apply_late_report(store, event)
    elif detail == "review_escalated":
        escalate_review(store, diagnostic.review_escalated.decision_id)
    elif detail == "shadow_difference":
        policy_id = diagnostic.shadow_difference.policy_id
        shadow = store.shadows.get(policy_id)
        if shadow is not None:
            store.put(store.shadows, policy_id, shadow._replace(differences=shadow.differences + 1))


_TRANSITIONS: Final[Mapping[str, Callable[[Store, RecordedEvent], None]]] = {
    "fact": _apply_fact,
    "proposal": apply_proposal,
    "decision": apply_decision,
    "execution": apply_execution,
    "observation": apply_observation,
    "tool_call": apply_tool_call,
    "tool_result": apply_tool_result,
    "agent_diagnostic": _apply_diagnostic,
}
