"""The table of rights: no RPC without a right, and each right alone opens exactly its RPCs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from gavel.v1.administration_service_pb2 import DeployGrantsRequest
from gavel_rules.identity.principal import Principal
from gavel_rules.identity.rights import RIGHT_OF_RPC, RIGHTS, RPCS_WITHOUT_RIGHT
from gavel_server.rpc.service_descriptors import HEALTH, REFLECTIONS, SERVICES
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status

from tests.integration.services.identity.callers import ADMIN, KnowingInterceptor, by
from tests.integration.services.world import World, refusal_of, running_world

CALLER = Principal("caller", "token")
DOCUMENT = "gavel: v1\nname: one\nversion: 1\ngrants:\n  - {{to: [caller], may: [{right}]}}\n"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server with one administrator, on a bus without grants."""
    async with running_world(interceptor=KnowingInterceptor(), admins=["ada"]) as running:
        await running.buses.open("")
        yield running


def rpcs() -> dict[str, MethodDescriptor]:
    """Every RPC of the contract, by its name."""
    return {f"{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}


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
        if await _reason(world, name, method) != "RIGHT_LACKING":
            opened.add(name)
    assert {name for name, needed in RIGHT_OF_RPC.items() if needed == right} == opened - RPCS_WITHOUT_RIGHT


async def _reason(world: World, name: str, method: MethodDescriptor) -> str:
    """Return the reason with which an empty call is refused, "" if it is not."""
    data = GetMessageClass(method.input_type)(**({"bus": "new"} if method.name == "CreateBus" else {})).SerializeToString()
    shape = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    call: Any = getattr(world.channel, shape)(f"/{name}")
    try:
        if method.client_streaming:
            answers = call(iter([data]), metadata=by(CALLER), timeout=30)
        else:
            answers = call(data, metadata=by(CALLER), timeout=30)
        if not method.server_streaming:
            await answers
            return ""
        async for answer in answers:
            return _reason_in(answer, method)
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it reads the trailers, which this has
        return "" if status is None else refusal_of(status, error.code()).reason
    finally:
        if method.server_streaming:
            answers.cancel()
    return ""


def _reason_in(answer: bytes, method: MethodDescriptor) -> str:
    """Return the reason in a response of a stream whose requests are answered one by one."""
    response: Any = GetMessageClass(method.output_type).FromString(answer)
    return refusal_of(response.error).reason if "error" in response.DESCRIPTOR.fields_by_name and response.HasField("error") else ""
