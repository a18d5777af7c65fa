"""From a request's envelope to one that the decider may take: shape, authority, payload, then what the server fills in.

Each step reports all its violations at once. Nothing here reads the log or the clock, except that an event without an id
gets one. The order is part of the contract: a forged producer is refused before its payload is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gavel.v1 import common_pb2, execution_pb2, fact_pb2
from gavel.v1.common_pb2 import EventCategory, Producer, ProducerType
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus
from gavel.v1.fact_pb2 import ObservedFrom
from gavel_rules import limits
from gavel_rules.derivation import is_derived
from gavel_rules.events import CATEGORY_OF_PAYLOAD, EVENT_NAME_DEFAULT, EXECUTION_NAME, SCHEMA_VERSION, uuid_problem
from gavel_rules.values import INTEGER_MAX, struct_problems, text_problem, value_problems
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from gavel_server import authority
from gavel_server.errors import invalid
from gavel_server.identifiers import new_event_id

Violations = list[tuple[str, str]]

PROPOSALS: Final = frozenset({"proposal"})

BUS: Final = re.compile(r"[a-z0-9-]{1,63}\Z")
SUBJECT: Final = re.compile(limits.SUBJECT + r"\Z")
FACT_KEY: Final = re.compile(limits.DOTTED_NAME + r"\Z")
UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
EXECUTION_ID: Final = re.compile(r"exec_[0-9a-f]{12}\Z")
_EVENT_NAME: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,127}\Z")
_PRODUCER_ID: Final = re.compile(limits.PRODUCER_ID + r"\Z")
PLAIN_LENGTH_MAX: Final = 128
_VERSIONS: Final = tuple(common_pb2.VersionBinding.DESCRIPTOR.fields_by_name)
_NAME: Final = re.compile(r"[\x21-\x7e]{1,128}\Z")
_REASON_CODE: Final = re.compile(r"([A-Z][A-Z0-9_]{0,127})?\Z")

# The producer that a request without one means, where a payload allows only one type of producer. Facts must say who speaks.
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
_REPORTABLE: Final = frozenset(ExecutionStatus.values()) - {
    execution_pb2.EXECUTION_STATUS_UNSPECIFIED,
    execution_pb2.EXECUTION_STATUS_STARTED,
}
_PRODUCER_TYPES: Final = frozenset(ProducerType.values())
_CATEGORIES: Final = frozenset(EventCategory.values())
_CHANNELS: Final = frozenset(ObservedFrom.values())
_SERVERS: Final = "is set by the server and may not be sent"
_TIMESTAMP_SECONDS_MAX: Final = 253_402_300_799  # 9999-12-31T23:59:59Z


def admit(envelope: Envelope, bus: str, payloads: frozenset[str]) -> bool:
    """Check an envelope that was sent and fill in what its producer left to the server.

    `payloads` are those that the RPC takes. Returns whether the producer chose the event_id itself: then it is an
    idempotency key to be looked up. Raises ServiceError. A trace_id is left empty if the cause has to give it.
    """
    payload = envelope.WhichOneof("payload")
    violations = _shape_violations(envelope, bus, payload, payloads)
    if violations or payload is None:
        raise invalid(violations)
    if payload == "decision":
        authority.check(envelope.producer, CATEGORY_OF_PAYLOAD[payload], envelope)
    _fill_producer(envelope, payload)
    violations = list(_producer_violations(envelope.producer))
    if violations:
        raise invalid(violations)
    authority.check(envelope.producer, CATEGORY_OF_PAYLOAD[payload], envelope)
    violations = list(_PAYLOAD_VIOLATIONS[payload](envelope))
    if violations:
        raise invalid(violations)
    return _fill(envelope, bus, payload)


def producer_for_execution(producer: Producer) -> Producer:
    """Return the executor behind a call that carries no envelope, checked. Raises ServiceError."""
    envelope = Envelope(producer=producer)
    _fill_producer(envelope, "execution")
    violations = list(_producer_violations(envelope.producer))
    if violations:
        raise invalid([(field.removeprefix("envelope."), description) for field, description in violations])
    authority.check(envelope.producer, CATEGORY_OF_PAYLOAD["execution"], envelope)
    return envelope.producer


def _shape_violations(envelope: Envelope, bus: str, payload: str | None, payloads: frozenset[str]) -> Violations:
    found: Violations = []
    if payload is None:
        found.append(("envelope.payload", f"is missing; send {' or '.join(sorted(payloads))}"))
    elif payload not in payloads and payload != "decision":
        found.append((f"envelope.{payload}", f"is not taken by this call, which takes {', '.join(sorted(payloads))}"))
    if envelope.event_category:
        _check_category(envelope, payload, found)
    if envelope.schema_version not in ("", SCHEMA_VERSION):
        found.append(("envelope.schema_version", f'is not "{SCHEMA_VERSION}"'))
    if envelope.bus not in ("", bus):
        found.append(("envelope.bus", f"contradicts the request's bus {bus}"))
    if envelope.sequence_number:
        found.append(("envelope.sequence_number", _SERVERS))
    if envelope.HasField("recorded_at"):
        found.append(("envelope.recorded_at", _SERVERS))
    if envelope.chain_hash:
        found.append(("envelope.chain_hash", _SERVERS))
    if envelope.event_id:
        problem = (
            uuid_problem(envelope.event_id) if payload != "fact" or not envelope.fact.decision_id else _reference_problem(envelope.event_id)
        )
        if problem:
            found.append(("envelope.event_id", problem))
    if envelope.trace_id and not _is_plain(envelope.trace_id):
        found.append(("envelope.trace_id", "is not 1 to 128 printable ASCII characters"))
    if envelope.causation_id and not UUID.match(envelope.causation_id):
        found.append(("envelope.causation_id", "is not a UUID in canonical form"))
    if envelope.event_name and not _EVENT_NAME.match(envelope.event_name):
        found.append(("envelope.event_name", "is not PascalCase of at most 128 characters"))
    if payload == "execution" and not envelope.subject:
        pass  # it is the decision's
    elif not SUBJECT.match(envelope.subject):
        found.append(("envelope.subject", 'is not "type/id", e.g. "order/123"'))
    if envelope.HasField("occurred_at"):
        found.extend(_timestamp_violations(envelope.occurred_at, "envelope.occurred_at"))
    if envelope.HasField("version_binding"):
        found.extend(_binding_violations(envelope))
    if envelope.ByteSize() > limits.MESSAGE_BYTES_MAX:
        found.append(("envelope", f"is larger than {limits.MESSAGE_BYTES_MAX} bytes"))
    return found


def _check_category(envelope: Envelope, payload: str | None, found: Violations) -> None:
    if envelope.event_category not in _CATEGORIES:
        found.append(("envelope.event_category", f"{envelope.event_category} is unknown"))
    elif payload is not None and CATEGORY_OF_PAYLOAD[payload] != envelope.event_category:
        found.append(("envelope.event_category", f"does not match the payload, which is a {payload}"))


def _binding_violations(envelope: Envelope) -> Iterator[tuple[str, str]]:
    binding = envelope.version_binding
    for name in _VERSIONS:
        if not _is_plain(getattr(binding, name)):
            yield f"envelope.version_binding.{name}", "is not at most 128 printable ASCII characters"


def _is_plain(text: str) -> bool:
    """Whether a text is at most 128 printable ASCII characters."""
    return len(text) <= PLAIN_LENGTH_MAX and text.isascii() and text.isprintable()


def _timestamp_violations(value: Timestamp, field: str) -> Iterator[tuple[str, str]]:
    if not 0 <= value.seconds <= _TIMESTAMP_SECONDS_MAX or not 0 <= value.nanos < 1_000_000_000:
        yield field, "is not a time between 1970 and 9999"


def _fill_producer(envelope: Envelope, payload: str) -> None:
    producer = envelope.producer
    implied = _IMPLIED_PRODUCER.get(payload)
    if implied is not None and not producer.type:
        producer.type = implied
    if not producer.id and implied is not None and producer.type == implied:
        producer.id = LOCAL_PRODUCER_ID


def _producer_violations(producer: Producer) -> Iterator[tuple[str, str]]:
    if not producer.type:
        yield "envelope.producer.type", "is required: SENSOR, API, DATABASE_SNAPSHOT, AGENT, EXECUTOR or SYSTEM"
    elif producer.type not in _PRODUCER_TYPES:
        yield "envelope.producer.type", f"{producer.type} is unknown"
    if not _PRODUCER_ID.match(producer.id):
        yield "envelope.producer.id", "is not 1 to 128 characters of A-Z a-z 0-9 . _ : @ / -"
    if not _is_plain(producer.version):
        yield "envelope.producer.version", "is not at most 128 printable ASCII characters"


def _proposal_violations(envelope: Envelope) -> Iterator[tuple[str, str]]:
    proposal = envelope.proposal
    path = "envelope.proposal"
    if not FACT_KEY.match(proposal.action_type) or len(proposal.action_type) > limits.ACTION_TYPE_LENGTH_MAX:
        yield f"{path}.action_type", 'is not a dotted name of at most 128 characters, e.g. "refund.create"'
    yield from struct_problems(proposal.params, f"{path}.params")
    problem = text_problem(proposal.expected_outcome)
    if problem:
        yield f"{path}.expected_outcome", problem
    if not 0.0 <= proposal.cost <= INTEGER_MAX:
        yield f"{path}.cost", "is not between 0 and 2^53"
    if not 0.0 <= proposal.risk <= 1.0:
        yield f"{path}.risk", "is not between 0 and 1"
    if not 0.0 <= proposal.confidence <= 1.0:
        yield f"{path}.confidence", "is not between 0 and 1"
    if not 0 < proposal.max_fact_age_ms <= INTEGER_MAX:
        yield f"{path}.max_fact_age_ms", "is required: milliseconds, from 1 to 2^53"
    if len(proposal.required_facts) > limits.REQUIRED_FACTS_MAX:
        yield f"{path}.required_facts", f"are more than {limits.REQUIRED_FACTS_MAX}"
    for index, key in enumerate(proposal.required_facts):
        yield from _key_violations(key, f"{path}.required_facts[{index}]")
    if len(proposal.based_on_events) > limits.BASED_ON_EVENTS_MAX:
        yield f"{path}.based_on_events", f"are more than {limits.BASED_ON_EVENTS_MAX}"
    for index, reference in enumerate(proposal.based_on_events):
        if not UUID.match(reference.event_id):
            yield f"{path}.based_on_events[{index}].event_id", "is not a UUID in canonical form"
        if reference.sequence_number < 1:
            yield f"{path}.based_on_events[{index}].sequence_number", "is not at least 1"
    if proposal.HasField("projection_version") and proposal.projection_version < 0:
        yield f"{path}.projection_version", "is negative"
    if proposal.HasField("contest"):
        yield f"{path}.contest", _SERVERS


def _fact_violations(envelope: Envelope) -> Iterator[tuple[str, str]]:
    fact = envelope.fact
    path = "envelope.fact"
    yield from _key_violations(fact.key, f"{path}.key")
    if not fact.HasField("value") or fact.value.WhichOneof("kind") is None:
        yield f"{path}.value", "is required; null retracts the key"
    else:
        yield from value_problems(fact.value, f"{path}.value")
    if fact.observed_from not in _CHANNELS:
        yield f"{path}.observed_from", f"{fact.observed_from} is unknown"
    if not 0 <= fact.max_age_ms <= INTEGER_MAX:
        yield f"{path}.max_age_ms", "is not from 0 to 2^53"
    if is_derived(fact):
        for field, value in (
            ("decision_id", fact.decision_id),
            ("execution_id", fact.execution_id),
            ("derivation_rule_id", fact.derivation_rule_id),
        ):
            if not _NAME.match(value):
                yield f"{path}.{field}", "is required for a derived fact"
        if not envelope.event_id:
            yield "envelope.event_id", "is required for a derived fact"


def _observation_violations(envelope: Envelope) -> Iterator[tuple[str, str]]:
    observation = envelope.observation
    path = "envelope.observation"
    if not _NAME.match(observation.source_tool):
        yield f"{path}.source_tool", "is required: 1 to 128 printable ASCII characters"
    if not 0.0 <= observation.confidence <= 1.0:
        yield f"{path}.confidence", "is not between 0 and 1"
    if not 1 <= len(observation.extracted_fields) <= limits.EXTRACTED_FIELDS_MAX:
        yield f"{path}.extracted_fields", f"are not 1 to {limits.EXTRACTED_FIELDS_MAX}"
    for key in sorted(observation.extracted_fields):
        yield from _key_violations(key, f"{path}.extracted_fields")
        yield from value_problems(observation.extracted_fields[key], f"{path}.extracted_fields.{key}")
    if observation.evidence_ref and not UUID.match(observation.evidence_ref):
        yield f"{path}.evidence_ref", "is not a UUID in canonical form"
    for field, sent in (("trust_tier", observation.trust_tier), ("evidence_recorded_at", observation.HasField("evidence_recorded_at"))):
        if sent:
            yield f"{path}.{field}", _SERVERS
    yield from _text_violations(observation, path, skip="extracted_fields")


def _tool_call_violations(envelope: Envelope) -> Iterator[tuple[str, str]]:
    call = envelope.tool_call
    path = "envelope.tool_call"
    if not _NAME.match(call.tool_name):
        yield f"{path}.tool_name", "is required: 1 to 128 printable ASCII characters"
    if call.execution_id and not EXECUTION_ID.match(call.execution_id):
        yield f"{path}.execution_id", 'is not "exec_" and 12 hex digits'
    yield from _text_violations(call, path)


def _tool_result_violations(envelope: Envelope) -> Iterator[tuple[str, str]]:
    result = envelope.tool_result
    path = "envelope.tool_result"
    if not _NAME.match(result.tool_name):
        yield f"{path}.tool_name", "is required: 1 to 128 printable ASCII characters"
    if result.execution_id and not EXECUTION_ID.match(result.execution_id):
        yield f"{path}.execution_id", 'is not "exec_" and 12 hex digits'
    if not result.is_error and not result.content_hash:
        yield f"{path}.content_hash", "is required unless is_error"
    if result.reproducible:
        for field, value in (("query_ref", result.query_ref), ("snapshot_ref", result.snapshot_ref)):
            if not value:
                yield f"{path}.{field}", "is required for a reproducible result"
    if result.duration_ms < 0:
        yield f"{path}.duration_ms", "is negative"
    yield from _text_violations(result, path)


def _diagnostic_violations(envelope: Envelope) -> Iterator[tuple[str, str]]:
    diagnostic = envelope.agent_diagnostic
    path = "envelope.agent_diagnostic"
    if not _EVENT_NAME.match(diagnostic.kind):
        yield f"{path}.kind", "is required: PascalCase of at most 128 characters"
    yield from struct_problems(diagnostic.attributes, f"{path}.attributes")
    detail = diagnostic.WhichOneof("detail")
    if detail is not None:
        yield from _text_violations(getattr(diagnostic, detail), f"{path}.{detail}")


def _execution_violations(envelope: Envelope) -> Iterator[tuple[str, str]]:
    execution = envelope.execution
    path = "envelope.execution"
    if not UUID.match(execution.decision_id):
        yield f"{path}.decision_id", "is required: the approved decision's UUID"
    if not EXECUTION_ID.match(execution.execution_id):
        yield f"{path}.execution_id", 'is required: "exec_" and 12 hex digits, from BeginExecution'
    if execution.status not in _REPORTABLE:
        yield f"{path}.status", "is not SUCCESS, FAILED, PARTIAL, TIMEOUT or ABORTED"
    if execution.attempt < 0:
        yield f"{path}.attempt", "is negative"
    if not _REASON_CODE.match(execution.reason_code):
        yield f"{path}.reason_code", "is not UPPER_SNAKE_CASE of at most 128 characters"
    yield from struct_problems(execution.result, f"{path}.result")
    if len(execution.completed_steps) > limits.COMPLETED_STEPS_MAX:
        yield f"{path}.completed_steps", f"are more than {limits.COMPLETED_STEPS_MAX}"
    for field, sent in (("will_retry", execution.will_retry), ("lease_until", execution.HasField("lease_until"))):
        if sent:
            yield f"{path}.{field}", _SERVERS
    yield from _text_violations(execution, path, skip="result")
    yield from _text_violations(execution.error, f"{path}.error")


def _key_violations(key: str, field: str) -> Iterator[tuple[str, str]]:
    if not FACT_KEY.match(key) or len(key) > limits.FACT_KEY_LENGTH_MAX:
        yield field, 'is not a dotted fact key of at most 256 characters, e.g. "order.status"'


def _text_violations(message: Message, path: str, skip: str = "") -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a message's own strings, floats and times."""
    for field, value in message.ListFields():
        if field.name == skip:
            continue
        items = [value] if isinstance(value, str | float | Timestamp) else [item for item in _items(value) if isinstance(item, str)]
        for item in items:
            if isinstance(item, Timestamp):
                yield from _timestamp_violations(item, f"{path}.{field.name}")
            elif isinstance(item, float):
                if not -INTEGER_MAX <= item <= INTEGER_MAX:
                    yield f"{path}.{field.name}", "is not a finite number within 2^53"
            else:
                problem = text_problem(item)
                if problem:
                    yield f"{path}.{field.name}", problem


