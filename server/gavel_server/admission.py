"""From a request's envelope to one that the decider may take: shape, authority, payload, then what the server fills in.

Each step reports all its violations at once. Nothing here reads the log or the clock, except that an event without an id
gets one. The order is part of the contract: a forged producer is refused before its payload is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from gavel.v1 import common_pb2, execution_pb2, fact_pb2
from gavel.v1.common_pb2 import EventCategory, Producer, ProducerType, VersionBinding
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus
from gavel.v1.fact_pb2 import ObservedFrom
from gavel_rules import limits
from gavel_rules.derivation import is_derived
from gavel_rules.events import CATEGORY_OF_PAYLOAD, EVENT_NAME_DEFAULT, EXECUTION_NAME, SCHEMA_VERSION, is_uuid, uuid_problem
from gavel_rules.proposed import Header, Proposed
from gavel_rules.values import INTEGER_MAX, problems, struct_problems, text_problem, value_problems
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from gavel_server import authority
from gavel_server.errors import invalid
from gavel_server.identifiers import new_event_id

Violations = list[tuple[str, str]]

PROPOSALS: Final = frozenset({"proposal"})

BUS: Final = re.compile(limits.BUS + r"\Z")
SUBJECT: Final = re.compile(limits.SUBJECT + r"\Z")
_DOTTED_NAME: Final = re.compile(limits.DOTTED_NAME + r"\Z")
EXECUTION_ID: Final = re.compile(r"exec_[0-9a-f]{12}\Z")
_EVENT_NAME: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,127}\Z")
_PRODUCER_ID: Final = re.compile(limits.PRODUCER_ID + r"\Z")
PLAIN_LENGTH_MAX: Final = 128
# Methods, looked up once: a message asked for one searches its fields for the name first, at every call.
_has_field: Final = Envelope.HasField
_which_of: Final = Envelope.WhichOneof
# How many times as long as it was sent a message can be when it is written anew: an empty entry of a map takes six bytes, and may
# come in two.
GROWTH_MAX: Final = 3
NAMES_KEPT_MAX: Final = 1024
_VERSIONS: Final = tuple(VersionBinding.DESCRIPTOR.fields_by_name)
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


def admit(envelope: Envelope, bus: str, payloads: frozenset[str], sent_bytes: int | None = None) -> bool:
    """Check an envelope that was sent and fill in what its producer left to the server.

    What every event of the bus has, it gets when it is recorded: schema, bus, category, place and time.
    `payloads` are those that the RPC takes; `sent_bytes` is in how many bytes it came at most, if the caller knows.
    Returns whether the producer chose the event_id itself: then it is an idempotency key to be looked up. Raises
    ServiceError. A trace_id is left empty if the cause has to give it.
    """
    header = Header(envelope)
    payload = _settle(envelope, header, bus, payloads, sent_bytes)
    found: Violations = []
    if payload == "proposal":
        _check_proposal(Proposed(envelope, header), found)
    else:
        _PAYLOAD_CHECKS[payload](envelope, found)
    if found:
        raise invalid(found)
    return _fill(envelope, header, payload)


def admit_proposal(envelope: Envelope, bus: str, sent_bytes: int | None = None) -> tuple[Proposed, bool]:
    """Do what `admit` does, for a proposal. Returns it as arbitration reads it, and what `admit` returns."""
    header = Header(envelope)
    payload = _settle(envelope, header, bus, PROPOSALS, sent_bytes)
    asked = Proposed(envelope, header)
    found: Violations = []
    _check_proposal(asked, found)
    if found:
        raise invalid(found)
    return asked, _fill(envelope, header, payload)


def producer_for_execution(producer: Producer) -> Producer:
    """Return the executor behind a call that carries no envelope, checked. Raises ServiceError."""
    envelope = Envelope(producer=producer)
    header = Header(envelope)
    found: Violations = []
    _settle_producer(envelope, header, "execution", found)
    if found:
        raise invalid([(field.removeprefix("envelope."), description) for field, description in found])
    authority.check(envelope, header, "execution")
    return envelope.producer


def _settle(envelope: Envelope, header: Header, bus: str, payloads: frozenset[str], sent_bytes: int | None) -> str:
    """Check everything but the payload, and fill in the producer. Returns which payload it is. Raises ServiceError."""
    payload = _which_of(envelope, "payload")
    found: Violations = []
    _check_shape(envelope, header, bus, payload, payloads, found)
    if (sent_bytes is None or sent_bytes * GROWTH_MAX > limits.MESSAGE_BYTES_MAX) and envelope.ByteSize() > limits.MESSAGE_BYTES_MAX:
        found.append(("envelope", f"is larger than {limits.MESSAGE_BYTES_MAX} bytes"))
    if found or payload is None:
        raise invalid(found)
    if payload == "decision":
        authority.check(envelope, header, payload)
    _settle_producer(envelope, header, payload, found)
    if found:
        raise invalid(found)
    authority.check(envelope, header, payload)
    return payload


def _check_shape(envelope: Envelope, header: Header, bus: str, payload: str | None, payloads: frozenset[str], found: Violations) -> None:
    if payload is None:
        found.append(("envelope.payload", f"is missing; send {' or '.join(sorted(payloads))}"))
    elif payload not in payloads and payload != "decision":
        found.append((f"envelope.{payload}", f"is not taken by this call, which takes {', '.join(sorted(payloads))}"))
    category = envelope.event_category
    if category:
        _check_category(category, payload, found)
    if envelope.schema_version not in ("", SCHEMA_VERSION):
        found.append(("envelope.schema_version", f'is not "{SCHEMA_VERSION}"'))
    if envelope.bus not in ("", bus):
        found.append(("envelope.bus", f"contradicts the request's bus {bus}"))
    if envelope.sequence_number:
        found.append(("envelope.sequence_number", _SERVERS))
    if _has_field(envelope, "recorded_at"):
        found.append(("envelope.recorded_at", _SERVERS))
    if envelope.chain_hash:
        found.append(("envelope.chain_hash", _SERVERS))
    event_id = header.event_id
    if event_id:
        derived = payload == "fact" and bool(envelope.fact.decision_id)
        problem = _reference_problem(event_id) if derived else uuid_problem(event_id)
        if problem:
            found.append(("envelope.event_id", problem))
    trace_id = header.trace_id
    if trace_id and not _is_plain(trace_id):
        found.append(("envelope.trace_id", "is not 1 to 128 printable ASCII characters"))
    causation_id = header.causation_id
    if causation_id and not is_uuid(causation_id):
        found.append(("envelope.causation_id", "is not a UUID in canonical form"))
    event_name = header.event_name
    if event_name and not _EVENT_NAME.match(event_name):
        found.append(("envelope.event_name", "is not PascalCase of at most 128 characters"))
    subject = header.subject
    if payload == "execution" and not subject:
        pass  # it is the decision's
    elif not SUBJECT.match(subject):
        found.append(("envelope.subject", 'is not "type/id", e.g. "order/123"'))
    if _has_field(envelope, "occurred_at"):
        _check_timestamp(envelope.occurred_at, "envelope.occurred_at", found)
    if _has_field(envelope, "version_binding"):
        _check_binding(envelope.version_binding, found)


def _check_category(category: EventCategory.ValueType, payload: str | None, found: Violations) -> None:
    if category not in _CATEGORIES:
        found.append(("envelope.event_category", f"{category} is unknown"))
    elif payload is not None and CATEGORY_OF_PAYLOAD[payload] != category:
        found.append(("envelope.event_category", f"does not match the payload, which is a {payload}"))


def _check_binding(binding: VersionBinding, found: Violations) -> None:
    for name in _VERSIONS:
        version = getattr(binding, name)
        if version and not _is_plain(version):
            found.append((f"envelope.version_binding.{name}", "is not at most 128 printable ASCII characters"))


# Actions, keys and producers are few, and come again and again. Lengths are looked at first: nothing long is kept.


@lru_cache(NAMES_KEPT_MAX)
def _is_dotted_name(text: str) -> bool:
    return _DOTTED_NAME.match(text) is not None


@lru_cache(NAMES_KEPT_MAX)
def _is_producer_id(text: str) -> bool:
    return _PRODUCER_ID.match(text) is not None


def _is_plain(text: str) -> bool:
    """Whether a text is at most 128 printable ASCII characters."""
    return len(text) <= PLAIN_LENGTH_MAX and text.isascii() and text.isprintable()


def _check_timestamp(value: Timestamp, field: str, found: Violations) -> None:
    if not 0 <= value.seconds <= _TIMESTAMP_SECONDS_MAX or not 0 <= value.nanos < 1_000_000_000:
        found.append((field, "is not a time between 1970 and 9999"))


def _settle_producer(envelope: Envelope, header: Header, payload: str, found: Violations) -> None:
    """Fill in what the payload implies of its producer, then check it."""
    implied = _IMPLIED_PRODUCER.get(payload)
    if not header.producer_type and implied is not None:
        header.producer_type = envelope.producer.type = implied
    if not header.producer_id and header.producer_type == implied:
        header.producer_id = envelope.producer.id = LOCAL_PRODUCER_ID
    producer_type = header.producer_type
    producer_id = header.producer_id
    if not producer_type:
        found.append(("envelope.producer.type", "is required: SENSOR, API, DATABASE_SNAPSHOT, AGENT, EXECUTOR or SYSTEM"))
    elif producer_type not in _PRODUCER_TYPES:
        found.append(("envelope.producer.type", f"{producer_type} is unknown"))
    if len(producer_id) > limits.PRODUCER_ID_LENGTH_MAX or not _is_producer_id(producer_id):
        found.append(("envelope.producer.id", "is not 1 to 128 characters of A-Z a-z 0-9 . _ : @ / -"))
    if not _is_plain(header.producer_version):
        found.append(("envelope.producer.version", "is not at most 128 printable ASCII characters"))


def _check_proposal(asked: Proposed, found: Violations) -> None:
    path = "envelope.proposal"
    action_type = asked.action_type
    if len(action_type) > limits.ACTION_TYPE_LENGTH_MAX or not _is_dotted_name(action_type):
        found.append((f"{path}.action_type", 'is not a dotted name of at most 128 characters, e.g. "refund.create"'))
    found.extend(problems(asked.params, "envelope.proposal.params"))
    problem = text_problem(asked.expected_outcome)
    if problem:
        found.append((f"{path}.expected_outcome", problem))
    if not 0.0 <= asked.cost <= INTEGER_MAX:
        found.append((f"{path}.cost", "is not between 0 and 2^53"))
    if not 0.0 <= asked.risk <= 1.0:
        found.append((f"{path}.risk", "is not between 0 and 1"))
    if not 0.0 <= asked.confidence <= 1.0:
        found.append((f"{path}.confidence", "is not between 0 and 1"))
    if not 0 < asked.max_fact_age_ms <= INTEGER_MAX:
        found.append((f"{path}.max_fact_age_ms", "is required: milliseconds, from 1 to 2^53"))
    if asked.required_facts:  # few have any, and walking along none of a repeated field ends with an exception all the same
        if len(asked.required_facts) > limits.REQUIRED_FACTS_MAX:
            found.append((f"{path}.required_facts", f"are more than {limits.REQUIRED_FACTS_MAX}"))
        for index, key in enumerate(asked.required_facts):
            _check_key(key, f"{path}.required_facts[{index}]", found)
    if len(asked.citations) > limits.BASED_ON_EVENTS_MAX:
        found.append((f"{path}.based_on_events", f"are more than {limits.BASED_ON_EVENTS_MAX}"))
    for index, (sequence_number, event_id) in enumerate(asked.citations):
        if not is_uuid(event_id):
            found.append((f"{path}.based_on_events[{index}].event_id", "is not a UUID in canonical form"))
        if sequence_number < 1:
            found.append((f"{path}.based_on_events[{index}].sequence_number", "is not at least 1"))
    if asked.projection_version is not None and asked.projection_version < 0:
        found.append((f"{path}.projection_version", "is negative"))
    if asked.competes:
        found.append((f"{path}.contest", _SERVERS))


def _check_fact(envelope: Envelope, found: Violations) -> None:
    fact = envelope.fact
    path = "envelope.fact"
    _check_key(fact.key, f"{path}.key", found)
    if not fact.HasField("value") or fact.value.WhichOneof("kind") is None:
        found.append((f"{path}.value", "is required; null retracts the key"))
    else:
        found.extend(value_problems(fact.value, f"{path}.value"))
    if fact.observed_from not in _CHANNELS:
        found.append((f"{path}.observed_from", f"{fact.observed_from} is unknown"))
    if not 0 <= fact.max_age_ms <= INTEGER_MAX:
        found.append((f"{path}.max_age_ms", "is not from 0 to 2^53"))
    if is_derived(fact):
        for field, value in (
            ("decision_id", fact.decision_id),
            ("execution_id", fact.execution_id),
            ("derivation_rule_id", fact.derivation_rule_id),
        ):
            if not _NAME.match(value):
                found.append((f"{path}.{field}", "is required for a derived fact"))
        if not envelope.event_id:
            found.append(("envelope.event_id", "is required for a derived fact"))


def _check_observation(envelope: Envelope, found: Violations) -> None:
    observation = envelope.observation
    path = "envelope.observation"
    if not _NAME.match(observation.source_tool):
        found.append((f"{path}.source_tool", "is required: 1 to 128 printable ASCII characters"))
    if not 0.0 <= observation.confidence <= 1.0:
        found.append((f"{path}.confidence", "is not between 0 and 1"))
    if not 1 <= len(observation.extracted_fields) <= limits.EXTRACTED_FIELDS_MAX:
        found.append((f"{path}.extracted_fields", f"are not 1 to {limits.EXTRACTED_FIELDS_MAX}"))
    for key in sorted(observation.extracted_fields):
        _check_key(key, f"{path}.extracted_fields", found)
        found.extend(value_problems(observation.extracted_fields[key], f"{path}.extracted_fields.{key}"))
    if observation.evidence_ref and not is_uuid(observation.evidence_ref):
        found.append((f"{path}.evidence_ref", "is not a UUID in canonical form"))
    for field, sent in (("trust_tier", observation.trust_tier), ("evidence_recorded_at", observation.HasField("evidence_recorded_at"))):
        if sent:
            found.append((f"{path}.{field}", _SERVERS))
    _check_texts(observation, path, found, skip="extracted_fields")


def _check_tool_call(envelope: Envelope, found: Violations) -> None:
    call = envelope.tool_call
    path = "envelope.tool_call"
    if not _NAME.match(call.tool_name):
        found.append((f"{path}.tool_name", "is required: 1 to 128 printable ASCII characters"))
    if call.execution_id and not EXECUTION_ID.match(call.execution_id):
        found.append((f"{path}.execution_id", 'is not "exec_" and 12 hex digits'))
    _check_texts(call, path, found)


def _check_tool_result(envelope: Envelope, found: Violations) -> None:
    result = envelope.tool_result
    path = "envelope.tool_result"
    if not _NAME.match(result.tool_name):
        found.append((f"{path}.tool_name", "is required: 1 to 128 printable ASCII characters"))
    if result.execution_id and not EXECUTION_ID.match(result.execution_id):
        found.append((f"{path}.execution_id", 'is not "exec_" and 12 hex digits'))
    if not result.is_error and not result.content_hash:
        found.append((f"{path}.content_hash", "is required unless is_error"))
    if result.reproducible:
        for field, value in (("query_ref", result.query_ref), ("snapshot_ref", result.snapshot_ref)):
            if not value:
                found.append((f"{path}.{field}", "is required for a reproducible result"))
    if result.duration_ms < 0:
        found.append((f"{path}.duration_ms", "is negative"))
    _check_texts(result, path, found)


def _check_diagnostic(envelope: Envelope, found: Violations) -> None:
    diagnostic = envelope.agent_diagnostic
    path = "envelope.agent_diagnostic"
    if not _EVENT_NAME.match(diagnostic.kind):
        found.append((f"{path}.kind", "is required: PascalCase of at most 128 characters"))
    found.extend(struct_problems(diagnostic.attributes, f"{path}.attributes"))
    detail = diagnostic.WhichOneof("detail")
    if detail is not None:
        _check_texts(getattr(diagnostic, detail), f"{path}.{detail}", found)


def _check_execution(envelope: Envelope, found: Violations) -> None:
    execution = envelope.execution
    path = "envelope.execution"
    if not is_uuid(execution.decision_id):
        found.append((f"{path}.decision_id", "is required: the approved decision's UUID"))
    if not EXECUTION_ID.match(execution.execution_id):
        found.append((f"{path}.execution_id", 'is required: "exec_" and 12 hex digits, from BeginExecution'))
    if execution.status not in _REPORTABLE:
        found.append((f"{path}.status", "is not SUCCESS, FAILED, PARTIAL, TIMEOUT or ABORTED"))
    if execution.attempt < 0:
        found.append((f"{path}.attempt", "is negative"))
    if not _REASON_CODE.match(execution.reason_code):
        found.append((f"{path}.reason_code", "is not UPPER_SNAKE_CASE of at most 128 characters"))
    found.extend(struct_problems(execution.result, f"{path}.result"))
    if len(execution.completed_steps) > limits.COMPLETED_STEPS_MAX:
        found.append((f"{path}.completed_steps", f"are more than {limits.COMPLETED_STEPS_MAX}"))
    for field, sent in (("will_retry", execution.will_retry), ("lease_until", execution.HasField("lease_until"))):
        if sent:
            found.append((f"{path}.{field}", _SERVERS))
    _check_texts(execution, path, found, skip="result")
    _check_texts(execution.error, f"{path}.error", found)


def _check_key(key: str, field: str, found: Violations) -> None:
    if len(key) > limits.FACT_KEY_LENGTH_MAX or not _is_dotted_name(key):
        found.append((field, 'is not a dotted fact key of at most 256 characters, e.g. "order.status"'))


def _check_texts(message: Message, path: str, found: Violations, skip: str = "") -> None:
    """Yield what is wrong with a message's own strings, floats and times."""
    for field, value in message.ListFields():
        if field.name == skip:
            continue
        items = [value] if isinstance(value, str | float | Timestamp) else [item for item in _items(value) if isinstance(item, str)]
        for item in items:
            if isinstance(item, Timestamp):
                _check_timestamp(item, f"{path}.{field.name}", found)
            elif isinstance(item, float):
                if not -INTEGER_MAX <= item <= INTEGER_MAX:
                    found.append((f"{path}.{field.name}", "is not a finite number within 2^53"))
            else:
                problem = text_problem(item)
                if problem:
                    found.append((f"{path}.{field.name}", problem))


