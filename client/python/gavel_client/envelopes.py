"""Builders of envelopes from plain Python values. They leave the fields of the server empty.

Each builder assigns an event_id, which is the idempotency key: sending the same envelope again, even after a crash or a timeout,
adds nothing to the log. Build one envelope for each event, not one for each try. `EnvelopeFields` describes the arguments that all
builders take.
"""

from __future__ import annotations

import hashlib
import os
import time
import unicodedata
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypedDict

from gavel.v1.common_pb2 import EventReference, Producer, VersionBinding
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, GraphTransition, LlmInvocation
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.fact_pb2 import OBSERVED_FROM_UNSPECIFIED, Fact, ObservedFrom
from gavel.v1.observation_pb2 import Observation
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from google.protobuf.timestamp_pb2 import Timestamp

from gavel_client.values import INTEGER_MAX, to_struct, to_value

if TYPE_CHECKING:
    pass


class EnvelopeFields(TypedDict, total=False):
    """The optional fields that every builder takes, as a type for dicts of them.

    `event_id`: a UUID of any version but 8; default: a new UUIDv7. `event_name`: PascalCase, past tense. `occurred_at`: an aware
    datetime; default: the time at which the server records the event. `trace_id`: 1..128 printable ASCII characters.
    `causation_id`: event_id of the cause, which must be in the bus.
    """

    event_id: str
    event_name: str
    occurred_at: datetime
    trace_id: str
    causation_id: str
    version_binding: VersionBinding


def new_event_id() -> str:
    """Return a new UUIDv7 by the wall clock (RFC 9562 §5.7)."""
    random_bits = int.from_bytes(os.urandom(10), "big")
    # 48 bits of milliseconds, version 7, 12 random bits, variant 10, 62 random bits.
    bits = time.time_ns() // 1_000_000 << 80 | 0x7 << 76 | (random_bits >> 68) << 64 | 0b10 << 62 | random_bits & (1 << 62) - 1
    return str(uuid.UUID(int=bits))


def new_execution_id() -> str:
    """Return a new id of a run of a tool: "exec_" and 12 hex digits (constitution 001)."""
    return "exec_" + os.urandom(6).hex()


def reference(envelope: Envelope) -> EventReference:
    """Return the reference with which a proposal cites a recorded event."""
    return EventReference(event_id=envelope.event_id, sequence_number=envelope.sequence_number)


def proposal_envelope(
    subject: str,
    producer: Producer,
    *,
    action_type: str,
    params: Mapping[str, object],
    max_fact_age_ms: int,
    based_on_events: Sequence[EventReference] = (),
    required_facts: Sequence[str] = (),
    expected_outcome: str = "",
    cost: float = 0.0,
    risk: float = 0.0,
    confidence: float = 0.0,
    priority: int = 0,
    projection_version: int | None = None,
    event_id: str = "",
    event_name: str = "",
    occurred_at: datetime | None = None,
    trace_id: str = "",
    causation_id: str = "",
    version_binding: VersionBinding | None = None,
) -> Envelope:
    """Return a PROPOSAL of an agent: one action on `subject` (constitution §5.5).

    `max_fact_age_ms` > 0 limits the age of the evidence. `risk` and `confidence` are 0..1. `based_on_events` cites facts and
    observations (see `reference`).
    """
    proposal = Proposal(
        action_type=action_type,
        params=to_struct(params),
        expected_outcome=expected_outcome,
        cost=cost,
        risk=risk,
        confidence=confidence,
        priority=priority,
        required_facts=required_facts,
        based_on_events=based_on_events,
        max_fact_age_ms=max_fact_age_ms,
        projection_version=projection_version,
    )
    return _envelope(
        Envelope(subject=subject, producer=producer, proposal=proposal),
        event_id,
        event_name,
        occurred_at,
        trace_id,
        causation_id,
        version_binding,
    )


def fact_envelope(
    subject: str,
    producer: Producer,
    *,
    key: str,
    value: object,
    observed_from: ObservedFrom.ValueType = OBSERVED_FROM_UNSPECIFIED,
    max_age_ms: int = 0,
    event_id: str = "",
    event_name: str = "",
    occurred_at: datetime | None = None,
    trace_id: str = "",
    causation_id: str = "",
    version_binding: VersionBinding | None = None,
) -> Envelope:
    """Return a FACT of a controlled channel: `key` of `subject` has `value`; None retracts it (constitution §4.7).

    `max_age_ms` 0: the fact sets no limit on its age.
    """
    fact = Fact(key=key, value=to_value(value), observed_from=observed_from, max_age_ms=max_age_ms)
    return _envelope(
        Envelope(subject=subject, producer=producer, fact=fact), event_id, event_name, occurred_at, trace_id, causation_id, version_binding
    )


