"""The provider layer: one model of one provider, asked over its API, answering in the types of `models`.

A provider is a *wire format*, which is pure (request to JSON, JSON to response, events to response), and a *transport*, which sends
JSON through the official SDK. The two share no type but JSON. `ModelProvider` joins them: it measures, keeps the raw events, and turns
every end of a stream that is not a complete response into an error.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

from gavel_client.llm.errors import LLMProviderError
from gavel_client.llm.models import (
    JsonObject,
    LLMProviderMeta,
    LLMResponse,
    LLMSegment,
    LLMStreamChunk,
    LLMStreamError,
    LLMStreamEvent,
    LLMUsage,
)
from gavel_client.llm.requests import LLMRequest

PROVIDER_TIMEOUT_MS_DEFAULT: Final = 120_000

_Value = TypeVar("_Value")


class LLMProvider(Protocol):
    """One model of one provider. `name` and `model` identify it in the log; `settings` are what a request sends beside its messages."""

    @property
    def name(self) -> str:
        """Name of the provider, e.g. "openai"."""
        ...

    @property
    def model(self) -> str:
        """The model that is asked for, as the provider spells it."""
        ...

    def settings(self, request: LLMRequest) -> JsonObject:
        """Return the settings that the request sends, as JSON values in the provider's spelling, without messages and tools."""
        ...

    async def complete(self, request: LLMRequest, *, timeout_ms: int = PROVIDER_TIMEOUT_MS_DEFAULT) -> LLMResponse:
        """Return the model's answer. Raises LLMProviderError for a failure, UnknownProviderEvent for an item that is not listed."""
        ...

    def stream(self, request: LLMRequest, *, timeout_ms: int = PROVIDER_TIMEOUT_MS_DEFAULT) -> AsyncGenerator[LLMStreamEvent, None]:
        """Yield the answer as it comes. The last event has the response that `complete` returns. Raises what `complete` raises."""
        ...

    async def close(self) -> None:
        """Close the provider's connections."""
        ...


class Assembly(Protocol):
    """Puts the events of one stream together."""

    def feed(self, raw: JsonObject) -> list[LLMStreamEvent]:
        """Take the next event of the provider; return the events of the closed set that it stands for.

        An event that only reports progress stands for none.
        """
        ...

    def result(self) -> JsonObject | None:
        """Return the complete response in the provider's form for requests without streaming; None while it is incomplete."""
        ...


class WireFormat(Protocol):
    """The format of one API, without I/O."""

    @property
    def api(self) -> str:
        """Name of the API, e.g. "messages"."""
        ...

    def body(self, request: LLMRequest, model: str, provider: str) -> dict[str, Any]:
        """Return the JSON of a request. Answers that came from `provider` go back as they are."""
        ...

    def response(self, raw: JsonObject, provider: str) -> LLMResponse:
        """Return the response for the provider's JSON, without attempts and raw events."""
        ...

    def assembly(self, provider: str) -> Assembly:
        """Return a new assembly for one stream."""
        ...

    def redact(self, raw: JsonObject) -> JsonObject:
        """Return an event or a body without credentials and identifiers of users."""
        ...


