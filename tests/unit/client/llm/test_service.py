"""The recording of a call of a model whose caller leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client.llm import LLMRequest, LLMResponse, LLMService, UserMessage
from gavel_client.llm.invocations import Invocation, LLMContext
from gavel_client.llm.models import LLMProviderMeta

QUESTION = LLMRequest([UserMessage("-")])


class Provider:
    """A provider that answers at once."""

    name = model = "scripted"

    def settings(self, request: LLMRequest) -> dict[str, Any]:
        """Return no settings."""
        return {}

    async def complete(self, request: LLMRequest, *, timeout_ms: int) -> LLMResponse:
        """Return an answer."""
        return LLMResponse("answer-1", self.model, "yes", "stop", provider_meta=(LLMProviderMeta(self.name, self.model, 1.0),))


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
