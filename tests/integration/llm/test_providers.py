"""The provider layer with the real SDKs, on the transcripts."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import pytest
from gavel_client.llm import (
    AssistantMessage,
    LLMError,
    LLMProviderError,
    LLMRequest,
    LLMResponse,
    LLMSettings,
    LLMStreamEvent,
    LLMTool,
    ModelProvider,
    SystemMessage,
    ToolMessage,
    UnknownProviderEvent,
    UserMessage,
    anthropic_messages,
    chat_completions,
    openai_responses,
)
from gavel_client.llm.models import EventType
from pydantic import TypeAdapter

from tests.support.llm.transcripts import APIS, Reply, TranscriptServer, stream_events, stream_frames, transcript, transcripts

QUESTION = LLMRequest([UserMessage("-")])


@asynccontextmanager
async def provider(server: TranscriptServer, api: str, model: str, **options: Any) -> AsyncIterator[ModelProvider]:
    """Yield a provider, and close its connections."""
    target = server.provider(api, model, **options)
    try:
        yield target
    finally:
        await target.close()


async def collect(target: ModelProvider, timeout_ms: int = 60_000) -> list[LLMStreamEvent]:
    """Return the events of a stream."""
    return [event async for event in target.stream(QUESTION, timeout_ms=timeout_ms)]


async def read(target: ModelProvider) -> tuple[list[LLMStreamEvent], LLMError | None]:
    """Return the events of a stream, and the error that ended it."""
    events: list[LLMStreamEvent] = []
    try:
        async for event in target.stream(QUESTION):
            events.append(event)  # noqa: PERF401 (the events before an error count)
    except LLMError as error:
        return events, error
    return events, None


@pytest.mark.long
@pytest.mark.parametrize(("api", "name"), transcripts())
async def test_a_collected_stream_equals_the_answer_in_one_piece(api: str, name: str, server: TranscriptServer) -> None:
    """The last event has the response that `complete` returns; deltas and completed calls add up to it."""
    async with provider(server, api, name) as target:
        complete = await target.complete(QUESTION)
        events = await collect(target)
    response = events[-1].chunk.response
    assert complete == response
    assert "response.completed" == events[-1].event_type
    assert complete.text == "".join(event.chunk.text_delta for event in events)
    assert list(complete.tool_calls) == [event.chunk.tool_call for event in events if event.chunk.tool_call]
    assert [segment for segment in complete.segments if segment.type == "citation"] == [
        segment for event in events if event.event_type == "response.citation.added" for segment in event.segments
    ]
    assert "".join(segment.content for segment in complete.segments if segment.type == "reasoning") == "".join(
        event.chunk.reasoning_delta for event in events
    )
    assert {event.event_type for event in events} <= set(get_args(EventType))


@pytest.mark.parametrize(("api", "name"), transcripts())
async def test_raw_events_are_those_of_the_provider(api: str, name: str, server: TranscriptServer) -> None:
    """The response keeps every event of the provider, in order, but for credentials and identifiers of users."""
    async with provider(server, api, name) as target:
        streamed = (await collect(target))[-1].chunk.response
        complete = await target.complete(QUESTION)
    assert streamed is not None
    assert [_without_secrets(event) for event in stream_events(api, name)] == list(streamed.raw_events)
    assert [_without_secrets(json.loads(transcript(api, name, ".json").read_bytes()))] == list(complete.raw_events)
    assert "secret" not in json.dumps([streamed.to_dict(), complete.to_dict()])


@pytest.mark.long
@pytest.mark.parametrize(("api", "name"), transcripts())
async def test_a_cut_stream_is_an_error_or_complete(api: str, name: str, server: TranscriptServer) -> None:
    """A stream that is cut at any event, or within one, gives the complete response or raises; it never gives less."""
    frames = stream_frames(api, name)
    async with provider(server, api, name) as target:
        complete = await target.complete(QUESTION)
        ends = [0, *itertools.accumulate(len(frame) for frame in frames)]
        # Before an event, and by turns somewhere within it and before its last byte.
        cuts = [
            cut
            for number, (end, frame) in enumerate(zip(ends, frames, strict=False))
            for cut in (end, end + (1 + end % (len(frame) - 1) if number % 2 else len(frame) - 1))
        ]
        outcomes = [await _outcome(target, server, Reply(name, cut=cut, aborts=bool(cut % 2))) for cut in dict.fromkeys(cuts)]
    # A cut within a character is "malformed".
    assert [] == [outcome for outcome in outcomes if outcome not in (complete, "incomplete_stream", "connection", "malformed")]
    assert "incomplete_stream" in outcomes


async def _outcome(target: ModelProvider, server: TranscriptServer, reply: Reply) -> LLMResponse | str:
    """Return the response of a stream, or the code of its failure, which its last event has too."""
    server.replies.append(reply)
    events, error = await read(target)
    last = events[-1]
    if error is None:
        assert last.chunk.response is not None
        return last.chunk.response
    assert isinstance(error, LLMProviderError)
    assert last.chunk.error is not None
    assert ("response.error", error.code) == (last.event_type, last.chunk.error.code)
    return error.code


@pytest.mark.parametrize("api", APIS.values())
async def test_a_cut_within_a_character_is_an_error(api: str, server: TranscriptServer) -> None:
    """Half a character of UTF-8 at the end of a stream is a failure like any other cut."""
    cut = transcript(api, "text", ".sse").read_bytes().index("✅".encode()) + 1
    async with provider(server, api, "text") as target:
        assert await _outcome(target, server, Reply("text", cut=cut)) in ("malformed", "incomplete_stream")


def _without_secrets(raw: dict[str, Any]) -> dict[str, Any]:
    """Return JSON of the Responses API without what identifies users or authenticates to servers of tools; other JSON as it is."""
    if "response" in raw:
        return raw | {"response": _without_secrets(raw["response"])}
    if raw.get("object") != "response":
        return raw
    tools = [{name: value for name, value in tool.items() if name not in ("headers", "authorization")} for tool in raw["tools"]]
    return {name: value for name, value in raw.items() if name not in ("user", "safety_identifier", "prompt_cache_key")} | {"tools": tools}


async def _failure(target: ModelProvider) -> LLMProviderError:
    with pytest.raises(LLMProviderError) as caught:
        await target.complete(QUESTION)
    return caught.value


@pytest.mark.parametrize("api", APIS.values())
async def test_an_error_within_a_stream_ends_it(api: str, server: TranscriptServer) -> None:
    """An error after the first output is the event response.error, followed by an exception with the same code."""
    codes = {"responses": "rate_limit", "chat_completions": "server", "messages": "overloaded"}
    async with provider(server, api, "error") as target:
        events, error = await read(target)
    assert isinstance(error, LLMProviderError)
    assert codes[api] == error.code
    assert "Let me" == "".join(event.chunk.text_delta for event in events)[:6]
    assert ("response.error", codes[api]) == (events[-1].event_type, events[-1].segments[0].metadata["code"])
    assert events[-1].raw_event is not None


async def test_a_failed_response_is_an_error(server: TranscriptServer) -> None:
    """A response of status failed raises in both forms."""
    async with provider(server, "responses", "failed") as target:
        assert "server" == (await _failure(target)).code
        with pytest.raises(LLMProviderError, match="An error occurred"):
            await collect(target)


@pytest.mark.parametrize(
    ("api", "name", "what", "value"),
    [
        ("responses", "unknown_event", "event", "response.hologram.delta"),
        ("responses", "unknown_item", "output item", "computer_call"),
        ("chat_completions", "unknown_field", "field of a message", "hologram"),
        ("chat_completions", "unknown_finish", "finish_reason", "bored"),
        ("messages", "unknown_event", "event", "hologram"),
        ("messages", "unknown_delta", "delta", "hologram_delta"),
        ("messages", "unknown_block", "content block", "hologram"),
        ("messages", "unnamed_event", "event", None),
    ],
)
async def test_what_an_adapter_does_not_list_raises(api: str, name: str, what: str, value: object, server: TranscriptServer) -> None:
    """Unknown events, deltas, items and reasons raise UnknownProviderEvent, streamed or not; none is skipped or guessed."""
    async with provider(server, api, name) as target:
        with pytest.raises(UnknownProviderEvent) as caught:
            await collect(target)
        assert (what, value) == (caught.value.what, caught.value.value)
        if transcript(api, name, ".json").exists():
            with pytest.raises(UnknownProviderEvent) as caught:
                await target.complete(QUESTION)
            assert (what, value) == (caught.value.what, caught.value.value)


@pytest.mark.parametrize("api", APIS.values())
@pytest.mark.parametrize(
    ("status", "kind", "code", "is_retryable"),
    [
        (400, "invalid_request_error", "invalid_request", False),
        (401, "authentication_error", "authentication", False),
        (404, "not_found_error", "invalid_request", False),
        (429, "rate_limit_error", "rate_limit", True),
        (500, "api_error", "server", True),
        (529, "overloaded_error", "overloaded", True),
    ],
)
async def test_statuses_have_codes(api: str, status: int, kind: str, code: str, is_retryable: bool, server: TranscriptServer) -> None:
    """A refused or failed call has a code of the closed set, its status, and the provider's advice; the SDK does not retry it."""
    body = {"type": "error", "error": {"type": kind, "message": "told", "code": None, "param": None}}
    async with provider(server, api, "text") as target:
        server.replies.append(Reply(status=status, body=body, headers={"retry-after": "3"}))
        error = await _failure(target)
    assert (code, status, 3_000, is_retryable) == (error.code, error.status, error.retry_after_ms, error.is_retryable)
    assert "told" in error.message
    assert 1 == len(server.requests)


