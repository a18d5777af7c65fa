"""An agent of the OpenAI Agents SDK, with a scripted Model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from agents import Agent as SdkAgent
from agents import FunctionTool, Model, ModelResponse, RunConfig, Runner, RunState, Usage, function_tool
from gavel_client.adapters.openai_agents import gated_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from tests.e2e.adapters.agents.agent import TOOL, Agent, Arguments, Turn


class ScriptedModel(Model):
    """A model that makes calls once and then says that it is done."""

    def __init__(self, tool: str, calls: Sequence[Arguments]) -> None:
        self._tool = tool
        self._calls = calls

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> ModelResponse:  # noqa: A002
        """Return the calls to a person's message, and the end to their outputs."""
        output: list[Any] = [
            ResponseFunctionToolCall(name=self._tool, arguments=json.dumps(dict(one)), call_id=f"call-{number}", type="function_call")
            for number, one in enumerate(self._calls)
        ]
        if isinstance(input, list) and any(item.get("type") == "function_call_output" for item in input):
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            output = [ResponseOutputMessage(id="message", content=[text], role="assistant", status="completed", type="message")]
        return ModelResponse(output=output, usage=Usage(requests=1), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        """Not used by the suite."""
        raise NotImplementedError


class OpenAIAgent(Agent):
    """A run of an agent. Its state is stored as JSON while it is paused."""

    async def start(self, calls: Sequence[Arguments], tool: str = TOOL) -> Turn:
        """Run the agent."""
        gated = gated_tool(self._tool(tool), self.gate, task=lambda run: str(run.context["task"]))
        self._agent = SdkAgent(name="sender", model=ScriptedModel(tool, calls), tools=[gated])
        return await self.repeat()

    async def resume(self) -> Turn:
        """Approve every interruption, and run the stored state."""
        state = await RunState.from_json(self._agent, json.loads(self._stored))
        for interruption in state.get_interruptions():
            state.approve(interruption)
        return await self._run(state)

    async def repeat(self) -> Turn:
        """Run the agent from the start."""
        return await self._run("send it", {"task": self.task})

    async def _run(self, content: Any, context: Any = None) -> Turn:
        result = await Runner.run(self._agent, content, context=context, run_config=RunConfig(tracing_disabled=True))
        self._stored = json.dumps(result.to_state().to_json())
        texts = [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]
        return Turn(texts, bool(result.interruptions))

    def _tool(self, name: str) -> FunctionTool:
        @function_tool(name_override=name)
        async def act(parcel: str, weight: float) -> str:
            """Act on a parcel."""
            return await self.depot.act(parcel)

        return act
