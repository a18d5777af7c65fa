"""Transitions of reservations: approvals that count until their work ends, and then with what it did.

The entry of an approval has its decision_id, and that of an attempt which a person grants has the decision_id of the grant. While a
counter is filled, a reservation may end before the fill brings its entry; the table keeps this as an EarlyEnd.
"""

from __future__ import annotations

from typing import Final

from gavel.v1 import execution_pb2
from gavel.v1.execution_pb2 import Execution

from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.language.counters.counter import APPROVALS, GROUP_LENGTH_MAX, NEVER_MS, Amount, CountedEvent, CounterError
from gavel_rules.language.report_expressions import execution_values
from gavel_rules.state.counters import ALL_GROUPS, NO_COUNTERS, NO_END, CounterEntry, CounterTable, EarlyEnd, amount_after
from gavel_rules.state.records import LiveDecision
from gavel_rules.state.store import Store
from gavel_rules.state.transitions.counters import enter, enter_event, enter_fault, event_of, present_fault
from gavel_rules.values import struct_to_dict

_EFFECTIVE: Final = (execution_pb2.EXECUTION_STATUS_SUCCESS, execution_pb2.EXECUTION_STATUS_PARTIAL)


def settle(store: Store, live: LiveDecision, execution: Execution, *, is_late: bool = False) -> None:
    """Settle the reservation of a decision whose report states an effect. Withdraw the effects that the decision compensates.

    `is_late`: the report came after another attempt had begun, or after a review was requested.
    """
    if execution.status not in _EFFECTIVE:
        return
    # More than one attempt may have acted.
    is_late = is_late or any(attempt != execution.attempt for attempt in live.unreported_attempts)
    tables = _reserving_tables(store, live)
    if tables:
        event = _approval_event(live, execution_values(execution))
        for table in tables:
            _settle_in(store, table, live, event, is_late=is_late)
    compensated_id = live.decision.decision.compensates_decision_id
    if compensated_id and execution.status == execution_pb2.EXECUTION_STATUS_SUCCESS:
        _withdraw(store, compensated_id, live.sequence_number)


def release(store: Store, live: LiveDecision) -> None:
    """Release the reservation of a decision that ends without an effect. What a report has settled goes on counting."""
    entry_id = _reservation_id(live)
    for table in _reserving_tables(store, live):
        entry = table.entries.get(entry_id)
        if entry is not None:
            if entry.lapses_at_ms == NEVER_MS:
                store.unschedule(table, entry)
        elif _is_early(table, live):
            end = table.early_ends.get(entry_id, NO_END)
            if end.settled is None and not end.is_released:
                store.put(table.early_ends, entry_id, EarlyEnd(is_released=True, undone_before=end.undone_before))


def reserve_again(store: Store, live: LiveDecision, grant_id: str) -> None:
    """Reserve for an attempt that a person grants. What an earlier attempt has settled goes on counting."""
    release(store, live)
    tables = _reserving_tables(store, live)
    if tables:
        enter_event(store, tables, grant_id, _approval_event(live, {}))


def _reserving_tables(store: Store, live: LiveDecision) -> tuple[CounterTable, ...]:
    tables = store.counters_by_event.get(APPROVALS, NO_COUNTERS).get(live.decision.decision.action_type, ())
    return tuple([table for table in tables if table.counter.is_reserved])


def _reservation_id(live: LiveDecision) -> str:
    """Return the id of the entry that reserves for a decision: its own or, if a person has granted attempts, that of the last grant."""
    return live.grant_ids[-1] if live.grant_ids else live.decision_id


def _is_early(table: CounterTable, live: LiveDecision) -> bool:
    """Return whether the fill may bring the entry of a decision that the table does not have."""
    return not table.is_filled and live.sequence_number < table.opened_at


def _approval_event(live: LiveDecision, others: dict[str, object]) -> CountedEvent:
    """Return the event of an approved decision with what its report adds, if anything."""
    decision = live.decision.decision
    others.update(outcome="APPROVED", reason_code=decision.reason_code)
    params = struct_to_dict(decision.params)
    return event_of(ProposalView(live.proposal), decision.action_type, params, live.decision.subject, others)


