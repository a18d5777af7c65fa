"""The diagnostic of each call of a model, on a real server: what it tells, and what it does not."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.diagnostic_pb2 import LlmInvocation
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError, content_hash, fact_envelope
from gavel_client.evidence import EvidenceStore
from gavel_client.llm import (
    InvocationRecorder,
    LLMContext,
    LLMFailedError,
    LLMRequest,
    LLMService,
    LLMSettings,
    RetryPolicy,
    SystemMessage,
    UnknownProviderEvent,
    UserMessage,
)
from gavel_client.llm.invocations import output_json, prompt_json
from gavel_client.rpc.backoff import Backoff
from gavel_client.values import from_struct

from tests.integration.services.world import AGENT, ORDERS
from tests.support.llm.transcripts import Reply, TranscriptServer, stream_frames

PRIVATE = "the customer's diagnosis"
QUESTION = LLMRequest([SystemMessage("Be brief."), UserMessage(PRIVATE)], settings=LLMSettings(temperature=0.25, max_output_tokens=500))
OVERLOADED = Reply(status=529, body={"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


def service(client: GavelClient, models: TranscriptServer, model: str = "text", evidence: EvidenceStore | None = None) -> LLMService:
    """Return a service of two providers that records its calls."""
    providers = [models.provider("messages", model), models.provider("responses", model)]
    policy = RetryPolicy(backoff=Backoff(1, 2.0, 5, random.Random(1)))
    return LLMService(providers, recorder=InvocationRecorder(client, AGENT, evidence=evidence), policy=policy)


async def invocation(client: GavelClient, trace_id: str) -> tuple[Envelope, LlmInvocation]:
    """Return the only diagnostic of a trace."""
    events = [event for event in (await client.get_trace(trace_id)).envelopes if event.HasField("agent_diagnostic")]
    [event] = events
    assert "LlmInvocationCommitted" == event.agent_diagnostic.kind
    return event, event.agent_diagnostic.llm_invocation


async def test_a_call_is_recorded(client: GavelClient, models: TranscriptServer) -> None:
    """The event names models, provider, settings, tokens, attempts and hashes; the response names the event; there is no text."""
    complaint = (await client.publish_event(fact_envelope("order/7", ORDERS, key="order.complaint", value="broken"))).envelope
    models.replies.append(OVERLOADED)
    async with service(client, models) as target:
        response = await target.complete(QUESTION, context=LLMContext.of(complaint))
    event, recorded = await invocation(client, complaint.trace_id)
    assert ("order/7", complaint.event_id, AGENT.id) == (event.subject, event.causation_id, event.producer.id)
    entry = {"event_id": event.event_id, "sequence_number": event.sequence_number, "trace_id": event.trace_id}
    assert entry == response.extras["gavel_invocation"]
    assert ("text", "claude-opus-4-6", "anthropic") == (recorded.requested_model, recorded.llm_model, recorded.llm_provider)
    assert 0.25 == recorded.llm_temperature
    assert {"max_tokens": 500} == from_struct(recorded.settings)
    assert ("msg_01A", 1064, 14, 1078) == (
        recorded.response_id,
        recorded.input_token_count,
        recorded.output_token_count,
        recorded.token_count,
    )
    assert [("anthropic", "text", "OVERLOADED"), ("anthropic", "text", "")] == [
        (attempt.llm_provider, attempt.requested_model, attempt.error_code) for attempt in recorded.attempts
    ]
    prompt = {"messages": [{"role": "system", "text": "Be brief."}, {"role": "user", "text": PRIVATE}]}
    output = {"text": "Damaged goods are refunded within 30 days. ✅", "tool_calls": []}
    assert (content_hash(prompt), content_hash(output)) == (recorded.prompt_hash, recorded.output_hash)
    assert ("", "") == (recorded.evidence_uri, recorded.evidence_hash)
    assert PRIVATE.encode() not in event.SerializeToString()
    assert b"Damaged" not in event.SerializeToString()


async def test_equal_prompts_have_equal_hashes_with_every_provider(client: GavelClient, models: TranscriptServer) -> None:
    """Model, provider and settings do not count in the hash of a prompt."""
    recorder = InvocationRecorder(client, AGENT)
    hashes = set()
    for number, (api, temperature) in enumerate([("messages", 0.1), ("responses", None), ("chat_completions", 0.9)]):
        request = LLMRequest(QUESTION.messages, settings=LLMSettings(temperature=temperature))
        async with LLMService([models.provider(api, "text")], recorder=recorder) as target:
            await target.complete(request, context=LLMContext("order/7", f"trace-{number}"))
        _, recorded = await invocation(client, f"trace-{number}")
        assert (temperature is not None) == recorded.HasField("llm_temperature")
        hashes.add(recorded.prompt_hash)
    assert 1 == len(hashes)


async def test_captured_texts_are_evidence(client: GavelClient, models: TranscriptServer, tmp_path: Path) -> None:
    """With an evidence store, prompt and output are kept there under the hash in the event; the event still has no text."""
    store = EvidenceStore(str(tmp_path))
    context = LLMContext("order/7", "trace-1", version_binding=VersionBinding(planner_version="7"))
    async with service(client, models, "parallel_tools", store) as target:
        response = await target.complete(QUESTION, context=context)
    event, recorded = await invocation(client, "trace-1")
    assert {"prompt": prompt_json(QUESTION), "output": output_json(response)} == json.loads(store.get(recorded.evidence_hash))
    assert rfc8785.dumps(json.loads(store.get(recorded.evidence_hash))) == store.get(recorded.evidence_hash)
    assert recorded.evidence_uri.startswith("file://")
    assert PRIVATE.encode() not in event.SerializeToString()
    assert "7" == event.version_binding.planner_version


async def test_a_call_without_a_context_is_a_trace_of_its_own(client: GavelClient, models: TranscriptServer) -> None:
    """The event is about the agent, and the response names its trace."""
    async with service(client, models) as target:
        response = await target.complete(QUESTION)
    event, _ = await invocation(client, response.extras["gavel_invocation"]["trace_id"])
    assert "agent/agent-1" == event.subject


async def test_a_streamed_call_is_recorded_before_its_response(client: GavelClient, models: TranscriptServer) -> None:
    """The last event of a stream names the recorded event."""
    async with service(client, models) as target:
        events = [event async for event in target.stream(QUESTION, context=LLMContext("order/7", "trace-1"))]
    recorded, _ = await invocation(client, "trace-1")
    assert events[-1].chunk.response is not None
    assert recorded.event_id == events[-1].chunk.response.extras["gavel_invocation"]["event_id"]


async def test_failed_calls_are_recorded(client: GavelClient, models: TranscriptServer) -> None:
    """A call that no provider answered leaves its attempts, without an answering model and an output."""
    models.replies.extend([OVERLOADED] * 4)
    async with service(client, models) as target:
        with pytest.raises(LLMFailedError):
            await target.complete(QUESTION, context=LLMContext("order/7", "trace-1"))
    _, recorded = await invocation(client, "trace-1")
    assert ["OVERLOADED"] * 4 == [attempt.error_code for attempt in recorded.attempts]
    assert ("", "", "") == (recorded.llm_model, recorded.llm_provider, recorded.output_hash)


async def test_a_call_with_an_unknown_event_is_recorded(client: GavelClient, models: TranscriptServer) -> None:
    """The log shows that the adapter did not understand the provider."""
    async with service(client, models, "unknown_block") as target:
        with pytest.raises(UnknownProviderEvent):
            await target.complete(QUESTION, context=LLMContext("order/7", "trace-1"))
    _, recorded = await invocation(client, "trace-1")
    assert ["UNKNOWN_EVENT"] == [attempt.error_code for attempt in recorded.attempts]


async def test_a_stream_that_is_left_is_recorded(client: GavelClient, models: TranscriptServer) -> None:
    """A caller that stops reading leaves a record all the same."""
    async with service(client, models) as target:
        events: Any = target.stream(QUESTION, context=LLMContext("order/7", "trace-1"))
        async for _ in events:
            break
        await events.aclose()
    _, recorded = await invocation(client, "trace-1")
    assert ["CANCELLED"] == [attempt.error_code for attempt in recorded.attempts]


async def test_a_call_that_is_cancelled_is_recorded(client: GavelClient, models: TranscriptServer) -> None:
    """A task that is cancelled while the provider is silent leaves a record of the attempt."""
    models.replies.append(Reply(hangs=True))
    async with service(client, models) as target:
        call = asyncio.create_task(target.complete(QUESTION, context=LLMContext("order/7", "trace-1")))
        while not models.requests:  # noqa: ASYNC110 (the server of transcripts runs in a thread)
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    _, recorded = await invocation(client, "trace-1")
    assert ["CANCELLED"] == [attempt.error_code for attempt in recorded.attempts]


async def test_a_call_that_fails_in_the_client_is_recorded(
    client: GavelClient, models: TranscriptServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody foresaw reaches the caller, and leaves a record too."""
    provider = models.provider("messages", "text")

    async def fail(*arguments: object, **fields: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(provider, "complete", fail)
    async with LLMService([provider], recorder=InvocationRecorder(client, AGENT)) as target:
        with pytest.raises(RuntimeError, match="a bug"):
            await target.complete(QUESTION, context=LLMContext("order/7", "trace-1"))
    _, recorded = await invocation(client, "trace-1")
    assert ["INTERNAL"] == [attempt.error_code for attempt in recorded.attempts]


async def test_a_stream_that_breaks_after_output_is_recorded(client: GavelClient, models: TranscriptServer) -> None:
    """The record of a broken stream has the one attempt."""
    frames = stream_frames("messages", "text")
    models.replies.append(Reply("text", cut=sum(map(len, frames[:5]))))
    async with service(client, models) as target:
        with pytest.raises(LLMFailedError):
            async for _ in target.stream(QUESTION, context=LLMContext("order/7", "trace-1")):
                pass
    _, recorded = await invocation(client, "trace-1")
    assert ["INCOMPLETE_STREAM"] == [attempt.error_code for attempt in recorded.attempts]


async def test_an_answer_that_cannot_be_recorded_is_not_given_out(client: GavelClient, models: TranscriptServer) -> None:
    """An answer whose event the server refuses does not reach the caller: the call fails closed."""
    async with service(client, models) as target:
        with pytest.raises(GavelError, match="subject"):
            await target.complete(QUESTION, context=LLMContext("not a subject"))
    assert 1 == len(models.requests)
