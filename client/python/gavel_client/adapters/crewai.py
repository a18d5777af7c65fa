"""CrewAI: `gated_tool` puts a tool behind the gate, and `stop_for_review` stops the crew while a person has to decide.

Equal calls of one task run once: CrewAI starts a task from its beginning when it runs again, so the place of a call does not identify it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from gavel_client.adapters.extras import extra
from gavel_client.blocking import run_blocking
from gavel_client.gate import Call, Finished, Pending, SyncAllowed, SyncGate
from gavel_client.gate.answers import WAITS
from gavel_client.gate.results import success, unknown
from gavel_client.handlers import HandlerResult
from gavel_client.rpc.errors import HandlerError
from gavel_client.threads import call_plain

with extra("crewai"):
    from crewai.hooks import HookAborted, ToolCallHookContext
    from crewai.tools import BaseTool
    from crewai.tools.tool_failure import ToolFailure
    from pydantic import BaseModel, Field, PrivateAttr

PENDING = "GavelPending"


def gated_tool(tool: BaseTool, gate: SyncGate, *, task: Callable[[], str]) -> BaseTool:
    """Return `tool` behind `gate`. `task` names the piece of work that the crew does: the same when the crew runs again."""
    if not isinstance(gate, SyncGate):
        raise TypeError("CrewAI runs tools in threads; give gated_tool a SyncGate in place of a Gate")
    if isinstance(tool, _GatedTool):
        raise TypeError(f"the tool {tool.name} has a gate already")
    gated = _GatedTool(**{name: getattr(tool, name) for name in BaseTool.model_fields if name != "cache_function"})
    gated._inner = tool, gate, task
    return gated


def stop_for_review(context: ToolCallHookContext) -> None:
    """Stop the crew at a call that waits. Register it by `register_after_tool_call_hook`. Raises HookAborted."""
    output = context.raw_tool_result
    # The stop of a co-worker or of a nested crew is the text of the tool that has called it.
    text = output.message if isinstance(output, ToolFailure) and output.code == PENDING else output
    if isinstance(text, str) and WAITS in text:
        raise HookAborted(text, source="gavel")


class _GatedTool(BaseTool):
    # CrewAI's cache knows neither approvals nor new evidence: it must not answer a call.
    cache_function: Callable[[Any, Any], bool] = Field(default=lambda arguments, output: False, exclude=True)
    # Not in CrewAI's checkpoints: a tool that is restored from one has no gate, and does not run.
    _inner: tuple[BaseTool, SyncGate, Callable[[], str]] | None = PrivateAttr(None)

    def _run(self, **arguments: Any) -> Any:
        if self._inner is None:
            raise RuntimeError(f"the tool {self.name} was restored without its gate; give the agent the result of gated_tool again")
        tool, gate, task = self._inner
        arguments = deepcopy(arguments)  # nobody changes them while the call waits
        answer = gate.ask_anew(Call(tool.name, arguments, task()))
        if isinstance(answer, Pending):
            return ToolFailure(message=answer.message(), code=PENDING, retryable=True, details=answer.to_dict())
        if isinstance(answer, Finished) and answer.succeeded:
            return answer.message() if answer.output is None else answer.output
        if not isinstance(answer, SyncAllowed):
            return ToolFailure(message=answer.message())
        try:
            return answer.run(lambda: _output(tool._run(**arguments)), _result)
        except HandlerError as error:
            return ToolFailure(message=str(error), code=error.code)

    async def _arun(self, **arguments: Any) -> Any:
        return await asyncio.to_thread(call_plain, lambda: self._run(**arguments))

    def format_output_for_agent(self, raw_result: Any) -> str:
        if self._inner is None or isinstance(raw_result, ToolFailure):
            return str(super().format_output_for_agent(raw_result))
        return str(self._inner[0].format_output_for_agent(raw_result))


def _output(output: Any) -> Any:
    return run_blocking(lambda: output) if asyncio.iscoroutine(output) else output


def _result(output: Any) -> HandlerResult:
    if isinstance(output, ToolFailure):
        return unknown("the tool returned a failure")
    return success(output.model_dump(mode="json") if isinstance(output, BaseModel) else output)
