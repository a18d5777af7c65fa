"""The tools of an agent when Gavel does not take what they record. tests/integration/services/llm has the rest."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import grpc
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_pb2 import ToolContract
from gavel_client import GavelError
from gavel_client.llm import AgentRun, LLMToolCall
from gavel_client.llm.agent_tools import RuntimeTool
from gavel_client.tools import ToolOutcome

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
        return ToolOutcome(ok=True, data={"status": "delivered"}, error=None, started_at=now, finished_at=now, **events, **fields)


async def test_a_tool_whose_observation_is_refused_has_acted() -> None:
    """The model gets the result of a tool whose observation Gavel refuses, with a note, and nothing that says that it was not called."""
    client: Any = Refusing()
    runtime: Any = Runtime()
    run = AgentRun(client, Producer(type=PRODUCER_TYPE_AGENT, id="support-agent"), "order/7", "trace-1", "run-1")
    tool = RuntimeTool(
        runtime,
        ToolContract(name="orders.status"),
        "Status",
        observe=lambda data: {"order.status": data["status"]},
        subject=lambda _: "order/7",
    )
    result = await tool.run(LLMToolCall("call-1", "orders_status", "{}"), {}, run)
    output, _, note = result.output.partition("\n")
    assert ({"status": "delivered"}, None) == (json.loads(output), result.error)
    assert "the observation of this result is not recorded" in note
    assert ("call-1", "result-1") == result.event_ids
    assert [] == run.evidence
