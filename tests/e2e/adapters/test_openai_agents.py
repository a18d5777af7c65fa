"""Runs of the OpenAI Agents SDK whose requests change while a call waits, and calls whose arguments are not JSON.

Tests import the framework themselves: processes that only collect them are spared the seconds.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel_client import GavelClient

from tests.e2e.adapters.agents.agent import READ, TOOL, Depot
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


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_call_that_is_approved_too_early_keeps_its_decision(client: GavelClient, is_stored: bool) -> None:
    """A call whose interruption is approved before the verdict waits for the same decision when the model makes it again."""
    from agents import Agent, RunConfig, Runner, function_tool
    from gavel_client.adapters.openai_agents import gated_tool

    from tests.e2e.adapters.agents.openai_agents import ScriptedModel

    class Repeating(ScriptedModel):
        """Makes the call, under another id, until it has been made."""

        async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> Any:  # noqa: A002
            if not (isinstance(input, list) and "sent 1" in str(input[-1].get("output"))):
                response: Any = await super().get_response(system_instructions, "send it", *rest, **options)
                response.output[0].call_id = f"call-{len(input)}"
                return response
            return await super().get_response(system_instructions, input, *rest, **options)

    depot = Depot()

    @function_tool(name_override=TOOL)
    async def act(parcel: str, weight: float) -> str:
        """Act on a parcel."""
        return await depot.act(parcel)

    agent = Agent(name="sender", model=Repeating(TOOL, [HEAVY]), tools=[gated_tool(act, gate(client), task=lambda run: "task-1")])
    options: Any = {"run_config": RunConfig(tracing_disabled=True)}
    result = await Runner.run(agent, "send it", context={} if is_stored else object(), **options)
    for has_verdict in (False, True):
        (review,) = (await client.list_pending_reviews()).reviews
        if has_verdict:
            await client.resolve_review(review.decision_id, REVIEW_VERDICT_APPROVE, reviewer="pat", reason="looked at")
        state = result.to_state()
        for interruption in state.get_interruptions():
            state.approve(interruption)
        result = await Runner.run(agent, state, **options)
        assert has_verdict != bool(result.interruptions)
    assert ("done", ["1"]) == (result.final_output, depot.effects)
    page = await client.list_events(page_size=1000)
    assert 1 == sum(event.HasField("proposal") for event in page.envelopes)


@pytest.mark.parametrize(
    ("tool", "arguments", "output"),
    [
        (TOOL, '{"parcel": "1"', "its arguments are not a JSON object"),
        (TOOL, "[1]", "its arguments are not a JSON object"),
        (TOOL, " ", "its arguments give no usable action"),
        (READ, " ", "sent 1"),
    ],
)
async def test_arguments_that_are_not_json_are_refused(client: GavelClient, tool: str, arguments: str, output: str) -> None:
    """A call with malformed arguments, for which the SDK interrupts the run, does not run when it is approved; blanks are no arguments."""
    from agents import Agent, RunConfig, Runner, function_tool
    from gavel_client.adapters.openai_agents import gated_tool

    from tests.e2e.adapters.agents.openai_agents import ScriptedModel

    class Malforming(ScriptedModel):
        """Makes a call with the arguments of the test."""

        async def get_response(self, *rest: Any, **options: Any) -> Any:
            response: Any = await super().get_response(*rest, **options)
            if hasattr(response.output[0], "arguments"):
                response.output[0].arguments = arguments
            return response

    depot = Depot()

    @function_tool(name_override=tool)
    async def act() -> str:
        """Act on a parcel."""
        return await depot.act("1")

    agent = Agent(name="sender", model=Malforming(tool, [{}]), tools=[gated_tool(act, gate(client), task=lambda run: "task-1")])
    options: Any = {"run_config": RunConfig(tracing_disabled=True)}
    result = await Runner.run(agent, "send it", context={}, **options)
    state = result.to_state()
    for interruption in state.get_interruptions():
        state.approve(interruption)
    result = await Runner.run(agent, state, **options)
    (item,) = [item for item in result.new_items if item.type == "tool_call_output_item"]
    assert output in str(item.output)
    assert (["1"] if tool == READ else []) == depot.effects
