"""The tool of one approved call in LangChain: what runs is what was approved, and what is reported is what the tool did.

Tests import the framework themselves: processes that only collect them are spared the seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from gavel_client.handlers import HandlerResult

if TYPE_CHECKING:
    from gavel_client.adapters.approved_tool import ApprovedTool

SENT = "sent 1"


def approved(act: Callable[..., Any], arguments: dict[str, Any], **options: Any) -> ApprovedTool:
    """Return the approved call of a tool that does `act`."""
    from gavel_client.adapters.approved_tool import ApprovedTool
    from langchain.agents.middleware.types import ToolCallRequest
    from langchain_core.tools import StructuredTool

    tool = StructuredTool.from_function(act, name="send", description="Send it.", **options)
    call: Any = {"name": "send", "args": arguments, "id": "call-1", "type": "tool_call"}
    return ApprovedTool(ToolCallRequest(call, tool, {}, None))  # type: ignore[arg-type]  # no runtime


async def run(tool: ApprovedTool, is_async: bool) -> Any:
    """Run the tool of a request as LangGraph does."""
    request = tool.request
    assert request.tool is not None
    call: Any = request.tool_call
    return await request.tool.ainvoke(call) if is_async else request.tool.invoke(call)


def test_a_tool_that_has_not_run_is_not_a_success() -> None:
    """A tool that has not run is not reported as a success, whatever other middleware answers."""
    tool = approved(lambda parcel: SENT, {"parcel": "1"})
    assert "PARTIAL" in status(tool.result("from a cache"))


@pytest.mark.parametrize("is_async", [True, False])
async def test_arguments_that_change_in_place_do_not_run(is_async: bool) -> None:
    """A call whose nested arguments a middleware changes in place, without a new request, does not run."""
    effects: list[Any] = []

    def send(parcel: dict[str, Any]) -> str:
        effects.append(parcel)
        return SENT

    tool = approved(send, {"parcel": {"id": "1", "stops": ["a"]}})
    tool.request.tool_call["args"]["parcel"]["stops"].append("b")
    answer = await run(tool, is_async)
    assert "changed its arguments" in answer.content
    assert ([], "FAILED CALL_DIFFERS") == (effects, status(tool.result(answer)))


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_error_that_a_middleware_rebuilds_is_not_a_success(is_async: bool) -> None:
    """A tool that answers its exception with a message is PARTIAL, also if a middleware returns the text as another message."""
    from langchain.messages import ToolMessage
    from langchain_core.tools import ToolException

    def send(parcel: str) -> str:
        raise ToolException("lost")

    tool = approved(send, {"parcel": "1"}, handle_tool_error=True)
    answer = await run(tool, is_async)
    answer.status = "success"
    assert "PARTIAL TOOL_ERROR" == status(tool.result(ToolMessage(answer.content, tool_call_id="call-1")))


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("kind", ["command", "list", "pairs"])
@pytest.mark.parametrize("has_failed", [True, False])
async def test_an_error_within_a_command_is_not_a_success(kind: str, has_failed: bool, is_async: bool) -> None:
    """A tool that returns a Command or a list with the message of an error is PARTIAL; without one it has succeeded."""
    from langchain.messages import ToolMessage
    from langgraph.types import Command

    message = ToolMessage("lost", tool_call_id="call-1", status="error" if has_failed else "success")
    outputs: dict[str, Any] = {
        "command": Command(update={"messages": [message], "parcel": 1}),
        "list": [Command(update={"parcel": 1}), message],
        "pairs": Command(update=[("parcel", 1), ("messages", [message])]),
    }

    def send(parcel: str) -> Any:
        return outputs[kind]

    tool = approved(send, {"parcel": "1"})
    answer = await run(tool, is_async)
    assert ("PARTIAL TOOL_ERROR" if has_failed else "SUCCESS") == status(tool.result(answer))


@pytest.mark.parametrize("is_async", [True, False])
async def test_errors_of_other_calls_are_not_the_tools(is_async: bool) -> None:
    """A tool that hands on a history with the error of an earlier call has succeeded."""
    from langchain.messages import ToolMessage
    from langgraph.types import Command

    earlier = ToolMessage("lost", tool_call_id="call-0", status="error")

    def send(parcel: str) -> Any:
        return Command(update={"messages": [earlier, ToolMessage(SENT, tool_call_id="call-1")]})

    tool = approved(send, {"parcel": "1"})
    answer = await run(tool, is_async)
    assert "SUCCESS" == status(tool.result(answer))


async def test_the_report_has_the_output_of_the_tool() -> None:
    """The report of a success has what the tool returned, not what a middleware made of it."""
    from langchain.messages import ToolMessage

    def send(parcel: str) -> str:
        return SENT

    tool = approved(send, {"parcel": "1"})
    await run(tool, is_async=True)
    result = tool.result(ToolMessage("something else", tool_call_id="call-1"))
    assert ("SUCCESS", {"output": SENT}) == (status(result), result.result)


def status(result: HandlerResult) -> str:
    """Return the status of a report with its error code."""
    from gavel.v1.execution_pb2 import ExecutionStatus

    return f"{ExecutionStatus.Name(result.status).removeprefix('EXECUTION_STATUS_')} {result.error_code}".rstrip()
