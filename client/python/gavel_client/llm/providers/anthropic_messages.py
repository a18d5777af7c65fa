"""The format of Anthropic's Messages API (POST /v1/messages), without I/O.

Source: the types of the package anthropic, `anthropic.types`. Blocks of tools that Anthropic runs become segments of type "other", their
failures segments of type "error".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from gavel_client.llm.errors import FailureCode, LLMProviderError, UnknownProviderEvent
from gavel_client.llm.models import (
    FinishReason,
    JsonObject,
    LLMCitationRef,
    LLMResponse,
    LLMSafetyAnnotation,
    LLMSegment,
    LLMStreamChunk,
    LLMStreamEvent,
    LLMToolCall,
    LLMUsage,
)
from gavel_client.llm.requests import AssistantMessage, LLMRequest, SystemMessage, ToolMessage, UserMessage

API: Final = "messages"
CONTENT: Final = "anthropic_content"
METADATA: Final = "anthropic_message_metadata"

# A call whose arguments are not JSON, because the answer was cut at its limit, is kept under this key, as Anthropic's documentation of
# fine-grained streaming of tools advises.
INVALID_JSON: Final = "INVALID_JSON"

HOSTED_BLOCKS: Final = frozenset(
    {
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "container_upload",
    }
)

_CITATIONS: Final = frozenset(
    {"char_location", "page_location", "content_block_location", "web_search_result_location", "search_result_location"}
)
_FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "pause_turn": "pause",
    "refusal": "refusal",
}
_FAILURES: Final[Mapping[str, FailureCode]] = {
    "invalid_request_error": "invalid_request",
    "request_too_large": "invalid_request",
    "not_found_error": "invalid_request",
    "authentication_error": "authentication",
    "permission_error": "authentication",
    "billing_error": "quota",
    "rate_limit_error": "rate_limit",
    "overloaded_error": "overloaded",
    "timeout_error": "timeout",
    "api_error": "server",
}
_METADATA_FIELDS: Final = ("stop_reason", "stop_sequence", "stop_details", "container")


class MessagesFormat:
    """The wire format of the Messages API."""

    api = API

    def body(self, request: LLMRequest, model: str, provider: str) -> dict[str, Any]:
        """Return the JSON of a request. Answers that came from `provider` go back as they are."""
        settings = request.settings
        body: dict[str, Any] = {"model": model, "max_tokens": settings.max_output_tokens, "messages": _messages(request, provider)}
        system = [message.text for message in request.messages if isinstance(message, SystemMessage)]
        if system:
            body["system"] = "\n\n".join(system)
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)} for tool in request.tools
            ]
            body["tool_choice"] = {"type": "any" if request.tool_choice == "required" else request.tool_choice}
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.top_p is not None:
            body["top_p"] = settings.top_p
        output: dict[str, Any] = {}
        if settings.reasoning_effort is not None:
            output["effort"] = settings.reasoning_effort
        if request.output_schema is not None:
            output["format"] = {"type": "json_schema", "schema": dict(request.output_schema)}
        return body | {"output_config": output} if output else body

    def response(self, raw: JsonObject, provider: str) -> LLMResponse:
        """Return the response for the body of a `Message`."""
        if raw["type"] != "message":
            raise UnknownProviderEvent(provider, "object", raw["type"], raw)
        segments = [segment for block in raw["content"] for segment in _segments(block, provider)]
        reason = raw["stop_reason"]
        if reason not in _FINISH_REASONS:
            raise UnknownProviderEvent(provider, "stop_reason", reason, raw)
        if reason == "refusal":
            details = raw.get("stop_details") or {}
            safety = LLMSafetyAnnotation(details.get("category") or "", "", True)
            explanation = details.get("explanation") or "the model refused"
            segments.append(LLMSegment("error", explanation, {"code": "refusal", **details}, safety=safety))
        return LLMResponse(
            id=raw["id"],
            model=raw["model"],
            text="".join(segment.content for segment in segments if segment.type == "text"),
            finish_reason=_FINISH_REASONS[reason],
            tool_calls=tuple(_tool_call(block) for block in raw["content"] if block["type"] == "tool_use"),
            usage=_usage(raw["usage"]),
            segments=tuple(segments),
            extras={
                CONTENT: [_without_nulls(block) for block in raw["content"]],
                METADATA: {name: raw[name] for name in _METADATA_FIELDS if raw.get(name) is not None},
            },
        )

    def assembly(self, provider: str) -> MessageAssembly:
        """Return a new assembly for one stream."""
        return MessageAssembly(provider)

    def redact(self, raw: JsonObject) -> JsonObject:
        """Return the JSON as it is: the API echoes neither credentials nor identifiers of users."""
        return raw


class MessageAssembly:
    """Puts the events of one stream together: a message, whose blocks grow by deltas."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._message: dict[str, Any] | None = None
        self._blocks: list[dict[str, Any]] = []
        self._arguments: dict[int, str] = {}
        self._open: set[int] = set()
        self._is_complete = False

    def feed(self, raw: JsonObject) -> list[LLMStreamEvent]:
        """Take the next event of the provider."""
        kind = raw["type"]
        match kind:
            case "ping":
                return []
            case "error":
                raise failure(raw, self._provider)
            case "message_start":
                self._message = dict(raw["message"])
                return []
            case "content_block_start":
                return self._start(raw["index"], dict(raw["content_block"]))
            case "content_block_delta":
                return self._extend(raw["index"], raw["delta"])
            case "content_block_stop":
                return self._stop(raw["index"])
            case "message_delta":
                message = self._started_message()
                message.update({name: value for name, value in raw["delta"].items() if value is not None})
                # Counts of tokens are totals; those that do not apply are missing or null.
                totals = {name: value for name, value in (raw.get("usage") or {}).items() if value is not None}
                message["usage"] = {**message["usage"], **totals}
                return []
            case "message_stop":
                self._is_complete = not self._open and self._started_message().get("stop_reason") is not None
                return []
        raise UnknownProviderEvent(self._provider, "event", kind, raw)

    def result(self) -> JsonObject | None:
        """Return the message; None while it is incomplete."""
        return {**self._started_message(), "content": self._blocks} if self._is_complete else None

    def _started_message(self) -> dict[str, Any]:
        if self._message is None:
            raise ValueError("an event comes before message_start")
        return self._message

    def _start(self, index: int, block: dict[str, Any]) -> list[LLMStreamEvent]:
        self._started_message()
        if index != len(self._blocks):
            raise ValueError(f"block {index} follows {len(self._blocks)} blocks")
        _check_block(block, self._provider)
        self._blocks.append(block)
        self._open.add(index)
        if block["type"] == "text" and block["text"]:
            return [_text_delta(block["text"], index)]
        return []

    def _extend(self, index: int, delta: JsonObject) -> list[LLMStreamEvent]:
        block = self._blocks[index]
        if index not in self._open:
            raise ValueError(f"block {index} is closed")
        match delta["type"]:
            case "text_delta":
                block["text"] += delta["text"]
                return [_text_delta(delta["text"], index)]
            case "thinking_delta":
                block["thinking"] += delta["thinking"]
                segment = LLMSegment("reasoning", delta["thinking"], {"index": index})
                return [LLMStreamEvent("response.reasoning.delta", LLMStreamChunk(reasoning_delta=delta["thinking"]), (segment,))]
            case "signature_delta":
                block["signature"] = delta["signature"]
                return []
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
                return [LLMStreamEvent("response.citation.added", LLMStreamChunk(), (_citation(delta["citation"], self._provider),))]
            case "input_json_delta":
                self._arguments[index] = self._arguments.get(index, "") + delta["partial_json"]
                if block["type"] != "tool_use" or not delta["partial_json"]:
                    return []
                chunk = LLMStreamChunk(arguments_delta=delta["partial_json"], call_id=block["id"], tool_name=block["name"])
                return [LLMStreamEvent("response.function_call_arguments.delta", chunk)]
        raise UnknownProviderEvent(self._provider, "delta", delta["type"], delta)

    def _stop(self, index: int) -> list[LLMStreamEvent]:
        block = self._blocks[index]
        self._open.remove(index)
        if index in self._arguments:
            block["input"] = _arguments(self._arguments[index])
        if block["type"] != "tool_use":
            return []
        call = _tool_call(block)
        chunk = LLMStreamChunk(call_id=call.call_id, tool_name=call.name, tool_call=call)
        return [LLMStreamEvent("response.tool_call.completed", chunk, tuple(_segments(block, self._provider)))]


