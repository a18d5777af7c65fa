"""Calls under way end when their callers lose the right that the calls need: silent streams, and long audits and replays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import Any

import grpc
import pytest
from gavel.v1.administration_service_pb2 import DeployGrantsRequest
from gavel.v1.audit_service_pb2 import AuditDecisionRequest
from gavel.v1.event_service_pb2 import SubscribeEventsRequest
from gavel.v1.replay_service_pb2 import VerifyReplayRequest
from gavel.v1.work_service_pb2 import WORK_QUEUE_DECISIONS, ConsumeRequest, OpenConsumer
from gavel.v1.work_service_pb2_grpc import WorkServiceStub
from gavel_server.history import replay
from gavel_server.rpc.service_descriptors import HEALTH
from gavel_server.rpc.transport import bind, make_server
from gavel_server.services import audit
from gavel_server.services.health import BUS_PREFIX, HealthServicer, check_health_access
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from tests.integration.services.identity.callers import ADMIN, STRANGER, KnowingInterceptor, by
from tests.integration.services.world import World, refusal, running_world

SECONDS_MAX = 30


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server whose callers are authenticated, with rules in force."""
    async with running_world(interceptor=KnowingInterceptor(), admins=["ada"]) as running:
        await running.buses.open("")
        await running.activate()
        yield running


async def deploy(world: World, version: int, may: str) -> None:
    """Deploy grants that give a stranger some rights."""
    document = f"gavel: v1\nname: main\nversion: {version}\ngrants:\n  - {{to: [ada], may: [grant]}}\n  - {{to: [mallory], may: [{may}]}}\n"
    await world.administration.DeployGrants(DeployGrantsRequest(document=document), metadata=by(ADMIN))


class Endless:
    """Work of the server that does not end until it is told to, and notes whether it was cut off."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.released = asyncio.Event()
        self.is_cut_off = False

    async def run(self, *_: Any) -> Any:
        """Wait."""
        self.begun.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.is_cut_off = True
            raise


def audit_of(world: World, decision_id: str, *, without_recomputation: bool = False) -> Awaitable[Any]:
    """Begin an audit as the stranger."""
    request = AuditDecisionRequest(decision_id=decision_id, without_recomputation=without_recomputation)
    return asyncio.ensure_future(world.audits.AuditDecision(request, metadata=by(STRANGER), timeout=SECONDS_MAX))


@pytest.mark.parametrize(("lost", "remaining"), [("read", "replay"), ("replay", "read")])
async def test_an_audit_ends_with_its_rights(world: World, monkeypatch: pytest.MonkeyPatch, lost: str, remaining: str) -> None:
    """An audit that makes decisions again ends, with its work, when its caller loses the right to read or to replay."""
    decision = await world.approve("order/1")
    await deploy(world, 1, "read, replay")
    work = Endless()
    monkeypatch.setattr(audit, "repeat_decisions", work.run)
    call = audit_of(world, decision.event_id)
    async with asyncio.timeout(SECONDS_MAX):
        await work.begun.wait()
        world.access.open_calls.end_refused()
        await deploy(world, 2, remaining)
        world.access.open_calls.end_refused()
        error = await refusal(call)
    assert ("RIGHT_LACKING", True) == (error.reason, work.is_cut_off)
    assert f"may not {lost}" in error.message or f"the right {lost}" in error.message


async def test_an_answer_without_the_right(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read whose caller has lost the right at its end is not answered, also if the loss was not noticed before."""
    decision = await world.approve("order/1")
    await deploy(world, 1, "read")
    work = Endless()
    monkeypatch.setattr(audit, "_add_facts", work.run)
    call = audit_of(world, decision.event_id, without_recomputation=True)
    async with asyncio.timeout(SECONDS_MAX):
        await work.begun.wait()
        await deploy(world, 2, "tools")
        work.released.set()
        assert "RIGHT_LACKING" == (await refusal(call)).reason


async def test_a_replay_ends_with_the_right(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that works between two messages ends when its caller loses the right to replay."""
    await deploy(world, 1, "replay")
    work = Endless()
    monkeypatch.setattr(replay, "_range", work.run)
    stream = world.replays.VerifyReplay(VerifyReplayRequest(), metadata=by(STRANGER), timeout=SECONDS_MAX)
    call = asyncio.ensure_future(stream.read())
    async with asyncio.timeout(SECONDS_MAX):
        await work.begun.wait()
        await deploy(world, 2, "tools")
        world.access.open_calls.end_refused()
        assert "RIGHT_LACKING" == (await refusal(call)).reason
    assert work.is_cut_off


async def test_silent_streams_end_with_the_right(world: World) -> None:
    """A subscription to later events and a consumer without work end when their callers lose the right, and others go on."""

    async def requests() -> AsyncIterator[ConsumeRequest]:
        yield ConsumeRequest(open=OpenConsumer(queue=WORK_QUEUE_DECISIONS, group="executors"))
        await asyncio.Event().wait()

    def streams(who: Any) -> list[Any]:
        request = SubscribeEventsRequest(from_sequence_number=1_000)
        return [
            world.events.SubscribeEvents(request, metadata=by(who), timeout=SECONDS_MAX),
            WorkServiceStub(world.channel).Consume(requests(), metadata=by(who), timeout=SECONDS_MAX),
        ]

    await deploy(world, 1, "subscribe, execute")
    subscription, work = streams(STRANGER)
    assert (await work.read()).HasField("opened")
    waiting = [asyncio.ensure_future(subscription.read()), asyncio.ensure_future(work.read())]
    await subscription.initial_metadata()
    world.access.open_calls.end_refused()
    await deploy(world, 2, "subscribe, execute, tools")
    world.access.open_calls.end_refused()
    done, _ = await asyncio.wait(waiting, timeout=0.2)
    assert set() == done
    await deploy(world, 3, "tools")
    world.access.open_calls.end_refused()
    assert ["RIGHT_LACKING"] * 2 == [(await refusal(call)).reason for call in waiting]


async def test_a_silent_watch_ends_with_the_right(world: World) -> None:
    """A watch of the health of a bus ends when its caller loses the right to read the bus, although the health stays as it is."""
    await deploy(world, 1, "read")
    server, health = make_server(), HealthServicer(world.buses)
    guard = partial(check_health_access, access=world.access, is_required=True)
    KnowingInterceptor().register_library(server, HEALTH, health, guard)
    address = bind(server, "127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch", HealthCheckRequest.SerializeToString)
        statuses = watch(HealthCheckRequest(service=f"{BUS_PREFIX}default"), metadata=by(STRANGER), timeout=SECONDS_MAX)
        serving = HealthCheckResponse(status=HealthCheckResponse.SERVING)
        assert serving == HealthCheckResponse.FromString(await statuses.read())
        await deploy(world, 2, "tools")
        assert "RIGHT_LACKING" == (await refusal(statuses.read())).reason
    await server.stop(None)
