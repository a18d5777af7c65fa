"""A call of a tool in Google ADK: its kind of session, the turn that it belongs to, and the report of what the tool returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gavel_client.gate.results import paused, success, unknown
from gavel_client.handlers import HandlerResult

if TYPE_CHECKING:
    from google.adk.tools.tool_context import ToolContext


def is_live(tool_context: ToolContext) -> bool:
    """Report whether a call is one of a live session."""
    return tool_context.get_invocation_context().live_request_queue is not None


def turn_of(tool_context: ToolContext) -> str:
    """Return the invocation, and the number of the model's answer in it that has the call, or the path of the workflow's node."""
    answers = [event for event in tool_context.session.events if event.get_function_calls()]
    for event in answers:
        if any(call.id == tool_context.function_call_id for call in event.get_function_calls()):
            same = [one.id for one in answers if one.invocation_id == event.invocation_id]
            return f"{event.invocation_id}/{same.index(event.id)}"
    # A node of a workflow calls its tool under a new id whenever it runs.
    place = tool_context.function_call_id if tool_context.node is None else tool_context.node_path
    return f"{tool_context.invocation_id}/{place}"


def result_of(output: Any, tool_context: ToolContext) -> HandlerResult:
    """Return the report of a tool that has returned. ADK's own tools return errors in place of raising them."""
    actions, call_id = tool_context.actions, tool_context.function_call_id
    if call_id in actions.requested_tool_confirmations or call_id in actions.requested_auth_configs:
        return paused()
    if isinstance(output, dict) and (output.get("error") or output.get("isError") or output.get("is_error")):
        return unknown("the tool returned an error")
    return success(output)