def failure(raw: JsonObject, provider: str, status: int | None = None, retry_after_ms: int | None = None) -> LLMProviderError:
    """Return the failure for an error of the API: an event of a stream, or a body."""
    error = raw["error"]
    code = _FAILURES.get(error["type"], "server")
    message = f"{error['type']}: {error['message']}"
    return LLMProviderError(provider, code, message, status=status, retry_after_ms=retry_after_ms, raw=raw)


def _messages(request: LLMRequest, provider: str) -> list[JsonObject]:
    """Return the messages. The outputs of tools that answer one message are blocks of one message of the user."""
    messages: list[dict[str, Any]] = []
    blocks: list[JsonObject]
    for message in request.messages:
        match message:
            case SystemMessage():
                continue
            case UserMessage(text):
                role, blocks = "user", [{"type": "text", "text": text}]
            case ToolMessage(call_id=call_id, output=output, is_error=is_error):
                role, blocks = "user", [{"type": "tool_result", "tool_use_id": call_id, "content": output, "is_error": is_error}]
            case AssistantMessage(response):
                role, blocks = "assistant", _assistant_blocks(response, provider)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": role, "content": list(blocks)})
    return list(messages)


def _assistant_blocks(response: LLMResponse, provider: str) -> list[JsonObject]:
    if CONTENT in response.extras and response.is_from(provider):
        return list(response.extras[CONTENT])
    text: list[JsonObject] = [{"type": "text", "text": response.text}] if response.text else []
    return text + [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": _arguments(call.arguments)} for call in response.tool_calls
    ]


