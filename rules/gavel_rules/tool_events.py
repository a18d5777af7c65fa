"""Completion of tool events: the execution_id of a call, and the versions and schemas that the registry of tools has for it.

Call and result are paired by the execution_id (constitution 001), so no two calls may have the same one. A field that the producer sets
stays as it is: the log shows which schema the producer followed, and the registry which one was in force.
"""

from __future__ import annotations

from functools import partial

from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_pb2 import ToolCall, ToolResult

from gavel_rules.commands import Fault
from gavel_rules.events.ids import tool_execution_id
from gavel_rules.recorder import Recorder


def complete_call(recorder: Recorder, envelope: Envelope) -> Fault | None:
    """Fill in the empty fields of a tool call, or return a fault if another call has its execution_id."""
    state = recorder.state
    if not state.semantics.pairs_tool_calls:
        return None
    call = envelope.tool_call
    execution_id = call.execution_id or tool_execution_id(envelope.event_id)
    if state.has_tool_call(execution_id, recorder.now_ms):
        return Fault(
            error_pb2.ERROR_REASON_EXECUTION_ID_REUSED,
            f"another tool call of this bus has execution_id {execution_id}; every call needs a new one, or none: the server makes it",
        )
    _fill(recorder, call, "execution_id", execution_id)
    registered = state.tools.contracts.get(call.tool_name)
    if registered is not None:
        _fill(recorder, call, "tool_version", registered.contract.version)
        _fill(recorder, call, "request_schema_hash", registered.argument_schema_hash)
    return None


def complete_result(recorder: Recorder, envelope: Envelope) -> None:
    """Fill in the empty fields of a tool result. A failed call has no result that a schema could describe."""
    state = recorder.state
    result = envelope.tool_result
    registered = state.tools.contracts.get(result.tool_name)
    if state.semantics.pairs_tool_calls and registered is not None and not result.is_error:
        _fill(recorder, result, "tool_version", registered.contract.version)
        _fill(recorder, result, "response_schema_hash", registered.result_schema_hash)


def _fill(recorder: Recorder, event: ToolCall | ToolResult, field: str, value: str) -> None:
    """Set a field that the producer left empty."""
    if not getattr(event, field):
        setattr(event, field, value)
        recorder.state.on_undo(partial(event.ClearField, field))  # type: ignore[arg-type]  # a field of both messages, or of the one given
