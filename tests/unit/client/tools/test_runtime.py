"""The runtime's own checks, and the results of handlers that call tools. tests/integration/services/tools has the steps of a call."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, SyncGavelClient, tool_call_envelope, tool_result_envelope
from gavel_client.handlers import ExecutionContext, HandlerResult
from gavel_client.tools import FunctionProvider, ToolFailure, ToolOutcome, ToolRuntime, errors

FAILED, UNKNOWN = HandlerResult.failed, HandlerResult.timeout


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errors.ARGS, FAILED),
        (errors.PATH, FAILED),
        (errors.CONFLICT, FAILED),
        (errors.QUOTA, FAILED),
        (errors.PERMISSION, FAILED),
        (errors.TIMEOUT, UNKNOWN),
        (errors.LOST, UNKNOWN),
        (errors.TOOL, UNKNOWN),
    ],
)
def test_a_failed_call_is_the_handlers_result(code: str, expected: Any) -> None:
    """A failure without effect is FAILED, one with unknown effect TIMEOUT; a result is a success."""
    now = datetime.now(UTC)
    texts = ["requested_tool", "canonical_tool", "tool_version", "provider_id", "execution_id", "arguments_hash", "result_hash"]
    texts += ["request_schema_hash", "response_schema_hash", "evidence_uri", "evidence_hash"]
    fields: dict[str, Any] = {**dict.fromkeys(texts, ""), "started_at": now, "finished_at": now, "call": Envelope(), "result": Envelope()}
    assert expected(code, "no") == ToolOutcome(ok=False, data=None, error=ToolFailure(code, "no"), **fields).handler_result()
    late = ToolFailure(code, "no", may_have_acted=True)
    assert UNKNOWN(code, "no") == ToolOutcome(ok=False, data=None, error=late, **fields).handler_result()
    assert HandlerResult.success({"n": 1}) == ToolOutcome(ok=True, data={"n": 1}, error=None, **fields).handler_result()


def test_redactions_are_not_the_handlers_result() -> None:
    """What a contract redacts is in the data of the caller, and not in the result that the log gets."""
    now = datetime.now(UTC)
    texts = ["requested_tool", "canonical_tool", "tool_version", "provider_id", "execution_id", "arguments_hash", "result_hash"]
    texts += ["request_schema_hash", "response_schema_hash", "evidence_uri", "evidence_hash"]
    fields: dict[str, Any] = {**dict.fromkeys(texts, ""), "started_at": now, "finished_at": now, "call": Envelope(), "result": Envelope()}
    data = {"id": 7, "token": "secret"}
    outcome = ToolOutcome(ok=True, data=data, error=None, redactions=("/result/token", "/arguments/id"), **fields)
    assert (data, HandlerResult.success({"id": 7, "token": "[redacted]"})) == (outcome.data, outcome.handler_result())


def test_wrong_arguments_of_a_runtime() -> None:
    """A synchronous client, and two providers of one name, are refused at once."""
    with SyncGavelClient("127.0.0.1:1") as client, pytest.raises(TypeError, match="use a GavelClient"):
        ToolRuntime(client, "tools-1", providers=[])  # type: ignore[arg-type]  # what a caller must not pass
    twice = [FunctionProvider("numbers", {}), FunctionProvider("numbers", {})]
    with pytest.raises(ValueError, match="the same provider_id"):
        ToolRuntime(GavelClient("127.0.0.1:1"), "tools-1", providers=twice)


async def test_a_handler_without_a_runtime() -> None:
    """A handler that calls a tool learns that its executor has no runtime."""
    context = ExecutionContext(Envelope(), {}, 1, "exec_000000000000")
    with pytest.raises(RuntimeError, match="Executor"):
        await context.call_tool("a")
    with pytest.raises(RuntimeError, match="Executor"):
        context.call_tool_blocking("a")
    runtime = ToolRuntime(GavelClient("127.0.0.1:1"), "tools-1", providers=[])
    with pytest.raises(RuntimeError, match="async with"):
        runtime.execute_blocking("a", context)


def test_hashes_replace_values() -> None:
    """Builders of tool events take hashes in place of arguments and results, and fill the times."""
    agent = Producer(type=PRODUCER_TYPE_AGENT, id="agent-1")
    values = tool_call_envelope("a/1", agent, tool_name="a", arguments={"n": 1})
    call = tool_call_envelope("a/1", agent, tool_name="a", arguments_hash=values.tool_call.arguments_hash)
    assert values.tool_call.arguments_hash == call.tool_call.arguments_hash
    results = [tool_result_envelope(call, result={"n": 1}), tool_result_envelope(call, result_hash=values.tool_call.arguments_hash)]
    assert results[0].tool_result.content_hash == results[1].tool_result.content_hash
    for result in results:
        assert call.tool_call.started_at == result.tool_result.started_at
        assert result.tool_result.HasField("finished_at")
