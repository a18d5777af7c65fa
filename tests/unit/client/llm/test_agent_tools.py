"""The tools of an agent: what they record, and when Gavel does not take it. tests/integration/services/llm has the rest."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import grpc
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import PublishEventResponse
from gavel.v1.tool_pb2 import ToolContract
from gavel_client import GavelError
from gavel_client.envelopes import content_hash
from gavel_client.llm import AgentRun, AssistantMessage, LLMRequest, LLMResponse, LLMToolCall
from gavel_client.llm.agent import message_of
from gavel_client.llm.agent_tools import FinalAnswer, RuntimeTool
from gavel_client.llm.invocations import output_json, prompt_json
from gavel_client.tools import ToolOutcome

CALLED_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TEXTS = ("requested_tool", "canonical_tool", "tool_version", "provider_id", "execution_id", "arguments_hash", "result_hash")
HASHES = ("request_schema_hash", "response_schema_hash", "evidence_uri", "evidence_hash")


class Refusing:
    """A client whose server refuses every event."""

    async def publish_event(self, envelope: Envelope) -> None:
        """Refuse an event."""
        raise GavelError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_EVENT", "the fact is unknown")


class Runtime:
    """A runtime whose tool returns a status."""

    async def invoke(self, *_: object) -> ToolOutcome:
        """Call the tool."""
        now = datetime.now(UTC)
        fields: dict[str, Any] = dict.fromkeys((*TEXTS, *HASHES), "")
        events: dict[str, Any] = {"call": Envelope(event_id="call-1"), "result": Envelope(event_id="result-1")}
        events["call"].recorded_at.FromDatetime(CALLED_AT)
        return ToolOutcome(ok=True, data={"status": "delivered"}, error=None, started_at=now, finished_at=now, **events, **fields)


def run_of(client: Any) -> AgentRun:
    """Return a run of an agent on order/7."""
    return AgentRun(client, Producer(type=PRODUCER_TYPE_AGENT, id="support-agent"), "order/7", "trace-1", "run-1")


def status_tool() -> RuntimeTool:
    """Return a tool that observes the status of the order in its arguments."""
    runtime: Any = Runtime()
    return RuntimeTool(
        runtime,
        ToolContract(name="orders.status"),
        "Status",
        observe=lambda data: {"order.status": data["status"]},
        subject=lambda arguments: arguments["order"],
    )


async def test_a_tool_whose_observation_is_refused_has_acted() -> None:
    """The model gets the result of a tool whose observation Gavel refuses, with a note, and nothing that says that it was not called."""
    run = run_of(Refusing())
    result = await status_tool().run(LLMToolCall("call-1", "orders_status", "{}"), {"order": "order/7"}, run)
    output, _, note = result.output.partition("\n")
    assert ({"status": "delivered"}, None) == (json.loads(output), result.error)
    assert "the observation of this result is not recorded" in note
    assert ("call-1", "result-1") == result.event_ids
    assert [] == run.evidence.references


class Recording:
    """A client whose server records every event."""

    def __init__(self) -> None:
        self.events: list[Envelope] = []

    async def publish_event(self, envelope: Envelope) -> PublishEventResponse:
        """Record an event."""
        recorded = Envelope()
        recorded.CopyFrom(envelope)
        recorded.sequence_number = len(self.events) + 1
        self.events.append(recorded)
        return PublishEventResponse(envelope=recorded)


async def test_observations_of_a_run() -> None:
    """An observation is dated when its call was recorded; a run cites the latest one of each value, however often its tool is called."""
    client = Recording()
    run, tool = run_of(client), status_tool()
    for order in ("order/7", "order/8", "order/7"):
        await tool.run(LLMToolCall("call-1", "orders_status", "{}"), {"order": order}, run)
    assert [2, 3] == [one.sequence_number for one in run.evidence.references]
    assert [CALLED_AT] * 3 == [event.observation.observed_at.ToDatetime(UTC) for event in client.events]


class Paying:
    """A runtime whose tool has a secret in its arguments and in its result."""

    async def invoke(self, *arguments: object) -> ToolOutcome:
        """Call the tool."""
        outcome = await Runtime().invoke(*arguments)
        return dataclasses.replace(outcome, data={"token": "top-secret", "status": "paid"}, redactions=("/arguments/card", "/result/token"))


async def test_redactions_apply_to_the_record_of_a_call() -> None:
    """The model gets the whole result; prompt and output, as they are hashed and kept, lack what the contract redacts."""
    client: Any = Recording()
    runtime: Any = Paying()
    contract = ToolContract(name="orders.pay", redactions=["/arguments/card", "/result/token"])
    tool = RuntimeTool(runtime, contract, "Pay")
    run = AgentRun(client, Producer(type=PRODUCER_TYPE_AGENT, id="support-agent"), "order/7", "trace-1", "run-1")
    calls = [LLMToolCall("1", "orders_pay", '{"card": "4111", "order": "é"}'), LLMToolCall("2", "orders_pay", '{"card": "4111"')]
    calls.append(LLMToolCall("3", "orders_pay", '{"card": "4111", "order": "\\ud83d"}'))
    answer = LLMResponse("1", "m", "", "tool_calls", tuple(calls))

    result = await tool.run(calls[0], {"card": "4111", "order": "é"}, run)
    request = LLMRequest([AssistantMessage(answer), message_of(result)], [tool.definition])

    assert {"token": "top-secret", "status": "paid"} == json.loads(request.messages[1].output)  # type: ignore[union-attr]
    recorded = prompt_json(request)["messages"]
    assert {"token": "[redacted]", "status": "paid"} == json.loads(recorded[1]["text"])
    texts = ('{"card": "[redacted]", "order": "é"}', "[redacted]", '{"card": "[redacted]", "order": "\\ud83d"}')
    expected = [{"name": "orders_pay", "arguments": text} for text in texts]
    assert expected == recorded[0]["tool_calls"] == output_json(answer, request.tools)["tool_calls"]
    assert content_hash(output_json(answer, request.tools))


async def test_arguments_that_cannot_be_checked_are_invalid() -> None:
    """Arguments with lone surrogates or too many levels are a result with E_ARGS, whose text can be sent."""
    answer = FinalAnswer({"type": "object", "properties": {"a": {"enum": [1]}}, "additionalProperties": False})
    client: Any = Recording()
    run = AgentRun(client, Producer(type=PRODUCER_TYPE_AGENT, id="support-agent"), "order/7", "trace-1", "run-1")
    for text in ('{"\\ud800": 1}', f'{{"a": {"[" * 500 + "]" * 500}}}'):
        result = await answer.run(LLMToolCall("call-1", "final_answer", text), json.loads(text), run)
        assert ("E_ARGS", True) == (result.error, bool(result.output.encode()))
