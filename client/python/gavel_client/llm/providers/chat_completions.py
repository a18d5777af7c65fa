"""The format of OpenAI's Chat Completions API (POST /chat/completions), without I/O.

Many servers of models speak it. Source: the types of the package openai, `openai.types.chat`. Besides OpenAI's own fields, the delta of a
message may have `reasoning_content` (DeepSeek, vLLM) or `reasoning` (OpenRouter, Ollama), and `annotations` with citations. Any other field
with a value is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gavel_client.llm.errors import UnknownProviderEvent
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

API: Final = "chat.completions"
METADATA: Final = "chat_completion_metadata"

_FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}
_REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
_MESSAGE_FIELDS: Final = frozenset({"role", "content", "refusal", "tool_calls", "annotations", *_REASONING_FIELDS})
_METADATA_FIELDS: Final = ("created", "system_fingerprint", "service_tier")


class ChatCompletionsFormat:
    """The wire format of the Chat Completions API.

    `max_tokens_field` is the name of the limit on tokens: OpenAI's "max_completion_tokens", or "max_tokens" for servers that know only
    the older name. `usage_in_streams` False is for servers that report no tokens in streams; a stream is then taken as complete when
    the model has finished.
    """

    api = API

    def __init__(self, max_tokens_field: str, usage_in_streams: bool) -> None:
        self._max_tokens_field = max_tokens_field
        self._usage_in_streams = usage_in_streams

    def body(self, request: LLMRequest, model: str, provider: str) -> dict[str, Any]:
        """Return the JSON of a request."""
        settings = request.settings
        body: dict[str, Any] = {
            "model": model,
            "messages": [_message(message) for message in request.messages],
            self._max_tokens_field: settings.max_output_tokens,
        }
        if request.tools:
            body["tools"] = [
                {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}}
                for tool in request.tools
            ]
            body["tool_choice"] = request.tool_choice
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.top_p is not None:
            body["top_p"] = settings.top_p
        if settings.reasoning_effort is not None:
            body["reasoning_effort"] = settings.reasoning_effort
        if request.output_schema is not None:
            schema = {"name": "output", "schema": dict(request.output_schema), "strict": False}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def response(self, raw: JsonObject, provider: str) -> LLMResponse:
        """Return the response for the body of a `ChatCompletion`."""
        if raw["object"] != "chat.completion":
            raise UnknownProviderEvent(provider, "object", raw["object"], raw)
        [choice] = raw["choices"]
        message = choice["message"]
        _check_fields(message, provider)
        calls = tuple(_tool_call(call, provider) for call in message.get("tool_calls") or ())
        finish_reason = _finish_reason(choice["finish_reason"], provider, raw)
        if finish_reason == "stop":
            # Some servers report "stop" for every answer that is whole.
            finish_reason = "tool_calls" if calls else "refusal" if message.get("refusal") else "stop"
        usage = raw.get("usage")
        return LLMResponse(
            id=raw["id"],
            model=raw["model"],
            text=message.get("content") or "",
            finish_reason=finish_reason,
            tool_calls=calls,
            usage=None if usage is None else _usage(usage),
            segments=(*_segments(message, calls, provider), *([FILTERED] if finish_reason == "content_filter" else [])),
            extras={METADATA: {name: raw[name] for name in _METADATA_FIELDS if raw.get(name) is not None}},
        )

    def assembly(self, provider: str) -> ChatAssembly:
        """Return a new assembly for one stream."""
        return ChatAssembly(provider, self._usage_in_streams)

    def redact(self, raw: JsonObject) -> JsonObject:
        """Return the JSON as it is: the API echoes neither credentials nor identifiers of users."""
        return raw


class ChatAssembly:
    """Puts the chunks of one stream together: one choice, whose message grows by deltas."""

    def __init__(self, provider: str, usage_in_streams: bool) -> None:
        self._provider = provider
        self._usage_in_streams = usage_in_streams
        self._completion: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish_reason: str | None = None

    def feed(self, raw: JsonObject) -> list[LLMStreamEvent]:
        """Take the next chunk."""
        if raw.get("object") != "chat.completion.chunk":
            raise UnknownProviderEvent(self._provider, "event", raw.get("object"), raw)
        for name in ("id", "model", "usage", *_METADATA_FIELDS):
            if raw.get(name):
                self._completion[name] = raw[name]
        events: list[LLMStreamEvent] = []
        for choice in raw["choices"]:
            if choice["index"] != 0:
                raise ValueError(f"a choice has the index {choice['index']}, but one choice was requested")
            events += self._extend(choice.get("delta") or {})
            reason = choice.get("finish_reason")
            if reason is not None:
                _finish_reason(reason, self._provider, raw)
                self._finish_reason = reason
                events += self._calls_completed()
        return events

    def result(self) -> JsonObject | None:
        """Return the completion; None while it is incomplete."""
        if self._finish_reason is None or (self._usage_in_streams and "usage" not in self._completion):
            return None
        message = dict(self._message)
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        return {"object": "chat.completion", **self._completion, "choices": [choice]}

    def _extend(self, delta: JsonObject) -> list[LLMStreamEvent]:
        """Extend the message by a delta."""
        _check_fields(delta, self._provider)
        events: list[LLMStreamEvent] = []
        if text := delta.get("content"):
            events.append(LLMStreamEvent("response.output_text.delta", LLMStreamChunk(text_delta=text), (LLMSegment("text", text),)))
            self._append("content", text)
        for name in _REASONING_FIELDS:
            if text := delta.get(name):
                segment = LLMSegment("reasoning", text)
                events.append(LLMStreamEvent("response.reasoning.delta", LLMStreamChunk(reasoning_delta=text), (segment,)))
                self._append(name, text)
        if text := delta.get("refusal"):
            events.append(LLMStreamEvent("response.refusal.delta", LLMStreamChunk(refusal_delta=text), (LLMSegment("error", text),)))
            self._append("refusal", text)
        for annotation in delta.get("annotations") or ():
            self._message.setdefault("annotations", []).append(annotation)
            events.append(LLMStreamEvent("response.citation.added", LLMStreamChunk(), (_citation(annotation, self._provider),)))
        for part in delta.get("tool_calls") or ():
            events += self._extend_call(part)
        return events

    def _append(self, name: str, text: str) -> None:
        self._message[name] = (self._message.get(name) or "") + text

    def _extend_call(self, part: JsonObject) -> list[LLMStreamEvent]:
        function = part.get("function") or {}
        call = self._calls.get(part["index"])
        if call is None:
            function_fields = {"name": function["name"], "arguments": ""}
            call = self._calls[part["index"]] = {"id": part["id"], "type": "function", "function": function_fields}
        if part.get("type") not in (None, "function"):
            raise UnknownProviderEvent(self._provider, "tool call", part["type"], part)
        arguments = function.get("arguments") or ""
        call["function"]["arguments"] += arguments
        if not arguments:
            return []
        chunk = LLMStreamChunk(arguments_delta=arguments, call_id=call["id"], tool_name=call["function"]["name"])
        return [LLMStreamEvent("response.function_call_arguments.delta", chunk)]

    def _calls_completed(self) -> list[LLMStreamEvent]:
        events = []
        for index in sorted(self._calls):
            call = _tool_call(self._calls[index], self._provider)
            chunk = LLMStreamChunk(call_id=call.call_id, tool_name=call.name, tool_call=call)
            events.append(LLMStreamEvent("response.tool_call.completed", chunk, (_call_segment(call),)))
        return events


def _message(message: LLMMessage) -> JsonObject:
    match message:
        case SystemMessage(text):
            return {"role": "system", "content": text}
        case UserMessage(text):
            return {"role": "user", "content": text}
        case ToolMessage(call_id=call_id, output=output):
            return {"role": "tool", "tool_call_id": call_id, "content": output}
        case AssistantMessage(response):
            calls = [
                {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in response.tool_calls
            ]
            answer: dict[str, Any] = {"role": "assistant", "content": response.text or None}
            return answer | {"tool_calls": calls} if calls else answer


def _check_fields(message: JsonObject, provider: str) -> None:
    for name, value in message.items():
        if name not in _MESSAGE_FIELDS and value:
            raise UnknownProviderEvent(provider, "field of a message", name, message)


def _segments(message: JsonObject, calls: Sequence[LLMToolCall], provider: str) -> list[LLMSegment]:
    """Return the segments of a message. Its fields have no order of their own: the reasoning comes first, the calls last."""
    segments = [LLMSegment("reasoning", message[name], {"field": name}) for name in _REASONING_FIELDS if message.get(name)]
    annotations = message.get("annotations") or []
    if message.get("content"):
        segments.append(LLMSegment("text", message["content"], {"annotations": annotations}))
    segments += [_citation(annotation, provider) for annotation in annotations]
    if message.get("refusal"):
        segments.append(LLMSegment("error", message["refusal"], {"code": "refusal"}, safety=LLMSafetyAnnotation("", "", True)))
    return segments + [_call_segment(call) for call in calls]


def _citation(annotation: JsonObject, provider: str) -> LLMSegment:
    if annotation["type"] != "url_citation":
        raise UnknownProviderEvent(provider, "annotation", annotation["type"], annotation)
    cited = annotation["url_citation"]
    return LLMSegment("citation", cited["url"], annotation, LLMCitationRef("", cited["url"], (cited["start_index"], cited["end_index"])))


def _call_segment(call: LLMToolCall) -> LLMSegment:
    return LLMSegment("tool_call", call.arguments, {"call_id": call.call_id, "name": call.name})


def _tool_call(call: JsonObject, provider: str) -> LLMToolCall:
    if call.get("type", "function") != "function":
        raise UnknownProviderEvent(provider, "tool call", call["type"], call)
    return LLMToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])


def _finish_reason(reason: str, provider: str, raw: JsonObject) -> FinishReason:
    if reason not in _FINISH_REASONS:
        raise UnknownProviderEvent(provider, "finish_reason", reason, raw)
    return _FINISH_REASONS[reason]


def _usage(usage: JsonObject) -> LLMUsage:
    return LLMUsage(
        input_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
        reasoning_tokens=(usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0,
        cached_input_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        details=usage,
    )
