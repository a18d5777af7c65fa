"""Recording events in the state one after the other, with what every event of the bus gets: number, time, bus."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.common_pb2 import EventCategory, Producer
from gavel.v1.decision_pb2 import Decision, Outcome
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.commands import Failure, Fault
from gavel_rules.events import (
    AGENT_DIAGNOSTIC,
    ARBITRATOR_PRODUCER,
    CATEGORY_OF_PAYLOAD,
    DECISION,
    DECISION_NAME,
    MOMENTS_KEPT_MAX,
    SCHEMA_VERSION,
    SYSTEM_PRODUCER,
    milliseconds,
    timestamp,
)
from gavel_rules.limits import CLOCK_AHEAD_MS_MAX
from gavel_rules.made import Made
from gavel_rules.projection import State
from gavel_rules.proposed import Proposed
from gavel_rules.serialized import Field


class Emission:
    """The events that one command makes, applied to the state as they are made."""

    def __init__(self, state: State, now_ms: int) -> None:
        self.state = state
        self.now_ms = now_ms
        self.made: list[Made] = []
        self.failures: list[Failure] = []

    def record(self, envelope: Envelope, payload: str) -> Envelope:
        """Give an event its place and time, apply it, and return it; `payload` is which one it has. An empty `occurred_at` means now."""
        number = self._place(envelope, payload)
        self._append(Made(envelope, number, payload, envelope.event_id, envelope.trace_id, envelope.subject))
        return envelope

    def propose(self, asked: Proposed) -> Made:
        """Do for a proposal what `record` does, and return it with what it asks for."""
        envelope, header = asked.envelope, asked.header
        number = self._place(envelope, "proposal")
        made = Made(envelope, number, "proposal", header.event_id, header.trace_id, header.subject, asked=asked)
        self._append(made)
        return made

    def decision_event(self, decision: Decision | None = None) -> Envelope:
        """Return the event of a decision that is made now, for `decide`; `decision` is what it says, where that is there already."""
        envelope = _parsed(_frame(self.state.bus, self.now_ms, DECISION))
        if decision is not None:
            envelope.decision.CopyFrom(decision)
        return envelope

    def decide(self, envelope: Envelope, *, causation_id: str, trace_id: str, subject: str) -> Envelope:
        """Record the decision in a `decision_event`, which has its decision_id; the rest of the envelope is filled in."""
        decision = envelope.decision
        self.decide_as(envelope, decision.decision_id, decision.outcome, causation_id, trace_id, subject)
        return envelope

    def decide_as(
        self, envelope: Envelope, decision_id: str, outcome: Outcome.ValueType, causation_id: str, trace_id: str, subject: str
    ) -> Made:
        """Do what `decide` does, for whoever knows what the decision says."""
        number = self.state.head + 1
        envelope.sequence_number = number
        envelope.event_id = decision_id
        envelope.event_name = DECISION_NAME[outcome]
        envelope.trace_id = trace_id
        envelope.causation_id = causation_id
        envelope.subject = subject
        made = Made(envelope, number, "decision", decision_id, trace_id, subject, outcome)
        self._append(made)
        return made

    def diagnose(self, diagnostic: AgentDiagnostic, *, event_id: str, causation_id: str, trace_id: str, subject: str) -> Envelope:
        """Record a notice of Gavel's own."""
        envelope = _parsed(_frame(self.state.bus, self.now_ms, AGENT_DIAGNOSTIC))
        number = self.state.head + 1
        envelope.sequence_number = number
        envelope.event_id = event_id
        envelope.event_name = diagnostic.kind
        envelope.trace_id = trace_id
        envelope.causation_id = causation_id
        envelope.subject = subject
        envelope.agent_diagnostic.CopyFrom(diagnostic)
        self._append(Made(envelope, number, "agent_diagnostic", event_id, trace_id, subject))
        return envelope

    def claim_fault(self, envelope: Envelope) -> Fault | None:
        """Return a fault if the event claims to have happened too far in the future, else None."""
        if _has_field(envelope, "occurred_at"):
            ahead_ms = milliseconds(envelope.occurred_at) - self.now_ms
            if ahead_ms > CLOCK_AHEAD_MS_MAX:
                return ahead_fault("envelope.occurred_at", ahead_ms)
        return None

    def _place(self, envelope: Envelope, payload: str) -> int:
        """Give a producer's event its place and time, and return its number."""
        state = self.state
        happens_now = not _has_field(envelope, "occurred_at")
        _merge(envelope, _recorded(state.bus, self.now_ms, payload, happens_now))
        if happens_now:
            state.on_undo(partial(_clear_field, envelope, "occurred_at"))
        number = state.head + 1
        envelope.sequence_number = number
        return number

    def _append(self, made: Made) -> None:
        self.state.advance(made, self.now_ms)
        self.made.append(made)


# Looked up once: to find a method of a message takes longer than to set a field.
_has_field: Final = Envelope.HasField
_clear_field: Final = Envelope.ClearField
_merge: Final = Envelope.MergeFromString
_parsed: Final = Envelope.FromString
_OCCURRED_AT: Final = Field(Envelope, "occurred_at")
_RECORDED_AT: Final = Field(Envelope, "recorded_at")


_PRODUCERS: Final[Mapping[EventCategory.ValueType, Producer]] = {DECISION: ARBITRATOR_PRODUCER, AGENT_DIAGNOSTIC: SYSTEM_PRODUCER}


@lru_cache(MOMENTS_KEPT_MAX)
def _frame(bus: str, at_ms: int, category: EventCategory.ValueType) -> bytes:
    """Return what all decisions, or all notices, that a bus records at one time have in common, serialized."""
    envelope = Envelope(
        schema_version=SCHEMA_VERSION,
        event_category=category,
        bus=bus,
        producer=_PRODUCERS[category],
        occurred_at=timestamp(at_ms),
        recorded_at=timestamp(at_ms),
    )
    return envelope.SerializeToString(deterministic=True)


@lru_cache(MOMENTS_KEPT_MAX)
def _recorded(bus: str, at_ms: int, payload: str, happens_now: bool) -> bytes:
    """Return what all events of a kind that a bus records at one time are given, serialized. An earlier try may have left another time."""
    given = Envelope(schema_version=SCHEMA_VERSION, event_category=CATEGORY_OF_PAYLOAD[payload], bus=bus)
    times = _RECORDED_AT.moment(at_ms) + (_OCCURRED_AT.moment(at_ms) if happens_now else b"")
    return given.SerializeToString(deterministic=True) + times


def ahead_fault(field: str, ahead_ms: int) -> Fault:
    """Return the fault for a time that is ahead of the bus's clock."""
    problem = f"is {ahead_ms} ms ahead of the bus's clock; at most {CLOCK_AHEAD_MS_MAX} ms are allowed"
    return Fault(error_pb2.ERROR_REASON_INVALID_REQUEST, f"{field} {problem}", ((field, problem),))
