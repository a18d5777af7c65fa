"""Google ADK: a plugin that lets a tool run only through the gate.

The plugin puts the gate around the tool's own `run_async`, after all callbacks and confirmations of ADK: what runs is what was approved,
and what is reported is what the tool did. A call that waits for a person asks for a tool confirmation, which ends the invocation. A
confirmation approves nothing by itself; it only asks the gate again. A declined one ends the call.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from copy import deepcopy
from typing import Any, Final
from weakref import WeakKeyDictionary

from gavel_client.adapters.adk_calls import is_live, result_of, turn_of
from gavel_client.adapters.extras import extra
from gavel_client.gate import Allowed, Call, Gate, Pending
from gavel_client.rpc.errors import HandlerError

with extra("google-adk"):
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext

Arguments = dict[str, Any]
RUN: Final = "run_async"
# The calls under way: the tool, the gate, and the event loop of the gate's client.
_calls: Final[WeakKeyDictionary[ToolContext, tuple[BaseTool, Gate, asyncio.AbstractEventLoop]]] = WeakKeyDictionary()


class GavelPlugin(BasePlugin):
    """Asks `gate` before each call of a tool, and reports how the tool ended. Its place among the plugins does not matter."""

    def __init__(self, gate: Gate) -> None:
        super().__init__("gavel")
        self._gate = gate

    async def before_tool_callback(self, *, tool: BaseTool, tool_args: Arguments, tool_context: ToolContext) -> Arguments | None:
        """Put the gate around the tool. A tool that streams in a live session is refused: it goes on after its `run_async` has ended."""
        function = getattr(tool, "func", None)
        if is_live(tool_context) and (inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)):
            return {"error": f"The tool was not called: {tool.name} streams in a live session, so its end cannot be reported."}
        gated = vars(tool).get(RUN)
        if not (isinstance(gated, _GatedRun) and gated.tool is tool):  # ADK copies tools
            vars(tool)[RUN] = _GatedRun(tool, type(tool).run_async.__get__(tool) if isinstance(gated, _GatedRun) else tool.run_async)
        _calls[tool_context] = tool, self._gate, asyncio.get_running_loop()
        return None


class _GatedRun:
    """`run_async` of a tool, behind the gate of the plugin that has seen the call."""

    def __init__(self, tool: BaseTool, run: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.tool = tool
        self._run = run

    async def __call__(self, *, args: Arguments, tool_context: ToolContext) -> Any:
        tool, gate, loop = _calls.get(tool_context, (None, None, None))
        if tool is not self.tool or gate is None:  # a tool that another one calls
            return await self._run(args=args, tool_context=tool_context)
        if loop is not asyncio.get_running_loop():
            return {"error": f"The tool was not called: {tool.name} runs in a thread, out of the reach of its gate."}
        confirmation = tool_context.tool_confirmation
        if confirmation is not None and not confirmation.confirmed and not gate.reads(tool.name):
            return {"error": "The tool was not called: its confirmation was declined."}
        arguments = deepcopy(args)  # others may change them while the call waits
        answer = await gate(Call(tool.name, arguments, tool_context.session.id, turn_of(tool_context)))
        if isinstance(answer, Pending) and is_live(tool_context):
            return {"error": f"{answer.message()}\nThis call is over: a live session cannot resume it once the decision is made."}
        if isinstance(answer, Pending):
            tool_context.request_confirmation(hint=answer.message(), payload=answer.to_dict())
            tool_context.actions.skip_summarization = True
        if not isinstance(answer, Allowed):
            return {"output" if answer.succeeded else "error": answer.message()}
        try:
            return await answer.run(
                lambda: self._run(args=arguments, tool_context=tool_context), lambda output: result_of(output, tool_context)
            )
        except HandlerError as error:
            return {"error": str(error)}
