"""The tool of one approved call in LangChain, as other middleware gets it: it runs once, with the approved arguments."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from copy import copy, deepcopy
from typing import Any, Final

from gavel_client.adapters.extras import extra
from gavel_client.gate.results import failure, success, unknown
from gavel_client.handlers import HandlerResult
from gavel_client.rpc.errors import HandlerError

with extra("langgraph"):
    from langchain.agents.middleware.types import ToolCallRequest
    from langchain.messages import ToolMessage
    from langgraph.types import Command

CALL_DIFFERS: Final = "CALL_DIFFERS"
NO_TOOL: Final = "The tool was not called: the agent does not have it. Name GavelMiddleware after the middleware that adds it."


class ApprovedTool:
    """Runs the tool of an approved request once. `request` is the one to hand on: its tool is a copy that asks here before it runs."""

    def __init__(self, request: ToolCallRequest) -> None:
        if request.tool is None:
            raise ValueError(f"the agent has no tool {request.tool_call['name']}")
        self._original = request.tool
        self._arguments = deepcopy(request.tool_call["args"])  # the request goes through other middleware
        self._has_run = False
        self._result: HandlerResult | None = None
        self._error: BaseException | None = None
        tool = copy(request.tool)
        object.__setattr__(tool, "invoke", self._invoke)  # of the copy alone: they are methods of its class
        object.__setattr__(tool, "ainvoke", self._ainvoke)
        self.request = request.override(tool=tool)

    def result(self, answer: object) -> HandlerResult:
        """Return the report of a call for which other middleware has returned `answer`: it tells how the tool itself ended."""
        if self._error is not None:
            return failure(self._error)
        return self._result or unknown("another middleware answered in place of the tool")

    def _invoke(self, call: Any, *rest: Any, **options: Any) -> Any:
        if (refusal := self._refuse(call)) is not None:
            return refusal
        try:
            output = self._original.invoke(call, *rest, **options)
            self._result = _result_of(output, call["id"])
        except BaseException as error:
            self._error = error
            raise
        return output

    async def _ainvoke(self, call: Any, *rest: Any, **options: Any) -> Any:
        if (refusal := self._refuse(call)) is not None:
            return refusal
        try:
            output = await self._original.ainvoke(call, *rest, **options)
            self._result = _result_of(output, call["id"])
        except BaseException as error:
            self._error = error
            raise
        return output

    def _refuse(self, call: Any) -> ToolMessage | None:
        """Return what the model gets in place of a call that was not approved; None for the approved one, which begins."""
        if self._has_run:
            problem = "it has run already, and an approval is for one run"
        elif self._chosen(call["args"]) != self._arguments:
            problem = "a middleware has changed its arguments after the approval; name GavelMiddleware last"
            self._error = HandlerError(CALL_DIFFERS, problem)
        else:
            self._has_run, self._error = True, None
            return None
        text = f"The tool {self._original.name} was not called: {problem}."
        return ToolMessage(text, name=self._original.name, tool_call_id=call["id"], status="error")

    def _chosen(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments without those that LangGraph injects, which no schema names for the model."""
        names = set(self._arguments)
        with suppress(KeyError):  # a JSON Schema without properties
            names.update(self._original.args)
        return {name: value for name, value in arguments.items() if name in names}


def own(request: ToolCallRequest) -> ToolCallRequest:
    """Return a request with arguments that nobody changes while the call waits."""
    return request.override(tool_call={**request.tool_call, "args": deepcopy(request.tool_call["args"])})


def _result_of(output: object, call_id: str) -> HandlerResult:
    """Return the report of a tool that has returned. Tools may return their errors, as messages, beside messages about other calls."""
    if any(message.status == "error" and message.tool_call_id == call_id for message in _messages(output)):
        return unknown("the tool returned an error")
    return success(output.content if isinstance(output, ToolMessage) else None)


def _messages(output: object) -> list[ToolMessage]:
    """Return the messages in the output of a tool: itself, and those of a list, of a state, and of the update of a Command."""
    if isinstance(output, ToolMessage):
        return [output]
    if isinstance(output, Command):
        return _messages(output.update)
    if isinstance(output, Mapping):
        return [message for value in output.values() for message in _messages(value)]
    if isinstance(output, list | tuple):  # the update of a Command may be pairs of names and values
        return [message for item in output for message in _messages(item)]
    return []