def observation_envelope(
    subject: str,
    producer: Producer,
    *,
    source_tool: str,
    extracted_fields: Mapping[str, object],
    query_ref: str = "",
    evidence: Envelope,
    observed_at: datetime | None = None,
    confidence: float = 1.0,
    event_id: str = "",
    event_name: str = "",
    occurred_at: datetime | None = None,
    trace_id: str = "",
    causation_id: str = "",
    version_binding: VersionBinding | None = None,
) -> Envelope:
    """Return an OBSERVATION of an agent: values by fact key, read through a tool (constitution §4.6).

    `evidence` is the recorded event that the reading rests on: the TOOL_RESULT of its call. If it is another event, such as the
    diagnostic of a model's call, the observation is inference (tier 3).
    """
    observation = Observation(
        source_tool=source_tool,
        query_ref=query_ref,
        evidence_ref=evidence.event_id,
        evidence_hash=evidence.tool_result.content_hash,
        observed_at=_timestamp(observed_at),
        confidence=confidence,
    )
    for key, value in extracted_fields.items():
        observation.extracted_fields[key].CopyFrom(to_value(value, f"extracted_fields[{key!r}]"))
    return _envelope(
        Envelope(subject=subject, producer=producer, observation=observation),
        event_id,
        event_name,
        occurred_at,
        trace_id,
        causation_id,
        version_binding,
    )


def tool_call_envelope(
    subject: str,
    producer: Producer,
    *,
    tool_name: str,
    arguments: Mapping[str, object] | None = None,
    arguments_hash: str = "",
    execution_id: str = "",
    call_id: str = "",
    requested_tool: str = "",
    tool_version: str = "",
    provider_id: str = "",
    caller_role: str = "",
    agent_id: str = "",
    session_id: str = "",
    parent_session_id: str = "",
    arguments_summary: str = "",
    request_schema_hash: str = "",
    decision_id: str = "",
    attempt: int = 0,
    started_at: datetime | None = None,
    lease_until: datetime | None = None,
    event_id: str = "",
    event_name: str = "",
    occurred_at: datetime | None = None,
    trace_id: str = "",
    causation_id: str = "",
    version_binding: VersionBinding | None = None,
) -> Envelope:
    """Return a TOOL_CALL of an agent or a tool runtime, by default with a new execution_id, started now (constitution 001).

    The log stores only the hash of `arguments`; `arguments_hash` replaces them. `arguments_summary` is for people; put no secret into it.
    """
    tool_call = ToolCall(
        execution_id=execution_id or new_execution_id(),
        call_id=call_id,
        tool_name=tool_name,
        requested_tool=requested_tool,
        tool_version=tool_version,
        provider_id=provider_id,
        caller_role=caller_role,
        agent_id=agent_id,
        session_id=session_id,
        parent_session_id=parent_session_id,
        arguments_hash=arguments_hash or content_hash(arguments or {}),
        arguments_summary=arguments_summary,
        request_schema_hash=request_schema_hash,
        decision_id=decision_id,
        attempt=attempt,
        started_at=_timestamp(started_at or datetime.now(timezone.utc)),
        lease_until=_timestamp(lease_until),
    )
    return _envelope(
        Envelope(subject=subject, producer=producer, tool_call=tool_call),
        event_id,
        event_name,
        occurred_at,
        trace_id,
        causation_id,
        version_binding,
    )


