"""Google ADK: a plugin that lets a tool run only through the gate. Register it as the last plugin of the runner.

A call that waits for a person asks for a tool confirmation, which ends the invocation. A confirmation approves nothing by itself; it only
asks the gate again.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from gavel_client.adapters.extras import extra
from gavel_client.gate import Allowed, Call, Gate, Pending
from gavel_client.gate.results import failure, success, unknown
from gavel_client.rpc.errors import HandlerError

with extra("google-adk"):
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext

Arguments = dict[str, Any]


class GavelPlugin(BasePlugin):
    """Asks `gate` before each call of a tool, and reports how the tool ended."""

    def __init__(self, gate: Gate) -> None:
        super().__init__("gavel")
        self._gate = gate
        # The calls that run now, by session and call, with the arguments that were approved.
        self._running: dict[tuple[str, str], tuple[Allowed, Arguments]] = {}

    async def before_tool_callback(self, *, tool: BaseTool, tool_args: Arguments, tool_context: ToolContext) -> Arguments | None:
        """Return None if the tool may run, otherwise what the model gets in place of its output."""
        arguments = deepcopy(tool_args)  # others may change them while the call waits
        answer = await self._gate(Call(tool.name, arguments, tool_context.session.id, _turn(tool_context)))
        if isinstance(answer, Allowed):
            self._running[_key(tool_context)] = answer, arguments
            return None
        if isinstance(answer, Pending):
            tool_context.request_confirmation(hint=answer.message(), payload=answer.to_dict())
            tool_context.actions.skip_summarization = True
        return {"output" if answer.succeeded else "error": answer.message()}

    async def after_tool_callback(self, *, tool: BaseTool, tool_args: Arguments, tool_context: ToolContext, result: Arguments) -> None:
        """Report an output. If another callback has changed the arguments, the call was not approved: a person has to look at it."""
        allowed, arguments = self._running.pop(_key(tool_context), (None, {}))
        if allowed is not None:
            await allowed.report(success(result) if arguments == tool_args else unknown("a callback has changed the arguments"))

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: Arguments, tool_context: ToolContext, error: Exception
    ) -> Arguments | None:
        """Report a failure or a cancellation."""
        allowed, _ = self._running.pop(_key(tool_context), (None, {}))
        if allowed is not None:
            await allowed.report(failure(error))
        return {"error": str(error)} if isinstance(error, HandlerError) else None


def _key(tool_context: ToolContext) -> tuple[str, str]:
    return tool_context.session.id, tool_context.function_call_id or ""


def _turn(tool_context: ToolContext) -> str:
    """Return the invocation and the number of the model's answer in it that has the call."""
    answers = [event for event in tool_context.session.events if event.get_function_calls()]
    for event in answers:
        if any(call.id == tool_context.function_call_id for call in event.get_function_calls()):
            same = [one.id for one in answers if one.invocation_id == event.invocation_id]
            return f"{event.invocation_id}/{same.index(event.id)}"
    return f"{tool_context.invocation_id}/{tool_context.function_call_id}"
