"""The service layer: retries, failover, and JSON output, with the real SDKs on the transcripts."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gavel_client.llm import (
    InvalidOutputError,
    LLMFailedError,
    LLMRequest,
    LLMService,
    LLMStreamEvent,
    RetryPolicy,
    UnknownProviderEvent,
    UserMessage,
)
from gavel_client.llm.models import LLMProviderMeta
from gavel_client.rpc.backoff import Backoff

from tests.support.llm.transcripts import APIS, Reply, TranscriptServer, stream_frames

QUESTION = LLMRequest([UserMessage("-")])
ORDER = {
    "type": "object",
    "required": ["order", "amount"],
    "additionalProperties": False,
    "properties": {"order": {"type": "string"}, "amount": {"type": "number", "maximum": 100}},
}
OVERLOADED = Reply(status=529, body={"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
UNAUTHORIZED = Reply(status=401, body={"type": "error", "error": {"type": "authentication_error", "message": "no key"}})


@asynccontextmanager
async def service(server: TranscriptServer, apis: Sequence[str], model: str = "text", **limits: Any) -> AsyncIterator[LLMService]:
    """Yield a service of providers, one for each API, that are named after it."""
    providers = [server.provider(api, model, name=api) for api in apis]
    policy = RetryPolicy(**({"backoff": Backoff(1, 2.0, 5, random.Random(1))} | limits))
    async with LLMService(providers, policy=policy) as models:
        yield models


def outcomes(provider_meta: Sequence[LLMProviderMeta]) -> list[tuple[str, int, str]]:
    """Return the provider, the number and the failure of each attempt."""
    return [(meta.provider_name, meta.extra["attempt"], meta.extra.get("error", {}).get("code", "")) for meta in provider_meta]


async def read(models: LLMService) -> tuple[list[LLMStreamEvent], Exception | None]:
    """Return the events of a stream, and the error that ended it."""
    events: list[LLMStreamEvent] = []
    try:
        async for event in models.stream(QUESTION):
            events.append(event)  # noqa: PERF401 (the events before an error count)
    except LLMFailedError as error:
        return events, error
    return events, None


@pytest.mark.long
async def test_every_attempt_is_in_the_response(server: TranscriptServer) -> None:
    """A provider is asked again after a failure that may pass, then the next one; the response tells all attempts."""
    server.replies.extend([OVERLOADED, OVERLOADED])
    async with service(server, ["messages", "responses"]) as models:
        response = await models.complete(QUESTION)
    assert [("messages", 1, "overloaded"), ("messages", 2, "overloaded"), ("responses", 3, "")] == outcomes(response.provider_meta)
    assert {"code": "overloaded", "message": "overloaded_error: Overloaded", "status": 529} == response.provider_meta[0].extra["error"]
    assert "gpt-5.2-2026-05-14" == response.model
    assert ["messages", "messages", "responses"] == [request.api for request in server.requests]


async def test_the_advice_of_a_provider_is_followed(server: TranscriptServer) -> None:
    """The next attempt waits as long as the provider says; advice beyond the deadline is no attempt, but another provider."""
    server.replies.append(dataclasses.replace(OVERLOADED, headers={"retry-after-ms": "300"}))
    async with service(server, ["messages"]) as models:
        began_at = time.monotonic()
        await models.complete(QUESTION)
        assert time.monotonic() - began_at >= 0.3
    server.replies.append(dataclasses.replace(OVERLOADED, headers={"retry-after": "3600"}))
    async with service(server, ["messages", "responses"]) as models:
        assert [("messages", 1, "overloaded"), ("responses", 2, "")] == outcomes((await models.complete(QUESTION)).provider_meta)


async def test_a_refused_request_goes_to_the_next_provider_at_once(server: TranscriptServer) -> None:
    """Credentials that one provider refuses are not sent to it again."""
    server.replies.append(UNAUTHORIZED)
    async with service(server, ["messages", "chat_completions"]) as models:
        response = await models.complete(QUESTION)
    assert [("messages", 1, "authentication"), ("chat_completions", 2, "")] == outcomes(response.provider_meta)


async def test_no_provider_answers(server: TranscriptServer) -> None:
    """After the last attempt the error has all of them, and the last failure as its cause."""
    server.replies.extend([OVERLOADED, UNAUTHORIZED, OVERLOADED, OVERLOADED])
    async with service(server, ["messages", "responses"]) as models:
        with pytest.raises(LLMFailedError) as caught:
            await models.complete(QUESTION)
    expected = [
        ("messages", 1, "overloaded"),
        ("messages", 2, "authentication"),
        ("responses", 3, "overloaded"),
        ("responses", 4, "overloaded"),
    ]
    assert expected == outcomes(caught.value.provider_meta)
    assert "overloaded" in str(caught.value.__cause__)


async def test_the_deadline_ends_the_attempts(server: TranscriptServer) -> None:
    """A provider that does not answer costs the timeout of an attempt; the deadline of the call ends all."""
    server.replies.extend([Reply(hangs=True)] * 9)
    async with service(server, ["messages", "responses"], attempts_max=9, attempt_timeout_ms=200, deadline_ms=500) as models:
        with pytest.raises(LLMFailedError) as caught:
            await models.complete(QUESTION)
    assert {"timeout"} == {code for _, _, code in outcomes(caught.value.provider_meta)}
    assert 2 <= len(caught.value.provider_meta) <= 4


async def test_an_unknown_event_is_no_reason_to_ask_another(server: TranscriptServer) -> None:
    """UnknownProviderEvent reaches the caller: failover would hide that the adapter has to learn something."""
    async with service(server, ["messages", "responses"], "unknown_event") as models:
        with pytest.raises(UnknownProviderEvent):
            async for _ in models.stream(QUESTION):
                pass
    assert 1 == len(server.requests)


@pytest.mark.parametrize("api", APIS.values())
async def test_a_stream_that_breaks_before_its_first_event_is_asked_again(api: str, server: TranscriptServer) -> None:
    """Nothing reached the caller, so the stream of the next attempt is whole, and its response tells both."""
    server.replies.append(Reply("text", cut=0))
    async with service(server, [api]) as models:
        events, error = await read(models)
        complete = await models.complete(QUESTION)
    assert error is None
    response = events[-1].chunk.response
    assert response is not None
    assert complete.text == response.text == "".join(event.chunk.text_delta for event in events)
    assert [(api, 1, "incomplete_stream"), (api, 2, "")] == outcomes(response.provider_meta)
    assert response.provider_meta == events[-1].provider_meta


@pytest.mark.parametrize("api", APIS.values())
async def test_a_stream_never_fails_over_after_its_first_output(api: str, server: TranscriptServer) -> None:
    """Wherever a stream breaks after its first event, no other provider is asked: the caller gets one answer, or an error."""
    frames = stream_frames(api, "text")
    async with service(server, [api, "messages"]) as models:
        for count in range(1, len(frames)):
            server.requests.clear()
            server.replies.append(Reply("text", cut=sum(map(len, frames[:count]))))
            events, error = await read(models)
            response = events[-1].chunk.response
            if response is None:
                assert error is not None
                assert "response.error" == events[-1].event_type
                assert len(events) > 1, "a stream without output is asked again"
                assert 1 == len(server.requests)
            else:
                assert error is None
                assert response.text == "".join(event.chunk.text_delta for event in events)


async def test_a_caller_that_leaves_a_stream_closes_it(server: TranscriptServer) -> None:
    """A stream that is left holds no connection; the service goes on."""
    async with service(server, ["messages"]) as models:
        events = models.stream(QUESTION)
        async for _ in events:
            break
        await asyncio.wait_for(events.aclose(), 30)
        assert "stop" == (await models.complete(QUESTION)).finish_reason


@pytest.mark.parametrize("api", APIS.values())
async def test_json_is_decoded_and_checked(api: str, server: TranscriptServer) -> None:
    """The value matches the schema, which the provider got too, and comes with its response."""
    async with service(server, [api], "json_output") as models:
        answer = await models.complete_json(QUESTION, ORDER)
    assert {"order": "order/7", "amount": 40} == answer.value
    assert '{"order":"order/7","amount":40}' == answer.response.text
    assert json.dumps(ORDER) in json.dumps(server.requests[0].body)


@pytest.mark.parametrize("api", APIS.values())
async def test_output_that_does_not_match_is_sent_back(api: str, server: TranscriptServer) -> None:
    """The model is told what is wrong; the response has the attempts of both calls."""
    server.replies.append(Reply("text"))
    async with service(server, [api], "json_output") as models:
        answer = await models.complete_json(QUESTION, ORDER)
    assert [(api, 1, "invalid_output"), (api, 1, "")] == outcomes(answer.response.provider_meta)
    assert "the output is not JSON" in json.dumps(server.requests[1].body)


@pytest.mark.parametrize(
    ("name", "schema", "problem"),
    [
        ("json_output", {**ORDER, "required": ["order", "amount", "reason"]}, '"reason" is a required property'),
        ("json_output", {"type": "array"}, "output: the value is not of type"),
        ("length", ORDER, "the answer ended by length"),
        ("refusal", ORDER, "the answer ended by refusal"),
    ],
)
async def test_output_that_never_matches_is_an_error(name: str, schema: dict[str, Any], problem: str, server: TranscriptServer) -> None:
    """Answers that are cut, refused or of another shape are no values; the error has the last response and the problem."""
    async with service(server, ["messages"], name) as models:
        with pytest.raises(InvalidOutputError) as caught:
            await models.complete_json(QUESTION, schema)
    assert problem in caught.value.problem
    assert 2 == len(server.requests) == len(caught.value.response.provider_meta)


def test_invalid_limits_are_refused() -> None:
    """A service without providers, and limits that allow no attempt, are errors."""
    with pytest.raises(ValueError, match="at least one provider"):
        LLMService([])
    with pytest.raises(ValueError, match="attempts_max is 0"):
        RetryPolicy(attempts_max=0)
