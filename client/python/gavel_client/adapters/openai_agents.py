"""OpenAI Agents SDK: `gated_tool` puts a function tool behind the gate.

`needs_approval` interrupts the run while a person has to decide, and a guardrail refuses what the rules refuse. Approving the interruption
only asks the gate again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gavel_client.adapters.extras import extra
from gavel_client.adapters.openai_calls import Run, Turns, arguments_text, parse_arguments
from gavel_client.gate import Allowed, Call, Gate, Pending
from gavel_client.rpc.errors import HandlerError

with extra("openai-agents"):
    from agents import FunctionTool, ToolGuardrailFunctionOutput, ToolInputGuardrail, ToolInputGuardrailData
    from agents.tool import maybe_invoke_function_tool_failure_error_function
    from agents.tool_context import ToolContext

Answer = TypeVar("Answer")


def gated_tool(tool: FunctionTool, gate: Gate, *, task: Callable[[Run], str]) -> FunctionTool:
    """Return `tool` behind `gate`.

    `task` names the piece of work that a run does, from the run's context: the same when the run is resumed or repeated, and another for
    each message of a person, since every run counts its requests from zero.
    """
    # Without a function for failures the tool raises, so that its failure is not taken for its output.
    inner = dataclasses.replace(tool, _failure_error_function=None, _use_default_failure_error_function=False)

    turns = Turns(tool.name)

    async def ask(question: Callable[[Call], Awaitable[Answer]], run: Run, arguments: dict[str, Any], call_id: str) -> Answer:
        call = turns.call(run, task(run), arguments, call_id)
        answer = await question(call)
        turns.note(run, call, answer)
        return answer

    async def needs_approval(run: Run, arguments: dict[str, Any], call_id: str) -> bool:
        others = tool.needs_approval
        if others is True or (callable(others) and await others(run, arguments, call_id)):
            return True
        return isinstance(await ask(gate.check, run, arguments, call_id), Pending)

    async def check(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        context = data.context
        try:
            arguments = parse_arguments(arguments_text(context.tool_arguments))
        except (ValueError, RecursionError):
            return ToolGuardrailFunctionOutput.reject_content("The tool was not called: its arguments are not a JSON object.")
        answer = await ask(gate.check, context, arguments, context.tool_call_id)
        return ToolGuardrailFunctionOutput.allow() if answer is None else ToolGuardrailFunctionOutput.reject_content(answer.message())

    async def invoke(context: ToolContext[Any], text: str) -> Any:
        text = arguments_text(text)
        answer = await ask(gate, context, parse_arguments(text), context.tool_call_id)
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
