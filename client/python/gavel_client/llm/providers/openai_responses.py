"""The format of OpenAI's Responses API (POST /responses), without I/O.

Source: the types of the package openai, `openai.types.responses`. Every event and item is listed here: those with a meaning in the
closed set, those that report progress of what the complete response contains, and items of tools that OpenAI runs. Items that ask the
caller for something that this package does not offer, such as `computer_call`, are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gavel_client.llm.errors import FailureCode, LLMProviderError, UnknownProviderEvent
from gavel_client.llm.models import (
    FILTERED,
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
from gavel_client.llm.requests import AssistantMessage, LLMMessage, LLMRequest, SystemMessage, ToolMessage, UserMessage

API: Final = "responses"
OUTPUT: Final = "openai_output"
METADATA: Final = "openai_response_metadata"

# Events that only report progress: the response that ends the stream contains what they announce.
PROGRESS_EVENTS: Final = frozenset(
    {
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_text.done",
        "response.refusal.done",
        "response.function_call_arguments.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.done",
        "response.reasoning_text.done",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.file_search_call.completed",
        "response.code_interpreter_call.in_progress",
        "response.code_interpreter_call.interpreting",
        "response.code_interpreter_call.completed",
        "response.code_interpreter_call_code.delta",
        "response.code_interpreter_call_code.done",
        "response.image_generation_call.in_progress",
        "response.image_generation_call.generating",
        "response.image_generation_call.partial_image",
        "response.image_generation_call.completed",
        "response.mcp_call.in_progress",
        "response.mcp_call.completed",
        "response.mcp_call.failed",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_list_tools.failed",
        "response.compaction.compacting",
    }
)

# Items of tools that OpenAI runs itself, and of its management of the context.
HOSTED_ITEMS: Final = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "tool_search_call",
        "tool_search_output",
        "compaction",
    }
)

_FAILURES: Final[Mapping[str, FailureCode]] = {
    "rate_limit_exceeded": "rate_limit",
    "insufficient_quota": "quota",
    "server_error": "server",
    "server_is_overloaded": "overloaded",
    "vector_store_timeout": "timeout",
}
_INCOMPLETE: Final[Mapping[str, FinishReason]] = {"max_output_tokens": "length", "content_filter": "content_filter"}
# Fields of a response that identify the caller's users.
_USER_FIELDS: Final = frozenset({"user", "safety_identifier", "prompt_cache_key"})
_CREDENTIAL_FIELDS: Final = frozenset({"authorization", "headers"})


class ResponsesFormat:
    """The wire format of the Responses API."""

    api = API

    def body(self, request: LLMRequest, model: str, provider: str) -> dict[str, Any]:
        """Return the JSON of a request. Answers that came from `provider` go back as they are."""
        settings = request.settings
        body: dict[str, Any] = {
            "model": model,
            "input": [item for message in request.messages for item in _input_items(message, provider)],
            "max_output_tokens": settings.max_output_tokens,
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                    "strict": False,
                }
                for tool in request.tools
            ]
            body["tool_choice"] = request.tool_choice
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.top_p is not None:
            body["top_p"] = settings.top_p
        if settings.reasoning_effort is not None:
            body["reasoning"] = {"effort": settings.reasoning_effort}
        if request.output_schema is not None:
            schema = {"type": "json_schema", "name": "output", "schema": dict(request.output_schema), "strict": False}
            body["text"] = {"format": schema}
        return body

    def response(self, raw: JsonObject, provider: str) -> LLMResponse:
        """Return the response for the body of a `Response`."""
        _raise_failure(raw, provider)
        segments = [segment for item in raw["output"] for segment in _segments(item, provider)]
        calls = tuple(_tool_call(item) for item in raw["output"] if item["type"] == "function_call")
        finish_reason = _finish_reason(raw, segments, calls, provider)
        if finish_reason == "content_filter":
            segments.append(FILTERED)
        usage = raw.get("usage")
        return LLMResponse(
            id=raw["id"],
            model=raw["model"],
            text="".join(segment.content for segment in segments if segment.type == "text"),
            finish_reason=finish_reason,
            tool_calls=calls,
            usage=None if usage is None else _usage(usage),
            segments=tuple(segments),
            extras={
                OUTPUT: raw["output"],
                METADATA: {
                    name: value for name, value in self.redact(raw).items() if name not in ("output", "usage") and value is not None
                },
            },
        )

    def assembly(self, provider: str) -> ResponsesAssembly:
        """Return a new assembly for one stream."""
        return ResponsesAssembly(provider)

    def redact(self, raw: JsonObject) -> JsonObject:
        """Return an event or a body without identifiers of users, and without credentials of MCP servers among the tools."""
        if isinstance(raw.get("response"), Mapping):
            return {**raw, "response": self.redact(raw["response"])}
        if raw.get("object") != "response":
            return raw
        redacted = {name: value for name, value in raw.items() if name not in _USER_FIELDS}
        if isinstance(raw.get("tools"), Sequence):
            redacted["tools"] = [{name: value for name, value in tool.items() if name not in _CREDENTIAL_FIELDS} for tool in raw["tools"]]
        return redacted


class ResponsesAssembly:
    """Reads the events of one stream. The event that ends it contains the whole response."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._calls: dict[int, JsonObject] = {}
        self._result: JsonObject | None = None

    def feed(self, raw: JsonObject) -> list[LLMStreamEvent]:
        """Take the next event of the provider."""
        kind = raw["type"]
        match kind:
            case "response.output_text.delta":
                chunk = LLMStreamChunk(text_delta=raw["delta"])
                return [LLMStreamEvent("response.output_text.delta", chunk, (LLMSegment("text", raw["delta"], _place(raw)),))]
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                chunk = LLMStreamChunk(reasoning_delta=raw["delta"])
                return [LLMStreamEvent("response.reasoning.delta", chunk, (LLMSegment("reasoning", raw["delta"], _place(raw)),))]
            case "response.refusal.delta":
                chunk = LLMStreamChunk(refusal_delta=raw["delta"])
                return [LLMStreamEvent("response.refusal.delta", chunk, (LLMSegment("error", raw["delta"], _place(raw)),))]
            case "response.output_text.annotation.added":
                citation = _citation(raw["annotation"], self._provider)
                return [LLMStreamEvent("response.citation.added", LLMStreamChunk(), (citation,))]
            case "response.function_call_arguments.delta":
                call = self._calls[raw["output_index"]]
                chunk = LLMStreamChunk(arguments_delta=raw["delta"], call_id=call["call_id"], tool_name=call["name"])
                return [LLMStreamEvent("response.function_call_arguments.delta", chunk)]
            case "response.output_item.done":
                return self._item_done(raw["item"])
            case "response.completed" | "response.incomplete":
                self._result = raw["response"]
                return []
            case "response.failed":
                _raise_failure(raw["response"], self._provider)
                raise ValueError(f"response.failed with status {raw['response'].get('status')!r}")
            case "error":
                raise _failure(raw, self._provider, raw)
        if kind not in PROGRESS_EVENTS:
            raise UnknownProviderEvent(self._provider, "event", kind, raw)
        if kind == "response.output_item.added":
            _check_item(raw["item"], self._provider)
            if raw["item"]["type"] == "function_call":
                self._calls[raw["output_index"]] = raw["item"]
        return []

    def result(self) -> JsonObject | None:
        """Return the complete response; None while it is incomplete."""
        return self._result

    def _item_done(self, item: JsonObject) -> list[LLMStreamEvent]:
        segments = _segments(item, self._provider)
        if item["type"] != "function_call":
            return []
        call = _tool_call(item)
        chunk = LLMStreamChunk(call_id=call.call_id, tool_name=call.name, tool_call=call)
        return [LLMStreamEvent("response.tool_call.completed", chunk, tuple(segments))]


