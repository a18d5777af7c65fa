"""Validation of an envelope without its payload: shape, size and producer. Each function reports all violations of its step."""

from __future__ import annotations

from typing import Final

from gavel.v1.common_pb2 import EventCategory, ProducerType, VersionBinding
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import limits
from gavel_rules.events.envelope_header import EnvelopeHeader
from gavel_rules.events.ids import is_uuid, uuid_problem
from gavel_rules.events.kinds import CATEGORY_OF_PAYLOAD, SCHEMA_VERSION

from gavel_server.intake.formats import EVENT_NAME, NOT_A_SUBJECT, is_plain, is_producer_id, is_subject, is_time

# (field, description) of each fault of a request.
Violations = list[tuple[str, str]]

SET_BY_SERVER: Final = "is set by the server and may not be sent"
# How many times its sent size an envelope can take when it is serialized again. The worst case is an empty map entry: six bytes
# when written, as few as two when sent.
GROWTH_MAX: Final = 3

_VERSION_FIELDS: Final = tuple(VersionBinding.DESCRIPTOR.fields_by_name)
_PRODUCER_TYPES: Final = frozenset(ProducerType.values())
_CATEGORIES: Final = frozenset(EventCategory.values())
# Bound once: docs/performance.md#module-constants
_has_field: Final = Envelope.HasField


def shape_violations(
    envelope: Envelope, header: EnvelopeHeader, bus: str, payload: str | None, payloads: frozenset[str], sent_bytes: int | None
) -> Violations:
    """Return the violations of an envelope's shape and size.

    `payload` is the one that the envelope holds, `payloads` are those that the call takes. `sent_bytes` bounds the size as sent;
    None: unknown.
    """
    violations: Violations = []
    if payload is None:
        violations.append(("envelope.payload", f"is missing; send {' or '.join(sorted(payloads))}"))
    elif payload not in payloads and payload != "decision":
        violations.append((f"envelope.{payload}", f"is not taken by this call, which takes {', '.join(sorted(payloads))}"))
    category = envelope.event_category
    if category:
        _check_category(category, payload, violations)
    if envelope.schema_version not in ("", SCHEMA_VERSION):
        violations.append(("envelope.schema_version", f'is not "{SCHEMA_VERSION}"'))
    if envelope.bus not in ("", bus):
        violations.append(("envelope.bus", f"contradicts the request's bus {bus}"))
    if envelope.sequence_number:
        violations.append(("envelope.sequence_number", SET_BY_SERVER))
    if _has_field(envelope, "recorded_at"):
        violations.append(("envelope.recorded_at", SET_BY_SERVER))
    if _has_field(envelope, "attestation"):
        violations.append(("envelope.attestation", SET_BY_SERVER))
    if envelope.chain_hash:
        violations.append(("envelope.chain_hash", SET_BY_SERVER))
    if envelope.traceparent:
        violations.append(("envelope.traceparent", SET_BY_SERVER))
    _check_header(envelope, header, payload, violations)
    if _has_field(envelope, "occurred_at") and not is_time(envelope.occurred_at):
        violations.append(("envelope.occurred_at", "is not a time between 1970 and 9999"))
    if _has_field(envelope, "version_binding"):
        violations.extend(binding_violations(envelope.version_binding, "envelope.version_binding"))
    # Measuring is slow: only if the envelope could be over the limit.
    if (sent_bytes is None or sent_bytes * GROWTH_MAX > limits.MESSAGE_BYTES_MAX) and envelope.ByteSize() > limits.MESSAGE_BYTES_MAX:
        violations.append(("envelope", f"is larger than {limits.MESSAGE_BYTES_MAX} bytes"))
    return violations


def producer_violations(header: EnvelopeHeader) -> Violations:
    """Return the violations of a producer's form."""
    violations: Violations = []
    producer_type = header.producer_type
    producer_id = header.producer_id
    if not producer_type:
        violations.append(
            ("envelope.producer.type", "is required: SENSOR, API, DATABASE_SNAPSHOT, AGENT, EXECUTOR, SYSTEM or TOOL_RUNTIME")
        )
    elif producer_type not in _PRODUCER_TYPES:
        violations.append(("envelope.producer.type", f"{producer_type} is unknown"))
    if len(producer_id) > limits.PRODUCER_ID_LENGTH_MAX or not is_producer_id(producer_id):
        violations.append(("envelope.producer.id", "is not 1 to 128 characters of A-Z a-z 0-9 . _ : @ / -"))
    if not is_plain(header.producer_version):
        violations.append(("envelope.producer.version", "is not at most 128 printable ASCII characters"))
    return violations


def binding_violations(binding: VersionBinding, path: str) -> Violations:
    """Return the violations of the versions of an event or of an executor."""
    return [
        (f"{path}.{name}", "is not at most 128 printable ASCII characters")
        for name in _VERSION_FIELDS
        if getattr(binding, name) and not is_plain(getattr(binding, name))
    ]


def _check_category(category: EventCategory.ValueType, payload: str | None, violations: Violations) -> None:
    if category not in _CATEGORIES:
        violations.append(("envelope.event_category", f"{category} is unknown"))
    elif payload is not None and CATEGORY_OF_PAYLOAD[payload] != category:
        violations.append(("envelope.event_category", f"does not match the payload, which is a {payload}"))


def _check_header(envelope: Envelope, header: EnvelopeHeader, payload: str | None, violations: Violations) -> None:
    event_id = header.event_id
    if event_id:
        derived = payload == "fact" and bool(envelope.fact.decision_id)
        problem = ("" if is_uuid(event_id) else "is not a UUID in canonical form") if derived else uuid_problem(event_id)
        if problem:
            violations.append(("envelope.event_id", problem))
    trace_id = header.trace_id
    if trace_id and not is_plain(trace_id):
        violations.append(("envelope.trace_id", "is not 1 to 128 printable ASCII characters"))
    causation_id = header.causation_id
    if causation_id and not is_uuid(causation_id):
        violations.append(("envelope.causation_id", "is not a UUID in canonical form"))
    event_name = header.event_name
    if event_name and not EVENT_NAME.match(event_name):
        violations.append(("envelope.event_name", "is not PascalCase of at most 128 characters"))
    subject = header.subject
    if (payload == "execution" and not subject) or (payload == "fact" and envelope.fact.decision_id):
        pass  # the subject is the decision's, or the one that the core derives again
    elif not is_subject(subject):
        violations.append(("envelope.subject", NOT_A_SUBJECT))