def _items(value: Any) -> list[Any]:
    """Return the items of a repeated field. Protobuf's containers are sequences, but not all of them have an __iter__."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, bytes) else []


def _reference_problem(text: str) -> str:
    return "" if is_uuid(text) else "is not a UUID in canonical form"


def _fill(envelope: Envelope, header: Header, payload: str) -> bool:
    """Fill in what the producer left to the server. Returns whether it chose the event_id."""
    chosen = bool(header.event_id)
    if not chosen:
        header.event_id = envelope.event_id = new_event_id()
    if not header.trace_id and not header.causation_id and payload != "execution":
        header.trace_id = envelope.trace_id = header.event_id
    if not header.event_name:
        name = EXECUTION_NAME[envelope.execution.status] if payload == "execution" else EVENT_NAME_DEFAULT[payload]
        header.event_name = envelope.event_name = name
    if payload == "fact" and not envelope.fact.observed_from:
        fact = envelope.fact
        fact.observed_from = fact_pb2.OBSERVED_FROM_EXECUTOR_FEEDBACK if fact.decision_id else _IMPLIED_CHANNEL[header.producer_type]
    return chosen


_PAYLOAD_CHECKS: Final[Mapping[str, Callable[[Envelope, Violations], None]]] = {
    "fact": _check_fact,
    "observation": _check_observation,
    "tool_call": _check_tool_call,
    "tool_result": _check_tool_result,
    "agent_diagnostic": _check_diagnostic,
    "execution": _check_execution,
}
