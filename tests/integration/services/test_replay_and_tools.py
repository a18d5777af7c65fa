"""ReplayService and ToolService over real gRPC."""

from __future__ import annotations

import grpc
import pytest
from gavel.v1 import decision_pb2, execution_pb2, replay_service_pb2
from gavel.v1.replay_service_pb2 import VerifyReplayRequest, VerifyReplayResponse
from gavel.v1.tool_service_pb2 import (
    BindToolRequest,
    ListContractsRequest,
    RegisterContractRequest,
    RegisterProviderRequest,
    ResolveToolRequest,
)
from gavel_server.log import Record

from tests.integration.services.world import World, proposal, refusal, report


async def replay(world: World, **fields: object) -> list[VerifyReplayResponse]:
    """Return everything that a replay streams."""
    return [response async for response in world.replays.VerifyReplay(VerifyReplayRequest(**fields))]  # type: ignore[arg-type]


async def some_history(world: World) -> None:
    """Approvals, a rejection, an execution."""
    decision = await world.approve()
    await world.propose(proposal("order/1"))
    await world.report(report(decision, await world.begin(decision), execution_pb2.EXECUTION_STATUS_SUCCESS))
    await world.approve("order/2")


@pytest.mark.parametrize("engine", [decision_pb2.ENGINE_UNSPECIFIED, decision_pb2.ENGINE_RETE, decision_pb2.ENGINE_REFERENCE])
async def test_log_is_proved(governed: World, engine: decision_pb2.Engine.ValueType) -> None:
    """A replay streams progress up to the head and last the verdict that every decision came out equal."""
    await some_history(governed)
    head = await governed.head()

    *progress, last = await replay(governed, engine=engine)

    assert last.verdict.status == replay_service_pb2.REPLAY_STATUS_PROVED, last.verdict.message
    assert (last.verdict.proved, last.verdict.events, last.verdict.decisions) == (True, head, 3)
    assert {item.progress.to_sequence_number for item in progress} == {head}
    assert progress[-1].progress.sequence_number == head
    assert await governed.head() == head


async def test_changed_log_is_called_damaged(governed: World) -> None:
    """A flipped byte of a stored decision is DAMAGED at its number."""
    await some_history(governed)
    log = (await governed.buses.get("")).log
    records: list[Record] = log._records  # type: ignore[attr-defined]  # what an attacker with access to the store would do
    number = next(record.sequence_number for record in records if b"DecisionApproved" in record.envelope)
    stored = records[number - 1]
    records[number - 1] = Record(number, stored.envelope.replace(b"DecisionApproved", b"DecisionRejected"), stored.chain_hash)

    verdict = (await replay(governed))[-1].verdict

    assert (verdict.proved, verdict.status) == (False, replay_service_pb2.REPLAY_STATUS_DAMAGED)
    assert verdict.divergence.sequence_number == number


@pytest.mark.parametrize(
    ("fields", "violated"),
    [
        ({"from_sequence_number": -1, "to_sequence_number": -1}, ["from_sequence_number", "to_sequence_number"]),
        ({"engine": 9}, ["engine"]),
        ({"to_sequence_number": 99}, ["to_sequence_number"]),
        ({"from_sequence_number": 99}, ["to_sequence_number"]),
    ],
)
async def test_malformed_replays(world: World, fields: dict[str, int], violated: list[str]) -> None:
    """A range that the log does not hold, or an unknown engine, is INVALID_ARGUMENT."""
    heard = await refusal(replay(world, **fields))

    assert (heard.code, heard.fields) == (grpc.StatusCode.INVALID_ARGUMENT, violated)


async def test_replays_at_once_are_limited(governed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One replay more than the limit is RESOURCE_EXHAUSTED with a delay; when one is left, the next is served."""
    monkeypatch.setattr("gavel_server.services.replay.REPLAYS_MAX", 0)
    heard = await refusal(replay(governed))
    assert (heard.code, heard.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert heard.retry_after_ms > 0

    monkeypatch.setattr("gavel_server.services.replay.REPLAYS_MAX", 1)
    for _ in range(2):
        assert (await replay(governed))[-1].verdict.proved


async def test_tools_are_not_in_this_release(world: World) -> None:
    """Every call of ToolService is UNIMPLEMENTED, with a sentence."""
    tools = world.tools
    for call in (
        tools.RegisterContract(RegisterContractRequest()),
        tools.RegisterProvider(RegisterProviderRequest()),
        tools.BindTool(BindToolRequest()),
        tools.ResolveTool(ResolveToolRequest()),
        tools.ListContracts(ListContractsRequest()),
    ):
        heard = await refusal(call)
        assert (heard.code, heard.reason) == (grpc.StatusCode.UNIMPLEMENTED, "NOT_IMPLEMENTED")
        assert heard.message.endswith("is not available in this release")