class Transport(Protocol):
    """Sends JSON through an SDK. Both methods raise LLMProviderError."""

    async def post(self, body: Mapping[str, Any], timeout_seconds: float) -> JsonObject:
        """Return the body of the answer."""
        ...

    def events(self, body: Mapping[str, Any], timeout_seconds: float) -> AsyncGenerator[JsonObject, None]:
        """Yield the events of a streamed answer."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class ModelProvider:
    """An LLMProvider of a wire format and a transport. `options` are added to the body of every request."""

    def __init__(self, name: str, model: str, wire: WireFormat, transport: Transport, options: JsonObject) -> None:
        self._name = name
        self._model = model
        self._wire = wire
        self._transport = transport
        self._options = options

    @property
    def name(self) -> str:
        """Name of the provider."""
        return self._name

    @property
    def model(self) -> str:
        """The model that is asked for."""
        return self._model

    def settings(self, request: LLMRequest) -> JsonObject:
        """Return the settings that the request sends."""
        content = ("model", "messages", "input", "system", "instructions", "tools")
        return {name: value for name, value in self._body(request).items() if name not in content}

    async def complete(self, request: LLMRequest, *, timeout_ms: int = PROVIDER_TIMEOUT_MS_DEFAULT) -> LLMResponse:
        """Return the model's answer."""
        started_at = time.monotonic()
        raw = await self._within(self._transport.post(self._body(request), timeout_ms / 1000), timeout_ms, started_at)
        return self._response(raw, [self._redact(raw)], started_at)

    async def stream(self, request: LLMRequest, *, timeout_ms: int = PROVIDER_TIMEOUT_MS_DEFAULT) -> AsyncGenerator[LLMStreamEvent, None]:
        """Yield the answer as it comes. `timeout_ms` covers the whole stream."""
        started_at = time.monotonic()
        assembly = self._wire.assembly(self._name)
        raw_events: list[JsonObject] = []
        transport_events = self._transport.events(self._body(request), timeout_ms / 1000)
        try:
            while True:
                try:
                    raw = await self._within(transport_events.__anext__(), timeout_ms, started_at)
                except StopAsyncIteration:
                    break
                redacted = self._redact(raw)
                raw_events.append(redacted)
                with _format_errors(self._name, redacted):
                    events = assembly.feed(raw)
                    _check_texts(text for event in events for text in _texts_of_event(event))
                for event in events:
                    yield dataclasses.replace(event, raw_event=redacted)
            final = assembly.result()
            if final is None:
                raise LLMProviderError(self._name, "incomplete_stream", f"the stream ended after {len(raw_events)} events")
            response = self._response(final, raw_events, started_at)
        except LLMProviderError as error:
            yield error_event(error)
            raise
        finally:
            await transport_events.aclose()
        yield completed_event(response)

    async def close(self) -> None:
        """Close the provider's connections."""
        await self._transport.close()

    def _redact(self, raw: JsonObject) -> JsonObject:
        # If redaction fails, the error has no raw event.
        with _format_errors(self._name, {}):
            return self._wire.redact(raw)

    def _body(self, request: LLMRequest) -> dict[str, Any]:
        return self._wire.body(request, self._model, self._name) | dict(self._options)

    async def _within(self, call: Awaitable[_Value], timeout_ms: int, started_at: float) -> _Value:
        try:
            return await asyncio.wait_for(call, max(0.0, started_at + timeout_ms / 1000 - time.monotonic()))
        except asyncio.TimeoutError:
            raise LLMProviderError(self._name, "timeout", f"no complete answer within {timeout_ms} ms") from None

    def _response(self, raw: JsonObject, raw_events: list[JsonObject], started_at: float) -> LLMResponse:
        with _format_errors(self._name, raw_events[-1]):
            response = self._wire.response(_well_formed(raw), self._name)
            _check_texts(_texts_of_response(response))
            _check_usage(response.usage)
        latency_ms = (time.monotonic() - started_at) * 1000
        return dataclasses.replace(
            response,
            provider_meta=(LLMProviderMeta(self._name, self._model, latency_ms, {"api": self._wire.api}),),
            raw_events=tuple(raw_events),
        )


def completed_event(response: LLMResponse) -> LLMStreamEvent:
    """Return the last event of a stream that gave a complete response."""
    chunk = LLMStreamChunk(response=response)
    return LLMStreamEvent("response.completed", chunk, response.segments, response.provider_meta, response.raw_events[-1])


def error_event(error: LLMProviderError, provider_meta: tuple[LLMProviderMeta, ...] = ()) -> LLMStreamEvent:
    """Return the event with which a stream reports its failure."""
    chunk = LLMStreamChunk(error=LLMStreamError(error.code, error.message))
    return LLMStreamEvent("response.error", chunk, (LLMSegment("error", error.message, {"code": error.code}),), provider_meta, error.raw)


@contextmanager
def _format_errors(provider: str, raw: JsonObject) -> Iterator[None]:
    """Turn errors of reading JSON of an unexpected shape into a failure of the provider."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        message = f"its answer lacks what its format requires ({type(error).__name__}: {error})"
        raise LLMProviderError(provider, "malformed", message, raw=raw) from error


def _well_formed(value: Any) -> Any:
    """Return JSON with U+FFFD in place of each lone surrogate, which no text in UTF-8 can hold. A pair becomes its character."""
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case Mapping():
            return {_well_formed(name): _well_formed(item) for name, item in value.items()}
        case list() | tuple():
            return [_well_formed(item) for item in value]
    return value


def _check_texts(texts: Iterable[object]) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"a {type(text).__name__} in place of a text")


def _check_usage(usage: LLMUsage | None) -> None:
    numbers = () if usage is None else (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens, usage.cached_input_tokens)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise TypeError(f"a {type(number).__name__} in place of a number of tokens")


def _texts_of_response(response: LLMResponse) -> Iterator[object]:
    yield from (response.id, response.model)
    yield from (segment.content for segment in response.segments)
    yield from (text for call in response.tool_calls for text in (call.call_id, call.name, call.arguments))


def _texts_of_event(event: LLMStreamEvent) -> Iterator[object]:
    chunk = event.chunk
    yield from (chunk.text_delta, chunk.reasoning_delta, chunk.refusal_delta, chunk.arguments_delta, chunk.call_id, chunk.tool_name)
    yield from (segment.content for segment in event.segments)
