"""Pydantic AI: a capability that lets a tool run only through the gate.

A call that waits for a person ends the run with `DeferredToolRequests`. Approving it in the next run only asks the gate again, with the
arguments that the tool is to get.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from gavel_client.adapters.extras import extra
from gavel_client.gate import Allowed, Call, Gate, Pending
from gavel_client.rpc.errors import HandlerError

with extra("pydantic-ai"):
    from pydantic_ai import RunContext, ToolDefinition
    from pydantic_ai.capabilities import AbstractCapability, ValidatedToolArgs, WrapToolExecuteHandler
    from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
    from pydantic_ai.messages import ModelResponse, ToolCallPart


@dataclass
class GavelCapability(AbstractCapability[Any]):
    """Asks `gate` before each call of a tool. An agent whose calls may wait has `DeferredToolRequests` among its output types.

    Give runs that may be repeated a `conversation_id`.
    """

    gate: Gate

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: ValidatedToolArgs,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Run a tool, or tell the model why not."""
        task = ctx.conversation_id or ctx.run_id or ""
        args = deepcopy(args)  # nobody changes them while the call waits
        answer = await self.gate(Call(tool_def.name, args, task, str(_turn(ctx, call))))
        if isinstance(answer, Pending):
            raise ApprovalRequired(answer.to_dict())
        if not isinstance(answer, Allowed):
            if answer.succeeded:
                return answer.message()
            raise ToolFailed(answer.message())
        try:
            return await answer.run(lambda: handler(args))
        except HandlerError as error:
            raise ToolFailed(str(error)) from error


def _turn(ctx: RunContext[Any], call: ToolCallPart) -> int:
    """Return the number of the model's answer that has the call."""
    answers = [message for message in ctx.messages if isinstance(message, ModelResponse)]
    has_call = [any(isinstance(part, ToolCallPart) and part.tool_call_id == call.tool_call_id for part in one.parts) for one in answers]
    return has_call.index(True) if True in has_call else len(answers)
