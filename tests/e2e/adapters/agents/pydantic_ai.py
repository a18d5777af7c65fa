"""An agent of Pydantic AI, with its FunctionModel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gavel_client.adapters.pydantic_ai import GavelCapability
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import DeferredToolRequests, DeferredToolResults, Tool, capture_run_messages
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tests.e2e.adapters.agents.agent import TOOL, Agent, Arguments, Turn


class PydanticAIAgent(Agent):
    """A run of an agent, in the conversation that has the name of the task. `others` are capabilities after that of Gavel."""

    others: ClassVar[Sequence[AbstractCapability[Any]]] = ()

    async def start(self, calls: Sequence[Arguments], tool: str = TOOL) -> Turn:
        """Run the agent."""

        def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            if any(isinstance(message, ModelResponse) for message in messages):
                return ModelResponse(parts=[TextPart("done")])
            return ModelResponse(parts=[ToolCallPart(tool, dict(one), tool_call_id=f"call-{number}") for number, one in enumerate(calls)])

        async def act(parcel: str, weight: float) -> str:
            """Act on a parcel."""
            return await self.depot.act(parcel)

        self._agent: Any = PydanticAgent(
            FunctionModel(answer),
            tools=[self.tool(act, tool)],
            capabilities=[GavelCapability(self.gate), *self.others],
            output_type=[str, DeferredToolRequests],
        )
        return await self._run("send it")

    def tool(self, act: Callable[..., Any], name: str) -> Tool[Any]:
        """Return the tool that calls `act`."""
        return Tool(act, name=name)

    async def resume(self) -> Turn:
        """Run the agent with an approval of every call that waits."""
        approvals = DeferredToolResults(approvals={call.tool_call_id: True for call in self._waiting})
        return await self._run(message_history=self._messages, deferred_tool_results=approvals)

    async def repeat(self) -> Turn:
        """Run the agent from the model's answer with the calls."""
        end = next(place for place, message in enumerate(self._messages) if isinstance(message, ModelResponse)) + 1
        return await self._run(message_history=self._messages[:end])

    async def _run(self, *arguments: Any, **options: Any) -> Turn:
        # A run that fails leaves its messages, as an application would store them.
        with capture_run_messages() as self._messages:
            result = await self._agent.run(*arguments, **options, conversation_id=self.task)
        self._waiting = result.output.approvals if isinstance(result.output, DeferredToolRequests) else []
        parts = [part for message in self._messages for part in message.parts if isinstance(part, ToolReturnPart)]
        return Turn([part.model_response_str() for part in parts], bool(self._waiting))
