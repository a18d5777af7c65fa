"""Transitions of counters: events that count, fills, and entries that lapse. `reservations` has those of reserved approvals.

Counters change with events alone. An entry lapses at the recorded time of a later event, never by a clock; a read leaves out what has
lapsed since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gavel.v1 import execution_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.fact_pb2 import CounterFilled

from gavel_rules.events.kinds import OUTCOME_APPROVED, OUTCOME_REJECTED, PRODUCER_TYPE_NAMES
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.language.counters.counter import (
    APPROVALS,
    EXECUTIONS,
    FACTS,
    NEVER_MS,
    OBSERVATIONS,
    OUTCOMES,
    PROPOSALS,
    REJECTIONS,
    Amount,
    CompiledCounter,
    CountedEvent,
    CounterError,
)
from gavel_rules.language.report_expressions import execution_values
from gavel_rules.state.counters import (
    ALL_GROUPS,
    FAULTY_GROUPS_MAX,
    FILLED,
    IN_FORCE,
    NO_COUNTERS,
    NO_END,
    PINNED,
    CounterEntry,
    CounterFault,
    CounterTable,
    UncountedEvent,
    faulty_group,
    index_counters,
    lacking_group,
)
from gavel_rules.state.store import Store
from gavel_rules.values import struct_to_dict, value_to_python

# The source that counts the decisions of an outcome.
_SOURCES: Final = {OUTCOME_APPROVED: APPROVALS, OUTCOME_REJECTED: REJECTIONS}


# Entries that are removed one by one, even if few others are left: about a millisecond.
_REMOVED_ONE_BY_ONE_MAX: Final = 512
# Entries that are copied in the time in which one is removed.
_COPIES_PER_REMOVAL: Final = 4


def expire_entries(store: Store) -> None:
    """Remove the entries that have lapsed at the time of the present event.

    If many lapse together, like those of a calendar's day or of a burst, and few are left, these are copied. Otherwise the entries are
    removed one by one. Either takes up to 80 ms for a counter with 100,000 entries, and longer for one with more: all leave with one event.
    """
    recorded_at_ms = store.recorded_at_ms
    for table in list(store.counters.values()):
        if table.faults:
            for group, fault in list(table.faults.items()):
                if fault.until_ms <= recorded_at_ms:
                    store.drop(table.faults, group)
        lapses = table.lapses
        if _has_many_lapsed(table, recorded_at_ms):
            _replace(store, table)
            continue
        while lapses and lapses[0].lapses_at_ms <= recorded_at_ms:
            store.unschedule(table, lapses[0])


def _has_many_lapsed(table: CounterTable, now_ms: int) -> bool:
    """Return whether removing the entries that have lapsed takes longer than copying the others."""
    lapses = table.lapses
    # Python reaches a place in the middle of a long deque slowly: it is looked at only if many have lapsed.
    if len(lapses) <= _REMOVED_ONE_BY_ONE_MAX or lapses[_REMOVED_ONE_BY_ONE_MAX].lapses_at_ms > now_ms:
        return False
    place = len(table.entries) // (1 + _COPIES_PER_REMOVAL)
    return len(lapses) > place and lapses[place].lapses_at_ms <= now_ms


def _replace(store: Store, table: CounterTable) -> None:
    """Put a copy without the entries that have lapsed in the place of a table, whose rows are freed in steps."""
    digest = table.counter.digest
    store.dispose(store.counters, digest)
    store.put(store.counters, digest, table.without_lapsed(store.recorded_at_ms))
    store.set("counters_by_event", index_counters(store.counters.values()))


def count_event(store: Store, event: RecordedEvent) -> None:
    """Enter an event into the counters that count it, before it changes anything else."""
    payload = event.payload
    index = store.counters_by_event  # an event is read only if counters have its source
    if payload == "proposal":
        tables = index.get(PROPOSALS, NO_COUNTERS).get(event.proposal.action_type)
        if tables is not None:
            proposal = event.proposal
            counted = event_of(proposal, proposal.action_type, proposal.params, event.subject, {})
            enter_event(store, tables, str(event.sequence_number), counted)
    elif payload == "decision":
        _count_decision(store, event)
    elif payload == "execution":
        _count_execution(store, event, event.envelope.execution)
    elif payload == "fact":
        names = index.get(FACTS)
        if names is not None:
            fact = event.envelope.fact
            tables = names.get(fact.key)
            if tables is not None and fact.WhichOneof("system") is None and not fact.trust_tier:
                _count_value(store, tables, event, str(event.sequence_number), value_to_python(fact.value))
    elif payload == "observation":
        names = index.get(OBSERVATIONS)
        if names is not None:
            fields = event.envelope.observation.extracted_fields
            for key in sorted(fields):
                tables = names.get(key)
                if tables is not None:
                    _count_value(store, tables, event, f"{event.sequence_number}/{key}", value_to_python(fields[key]))
    elif payload == "agent_diagnostic" and event.envelope.agent_diagnostic.WhichOneof("detail") == "late_execution":
        _count_execution(store, event, event.envelope.agent_diagnostic.late_execution.execution)


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
        if known is not None:
            store.dispose(store.counters, counter.digest)
        table = CounterTable(counter, store.head, policy_id, version)
        store.put(store.counters, counter.digest, table)
        if is_pinned:
            store.put(table.flags, PINNED, True)
            store.put(table.flags, FILLED, True)
    store.set("counters_by_event", index_counters(store.counters.values()))


def fill_counter(store: Store, filled: CounterFilled) -> None:
    """Enter the events before a counter was opened, unless they have lapsed."""
    table = store.counters[filled.digest]
    if table.is_pinned:
        return
    for message in filled.entries:
        value: int | str = message.text if message.WhichOneof("value") == "text" else message.amount
        lapses_at_ms = milliseconds(message.lapses_at) if message.HasField("lapses_at") else NEVER_MS
        filled_entry = CounterEntry(message.entry_id, message.group, value, lapses_at_ms, message.sequence_number)
        entry = table.early_ends.get(message.entry_id, NO_END).change(filled_entry, table.counter)
        if message.entry_id in table.early_ends:
            store.drop(table.early_ends, message.entry_id)
        if entry is not None and entry.lapses_at_ms > store.recorded_at_ms:
            enter(store, table, entry)
    if filled.HasField("full_until"):
        _suspend_group(store, table, ALL_GROUPS, CounterFault(milliseconds(filled.full_until), filled.full_sequence_number))
    for fault in filled.faults:
        _suspend_group(store, table, fault.group, CounterFault(milliseconds(fault.until), fault.sequence_number))
    if filled.complete:
        store.put(table.flags, FILLED, True)
        for entry_id in sorted(table.early_ends):
            settled = table.early_ends[entry_id].settled  # the fill has brought no entry for these
            store.drop(table.early_ends, entry_id)
            if settled is not None and settled.lapses_at_ms > store.recorded_at_ms:
                enter(store, table, settled)


def drop_unused_counters(store: Store) -> None:
    """Drop counters that no rule set in force has any more, and those opened for a version that a later one has overtaken."""
    in_force = {
        counter.digest
        for rule_sets in (store.active_rule_sets.values(), store.shadows.values())
        for record in rule_sets
        for counter in record.rule_set.counters.values()
    }
    for digest, table in list(store.counters.items()):
        if digest in in_force:
            if not table.is_in_force:
                store.put(table.flags, IN_FORCE, True)
        elif not table.is_pinned and (table.is_in_force or _is_overtaken(store, table)):
            store.dispose(store.counters, digest)
    store.set("counters_by_event", index_counters(store.counters.values()))


def _is_overtaken(store: Store, table: CounterTable) -> bool:
    active = store.active_rule_sets.get(table.policy_id)
    return active is not None and active.sequence_number > table.opened_at and active.version > table.version


def enter_event(store: Store, tables: tuple[CounterTable, ...], entry_id: str, event: CountedEvent) -> None:
    """Enter an event into counters that count events of its kind, unless their `where` leaves it out."""
    recorded_at_ms, sequence_number = store.recorded_at_ms, store.head
    measured: Amount | None = None
    entry: CounterEntry | None = None
    for table in tables:
        counter = table.counter
        try:
            amount = counter.amount_of(event)
            if amount is None:
                continue
            lapses_at_ms = NEVER_MS if counter.is_reserved else counter.lapses_at_ms(recorded_at_ms)
        except CounterError as error:
            # A proposal that is refused for its params names no group: it must not keep the others' proposals from being decided.
            if counter.source not in (PROPOSALS, REJECTIONS) or counter.params_match(event):
                group = ALL_GROUPS if error.group is None else error.group
                if counter.is_reserved:
                    _enter_lacking(store, table, entry_id, group, sequence_number)
                else:
                    enter_fault(store, table, entry_id, group, present_fault(store, table))
            continue
        # Counters that differ only in their limits, or are reserved, share an entry.
        if entry is None or amount is not measured or entry.lapses_at_ms != lapses_at_ms:
            measured, entry = amount, CounterEntry(entry_id, amount.group, amount.value, lapses_at_ms, sequence_number)
        enter(store, table, entry)


def enter(store: Store, table: CounterTable, entry: CounterEntry) -> None:
    """Add an entry.

    If the counter has no room for it, no group gives a number until the entry would have lapsed; if its group has too many different
    values, that group alone.
    """
    group = table.groups.get(entry.group)
    values = group.values if group is not None else None
    if not table.has_room(entry.group, group):
        lacking = ALL_GROUPS
    elif values is not None and len(values) >= table.counter.distinct_max and str(entry.value) not in values:
        lacking = entry.group
    else:
        store.schedule(table, entry)
        return
    if entry.lapses_at_ms == NEVER_MS:
        _enter_lacking(store, table, entry.entry_id, lacking, entry.sequence_number)
    else:
        enter_fault(store, table, entry.entry_id, lacking, CounterFault(entry.lapses_at_ms, entry.sequence_number))


def _enter_lacking(store: Store, table: CounterTable, entry_id: str, group: str, sequence_number: int) -> None:
    """Let a group, or ALL_GROUPS, give no number until the decision of a reservation ends."""
    store.schedule(table, CounterEntry(entry_id, lacking_group(group), 0, NEVER_MS, sequence_number))
    _note_uncounted(store, table, sequence_number, 0)


def present_fault(store: Store, table: CounterTable) -> CounterFault:
    """Return the fault of the present event, which lasts as long as the event would count."""
    return CounterFault(table.counter.fault_until_ms(store.recorded_at_ms), store.head)


def enter_fault(store: Store, table: CounterTable, entry_id: str, group: str, fault: CounterFault) -> None:
    """Let a group, or ALL_GROUPS, give no number until a fault ends. `entry_id` is that of the entry which the group lacks.

    The fault of one group takes the room of an entry. Faults that find none are kept beside the entries, as in version 2.
    """
    if group != ALL_GROUPS and store.semantics.enters_faults:
        name = faulty_group(group)
        if table.has_room(name, table.groups.get(name)):
            # A group may lack an entry twice: a later report of the same decision may fail too.
            fault_id = f"fault/{store.head}/{entry_id}"
            store.schedule(table, CounterEntry(fault_id, name, 0, fault.until_ms, fault.sequence_number))
            _note_uncounted(store, table, fault.sequence_number, fault.until_ms)
            return
    _suspend_group(store, table, group, fault)


def _suspend_group(store: Store, table: CounterTable, group: str, fault: CounterFault) -> None:
    if group not in table.faults and len(table.faults) >= FAULTY_GROUPS_MAX:
        group = ALL_GROUPS
    store.put(table.faults, group, max(fault, table.faults.get(group, fault)))
    _note_uncounted(store, table, fault.sequence_number, fault.until_ms)


def _note_uncounted(store: Store, table: CounterTable, sequence_number: int, until_ms: int) -> None:
    store.uncounted_events.append(UncountedEvent(table.policy_id, table.counter.name, sequence_number, until_ms))


# Which events count


def _count_decision(store: Store, event: RecordedEvent) -> None:
    source = _SOURCES.get(event.outcome)
    names = None if source is None else store.counters_by_event.get(source)
    if source is None or names is None:
        return
    decision = event.envelope.decision
    action_type = decision.action_type
    tables = names.get(action_type)
    if tables is None:
        return
    others: dict[str, object] = {"outcome": OUTCOMES[source], "reason_code": decision.reason_code}
    if not decision.previous_decision_id:
        # A first decision has the params of its proposal, which have been read.
        proposal = store.contest_tables.open_proposals[decision.proposal_id].proposal
        enter_event(store, tables, event.event_id, event_of(proposal, action_type, proposal.params, event.subject, others))
        return
    decided = _decided_proposal(store, decision)
    if decided is not None:
        params = struct_to_dict(decision.params)
        enter_event(store, tables, event.event_id, event_of(ProposalView(decided), action_type, params, event.subject, others))


def _decided_proposal(store: Store, decision: Decision) -> Envelope | None:
    """Return the proposal that a later decision approves or rejects; None if it is about work that was approved before."""
    previous_id = decision.previous_decision_id
    review = store.reviews.get(previous_id)
    if review is not None:
        return None if review.approved_decision_id else review.proposal
    live = store.decisions.get(previous_id)
    return live.proposal if live is not None and decision.compensates_decision_id else None


def _count_execution(store: Store, event: RecordedEvent, execution: Execution) -> None:
    names = store.counters_by_event.get(EXECUTIONS)
    if names is None or execution.status == execution_pb2.EXECUTION_STATUS_STARTED:
        return
    live = store.decisions.get(execution.decision_id)
    if live is None:
        ended = store.ended_decisions.get(execution.decision_id)
        if ended is None:
            return
        live = ended.live
    action_type = live.decision.decision.action_type
    tables = names.get(action_type)
    if tables is not None:
        params = struct_to_dict(live.decision.decision.params)  # a compensation has other params than the proposal
        counted = event_of(ProposalView(live.proposal), action_type, params, event.subject, execution_values(execution))
        enter_event(store, tables, str(event.sequence_number), counted)


def _count_value(store: Store, tables: tuple[CounterTable, ...], event: RecordedEvent, entry_id: str, value: object) -> None:
    as_declared = store.semantics.reads_as_declared
    if value is None and as_declared:
        return  # a retraction: concepts.md, "The value null retracts its key"
    producer = event.envelope.producer
    others = {"value": value, "trace.id": event.trace_id}
    kind = PRODUCER_TYPE_NAMES[producer.type]
    counted = CountedEvent("", {}, event.subject, kind, producer.id, producer.version, others, as_declared=as_declared)
    enter_event(store, tables, entry_id, counted)


def event_of(proposal: ProposalView, action_type: str, params: dict[str, object], subject: str, others: dict[str, object]) -> CountedEvent:
    """Return an event about a proposal as counters read it."""
    others["trace.id"] = proposal.trace_id
    kind = PRODUCER_TYPE_NAMES[proposal.producer_type]
    return CountedEvent(action_type, params, subject, kind, proposal.producer_id, proposal.producer_version, others)