def _settle_in(store: Store, table: CounterTable, live: LiveDecision, event: CountedEvent, *, is_late: bool) -> None:
    """Let the amount that a report gives count in place of the reservation, from now on for the counter's window.

    If the amount cannot be told, the group gives no number for the window.
    """
    entry = table.entries.get(_reservation_id(live))
    if entry is None and _is_early(table, live):
        _settle_early(store, table, live, event, is_late=is_late)
        return
    is_open = entry is not None and entry.lapses_at_ms == NEVER_MS
    reserved, before = (entry, None) if is_open else (None, entry)
    if reserved is not None:
        store.unschedule(table, reserved)  # leaves its room to what counts in its place
    settled = _settled_entry(store, table, live, event, reserved, before, is_late=is_late)
    if settled is not None:
        if before is not None:
            store.unschedule(table, before)
        enter(store, table, settled)


def _settle_early(store: Store, table: CounterTable, live: LiveDecision, event: CountedEvent, *, is_late: bool) -> None:
    """Note what a report settles before the fill brings the reservation."""
    entry_id = _reservation_id(live)
    end = table.early_ends.get(entry_id, NO_END)
    before = end.settled if end.settled is not None and end.settled.lapses_at_ms > store.recorded_at_ms else None
    settled = _settled_entry(store, table, live, event, None, before, is_late=is_late)
    if settled is not None:
        since_ms = end.since_ms if before is not None else store.recorded_at_ms
        end = EarlyEnd(settled, since_ms, store.head, is_released=end.is_released, undone_before=end.undone_before)
    else:
        end = EarlyEnd(end.settled, end.since_ms, end.reported_at, is_released=True, undone_before=end.undone_before)
    store.put(table.early_ends, entry_id, end)


def _settled_entry(
    store: Store,
    table: CounterTable,
    live: LiveDecision,
    event: CountedEvent,
    reserved: CounterEntry | None,
    before: CounterEntry | None,
    *,
    is_late: bool,
) -> CounterEntry | None:
    """Return the entry of a report; None if the counter does not count the decision, or cannot: its group is then suspended.

    `reserved` is the open reservation, and `before` what an earlier report has settled; both None if they are not known.
    """
    counter = table.counter
    group = ALL_GROUPS  # until it is known
    try:
        # The entry of a reservation that could not be counted has no amount.
        if reserved is not None and len(reserved.group) <= GROUP_LENGTH_MAX:
            approved: Amount | None = Amount(reserved.group, reserved.value)
        else:
            approved = counter.amount_of(event)
        if approved is None:
            return None
        group = approved.group
        value = counter.settled_amount(event, approved.value)
        if is_late:
            value = amount_after(counter, approved.value, value)
        if before is not None:
            value = amount_after(counter, before.value, value)
        known = reserved or before
        sequence_number = known.sequence_number if known is not None else live.sequence_number
        if is_late and live.compensation:
            sequence_number = store.head  # the compensation does not undo this effect
        return CounterEntry(_reservation_id(live), group, value, counter.lapses_at_ms(store.recorded_at_ms), sequence_number)
    except CounterError as error:
        lacking = group if error.group is None else error.group
        enter_fault(store, table, _reservation_id(live), lacking, present_fault(store, table))
        return None


def _withdraw(store: Store, decision_id: str, undone_before: int) -> None:
    """Remove the entries that a compensation of a decision has undone. `undone_before` is the sequence number of its approval.

    Later grants stay, and so do effects that late reports stated since. An open reservation stays: it is a person's grant.
    """
    ended = store.ended_decisions.get(decision_id)
    live = store.decisions.get(decision_id) if ended is None else ended.live
    entry_ids = (decision_id, *live.grant_ids) if live is not None else (decision_id,)
    for table in store.counters.values():
        if not table.counter.is_reserved:
            continue
        for entry_id in entry_ids:
            entry = table.entries.get(entry_id)
            if entry is not None:
                if entry.lapses_at_ms != NEVER_MS and entry.sequence_number < undone_before:
                    store.unschedule(table, entry)
            elif not table.is_filled and (live is None or _is_early(table, live)):
                _withdraw_early(store, table, entry_id, undone_before)


def _withdraw_early(store: Store, table: CounterTable, entry_id: str, undone_before: int) -> None:
    """Note what a compensation has undone before the fill brings the entry."""
    end = table.early_ends.get(entry_id, NO_END)
    if end.settled is None:
        end = EarlyEnd(is_released=end.is_released, undone_before=undone_before)
    elif end.reported_at < undone_before:
        end = EarlyEnd(is_released=True, undone_before=undone_before)
    store.put(table.early_ends, entry_id, end)