def _items(value: Any) -> list[Any]:
    """Return the items of a repeated field. Protobuf's containers are sequences, but not all of them have an __iter__."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, bytes) else []


def _reference_problem(text: str) -> str:
    return "" if UUID.match(text) else "is not a UUID in canonical form"


def _fill(envelope: Envelope, bus: str, payload: str) -> bool:
    chosen = bool(envelope.event_id)
    if not chosen:
        envelope.event_id = new_event_id()
    if not envelope.trace_id and not envelope.causation_id and payload != "execution":
        envelope.trace_id = envelope.event_id
    envelope.schema_version = SCHEMA_VERSION
    envelope.bus = bus
    envelope.event_category = CATEGORY_OF_PAYLOAD[payload]
    if not envelope.event_name:
        envelope.event_name = EXECUTION_NAME[envelope.execution.status] if payload == "execution" else EVENT_NAME_DEFAULT[payload]
    if payload == "fact" and not envelope.fact.observed_from:
        fact = envelope.fact
        fact.observed_from = fact_pb2.OBSERVED_FROM_EXECUTOR_FEEDBACK if fact.decision_id else _IMPLIED_CHANNEL[envelope.producer.type]
    return chosen


_PAYLOAD_VIOLATIONS: Final[Mapping[str, Callable[[Envelope], Iterator[tuple[str, str]]]]] = {
    "proposal": _proposal_violations,
    "fact": _fact_violations,
    "observation": _observation_violations,
    "tool_call": _tool_call_violations,
    "tool_result": _tool_result_violations,
    "agent_diagnostic": _diagnostic_violations,
    "execution": _execution_violations,
}
