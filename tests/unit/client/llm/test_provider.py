"""The provider layer turns every message of a provider into a response or an error of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest
from gavel_client.llm import (
    AssistantMessage,
    LLMError,
    LLMProviderError,
    LLMRequest,
    LLMResponse,
    LLMService,
    LLMToolCall,
    ModelProvider,
    UserMessage,
    attempts,
    provider,
)
from gavel_client.llm.provider import WireFormat
from gavel_client.llm.providers.anthropic_messages import MessagesFormat
from gavel_client.llm.providers.chat_completions import ChatCompletionsFormat
from gavel_client.llm.providers.openai_responses import ResponsesFormat
from hypothesis import given
from hypothesis import strategies as st

from tests.support.llm.transcripts import stream_events, transcript, transcripts

QUESTION = LLMRequest([UserMessage("-")])
FORMATS: dict[str, WireFormat] = {
    "responses": ResponsesFormat(),
    "chat_completions": ChatCompletionsFormat("max_completion_tokens", usage_in_streams=True),
    "messages": MessagesFormat(),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


class Memory:
    """A transport that answers from memory."""

    def __init__(self, body: Mapping[str, Any], events: list[Any]) -> None:
        self._body = body
        self._events = events

    async def post(self, body: Mapping[str, Any], timeout_seconds: float) -> Mapping[str, Any]:
        """Return the body."""
        return self._body

    async def events(self, body: Mapping[str, Any], timeout_seconds: float) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the events."""
        for event in self._events:
            yield event

    async def close(self) -> None:
        """Do nothing."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values within JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return JSON with another value at a path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


async def ask(model: ModelProvider) -> tuple[LLMResponse | LLMError, LLMResponse | LLMError]:
    """Return what `complete` and `stream` give."""
    try:
        complete: LLMResponse | LLMError = await model.complete(QUESTION)
    except LLMError as error:
        complete = error
    events = []
    try:
        async for event in model.stream(QUESTION):
            events.append(event)  # noqa: PERF401 (the events before an error count)
    except LLMError as error:
        return complete, error
    assert "response.completed" == events[-1].event_type
    assert events[-1].chunk.response is not None
    return complete, events[-1].chunk.response


class Clock:
    """Stands for the module `time`: a clock that only the test advances, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now


class Slow(Memory):
    """A transport whose answers take `seconds` on a clock. With `fails` it then refuses the request."""

    def __init__(self, name: tuple[str, str], clock: Clock, seconds: float, *, fails: bool = False) -> None:
        super().__init__(json.loads(transcript(*name, ".json").read_bytes()), stream_events(*name))
        self._clock = clock
        self._seconds = seconds
        self._fails = fails

    async def post(self, body: Mapping[str, Any], timeout_seconds: float) -> Mapping[str, Any]:
        """Return the body after the time."""
        self._clock.now += self._seconds
        if self._fails:
            raise LLMProviderError("p", "authentication", "no key")
        return await super().post(body, timeout_seconds)

    async def events(self, body: Mapping[str, Any], timeout_seconds: float) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the events over the time."""
        for event in self._events:
            self._clock.now += self._seconds / len(self._events)
            yield event


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the provider and the service layer."""
    clock = Clock()
    for module in (provider, attempts):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize("api", FORMATS)
async def test_latency(api: str, clock: Clock) -> None:
    """The latency of an attempt is the time from its request to the complete answer, streamed or not."""
    model = ModelProvider("p", "m", FORMATS[api], Slow((api, "text"), clock, 0.25), {})
    complete, streamed = await ask(model)
    for answer in (complete, streamed):
        assert isinstance(answer, LLMResponse)
        assert [pytest.approx(250.0)] == [meta.latency_ms for meta in answer.provider_meta]


async def test_latencies_of_all_attempts(clock: Clock) -> None:
    """A failed attempt has a latency of its own, which is not part of that of the next one."""
    transports = [Slow(("messages", "text"), clock, 0.5, fails=True), Slow(("messages", "text"), clock, 0.25)]
    async with LLMService([ModelProvider("p", "m", FORMATS["messages"], one, {}) for one in transports]) as models:
        answer = await models.complete(QUESTION)
    assert [pytest.approx(500.0), pytest.approx(250.0)] == [meta.latency_ms for meta in answer.provider_meta]


