"""ReplayService over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc
import pytest
from gavel.v1 import decision_pb2, error_pb2, execution_pb2, replay_service_pb2
from gavel.v1.replay_service_pb2 import ReplayVerdict, VerifyReplayRequest, VerifyReplayResponse
from gavel_server.errors import ServiceError
from gavel_server.fairness.work_slots import replay_slots
from gavel_server.history.replay import verify
from gavel_server.log import Record
from gavel_server.rpc.call_context import CallContext, Caller
from gavel_server.services.replay import ReplayServicer

from tests.integration.services.world import World, fact, proposal, refusal, report


async def replay(world: World, **fields: object) -> list[VerifyReplayResponse]:
    """Return everything that a replay streams."""
    return [response async for response in world.replays.VerifyReplay(VerifyReplayRequest(**fields))]  # type: ignore[arg-type]


async def some_history(world: World) -> None:
    """Record approvals, a rejection and an execution."""
    decision = await world.approve()
    await world.propose(proposal("order/1"))
    await world.report(report(decision, await world.begin(decision), execution_pb2.EXECUTION_STATUS_SUCCESS))
    await world.approve("order/2")


@pytest.mark.parametrize("engine", [decision_pb2.ENGINE_UNSPECIFIED, decision_pb2.ENGINE_RETE, decision_pb2.ENGINE_REFERENCE])
async def test_intact_log_is_proved(world_with_rules: World, engine: decision_pb2.Engine.ValueType) -> None:
    """A replay streams progress up to the head and then the verdict that every decision is equal."""
    await some_history(world_with_rules)
    head = await world_with_rules.head()

    *progress, last = await replay(world_with_rules, engine=engine)

    assert last.verdict.status == replay_service_pb2.REPLAY_STATUS_PROVED, last.verdict.message
    assert (last.verdict.proved, last.verdict.events, last.verdict.decisions) == (True, head, 3)
    assert {item.progress.to_sequence_number for item in progress} == {head}
    assert progress[-1].progress.sequence_number == head
    assert await world_with_rules.head() == head


async def test_changed_byte_is_damage(world_with_rules: World) -> None:
    """A flipped byte of a stored decision is DAMAGED at its number."""
    await some_history(world_with_rules)
    log = (await world_with_rules.buses.open("")).log
    records: list[Record] = log._records  # type: ignore[attr-defined]  # what an attacker with access to the store would do
    number = next(record.sequence_number for record in records if b"DecisionApproved" in record.envelope)
    stored = records[number - 1]
    records[number - 1] = Record(number, stored.envelope.replace(b"DecisionApproved", b"DecisionRejected"), stored.chain_hash)

    verdict = (await replay(world_with_rules))[-1].verdict

    assert (verdict.proved, verdict.status) == (False, replay_service_pb2.REPLAY_STATUS_DAMAGED)
    assert verdict.divergence.sequence_number == number


@pytest.mark.parametrize(
    ("fields", "violated"),
    [
        ({"from_sequence_number": -1, "to_sequence_number": -1}, ["from_sequence_number", "to_sequence_number"]),
        ({"engine": 9}, ["engine"]),
        ({"to_sequence_number": 99}, ["to_sequence_number"]),
        ({"from_sequence_number": 99}, ["from_sequence_number"]),
        ({"from_sequence_number": 2, "to_sequence_number": 1}, ["to_sequence_number"]),
    ],
)
async def test_malformed_replays(world: World, fields: dict[str, int], violated: list[str]) -> None:
    """A range that the log does not hold, or an unknown engine, is INVALID_ARGUMENT."""
    problem = await refusal(replay(world, **fields))

    assert (problem.code, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, violated)


def replay_from(servicer: ReplayServicer, peer: str) -> AsyncGenerator[VerifyReplayResponse, None]:
    """Ask a servicer for a replay, as a caller at an address."""
    context = CallContext("gavel.v1.ReplayService/VerifyReplay", lambda: Caller("grpc.aio", peer, (), None))
    return servicer.VerifyReplay(VerifyReplayRequest(), context)


async def test_concurrent_replays_are_limited(world_with_rules: World) -> None:
    """A caller's second replay at once is refused with a delay; once the first has ended, replays are served again."""
    replaying, unlocked = asyncio.Event(), asyncio.Event()

    async def held(*arguments: Any, **options: Any) -> AsyncGenerator[VerifyReplayResponse, None]:
        replaying.set()
        await unlocked.wait()
        async for item in verify(*arguments, **options):
            yield item

    servicer = ReplayServicer(world_with_rules.buses, replay_slots(), held)

    async def verdict() -> ReplayVerdict:
        return [response async for response in replay_from(servicer, "ipv4:10.0.0.1:1")][-1].verdict

    first = asyncio.create_task(verdict())
    await replaying.wait()
    with pytest.raises(ServiceError) as refused:
        await verdict()
    assert error_pb2.ERROR_REASON_QUEUE_FULL == refused.value.reason
    assert refused.value.retry_after_ms > 0

    unlocked.set()
    assert (await first).proved
    for _ in range(2):
        assert (await verdict()).proved


async def test_one_replay_of_an_address_at_once(world: World) -> None:
    """An address has one of the two slots of replays, however many connections it has, and leaves the other one to others."""
    servicer = ReplayServicer(world.buses, replay_slots())
    await world.publish(fact("order/1", "order.status", "paid"))

    async with aclosing(replay_from(servicer, "ipv4:10.0.0.1:1")) as first, aclosing(replay_from(servicer, "ipv4:10.0.0.2:1")) as second:
        await anext(first)
        with pytest.raises(ServiceError) as refused:
            await anext(replay_from(servicer, "ipv4:10.0.0.1:2"))
        assert error_pb2.ERROR_REASON_QUEUE_FULL == refused.value.reason
        await anext(second)
