"""A call of a tool in Pydantic AI, behind the gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

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
# The key of the turn in the metadata of an answer.
TURN: Final = "gavel_turn"


async def run_call(gate: Gate, name: str, arguments: Arguments, ctx: RunContext[Any], turn: int, run: Run) -> Any:
    """Run a tool by `run`, or tell the model why not."""
    arguments = deepcopy(arguments)  # nobody changes them while the call waits
    answer = await gate(Call(name, arguments, ctx.conversation_id or ctx.run_id or "", str(turn)))
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


def answers_before(ctx: RunContext[Any]) -> int:
    """Return the number of the model's answers in the conversation before this run."""
    earlier = [message for message in _answers(ctx) if message.run_id != ctx.run_id]
    return max([len(earlier), *(_turn_in(message) for message in earlier)])


def with_turn(response: ModelResponse, turn: int) -> ModelResponse:
    """Return the model's answer with its turn, for a run that resumes its calls."""
    return replace(response, metadata={**(response.metadata or {}), TURN: turn})


def turn_of(ctx: RunContext[Any], before: int) -> int:
    """Return the number of the model's answer that has the call, whatever has been removed from the history.

    `before` is the number of answers before this run. An answer of an earlier run carries its turn; without it, its place counts.
    """
    answers = _answers(ctx)
    for place, answer in reversed(list(enumerate(answers))):
        if any(isinstance(part, ToolCallPart) and part.tool_call_id == ctx.tool_call_id for part in answer.parts):
            if answer.run_id != ctx.run_id:
                return _turn_in(answer) or place + 1
            break
    return before + ctx.run_step


def _answers(ctx: RunContext[Any]) -> list[ModelResponse]:
    return [message for message in ctx.messages if isinstance(message, ModelResponse)]


def _turn_in(answer: ModelResponse) -> int:
    """Return the turn that an answer carries; 0: none."""
    turn = (answer.metadata or {}).get(TURN)
    return turn if isinstance(turn, int) else 0
