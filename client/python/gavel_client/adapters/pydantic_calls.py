"""A call of a tool in Pydantic AI, behind the gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any

from gavel_client.adapters.extras import extra
from gavel_client.gate import Allowed, Call, Gate, Pending
from gavel_client.gate.results import paused, success
from gavel_client.handlers import HandlerResult
from gavel_client.rpc.errors import HandlerError

with extra("pydantic-ai"):
    from pydantic_ai import RunContext
    from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
    from pydantic_ai.messages import ModelResponse, ToolCallPart

Arguments = dict[str, Any]
Run = Callable[[Arguments], Awaitable[Any]]


async def run_call(gate: Gate, name: str, arguments: Arguments, ctx: RunContext[Any], run: Run) -> Any:
    """Run a tool by `run`, or tell the model why not."""
    arguments = deepcopy(arguments)  # nobody changes them while the call waits
    answer = await gate(Call(name, arguments, ctx.conversation_id or ctx.run_id or "", str(_turn(ctx))))
    if isinstance(answer, Pending):
        raise ApprovalRequired(answer.to_dict())
    if not isinstance(answer, Allowed):
        if answer.succeeded:
            return answer.message()
        raise ToolFailed(answer.message())
    try:
        output = await answer.run(lambda: _catch_pause(run, arguments), _result)
    except HandlerError as error:
        raise ToolFailed(str(error)) from error
    if isinstance(output, ApprovalRequired):
        raise output
    return output


async def _catch_pause(run: Run, arguments: Arguments) -> Any:
    try:
        return await run(arguments)
    except ApprovalRequired as pause:
        return pause


def _result(output: Any) -> HandlerResult:
    return paused() if isinstance(output, ApprovalRequired) else success(output)


def _turn(ctx: RunContext[Any]) -> int:
    """Return the number of the model's answer that has the call."""
    answers = [message for message in ctx.messages if isinstance(message, ModelResponse)]
    has_call = [any(isinstance(part, ToolCallPart) and part.tool_call_id == ctx.tool_call_id for part in one.parts) for one in answers]
    return has_call.index(True) if True in has_call else len(answers)
