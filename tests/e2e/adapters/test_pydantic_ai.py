"""Other capabilities of Pydantic AI around a tool behind the gate, and tools that pause themselves.

Tests import the framework themselves: processes that only collect them are spared the seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from gavel_client import GavelClient

from tests.e2e.adapters.agents.agent import READ, TOOL, Depot
from tests.e2e.adapters.test_leases import gate, statuses

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool

LIGHT = {"parcel": "1", "weight": 2.0}


@pytest.mark.parametrize("hook", ["before_tool_execute", "wrap_tool_execute", "get_wrapper_toolset"])
async def test_the_arguments_that_a_tool_gets_are_decided_about(client: GavelClient, hook: str) -> None:
    """A capability that changes the arguments, wherever it stands, changes what is proposed: nothing runs that was not approved."""
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.toolsets import WrapperToolset

    from tests.e2e.adapters.agents.pydantic_ai import PydanticAIAgent

    class ChangingToolset(WrapperToolset[Any]):
        async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
            return await super().call_tool(name, {**tool_args, "weight": 500.0}, ctx, tool)

    class Changing(AbstractCapability[Any]):
        async def before_tool_execute(self, ctx: Any, *, args: Any, **_: Any) -> Any:
            return {**args, "weight": 500.0} if hook == "before_tool_execute" else args

        async def wrap_tool_execute(self, ctx: Any, *, args: Any, handler: Any, **_: Any) -> Any:
            return await handler({**args, "weight": 500.0} if hook == "wrap_tool_execute" else args)

        def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
            return ChangingToolset(toolset) if hook == "get_wrapper_toolset" else toolset

    class Agent(PydanticAIAgent):
        others: ClassVar[Sequence[AbstractCapability[Any]]] = [Changing()]

    depot = Depot()
    turn = await Agent(gate(client), depot, "task-1").start([LIGHT])
    assert "TOO_HEAVY" in turn.text
    assert [] == depot.effects


async def test_a_capability_that_answers_an_error_does_not_make_it_a_success(client: GavelClient) -> None:
    """A tool that raises after its effect is PARTIAL, also if another capability answers its error."""
    from pydantic_ai.capabilities import AbstractCapability

    from tests.e2e.adapters.agents.pydantic_ai import PydanticAIAgent

    class Answering(AbstractCapability[Any]):
        async def on_tool_execute_error(self, ctx: Any, **_: Any) -> Any:
            return "sent"

    class Agent(PydanticAIAgent):
        others: ClassVar[Sequence[AbstractCapability[Any]]] = [Answering()]

    depot = Depot(problem=ConnectionResetError("lost"))
    turn = await Agent(gate(client), depot, "task-1").start([LIGHT])
    assert ["sent"] == list(turn.texts)
    assert (["1"], ["STARTED", "PARTIAL"]) == (depot.effects, await statuses(client))


async def test_a_capability_that_repeats_a_call_acts_once(client: GavelClient) -> None:
    """A capability that runs a tool twice gets the recorded output the second time."""
    from pydantic_ai.capabilities import AbstractCapability

    from tests.e2e.adapters.agents.pydantic_ai import PydanticAIAgent

    class Repeating(AbstractCapability[Any]):
        async def wrap_tool_execute(self, ctx: Any, *, args: Any, handler: Any, **_: Any) -> Any:
            return [await handler(args), await handler(args)]

    class Agent(PydanticAIAgent):
        others: ClassVar[Sequence[AbstractCapability[Any]]] = [Repeating()]

    depot = Depot()
    turn = await Agent(gate(client), depot, "task-1").start([LIGHT])
    assert ['["sent 1","sent 1"]'] == list(turn.texts)
    assert (["1"], ["STARTED", "SUCCESS"]) == (depot.effects, await statuses(client))


async def test_a_tool_that_asks_for_an_approval_itself_has_not_acted(client: GavelClient) -> None:
    """A tool that raises ApprovalRequired in place of acting is reported as ABORTED, and does not run later."""
    from pydantic_ai import ApprovalRequired, Tool

    from tests.e2e.adapters.agents.pydantic_ai import PydanticAIAgent

    class Agent(PydanticAIAgent):
        def tool(self, act: Any, name: str) -> Tool[Any]:
            async def pausing(parcel: str, weight: float) -> str:
                raise ApprovalRequired

            return Tool(pausing, name=name)

    agent = Agent(gate(client), Depot(), "task-1")
    assert (await agent.start([LIGHT])).paused
    assert ["STARTED", "ABORTED"] == await statuses(client)
    assert "TOOL_PAUSED" in (await agent.resume()).text


@pytest.mark.parametrize("tool", [READ, "run_code"])
async def test_a_tool_that_a_capability_puts_around_the_toolset_has_a_gate(client: GavelClient, tool: str) -> None:
    """A tool that the wrapper of another capability answers itself runs only if it is registered."""
    from dataclasses import replace

    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.toolsets import WrapperToolset

    from tests.e2e.adapters.agents.pydantic_ai import PydanticAIAgent

    depot = Depot()

    class Adding(WrapperToolset[Any]):
        async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
            (inner,) = (await super().get_tools(ctx)).values()
            definition = replace(inner.tool_def, name=tool, metadata=None)
            return {tool: replace(inner, toolset=self, tool_def=definition)}

        async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
            return await depot.act("1")

    class Outer(AbstractCapability[Any]):
        def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
            return Adding(toolset)

    class Agent(PydanticAIAgent):
        others: ClassVar[Sequence[AbstractCapability[Any]]] = [Outer()]

    turn = await Agent(gate(client), depot, "task-1").start([LIGHT], tool)
    if tool == READ:
        assert ["sent 1"] == list(turn.texts)
    else:
        assert "not registered" in turn.text
        assert [] == depot.effects


def scripted(answers: Sequence[Any], depot: Depot, client: GavelClient) -> Any:
    """Return an agent whose model gives these answers, arguments of the tool or texts, and whose history is the last request alone."""
    from gavel_client.adapters.pydantic_ai import GavelCapability
    from pydantic_ai import Agent, DeferredToolRequests, Tool
    from pydantic_ai.capabilities import ProcessHistory
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    rest = iter(answers)

    def answer(messages: Any, info: Any) -> ModelResponse:
        one = next(rest)
        return ModelResponse(parts=[TextPart(one) if isinstance(one, str) else ToolCallPart(TOOL, dict(one), tool_call_id="call-1")])

    async def act(parcel: str, weight: float) -> str:
        """Act on a parcel."""
        return await depot.act(parcel)

    return Agent(
        FunctionModel(answer),
        tools=[Tool(act, name=TOOL)],
        capabilities=[GavelCapability(gate(client)), ProcessHistory(lambda messages: messages[-1:])],
        output_type=[str, DeferredToolRequests],
    )


async def test_a_history_that_is_trimmed_moves_no_turn(client: GavelClient) -> None:
    """Equal calls of several answers are calls of their own, in one run and in the next, also if the history is trimmed."""
    depot = Depot()
    agent = scripted([LIGHT, LIGHT, "done", LIGHT, "done"], depot, client)
    result = await agent.run("send it", conversation_id="task-1")
    assert ["1", "1"] == depot.effects
    await agent.run("send it", conversation_id="task-1", message_history=result.all_messages())
    assert ["1", "1", "1"] == depot.effects


async def test_a_call_that_is_resumed_keeps_its_turn(client: GavelClient) -> None:
    """A call that waits is the same call when a stored history resumes it, and an equal one of the next answer is another."""
    from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
    from pydantic_ai import DeferredToolRequests, DeferredToolResults, ModelMessagesTypeAdapter

    depot = Depot()
    heavy = {"parcel": "1", "weight": 50.0}
    result = await scripted([LIGHT, heavy], depot, client).run("send it", conversation_id="task-1")
    (review,) = (await client.list_pending_reviews()).reviews
    await client.resolve_review(review.decision_id, REVIEW_VERDICT_APPROVE, reviewer="pat", reason="looked at")
    stored = ModelMessagesTypeAdapter.validate_json(result.all_messages_json())
    result = await scripted([heavy], depot, client).run(
        message_history=stored, deferred_tool_results=DeferredToolResults(approvals={"call-1": True}), conversation_id="task-1"
    )
    assert ["1", "1"] == depot.effects
    assert isinstance(result.output, DeferredToolRequests)
    (other,) = (await client.list_pending_reviews()).reviews
    assert other.decision_id != review.decision_id


@pytest.mark.parametrize("name", [READ, "burn_parcel"])
async def test_an_output_function_runs_only_as_a_read(client: GavelClient, name: str) -> None:
    """A function among the output types, which no gate can hold back, fails the run before it runs, unless it is a read."""
    from gavel_client.adapters.pydantic_ai import GavelCapability
    from pydantic_ai import Agent, UserError
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    depot = Depot()

    async def act(parcel: str) -> str:
        """Act on a parcel."""
        return await depot.act(parcel)

    act.__name__ = name
    model = FunctionModel(lambda messages, info: ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"parcel": "1"})]))
    agent: Any = Agent(model, output_type=act, capabilities=[GavelCapability(gate(client))])
    if name == READ:
        assert "sent 1" == (await agent.run("send it")).output
        return
    with pytest.raises(UserError, match="the output function burn_parcel has no gate"):
        await agent.run("send it")
    assert [] == depot.effects
