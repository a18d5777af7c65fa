"""Pydantic AI: a capability that lets a tool run only through the gate.

The gate stands around the toolset, inside the hooks of other capabilities: it asks about what the tool gets, and reports what it did. A
call that waits for a person ends the run with `DeferredToolRequests`. Approving it in the next run only asks the gate again.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

from gavel_client.adapters.extras import extra
from gavel_client.adapters.pydantic_calls import Arguments, Run, answers_before, run_call, turn_of, with_turn
from gavel_client.gate import Gate

with extra("pydantic-ai"):
    from pydantic_ai import RunContext, ToolDefinition
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.output import OutputContext
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

# In the metadata of a tool whose calls go through the gated toolset.
GATED: Final = "gavel_gated"


@dataclass
class GavelCapability(AbstractCapability[Any]):
    """Asks `gate` before each call of a tool. An agent whose calls may wait has `DeferredToolRequests` among its output types.

    Give runs that may be repeated a `conversation_id`.
    """

    gate: Gate

    _before = 0  # the answers of the model before this run

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:
        """Return the capability of one run."""
        capability = copy(self)
        capability._before = answers_before(ctx)
        return capability

    def get_ordering(self) -> CapabilityOrdering:
        """Stand inside all other capabilities."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        """Return the toolset behind the gate."""
        return _GatedToolset(toolset, self.gate, self._before)

    async def after_model_request(self, ctx: RunContext[Any], *, response: ModelResponse, **_: Any) -> ModelResponse:
        """Name the turn of the calls in an answer of the model."""
        return with_turn(response, self._before + ctx.run_step)

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Arguments, handler: Run
    ) -> Any:
        """Run a tool that another capability has put around the toolset, or tell the model why not."""
        has_gate = (tool_def.metadata or {}).get(GATED)
        turn = turn_of(ctx, self._before)
        return await (handler(args) if has_gate else run_call(self.gate, tool_def.name, args, ctx, turn, handler))

    async def wrap_output_process(self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any, handler: Run) -> Any:
        """Refuse an output function that is not a read: no decision can be awaited there. Raises UserError."""
        name = output_context.function_name or "of a union"
        if output_context.has_function and not self.gate.reads(name):
            raise UserError(f"the output function {name} has no gate and did not run; make it a tool, or name it in reads")
        return await handler(output)


@dataclass
class _GatedToolset(WrapperToolset[Any]):
    gate: Gate
    before: int

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        tools = await super().get_tools(ctx)
        marked = {name: replace(tool.tool_def, metadata={**(tool.tool_def.metadata or {}), GATED: True}) for name, tool in tools.items()}
        return {name: replace(tool, tool_def=marked[name]) for name, tool in tools.items()}

    async def call_tool(self, name: str, tool_args: Arguments, ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
        turn = turn_of(ctx, self.before)
        return await run_call(self.gate, name, tool_args, ctx, turn, lambda args: self.wrapped.call_tool(name, args, ctx, tool))