async def test_an_account_without_credit_is_not_retried(server: TranscriptServer) -> None:
    """OpenAI reports a used-up quota with the status of a rate limit; it is no rate limit."""
    async with provider(server, "responses", "text") as target:
        body = {"error": {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"}}
        server.replies.append(Reply(status=429, body=body))
        error = await _failure(target)
    assert ("quota", False) == (error.code, error.is_retryable)


@pytest.mark.parametrize("api", APIS.values())
async def test_a_silent_provider_times_out(api: str, server: TranscriptServer) -> None:
    """No answer within the timeout is a failure with the code timeout."""
    async with provider(server, api, "text") as target:
        server.replies.extend([Reply(hangs=True), Reply(hangs=True)])
        with pytest.raises(LLMProviderError) as caught:
            await target.complete(QUESTION, timeout_ms=300)
        assert "timeout" == caught.value.code
        with pytest.raises(LLMProviderError) as caught:
            await collect(target, timeout_ms=300)
        assert "timeout" == caught.value.code


@pytest.mark.parametrize("api", APIS.values())
async def test_an_unreachable_provider_is_a_failure(api: str) -> None:
    """A refused connection has the code connection."""
    with TranscriptServer() as gone:
        target = gone.provider(api, "text")
    assert "connection" == (await _failure(target)).code
    await target.close()


async def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key the failure says what to set, when the provider is made or at the first call, as the SDK finds out."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for make in (openai_responses, chat_completions):
        with pytest.raises(LLMProviderError, match="OPENAI_API_KEY") as caught:
            make("m")
        assert "authentication" == caught.value.code
    keyless = anthropic_messages("m", base_url="http://127.0.0.1:1")
    with pytest.raises(LLMProviderError, match="ANTHROPIC_API_KEY") as caught:
        await keyless.complete(QUESTION)
    assert "authentication" == caught.value.code
    assert "authentication" == (await _stream_error(keyless)).code
    await keyless.close()


async def _stream_error(target: ModelProvider) -> LLMProviderError:
    _, error = await read(target)
    assert isinstance(error, LLMProviderError)
    return error


CONVERSATION = LLMRequest(
    [SystemMessage("Be brief."), UserMessage("Refund order/7?")],
    tools=[LLMTool("orders_status", "Status", {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]})],
    settings=LLMSettings(temperature=0.2, top_p=0.9, max_output_tokens=500, reasoning_effort="low"),
    output_schema={"type": "object", "properties": {"amount": {"type": "number"}}},
)


@pytest.mark.parametrize("api", APIS.values())
@pytest.mark.parametrize("answered_by", APIS.values())
async def test_a_conversation_goes_on_with_any_provider(api: str, answered_by: str, server: TranscriptServer) -> None:
    """Messages, earlier answers of any provider, tool outputs and settings form a request that the SDK's own types accept."""
    async with provider(server, answered_by, "parallel_tools") as first:
        answer = await first.complete(CONVERSATION)
    outputs = [ToolMessage(call.call_id, call.name, "delivered") for call in answer.tool_calls]
    follow_up = dataclasses.replace(CONVERSATION, messages=[*CONVERSATION.messages, AssistantMessage(answer), *outputs])
    async with provider(server, api, "text") as target:
        await target.complete(follow_up)
    body = server.requests[-1].body
    _validate(api, body)
    text = json.dumps(body)
    for call in answer.tool_calls:
        assert 2 == text.count(call.call_id)
    if api == answered_by == "messages":
        assert answer.extras["anthropic_content"] == body["messages"][1]["content"]
        assert "EqQBCgIYAhIkSIG==" in text
    if api == answered_by == "responses":
        assert answer.extras["openai_output"] == body["input"][2:5]
        assert "gAAAAABk-encrypted" in text


async def test_items_go_back_to_their_own_provider_only(server: TranscriptServer) -> None:
    """Another provider of the same API, which does not know the ids of the items, gets text and tool calls."""
    async with provider(server, "responses", "parallel_tools", name="azure") as first:
        answer = await first.complete(CONVERSATION)
    async with provider(server, "responses", "text") as target:
        await target.complete(dataclasses.replace(CONVERSATION, messages=[*CONVERSATION.messages, AssistantMessage(answer)]))
    assert ["function_call", "function_call"] == [item["type"] for item in server.requests[-1].body["input"][2:]]
    assert "gAAAAABk-encrypted" not in json.dumps(server.requests[-1].body)


def _validate(api: str, body: dict[str, Any]) -> None:
    """Check a request against the SDK's own type of parameters."""
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming as MessageParams
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatParams
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming as ResponseParams

    types: dict[str, Any] = {"messages": MessageParams, "chat_completions": ChatParams, "responses": ResponseParams}
    params = TypeAdapter(types[api])
    params.validate_python(body)
    known = {name for part in types[api].__mro__ if hasattr(part, "__annotations__") for name in part.__annotations__}
    # The SDK of Anthropic no longer types the temperature, which models still take.
    assert set() == set(body) - known - {"temperature", "top_p"}


async def test_options_reach_the_provider(server: TranscriptServer) -> None:
    """Options are fields of the request, and part of the recorded settings."""
    async with provider(server, "messages", "text", options={"thinking": {"type": "adaptive"}}) as target:
        await target.complete(QUESTION)
        assert {"type": "adaptive"} == server.requests[-1].body["thinking"]
        assert {"max_tokens": 8192, "thinking": {"type": "adaptive"}} == target.settings(QUESTION)


async def test_servers_without_newer_parts_of_chat_completions(server: TranscriptServer) -> None:
    """The older name of the limit and streams without usage are supported, if the caller says so."""
    async with provider(server, "chat_completions", "text", max_tokens_field="max_tokens", usage_in_streams=False) as target:
        cut = sum(len(frame) for frame in stream_frames("chat_completions", "text")[:-2])
        server.replies.append(Reply("text", cut=cut))
        response = (await collect(target))[-1].chunk.response
    assert response is not None
    assert ("Damaged goods are refunded within 30 days. ✅", None) == (response.text, response.usage)
    assert 8192 == server.requests[-1].body["max_tokens"]
    assert {"max_completion_tokens", "stream_options"}.isdisjoint(server.requests[-1].body)


async def test_a_stream_that_is_left_is_closed(server: TranscriptServer) -> None:
    """A caller that stops reading releases the connection, so the provider can be used again."""
    async with provider(server, "messages", "text") as target:
        for _ in range(3):
            events = target.stream(QUESTION)
            async for _event in events:
                break
            await asyncio.wait_for(events.aclose(), 30)
        assert "stop" == (await target.complete(QUESTION)).finish_reason


@pytest.mark.parametrize(
    ("package", "call"),
    [("openai", "openai_responses('m')"), ("openai", "chat_completions('m')"), ("anthropic", "anthropic_messages('m')")],
)
def test_without_the_sdk_the_extra_is_named(package: str, call: str) -> None:
    """gavel_client.llm imports without SDKs; a provider that lacks its package names the extra to install."""
    code = f"import sys; sys.modules[{package!r}] = None; from gavel_client.llm import *; {call}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert f"pip install 'gavel-client[{package}]'" in result.stderr.splitlines()[-1]
    assert "MissingPackageError" in result.stderr.splitlines()[-1]


def test_the_import_loads_no_sdk() -> None:
    """Importing the layers imports no package of a provider."""
    code = "import sys, gavel_client.llm; print({'openai', 'anthropic', 'jsonschema_rs'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "set()" == result.stdout.strip()
