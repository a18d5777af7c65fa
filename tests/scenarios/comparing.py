"""What a scenario came to, compared with what its file expects, and the logs of two layers with each other.

Nothing is compared by id or absolute time: ids are shown by the names that the file gave their events, times as milliseconds
since the scenario's start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gavel.v1.decision_pb2 import Decision, FactRequirement, FactRequirementState, Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events import milliseconds
from gavel_rules.values import value_to_python
from google.protobuf import text_format
from google.protobuf.struct_pb2 import Value

from tests.scenarios.steps import Appended, HintRow, OfDecision


class Known:
    """The log so far, and the names of its events. `start_ms`: when the scenario begins."""

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.events: list[Envelope] = []
        self.by_id: dict[str, Envelope] = {}
        self._ids: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def give(self, name: str, event_id: str) -> None:
        """Let an event be known by a name; the first name stays what it is shown by."""
        self._ids[name] = event_id
        self._names.setdefault(event_id, name)

    def learn(self, events: Iterable[Envelope]) -> None:
        """Take what the log has gained; the first decision of the proposal NAME is known as NAME.decision."""
        for event in events:
            self.events.append(event)
            self.by_id[event.event_id] = event
            proposal = self._names.get(event.decision.proposal_id) if event.HasField("decision") else None
            if proposal is not None and not event.decision.previous_decision_id and not event.decision.compensates_decision_id:
                self.give(f"{proposal}.decision", event.event_id)

    def name(self, event_id: str) -> str:
        """Return the name of an event, or its id where the file has none."""
        return self._names.get(event_id, event_id)

    def event(self, name: str) -> Envelope:
        """Return the recorded event of a name."""
        event = self.by_id.get(self._ids.get(name, ""))
        assert event is not None, f"no event of the log is named {name} so far"
        return event

    @property
    def events_by_name(self) -> Mapping[str, Envelope]:
        """All named events of the log."""
        return {name: self.by_id[event_id] for name, event_id in self._ids.items() if event_id in self.by_id}

    def offset_ms(self, decision: Decision) -> int:
        """Return until when an approval is valid, since the start."""
        return milliseconds(decision.valid_until) - self.start_ms


# How each expectation of a decision reads the decision.
_READ: Final[Mapping[str, Callable[[Decision, Known], object]]] = {
    "outcome": lambda decision, known: Outcome.Name(decision.outcome).removeprefix("OUTCOME_"),
    "reason_code": lambda decision, known: decision.reason_code,
    "rule": lambda decision, known: decision.rule_id,
    "policy": lambda decision, known: decision.policy_id,
    "terminal": lambda decision, known: decision.terminal,
    "retryable": lambda decision, known: decision.retry_hint.retryable,
    "retry_after": lambda decision, known: decision.retry_hint.retry_after_ms,
    "warnings": lambda decision, known: [warning.code for warning in decision.warnings],
    "conflicts_with": lambda decision, known: [known.name(one) for one in decision.conflict_with_proposal_ids],
    "rejections": lambda decision, known: decision.consecutive_rejections,
    "pinned": lambda decision, known: [known.name(pin.event_id) for pin in decision.pinned_facts],
    "absent": lambda decision, known: [fact.key for fact in decision.absent_facts],
    "matched": lambda decision, known: [match.rule_id for match in decision.rule_matches],
    "consulted": lambda decision, known: list(decision.active_policy_ids),
    "valid_until": lambda decision, known: known.offset_ms(decision),
    "conflict_key": lambda decision, known: decision.conflict_key,
    "previous": lambda decision, known: known.name(decision.previous_decision_id),
    "compensates": lambda decision, known: known.name(decision.compensates_decision_id),
    "params": lambda decision, known: value_to_python(Value(struct_value=decision.params)),
}


def differences_of_decision(label: str, expected: OfDecision, decision: Decision, known: Known) -> list[str]:
    """Return a line for everything that a decision says otherwise than expected."""
    wrong = []
    for key, read in _READ.items():
        wanted = getattr(expected, key)
        if wanted is not None and wanted != read(decision, known):
            wrong.append(f"  {label}: {key}: expected {wanted!r}, got {read(decision, known)!r}")
    if expected.hint is not None:
        rows = decision.retry_hint.fact_requirements
        shown = [_row(row, wanted) for row, wanted in zip(rows, expected.hint, strict=False)]
        shown += [_row(row, None) for row in rows[len(expected.hint) :]]
        wished = [row.model_dump(exclude_none=True) for row in expected.hint]
        if wished != shown:
            wrong.append(f"  {label}: hint: expected {wished}, got {shown}")
    if expected.candidates is not None:
        wanted_candidates = [one.model_dump(exclude_none=True) for one in expected.candidates]
        found = [
            {"proposal": known.name(one.proposal_id), "score": one.score, "reason_code": one.reason_code}
            for one in decision.contest.candidates
        ]
        shown = [{key: one[key] for key in like} for one, like in zip(found, wanted_candidates, strict=False)]
        if wanted_candidates != shown or len(found) != len(shown):
            wrong.append(f"  {label}: candidates: expected {wanted_candidates}, got {found}")
    return wrong


def _row(row: FactRequirement, like: HintRow | None) -> dict[str, object]:
    """Show a row of the hint, as far as the expected one speaks of it."""
    shown = {
        "key": row.key,
        "state": FactRequirementState.Name(row.state).removeprefix("FACT_REQUIREMENT_STATE_"),
        "subject": row.subject,
        "tier": int(row.required_trust_tier),
        "max_age": row.max_age_ms,
        "sources": list(row.sources),
    }
    keys = like.model_dump(exclude_none=True) if like is not None else ("key", "state")
    return {key: shown[key] for key in keys}


def differences_of_appended(label: str, expected: Sequence[Appended], actual: Sequence[Envelope], known: Known) -> list[str]:
    """Return what Gavel appended otherwise than expected; learn the names that the expected events are given."""
    names = [item.event for item in expected]
    if names != [event.event_name for event in actual]:
        shown = [f"{event.event_name} {event.decision.reason_code}".rstrip() for event in actual]
        return [f"  {label}: expected {names}, got {shown}"]
    wrong = []
    for item, event in zip(expected, actual, strict=True):
        if item.name is not None:
            known.give(item.name, event.event_id)
        if item.expect is not None:
            wrong += differences_of_decision(f"{label}: {item.event}", item.expect, event.decision, known)
        wrong += [
            f"  {label}: {item.event}: {key}: expected {wanted!r}, got {found!r}"
            for key, wanted, found in _of_event(item, event)
            if wanted != found
        ]
    return wrong


def _of_event(item: Appended, event: Envelope) -> list[tuple[str, Any, Any]]:
    """Return (key, expected, actual) of what is expected of an event that is no decision."""
    said: list[tuple[str, Any, Any]] = []
    if item.key is not None:
        said.append(("key", item.key, event.fact.key))
        said.append(("value", item.value, value_to_python(event.fact.value)))
    if item.reason_code is not None:
        found = event.execution.reason_code if event.HasField("execution") else event.decision.reason_code
        said.append(("reason_code", item.reason_code, found))
    if item.asks_for is not None:
        said.append(("asks_for", item.asks_for, [row.key for row in event.agent_diagnostic.fact_collection.fact_requirements]))
    return said


_ID: Final = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|exec_[0-9a-f]{12}")


def normal_form(events: Sequence[Envelope]) -> list[bytes]:
    """Return a log as bytes that are the same for equal histories: ids by the order in which they first occur, no bus, no hashes."""
    return _numbered(_plain(event).SerializeToString(deterministic=True) for event in events[1:])


def readable(events: Sequence[Envelope]) -> list[str]:
    """Return the same as text, for people who look for a difference."""
    return [text.decode() for text in _numbered(text_format.MessageToString(_plain(event)).encode() for event in events[1:])]


def _plain(event: Envelope) -> Envelope:
    """Return an event without what every bus has of its own. The first event of a log opens the bus, and names it besides."""
    plain = Envelope()
    plain.CopyFrom(event)
    plain.ClearField("chain_hash")
    plain.ClearField("bus")
    return plain


def _numbered(texts: Iterable[bytes]) -> list[bytes]:
    seen: dict[bytes, bytes] = {}
    return [_ID.sub(lambda match: seen.setdefault(match[0], b"<id %d>" % (len(seen) + 1)), text) for text in texts]
