"""The events of a call: TOOL_CALL, TOOL_RESULT and the evidence in between.

The event_id of a result follows from that of its call. So a call gets one result, whoever records it first: the runtime that made the call,
or another one that closes it as lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

import rfc8785
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope

from gavel_client.envelopes import content_hash, tool_call_envelope, tool_result_envelope
from gavel_client.evidence.store import EvidenceError, EvidenceStore
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.deadlines import WRITE_TIMEOUT_MS
from gavel_client.rpc.errors import GavelError, describe_error
from gavel_client.tools.errors import LOST, TOOL
from gavel_client.tools.invocation import ToolData, ToolFailure, ToolInvocation, ToolOutcome
from gavel_client.tools.redaction import redact
from gavel_client.tools.schemas import schema_hash
from gavel_client.values import to_json

MEDIA_TYPE: Final = "application/json"
# The event_name of the result of a call that the guard refused.
REFUSED: Final = "ToolCallRefused"
# Time beyond that of the provider, in which a runtime records the result of a call.
LEASE_MARGIN_MS_DEFAULT: Final = 10_000
MESSAGE_LENGTH_MAX: Final = 2_000
_RESULTS: Final = uuid.UUID("5f1a3c2e-6d0b-4d8f-9c1e-2b7a4f60d9e3")


class _Hashes(NamedTuple):
    """The hash of a result, "" for a failure, and the hash and place of the evidence, "" without one."""

    result_hash: str
    evidence_hash: str
    evidence_uri: str


@dataclass(frozen=True)
class ToolRecorder:
    """Records calls and results in the name of `producer`; with `evidence` it keeps what the tools returned."""

    client: GavelClient
    producer: Producer
    evidence: EvidenceStore | None
    lease_margin_ms: int = LEASE_MARGIN_MS_DEFAULT

    async def record_call(self, invocation: ToolInvocation, *, carries_out: bool) -> Envelope:
        """Record a TOOL_CALL; with `carries_out` it names the attempt that the call belongs to. Raises GavelError."""
        context = invocation.context
        contract = invocation.contract
        execution = context.execution if carries_out else None
        redactions = [] if execution else contract.redactions
        # Canonical JSON of large values takes long, and the event loop must renew leases meanwhile.
        arguments_hash = await asyncio.to_thread(lambda: content_hash(redact(invocation.arguments, "arguments", redactions)))
        started_at = datetime.now(timezone.utc)
        return await self._publish(
            tool_call_envelope(
                context.subject,
                self.producer,
                tool_name=contract.name,
                arguments_hash=arguments_hash,
                execution_id=invocation.execution_id,
                call_id=context.call_id,
                requested_tool=invocation.requested_tool,
                tool_version=contract.version,
                provider_id=invocation.provider_id,
                caller_role=context.caller_role,
                agent_id=context.agent_id,
                session_id=context.session_id,
                parent_session_id=context.parent_session_id,
                arguments_summary=context.arguments_summary,
                request_schema_hash=schema_hash(contract.argument_schema),
                decision_id=execution.idempotency_key if execution else "",
                attempt=execution.attempt if execution else 0,
                started_at=started_at,
                lease_until=started_at + timedelta(milliseconds=context.timeout_ms + self.lease_margin_ms),
                trace_id=context.trace_id,
                causation_id=context.causation_id,
                version_binding=context.version_binding,
            )
        )

    async def record_result(
        self, invocation: ToolInvocation, call: Envelope, answer: ToolData | ToolFailure, duration_ms: int
    ) -> ToolOutcome:
        """Keep the evidence of a result, record its TOOL_RESULT and return the outcome. Raises GavelError."""
        hashes = _Hashes("", "", "")
        try:
            hashes = await asyncio.to_thread(self._keep, invocation, answer)
        except EvidenceError as error:
            # A result is not given out without its evidence.
            answer = ToolFailure(TOOL, f"the tool returned, but {error}")
        except ValueError as error:  # of canonical JSON
            answer = ToolFailure(TOOL, clip(f"the tool returned, but its result has no hash: {error}"), may_have_acted=True)
        try:
            result = await self._publish(_result_envelope(invocation, call, answer, hashes, duration_ms))
        except GavelError as error:
            if error.reason == "EVENT_ID_REUSED":
                answer = ToolFailure(LOST, "the call took longer than its lease, and was closed as lost")
                result = (await self.client.get_event(event_id=result_event_id(call))).envelope
            elif error.violations:
                # A refused event is not in the log, so its event_id is free.
                answer = ToolFailure(TOOL, clip("the result cannot be recorded: " + "; ".join(": ".join(one) for one in error.violations)))
                result = await self._publish(_result_envelope(invocation, call, answer, _Hashes("", "", ""), duration_ms))
            else:
                raise
        return _outcome(invocation, call, result, answer)

    def lost_outcome(self, invocation: ToolInvocation, call: Envelope, error: GavelError) -> ToolOutcome:
        """Return the outcome E_LOST for a call whose result the server did not accept. Its `result` is not in the log."""
        problem = describe_error(error)
        failure = ToolFailure(LOST, f"the result could not be recorded ({problem}); whether the call took effect is unknown")
        return _outcome(invocation, call, _result_envelope(invocation, call, failure, _Hashes("", "", ""), 0), failure)

    async def record_lost(self, call: Envelope) -> None:
        """Record that the result of a call is lost, unless it has a result. Raises GavelError."""
        message = "the runtime ended before the tool did; whether the call took effect is unknown"
        envelope = tool_result_envelope(
            call,
            error_code=LOST,
            error_message=message,
            result_summary=message,
            event_id=result_event_id(call),
            version_binding=_binding(call),
        )
        try:
            await self._publish(envelope)
        except GavelError as error:
            if error.reason != "EVENT_ID_REUSED":
                raise

    def _keep(self, invocation: ToolInvocation, answer: ToolData | ToolFailure) -> _Hashes:
        """Hash a result or failure without its redactions, and keep it if there is a store. Raises EvidenceError."""
        if isinstance(answer, ToolFailure):
            content = rfc8785.dumps({"code": answer.code, "message": answer.message, "details": to_json(answer.details)})
        else:
            content = rfc8785.dumps(redact(answer.data, "result", invocation.contract.redactions))
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        result_hash = digest if isinstance(answer, ToolData) else ""
        if self.evidence is None:
            return _Hashes(result_hash, "", "")
        return _Hashes(result_hash, *self.evidence.put(content))

    async def _publish(self, envelope: Envelope) -> Envelope:
        return (await self.client.publish_event(envelope, timeout_ms=WRITE_TIMEOUT_MS)).envelope


def result_event_id(call: Envelope) -> str:
    """Return the event_id of the result of a call."""
    return str(uuid.uuid5(_RESULTS, call.event_id))


def _result_envelope(
    invocation: ToolInvocation, call: Envelope, answer: ToolData | ToolFailure, hashes: _Hashes, duration_ms: int
) -> Envelope:
    if isinstance(answer, ToolFailure):
        message = clip(answer.message)
        event_name = REFUSED if answer.refused else ""
        fields: dict[str, Any] = {"error_code": answer.code, "error_message": message, "result_summary": message, "event_name": event_name}
    else:
        fields = {
            "result_hash": hashes.result_hash,
            "response_schema_hash": schema_hash(invocation.contract.result_schema),
            "result_summary": clip(answer.summary),
            "query_ref": answer.query_ref,
            "snapshot_ref": answer.snapshot_ref,
            "reproducible": answer.reproducible,
        }
    return tool_result_envelope(
        call,
        **fields,
        evidence_uri=hashes.evidence_uri,
        evidence_hash=hashes.evidence_hash,
        evidence_media_type=MEDIA_TYPE if hashes.evidence_uri else "",
        duration_ms=duration_ms,
        event_id=result_event_id(call),
        version_binding=_binding(call),
    )


def _outcome(invocation: ToolInvocation, call: Envelope, result: Envelope, answer: ToolData | ToolFailure) -> ToolOutcome:
    recorded = result.tool_result
    return ToolOutcome(
        requested_tool=invocation.requested_tool,
        canonical_tool=invocation.canonical_tool,
        tool_version=invocation.contract.version,
        provider_id=invocation.provider_id,
        execution_id=invocation.execution_id,
        arguments_hash=call.tool_call.arguments_hash,
        result_hash=recorded.content_hash,
        request_schema_hash=call.tool_call.request_schema_hash,
        response_schema_hash=recorded.response_schema_hash,
        started_at=call.tool_call.started_at.ToDatetime(timezone.utc),
        finished_at=recorded.finished_at.ToDatetime(timezone.utc),
        ok=isinstance(answer, ToolData),
        data=dict(answer.data) if isinstance(answer, ToolData) else None,
        error=answer if isinstance(answer, ToolFailure) else None,
        evidence_uri=recorded.evidence_uri,
        evidence_hash=recorded.evidence_hash,
        call=call,
        result=result,
        redactions=tuple(invocation.contract.redactions),
    )


def clip(text: str) -> str:
    """Return a text that an event may hold, shortened to MESSAGE_LENGTH_MAX characters."""
    plain = text.replace("\0", "").encode(errors="replace").decode()
    return plain if len(plain) <= MESSAGE_LENGTH_MAX else plain[: MESSAGE_LENGTH_MAX - 1] + "…"


def _binding(call: Envelope) -> Any:
    return call.version_binding if call.HasField("version_binding") else None
