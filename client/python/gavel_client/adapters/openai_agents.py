"""OpenAI Agents SDK: `gated_tool` puts a function tool behind the gate.

`needs_approval` interrupts the run while a person has to decide, and a guardrail refuses what the rules refuse. Approving the interruption
only asks the gate again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from gavel_client.adapters.extras import extra
from gavel_client.gate import Allowed, Call, Gate, Pending
from gavel_client.rpc.errors import HandlerError

with extra("openai-agents"):
    from agents import FunctionTool, RunContextWrapper, ToolGuardrailFunctionOutput, ToolInputGuardrail, ToolInputGuardrailData
    from agents.tool import maybe_invoke_function_tool_failure_error_function
    from agents.tool_context import ToolContext

Run = RunContextWrapper[Any]
# The key in a run's context under which the turns of its calls are kept.
TURNS: Final = "gavel_turns"
# Turns that the process remembers for runs with another context.
TURNS_MAX: Final = 10_000


def gated_tool(tool: FunctionTool, gate: Gate, *, task: Callable[[Run], str]) -> FunctionTool:
    """Return `tool` behind `gate`.

    `task` names the piece of work that a run does, from the run's context: the same when the run is resumed or repeated. The turn of a
    call is the number of requests when it is first asked about. It is kept in the run's context if that is a mapping, else in the process.
    """
    # Without a function for failures the tool raises, so that its failure is not taken for its output.
    inner = dataclasses.replace(tool, _failure_error_function=None, _use_default_failure_error_function=False)

    turns: dict[str, str] = {}

    def call(run: Run, arguments: dict[str, Any], call_id: str) -> Call:
        # Runs of agents as tools count for this run too, so the number of requests changes while a call waits.
        kept = run.context.setdefault(TURNS, {}) if isinstance(run.context, MutableMapping) else turns
        turn = kept.setdefault(f"{task(run)}/{call_id}", str(run.usage.requests))
        while len(turns) > TURNS_MAX:
            turns.pop(next(iter(turns)))
        return Call(tool.name, arguments, task(run), turn)

    async def needs_approval(run: Run, arguments: dict[str, Any], call_id: str) -> bool:
        others = tool.needs_approval
        if others is True or (callable(others) and await others(run, arguments, call_id)):
            return True
        return isinstance(await gate.check(call(run, arguments, call_id)), Pending)

    async def check(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        context = data.context
        answer = await gate.check(call(context, _arguments(context.tool_arguments), context.tool_call_id))
        return ToolGuardrailFunctionOutput.allow() if answer is None else ToolGuardrailFunctionOutput.reject_content(answer.message())

    async def invoke(context: ToolContext[Any], text: str) -> Any:
        answer = await gate(call(context, _arguments(text), context.tool_call_id))
        if not isinstance(answer, Allowed):
            return answer.message()
        try:
            return await answer.run(lambda: inner.on_invoke_tool(context, text))
        except HandlerError as error:
            return str(error)
        except Exception as error:
            message = await maybe_invoke_function_tool_failure_error_function(function_tool=tool, context=context, error=error)
            if message is None:
                raise
            return message

    return dataclasses.replace(
        tool,
        on_invoke_tool=invoke,
        needs_approval=needs_approval,
        tool_input_guardrails=[*(tool.tool_input_guardrails or ()), ToolInputGuardrail(check, name="gavel")],
    )


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments in a call. Raises ValueError."""
    arguments = json.loads(text or "{}")
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of the call are not a JSON object")
    return arguments
