"""What the present of a bus is made of, and what can be asked of it.

Records (`records.py`) are never changed: a change puts another record in place, which is what makes undoing (`journal.py`)
a matter of putting the old one back. Nothing iterates over a dict in an order that matters: undoing may reorder keys. Nothing
changes here; how events change the tables is `projection`'s.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gavel.v1.decision_pb2 import Decision
from gavel.v1.fact_pb2 import CrossCheck
from google.protobuf.message import Message
from sortedcontainers import SortedList

from gavel_rules.fingerprint import fingerprint
from gavel_rules.journal import Journal
from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet
from gavel_rules.limits import (
    IDEMPOTENCY_WINDOW_MS_DEFAULT,
    LATE_REPORT_MS_MAX,
    READINGS_PER_RESULT_MAX,
    SOURCES_PER_KEY_MAX,
    TRACE_LAPSE_MS,
    TRACE_TOOL_RESULTS_MAX,
)
from gavel_rules.made import Made
from gavel_rules.proposed import Proposed
from gavel_rules.records import (
    NO_REJECTIONS,
    ActiveRuleSet,
    Candidate,
    Departed,
    DeployedRuleSet,
    Ended,
    Kept,
    LiveDecision,
    OpenContest,
    Rejections,
    Review,
    Shadowing,
    ShadowRuleSet,
    ToolEvidence,
    Trace,
)


class Tables(Journal):
    """The tables of one bus, as they are at its head."""

    def __init__(self, bus: str) -> None:
        super().__init__()
        self.bus = bus
        self.head = 0
        self.recorded_at_ms = 0
        self.arbiter_version = 0
        self.cross_check = CrossCheck()
        self.idempotency_window_ms = IDEMPOTENCY_WINDOW_MS_DEFAULT
        self.rule_sets: dict[tuple[str, int], DeployedRuleSet] = {}
        self.active: dict[str, ActiveRuleSet] = {}
        self.governing: dict[str, tuple[CompiledAction, ...]] = {}
        self.shadows: dict[str, ShadowRuleSet] = {}
        self.shadowing: dict[str, tuple[Shadowing, ...]] = {}  # by action type
        self.evidence: dict[str, dict[str, tuple[Candidate, ...]]] = {}
        self.open_proposals: dict[str, Made] = {}
        self.contests: dict[str, OpenContest] = {}  # by action and conflict key (`action_on`)
        self.waiting_of_subject: dict[str, tuple[str, ...]] = {}  # event_ids of the proposals that wait for contests
        self.waiting_of_trace: dict[str, dict[str, str]] = {}  # by trace: the same event_ids, by `waiting_key`
        self.decisions: dict[str, LiveDecision] = {}
        self.decisions_of_subject: dict[str, tuple[str, ...]] = {}
        self.holds: dict[str, str] = {}
        self.grants: dict[str, str] = {}  # decision_id of a grant of one more attempt -> that of its approval
        self.departed: dict[str, Departed] = {}  # decisions that ended while attempts of them had not reported
        self.reviews: dict[str, Review] = {}
        self.ended: dict[str, dict[str, Ended]] = {}  # by trace, then action and subject
        self.traces: dict[str, Trace] = {}
        self.tool_calls: dict[str, dict[str, int]] = {}  # by trace: execution_ids, with the number of the call
        self.tool_results: dict[str, dict[str, ToolEvidence]] = {}
        self.readings: dict[str, dict[str, str]] = {}  # by tool result: what was read in it, by subject and key
        self.contradicted: dict[str, str] = {}  # by tool result: a subject and key of which it was read to say two things
        # (due_ms, sequence_number, decision_id), or of a contest the number of its first proposal and its name
        self._timers: SortedList = SortedList()
        self._lapses: SortedList = SortedList()  # (last_event_ms, trace_id)
        self._departures: SortedList = SortedList()  # (ended_at_ms, decision_id)

    def rejections(self, trace_id: str, now_ms: int) -> Rejections:
        """Return how many rejections in a row the trace has had; none once it has been silent for TRACE_LAPSE_MS."""
        trace = self.traces.get(trace_id)
        return trace.rejections if trace is not None and not _has_lapsed(trace, now_ms) else NO_REJECTIONS

    def refused(self, trace_id: str, now_ms: int) -> str:
        """Return the fingerprint of what the trace was refused last, for lack of evidence or by policy, or ""."""
        trace = self.traces.get(trace_id)
        return trace.refused if trace is not None and not _has_lapsed(trace, now_ms) else ""

    def is_ended(self, trace_id: str, action_type: str, subject: str, governing: Sequence[CompiledAction], now_ms: int) -> bool:
        """Whether the trace was told that this action on this subject cannot succeed, and still cannot.

        What a person has rejected stays ended. What the rules could not allow may be tried again after an event about a declared
        fact, or under other rule sets.
        """
        of_trace = self.ended.get(trace_id)
        ended = of_trace.get(action_on(action_type, subject)) if of_trace is not None else None
        if ended is None:
            return False
        if ended.by_person:
            return True
        if _has_lapsed(self.traces[trace_id], now_ms):
            return False
        if governing and ended.digests != [action.digest for action in governing]:
            return False
        return not any(
            candidate.sequence_number > ended.sequence_number
            for key, of_subject in ended.rests_on
            for candidate in self.evidence.get(of_subject, {}).get(key, ())
        )

    def tool_evidence(self, trace_id: str, event_id: str, now_ms: int) -> ToolEvidence | None:
        """Return a tool result of the trace, unless the trace has lapsed."""
        trace = self.traces.get(trace_id)
        if trace is None or _has_lapsed(trace, now_ms):
            return None
        return self.tool_results.get(trace_id, {}).get(event_id)

    def has_room_for_result(self, trace_id: str, now_ms: int) -> bool:
        """Whether a trace can take one more tool result: it has few enough, or has some to spare that nobody has read."""
        results = self.tool_results.get(trace_id, _NO_RESULTS)
        if len(results) < TRACE_TOOL_RESULTS_MAX or _has_lapsed(self.traces[trace_id], now_ms):
            return True
        return bool(self._spare_results(results))

    def has_room_for_readings(self, evidence_ref: str, subject: str, keys: Iterable[str]) -> bool:
        """Whether what an observation has read in a tool result can be remembered, so that another reading cannot contradict it unseen."""
        of_evidence = self.readings.get(evidence_ref)
        if of_evidence is None:
            return True
        return len(of_evidence) + len({read_key(subject, key) for key in keys} - of_evidence.keys()) <= READINGS_PER_RESULT_MAX

    def has_room_for_source(self, subject: str, key: str, trust_tier: int, source: str) -> bool:
        """Whether a source may state a key of a subject at a tier: it has done so before, or few enough others have."""
        candidates = self.evidence.get(subject, _NO_KEYS).get(key, ())
        if len(candidates) < SOURCES_PER_KEY_MAX:
            return True
        known = [candidate.source for candidate in candidates if candidate.trust_tier == trust_tier]
        return len(known) < SOURCES_PER_KEY_MAX or source in known

    def _spare_results(self, results: Mapping[str, ToolEvidence]) -> list[str]:
        """Return the older half of the results that nobody has read: without them an observation is inference, and hides nothing.

        One that has been read is kept: it must show if somebody reads something else in it.
        """
        unread = [event_id for event_id in results if not self.readings.get(event_id)]
        return sorted(unread, key=lambda event_id: results[event_id].sequence_number)[: len(unread) // 2]

    def open_review(self, trace_id: str) -> str:
        """Return the decision_id of the trace's open review, or ""."""
        trace = self.traces.get(trace_id)
        return trace.review if trace else ""

    def rule_set_of(self, decision: Decision) -> CompiledRuleSet | None:
        """Return the rule set that made a decision; None for one of Gavel's own."""
        if not decision.rule_set_digest:
            return None
        return self._rule_set(decision.policy_id, decision.policy_version)

    def live(self, decision_id: str) -> LiveDecision | None:
        """Return the live decision of this id, or the one that a person granted one more attempt under this id."""
        return self.decisions.get(decision_id) or self.decisions.get(self.grants.get(decision_id, ""))

    def reportable(self, decision_id: str, now_ms: int) -> LiveDecision | None:
        """Return the decision whose attempts may report under this id: the live one, or as it was when it ended without their word."""
        departed = self.departed.get(self.grants.get(decision_id, decision_id)) if self.departed else None
        if departed is None:
            return self.live(decision_id)
        return departed.live if now_ms - departed.ended_at_ms <= LATE_REPORT_MS_MAX else None

    def actions_of(self, decision: Decision) -> list[CompiledAction]:
        """Return what governed a decision's action in the rule sets that were consulted for it, whatever is in force now."""
        return [
            self._rule_set(reference.policy_id, reference.version).actions[decision.action_type] for reference in decision.active_rule_sets
        ]

    def _rule_set(self, policy_id: str, version: int) -> CompiledRuleSet:
        """Return a deployed version: the one in force is at hand, others may have to be compiled."""
        active = self.active.get(policy_id)
        return active.rule_set if active is not None and active.version == version else self.rule_sets[policy_id, version].rule_set

    def next_timer_ms(self) -> int | None:
        """Return when the next timer is due, in milliseconds since the epoch."""
        return self._timers[0][0] if self._timers else None

    def next_due(self, now_ms: int) -> LiveDecision | OpenContest | None:
        """Return the decision or the contest whose timer is due next, by (due, sequence number), if it is due by now."""
        if not self._timers:
            return None
        due_ms, _, name = self._timers[0]
        return None if due_ms > now_ms else self.contests.get(name) or self.decisions[name]

    def due_count(self, now_ms: int) -> int:
        """Return how many timers are due by now; a contest counts as often as it has candidates, for each is decided."""
        if not self._timers or self._timers[0][0] > now_ms:
            return 0
        count = int(self._timers.bisect_right((now_ms, 1 << 62, "")))
        if self.contests:
            due = (self.contests.get(name) for _, _, name in self._timers[:count])
            count += sum(len(contest.candidates) - 1 for contest in due if contest is not None)
        return count

    def contest_of(self, proposal_id: str) -> OpenContest | None:
        """Return the contest whose close a proposal waits for."""
        proposal = self.open_proposals.get(proposal_id)
        return self._contest_of(proposal) if proposal is not None else None

    def _contest_of(self, proposal: Made) -> OpenContest | None:
        if not self.contests or not proposal.competes:
            return None
        asked = proposal.asked
        return self.contests.get(action_on(asked.action_type, asked.proposal.contest.conflict_key))

    def waits_already(self, asked: Proposed, conflict_key: str) -> str:
        """Return the event_id of another proposal of the trace that is the same and waits for a contest for the key, or ""."""
        of_trace = self.waiting_of_trace.get(asked.trace_id)
        if of_trace is None:
            return ""
        waiting = of_trace.get(waiting_key(asked, conflict_key), "")
        return waiting if waiting != asked.header.event_id else ""

    def pending_decisions(self) -> list[LiveDecision]:
        """Return all live decisions, oldest first."""
        return sorted(self.decisions.values(), key=lambda live: live.sequence_number)

    def pending_reviews(self) -> list[Review]:
        """Return all open reviews, oldest first."""
        return sorted(self.reviews.values(), key=lambda review: review.sequence_number)

    def mark(self) -> int:
        """Return a point to which `undo` can go back, head and time included."""
        position = self.position
        head, recorded_at_ms = self.head, self.recorded_at_ms

        def restore() -> None:
            self.head, self.recorded_at_ms = head, recorded_at_ms

        self.on_undo(restore)
        return position

    def digest(self) -> str:
        """Return "sha256:" and hex over the whole state: equal states, and only those, have equal digests."""
        content = {
            "head": self.head,
            "recorded_at_ms": self.recorded_at_ms,
            "arbiter_version": self.arbiter_version,
            "cross_check": _plain(self.cross_check),
            "idempotency_window_ms": self.idempotency_window_ms,
            "rule_sets": [
                (policy, version, deployed.digest, deployed.sequence_number)
                for (policy, version), deployed in sorted(self.rule_sets.items())
            ],
            "active": {policy_id: (*active[:3], active.rule_set.digest) for policy_id, active in self.active.items()},
            "shadows": {policy_id: (*shadow[:3], shadow.rule_set.digest, *shadow[4:]) for policy_id, shadow in self.shadows.items()},
            "evidence": {
                subject: {key: sorted([one.plain() for one in candidates]) for key, candidates in keys.items()}
                for subject, keys in self.evidence.items()
            },
            "open_proposals": {key: _plain(made.envelope) for key, made in self.open_proposals.items()},
            "contests": self.contests,
            "waiting_of_subject": self.waiting_of_subject,
            "waiting_of_trace": self.waiting_of_trace,
            "decisions": {key: _plain_tuple(value) for key, value in self.decisions.items()},
            "decisions_of_subject": self.decisions_of_subject,
            "holds": self.holds,
            "grants": self.grants,
            "departed": {key: [_plain_tuple(value.live), value.ended_at_ms] for key, value in self.departed.items()},
            "reviews": {key: _plain_tuple(value) for key, value in self.reviews.items()},
            "ended": {trace_id: {what: ended.plain() for what, ended in of_trace.items()} for trace_id, of_trace in self.ended.items()},
            "traces": {trace_id: trace.plain() for trace_id, trace in self.traces.items()},
            "tool_calls": self.tool_calls,
            "tool_results": self.tool_results,
            "readings": self.readings,
            "contradicted": self.contradicted,
            "timers": list(self._timers),
            "lapses": list(self._lapses),
            "departures": list(self._departures),
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def action_on(action_type: str, target: str) -> str:
    """Name an action on a subject or, as its contest, for a conflict key: no other has that name, and no decision has it as its id.

    An action holds no space.
    """
    return f"{action_type} {target}"


def waiting_key(asked: Proposed, conflict_key: str) -> str:
    """Name what a proposal is (`fingerprint`) and competes for. A fingerprint holds no space."""
    return f"{fingerprint(asked)} {conflict_key}"


def read_key(subject: str, key: str) -> str:
    """Name a key of a subject. A subject holds no space."""
    return f"{subject} {key}"


_NO_RESULTS: Final[Mapping[str, ToolEvidence]] = {}
_NO_KEYS: Final[Mapping[str, tuple[Candidate, ...]]] = {}


def _has_lapsed(trace: Trace, now_ms: int) -> bool:
    return now_ms - trace.last_event_ms > TRACE_LAPSE_MS


def governing_actions(rule_sets: Iterable[CompiledRuleSet]) -> dict[str, tuple[CompiledAction, ...]]:
    """Return, per action type, what governs it, by policy_id."""
    governing: dict[str, tuple[CompiledAction, ...]] = {}
    for rule_set in sorted(rule_sets, key=lambda rule_set: rule_set.policy_id):
        for action_type, action in rule_set.actions.items():
            governing[action_type] = (*governing.get(action_type, ()), action)
    return governing


def _plain(message: Message) -> str:
    return message.SerializeToString(deterministic=True).hex()


def _plain_tuple(record: tuple[Any, ...]) -> list[object]:
    return [_plain_item(item) for item in record]


def _plain_item(item: Any) -> object:
    if isinstance(item, Kept):
        return item.content.hex()
    if isinstance(item, tuple):
        return [_plain_member(member) for member in item]
    return _plain(item) if hasattr(item, "DESCRIPTOR") else item


def _plain_member(member: Any) -> object:
    if not isinstance(member, tuple):
        return member
    first, second = member
    return [first, second.event_id if hasattr(second, "DESCRIPTOR") else second]
