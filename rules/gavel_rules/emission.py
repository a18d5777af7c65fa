"""Recording events in the state one after the other, with what every event of the bus gets: number, time, bus."""

from __future__ import annotations

from gavel.v1 import error_pb2
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.commands import Failure, Fault
from gavel_rules.events import (
    AGENT_DIAGNOSTIC,
    ARBITRATOR_PRODUCER,
    CATEGORY_OF_PAYLOAD,
    DECISION,
    DECISION_NAME,
    SCHEMA_VERSION,
    SYSTEM_PRODUCER,
    milliseconds,
    set_timestamp,
)
from gavel_rules.limits import CLOCK_AHEAD_MS_MAX
from gavel_rules.projection import State


class Emission:
    """The events that one command makes, applied to the state as they are made."""

    def __init__(self, state: State, now_ms: int) -> None:
        self.state = state
        self.now_ms = now_ms
        self.events: list[Envelope] = []
        self.failures: list[Failure] = []

    def record(self, envelope: Envelope) -> Envelope:
        """Give an event its place and time, apply it, and return it. An empty `occurred_at` means now."""
        state = self.state
        envelope.schema_version = SCHEMA_VERSION
        envelope.sequence_number = state.head + 1
        envelope.bus = state.bus
        if not envelope.event_category:
            envelope.event_category = CATEGORY_OF_PAYLOAD[str(envelope.WhichOneof("payload"))]
        set_timestamp(envelope.recorded_at, self.now_ms)
        if not envelope.HasField("occurred_at"):
            envelope.occurred_at.CopyFrom(envelope.recorded_at)
            state.on_undo(lambda: envelope.ClearField("occurred_at"))
        state.apply(envelope)
        self.events.append(envelope)
        return envelope

    def decide(self, envelope: Envelope, *, causation_id: str, trace_id: str, subject: str) -> Envelope:
        """Record the decision in `envelope`, which has its decision_id; the rest of the envelope is filled in."""
        decision = envelope.decision
        envelope.event_id = decision.decision_id
        envelope.event_category = DECISION
        envelope.event_name = DECISION_NAME[decision.outcome]
        envelope.trace_id = trace_id
        envelope.causation_id = causation_id
        envelope.producer.CopyFrom(ARBITRATOR_PRODUCER)
        envelope.subject = subject
        return self.record(envelope)

    def diagnose(self, diagnostic: AgentDiagnostic, *, event_id: str, causation_id: str, trace_id: str, subject: str) -> Envelope:
        """Record a notice of Gavel's own."""
        return self.record(
            Envelope(
                event_id=event_id,
                event_category=AGENT_DIAGNOSTIC,
                event_name=diagnostic.kind,
                trace_id=trace_id,
                causation_id=causation_id,
                producer=SYSTEM_PRODUCER,
                subject=subject,
                agent_diagnostic=diagnostic,
            )
        )

    def claim_fault(self, envelope: Envelope) -> Fault | None:
        """Return a fault if the event claims to have happened too far in the future, else None."""
        if envelope.HasField("occurred_at"):
            ahead_ms = milliseconds(envelope.occurred_at) - self.now_ms
            if ahead_ms > CLOCK_AHEAD_MS_MAX:
                return ahead_fault("envelope.occurred_at", ahead_ms)
        return None


def ahead_fault(field: str, ahead_ms: int) -> Fault:
    """Return the fault for a time that is ahead of the bus's clock."""
    problem = f"is {ahead_ms} ms ahead of the bus's clock; at most {CLOCK_AHEAD_MS_MAX} ms are allowed"
    return Fault(error_pb2.ERROR_REASON_INVALID_REQUEST, f"{field} {problem}", ((field, problem),))
