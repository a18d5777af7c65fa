"""Transitions of approved decisions, from the approval until the work has ended.

An approval holds its conflict key while it is live, apart from reviews and compensations. After its end, attempts that have not reported
may still do so for LATE_REPORT_MS_MAX.
"""

from __future__ import annotations

from typing import Any

from gavel.v1.decision_pb2 import Decision

from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.stored_event import StoredEvent
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.limits import LATE_REPORT_MS_MAX
from gavel_rules.state.records import APPROVED, AWAITING_FACTS, EndedDecision, LiveDecision
from gavel_rules.state.store import Store
from gavel_rules.state.transitions.reservations import release


def approve(store: Store, event: RecordedEvent, decision: Decision, proposal: StoredEvent) -> None:
    """Make a decision live, schedule its timer and give it its conflict key."""
    decision_id = event.event_id
    if decision.compensates_decision_id:
        # A compensation does not expire. If no executor starts it, a review is due: work is half done.
        due_ms = milliseconds(decision.evaluated_at) + decision.retry_policy.human_takeover_after_ms
    else:
        due_ms = milliseconds(decision.valid_until)
    number = store.head
    conflict_key = decision.conflict_key
    live = LiveDecision(decision_id, number, event.stored, proposal, conflict_key, APPROVED, number, due_ms)
    _put_live(store, live, event.subject)
    store.schedule(store.timers, (due_ms, number, decision_id))
    store.put(store.conflict_keys, conflict_key, decision_id)


def update_decision(store: Store, live: LiveDecision, event: RecordedEvent, **changes: Any) -> LiveDecision:
    """Replace fields of a live decision by an event, reschedule its timer, and return the new record."""
    changed = live.replace(last_sequence_number=event.sequence_number, **changes)
    store.put(store.decisions, live.decision_id, changed)
    if changed.timer_due_ms != live.timer_due_ms:
        if live.timer_due_ms:
            store.unschedule(store.timers, (live.timer_due_ms, live.sequence_number, live.decision_id))
        if changed.timer_due_ms:
            store.schedule(store.timers, (changed.timer_due_ms, changed.sequence_number, changed.decision_id))
    return changed


def free_conflict_key(store: Store, live: LiveDecision) -> None:
    """Free the conflict key of a decision, unless its compensation holds it."""
    if store.conflict_keys.get(live.conflict_key) == live.decision_id:
        store.drop(store.conflict_keys, live.conflict_key)


def end_decision_if_complete(store: Store, live: LiveDecision) -> None:
    """End a live decision if all its facts are in. A compensation also waits for the facts of the decision that it compensates."""
    if live.phase == AWAITING_FACTS and not live.awaited_facts and (live.is_revoked or live.compensates not in store.decisions):
        end_decision(store, live)


def end_decision(store: Store, live: LiveDecision) -> None:
    """End a live decision and free its conflict key."""
    if live.timer_due_ms:
        store.unschedule(store.timers, (live.timer_due_ms, live.sequence_number, live.decision_id))
    store.drop(store.decisions, live.decision_id)
    if store.counters:
        release(store, live)
    # The success of its compensation, which may report late, withdraws what counters have of it and of its grants.
    is_compensated = live.compensation in store.decisions or live.compensation in store.ended_decisions
    if live.unreported_attempts or is_compensated:
        store.put(store.ended_decisions, live.decision_id, EndedDecision(live, store.recorded_at_ms))
        store.schedule(store.decision_ends, (store.recorded_at_ms, live.decision_id))
    else:
        _forget_grants(store, live)
    free_conflict_key(store, live)
    store.drop_from(store.decisions_by_subject, live.decision.subject, live.decision_id)
    compensation = store.decisions.get(live.compensation)
    if compensation is not None:
        end_decision_if_complete(store, compensation)


def reopen_decision(store: Store, ended: EndedDecision) -> LiveDecision:
    """Make an ended decision live again, and return it."""
    live = ended.live
    store.drop(store.ended_decisions, live.decision_id)
    store.unschedule(store.decision_ends, (ended.ended_at_ms, live.decision_id))
    _put_live(store, live, live.decision.subject)
    return live


def forget_ended_decisions(store: Store) -> None:
    """Forget decisions that ended too long ago for late reports."""
    horizon_ms = store.recorded_at_ms - LATE_REPORT_MS_MAX
    ends = store.decision_ends
    while ends and ends[0][0] < horizon_ms:
        decision_id = ends[0][1]
        ended = store.ended_decisions[decision_id]
        store.unschedule(ends, (ended.ended_at_ms, decision_id))
        store.drop(store.ended_decisions, decision_id)
        _forget_grants(store, ended.live)


def _put_live(store: Store, live: LiveDecision, subject: str) -> None:
    store.put(store.decisions, live.decision_id, live)
    store.put(store.subtable(store.decisions_by_subject, subject), live.decision_id, store.head)


def _forget_grants(store: Store, live: LiveDecision) -> None:
    for grant_id in live.grant_ids:
        store.drop(store.grants, grant_id)
