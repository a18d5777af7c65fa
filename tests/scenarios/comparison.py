"""Comparison of a log with what a scenario file expects, and of the logs of two layers with each other.

Ids and absolute times are never compared: an id stands for the name that the file gives its event, a time for the milliseconds
since the scenario's start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gavel.v1.decision_pb2 import OUTCOME_APPROVED, Decision, FactRequirement, FactRequirementState, Outcome, Remedy, RuleEffect
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.reason_codes import number_of
from gavel_rules.values import value_to_python
from google.protobuf import text_format
from google.protobuf.struct_pb2 import Value

from tests.scenarios.steps import AppendedEvent, DecisionExpectation, HintRow


class NamedLog:
    """The log so far, and the names of its events. `start_ms` is the start of the scenario."""

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.events: list[Envelope] = []
        self.by_id: dict[str, Envelope] = {}
        self._ids: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def set_name(self, name: str, event_id: str) -> None:
        """Name an event. An event may have several names; `name` returns the first."""
        self._ids[name] = event_id
        self._names.setdefault(event_id, name)

    def extend(self, events: Iterable[Envelope]) -> None:
        """Append events. The first decision on the proposal NAME gets the name NAME.decision."""
        for event in events:
            self.events.append(event)
            self.by_id[event.event_id] = event
            proposal = self._names.get(event.decision.proposal_id) if event.HasField("decision") else None
            if proposal is not None and not event.decision.previous_decision_id and not event.decision.compensates_decision_id:
                self.set_name(f"{proposal}.decision", event.event_id)

    def name(self, event_id: str) -> str:
        """Return the name of an event, or its id if it has none."""
        return self._names.get(event_id, event_id)

    def event(self, name: str) -> Envelope:
        """Return the event of a name."""
        event = self.by_id.get(self._ids.get(name, ""))
        assert event is not None, f"no event of the log is named {name} so far"
        return event

    @property
    def events_by_name(self) -> Mapping[str, Envelope]:
        """All named events of the log."""
        return {name: self.by_id[event_id] for name, event_id in self._ids.items() if event_id in self.by_id}

    def expiry_ms(self, decision: Decision) -> int:
        """Return when an approval expires, in milliseconds since the start."""
        return milliseconds(decision.valid_until) - self.start_ms


# The value of a decision that each expectation is compared with.
_READ: Final[Mapping[str, Callable[[Decision, NamedLog], object]]] = {
    "outcome": lambda decision, log: Outcome.Name(decision.outcome).removeprefix("OUTCOME_"),
    "reason_code": lambda decision, log: decision.reason_code,
    "rule": lambda decision, log: decision.rule_id,
    "policy": lambda decision, log: decision.policy_id,
    "terminal": lambda decision, log: decision.terminal,
    "retryable": lambda decision, log: decision.retry_hint.retryable,
    "remedy": lambda decision, log: [Remedy.Name(one).removeprefix("REMEDY_") for one in decision.retry_hint.remedy],
    "effects": lambda decision, log: [RuleEffect.Name(match.effect).removeprefix("RULE_EFFECT_") for match in decision.rule_matches],
    "retry_after": lambda decision, log: decision.retry_hint.retry_after_ms,
    "warnings": lambda decision, log: [warning.code for warning in decision.warnings],
    "conflicts_with": lambda decision, log: [log.name(one) for one in decision.conflict_with_proposal_ids],
    "rejections": lambda decision, log: decision.consecutive_rejections,
    "pinned": lambda decision, log: [log.name(pin.event_id) for pin in decision.pinned_facts],
    "absent": lambda decision, log: [fact.key for fact in decision.absent_facts],
    "matched": lambda decision, log: [match.rule_id for match in decision.rule_matches],
    "consulted": lambda decision, log: list(decision.active_policy_ids),
    "valid_until": lambda decision, log: log.expiry_ms(decision),
    "conflict_key": lambda decision, log: decision.conflict_key,
    "previous": lambda decision, log: log.name(decision.previous_decision_id),
    "quorum": lambda decision, log: decision.review_policy.quorum,
    "compensates": lambda decision, log: log.name(decision.compensates_decision_id),
    "params": lambda decision, log: value_to_python(Value(struct_value=decision.params)),
}


def compare_decision(label: str, expected: DecisionExpectation, decision: Decision, log: NamedLog) -> list[str]:
    """Return a line for every difference between a decision and the expected one."""
    lines = [f"  {label}: {problem}" for problem in _law_violations(decision)]
    for key, read in _READ.items():
        value = getattr(expected, key)
        if value is not None and value != read(decision, log):
            lines.append(f"  {label}: {key}: expected {value!r}, got {read(decision, log)!r}")
    if expected.hint is not None:
        rows = decision.retry_hint.fact_requirements
        actual_rows = [_row(row, like) for row, like in zip(rows, expected.hint, strict=False)]
        actual_rows += [_row(row, None) for row in rows[len(expected.hint) :]]
        expected_rows = [row.model_dump(exclude_none=True) for row in expected.hint]
        if expected_rows != actual_rows:
            lines.append(f"  {label}: hint: expected {expected_rows}, got {actual_rows}")
    if expected.candidates is not None:
        expected_candidates = [one.model_dump(exclude_none=True) for one in expected.candidates]
        candidates = [
            {"proposal": log.name(one.proposal_id), "score": one.score, "reason_code": one.reason_code}
            for one in decision.contest.candidates
        ]
        comparable = [{key: one[key] for key in like} for one, like in zip(candidates, expected_candidates, strict=False)]
        if expected_candidates != comparable or len(candidates) != len(comparable):
            lines.append(f"  {label}: candidates: expected {expected_candidates}, got {candidates}")
    return lines


def _law_violations(decision: Decision) -> list[str]:
    """Return how a decision violates the law of remedies: a refusal has one, its code is also an enum value, an approval has neither."""
    is_refusal = decision.outcome != OUTCOME_APPROVED
    problems = []
    if is_refusal != bool(decision.retry_hint.remedy):
        problems.append(f"{decision.reason_code} has the remedies {list(decision.retry_hint.remedy)}")
    if decision.reason != (number_of(decision.reason_code) if is_refusal else 0):
        problems.append(f"reason is {decision.reason}, but reason_code is {decision.reason_code}")
    return problems


def _row(row: FactRequirement, like: HintRow | None) -> dict[str, object]:
    """Return a row of the hint, with the keys that the expected row sets."""
    values = {
        "key": row.key,
        "state": FactRequirementState.Name(row.state).removeprefix("FACT_REQUIREMENT_STATE_"),
        "subject": row.subject,
        "tier": int(row.required_trust_tier),
        "max_age": row.max_age_ms,
        "sources": list(row.sources),
    }
    keys = like.model_dump(exclude_none=True) if like is not None else ("key", "state")
    return {key: values[key] for key in keys}


def compare_appended(label: str, expected: Sequence[AppendedEvent], actual: Sequence[Envelope], log: NamedLog) -> list[str]:
    """Return a line for every difference between the appended and the expected events; name the events as the file does."""
    names = [item.event for item in expected]
    if names != [event.event_name for event in actual]:
        actual_names = [f"{event.event_name} {event.decision.reason_code}".rstrip() for event in actual]
        return [f"  {label}: expected {names}, got {actual_names}"]
    lines = []
    for item, event in zip(expected, actual, strict=True):
        if item.name is not None:
            log.set_name(item.name, event.event_id)
        if item.expect is not None:
            lines += compare_decision(f"{label}: {item.event}", item.expect, event.decision, log)
        lines += [
            f"  {label}: {item.event}: {key}: expected {value!r}, got {actual_value!r}"
            for key, value, actual_value in _event_values(item, event)
            if value != actual_value
        ]
    return lines


def _event_values(item: AppendedEvent, event: Envelope) -> list[tuple[str, Any, Any]]:
    """Return (key, expected, actual) for the expectations of an event that is not a decision."""
    values: list[tuple[str, Any, Any]] = []
    if item.key is not None:
        values.append(("key", item.key, event.fact.key))
        values.append(("value", item.value, value_to_python(event.fact.value)))
    if item.reason_code is not None:
        actual = event.execution.reason_code if event.HasField("execution") else event.decision.reason_code
        values.append(("reason_code", item.reason_code, actual))
    if item.asks_for is not None:
        values.append(("asks_for", item.asks_for, [row.key for row in event.agent_diagnostic.fact_collection.fact_requirements]))
    return values


_ID: Final = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|exec_[0-9a-f]{12}")


def normalize(events: Sequence[Envelope]) -> list[bytes]:
    """Return a log as bytes that are equal for equal histories: ids numbered in order of occurrence, without bus and hashes."""
    return _number_ids(_without_bus(event).SerializeToString(deterministic=True) for event in events[1:])


def normalize_as_text(events: Sequence[Envelope]) -> list[str]:
    """Return the same as text, to show a difference."""
    return [text.decode() for text in _number_ids(text_format.MessageToString(_without_bus(event)).encode() for event in events[1:])]


def _without_bus(event: Envelope) -> Envelope:
    """Return an event without the fields that differ between buses. The first event, which names the bus, is left out by the callers."""
    copy = Envelope()
    copy.CopyFrom(event)
    copy.ClearField("chain_hash")
    copy.ClearField("bus")
    return copy


def _number_ids(texts: Iterable[bytes]) -> list[bytes]:
    numbers: dict[bytes, bytes] = {}
    return [_ID.sub(lambda match: numbers.setdefault(match[0], b"<id %d>" % (len(numbers) + 1)), text) for text in texts]
