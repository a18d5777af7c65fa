"""Middleware of LangChain around that of Gavel, on graphs in an event loop and synchronous ones, and calls that wait beside each other.

Tests import the framework themselves: processes that only collect them are spared the seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from gavel_client import GavelClient, SyncGavelClient
from gavel_client.gate import Gate, SyncGate

from tests.e2e.adapters.agents.agent import TOOL, Depot, Turn, actions
from tests.e2e.adapters.test_leases import statuses
from tests.e2e.world import PATIENT_MS

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware

LIGHT = {"parcel": "1", "weight": 2.0}
SETTINGS: Any = {"agent": "sender", "executor": "tools", "deadline_ms": PATIENT_MS}


class Case:
    """An agent whose middleware comes after that of Gavel."""

    def __init__(self, client: GavelClient, sync_client: SyncGavelClient, is_sync: bool) -> None:
        self._gate = SyncGate(sync_client, actions(), **SETTINGS) if is_sync else Gate(client, actions(), **SETTINGS)
        self._is_sync = is_sync
        self._client = client
        self.depot = Depot()

    async def start(self, *others: AgentMiddleware[Any, Any, Any]) -> Turn:
        """Send a light parcel."""
        from tests.e2e.adapters.agents.langgraph import LangGraphAgent, SyncLangGraphAgent

        agent = (SyncLangGraphAgent if self._is_sync else LangGraphAgent)(self._gate, self.depot, "task-1")
        agent.others = others
        return await agent.start([LIGHT])

    async def statuses(self) -> Sequence[str]:
        """Return the statuses of the executions."""
        return await statuses(self._client)


@pytest.fixture(params=["async", "sync"])
def case(client: GavelClient, sync_client: SyncGavelClient, request: pytest.FixtureRequest) -> Case:
    """An agent in an event loop, and a synchronous one."""
    return Case(client, sync_client, request.param == "sync")


def middleware(change: Any) -> AgentMiddleware[Any, Any, Any]:
    """Return middleware that makes a call by `change`, a function of the request and a synchronous or asynchronous handler."""
    from langchain.agents.middleware import AgentMiddleware

    class Changing(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return change(request, handler)

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            answer = change(request, handler)
            return await answer if hasattr(answer, "__await__") else answer

    return Changing()


@pytest.mark.long
async def test_a_middleware_that_retries_acts_once(case: Case) -> None:
    """A tool that raises after its effect is not run again by ToolRetryMiddleware, and is reported as PARTIAL."""
    from langchain.agents.middleware import ToolRetryMiddleware

    case.depot.problem = ConnectionResetError("lost")
    retrying = ToolRetryMiddleware(max_retries=2, retry_on=(ConnectionResetError,), initial_delay=0.0, jitter=False)
    turn = await case.start(retrying)
    assert "it has run already" in turn.text
    assert (["1"], ["STARTED", "PARTIAL"]) == (case.depot.effects, await case.statuses())


async def test_a_middleware_that_changes_the_arguments_runs_nothing(case: Case) -> None:
    """A call whose arguments a middleware changes after the approval does not run, and is reported as without effect."""

    def change(request: Any, handler: Any) -> Any:
        return handler(request.override(tool_call={**request.tool_call, "args": {**LIGHT, "weight": 500.0}}))

    turn = await case.start(middleware(change))
    assert "changed its arguments after the approval" in turn.text
    assert ([], ["STARTED", "FAILED"]) == (case.depot.effects, await case.statuses())


async def test_a_middleware_that_answers_is_not_reported_as_a_success(case: Case) -> None:
    """A call that a middleware answers in place of the tool is reported as of unknown effect."""
    from langchain.messages import ToolMessage

    def answer(request: Any, handler: Any) -> Any:
        return ToolMessage("from a cache", name=TOOL, tool_call_id=request.tool_call["id"])

    turn = await case.start(middleware(answer))
    assert ["from a cache"] == list(turn.texts)
    assert ([], ["STARTED", "PARTIAL"]) == (case.depot.effects, await case.statuses())


async def test_a_middleware_that_leaves_the_call_changes_nothing(case: Case) -> None:
    """A call that other middleware hands on acts once and succeeds."""
    turn = await case.start(middleware(lambda request, handler: handler(request)))
    assert ["sent 1"] == list(turn.texts)
    assert (["1"], ["STARTED", "SUCCESS"]) == (case.depot.effects, await case.statuses())


async def test_arguments_that_langgraph_injects_are_not_compared(client: GavelClient) -> None:
    """A tool that gets the state of the graph runs; an argument of its schema that a middleware adds is a change."""
    from tests.e2e.adapters.agents.langgraph import LangGraphAgent

    depot = Depot()

    class Agent(LangGraphAgent):
        def _tool(self, name: str) -> Any:
            return injected_tool(name, depot)

    def change(request: Any, handler: Any) -> Any:
        return handler(request.override(tool_call={**request.tool_call, "args": {**LIGHT, "express": True}}))

    for task, others, effects in (("task-1", (), ["1"]), ("task-2", (middleware(change),), ["1"])):
        agent = Agent(Gate(client, actions(), **SETTINGS), depot, task)
        agent.others = others
        await agent.start([LIGHT])
        assert effects == depot.effects


@pytest.mark.parametrize("is_sync", [False, True])
async def test_messages_that_are_removed_move_no_turn(client: GavelClient, sync_client: SyncGavelClient, is_sync: bool) -> None:
    """Equal calls of several answers are calls of their own, also if the earlier answers are removed from the messages."""
    from gavel_client.adapters.langgraph import GavelMiddleware
    from langchain.agents import create_agent
    from langchain.agents.middleware import AgentMiddleware
    from langchain.messages import AIMessage, HumanMessage, RemoveMessage
    from langchain_core.tools import StructuredTool
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph.message import REMOVE_ALL_MESSAGES

    from tests.e2e.adapters.agents.langgraph import ScriptedModel

    class Trimming(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> Any:
            return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("send it", id="message-1")]}

    depot = Depot()
    loop = asyncio.get_running_loop()

    async def act(parcel: str, weight: float) -> str:
        return await depot.act(parcel)

    def act_in_thread(parcel: str, weight: float) -> str:
        return asyncio.run_coroutine_threadsafe(depot.act(parcel), loop).result()

    def answer() -> AIMessage:
        return AIMessage("", tool_calls=[{"name": TOOL, "args": LIGHT, "id": "call-1"}])

    done = AIMessage("done")
    gate = SyncGate(sync_client, actions(), **SETTINGS) if is_sync else Gate(client, actions(), **SETTINGS)
    graph = create_agent(
        ScriptedModel(messages=iter([answer(), answer(), done, answer(), done, done])),
        tools=[StructuredTool.from_function(act_in_thread if is_sync else None, None if is_sync else act, TOOL, "Send it.")],
        middleware=[Trimming(), GavelMiddleware(gate)],
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "task-1"}}

    async def run(content: Any) -> None:
        await (asyncio.to_thread(graph.invoke, content, config) if is_sync else graph.ainvoke(content, config))

    for effects in (2, 3):  # the second run goes on with the thread
        await run({"messages": [HumanMessage("send it", id="message-1")]})
        assert ["1"] * effects == depot.effects
    # An answer that a person puts into the thread is one more.
    graph.update_state(config, {"messages": [answer()]}, as_node="model")
    await run(None)
    assert ["1"] * 4 == depot.effects


async def test_calls_that_wait_beside_each_other_are_resumed_by_their_interrupts(client: GavelClient) -> None:
    """Two calls of one answer wait one after the other, and are resumed by a value for each interrupt: LangGraph takes no value for both.

    Resuming before the verdict proposes nothing.
    """
    from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
    from langgraph.types import Command

    from tests.e2e.adapters.agents.langgraph import LangGraphAgent

    depot = Depot()
    agent = LangGraphAgent(Gate(client, actions(), **SETTINGS), depot, "task-1")
    assert (await agent.start([{"parcel": "1", "weight": 50.0}, {"parcel": "2", "weight": 50.0}])).paused
    with pytest.raises(RuntimeError, match="multiple pending interrupts"):
        await agent._run(Command(resume=True), agent._config)
    await agent.resume()
    page = await client.list_events(page_size=1000)
    assert 2 == sum(event.HasField("proposal") for event in page.envelopes)
    for effects in (1, 2):  # a review holds the other calls of its thread
        (review,) = (await client.list_pending_reviews()).reviews
        await client.resolve_review(review.decision_id, REVIEW_VERDICT_APPROVE, reviewer="pat", reason="looked at")
        turn = await agent._run(Command(resume={interrupt.id: True for interrupt in agent._interrupts}), agent._config)
        assert (effects, effects == 1) == (len(depot.effects), turn.paused)
    assert ["1", "2"] == sorted(depot.effects)


def injected_tool(name: str, depot: Depot) -> Any:
    """Return a tool that gets the state of the graph, and has an argument that no call names."""
    from langchain.tools import InjectedState
    from langchain_core.tools import StructuredTool

    async def act(parcel: str, weight: float, state: Annotated[Any, InjectedState], express: bool = False) -> str:
        """Act on a parcel."""
        assert state["messages"]
        return await depot.act(parcel)

    act.__annotations__["state"] = Annotated[Any, InjectedState]  # it is imported here, where the schema does not look for it
    return StructuredTool.from_function(coroutine=act, name=name)
