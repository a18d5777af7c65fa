"""Google ADK's own confirmations, callbacks, plugins and workflows around a tool behind the gate.

Tests import the framework themselves: processes that only collect them are spared the seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import Mock

import pytest
from gavel_client import GavelClient

from tests.e2e.adapters.agents.agent import READ, TOOL, Depot
from tests.e2e.adapters.test_leases import gate, statuses

if TYPE_CHECKING:
    from google.adk.plugins.base_plugin import BasePlugin

LIGHT = {"parcel": "1", "weight": 2.0}


async def proposals(client: GavelClient) -> int:
    """Return the number of proposals in the log."""
    page = await client.list_events(page_size=1000)
    return sum(event.HasField("proposal") for event in page.envelopes)


@pytest.mark.long
async def test_a_tool_that_needs_a_confirmation_is_proposed_after_it(client: GavelClient) -> None:
    """A call that ADK holds back for a confirmation is not proposed; once it is confirmed, it acts and is reported."""
    from google.adk.tools.function_tool import FunctionTool

    from tests.e2e.adapters.agents.google_adk import AdkAgent

    class Confirmed(AdkAgent):
        def tool(self, act: Any) -> FunctionTool:
            return FunctionTool(act, require_confirmation=True)

    depot = Depot()
    agent = Confirmed(gate(client), depot, "task-1")
    assert (await agent.start([LIGHT])).paused
    assert ([], 0) == (depot.effects, await proposals(client))
    turn = await agent.resume()
    assert (["1"], ["STARTED", "SUCCESS"]) == (depot.effects, await statuses(client))
    assert "sent 1" in turn.text


@pytest.mark.parametrize(
    ("output", "reported"), [({"error": "the depot is closed"}, "PARTIAL"), ({"isError": True}, "PARTIAL"), ({"error": ""}, "SUCCESS")]
)
async def test_an_error_that_a_tool_returns_is_an_unknown_effect(client: GavelClient, output: dict[str, Any], reported: str) -> None:
    """A tool that returns an error, as those of MCP do, has not succeeded."""
    from google.adk.tools.function_tool import FunctionTool

    from tests.e2e.adapters.agents.google_adk import AdkAgent

    async def send_parcel(parcel: str, weight: float) -> dict[str, Any]:
        return output

    class Returning(AdkAgent):
        def tool(self, act: Any) -> FunctionTool:
            return FunctionTool(send_parcel)

    await Returning(gate(client), Depot(), "task-1").start([LIGHT])
    assert ["STARTED", reported] == await statuses(client)


@pytest.mark.parametrize("asks_for", ["confirmation", "credentials"])
async def test_a_tool_that_pauses_itself_has_not_acted(client: GavelClient, asks_for: str) -> None:
    """A tool that asks for a confirmation or for credentials in place of acting is reported as ABORTED, and does not run later."""
    from fastapi.openapi.models import APIKey, APIKeyIn
    from google.adk.auth.auth_tool import AuthConfig
    from google.adk.tools.function_tool import FunctionTool
    from google.adk.tools.tool_context import ToolContext

    from tests.e2e.adapters.agents.google_adk import AdkAgent

    depot = Depot()

    async def send_parcel(parcel: str, weight: float, tool_context: ToolContext) -> str:
        if tool_context.tool_confirmation is not None:
            return await depot.act(parcel)
        if asks_for == "confirmation":
            tool_context.request_confirmation(hint="really?")
        else:
            scheme = APIKey.model_validate({"type": "apiKey", "in": APIKeyIn.header, "name": "key"})
            tool_context.request_credential(AuthConfig(auth_scheme=scheme))
        return "Pending User Authorization."

    # ToolContext is imported here, where ADK does not look for it.
    send_parcel.__annotations__["tool_context"] = ToolContext

    class Pausing(AdkAgent):
        def tool(self, act: Any) -> FunctionTool:
            return FunctionTool(send_parcel)

    agent = Pausing(gate(client), depot, "task-1")
    turn = await agent.start([LIGHT])
    assert ["STARTED", "ABORTED"] == await statuses(client)
    if turn.paused:
        assert "TOOL_PAUSED" in (await agent.resume()).text
    assert [] == depot.effects


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_plugin_that_answers_an_error_does_not_make_it_a_success(client: GavelClient, is_first: bool) -> None:
    """A tool that raises after its effect is PARTIAL, also if another plugin, before or after that of Gavel, answers its error."""
    from google.adk.plugins.reflect_retry_tool_plugin import ReflectAndRetryToolPlugin

    from tests.e2e.adapters.agents.google_adk import AdkAgent

    class Reflecting(AdkAgent):
        before: ClassVar[Sequence[BasePlugin]] = [ReflectAndRetryToolPlugin()] if is_first else []
        after: ClassVar[Sequence[BasePlugin]] = [] if is_first else [ReflectAndRetryToolPlugin()]

    depot = Depot(problem=ConnectionResetError("lost"))
    turn = await Reflecting(gate(client), depot, "task-1").start([LIGHT])
    assert "ERROR_HANDLED_BY_REFLECT_AND_RETRY_PLUGIN" in turn.text
    assert (["1"], ["STARTED", "PARTIAL"]) == (depot.effects, await statuses(client))


async def test_a_plugin_that_replaces_a_result_leaves_the_report(client: GavelClient) -> None:
    """A plugin that comes first and replaces the result of a tool does not keep it from being reported."""
    from google.adk.plugins.base_plugin import BasePlugin

    from tests.e2e.adapters.agents.google_adk import AdkAgent

    class Replacing(BasePlugin):
        async def after_tool_callback(self, **_: Any) -> dict[str, Any]:
            return {"output": "something else"}

    class Agent(AdkAgent):
        before: ClassVar[Sequence[BasePlugin]] = [Replacing("replacing")]

    turn = await Agent(gate(client), Depot(), "task-1").start([LIGHT])
    assert ["something else"] == list(turn.texts)
    assert ["STARTED", "SUCCESS"] == await statuses(client)


async def test_a_callback_that_answers_is_not_reported_as_a_success(client: GavelClient) -> None:
    """A call that a callback of the agent answers in place of the tool is not proposed, since nothing runs."""
    from tests.e2e.adapters.agents.google_adk import AdkAgent

    class Answering(AdkAgent):
        options: ClassVar[Mapping[str, Any]] = {"before_tool_callback": lambda tool, args, tool_context: {"output": "from a cache"}}

    depot = Depot()
    turn = await Answering(gate(client), depot, "task-1").start([LIGHT])
    assert ["from a cache"] == list(turn.texts)
    assert ([], 0) == (depot.effects, await proposals(client))


async def test_a_callback_that_changes_the_arguments_changes_the_proposal(client: GavelClient) -> None:
    """The call is decided with the arguments that the tool is to get, also if a callback of the agent has changed them."""
    from tests.e2e.adapters.agents.google_adk import AdkAgent

    class Changing(AdkAgent):
        options: ClassVar[Mapping[str, Any]] = {"before_tool_callback": lambda tool, args, tool_context: args.update(weight=500.0)}

    depot = Depot()
    turn = await Changing(gate(client), depot, "task-1").start([LIGHT])
    assert "TOO_HEAVY" in turn.text
    assert [] == depot.effects


async def test_a_callback_that_raises_leaves_no_attempt(client: GavelClient) -> None:
    """A callback of the agent that raises before the tool leaves no attempt without a report."""
    from tests.e2e.adapters.agents.google_adk import AdkAgent

    def fail(tool: Any, args: Any, tool_context: Any) -> None:
        raise LookupError("no such customer")

    class Failing(AdkAgent):
        options: ClassVar[Mapping[str, Any]] = {"before_tool_callback": fail}

    depot = Depot()
    with pytest.raises(LookupError):
        await Failing(gate(client), depot, "task-1").start([LIGHT])
    assert ([], []) == (depot.effects, await statuses(client))


async def test_gates_share_a_tool(client: GavelClient) -> None:
    """Apps with gates of their own may share a tool: each call is asked of the gate of its app, and none of an app without one."""
    from google.adk.tools.function_tool import FunctionTool

    from tests.e2e.adapters.agents.google_adk import AdkAgent

    depot = Depot()

    async def send_parcel(parcel: str, weight: float) -> str:
        return await depot.act(parcel)

    shared = FunctionTool(send_parcel)

    class Sharing(AdkAgent):
        def tool(self, act: Any) -> FunctionTool:
            return shared

    other = gate(client)
    other._agent.id = "another-sender"
    await Sharing(gate(client), depot, "task-1").start([LIGHT])
    await Sharing(other, depot, "task-2").start([{**LIGHT, "parcel": "2"}])
    page = await client.list_events(page_size=1000)
    assert {"sender", "another-sender"} == {event.producer.id for event in page.envelopes if event.HasField("proposal")}
    assert "sent 1" == await shared.run_async(args=LIGHT, tool_context=Mock())  # no plugin has seen it


async def test_a_node_of_a_workflow_that_runs_again_is_the_same_call(client: GavelClient) -> None:
    """The tool of a workflow's node that waits for a person is proposed once, however often the node runs, and acts once."""
    from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
    from gavel_client.adapters.google_adk import GavelPlugin
    from google.adk.apps import App, ResumabilityConfig
    from google.adk.runners import Runner
    from google.adk.sessions import InMemorySessionService
    from google.adk.tools.function_tool import FunctionTool
    from google.adk.workflow import START, Workflow
    from google.genai import types

    depot = Depot()

    async def send_parcel(parcel: str, weight: float) -> str:
        return await depot.act(parcel)

    workflow = Workflow(name="sending", edges=[(START, FunctionTool(send_parcel))])
    app = App(
        name="parcels",
        root_agent=workflow,
        plugins=[GavelPlugin(gate(client))],
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    sessions = InMemorySessionService()
    await sessions.create_session(app_name="parcels", user_id="user", session_id="task-1")

    async def run(*parts: types.Part, **options: Any) -> Any:
        message = types.Content(role="user", parts=list(parts))
        runner = Runner(app=app, session_service=sessions)
        return [event async for event in runner.run_async(user_id="user", session_id="task-1", new_message=message, **options)]

    events = await run(types.Part(text='{"parcel": "1", "weight": 50.0}'))
    for is_approved in (False, True):
        (request,) = [call for event in events for call in event.get_function_calls()]
        answer = types.FunctionResponse(id=request.id, name=request.name, response={"confirmed": True})
        if is_approved:
            (review,) = (await client.list_pending_reviews()).reviews
            await client.resolve_review(review.decision_id, REVIEW_VERDICT_APPROVE, reviewer="pat", reason="looked at")
        events = await run(types.Part(function_response=answer), invocation_id=events[-1].invocation_id)
    assert (["1"], 1) == (depot.effects, await proposals(client))


async def test_a_confirmation_that_is_declined_ends_the_call(client: GavelClient) -> None:
    """A call whose confirmation is declined does not run, also if a person has approved it in Gavel meanwhile."""
    from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE

    from tests.e2e.adapters.agents.google_adk import AdkAgent

    depot = Depot()
    agent = AdkAgent(gate(client), depot, "task-1")
    assert (await agent.start([{"parcel": "1", "weight": 50.0}])).paused
    (review,) = (await client.list_pending_reviews()).reviews
    await client.resolve_review(review.decision_id, REVIEW_VERDICT_APPROVE, reviewer="pat", reason="looked at")
    turn = await agent.resume(confirmed=False)
    assert "its confirmation was declined" in turn.text
    assert ([], []) == (depot.effects, await statuses(client))


async def test_a_call_of_a_live_session_does_not_wait(client: GavelClient) -> None:
    """A call of a live session that needs a person asks for no confirmation, which nothing could resume, and the model reads that."""
    from gavel_client.adapters.google_adk import GavelPlugin
    from google.adk.tools.function_tool import FunctionTool

    depot = Depot()

    async def send_parcel(parcel: str, weight: float) -> str:
        return await depot.act(parcel)

    tool, arguments = FunctionTool(send_parcel), {"parcel": "1", "weight": 50.0}
    context = Mock(function_call_id="call-1", invocation_id="invocation-1", node=None, tool_confirmation=None)
    context.session.id, context.session.events = "task-1", []
    assert await GavelPlugin(gate(client)).before_tool_callback(tool=tool, tool_args=arguments, tool_context=context) is None
    answer = await tool.run_async(args=arguments, tool_context=context)
    assert "a live session cannot resume it" in answer["error"]
    assert [] == depot.effects
    context.request_confirmation.assert_not_called()


@pytest.mark.parametrize("name", [TOOL, READ])
async def test_a_tool_that_streams_in_a_live_session_is_refused(client: GavelClient, name: str) -> None:
    """A live session does not call a tool that goes on after it has returned."""
    from gavel_client.adapters.google_adk import GavelPlugin
    from google.adk.tools.function_tool import FunctionTool

    async def stream(parcel: str) -> Any:
        yield parcel

    stream.__name__ = name
    context: Any = SimpleNamespace(get_invocation_context=lambda: SimpleNamespace(live_request_queue=object()))
    answer = await GavelPlugin(gate(client)).before_tool_callback(tool=FunctionTool(stream), tool_args={}, tool_context=context)
    assert answer is not None
    assert "streams in a live session" in answer["error"]
