"""The present state of a bus: what arbitration may read, and the only way to change it.

`State` is a facade. Tables and undo log stand in `store`, the effect of each event in `transitions`. `apply` applies
one event and reads nothing else, so one log always gives one state (constitution §10). Changes that are not in the log yet can be undone
without a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CrossCheck

from gavel_rules.events.arbiter_versions import Semantics
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.recorded_event import RecordedEvent, read_event
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet
from gavel_rules.limits import LATE_REPORT_MS_MAX, READINGS_PER_RESULT_MAX, SOURCES_PER_KEY_MAX, TRACE_TOOL_RESULTS_MAX
from gavel_rules.state.digest import digest
from gavel_rules.state.keys import action_key, duplicate_key, reading_key
from gavel_rules.state.records import (
    NO_REJECTIONS,
    ActionShadow,
    Candidate,
    GrantsInForce,
    LiveDecision,
    OpenContest,
    Refusals,
    Rejections,
    Review,
    ToolCallRecord,
    ToolEvidence,
)
from gavel_rules.state.store import Store
from gavel_rules.state.transitions.apply import apply_event
from gavel_rules.state.transitions.traces import has_lapsed

_NO_CALLS: Final[Mapping[str, ToolCallRecord]] = {}
_NO_RESULTS: Final[Mapping[str, ToolEvidence]] = {}


class State:
    """The state of one bus at its head. Callers read its tables and never change them."""

    def __init__(self, bus: str) -> None:
        store = Store(bus)
        self.store: Final = store
        self.bus: Final = bus
        # The store's own tables; the modules of `state` document their keys.
        self.rule_sets: Final = store.rule_sets
        self.active_rule_sets: Final = store.active_rule_sets
        self.shadows: Final = store.shadows
        self.grants_versions: Final = store.grants_versions
        self.counters: Final = store.counters
        contest_tables = store.contest_tables
        self.open_proposals: Final = contest_tables.open_proposals
        self.open_proposals_by_subject: Final = contest_tables.open_proposals_by_subject
        self.open_proposals_by_trace: Final = contest_tables.open_proposals_by_trace
        self.contests: Final = contest_tables.contests
        self.decisions: Final = store.decisions
        self.decisions_by_subject: Final = store.decisions_by_subject
        self.conflict_keys: Final = store.conflict_keys
        self.grants: Final = store.grants
        self.ended_decisions: Final = store.ended_decisions
        self.reviews: Final = store.reviews
        self.tools: Final = store.tools
        self.traces: Final = store.traces
        self.refusals: Final = store.refusals
        self.trace_reviews: Final = store.trace_reviews
        self.closed_actions: Final = store.closed_actions
        self.tool_calls: Final = store.tool_calls
        self.trace_of_execution: Final = store.trace_of_execution
        tool_result_tables = store.tool_result_tables
        self.tool_results: Final = tool_result_tables.tool_results
        self.readings: Final = tool_result_tables.readings
        self.contradictions: Final = tool_result_tables.contradictions
        self.trace_versions: Final = store.trace_versions
        self.answers: Final = store.answers

    @property
    def head(self) -> int:
        """The sequence number of the last event; 0 for an empty log."""
        return self.store.head

    @property
    def recorded_at_ms(self) -> int:
        """The recording time of the last event."""
        return self.store.recorded_at_ms

    def time_ms(self, clock_ms: int) -> int:
        """Return the time of the bus when a server's clock is `clock_ms`: that clock, unless the bus is ahead by an accepted time.

        Until the clocks catch up, the time of the bus runs at half speed: its events still get later, and every duration ends after at most
        twice its length.
        """
        acceptance = self.store.clock_acceptance
        if acceptance is None:
            return clock_ms
        return max(clock_ms, acceptance.recorded_at_ms + (clock_ms - acceptance.clock_ms) // 2)

    @property
    def arbiter_version(self) -> int:
        """The semantics that the bus is decided by; 0 before it is opened."""
        return self.store.arbiter_version

    @property
    def semantics(self) -> Semantics:
        """The semantics of that version; the latest ones before the bus is opened."""
        return self.store.semantics

    @property
    def cross_check(self) -> CrossCheck:
        """Which decisions both engines evaluate."""
        return self.store.cross_check

    @property
    def grants_in_force(self) -> GrantsInForce | None:
        """Who may do what; None before the first grants are deployed."""
        return self.store.grants_in_force

    @property
    def idempotency_window_ms(self) -> int:
        """How long the bus recognizes a repeated event_id."""
        return self.store.idempotency_window_ms

    @property
    def active_actions(self) -> dict[str, tuple[CompiledAction, ...]]:
        """The actions of the active rule sets, by action type."""
        return self.store.active_actions

    @property
    def shadows_by_action(self) -> dict[str, tuple[ActionShadow, ...]]:
        """The shadows, by action type."""
        return self.store.shadows_by_action

    # Changes

    def apply(self, envelope: Envelope) -> RecordedEvent:
        """Apply the log's next event, and return it. The state keeps the envelope, which must not change afterwards."""
        event = read_event(envelope)
        apply_event(self.store, event, milliseconds(envelope.recorded_at))
        return event

    def advance(self, event: RecordedEvent, recorded_at_ms: int) -> None:
        """Apply the next event, which has been read already."""
        apply_event(self.store, event, recorded_at_ms)

    def mark(self) -> int:
        """Return a position for `undo`, which also restores head and time."""
        store = self.store
        position = store.undo_log.position
        head, recorded_at_ms = store.head, store.recorded_at_ms

        def restore() -> None:
            store.head, store.recorded_at_ms = head, recorded_at_ms

        store.undo_log.entries.append(restore)
        return position

    @property
    def position(self) -> int:
        """The present position, for `commit`."""
        return self.store.undo_log.position

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether the state holds changes that may still be undone."""
        return bool(self.store.undo_log.entries)

    def on_undo(self, action: Callable[[], None]) -> None:
        """Run `action` if the changes made from now on are undone."""
        self.store.undo_log.entries.append(action)

    def undo(self, position: int) -> None:
        """Take back every change since `mark` returned the position."""
        self.store.undo_log.undo(position)

    def commit(self, position: int | None = None) -> None:
        """Forget how to undo the changes before a position, or all of them: the log has them."""
        self.store.undo_log.commit(position)

    def free_dropped(self) -> bool:
        """Free the next rows of tables that were dropped. Return whether any are left that may be freed."""
        store = self.store
        return store.disposal.has_tables and store.disposal.free(store.undo_log.commit_position)

    def digest(self) -> str:
        """Return "sha256:" and the hex digits of a hash over the whole state. Equal states have equal digests."""
        return digest(self.store)

    # Traces

    def rejections(self, trace_id: str, producer_type: int, producer_id: str, now_ms: int) -> Rejections:
        """Return the consecutive rejections that count against a producer in a trace; none if the trace has lapsed."""
        refusals = self._refusals(trace_id, producer_type, producer_id)
        return NO_REJECTIONS if refusals is None or has_lapsed(self.traces[trace_id], now_ms) else refusals.rejections

    def last_refusal(self, trace_id: str, producer_type: int, producer_id: str, now_ms: int) -> str:
        """Return the fingerprint of a producer's last proposal in a trace that was refused for its evidence or by policy, or ""."""
        refusals = self._refusals(trace_id, producer_type, producer_id)
        return "" if refusals is None or has_lapsed(self.traces[trace_id], now_ms) else refusals.fingerprint

    def open_review(self, trace_id: str, producer_type: int, producer_id: str) -> str:
        """Return the decision_id of the open review that holds a producer's proposals in a trace, or ""."""
        of_trace = self.trace_reviews.get(trace_id)
        return "" if of_trace is None else of_trace.get(self.store.semantics.refusals_key(producer_type, producer_id), "")

    def _refusals(self, trace_id: str, producer_type: int, producer_id: str) -> Refusals | None:
        of_trace = self.refusals.get(trace_id)
        return None if of_trace is None else of_trace.get(self.store.semantics.refusals_key(producer_type, producer_id))

    def is_action_closed(self, trace_id: str, action_type: str, subject: str, actions: Sequence[CompiledAction], now_ms: int) -> bool:
        """Return whether an action on a subject is closed for a trace, and `actions` would not open it again.

        A person's rejection stays. A refusal by rules is lifted by new evidence about a declared fact, other rule sets, or the lapse
        of the trace.
        """
        of_trace = self.closed_actions.get(trace_id)
        closed = of_trace.get(action_key(action_type, subject)) if of_trace is not None else None
        if closed is None:
            return False
        if closed.by_person:
            return True
        if has_lapsed(self.traces[trace_id], now_ms):
            return False
        if actions and closed.digests != [action.digest for action in actions]:
            return False
        return not any(
            candidate.sequence_number > closed.sequence_number
            for key, fact_subject in closed.rests_on
            for candidate in self.store.evidence_of(fact_subject).get(key, ())
        )

    # Evidence

    def evidence_of(self, subject: str) -> Mapping[str, tuple[Candidate, ...]]:
        """Return the candidates for each fact key of a subject."""
        return self.store.evidence_of(subject)

    def tool_evidence(self, trace_id: str, event_id: str, now_ms: int) -> ToolEvidence | None:
        """Return a tool result of a trace, unless the trace has lapsed."""
        trace = self.traces.get(trace_id)
        if trace is None or has_lapsed(trace, now_ms):
            return None
        return self.tool_results.get(trace_id, {}).get(event_id)

    def has_tool_call(self, execution_id: str, now_ms: int) -> bool:
        """Return whether a remembered tool call has an execution_id, and its trace has not lapsed."""
        trace_id = self.trace_of_execution.get(execution_id)
        return trace_id is not None and not has_lapsed(self.traces[trace_id], now_ms)

    def tool_call(self, trace_id: str, execution_id: str) -> ToolCallRecord | None:
        """Return a remembered tool call of a trace."""
        return self.tool_calls.get(trace_id, _NO_CALLS).get(execution_id)

    def has_room_for_result(self, trace_id: str, now_ms: int) -> bool:
        """Return whether a trace can take one more tool result: it is below the limit, or has unread results to forget."""
        results = self.tool_results.get(trace_id, _NO_RESULTS)
        if len(results) < TRACE_TOOL_RESULTS_MAX or has_lapsed(self.traces[trace_id], now_ms):
            return True
        return bool(self.store.tool_result_tables.unread_results(results))

    def has_room_for_readings(self, evidence_ref: str, subject: str, keys: Iterable[str]) -> bool:
        """Return whether the readings of an observation fit the limit of its tool result."""
        readings = self.store.tool_result_tables.readings_of(evidence_ref)
        if readings is None or self._is_forgotten(evidence_ref):
            return True
        return len(readings) + len({reading_key(subject, key) for key in keys} - readings.keys()) <= READINGS_PER_RESULT_MAX

    def contradiction_of(self, evidence_ref: str) -> str:
        """Return the `reading_key` of a value that was read differently in a tool result, or ""."""
        contradiction = self.store.tool_result_tables.contradiction_of(evidence_ref)
        return "" if contradiction and self._is_forgotten(evidence_ref) else contradiction

    def _is_forgotten(self, evidence_ref: str) -> bool:
        """Return whether a tool result is forgotten, or will be by an event soon: its trace has lapsed, and no evidence was read in it."""
        tables = self.store.tool_result_tables
        trace_id = tables.trace_of_result.get(evidence_ref)
        if trace_id is None or evidence_ref in tables.candidate_counts:
            return False
        return has_lapsed(self.traces[trace_id], self.store.recorded_at_ms)

    def has_room_for_source(self, subject: str, key: str, trust_tier: int, source: str) -> bool:
        """Return whether a source may state a key of a subject at a tier: it has before, or there is room for another source."""
        candidates = self.store.evidence_of(subject).get(key, ())
        if len(candidates) < SOURCES_PER_KEY_MAX:
            return True
        sources = [candidate.source for candidate in candidates if candidate.trust_tier == trust_tier]
        return len(sources) < SOURCES_PER_KEY_MAX or source in sources

    # Decisions and rule sets

    def live_decision(self, decision_id: str) -> LiveDecision | None:
        """Return a live decision by its id or by that of a grant of one more attempt."""
        return self.decisions.get(decision_id) or self.decisions.get(self.grants.get(decision_id, ""))

    def decision_for_report(self, decision_id: str, now_ms: int) -> LiveDecision | None:
        """Return the decision that a report is about: the live one, or one that ended no longer than LATE_REPORT_MS_MAX ago."""
        ended = self.ended_decisions.get(self.grants.get(decision_id, decision_id)) if self.ended_decisions else None
        if ended is None:
            return self.live_decision(decision_id)
        return ended.live if now_ms - ended.ended_at_ms <= LATE_REPORT_MS_MAX else None

    def rule_set_of(self, decision: Decision) -> CompiledRuleSet | None:
        """Return the rule set that made a decision; None for one of Gavel's own."""
        return self.store.rule_set(decision.policy_id, decision.policy_version) if decision.rule_set_digest else None

    def actions_of(self, decision: Decision) -> list[CompiledAction]:
        """Return the decision's action in the rule sets consulted for it, active or not."""
        return [
            self.store.rule_set(reference.policy_id, reference.version).actions[decision.action_type]
            for reference in decision.active_rule_sets
        ]

    def pending_decisions(self) -> list[LiveDecision]:
        """Return all live decisions, oldest first."""
        return sorted(self.decisions.values(), key=lambda live: live.sequence_number)

    def pending_reviews(self) -> list[Review]:
        """Return all open reviews, oldest first."""
        return sorted(self.reviews.values(), key=lambda review: review.sequence_number)

    # Contests and timers

    def contest_of(self, proposal_id: str) -> OpenContest | None:
        """Return the contest that an open proposal waits for."""
        event = self.open_proposals.get(proposal_id)
        return self.store.contest_tables.contest_of(event) if event is not None else None

    def open_duplicate(self, proposal: ProposalView, conflict_key: str) -> str:
        """Return the event_id of another, equal proposal of the producer and trace that waits for a contest on the conflict key, or ""."""
        of_trace = self.open_proposals_by_trace.get(proposal.trace_id)
        if of_trace is None:
            return ""
        event_id = of_trace.get(duplicate_key(proposal, self.store.semantics, conflict_key), "")
        return event_id if event_id != proposal.event_id else ""

    def next_timer_ms(self) -> int | None:
        """Return when the next timer is due, in milliseconds since the epoch."""
        timers = self.store.timers
        return timers[0][0] if timers else None

    def next_due(self, now_ms: int) -> LiveDecision | OpenContest | Review | None:
        """Return the decision, contest or review whose timer is due first by now, by (due time, sequence number)."""
        timers = self.store.timers
        if not timers:
            return None
        due_ms, _, name = timers[0]
        return None if due_ms > now_ms else self.contests.get(name) or self.reviews.get(name) or self.decisions[name]

    def due_count(self, now_ms: int) -> int:
        """Return how many events the timers due by now make at most: a contest makes one for each candidate."""
        timers = self.store.timers
        if not timers or timers[0][0] > now_ms:
            return 0
        count = int(timers.bisect_right((now_ms, 1 << 62, "")))
        if self.contests:
            due = (self.contests.get(name) for _, _, name in timers[:count])
            count += sum(len(contest.candidates) - 1 for contest in due if contest is not None)
        return count
