"""The record of each call of a model: the diagnostic event LlmInvocationCommitted (constitution 000 §2, 003).

The event has the model that was asked and the one that answered, the provider, settings, tokens, attempts and latency, and hashes of prompt
and output. It has no text. With an evidence store, prompt and output are kept there, and the event says where. An answer is handed to its
caller only after its event is in the log.

`prompt_hash` covers messages, tools and the schema of the output, without model, settings and the ids of calls, which providers choose:
equal prompts have equal hashes with every provider. docs/hashing.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gavel.v1.common_pb2 import Producer, VersionBinding
from gavel.v1.diagnostic_pb2 import LlmAttempt, LlmInvocation
from gavel.v1.envelope_pb2 import Envelope

from gavel_client.envelopes import canonical_json, content_hash, diagnostic_envelope
from gavel_client.evidence.store import EvidenceStore
from gavel_client.llm.errors import InvalidRequestError, LLMProviderError
from gavel_client.llm.models import JsonObject, LLMProviderMeta, LLMResponse, LLMToolCall
from gavel_client.llm.requests import AssistantMessage, LLMMessage, LLMRequest, LLMTool, SystemMessage, ToolMessage, UserMessage
from gavel_client.rpc.client import GavelClient
from gavel_client.tools.redaction import REDACTED, redact
from gavel_client.values import escape_surrogates, to_struct

KIND: Final = "LlmInvocationCommitted"
# The entry in `extras` of a response that names its event.
INVOCATION: Final = "gavel_invocation"
ATTEMPTS_RECORDED_MAX: Final = 64


@dataclass(frozen=True)
class LLMContext:
    """The place of a call: the subject and trace of its event, and the event that caused it."""

    subject: str
    trace_id: str = ""
    causation_id: str = ""
    version_binding: VersionBinding | None = None

    @classmethod
    def of(cls, event: Envelope) -> LLMContext:
        """Return the context of a call that a recorded event caused."""
        return cls(event.subject, event.trace_id, event.event_id)


@dataclass(frozen=True)
class Invocation:
    """One call with all its attempts; `response` is None if there is no complete answer."""

    request: LLMRequest
    prompt_hash: str
    settings: JsonObject
    requested_model: str
    provider_meta: Sequence[LLMProviderMeta]
    duration_ms: int
    response: LLMResponse | None


class InvocationRecorder:
    """Records calls in the name of an agent. `evidence` turns the capture of prompts and outputs on."""

    def __init__(self, client: GavelClient, producer: Producer, *, evidence: EvidenceStore | None = None) -> None:
        self._client = client
        self._producer = producer
        self._evidence = evidence

    async def record(self, invocation: Invocation, context: LLMContext | None) -> Envelope:
        """Record a call; return the event. Without a context the call is a trace of its own, on the subject `agent/ID`.

        Raises GavelError if the event cannot be recorded, EvidenceError if the evidence cannot be kept.
        """
        context = context or LLMContext(f"agent/{self._producer.id}")
        detail = _detail(invocation)
        if self._evidence is not None:
            detail.evidence_hash, detail.evidence_uri = await asyncio.to_thread(self._evidence.put, evidence_of(invocation))
        envelope = diagnostic_envelope(
            context.subject,
            self._producer,
            kind=KIND,
            llm_invocation=detail,
            trace_id=context.trace_id,
            causation_id=context.causation_id,
            version_binding=context.version_binding,
        )
        return (await self._client.publish_event(envelope)).envelope


def prompt_json(request: LLMRequest) -> JsonObject:
    """Return the prompt as JSON values, the same for every provider, with the redactions of its tools applied."""
    prompt: dict[str, Any] = {"messages": [_message_json(message, request.tools) for message in request.messages]}
    if request.tools:
        prompt["tools"] = [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in request.tools]
    if request.output_schema is not None:
        prompt["output_schema"] = request.output_schema
    return prompt


def output_json(response: LLMResponse, tools: Sequence[LLMTool] = ()) -> JsonObject:
    """Return the output as JSON values: text and tool calls, with the redactions of `tools` applied."""
    return {"text": response.text, "tool_calls": _calls_json(response.tool_calls, tools)}


def check_request(request: LLMRequest, settings: Iterable[JsonObject]) -> str:
    """Return the hash of a prompt, once all of a request can be recorded, with each of `settings`. Raises InvalidRequestError."""
    try:
        for one in settings:
            _settings_detail(one)
        return content_hash(prompt_json(request))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the request cannot be recorded, so it is not sent: {error}") from error


def check_response(request: LLMRequest, response: LLMResponse, provider: str) -> None:
    """Check that an answer can be recorded. Raises LLMProviderError."""
    try:
        _output_detail(request, response)
    except (TypeError, ValueError, RecursionError) as error:
        raise LLMProviderError(provider, "malformed", f"its answer cannot be recorded: {error}") from error


def evidence_of(invocation: Invocation) -> bytes:
    """Return the captured evidence of a call: the canonical JSON of prompt and output."""
    output = None if invocation.response is None else output_json(invocation.response, invocation.request.tools)
    return canonical_json({"prompt": prompt_json(invocation.request), "output": output})


def _detail(invocation: Invocation) -> LlmInvocation:
    detail = LlmInvocation(
        requested_model=invocation.requested_model,
        prompt_hash=invocation.prompt_hash,
        duration_ms=invocation.duration_ms,
        attempts=[_attempt(meta) for meta in invocation.provider_meta[-ATTEMPTS_RECORDED_MAX:]],
    )
    detail.MergeFrom(_settings_detail(invocation.settings))
    if invocation.response is not None:
        detail.MergeFrom(_output_detail(invocation.request, invocation.response))
    return detail


def _settings_detail(settings: JsonObject) -> LlmInvocation:
    others = {name: value for name, value in settings.items() if name != "temperature"}
    detail = LlmInvocation(settings=to_struct(others, "settings"))
    temperature = settings.get("temperature")
    if temperature is not None:
        detail.llm_temperature = float(temperature)
    return detail


def _output_detail(request: LLMRequest, response: LLMResponse) -> LlmInvocation:
    detail = LlmInvocation(
        llm_model=response.model,
        llm_provider=response.provider_meta[-1].provider_name,
        response_id=response.id,
        output_hash=content_hash(output_json(response, request.tools)),
    )
    if response.usage is not None:
        detail.token_count = response.usage.total_tokens
        detail.input_token_count = response.usage.input_tokens
        detail.output_token_count = response.usage.output_tokens
    return detail


def _attempt(meta: LLMProviderMeta) -> LlmAttempt:
    error = meta.extra.get("error")
    return LlmAttempt(
        llm_provider=meta.provider_name,
        requested_model=meta.model,
        error_code="" if error is None else error["code"].upper(),
        duration_ms=int(meta.latency_ms or 0),
    )


def _message_json(message: LLMMessage, tools: Sequence[LLMTool]) -> JsonObject:
    match message:
        case SystemMessage(text):
            return {"role": "system", "text": text}
        case UserMessage(text):
            return {"role": "user", "text": text}
        case AssistantMessage(response):
            return {"role": "assistant", "text": response.text, "tool_calls": _calls_json(response.tool_calls, tools)}
        case ToolMessage(name=name, output=output, is_error=is_error, recorded_output=recorded):
            return {"role": "tool", "name": name, "text": output if recorded is None else recorded, "is_error": is_error}


def _calls_json(calls: Sequence[LLMToolCall], tools: Sequence[LLMTool]) -> list[JsonObject]:
    redactions = {tool.name: tool.redactions for tool in tools if tool.redactions}
    return [{"name": call.name, "arguments": _redacted(call.arguments, redactions.get(call.name, ()))} for call in calls]


def _redacted(arguments: str, redactions: Sequence[str]) -> str:
    """Return a call's arguments, as a model wrote them, with the redactions applied."""
    if not any(pointer.split("/")[1:2] == ["arguments"] for pointer in redactions):
        return arguments
    try:
        text = json.dumps(redact(json.loads(arguments or "{}"), "arguments", redactions), ensure_ascii=False)
    except (ValueError, RecursionError):
        # Where the values are is not known.
        return REDACTED
    return escape_surrogates(text)  # as the model wrote them
