"""LangChain and LangGraph: a middleware for `create_agent` that lets a tool run only through the gate.

A call that waits for a person interrupts the graph. The value with which the graph is resumed is ignored; the gate is asked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from gavel_client.adapters.approved_tool import NO_TOOL, ApprovedTool, own
from gavel_client.adapters.extras import extra
from gavel_client.adapters.graph_events import name_events
from gavel_client.adapters.graph_turns import AnswerState, call_of, with_turn
from gavel_client.gate import Allowed, Gate, Pending, SyncAllowed, SyncGate
from gavel_client.rpc.errors import HandlerError

with extra("langgraph"):
    from langchain.agents.middleware import AgentMiddleware
    from langchain.agents.middleware.types import ModelCallResult, ModelRequest, ModelResponse, ToolCallRequest
    from langchain.messages import ToolMessage
    from langgraph.types import Command, interrupt

Message = ToolMessage | Command[Any]
Question = ModelRequest[Any]
Reply = ModelResponse[Any]


class GavelMiddleware(AgentMiddleware[Any, Any, Any]):
    """Asks `gate` before each call of a tool. The graph needs a checkpointer, and a `thread_id` in its configuration.

    Name it last in the agent's list of middleware: one that comes after it may answer in place of an approved tool.
    """

    state_schema = AnswerState

    def __init__(self, gate: Gate | SyncGate) -> None:
        super().__init__()
        self._gate = gate

    def wrap_model_call(self, request: Question, handler: Callable[[Question], Reply]) -> ModelCallResult[Any]:
        """Name the turn of the calls in an answer of the model."""
        return with_turn(request, handler(request))

    async def awrap_model_call(self, request: Question, handler: Callable[[Question], Awaitable[Reply]]) -> ModelCallResult[Any]:
        """Name the turn of the calls in an answer of the model."""
        return with_turn(request, await handler(request))

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Message]) -> Message:
        """Run a tool of a synchronous graph. Needs a SyncGate."""
        if not isinstance(self._gate, SyncGate):
            raise TypeError("this graph is synchronous; give GavelMiddleware a SyncGate in place of a Gate")
        if request.tool is None:
            return _message(request, NO_TOOL)
        request = own(request)
        while isinstance(answer := self._gate(call_of(request)), Pending):
            interrupt(answer.to_dict())
        if not isinstance(answer, SyncAllowed):
            return _message(request, answer.message(), answer.succeeded)
        if answer.decision is None:
            return handler(request)
        approved = ApprovedTool(request)
        try:
            return cast(Message, name_events(answer.run(lambda: handler(approved.request), approved.result), answer.decision))
        except HandlerError as error:
            return _message(request, str(error))

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Message]]) -> Message:
        """Run a tool of a graph in an event loop. Needs a Gate."""
        if not isinstance(self._gate, Gate):
            raise TypeError("this graph runs in an event loop; give GavelMiddleware a Gate in place of a SyncGate")
        if request.tool is None:
            return _message(request, NO_TOOL)
        request = own(request)
        while isinstance(answer := await self._gate(call_of(request)), Pending):
            interrupt(answer.to_dict())
        if not isinstance(answer, Allowed):
            return _message(request, answer.message(), answer.succeeded)
        if answer.decision is None:
            return await handler(request)
        approved = ApprovedTool(request)
        try:
            return cast(Message, name_events(await answer.run(lambda: handler(approved.request), approved.result), answer.decision))
        except HandlerError as error:
            return _message(request, str(error))


def _message(request: ToolCallRequest, text: str, succeeded: bool = False) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="success" if succeeded else "error")