def _input_items(message: LLMMessage, provider: str) -> list[JsonObject]:
    match message:
        case SystemMessage(text):
            return [{"role": "developer", "content": text}]
        case UserMessage(text):
            return [{"role": "user", "content": text}]
        case ToolMessage(call_id=call_id, output=output):
            return [{"type": "function_call_output", "call_id": call_id, "output": output}]
        case AssistantMessage(response):
            if OUTPUT in response.extras and response.is_from(provider):
                return list(response.extras[OUTPUT])
            items: list[JsonObject] = [{"role": "assistant", "content": response.text}] if response.text else []
            return items + [
                {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
                for call in response.tool_calls
            ]


def _check_item(item: JsonObject, provider: str) -> None:
    if item["type"] not in ("message", "reasoning", "function_call") and item["type"] not in HOSTED_ITEMS:
        raise UnknownProviderEvent(provider, "output item", item["type"], item)


def _segments(item: JsonObject, provider: str) -> list[LLMSegment]:
    """Return the segments of an output item."""
    _check_item(item, provider)
    identity = {"item_id": item["id"]} if item.get("id") else {}
    match item["type"]:
        case "message":
            return [segment for part in item["content"] for segment in _part_segments(part, identity, provider)]
        case "reasoning":
            texts = [part["text"] for part in (*item.get("summary", ()), *(item.get("content") or ()))]
            metadata = identity | {"is_encrypted": bool(item.get("encrypted_content"))}
            return [LLMSegment("reasoning", text, metadata) for text in texts or [""]]
        case "function_call":
            return [LLMSegment("tool_call", item["arguments"], identity | {"call_id": item["call_id"], "name": item["name"]})]
    return [LLMSegment("other", "", {"item": item})]


def _part_segments(part: JsonObject, identity: dict[str, Any], provider: str) -> list[LLMSegment]:
    match part["type"]:
        case "output_text":
            annotations = part.get("annotations") or []
            text = LLMSegment("text", part["text"], identity | {"annotations": annotations})
            return [text, *(_citation(annotation, provider) for annotation in annotations)]
        case "refusal":
            return [LLMSegment("error", part["refusal"], identity | {"code": "refusal"}, safety=LLMSafetyAnnotation("", "", True))]
        case "reasoning_text":
            return [LLMSegment("reasoning", part["text"], identity)]
    raise UnknownProviderEvent(provider, "content part", part["type"], part)


def _citation(annotation: JsonObject, provider: str) -> LLMSegment:
    match annotation["type"]:
        case "url_citation":
            citation = LLMCitationRef("", annotation["url"], (annotation["start_index"], annotation["end_index"]))
        case "container_file_citation":
            span = (annotation["start_index"], annotation["end_index"])
            citation = LLMCitationRef(annotation["file_id"], annotation["filename"], span)
        case "file_citation":
            citation = LLMCitationRef(annotation["file_id"], annotation["filename"])
        case "file_path":
            citation = LLMCitationRef(annotation["file_id"], annotation["file_id"])
        case _:
            raise UnknownProviderEvent(provider, "annotation", annotation["type"], annotation)
    return LLMSegment("citation", citation.source, annotation, citation)


def _tool_call(item: JsonObject) -> LLMToolCall:
    return LLMToolCall(item["call_id"], item["name"], item["arguments"])


def _place(raw: JsonObject) -> JsonObject:
    return {name: raw[name] for name in ("item_id", "output_index", "content_index", "summary_index") if name in raw}


def _finish_reason(raw: JsonObject, segments: Sequence[LLMSegment], calls: Sequence[LLMToolCall], provider: str) -> FinishReason:
    if raw["status"] == "incomplete":
        reason = raw["incomplete_details"]["reason"]
        if reason not in _INCOMPLETE:
            raise UnknownProviderEvent(provider, "reason of an incomplete response", reason, raw)
        return _INCOMPLETE[reason]
    if calls:
        return "tool_calls"
    return "refusal" if any(segment.type == "error" for segment in segments) else "stop"


def _usage(usage: JsonObject) -> LLMUsage:
    return LLMUsage(
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
        reasoning_tokens=usage["output_tokens_details"]["reasoning_tokens"],
        cached_input_tokens=usage["input_tokens_details"]["cached_tokens"],
        details=usage,
    )


def _raise_failure(raw: JsonObject, provider: str) -> None:
    """Raise unless the response is complete, as far as the provider was going to write it."""
    if raw["status"] in ("completed", "incomplete"):
        return
    if raw["status"] == "failed":
        raise _failure(raw["error"], provider, raw)
    if raw["status"] in ("cancelled", "queued", "in_progress"):
        raise LLMProviderError(provider, "server", f"the response is {raw['status']}", raw=raw)
    raise UnknownProviderEvent(provider, "status", raw["status"], raw)


def _failure(error: JsonObject, provider: str, raw: JsonObject) -> LLMProviderError:
    # An error within a stream comes after the request was accepted; a code that is not listed is a refusal of its content.
    code = error.get("code")
    return LLMProviderError(provider, _FAILURES.get(code or "server_error", "invalid_request"), f"{code}: {error['message']}", raw=raw)
