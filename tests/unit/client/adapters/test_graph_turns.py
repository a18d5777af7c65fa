"""The turns of agents of LangChain within other graphs.

Tests import the framework themselves: processes that only collect them are spared the seconds.
"""

from __future__ import annotations

from typing import Any

from gavel_client.gate import Allowed, Answer, Call, Gate, Pending


class AskedGate(Gate):
    """A gate that notes the turns of the calls, and lets the first `pending` calls wait."""

    def __init__(self, pending: int = 0) -> None:
        self.turns: list[str] = []
        self._pending = pending

    async def __call__(self, call: Call) -> Answer:
        """Note a call."""
        assert "task-1" == call.task
        self.turns.append(call.turn)
        return Pending("decision", "HEAVY") if len(self.turns) <= self._pending else Allowed(None)


def model(*answers: tuple[str, ...]) -> Any:
    """Return a model whose answers call these tools, and which ends after each with a text, for ever."""
    from langchain_core.messages import AIMessage

    from tests.e2e.adapters.agents.langgraph import ScriptedModel

    def messages() -> Any:
        while True:
            for tools in answers:
                yield AIMessage("", tool_calls=[{"name": tool, "args": {}, "id": f"call-{number}"} for number, tool in enumerate(tools)])
            yield AIMessage("done")

    return ScriptedModel(messages=messages())


def agent(gate: Gate) -> Any:
    """Return an agent that makes one call."""
    from gavel_client.adapters.langgraph import GavelMiddleware
    from langchain.agents import create_agent
    from langchain_core.tools import StructuredTool

    async def send() -> str:
        """Send it."""
        return "sent"

    return create_agent(model(("send",)), tools=[StructuredTool.from_function(coroutine=send)], middleware=[GavelMiddleware(gate)])


def config() -> Any:
    """Return the configuration of the thread."""
    return {"configurable": {"thread_id": "task-1"}}


async def test_agents_of_one_graph_have_turns_of_their_own() -> None:
    """Equal calls of two agents, and of one agent that is visited twice, are calls of their own; a call that is resumed keeps its turn."""
    from langchain_core.messages import HumanMessage
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.types import Command

    gate = AskedGate(pending=1)
    builder: Any = StateGraph(MessagesState)
    builder.add_node("one", agent(gate))
    builder.add_node("other", agent(gate))
    builder.add_edge(START, "one")
    builder.add_edge("one", "other")
    builder.add_conditional_edges("other", lambda state: "one" if len(gate.turns) < 5 else END)
    graph = builder.compile(checkpointer=InMemorySaver())
    state = await graph.ainvoke({"messages": [HumanMessage("send it", id="message-1")]}, config())
    assert "__interrupt__" in state
    await graph.ainvoke(Command(resume=True), config())
    first, resumed, *others = gate.turns
    assert first == resumed
    assert (3, 4) == (len(others), len({first, *others}))


async def test_a_worker_that_is_called_twice_has_turns_of_its_own() -> None:
    """Equal calls of an agent that the tool of another agent runs again, in one answer and in the next, are calls of their own."""
    from langchain.agents import create_agent
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import StructuredTool
    from langgraph.checkpoint.memory import InMemorySaver

    gate = AskedGate()

    async def work() -> str:
        """Let the worker do it, twice."""
        for _ in range(2):
            await agent(gate).ainvoke({"messages": [HumanMessage("send it", id="message-1")]})
        return "done"

    tools = [StructuredTool.from_function(coroutine=work)]
    supervisor = create_agent(model(("work", "work"), ("work",)), tools=tools, checkpointer=InMemorySaver())
    await supervisor.ainvoke({"messages": [HumanMessage("do it", id="message-0")]}, config())
    assert (6, 6) == (len(gate.turns), len(set(gate.turns)))


async def test_an_agent_of_its_own_has_the_turns_of_its_messages() -> None:
    """The turn of an agent that is in no other graph is the message of the person and the number of the answer."""
    from gavel_client.adapters.langgraph import GavelMiddleware
    from langchain.agents import create_agent
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import StructuredTool
    from langgraph.checkpoint.memory import InMemorySaver

    gate = AskedGate()

    async def send() -> str:
        """Send it."""
        return "sent"

    graph = create_agent(
        model(("send",), ("send",)),
        tools=[StructuredTool.from_function(coroutine=send)],
        middleware=[GavelMiddleware(gate)],
        checkpointer=InMemorySaver(),
    )
    await graph.ainvoke({"messages": [HumanMessage("send it", id="message-1")]}, config())
    assert ["message-1/1", "message-1/2"] == gate.turns
