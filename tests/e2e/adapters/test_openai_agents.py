"""Runs of the OpenAI Agents SDK whose number of requests changes while a call waits.

Tests import the framework themselves: processes that only collect them are spared the seconds.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel_client import GavelClient

from tests.e2e.adapters.agents.agent import TOOL, Depot
from tests.e2e.adapters.test_leases import gate, statuses

HEAVY = {"parcel": "1", "weight": 50.0}


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_call_beside_an_agent_as_a_tool_is_asked_about_as_one(client: GavelClient, is_stored: bool) -> None:
    """A call that waits beside the run of another agent, which counts its requests for the same run, stays one call when it is resumed."""
    from agents import Agent, RunConfig, Runner, RunState, function_tool
    from gavel_client.adapters.openai_agents import gated_tool
    from openai.types.responses import ResponseFunctionToolCall

    from tests.e2e.adapters.agents.openai_agents import ScriptedModel

    class Model(ScriptedModel):
        """Calls the other agent and the tool in one answer."""

        async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> Any:  # noqa: A002
            response = await super().get_response(system_instructions, input, *rest, **options)
            if isinstance(response.output[0], ResponseFunctionToolCall):
                asked = ResponseFunctionToolCall(name="ask", arguments='{"input": "-"}', call_id="call-9", type="function_call")
                response.output.insert(0, asked)
            return response

    depot = Depot()

    @function_tool(name_override=TOOL)
    async def act(parcel: str, weight: float) -> str:
        """Act on a parcel."""
        return await depot.act(parcel)

    class Talking(ScriptedModel):
        """Calls nothing."""

        async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> Any:  # noqa: A002
            return await super().get_response(system_instructions, [{"type": "function_call_output"}], *rest, **options)

    other = Agent(name="other", model=Talking(TOOL, []))
    tools: list[Any] = [other.as_tool("ask", "Asks another agent"), gated_tool(act, gate(client), task=lambda run: "task-1")]
    agent = Agent(name="sender", model=Model(TOOL, [HEAVY]), tools=tools)
    options: Any = {"run_config": RunConfig(tracing_disabled=True)}
    context = {} if is_stored else object()
    result = await Runner.run(agent, "send it", context=context, **options)
    assert result.interruptions
    (review,) = (await client.list_pending_reviews()).reviews
    await client.resolve_review(review.decision_id, REVIEW_VERDICT_APPROVE, reviewer="pat", reason="looked at")
    state = result.to_state()
    if is_stored:  # another process has its own tool
        agent.tools[1] = gated_tool(act, gate(client), task=lambda run: "task-1")
        state = await RunState.from_json(agent, json.loads(json.dumps(state.to_json())))
    for interruption in state.get_interruptions():
        state.approve(interruption)
    result = await Runner.run(agent, state, **options)
    assert ("done", ["1"]) == (result.final_output, depot.effects)
    assert ["STARTED", "SUCCESS"] == await statuses(client)
    page = await client.list_events(page_size=1000)
    assert 1 == sum(event.HasField("proposal") for event in page.envelopes)