def tool_result_envelope(
    call: Envelope,
    *,
    result: object = None,
    result_hash: str = "",
    error_code: str = "",
    error_message: str = "",
    result_summary: str = "",
    query_ref: str = "",
    snapshot_ref: str = "",
    reproducible: bool = False,
    evidence_uri: str = "",
    evidence_hash: str = "",
    evidence_media_type: str = "",
    response_schema_hash: str = "",
    duration_ms: int = 0,
    finished_at: datetime | None = None,
    event_id: str = "",
    event_name: str = "",
    occurred_at: datetime | None = None,
    trace_id: str = "",
    causation_id: str = "",
    version_binding: VersionBinding | None = None,
) -> Envelope:
    """Return the TOOL_RESULT of the recorded TOOL_CALL `call`, with its subject, producer, trace and execution_id, finished now.

    The log stores only the hash of `result` (JSON values); `result_hash` or an `error_code` replaces it. A `reproducible` result requires
    the query (`query_ref`) and the snapshot that it read (`snapshot_ref`) (constitution §5.3).
    """
    tool_result = ToolResult(
        execution_id=call.tool_call.execution_id,
        call_id=call.tool_call.call_id,
        tool_name=call.tool_call.tool_name,
        tool_version=call.tool_call.tool_version,
        requested_tool=call.tool_call.requested_tool,
        provider_id=call.tool_call.provider_id,
        is_error=bool(error_code),
        error_code=error_code,
        error_message=error_message,
        result_summary=result_summary,
        content_hash="" if error_code else result_hash or content_hash(result),
        reproducible=reproducible,
        query_ref=query_ref,
        evidence_uri=evidence_uri,
        evidence_hash=evidence_hash,
        evidence_media_type=evidence_media_type,
        snapshot_ref=snapshot_ref,
        response_schema_hash=response_schema_hash,
        duration_ms=duration_ms,
        finished_at=_timestamp(finished_at or datetime.now(timezone.utc)),
    )
    if call.tool_call.HasField("started_at"):
        tool_result.started_at.CopyFrom(call.tool_call.started_at)
    envelope = Envelope(subject=call.subject, producer=call.producer, tool_result=tool_result)
    trace_id, causation_id = trace_id or call.trace_id, causation_id or call.event_id
    return _envelope(envelope, event_id, event_name, occurred_at, trace_id, causation_id, version_binding)


def content_hash(value: Any) -> str:
    """Return "sha256:" and the hex digits of SHA-256 over the canonical JSON of `value`. Raises ValueError."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Return the RFC 8785 canonical JSON of `value`. Raises ValueError."""
    # Imported here, because only producers of evidence need it: the rest of the client works without it.
    import rfc8785

    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        return rfc8785.dumps(_with_doubles(value))


def _with_doubles(value: Any) -> Any:
    """Return a value with ±2^53 as the double that the wire carries: RFC 8785's library takes smaller integers only."""
    if isinstance(value, Mapping):
        return {key: _with_doubles(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_doubles(item) for item in value]
    return float(value) if isinstance(value, int) and abs(value) == INTEGER_MAX else value


def diagnostic_envelope(
    subject: str,
    producer: Producer,
    *,
    kind: str,
    attributes: Mapping[str, object] | None = None,
    graph_transition: GraphTransition | None = None,
    llm_invocation: LlmInvocation | None = None,
    event_id: str = "",
    event_name: str = "",
    occurred_at: datetime | None = None,
    trace_id: str = "",
    causation_id: str = "",
    version_binding: VersionBinding | None = None,
) -> Envelope:
    """Return an AGENT_DIAGNOSTIC: metadata of a run, never a chain of thought (constitution §8)."""
    diagnostic = AgentDiagnostic(
        kind=kind,
        attributes=to_struct(attributes or {}, "attributes"),
        graph_transition=graph_transition,
        llm_invocation=llm_invocation,
    )
    return _envelope(
        Envelope(subject=subject, producer=producer, agent_diagnostic=diagnostic),
        event_id,
        event_name,
        occurred_at,
        trace_id,
        causation_id,
        version_binding,
    )


def execution_envelope(
    subject: str,
    producer: Producer,
    execution: Execution,
    *,
    event_id: str = "",
    event_name: str = "",
    occurred_at: datetime | None = None,
    trace_id: str = "",
    causation_id: str = "",
    version_binding: VersionBinding | None = None,
) -> Envelope:
    """Return an EXECUTION, an executor's report of an attempt (constitution §7)."""
    return _envelope(
        Envelope(subject=subject, producer=producer, execution=execution),
        event_id,
        event_name,
        occurred_at,
        trace_id,
        causation_id,
        version_binding,
    )


def _envelope(
    envelope: Envelope,
    event_id: str,
    event_name: str,
    occurred_at: datetime | None,
    trace_id: str,
    causation_id: str,
    version_binding: VersionBinding | None,
) -> Envelope:
    # The form in which the server records it, so that the caller finds the same text in answers.
    envelope.subject = unicodedata.normalize("NFC", envelope.subject)
    envelope.event_id = event_id or new_event_id()
    envelope.event_name = event_name
    envelope.trace_id = trace_id
    envelope.causation_id = causation_id
    occurrence = _timestamp(occurred_at)
    if occurrence is not None:
        envelope.occurred_at.CopyFrom(occurrence)
    if version_binding is not None:
        envelope.version_binding.CopyFrom(version_binding)
    return envelope


def _timestamp(time: datetime | None) -> Timestamp | None:
    if time is None:
        return None
    if time.tzinfo is None:
        raise ValueError(f"the time {time.isoformat()} has no time zone; use an aware datetime, e.g. datetime.now(UTC)")
    timestamp = Timestamp()
    timestamp.FromDatetime(time)
    return timestamp
