"""What callers learn of others: of buses, callers and decisions that are none of their business."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from gavel.v1.administration_service_pb2 import CreateBusRequest, DeployGrantsRequest, ListBusesRequest, WhoAmIRequest
from gavel.v1.arbitration_service_pb2 import RevokeDecisionRequest
from gavel.v1.execution_service_pb2 import BeginExecutionRequest
from gavel.v1.projection_service_pb2 import GetStatusRequest
from gavel_rules.identity.principal import Principal
from gavel_server.bus.registry import IDLE_ROUNDS_MAX
from gavel_server.errors import ServiceError
from gavel_server.fairness.callers import address_of, caller_of
from gavel_server.log import EventLog
from gavel_server.log.memory import MemoryLog

from tests.integration.services.identity.callers import ADMIN, PAYMENTS, REVIEWER, STRANGER, KnowingInterceptor, by
from tests.integration.services.world import EXECUTOR, Clock, World, refusal, running_world

TENANT = Principal("tenant", "token")
OTHER = Principal("other-tenant", "jwt", "https://issuer.example", ("others",))
GRANTS = "gavel: v1\nname: main\nversion: 1\ngrants:\n  - {to: [ada], may: [grant, operate]}\n"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server of several buses, whose logs last when a bus is closed in the server."""
    logs: dict[str, EventLog] = {}

    async def open_log(bus: str, clock: Clock) -> EventLog:
        return logs.setdefault(bus, MemoryLog(bus, clock))

    async def names() -> list[str]:
        return [*logs]

    async with running_world(open_log, interceptor=KnowingInterceptor(), admins=["ada"], names=names) as running:
        await running.buses.open("")
        yield running


async def deploy(world: World, *grants: str, bus: str = "") -> None:
    """Put grants in force."""
    document = GRANTS + "".join(f"  - {{{grant}}}\n" for grant in grants)
    await world.administration.DeployGrants(DeployGrantsRequest(bus=bus, document=document), metadata=by(ADMIN))


async def test_buses_are_not_opened_for_strangers(world: World) -> None:
    """ListBuses and WhoAmI open no bus for callers without rights, and tell them nothing of it; others they serve as before."""
    for bus in ("one", "two"):
        await world.administration.CreateBus(CreateBusRequest(bus=bus), metadata=by(ADMIN))
        await deploy(world, "to: [tenant], may: [read]" if bus == "one" else "to: [service:payments], may: [read]", bus=bus)
    await deploy(world)
    names = {"default", "one", "two"}

    async def listed(principal: Principal) -> list[str]:
        return [bus.name for bus in (await world.administration.ListBuses(ListBusesRequest(), metadata=by(principal))).buses]

    async def rights(principal: Principal, bus: str) -> tuple[list[str], bool]:
        answer = await world.administration.WhoAmI(WhoAmIRequest(bus=bus), metadata=by(principal))
        return list(answer.rights), bool(answer.grants_digest)

    for is_closed in (False, True):
        if is_closed:
            for _ in range(IDLE_ROUNDS_MAX + 1):
                world.buses.close_idle()
            assert ["default"] == [sequencer.bus for sequencer in world.buses.all()]
        assert [] == await listed(STRANGER)
        for bus in (*names, "none"):
            assert ([], False) == await rights(STRANGER, bus)
        assert is_closed == (["default"] == [sequencer.bus for sequencer in world.buses.all()])
    assert (["read"], True) == await rights(TENANT, "one")
    assert ["one"] == await listed(TENANT)
    assert "two" not in {sequencer.bus for sequencer in world.buses.all()}
    assert ["grant", "operate"] == (await rights(ADMIN, "two"))[0]


async def test_strangers_do_not_keep_buses_open(world: World) -> None:
    """A bus whose only callers have no right there is closed as one that nobody calls."""
    await world.administration.CreateBus(CreateBusRequest(bus="one"), metadata=by(ADMIN))
    await deploy(world, bus="one")
    await deploy(world)
    for _ in range(IDLE_ROUNDS_MAX + 1):
        await world.administration.ListBuses(ListBusesRequest(), metadata=by(STRANGER))
        await world.administration.WhoAmI(WhoAmIRequest(bus="one"), metadata=by(STRANGER))
        world.buses.close_idle()
    assert ["default"] == [sequencer.bus for sequencer in world.buses.all()]


async def test_throttled_callers_of_other_buses_are_hidden() -> None:
    """GetStatus names the throttled callers that have rights on the bus, and the caller itself, by their names; administrators see all."""
    interceptor = KnowingInterceptor()
    async with running_world(interceptor=interceptor, admins=["ada"]) as world:
        await world.buses.open("")
        await deploy(world, "to: [ada, tenant, service:payments], may: [read]", "to: [rita], may: [review]")
        for principal in (PAYMENTS, REVIEWER, OTHER):
            caller = address_of(caller_of("127.0.0.1:1", principal))
            interceptor.quotas.charge(caller, 1 << 50, principal)  # overdraws the bytes for long
            with pytest.raises(ServiceError):
                interceptor.quotas.charge(caller, 1, principal)

        async def throttled(viewer: Principal) -> list[str]:
            status = await world.projections.GetStatus(GetStatusRequest(), metadata=by(viewer))
            return sorted(one.caller for one in status.throttled_callers)

        assert sorted([PAYMENTS.name, REVIEWER.name]) == await throttled(TENANT)
        assert sorted([OTHER.name, PAYMENTS.name, REVIEWER.name]) == await throttled(ADMIN)


async def test_refusals_do_not_tell_what_a_decision_is_about(world: World) -> None:
    """A caller that knows a decision by its id alone learns neither action nor subject, unless it may read."""
    await world.activate()
    decision = await world.approve("order/1")
    may_begin = "to: [mallory], may: [execute, revoke], actions: [parcel.create]"
    await deploy(world, may_begin, "to: [tenant], may: [execute, revoke, read], subjects: [parcel/1]")
    begin = BeginExecutionRequest(decision_id=decision.event_id, producer=EXECUTOR)
    revoke = RevokeDecisionRequest(decision_id=decision.event_id, reason="no")
    for principal, is_told in ((STRANGER, False), (TENANT, True)):
        for call in (
            world.executions.BeginExecution(begin, metadata=by(principal)),
            world.arbitration.RevokeDecision(revoke, metadata=by(principal)),
        ):
            refused = await refusal(call)
            assert "RIGHT_LACKING" == refused.reason
            assert is_told == ("refund.create" in refused.message or "order/1" in refused.message), refused.message
