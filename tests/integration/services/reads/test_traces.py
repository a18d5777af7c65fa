"""EventService.GetTrace over real gRPC: the events of a trace, and the pairs of its tool calls and results."""

from __future__ import annotations

import re

import grpc
import pytest
from gavel.v1 import event_service_pb2
from gavel.v1.event_service_pb2 import (
    GetTraceRequest,
)

from tests.integration.services.world import (
    World,
    fact,
    refusal,
    some_uuid,
    tool_call,
    tool_result,
)


async def test_trace_holds_its_events_only(world: World) -> None:
    """GetTrace answers exactly the events of the trace, oldest first."""
    await world.publish(fact("order/1", "order.status", "paid", trace_id="other-t"))
    for _ in range(3):
        await world.publish(fact("order/1", "order.status", "paid", trace_id="t"))

    answer = await world.events.GetTrace(GetTraceRequest(trace_id="t"))

    assert [envelope.sequence_number for envelope in answer.envelopes] == [3, 4, 5]
    assert not answer.truncated


async def test_trace_is_truncated_at_its_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace longer than the limit is truncated, and the response says so."""
    monkeypatch.setattr("gavel_server.services.event.TRACE_EVENTS_MAX", 3)
    for _ in range(4):
        await world.publish(fact("order/1", "order.status", "paid", trace_id="t"))

    answer = await world.events.GetTrace(GetTraceRequest(trace_id="t"))

    assert [envelope.sequence_number for envelope in answer.envelopes] == [2, 3, 4]
    assert answer.truncated


async def test_large_trace_fits_the_message_limit_of_clients(world: World) -> None:
    """A trace of large events is cut below the 4 MiB that clients take by default."""
    for _ in range(8):
        await world.publish(fact("order/1", "order.notes", ["x" * 60_000] * 10, trace_id="t"))

    answer = await world.events.GetTrace(GetTraceRequest(trace_id="t"))

    assert answer.truncated
    assert answer.ByteSize() < 4 * 1024 * 1024


async def test_trace_pairs_calls_with_results(world: World) -> None:
    """Calls and results are paired by execution_id, else by name; open calls, orphans and second results are shown."""
    one, two = "exec_000000000001", "exec_000000000002"
    call_1 = await world.publish(tool_call("t", execution_id=one))
    call_2 = await world.publish(tool_call("t"))
    result_1 = await world.publish(tool_result("t", execution_id=one))
    result_2 = await world.publish(tool_result("t"))
    again_1 = await world.publish(tool_result("t", execution_id=one))
    orphan = await world.publish(tool_result("t", tool="other", execution_id=two))
    call_3 = await world.publish(tool_call("t", tool="third"))

    pairs = (await world.events.GetTrace(GetTraceRequest(trace_id="t"))).pairs

    assert [(pair.state, pair.call_event_id, pair.result_event_id) for pair in pairs] == [
        (event_service_pb2.TOOL_PAIR_STATE_PAIRED, call_1.event_id, result_1.event_id),
        (event_service_pb2.TOOL_PAIR_STATE_PAIRED_BY_NAME, call_2.event_id, result_2.event_id),
        (event_service_pb2.TOOL_PAIR_STATE_DUPLICATE_RESULT, call_1.event_id, again_1.event_id),
        (event_service_pb2.TOOL_PAIR_STATE_ORPHAN_RESULT, "", orphan.event_id),
        (event_service_pb2.TOOL_PAIR_STATE_OPEN, call_3.event_id, ""),
    ]
    assert [pair.execution_id for pair in pairs] == [one, call_2.tool_call.execution_id, one, two, call_3.tool_call.execution_id]
    assert all(re.fullmatch("exec_[0-9a-f]{12}", pair.execution_id) for pair in pairs)


async def test_an_execution_id_belongs_to_one_call(world: World) -> None:
    """A tool call with the execution_id of another one is ALREADY_EXISTS; the same call again is answered as before."""
    call = tool_call("t", event_id=some_uuid())
    first = await world.publish(call)
    assert (await world.publish(call)).sequence_number == first.sequence_number
    problem = await refusal(world.publish(tool_call("t", execution_id=first.tool_call.execution_id)))
    assert (grpc.StatusCode.ALREADY_EXISTS, "EXECUTION_ID_REUSED") == (problem.code, problem.reason)


@pytest.mark.parametrize("trace_id", ["", "x" * 129, "tab\t", "ö"])
async def test_invalid_trace_id(world: World, trace_id: str) -> None:
    """A trace_id that no event can have is INVALID_ARGUMENT."""
    problem = await refusal(world.events.GetTrace(GetTraceRequest(trace_id=trace_id)))

    assert (problem.code, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["trace_id"])
