"""Recording of events: each one gets its sequence number and recording time, and is applied to the state before the next is made.

A recorder serves one command. It writes nothing: the shell appends `Recorder.events` to the log, or undoes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from gavel.v1 import error_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import Decision, Outcome
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import OBSERVED_FROM_HUMAN_INPUT, Fact
from gavel.v1.identity_pb2 import Attestation

from gavel_rules.codec.event_headers import encode_header, merge_header, parse_header
from gavel_rules.commands import Failure, Fault
from gavel_rules.events.kinds import (
    AGENT_DIAGNOSTIC,
    CATEGORY_OF_PAYLOAD,
    DECISION,
    DECISION_NAME,
    SCHEMA_VERSION,
    SYSTEM_FACT_KEY,
)
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.limits import CLOCK_AHEAD_MS_MAX
from gavel_rules.state.counters import UncountedEvent
from gavel_rules.state.state import State

# Bound once: docs/performance.md#module-constants.
_has_field: Final = Envelope.HasField
_clear_field: Final = Envelope.ClearField
_merge_header: Final = merge_header
_parse_header: Final = parse_header


class Recorder:
    """The events of one command, applied to the state in order.

    `attestation` names the caller of the command. Only the first event that is recorded after it is set gets it: the caller causes that
    event, and the others follow from it. `caller` is the name of an authenticated caller, else "".
    """

    def __init__(self, state: State, now_ms: int) -> None:
        self.state = state
        self.now_ms = now_ms
        self.attestation: Attestation | None = None
        self.caller = ""
        self.events: list[RecordedEvent] = []
        self.failures: list[Failure] = []
        self.uncounted_events: list[UncountedEvent] = []

    def record(self, envelope: Envelope, payload: str) -> Envelope:
        """Record an event and return its envelope. `payload` names its payload field; an empty `occurred_at` becomes the present."""
        number = self._complete(envelope, payload)
        self._append(RecordedEvent(envelope, number, payload, envelope.event_id, envelope.trace_id, envelope.subject))
        return envelope

    def preview(self, envelope: Envelope, payload: str, read: Callable[[], None]) -> None:
        """Call `read` in the state as it would be after `record` of an event, which is taken back afterwards."""
        position = self.state.mark()
        number = self._complete(envelope, payload)
        self.state.advance(RecordedEvent(envelope, number, payload, envelope.event_id, envelope.trace_id, envelope.subject), self.now_ms)
        read()
        self.state.undo(position)

    def record_proposal(self, proposal: ProposalView) -> RecordedEvent:
        """Record a proposal."""
        envelope = proposal.envelope
        number = self._complete(envelope, "proposal")
        event = RecordedEvent(envelope, number, "proposal", proposal.event_id, proposal.trace_id, proposal.subject, proposal=proposal)
        self._append(event)
        return event

    def new_decision(self, decision: Decision | None = None) -> Envelope:
        """Return the envelope of a decision made now, to be completed by `record_decision`."""
        state = self.state
        envelope = _parse_header(encode_header(SCHEMA_VERSION, DECISION, state.bus, self.now_ms, True, state.semantics.arbitrator_fragment))
        if decision is not None:
            envelope.decision.CopyFrom(decision)
        return envelope

    def record_decision(self, envelope: Envelope, *, causation_id: str, trace_id: str, subject: str) -> Envelope:
        """Record a decision from `new_decision` that has its decision_id, and return its envelope."""
        decision = envelope.decision
        self.record_decision_as(envelope, decision.decision_id, decision.outcome, causation_id, trace_id, subject)
        return envelope

    def record_decision_as(
        self, envelope: Envelope, decision_id: str, outcome: Outcome.ValueType, causation_id: str, trace_id: str, subject: str
    ) -> RecordedEvent:
        """Record a decision like `record_decision`, without reading its id and outcome from the message again."""
        number = self.state.head + 1
        envelope.sequence_number = number
        envelope.event_id = decision_id
        envelope.event_name = DECISION_NAME[outcome]
        envelope.trace_id = trace_id
        envelope.causation_id = causation_id
        envelope.subject = subject
        event = RecordedEvent(envelope, number, "decision", decision_id, trace_id, subject, outcome)
        self._append(event)
        return event

    def record_diagnostic(
        self, diagnostic: AgentDiagnostic, *, event_id: str, causation_id: str, trace_id: str, subject: str, traceparent: str = ""
    ) -> Envelope:
        """Record a diagnostic of Gavel's own, and return its envelope."""
        state = self.state
        envelope = _parse_header(
            encode_header(SCHEMA_VERSION, AGENT_DIAGNOSTIC, state.bus, self.now_ms, True, state.semantics.system_fragment)
        )
        number = state.head + 1
        envelope.sequence_number = number
        envelope.event_id = event_id
        envelope.event_name = diagnostic.kind
        envelope.trace_id = trace_id
        envelope.causation_id = causation_id
        envelope.subject = subject
        if traceparent:
            envelope.traceparent = traceparent
        envelope.agent_diagnostic.CopyFrom(diagnostic)
        self._append(RecordedEvent(envelope, number, "agent_diagnostic", event_id, trace_id, subject))
        return envelope

    def record_system_fact(
        self, event_id: str, name: str, subject: str, producer: Producer | None = None, traceparent: str = "", **system: Any
    ) -> Envelope:
        """Record a fact about Gavel. `producer` is the system of the bus's semantics, unless the caller gives it.

        `traceparent` is the trace context of the call, "" if there is none.
        """
        envelope = Envelope(
            traceparent=traceparent,
            event_id=event_id,
            event_name=name,
            trace_id=event_id,
            producer=Producer(),
            subject=subject,
            fact=Fact(key=SYSTEM_FACT_KEY[name], observed_from=OBSERVED_FROM_HUMAN_INPUT, **system),
        )
        envelope.producer.CopyFrom(self.state.semantics.system if producer is None else producer)
        return self.record(envelope, "fact")

    def clock_fault(self, envelope: Envelope) -> Fault | None:
        """Return a fault if `occurred_at` is too far in the future."""
        if _has_field(envelope, "occurred_at"):
            ahead_ms = milliseconds(envelope.occurred_at) - self.now_ms
            if ahead_ms > CLOCK_AHEAD_MS_MAX:
                return ahead_fault("envelope.occurred_at", ahead_ms)
        return None

    def _complete(self, envelope: Envelope, payload: str) -> int:
        """Complete a producer's envelope for this place in the log, and return its sequence number."""
        state = self.state
        occurs_now = not _has_field(envelope, "occurred_at")
        _merge_header(envelope, encode_header(SCHEMA_VERSION, CATEGORY_OF_PAYLOAD[payload], state.bus, self.now_ms, occurs_now))
        if occurs_now:
            state.on_undo(partial(_clear_field, envelope, "occurred_at"))
        number = state.head + 1
        envelope.sequence_number = number
        return number

    def _append(self, event: RecordedEvent) -> None:
        if self.attestation is not None:
            envelope = event.envelope
            envelope.attestation.CopyFrom(self.attestation)
            # The grants that it names may be undone with it. Then the event is decided again without an attestation.
            self.state.on_undo(partial(_clear_field, envelope, "attestation"))
            self.attestation = None
        self.state.advance(event, self.now_ms)
        uncounted_events = self.state.store.uncounted_events
        if uncounted_events:
            self.uncounted_events.extend(uncounted_events)
        self.events.append(event)


def ahead_fault(field: str, ahead_ms: int) -> Fault:
    """Return the fault for a time that is ahead of the bus's clock."""
    problem = f"is {ahead_ms} ms ahead of the bus's clock; at most {CLOCK_AHEAD_MS_MAX} ms are allowed"
    return Fault(error_pb2.ERROR_REASON_INVALID_REQUEST, f"{field} {problem}", ((field, problem),))
