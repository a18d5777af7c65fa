"""An agent of Google's ADK, with a scripted BaseLlm."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, ClassVar

from gavel_client.adapters.google_adk import GavelPlugin
from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.function_tool import FunctionTool
from google.genai import types

from tests.e2e.adapters.agents.agent import TOOL, Agent, Arguments, Turn

USER = "user"
CONFIRMATION = "adk_request_confirmation"


class ScriptedModel(BaseLlm):
    """A model that makes calls once and then says that it is done."""

    tool: str
    calls: list[dict[str, Any]]

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        """Return the calls to a person's message, and the end to their outputs."""
        parts = [types.Part(text="done")]
        if not any(part.function_response for content in llm_request.contents for part in content.parts or ()):
            parts = [types.Part(function_call=types.FunctionCall(name=self.tool, args=arguments)) for arguments in self.calls]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


class AdkAgent(Agent):
    """A session that has the name of the task. `before` and `after` are the plugins around that of Gavel, `options` the agent's own."""

    before: ClassVar[Sequence[BasePlugin]] = ()
    after: ClassVar[Sequence[BasePlugin]] = ()
    options: ClassVar[Mapping[str, Any]] = {}

    async def start(self, calls: Sequence[Arguments], tool: str = TOOL) -> Turn:
        """Send a message of a person."""

        async def act(parcel: str, weight: float) -> dict[str, str]:
            """Act on a parcel."""
            return {"output": await self.depot.act(parcel)}

        act.__name__ = tool
        model = ScriptedModel(model="scripted", tool=tool, calls=[dict(arguments) for arguments in calls])
        agent = LlmAgent(name="sender", model=model, tools=[self.tool(act)], **self.options)
        plugins = [*self.before, GavelPlugin(self.gate), *self.after]
        self._app = App(name="parcels", root_agent=agent, plugins=plugins, resumability_config=ResumabilityConfig(is_resumable=True))
        self._sessions = InMemorySessionService()
        await self._sessions.create_session(app_name="parcels", user_id=USER, session_id=self.task)
        return await self._run(new_message=types.Content(role=USER, parts=[types.Part(text="send it")]))

    def tool(self, act: Callable[..., Any]) -> FunctionTool:
        """Return the tool that calls `act`."""
        return FunctionTool(act)

    async def resume(self, *, confirmed: bool = True) -> Turn:
        """Confirm every call that waits, or decline it."""
        answers = [
            types.Part(function_response=types.FunctionResponse(id=call.id, name=CONFIRMATION, response={"confirmed": confirmed}))
            for call in self._waiting
        ]
        return await self._run(new_message=types.Content(role=USER, parts=answers), invocation_id=self._invocation_id)

    async def repeat(self) -> Turn:
        """Resume the invocation from a store that has nothing after the calls."""
        session = await self._session()
        end = next(place for place, event in enumerate(session.events) if event.get_function_calls()) + 1
        self._sessions = InMemorySessionService()
        copy = await self._sessions.create_session(app_name="parcels", user_id=USER, session_id=self.task)
        for event in session.events[:end]:
            await self._sessions.append_event(copy, event)
        return await self._run(invocation_id=session.events[end - 1].invocation_id)

    async def _run(self, **content: Any) -> Turn:
        runner = Runner(app=self._app, session_service=self._sessions)
        events = [event async for event in runner.run_async(user_id=USER, session_id=self.task, **content)]
        self._invocation_id = events[-1].invocation_id if events else ""
        responses = _responses(events)
        self._waiting = [call for event in events for call in event.get_function_calls() if call.name == CONFIRMATION]
        return Turn([str(next(iter((one.response or {}).values()))) for one in responses], bool(self._waiting))

    async def _session(self) -> Any:
        return await self._sessions.get_session(app_name="parcels", user_id=USER, session_id=self.task)


def _responses(events: Sequence[Event]) -> list[types.FunctionResponse]:
    return [response for event in events for response in event.get_function_responses() if response.name != CONFIRMATION]
