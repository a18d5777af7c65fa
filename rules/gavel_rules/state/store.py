"""The tables of one bus at its head, and the only ways to change them.

Records are immutable: a change puts another record in place, and undoing it puts the old one back. Every method that changes a table
writes the inverse to the undo log. Undoing may reorder the keys of a dict, so nothing may depend on their order. The store knows no
events: `transitions` say what an event changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gavel.v1.fact_pb2 import CrossCheck
from sortedcontainers import SortedList

from gavel_rules.events.arbiter_versions import LATEST
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT
from gavel_rules.state.contest_tables import ContestTables
from gavel_rules.state.counters import CountersByName, CounterTable, UncountedEvent
from gavel_rules.state.disposal import Disposal
from gavel_rules.state.packed_evidence import KeyCandidates, newest_number, unpack_evidence
from gavel_rules.state.paged_table import PagedTable, StatePages
from gavel_rules.state.records import (
    ActionShadow,
    ActiveRuleSet,
    ClockAcceptance,
    ClosedAction,
    DeployedGrants,
    DeployedRuleSet,
    EndedDecision,
    GrantsInForce,
    LiveDecision,
    Refusals,
    Review,
    ShadowRuleSet,
    ToolCallRecord,
)
from gavel_rules.state.refused_traces import RefusedTraces
from gavel_rules.state.tool_result_tables import ToolResultTables
from gavel_rules.state.tools import ToolRegistry
from gavel_rules.state.undo_log import ABSENT, UndoLog
from gavel_rules.state.versions import ModelAnswer, TraceVersions

_NO_EVIDENCE: Final[KeyCandidates] = {}


class Store:
    """The tables of one bus. Read them freely; change them by the methods alone."""

    def __init__(self, bus: str) -> None:
        self.undo_log: Final = UndoLog()
        self._entries: Final = self.undo_log.entries
        self.disposal: Final = Disposal()

        self.bus: Final = bus
        self.head = 0
        self.recorded_at_ms = 0
        self.clock_acceptance: ClockAcceptance | None = None
        self.arbiter_version = 0
        self.semantics = LATEST
        self.cross_check = CrossCheck()
        self.idempotency_window_ms = IDEMPOTENCY_WINDOW_MS_DEFAULT

        # Rule sets: deployed by (policy_id, version), the others by policy_id; compiled actions and shadows by action type.
        self.rule_sets: dict[tuple[str, int], DeployedRuleSet] = {}
        self.active_rule_sets: dict[str, ActiveRuleSet] = {}
        self.active_actions: dict[str, tuple[CompiledAction, ...]] = {}
        self.shadows: dict[str, ShadowRuleSet] = {}
        self.shadows_by_action: dict[str, tuple[ActionShadow, ...]] = {}

        # Who may do what: the versions of the grants, and the one in force. `grants` below are grants of attempts.
        self.grants_versions: dict[int, DeployedGrants] = {}
        self.grants_in_force: GrantsInForce | None = None

        self.tools: Final = ToolRegistry()

        # Evidence by subject, then fact key. `evidence` has only the part that is not in pages: read by `evidence_of`.
        self.paged_evidence: Final = PagedTable(unpack_evidence, newest_number)
        self.evidence: Final[dict[str, KeyCandidates]] = self.paged_evidence.changes

        # Counters by the digest of their definition, and by the events that they count: see `index_counters`.
        self.counters: Final[dict[str, CounterTable]] = {}
        self.counters_by_event: dict[str, CountersByName] = {}
        # What counters could not count of the last event that was applied. It is no part of the state.
        self.uncounted_events: Final[list[UncountedEvent]] = []

        self.contest_tables: Final = ContestTables()

        # Approvals by decision_id; by subject, then decision_id, the numbers of the events that made them live. `conflict_keys` maps a
        # conflict key to the decision that holds it, `grants` a grant of one more attempt to its approval. Ended decisions have attempts
        # that have not reported.
        self.decisions: dict[str, LiveDecision] = {}
        self.decisions_by_subject: dict[str, dict[str, int]] = {}
        self.conflict_keys: dict[str, str] = {}
        self.grants: dict[str, str] = {}
        self.ended_decisions: dict[str, EndedDecision] = {}
        self.reviews: dict[str, Review] = {}

        # The time of the last event of each remembered trace, in ms. By trace: refusals and decision_ids of open reviews by
        # `Semantics.refusals_key`, closed actions by `action_key` of the subject, and tool calls by execution_id.
        # `trace_of_execution` has the trace of every remembered tool call by execution_id.
        self.traces: dict[str, int] = {}
        self.refused_traces: Final = RefusedTraces()
        self.refusals: dict[str, dict[str, Refusals]] = {}
        self.trace_reviews: dict[str, dict[str, str]] = {}
        self.closed_actions: dict[str, dict[str, ClosedAction]] = {}
        self.tool_calls: dict[str, dict[str, ToolCallRecord]] = {}
        self.trace_of_execution: dict[str, str] = {}
        self.tool_result_tables: Final = ToolResultTables()

        # The versions that the events of a trace name, by trace_id; the last answer to a prompt, by the prompt's hash.
        self.trace_versions: dict[str, TraceVersions] = {}
        self.answers: dict[str, ModelAnswer] = {}

        # (due_ms, sequence_number, decision_id) of approvals and reviews; of a contest (due_ms, number of its first proposal, its name).
        self.timers: Final[SortedList] = SortedList()
        self.trace_lapses: Final[SortedList] = SortedList()  # (last_event_ms, trace_id)
        self.decision_ends: Final[SortedList] = SortedList()  # (ended_at_ms, decision_id)

    def evidence_of(self, subject: str) -> KeyCandidates:
        """Return the evidence about a subject, by fact key. Do not change it; `changeable_evidence` returns a dict to change."""
        keys: KeyCandidates | None = self.evidence.get(subject)
        if keys is None and self.paged_evidence.pages is not None:
            keys = self.paged_evidence.get(subject)
        return _NO_EVIDENCE if keys is None else keys

    def changeable_evidence(self, subject: str) -> KeyCandidates:
        """Return the evidence about a subject to be changed. Evidence in pages is copied into the state's own table first."""
        keys = self.evidence.get(subject)
        if keys is None:
            keys = dict(self.evidence_of(subject))
            self.put(self.evidence, subject, keys)
        return keys

    @property
    def paged_tables(self) -> tuple[PagedTable, ...]:
        """The tables whose rows leave the memory with a snapshot."""
        return self.paged_evidence, self.tool_result_tables.outliving_results

    def use_pages(self, pages: StatePages) -> None:
        """Read the rows that are not in memory from these pages, which are of this bus and not beyond its head."""
        self.paged_evidence.use_pages(pages.evidence)
        self.tool_result_tables.outliving_results.use_pages(pages.outliving_results)

    def put(self, table: dict[Any, Any], key: object, value: object) -> None:
        """Set a key of a table."""
        self._entries.append((table, key, table.get(key, ABSENT)))
        table[key] = value

    def drop(self, table: dict[Any, Any], key: object) -> None:
        """Delete a key of a table, if it is there."""
        old = table.get(key, ABSENT)
        if old is not ABSENT:
            del table[key]
            self._entries.append((table, key, old))

    def dispose(self, table: dict[Any, Any], key: object) -> None:
        """Delete a key of a table like `drop`. Its value is a large table, and is freed in steps once the change is committed."""
        self.disposal.add_drop(table[key], self.undo_log.position)
        self._entries.append(self.disposal.withdraw)
        self.drop(table, key)

    def dispose_all(self) -> Disposal:
        """Return all tables to be freed. The store cannot be used any more."""
        tables: tuple[Any, ...] = (
            self.evidence,
            self.counters,
            self.contest_tables.open_proposals,
            self.contest_tables.open_proposals_by_subject,
            self.contest_tables.open_proposals_by_trace,
            self.contest_tables.contests,
            self.decisions,
            self.decisions_by_subject,
            self.conflict_keys,
            self.grants,
            self.ended_decisions,
            self.reviews,
            self.traces,
            self.refused_traces.by_trace,
            self.refused_traces.by_producer,
            self.refused_traces.counts,
            self.refusals,
            self.trace_reviews,
            self.closed_actions,
            self.tool_calls,
            self.trace_of_execution,
            self.tool_result_tables.tool_results,
            self.tool_result_tables.trace_of_result,
            self.tool_result_tables.readings,
            self.tool_result_tables.contradictions,
            self.tool_result_tables.candidate_counts,
            self.tool_result_tables.outliving_results.changes,
            self.trace_versions,
            self.answers,
            self.timers,
            self.trace_lapses,
            self.decision_ends,
        )
        for table in tables:
            self.disposal.add(table)
        self.counters_by_event = {}
        return self.disposal

    def drop_oldest(self, table: dict[str, Any], numbers: Mapping[str, int], count: int) -> None:
        """Delete the `count` keys of a table with the lowest sequence numbers. Many at once: sorting costs more than deleting."""
        for key in sorted(numbers, key=numbers.__getitem__)[:count]:
            self.drop(table, key)

    def subtable(self, table: dict[str, dict[str, Any]], key: str) -> dict[str, Any]:
        """Return the dict at a key of a table, which is created if it is missing."""
        inner = table.get(key)
        if inner is None:
            inner = {}
            self.put(table, key, inner)
        return inner

    def drop_from(self, table: dict[str, dict[str, Any]], key: str, inner_key: str) -> None:
        """Delete a key of the dict at a key of a table, and the dict with its last key."""
        inner = table[key]
        self.drop(inner, inner_key)
        if not inner:
            self.drop(table, key)

    def schedule(self, schedule: SortedList | CounterTable, item: Any) -> None:
        """Add an item to one of the sorted lists, or an entry to a counter."""
        schedule.add(item)
        self._entries.append((schedule, item, True))

    def unschedule(self, schedule: SortedList | CounterTable, item: Any) -> None:
        """Remove an item from one of the sorted lists, or an entry from a counter."""
        schedule.remove(item)
        self._entries.append((schedule, item, False))

    def set(self, attribute: str, value: object) -> None:
        """Replace a whole attribute."""
        old = getattr(self, attribute)
        self._entries.append(lambda: setattr(self, attribute, old))
        setattr(self, attribute, value)

    def rule_set(self, policy_id: str, version: int) -> CompiledRuleSet:
        """Return a deployed rule set. A version that is not active may have to be compiled."""
        active = self.active_rule_sets.get(policy_id)
        return active.rule_set if active is not None and active.version == version else self.rule_sets[policy_id, version].rule_set
