"""An agent of LangChain on LangGraph, with a scripted chat model, in an event loop and synchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gavel_client.adapters.langgraph import GavelMiddleware
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from tests.e2e.adapters.agents.agent import TOOL, Agent, Arguments, SyncAgent, Turn


class ScriptedModel(GenericFakeChatModel):
    """A chat model that answers with the given messages."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        """Return the model: it knows its calls."""
        return self


class LangGraphAgent(Agent):
    """An agent whose graph runs in the event loop. `callbacks` are the graph's, `others` middleware that comes after that of Gavel."""

    callbacks: Sequence[BaseCallbackHandler] = ()
    others: Sequence[AgentMiddleware[Any, Any, Any]] = ()

    async def start(self, calls: Sequence[Arguments], tool: str = TOOL) -> Turn:
        """Run the graph from a message of a person."""
        requests = [{"name": tool, "args": dict(arguments), "id": f"call-{number}"} for number, arguments in enumerate(calls)]
        answers = iter([AIMessage("", tool_calls=requests), AIMessage("done"), AIMessage("done"), AIMessage("done")])
        self._graph = create_agent(
            ScriptedModel(messages=answers),
            tools=[self._tool(tool)],
            middleware=[GavelMiddleware(self.gate), *self.others],
            checkpointer=InMemorySaver(),
        )
        self._config: Any = {"configurable": {"thread_id": self.task}, "callbacks": self.callbacks}
        return await self._run({"messages": [{"role": "user", "content": "send it"}]}, self._config)

    async def resume(self) -> Turn:
        """Resume the graph with a value that says yes."""
        return await self._run(Command(resume={interrupt.id: "approved" for interrupt in self._interrupts}), self._config)

    async def repeat(self) -> Turn:
        """Run the graph from the checkpoint before the calls."""
        before = next(state for state in self._graph.get_state_history(self._config) if "tools" in state.next)
        return await self._run(None, before.config)

    async def _run(self, content: Any, config: Any) -> Turn:
        return self._turn(await self._graph.ainvoke(content, config))

    def _turn(self, state: dict[str, Any]) -> Turn:
        self._interrupts = state.get("__interrupt__", ())
        messages = [message for message in state["messages"] if isinstance(message, ToolMessage)]
        return Turn([str(message.content) for message in messages], bool(self._interrupts))

    def _tool(self, name: str) -> StructuredTool:
        async def act(parcel: str, weight: float) -> str:
            """Act on a parcel."""
            return await self.depot.act(parcel)

        return StructuredTool.from_function(coroutine=act, name=name)


class SyncLangGraphAgent(SyncAgent, LangGraphAgent):
    """An agent whose graph runs in a thread, with a SyncGate."""

    async def _run(self, content: Any, config: Any) -> Turn:
        self._loop = asyncio.get_running_loop()
        return self._turn(await asyncio.to_thread(self._graph.invoke, content, config))

    def _tool(self, name: str) -> StructuredTool:
        def act(parcel: str, weight: float) -> str:
            """Act on a parcel."""
            return asyncio.run_coroutine_threadsafe(self.depot.act(parcel), self._loop).result()

        return StructuredTool.from_function(act, name=name)