def _arguments(text: str) -> JsonObject:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {INVALID_JSON: text}
    return arguments if isinstance(arguments, dict) else {INVALID_JSON: text}


def _check_block(block: JsonObject, provider: str) -> None:
    if block["type"] not in ("text", "thinking", "redacted_thinking", "tool_use") and block["type"] not in HOSTED_BLOCKS:
        raise UnknownProviderEvent(provider, "content block", block["type"], block)


def _segments(block: JsonObject, provider: str) -> list[LLMSegment]:
    """Return the segments of a block of the content."""
    _check_block(block, provider)
    match block["type"]:
        case "text":
            citations = block.get("citations") or []
            text = LLMSegment("text", block["text"], {"annotations": citations})
            return [text, *(_citation(citation, provider) for citation in citations)]
        case "thinking":
            return [LLMSegment("reasoning", block["thinking"], {"signature": block["signature"]})]
        case "redacted_thinking":
            return [LLMSegment("reasoning", "", {"is_encrypted": True, "data": block["data"]})]
        case "tool_use":
            call = _tool_call(block)
            return [LLMSegment("tool_call", call.arguments, {"call_id": call.call_id, "name": call.name})]
    content = block.get("content")
    if isinstance(content, Mapping) and "error_code" in content:
        return [LLMSegment("error", content["error_code"], {"code": content["error_code"], "block": block})]
    return [LLMSegment("other", "", {"block": block})]


def _citation(citation: JsonObject, provider: str) -> LLMSegment:
    if citation["type"] not in _CITATIONS:
        raise UnknownProviderEvent(provider, "citation", citation["type"], citation)
    source_id = citation.get("file_id") or citation.get("document_index", "")
    source = citation.get("url") or citation.get("source") or citation.get("document_title") or citation.get("title") or ""
    return LLMSegment("citation", citation["cited_text"], citation, LLMCitationRef(str(source_id), source))


def _text_delta(text: str, index: int) -> LLMStreamEvent:
    segment = LLMSegment("text", text, {"index": index})
    return LLMStreamEvent("response.output_text.delta", LLMStreamChunk(text_delta=text), (segment,))


def _tool_call(block: JsonObject) -> LLMToolCall:
    arguments = block["input"]
    text = arguments[INVALID_JSON] if set(arguments) == {INVALID_JSON} else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return LLMToolCall(block["id"], block["name"], text)


def _without_nulls(block: JsonObject) -> JsonObject:
    """Return a block without empty fields, which a stream and a body do not name alike."""
    return {name: value for name, value in block.items() if value is not None and not (name == "citations" and not value)}


def _usage(usage: JsonObject) -> LLMUsage:
    cached = usage.get("cache_read_input_tokens") or 0
    return LLMUsage(
        input_tokens=usage["input_tokens"] + (usage.get("cache_creation_input_tokens") or 0) + cached,
        output_tokens=usage["output_tokens"],
        reasoning_tokens=(usage.get("output_tokens_details") or {}).get("thinking_tokens") or 0,
        cached_input_tokens=cached,
        details=usage,
    )
