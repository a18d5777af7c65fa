"""Admission: turns a request's envelope into one that the core can take.

The order is part of the contract: shape, producer, permission, payload. A forged producer is refused before its payload is read, and
each step reports all its violations at once. Then the server completes what the producer left out. The fields that every event of a
bus gets (schema, bus, category, number, time) are set when the event is recorded.

Nothing here reads the log or the clock, except that an envelope without an event_id gets a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel.v1 import common_pb2, fact_pb2
from gavel.v1.common_pb2 import Producer, ProducerType
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import ObservedFrom
from gavel_rules.commands import SubmitProposal
from gavel_rules.events.envelope_header import EnvelopeHeader
from gavel_rules.events.kinds import EVENT_NAME_DEFAULT, EXECUTION_NAME
from gavel_rules.events.proposal_view import ProposalView

from gavel_server.errors import invalid
from gavel_server.intake import permissions
from gavel_server.intake.envelope_validation import Violations, producer_violations, shape_violations
from gavel_server.intake.event_ids import new_event_id
from gavel_server.intake.normalization import normalize
from gavel_server.intake.payload_validation import payload_violations, proposal_violations

PROPOSALS: Final = frozenset({"proposal"})

# The producer of a request that names none, for payloads that only one type of producer may send. Facts must name theirs.
LOCAL_PRODUCER_ID: Final = "local"
_IMPLIED_PRODUCER: Final[Mapping[str, ProducerType.ValueType]] = {
    "proposal": common_pb2.PRODUCER_TYPE_AGENT,
    "observation": common_pb2.PRODUCER_TYPE_AGENT,
    "tool_call": common_pb2.PRODUCER_TYPE_AGENT,
    "tool_result": common_pb2.PRODUCER_TYPE_AGENT,
    "execution": common_pb2.PRODUCER_TYPE_EXECUTOR,
}
_IMPLIED_CHANNEL: Final[Mapping[ProducerType.ValueType, ObservedFrom.ValueType]] = {
    common_pb2.PRODUCER_TYPE_SENSOR: fact_pb2.OBSERVED_FROM_SENSOR,
    common_pb2.PRODUCER_TYPE_API: fact_pb2.OBSERVED_FROM_API,
    common_pb2.PRODUCER_TYPE_DATABASE_SNAPSHOT: fact_pb2.OBSERVED_FROM_DB,
    common_pb2.PRODUCER_TYPE_SYSTEM: fact_pb2.OBSERVED_FROM_HUMAN_INPUT,
}
# Bound once: docs/performance.md#module-constants
_which_of: Final = Envelope.WhichOneof


def admit(envelope: Envelope, bus: str, payloads: frozenset[str], sent_bytes: int | None = None, traceparent: str = "") -> str:
    """Validate and complete an envelope other than a proposal, in place.

    `payloads` are those that the call takes; `sent_bytes` is an upper bound of the size as sent, None if unknown; `traceparent` is the
    trace context of the call. Returns the idempotency key: the event_id if the producer chose it, else "". A trace_id stays empty if the
    event names its cause. Raises ServiceError.
    """
    header, payload = _checked_header(envelope, bus, payloads, sent_bytes)
    violations = _payload_violations(envelope, payload)
    if violations and normalize(envelope):
        violations = _payload_violations(envelope, payload)
    if violations:
        raise invalid(violations)
    _complete_header(envelope, header, payload, traceparent)
    if payload == "fact" and not envelope.fact.observed_from:
        fact = envelope.fact
        fact.observed_from = fact_pb2.OBSERVED_FROM_EXECUTOR_FEEDBACK if fact.decision_id else _IMPLIED_CHANNEL[header.producer_type]
    return header.event_id


def admit_proposal(envelope: Envelope, bus: str, sent_bytes: int | None = None, traceparent: str = "") -> tuple[SubmitProposal, str]:
    """Validate and complete a proposal like `admit`; return its command and its idempotency key."""
    header, payload = _checked_header(envelope, bus, PROPOSALS, sent_bytes)
    _complete_header(envelope, header, payload, traceparent)
    proposal = ProposalView(envelope, header)
    violations = proposal_violations(proposal)
    if violations and normalize(envelope):
        proposal = ProposalView(envelope, header)
        violations = proposal_violations(proposal)
    if violations:
        raise invalid(violations)
    return SubmitProposal(proposal), header.event_id


def producer_for_execution(producer: Producer) -> Producer:
    """Return the executor of a call that carries no envelope, validated and completed. Raises ServiceError."""
    envelope = Envelope(producer=producer)
    header = EnvelopeHeader(envelope)
    if _imply_producer(envelope, header, "execution"):
        header = EnvelopeHeader(envelope)
    violations = producer_violations(header)
    if violations:
        raise invalid([(field.removeprefix("envelope."), description) for field, description in violations])
    permissions.check(envelope, header, "execution")
    return envelope.producer


def _checked_header(envelope: Envelope, bus: str, payloads: frozenset[str], sent_bytes: int | None) -> tuple[EnvelopeHeader, str]:
    """Check shape, producer and permission; return the header and the name of the payload. Raises ServiceError."""
    payload = _which_of(envelope, "payload")
    header = EnvelopeHeader(envelope)
    if payload is not None and _imply_producer(envelope, header, payload):
        header = EnvelopeHeader(envelope)
    violations = shape_violations(envelope, header, bus, payload, payloads, sent_bytes)
    if violations and normalize(envelope):
        header = EnvelopeHeader(envelope)
        violations = shape_violations(envelope, header, bus, payload, payloads, sent_bytes)
    if violations or payload is None:
        raise invalid(violations)
    if payload == "decision":
        permissions.check(envelope, header, payload)
    violations = producer_violations(header)
    if violations:
        raise invalid(violations)
    permissions.check(envelope, header, payload)
    return header, payload


def _payload_violations(envelope: Envelope, payload: str) -> Violations:
    return proposal_violations(ProposalView(envelope)) if payload == "proposal" else payload_violations(envelope, payload)


def _imply_producer(envelope: Envelope, header: EnvelopeHeader, payload: str) -> bool:
    """Complete the producer where the payload implies it. Return whether the envelope has changed."""
    if header.producer_type and header.producer_id:
        return False
    implied = _IMPLIED_PRODUCER.get(payload)
    if implied is None or header.producer_type not in (common_pb2.PRODUCER_TYPE_UNSPECIFIED, implied):
        return False
    envelope.producer.type = implied
    if not header.producer_id:
        envelope.producer.id = LOCAL_PRODUCER_ID
    return True


def _complete_header(envelope: Envelope, header: EnvelopeHeader, payload: str, traceparent: str) -> None:
    """Set event_id, trace_id and event_name where the producer left them out, and the trace context of the call."""
    if traceparent:
        envelope.traceparent = traceparent
    event_id = header.event_id
    if not event_id:
        event_id = envelope.event_id = new_event_id()
    if not header.trace_id and not header.causation_id and payload != "execution":
        envelope.trace_id = event_id
    if not header.event_name:
        envelope.event_name = EXECUTION_NAME[envelope.execution.status] if payload == "execution" else EVENT_NAME_DEFAULT[payload]