@given(st.data(), st.sampled_from(transcripts()), JSON)
def test_altered_answers(data: st.DataObject, name: tuple[str, str], value: Any) -> None:
    """One value anywhere in a body and in a stream is replaced: there is a response of proper types, or an error of the layer."""
    api, _ = name
    body = json.loads(transcript(*name, ".json").read_bytes())
    events = stream_events(*name)
    altered_body = replaced(body, data.draw(st.sampled_from(places(body)[1:])), value)
    number = data.draw(st.integers(0, len(events) - 1))
    altered = replaced(events[number], data.draw(st.sampled_from(places(events[number])[1:])), value)
    model = ModelProvider("p", "m", FORMATS[api], Memory(altered_body, [*events[:number], altered, *events[number + 1 :]]), {})
    for answer in asyncio.run(ask(model)):
        if isinstance(answer, LLMResponse):
            texts = [
                answer.id,
                answer.model,
                answer.text,
                *(part for call in answer.tool_calls for part in (call.call_id, call.name, call.arguments)),
            ]
            assert {str} == {type(text) for text in texts}
            assert answer.usage is None or isinstance(answer.usage.total_tokens, int)
            assert all(isinstance(segment.content, str) for segment in answer.segments)


@given(st.data(), st.sampled_from(transcripts()))
def test_events_out_of_order(data: st.DataObject, name: tuple[str, str]) -> None:
    """Events that are missing, doubled or in another order give a response, or an error of the layer."""
    events = stream_events(*name)
    order = data.draw(st.lists(st.integers(0, len(events) - 1), max_size=len(events)) | st.permutations(range(len(events))))
    asyncio.run(ask(ModelProvider("p", "m", FORMATS[name[0]], Memory({}, [events[number] for number in order]), {})))


@pytest.mark.parametrize("api", FORMATS)
def test_an_empty_stream_is_an_error(api: str) -> None:
    """No event is no answer."""
    complete, streamed = asyncio.run(ask(ModelProvider("p", "m", FORMATS[api], Memory({}, []), {})))
    assert isinstance(complete, LLMProviderError)
    assert isinstance(streamed, LLMProviderError)
    assert ("malformed", "incomplete_stream") == (complete.code, streamed.code)


async def test_lone_surrogates_are_replaced() -> None:
    """A lone surrogate, which no text in UTF-8 can hold, becomes U+FFFD everywhere in a response; two halves of a character become it."""
    body = json.loads(transcript("messages", "text", ".json").read_bytes())
    call = {"type": "tool_use", "id": "1", "name": "find", "input": {"\ud800": ["a\udfff"]}}
    text = {"type": "text", "text": "\ud83d, \ud83d\ude00"}
    model = ModelProvider("p", "m", FORMATS["messages"], Memory({**body, "content": [text, call]}, []), {})

    response = await model.complete(QUESTION)

    assert ("\ufffd, 😀", '{"\ufffd":["a\ufffd"]}') == (response.text, response.tool_calls[0].arguments)
    assert json.dumps({key: value for key, value in response.to_dict().items() if key != "raw_events"}, ensure_ascii=False).encode()


async def test_arguments_with_too_many_levels() -> None:
    """Arguments that no parser reads make an answer malformed, and go to another provider as they are, as invalid JSON."""
    body = json.loads(transcript("messages", "text", ".json").read_bytes())
    arguments: dict[str, Any] = {}
    for _ in range(100_000):
        arguments = {"a": arguments}
    block = {"type": "tool_use", "id": "1", "name": "find", "input": arguments}
    model = ModelProvider("p", "m", FORMATS["messages"], Memory({**body, "content": [block]}, []), {})
    text = '{"a":' * 100_000
    answer = LLMResponse("1", "m", "", "tool_calls", (LLMToolCall("1", "find", text),))

    with pytest.raises(LLMProviderError) as failure:
        await model.complete(QUESTION)
    sent = FORMATS["messages"].body(LLMRequest([UserMessage("-"), AssistantMessage(answer)]), "m", "p")

    assert "malformed" == failure.value.code
    assert {"INVALID_JSON": text} == sent["messages"][1]["content"][0]["input"]
