"""A state from the parts of a StateSnapshot: the inverse of `encoding`.

The decoder computes the tables that the encoding leaves out: compiled rule sets and grants, the actions that they govern, and sorted lists
derived from other tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from gavel.internal.v1 import state_snapshot_pb2 as snapshot
from gavel.internal.v1.state_snapshot_pb2 import StateSnapshot
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.events.arbiter_versions import semantics_of
from gavel_rules.events.recorded_event import read_event
from gavel_rules.events.stored_event import StoredEvent
from gavel_rules.identity.grants import compile_grants
from gavel_rules.state.active_actions import actions_by_type, shadows_by_type
from gavel_rules.state.counters import CounterEntry, CounterFault, CounterTable, EarlyEnd, index_counters
from gavel_rules.state.paged_table import StatePages, pages_in_memory
from gavel_rules.state.records import (
    ActiveRuleSet,
    AwaitedFact,
    ClockAcceptance,
    ClosedAction,
    DeployedGrants,
    DeployedRuleSet,
    EndedDecision,
    GrantsInForce,
    Holder,
    LiveDecision,
    OpenContest,
    Refusals,
    Rejections,
    Review,
    ShadowRuleSet,
    ToolCallRecord,
    ToolEvidence,
)
from gavel_rules.state.state import State
from gavel_rules.state.store import Store
from gavel_rules.state.tools import BoundTool, RegisteredContract, RegisteredProvider
from gavel_rules.state.versions import BoundVersion, ModelAnswer, ToolSchemas, TraceVersions, VersionMismatch


class StateDecoder:
    """Builds a state. Give it every part in order, then `finish`. Parts of paged tables are left out if the state gets pages."""

    def __init__(self, bus: str, pages: StatePages | None = None) -> None:
        self._state: Final = State(bus)
        self._pages: Final = pages
        self._evidence: Final[dict[str, bytes]] = {}
        self._outliving_results: Final[dict[str, bytes]] = {}
        self._counter_entries: Final[list[tuple[str, CounterEntry]]] = []  # by digest of the counter
        self._binds_anonymous: dict[int, bool] = {}  # by version of the grants in force

    def add(self, part: StateSnapshot) -> None:
        """Take the rows of a part."""
        store = self._state.store
        for field, value in part.ListFields():
            if field.name == "evidence":
                self._evidence.update((row.subject, row.evidence) for row in value)
                continue
            if field.name == "outliving_results":
                self._outliving_results.update((row.event_id, row.readings) for row in value)
                continue
            if field.name == "counter_entries":
                self._counter_entries.extend((row.digest, _counter_entry(row)) for row in value)
                continue
            add = _TABLES.get(field.name)
            if add is not None:
                for row in value:
                    add(store, row)
                continue
            match field.name:
                case "sequence_number":
                    store.head = value
                case "arbiter_version":
                    store.arbiter_version = value
                    store.semantics = semantics_of(value)
                case "recorded_at_ms":
                    store.recorded_at_ms = value
                case "cross_check":
                    store.cross_check.CopyFrom(value)
                case "idempotency_window_ms":
                    store.idempotency_window_ms = value
                case "clock_acceptance":
                    store.clock_acceptance = ClockAcceptance(value.recorded_at_ms, value.clock_ms)
                case "grants_in_force":
                    self._binds_anonymous[value.version] = value.binds_anonymous

    def deployed(self, policy_id: str, version: int) -> DeployedRuleSet:
        """Return a deployed rule set, for a caller that compiles it before the part in which it is active. Raises KeyError."""
        return self._state.store.rule_sets[policy_id, version]

    def finish(self) -> State:
        """Return the state. Raises DocumentError if a rule set or the grants do not compile in this build."""
        store = self._state.store
        evidence, outliving_results = (pages_in_memory(store.head, rows) for rows in (self._evidence, self._outliving_results))
        store.use_pages(self._pages or StatePages(evidence, outliving_results))
        for version, binds_anonymous in self._binds_anonymous.items():
            deployed = store.grants_versions[version]
            store.grants_in_force = GrantsInForce(deployed, compile_grants(deployed.canonical_json), binds_anonymous)
        active = {policy_id: active.rule_set for policy_id, active in store.active_rule_sets.items()}
        store.active_actions.update(actions_by_type(active.values()))
        store.shadows_by_action.update(shadows_by_type(active, store.shadows, store.semantics))
        # In the order in which they lapse, so that each is the last of its queue.
        for digest, entry in sorted(self._counter_entries, key=lambda one: (one[1].lapses_at_ms, one[1].sequence_number)):
            store.counters[digest].add(entry)
        store.counters_by_event = index_counters(store.counters.values())
        store.trace_lapses.update((last_event_ms, trace_id) for trace_id, last_event_ms in store.traces.items())
        store.decision_ends.update((ended.ended_at_ms, decision_id) for decision_id, ended in store.ended_decisions.items())
        refused = store.refused_traces
        refused.by_producer.update(refused.by_trace.values())
        refused.counts.update(Counter(producer for producer, _, _ in refused.by_trace.values()))
        return self._state


def _add_rule_set(store: Store, row: snapshot.DeployedRuleSet) -> None:
    store.rule_sets[row.policy_id, row.version] = DeployedRuleSet(
        row.digest, tuple(row.action_types), row.document, row.canonical_json, row.sequence_number, row.recorded_at_ms
    )


def _add_active_rule_set(store: Store, row: snapshot.ActiveRuleSet) -> None:
    rule_set = store.rule_sets[row.policy_id, row.version].rule_set
    store.active_rule_sets[row.policy_id] = ActiveRuleSet(row.version, row.sequence_number, row.previous_version, rule_set)


def _add_shadow(store: Store, row: snapshot.ShadowRuleSet) -> None:
    rule_set = store.rule_sets[row.policy_id, row.version].rule_set
    store.shadows[row.policy_id] = ShadowRuleSet(
        row.version, row.sequence_number, row.previous_version, rule_set, row.decisions, row.differences
    )


def _add_grants_version(store: Store, row: snapshot.DeployedGrants) -> None:
    store.grants_versions[row.version] = DeployedGrants(
        row.name,
        row.version,
        row.digest,
        row.document,
        row.canonical_json,
        row.sequence_number,
        row.recorded_at_ms,
        row.principal,
        row.method,
    )


def _add_contract(store: Store, row: snapshot.RegisteredContract) -> None:
    store.tools.contracts[row.contract.name] = RegisteredContract(
        row.contract, row.sequence_number, row.argument_schema_hash, row.result_schema_hash
    )


def _add_provider(store: Store, row: snapshot.RegisteredProvider) -> None:
    store.tools.providers[row.provider.provider_id] = RegisteredProvider(row.provider, row.sequence_number)


def _add_binding(store: Store, row: snapshot.BoundTool) -> None:
    store.tools.bindings[row.session_id, row.tool_name] = BoundTool(row.provider_id, row.sequence_number)


def _add_open_proposal(store: Store, content: bytes) -> None:
    event = read_event(Envelope.FromString(content))
    event.pack(content)
    store.contest_tables.open_proposals[event.event_id] = event


def _add_contest(store: Store, row: snapshot.OpenContest) -> None:
    store.contest_tables.contests[row.name] = OpenContest(
        row.name,
        row.action_type,
        row.conflict_key,
        row.sequence_number,
        row.opened_at_ms,
        row.closes_at_ms,
        tuple(row.candidates),
        row.size_bytes,
    )


def _add_decision(store: Store, row: snapshot.LiveDecision) -> None:
    store.decisions[row.decision_id] = _live_decision(row)


def _add_ended_decision(store: Store, row: snapshot.EndedDecision) -> None:
    store.ended_decisions[row.decision.decision_id] = EndedDecision(_live_decision(row.decision), row.ended_at_ms)


def _add_review(store: Store, row: snapshot.Review) -> None:
    store.reviews[row.decision_id] = Review(
        row.decision_id,
        row.sequence_number,
        Envelope.FromString(row.decision),
        row.approved_decision_id,
        Envelope.FromString(row.proposal),
        tuple([Envelope.FromString(vote) for vote in row.votes]),
        row.is_escalated,
    )


def _live_decision(row: snapshot.LiveDecision) -> LiveDecision:
    return LiveDecision(
        row.decision_id,
        row.sequence_number,
        _stored_event(row.decision),
        _stored_event(row.proposal),
        row.conflict_key,
        row.phase,
        row.last_sequence_number,
        row.timer_due_ms,
        row.attempt,
        row.starts,
        row.is_running,
        row.execution_id,
        row.executor_type,  # type: ignore[arg-type]  # an int of the closed enum
        row.executor_id,
        row.executor_version,
        tuple([_holder(holder) for holder in row.holders]),
        tuple(row.unreported_attempts),
        row.lease_until_ms,
        row.status,
        row.status_event_id,
        row.status_sequence_number,
        tuple([AwaitedFact(fact.event_id, Envelope.FromString(fact.execution), None) for fact in row.awaited_facts]),
        row.review,
        Envelope.FromString(row.grant) if row.grant else None,
        tuple(row.grant_ids),
        row.is_revoked,
        row.compensation,
    )


def _holder(row: snapshot.Holder) -> Holder:
    return (row.producer_type, row.producer_id, *row.caller)


def _stored_event(content: bytes) -> StoredEvent:
    return StoredEvent(None, content)


def _add_refused_trace(store: Store, row: snapshot.RefusedTrace) -> None:
    store.refused_traces.by_trace[row.trace_id] = (row.producer, row.sequence_number, row.trace_id)


def _add_refusals(store: Store, row: snapshot.TraceRefusals) -> None:
    store.refusals[row.trace_id] = {
        one.producer: Refusals(
            Rejections(one.counts.evidence, one.counts.policy, one.counts.conflict), one.fingerprint, one.sequence_number
        )
        for one in row.refusals
    }


def _add_closed_actions(store: Store, row: snapshot.TraceClosedActions) -> None:
    store.closed_actions[row.trace_id] = {
        one.action: ClosedAction(_stored_event(one.decision), one.decision_id, one.sequence_number, one.by_person) for one in row.actions
    }


def _add_tool_results(store: Store, row: snapshot.TraceToolResults) -> None:
    store.tool_result_tables.tool_results[row.trace_id] = {
        one.event_id: ToolEvidence(
            one.execution_id,
            one.tool_name,
            one.content_hash,
            one.is_error,
            one.recorded_at_ms,
            one.sequence_number,
            tuple(one.recorders),
            one.is_from_tool_runtime,
        )
        for one in row.results
    }
    if store.semantics.keeps_readings:
        store.tool_result_tables.trace_of_result.update((one.event_id, row.trace_id) for one in row.results)


def _add_timer(store: Store, row: snapshot.Timer) -> None:
    store.timers.add((row.due_ms, row.sequence_number, row.name))


def _text(table: Callable[[Store], dict[str, str]]) -> Callable[[Store, Any], None]:
    def add(store: Store, row: Any) -> None:
        table(store)[row.key] = row.value

    return add


def _text_table(table: Callable[[Store], dict[str, dict[str, Any]]]) -> Callable[[Store, Any], None]:
    def add(store: Store, row: Any) -> None:
        table(store)[row.key] = {one.key: one.value for one in row.rows}

    return add


def _keys_in_order(table: Callable[[Store], dict[str, dict[str, int]]]) -> Callable[[Store, Any], None]:
    def add(store: Store, row: Any) -> None:
        # Numbers below those of all events, as only the order counts.
        table(store)[row.key] = {key: number for number, key in enumerate(row.values, -len(row.values))}

    return add


def _add_counter(store: Store, row: snapshot.Counter) -> None:
    counters = store.rule_sets[row.policy_id, row.version].rule_set.counters.values()
    counter = next(counter for counter in counters if counter.digest == row.digest)
    table = CounterTable(counter, row.opened_at, row.policy_id, row.version)
    table.flags.update(dict.fromkeys(row.flags, True))
    table.faults.update((fault.group, CounterFault(fault.until_ms, fault.sequence_number)) for fault in row.faults)
    for one in row.early_ends:
        settled = _counter_entry(one.settled) if one.HasField("settled") else None
        table.early_ends[one.entry_id] = EarlyEnd(
            settled, one.since_ms, one.reported_at, is_released=one.is_released, undone_before=one.undone_before
        )
    store.counters[row.digest] = table


def _counter_entry(row: snapshot.CounterEntry) -> CounterEntry:
    value = row.text if row.WhichOneof("value") == "text" else row.amount
    return CounterEntry(row.entry_id, row.group, value, row.lapses_at_ms, row.sequence_number)


def _add_trace(store: Store, row: snapshot.Number) -> None:
    store.traces[row.key] = row.value


def _add_tool_calls(store: Store, row: snapshot.TraceToolCalls) -> None:
    store.tool_calls[row.trace_id] = {one.execution_id: ToolCallRecord(one.sequence_number, one.tool_name) for one in row.calls}
    if store.semantics.pairs_tool_calls:
        store.trace_of_execution.update((one.execution_id, row.trace_id) for one in row.calls)


def _add_candidate_count(store: Store, row: snapshot.Number) -> None:
    store.tool_result_tables.candidate_counts[row.key] = row.value


def _add_trace_versions(store: Store, row: snapshot.TraceVersions) -> None:
    store.trace_versions[row.trace_id] = TraceVersions(
        row.sequence_number,
        tuple([_bound(one) for one in row.bound]),
        tuple([VersionMismatch(_bound(one.bound), one.version, one.sequence_number) for one in row.mismatches]),
        tuple(
            [
                ToolSchemas(one.tool_name, one.tool_version, one.request_schema_hash, one.response_schema_hash, one.sequence_number)
                for one in row.tools
            ]
        ),
        tuple([_answer(one) for one in row.answers]),
    )


def _add_answer(store: Store, row: snapshot.ModelAnswer) -> None:
    store.answers[row.prompt_hash] = _answer(row)


def _bound(row: snapshot.BoundVersion) -> BoundVersion:
    return BoundVersion(row.field, row.version, row.sequence_number)


def _answer(row: snapshot.ModelAnswer) -> ModelAnswer:
    return ModelAnswer(row.prompt_hash, row.requested_model, row.llm_provider, row.llm_model, row.output_hash, row.sequence_number)


# The function that adds a row, by table.
_TABLES: Final[Mapping[str, Callable[[Store, Any], None]]] = {
    "rule_sets": _add_rule_set,
    "active_rule_sets": _add_active_rule_set,
    "shadows": _add_shadow,
    "grants_versions": _add_grants_version,
    "tool_contracts": _add_contract,
    "tool_aliases": _text(lambda store: store.tools.aliases),
    "tool_providers": _add_provider,
    "tool_bindings": _add_binding,
    "open_proposals": _add_open_proposal,
    "open_proposals_by_subject": _keys_in_order(lambda store: store.contest_tables.open_proposals_by_subject),
    "open_proposals_by_trace": _text_table(lambda store: store.contest_tables.open_proposals_by_trace),
    "contests": _add_contest,
    "decisions": _add_decision,
    "decisions_by_subject": _keys_in_order(lambda store: store.decisions_by_subject),
    "conflict_keys": _text(lambda store: store.conflict_keys),
    "grants": _text(lambda store: store.grants),
    "ended_decisions": _add_ended_decision,
    "reviews": _add_review,
    "traces": _add_trace,
    "refused_traces": _add_refused_trace,
    "refusals": _add_refusals,
    "trace_reviews": _text_table(lambda store: store.trace_reviews),
    "closed_actions": _add_closed_actions,
    "tool_calls": _add_tool_calls,
    "tool_results": _add_tool_results,
    "readings": _text_table(lambda store: store.tool_result_tables.readings),
    "contradictions": _text(lambda store: store.tool_result_tables.contradictions),
    "counters": _add_counter,
    "timers": _add_timer,
    "candidate_counts": _add_candidate_count,
    "trace_versions": _add_trace_versions,
    "answers": _add_answer,
}
