"""A bus that is not open in a server: who may open it by calling it, and who is refused without opening it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from gavel.v1.administration_service_pb2 import CreateBusRequest, DeployGrantsRequest, ListBusesRequest, WhoAmIRequest
from gavel.v1.projection_service_pb2 import GetStatusRequest
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.identity.rights import RIGHT_OF_RPC
from gavel_server.bus.registry import IDLE_ROUNDS_MAX
from gavel_server.log import EventLog
from gavel_server.log.memory import MemoryLog

from tests.integration.services.identity.callers import ADMIN, STRANGER, KnowingInterceptor, by, reason_of, rpcs
from tests.integration.services.world import Clock, World, refusal, running_world

TENANT = Principal("tenant", "token")
GRANTS = "gavel: v1\nname: main\nversion: {}\ngrants:\n  - {{to: [ada], may: [grant]}}\n  - {{to: [{}], may: [read]}}\n"
# Opens no bus whoever calls: CreateBus is about the grants of the default bus.
CREATE_BUS = "gavel.v1.AdministrationService/CreateBus"

Serve = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def serve() -> Serve:
    """Servers of one log store; the administrator alone has rights on the default bus."""
    logs: dict[str, EventLog] = {}

    async def open_log(bus: str, clock: Clock) -> EventLog:
        return logs.setdefault(bus, MemoryLog(bus, clock))

    async def names() -> list[str]:
        return [*logs]

    @asynccontextmanager
    async def serve(*, tells_grants: bool = True) -> AsyncIterator[World]:
        interceptor = KnowingInterceptor()
        async with running_world(open_log, interceptor=interceptor, admins=["ada"], names=names, tells_grants=tells_grants) as running:
            await running.buses.open("")
            yield running

    return serve


async def deploy(world: World, bus: str, version: int, reader: str) -> None:
    """Let one caller read a bus."""
    await world.administration.DeployGrants(DeployGrantsRequest(bus=bus, document=GRANTS.format(version, reader)), metadata=by(ADMIN))


async def close_all(world: World) -> None:
    """Close all buses but the default one."""
    for _ in range(IDLE_ROUNDS_MAX + 1):
        world.buses.close_idle()
    assert ["default"] == open_buses(world)


def open_buses(world: World) -> list[str]:
    """Return the names of the buses that are open."""
    return [sequencer.bus for sequencer in world.buses.all()]


async def test_strangers_open_no_bus(serve: Serve) -> None:
    """Every RPC that needs a right refuses a caller without it as on an open bus, and opens neither a bus with grants nor one without."""
    async with serve() as world:
        for bus in ("granted", "bare"):
            await world.administration.CreateBus(CreateBusRequest(bus=bus), metadata=by(ADMIN))
        await deploy(world, "granted", 1, "tenant")
        methods = {name: method for name, method in rpcs().items() if name in RIGHT_OF_RPC and name != CREATE_BUS}
        status = GetStatusRequest(bus="granted")
        on_an_open_bus = await refusal(world.projections.GetStatus(status, metadata=by(STRANGER)))
        await close_all(world)
        assert on_an_open_bus == await refusal(world.projections.GetStatus(status, metadata=by(STRANGER)))
        for bus in ("granted", "bare"):
            reasons = {name: await reason_of(world, name, method, STRANGER, bus) for name, method in methods.items()}
            assert dict.fromkeys(methods, "RIGHT_LACKING") == reasons
        for caller, reason in ((STRANGER, "RIGHT_LACKING"), (ADMIN, "BUS_NOT_FOUND")):
            assert {reason} == {await reason_of(world, name, method, caller, "none") for name, method in methods.items()}
        assert ["default"] == open_buses(world)


async def test_callers_with_a_right_open_their_bus(serve: Serve) -> None:
    """A server that has never opened a bus serves the callers that its grants name, as they are in the log now."""
    async with serve() as world:
        await world.administration.CreateBus(CreateBusRequest(bus="one"), metadata=by(ADMIN))
        await deploy(world, "one", 1, "somebody")
    async with serve() as world:
        assert "RIGHT_LACKING" == (await refusal(world.projections.GetStatus(GetStatusRequest(bus="one"), metadata=by(TENANT)))).reason
        async with serve() as other:
            await deploy(other, "one", 2, "tenant")
        assert ["default"] == open_buses(world)
        assert ["read"] == list((await world.administration.WhoAmI(WhoAmIRequest(bus="one"), metadata=by(TENANT))).rights)
        assert ["default", "one"] == open_buses(world)
        await close_all(world)
        assert 3 == (await world.projections.GetStatus(GetStatusRequest(bus="one"), metadata=by(TENANT))).head_sequence_number


async def test_a_list_of_buses_opens_none(serve: Serve) -> None:
    """A list of buses names the closed ones that the caller may read, with their heads, and opens none of them, nor keeps any open."""
    async with serve() as world:
        for bus in ("bare", "one", "two"):
            await world.administration.CreateBus(CreateBusRequest(bus=bus), metadata=by(ADMIN))
        await deploy(world, "one", 1, "tenant")
        await deploy(world, "two", 1, "somebody")

        async def listed(caller: Principal, **fields: int) -> list[tuple[str, int]]:
            response = await world.administration.ListBuses(ListBusesRequest(**fields), metadata=by(caller))  # type: ignore[arg-type]
            return [(bus.name, bus.head_sequence_number) for bus in response.buses]

        expected = {TENANT: [("one", 2)], STRANGER: [], ADMIN: [("bare", 1), ("default", 1)], ANONYMOUS: [("bare", 1), ("default", 1)]}
        assert expected == {caller: await listed(caller) for caller in expected}
        for _ in range(IDLE_ROUNDS_MAX + 1):
            assert expected == {caller: await listed(caller) for caller in expected}
            world.buses.close_idle()
        assert ["default"] == open_buses(world)
        assert expected == {caller: await listed(caller) for caller in expected}
        assert [("bare", 1)] == await listed(ADMIN, page_size=1)
        assert ["default"] == open_buses(world)


async def test_a_log_that_does_not_tell_its_grants(serve: Serve) -> None:
    """A bus whose grants are unknown is opened to read them; ListBuses and WhoAmI do so only for callers with a right on an open bus."""
    async with serve(tells_grants=False) as world:
        await world.administration.CreateBus(CreateBusRequest(bus="one"), metadata=by(ADMIN))
        await deploy(world, "one", 1, "tenant")
        await close_all(world)
        for caller in (STRANGER, TENANT):
            assert [] == list((await world.administration.WhoAmI(WhoAmIRequest(bus="one"), metadata=by(caller))).rights)
            assert [] == list((await world.administration.ListBuses(ListBusesRequest(), metadata=by(caller))).buses)
        assert ["default"] == open_buses(world)
        await deploy(world, "", 1, "tenant")
        assert ["read"] == list((await world.administration.WhoAmI(WhoAmIRequest(bus="one"), metadata=by(TENANT))).rights)
        await close_all(world)
        assert "RIGHT_LACKING" == (await refusal(world.projections.GetStatus(GetStatusRequest(bus="one"), metadata=by(STRANGER)))).reason
        assert ["default", "one"] == open_buses(world)


async def test_strangers_keep_no_bus_open(serve: Serve) -> None:
    """Refused calls do not count as use of an open bus, which is closed as if nobody called it."""
    async with serve() as world:
        await world.administration.CreateBus(CreateBusRequest(bus="one"), metadata=by(ADMIN))
        request = GetStatusRequest(bus="one")
        for _ in range(IDLE_ROUNDS_MAX + 1):
            assert "RIGHT_LACKING" == (await refusal(world.projections.GetStatus(request, metadata=by(STRANGER)))).reason
            world.buses.close_idle()
        assert ["default"] == open_buses(world)
