"""The table of rights: no RPC without a right, and each right alone opens exactly its RPCs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from gavel.v1.administration_service_pb2 import DeployGrantsRequest
from gavel_rules.identity.principal import Principal
from gavel_rules.identity.rights import RIGHT_OF_RPC, RIGHTS, RPCS_WITHOUT_RIGHT
from gavel_server.rpc.service_descriptors import HEALTH, REFLECTIONS, SERVICES

from tests.integration.services.identity.callers import ADMIN, KnowingInterceptor, by, reason_of, rpcs
from tests.integration.services.world import World, running_world

CALLER = Principal("caller", "token")
DOCUMENT = "gavel: v1\nname: one\nversion: 1\ngrants:\n  - {{to: [caller], may: [{right}]}}\n"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server with one administrator, on a bus without grants."""
    async with running_world(interceptor=KnowingInterceptor(), admins=["ada"]) as running:
        await running.buses.open("")
        yield running


def test_no_rpc_is_left_out() -> None:
    """Every RPC that the server describes needs exactly one right, or is open to all on purpose."""
    names = {f"{service.full_name}/{method.name}" for service in (*SERVICES, HEALTH, *REFLECTIONS) for method in service.methods}
    assert set() == names - RIGHT_OF_RPC.keys() - RPCS_WITHOUT_RIGHT
    assert set() == RIGHT_OF_RPC.keys() & RPCS_WITHOUT_RIGHT
    assert set() == RIGHT_OF_RPC.keys() - names


@pytest.mark.parametrize("right", [*RIGHTS, ""])
async def test_each_right_alone(world: World, right: str) -> None:
    """A caller with one right is refused by every RPC of another right, and by none of its own."""
    document = DOCUMENT.format(right=right) if right else "gavel: v1\nname: none\nversion: 1\ngrants: []\n"
    await world.administration.DeployGrants(DeployGrantsRequest(document=document), metadata=by(ADMIN))
    opened = set()
    for name, method in rpcs().items():
        if await reason_of(world, name, method, CALLER) != "RIGHT_LACKING":
            opened.add(name)
    assert {name for name, needed in RIGHT_OF_RPC.items() if needed == right} == opened - RPCS_WITHOUT_RIGHT
