"""Transitions of counters: events that count, reservations that are settled or released, and entries that lapse.

Counters change with events alone. An entry lapses at the recorded time of a later event, never by a clock; a read leaves out what has
lapsed since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gavel.v1 import execution_pb2
from gavel.v1.common_pb2 import ProducerType
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.fact_pb2 import CounterFilled
from sortedcontainers import SortedList

from gavel_rules.events.kinds import OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW, OUTCOME_REJECTED
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.language.counters.counter import DISTINCT, NEVER_MS, CompiledCounter, CountedEvent, CounterError
from gavel_rules.language.report_expressions import execution_values
from gavel_rules.state.counters import ALL_GROUPS, FAULTY_GROUPS_MAX, CounterEntry, CounterTable, Totals, order_key
from gavel_rules.state.records import LiveDecision
from gavel_rules.state.store import Store
from gavel_rules.values import struct_to_dict, value_to_python

_APPROVALS: Final = "approvals"
_REJECTIONS: Final = "rejections"
_PROPOSALS: Final = "proposals"
_EXECUTIONS: Final = "executions"
_FACTS: Final = "facts"
_OBSERVATIONS: Final = "observations"

_PRODUCER_PREFIX: Final = "PRODUCER_TYPE_"
_EFFECTIVE: Final = (execution_pb2.EXECUTION_STATUS_SUCCESS, execution_pb2.EXECUTION_STATUS_PARTIAL)
_OUTCOMES: Final = {OUTCOME_APPROVED: "APPROVED", OUTCOME_REJECTED: "REJECTED", OUTCOME_NEEDS_HUMAN_REVIEW: "NEEDS_HUMAN_REVIEW"}


def expire_entries(store: Store) -> None:
    """Remove the entries that have lapsed at the time of the present event."""
    for table in store.counters.values():
        lapses = table.lapses
        while lapses and lapses[0][0] <= store.recorded_at_ms:
            _remove(store, table, table.entries[lapses[0][1]])
        if table.faults:
            for group, until_ms in list(table.faults.items()):
                if until_ms <= store.recorded_at_ms:
                    store.drop(table.faults, group)


def count_event(store: Store, event: RecordedEvent) -> None:
    """Enter an event into the counters that count it, before it changes anything else."""
    payload = event.payload
    if payload == "proposal":
        _count_of_action(store, _PROPOSALS, event.envelope, event.proposal.action_type, event.envelope, {})
    elif payload == "decision":
        _count_decision(store, event)
    elif payload == "execution":
        _count_execution(store, event.envelope, event.envelope.execution)
    elif payload == "fact":
        fact = event.envelope.fact
        if fact.WhichOneof("system") is None:
            _count_value(store, _FACTS, event.envelope, fact.key, value_to_python(fact.value))
    elif payload == "observation":
        fields = event.envelope.observation.extracted_fields
        for key in sorted(fields):
            _count_value(store, _OBSERVATIONS, event.envelope, key, value_to_python(fields[key]))
    elif payload == "agent_diagnostic" and event.envelope.agent_diagnostic.WhichOneof("detail") == "late_execution":
        _count_execution(store, event.envelope, event.envelope.agent_diagnostic.late_execution.execution)


def open_counters(
    store: Store, counters: Iterable[CompiledCounter], policy_id: str = "", version: int = 0, *, is_pinned: bool = False
) -> None:
    """Let counters of a rule set count from the next event on.

    With `is_pinned`, they ignore later events that open, fill or drop counters: for counting a log from its beginning.
    """
    for counter in counters:
        known = store.counters.get(counter.digest)
        if known is not None and known.is_pinned:
            continue
        table = CounterTable(counter, store.head, policy_id, version)
        store.put(store.counters, counter.digest, table)
        if is_pinned:
            store.put(table.flags, "pinned", True)
            store.put(table.flags, "filled", True)


def fill_counter(store: Store, filled: CounterFilled) -> None:
    """Enter the events before a counter was opened, unless they have lapsed."""
    table = store.counters[filled.digest]
    if table.is_pinned:
        return
    for message in filled.entries:
        value: int | str = message.text if message.WhichOneof("value") == "text" else message.amount
        lapses_at_ms = milliseconds(message.lapses_at) if message.HasField("lapses_at") else NEVER_MS
        entry: CounterEntry | None = CounterEntry(message.entry_id, message.group, value, lapses_at_ms, message.sequence_number)
        if message.entry_id in table.early_ends:
            entry = table.early_ends[message.entry_id]
        if entry is not None and entry.lapses_at_ms > store.recorded_at_ms:
            enter(store, table, entry)
    if filled.HasField("full_until"):
        _fail(store, table, ALL_GROUPS, milliseconds(filled.full_until))
    if filled.complete:
        store.put(table.flags, "filled", True)
        for entry_id in list(table.early_ends):
            store.drop(table.early_ends, entry_id)


def keep_counters(store: Store) -> None:
    """Drop the counters that a rule set in force had and none has any more."""
    in_force = {
        counter.digest
        for rule_sets in (store.active_rule_sets.values(), store.shadows.values())
        for record in rule_sets
        for counter in record.rule_set.counters.values()
    }
    for digest, table in list(store.counters.items()):
        if digest in in_force:
            if not table.flags.get("in force"):
                store.put(table.flags, "in force", True)
        elif table.flags.get("in force") and not table.is_pinned:
            store.drop(store.counters, digest)


def settle(store: Store, live: LiveDecision, execution: Execution) -> None:
    """Settle the reservations of a decision whose report states an effect. Release those of the decision that it compensated."""
    if execution.status not in _EFFECTIVE:
        return
    decision = live.decision.decision
    for table in _reserving_tables(store, decision.action_type):
        entry = table.entries.get(live.decision_id)
        event = _event_of(live.decision, decision, live.proposal, execution_values(execution))
        _settle_entry(store, table, live, entry, event)
    if decision.compensates_decision_id and execution.status == execution_pb2.EXECUTION_STATUS_SUCCESS:
        _release(store, decision.compensates_decision_id)


def release(store: Store, live: LiveDecision) -> None:
    """Release the reservations of a decision that ends without an effect."""
    for table in store.counters.values():
        if not table.counter.is_reserved:
            continue
        entry = table.entries.get(live.decision_id)
        if entry is not None and entry.lapses_at_ms == NEVER_MS:
            _remove(store, table, entry)
        elif _is_early(table, live) and live.decision_id not in table.early_ends:
            store.put(table.early_ends, live.decision_id, None)


def enter(store: Store, table: CounterTable, entry: CounterEntry) -> None:
    """Add an entry. If it finds no room, its group gives no number until the entry would have lapsed."""
    lapses_at_ms = entry.lapses_at_ms
    if not table.has_room(entry.group):
        _fail(store, table, ALL_GROUPS, lapses_at_ms)
        return
    group = entry.group
    if table.counter.aggregate == DISTINCT:
        counts = table.values.get(group, {})
        text = str(entry.value)
        if text not in counts and len(counts) >= table.counter.distinct_max:
            _fail(store, table, group, lapses_at_ms)
            return
    insert(store, table, entry)


def insert(store: Store, table: CounterTable, entry: CounterEntry) -> None:
    """Add an entry that has room."""
    group = entry.group
    if table.counter.aggregate == DISTINCT:
        counts = store.subtable(table.values, group)
        text = str(entry.value)
        store.put(counts, text, counts.get(text, 0) + 1)
    store.put(table.entries, entry.entry_id, entry)
    totals = table.totals.get(group, _EMPTY)
    store.put(table.totals, group, Totals(totals.entries + 1, totals.total + (entry.value if isinstance(entry.value, int) else 0)))
    place = (entry.lapses_at_ms, entry.entry_id)
    store.schedule(table.lapses, place)
    store.schedule(_list_of(store, table.lapses_by_group, group), place)
    key = order_key(table, entry)
    if key is not None:
        store.schedule(_list_of(store, table.order, group), key)


_EMPTY: Final = Totals(0, 0)


def _remove(store: Store, table: CounterTable, entry: CounterEntry) -> None:
    group = entry.group
    store.drop(table.entries, entry.entry_id)
    place = (entry.lapses_at_ms, entry.entry_id)
    store.unschedule(table.lapses, place)
    store.unschedule(table.lapses_by_group[group], place)
    totals = table.totals[group]
    key = order_key(table, entry)
    if key is not None:
        store.unschedule(table.order[group], key)
    if table.counter.aggregate == DISTINCT:
        counts = table.values[group]
        text = str(entry.value)
        if counts[text] == 1:
            store.drop(counts, text)
        else:
            store.put(counts, text, counts[text] - 1)
    if totals.entries == 1:
        for tables in (table.totals, table.lapses_by_group, table.order, table.values):
            store.drop(tables, group)
    else:
        store.put(table.totals, group, Totals(totals.entries - 1, totals.total - (entry.value if isinstance(entry.value, int) else 0)))


def _list_of(store: Store, lists: dict[str, SortedList], group: str) -> SortedList:
    found = lists.get(group)
    if found is None:
        found = SortedList()
        store.put(lists, group, found)
    return found


def _fail(store: Store, table: CounterTable, group: str, until_ms: int) -> None:
    """Let reads of a group, or of ALL_GROUPS, give no number until a time."""
    until_ms = min(until_ms, table.counter.lapse_ms(store.recorded_at_ms)) if until_ms == NEVER_MS else until_ms
    if group not in table.faults and len(table.faults) >= FAULTY_GROUPS_MAX:
        group = ALL_GROUPS
    store.put(table.faults, group, max(until_ms, table.faults.get(group, 0)))


# Which events count


def _count_decision(store: Store, event: RecordedEvent) -> None:
    decision = event.envelope.decision
    source = _APPROVALS if event.outcome == OUTCOME_APPROVED else _REJECTIONS if event.outcome == OUTCOME_REJECTED else ""
    proposal = _decided_proposal(store, decision) if source else None
    if proposal is not None:
        others: dict[str, object] = {"outcome": _OUTCOMES[event.outcome], "reason_code": decision.reason_code}
        _count_of_action(store, source, event.envelope, decision.action_type, proposal, others)


def _decided_proposal(store: Store, decision: Decision) -> Envelope | None:
    """Return the proposal that a decision approves or rejects; None if the decision is about work that was approved before."""
    previous_id = decision.previous_decision_id
    if not previous_id:
        return store.contest_tables.open_proposals[decision.proposal_id].envelope
    review = store.reviews.get(previous_id)
    if review is not None:
        return None if review.approved_decision_id else review.proposal
    live = store.decisions.get(previous_id)
    return live.proposal if live is not None and decision.compensates_decision_id else None


def _count_execution(store: Store, envelope: Envelope, execution: Execution) -> None:
    if execution.status == execution_pb2.EXECUTION_STATUS_STARTED:
        return
    live = store.decisions.get(execution.decision_id)
    if live is None:
        ended = store.ended_decisions.get(execution.decision_id)
        if ended is None:
            return
        live = ended.live
    action_type = live.decision.decision.action_type
    _count_of_action(store, _EXECUTIONS, envelope, action_type, live.proposal, execution_values(execution))


def _count_of_action(
    store: Store, source: str, envelope: Envelope, action_type: str, proposal: Envelope, others: dict[str, object]
) -> None:
    """Enter an event of an action. Its params are those of the decision, if it is one, else those of the proposal."""
    event: CountedEvent | None = None
    for table in store.counters.values():
        counter = table.counter
        if counter.source != source or action_type not in counter.actions:
            continue
        if event is None:
            decision = envelope.decision if source in (_APPROVALS, _REJECTIONS) else None
            event = _event_of(envelope, decision, proposal, others, action_type)
        _enter_event(store, table, envelope.event_id, event)


def _count_value(store: Store, source: str, envelope: Envelope, key: str, value: object) -> None:
    for table in store.counters.values():
        counter = table.counter
        if counter.source == source and key in counter.fact_keys:
            others = {"value": value, "trace.id": envelope.trace_id}
            producer = envelope.producer
            kind = ProducerType.Name(producer.type).removeprefix(_PRODUCER_PREFIX)
            event = CountedEvent("", {}, envelope.subject, kind, producer.id, producer.version, others)
            entry_id = envelope.event_id if source == _FACTS else f"{envelope.event_id}/{key}"
            _enter_event(store, table, entry_id, event)


def _event_of(
    envelope: Envelope, decision: Decision | None, proposal: Envelope, others: dict[str, object], action_type: str = ""
) -> CountedEvent:
    producer = proposal.producer
    params = decision.params if decision is not None else proposal.proposal.params
    return CountedEvent(
        action_type or (decision.action_type if decision is not None else proposal.proposal.action_type),
        struct_to_dict(params),
        envelope.subject,
        ProducerType.Name(producer.type).removeprefix(_PRODUCER_PREFIX),
        producer.id,
        producer.version,
        {**others, "trace.id": proposal.trace_id},
    )


def _enter_event(store: Store, table: CounterTable, entry_id: str, event: CountedEvent) -> None:
    counter = table.counter
    lapses_at_ms = NEVER_MS if counter.is_reserved else counter.lapse_ms(store.recorded_at_ms)
    try:
        amount = counter.amount_of(event)
    except CounterError as error:
        # A proposal that is refused for its params names no group: it must not keep the others' proposals from being decided.
        if counter.source not in (_PROPOSALS, _REJECTIONS) or counter.fits(event):
            _fail(store, table, ALL_GROUPS if error.group is None else error.group, lapses_at_ms)
        return
    if amount is not None:
        enter(store, table, CounterEntry(entry_id, amount.group, amount.value, lapses_at_ms, store.head))


# Reservations


def _reserving_tables(store: Store, action_type: str) -> list[CounterTable]:
    return [table for table in store.counters.values() if table.counter.is_reserved and action_type in table.counter.actions]


def _is_early(table: CounterTable, live: LiveDecision) -> bool:
    """Return whether the fill will bring the entry of a decision."""
    return not table.is_filled and live.sequence_number < table.opened_at


def _settle_entry(store: Store, table: CounterTable, live: LiveDecision, entry: CounterEntry | None, event: CountedEvent) -> None:
    """Replace the reservation of a decision by the amount that its report gives, from now on for the counter's window."""
    counter: CompiledCounter = table.counter
    lapses_at_ms = counter.lapse_ms(store.recorded_at_ms)
    try:
        if entry is None:
            amount = counter.amount_of(event)  # released before, or from before the counter was opened
            if amount is None:
                return
            entry = CounterEntry(live.decision_id, amount.group, amount.value, lapses_at_ms, live.sequence_number)
        settled = entry._replace(value=counter.settled_amount(event, entry.value), lapses_at_ms=lapses_at_ms)
    except CounterError:
        _fail(store, table, ALL_GROUPS, lapses_at_ms)
        return
    if live.decision_id in table.entries:
        _remove(store, table, table.entries[live.decision_id])
    if _is_early(table, live):
        store.put(table.early_ends, live.decision_id, settled)
    else:
        enter(store, table, settled)


def _release(store: Store, decision_id: str) -> None:
    for table in store.counters.values():
        entry = table.entries.get(decision_id) if table.counter.is_reserved else None
        if entry is not None:
            _remove(store, table, entry)
        elif table.counter.is_reserved and table.early_ends.get(decision_id) is not None:
            store.put(table.early_ends, decision_id, None)
