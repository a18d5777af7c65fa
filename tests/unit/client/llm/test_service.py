"""The record of a call of a model: also if its caller leaves, and never missing because it cannot be built."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client.llm import (
    InvalidOutputError,
    InvalidRequestError,
    LLMRequest,
    LLMResponse,
    LLMService,
    LLMStreamChunk,
    LLMStreamEvent,
    RetryPolicy,
    UserMessage,
)
from gavel_client.llm.invocations import Invocation, LLMContext, evidence_of
from gavel_client.llm.models import LLMProviderMeta
from gavel_client.rpc.backoff import Backoff

QUESTION = LLMRequest([UserMessage("-")])


class Provider:
    """A provider that answers at once, with each of `texts` in turn."""

    name = model = "scripted"

    def __init__(self, texts: Sequence[str] = ("yes",), settings: Mapping[str, Any] | None = None) -> None:
        self.asked = 0
        self._texts = texts
        self._settings = settings or {}

    def settings(self, request: LLMRequest) -> Mapping[str, Any]:
        """Return the settings."""
        return self._settings

    async def complete(self, request: LLMRequest, *, timeout_ms: int) -> LLMResponse:
        """Return an answer."""
        self.asked += 1
        text = self._texts[(self.asked - 1) % len(self._texts)]
        meta = LLMProviderMeta(self.name, self.model, 1.0)
        return LLMResponse("answer-1", self.model, text, "stop", provider_meta=(meta,), raw_events=({},))

    async def stream(self, request: LLMRequest, *, timeout_ms: int) -> AsyncGenerator[LLMStreamEvent, None]:
        """Yield the last event of a stream."""
        yield LLMStreamEvent("response.completed", LLMStreamChunk(response=await self.complete(request, timeout_ms=timeout_ms)))


class Recorder:
    """A recorder that records once `open` is set; with `problem` it raises that."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.recorded: list[Invocation] = []
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self._problem = problem

    async def record(self, invocation: Invocation, context: LLMContext | None) -> Envelope:
        """Record a call."""
        self.asked.set()
        await self.open.wait()
        if self._problem is not None:
            raise self._problem
        self.recorded.append(invocation)
        return Envelope(event_id="event-1")


async def leave(recorder: Recorder) -> asyncio.Future[LLMResponse]:
    """Ask a model, and cancel the caller while its answer is being recorded."""
    provider: Any = Provider()
    recording: Any = recorder
    caller = asyncio.ensure_future(LLMService([provider], recorder=recording).complete(QUESTION))
    await recorder.asked.wait()
    caller.cancel()
    await asyncio.sleep(0)
    return caller


async def test_a_caller_that_leaves_does_not_lose_the_record_of_an_answer() -> None:
    """A caller that is cancelled while an answer is recorded ends once the event of the call is in the log."""
    recorder = Recorder()
    caller = await leave(recorder)
    recorder.open.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    (invocation,) = recorder.recorded
    assert invocation.response is not None


async def test_a_record_that_fails_after_its_caller_has_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A caller that is cancelled learns of no other error than its own; a record that fails meanwhile is logged."""
    recorder = Recorder(OSError("the disk is full"))
    caller = await leave(recorder)
    recorder.open.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert "a cancelled call of a model is not recorded: OSError" in caplog.text


async def test_a_record_that_takes_long_is_given_up(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A caller that is cancelled does not wait for a record for ever; that it is missing is logged."""
    monkeypatch.setattr("gavel_client.llm.service.LAST_RECORD_SECONDS", 0.01)
    caller = await leave(Recorder())
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert "is not recorded within" in caplog.text


def _deep(levels: int) -> dict[str, Any]:
    return {"a": _deep(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    ("request_", "settings"),
    [
        (LLMRequest([UserMessage("-")], output_schema={"maximum": 2**63 - 1}), {}),
        (LLMRequest([UserMessage("a \ud800")]), {}),
        (QUESTION, {"thinking": _deep(30)}),
        (QUESTION, {"temperature": "hot"}),
    ],
)
async def test_a_request_that_cannot_be_recorded_is_not_sent(request_: LLMRequest, settings: dict[str, Any]) -> None:
    """A request whose record cannot be built fails before any provider is asked, with `complete` and `stream`."""
    provider, recorder = Provider(settings=settings), Recorder()
    service = _service(provider, recorder)

    with pytest.raises(InvalidRequestError, match="the request cannot be recorded, so it is not sent"):
        await service.complete(request_)
    with pytest.raises(InvalidRequestError):
        await anext(service.stream(request_))

    assert (0, []) == (provider.asked, recorder.recorded)


@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_that_cannot_be_recorded_is_a_failed_attempt(streams: bool) -> None:
    """An answer without a hash counts as malformed: the call is recorded with the failed attempt, and the next answer is given out."""
    provider, recorder = Provider(["\ud800", "yes"]), Recorder()
    recorder.open.set()
    service = _service(provider, recorder)

    if streams:
        [event] = [event async for event in service.stream(QUESTION)]
        response = event.chunk.response
    else:
        response = await service.complete(QUESTION)

    assert response is not None
    assert ("yes", 2) == (response.text, provider.asked)
    codes = [meta.extra.get("error", {}).get("code") for meta in recorder.recorded[0].provider_meta]
    assert ["malformed", None] == codes


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 900 + "]" * 900, '"\\ud800"'])
async def test_an_output_that_cannot_be_checked(text: str) -> None:
    """JSON with too many levels, and lone surrogates, are outputs that do not match."""
    with pytest.raises(InvalidOutputError):
        await LLMService([_any(Provider([text]))]).complete_json(QUESTION, {"type": "object"})


@pytest.mark.parametrize(
    ("schema", "problem"),
    [({"maximum": 2**63 - 1}, r"schema\.maximum"), ({"pattern": "("}, "regex"), ({"$ref": "https://example.org/answer"}, "example.org")],
)
async def test_a_schema_that_cannot_be_checked_is_not_sent(schema: dict[str, Any], problem: str) -> None:
    """A schema of the output that no Struct can hold, or that cannot be used, fails before any provider is asked."""
    provider = Provider()
    with pytest.raises(ValueError, match=problem):
        await LLMService([_any(provider)]).complete_json(QUESTION, schema)
    assert 0 == provider.asked


async def test_the_evidence_of_the_largest_integers() -> None:
    """A request with an integer that its hash can hold can also be kept as evidence."""
    recorder = Recorder()
    recorder.open.set()
    await _service(Provider(), recorder).complete(LLMRequest([UserMessage("-")], output_schema={"maximum": 2**53}))
    assert b'"maximum":9007199254740992' in evidence_of(recorder.recorded[0])


def _service(provider: Provider, recorder: Recorder) -> LLMService:
    return LLMService([_any(provider)], recorder=_any(recorder), policy=RetryPolicy(backoff=Backoff(1, 1.0, 1)))


def _any(fake: object) -> Any:
    return fake
