"""Streams of work on a real server with grants, on both transports."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from gavel.v1.administration_service_pb2 import CreateBusRequest, CreateBusResponse, DeployGrantsRequest, DeployGrantsResponse
from gavel.v1.work_service_pb2 import WORK_QUEUE_DECISIONS, WORK_QUEUE_EXECUTIONS, WORK_QUEUE_REQUESTS, WorkQueue
from gavel_client import GavelClient, GavelError
from gavel_rules.identity.rights import RIGHTS
from gavel_server.identity.tokens import PREFIX

from tests.e2e.identity.granted import ADMIN, GrantedServer
from tests.e2e.work.consumer import consume
from tests.e2e.world import WAIT_SECONDS_MAX, approve, open_bus

GRANTS = f"""
gavel: v1
name: work
version: 2
grants:
  - {{to: [{ADMIN}], may: [{", ".join(RIGHTS)}]}}
  - {{to: [may-execute], may: [execute], actions: ["parcel.*"], subjects: ["parcel/1"]}}
  - {{to: [nobody], may: [execute], actions: ["parcel.*"], subjects: ["parcel/2"]}}
"""


def grants_of(name: str, executor: str, version: int) -> str:
    """Return grants of which one caller's name differs."""
    return GRANTS.replace("name: work\nversion: 2", f"name: {name}\nversion: {version}").replace("[may-execute]", f"[{executor}]")


async def groups_of(client: GavelClient) -> set[str]:
    """Return the names of the groups of a bus."""
    return {consumer.group for consumer in (await client.list_consumers()).consumers}


async def refusal_of(client: GavelClient, queue: WorkQueue.ValueType) -> GavelError:
    """Return the error of a stream that the server refuses. A stream whose status gRPC has lost is opened again."""
    while True:
        with pytest.raises(GavelError) as refused:
            async with consume(client, group="intruders", queue=queue):
                pass
        if refused.value.code is not grpc.StatusCode.UNAVAILABLE:
            return refused.value


async def test_consumers_of_different_rights_share_a_group(granted: GrantedServer) -> None:
    """Each consumer of a group gets the items that it may execute, uncounted by what others could not take."""
    address = granted.server.address
    async with GavelClient(address, credentials=granted.tokens[ADMIN]) as admin:
        await open_bus(admin)
        expected = {subject: (await approve(admin, subject)).event_id for subject in ("parcel/2", "parcel/1")}
    granted.deploy(GRANTS)
    async with (
        GavelClient(address, credentials=granted.tokens["may-execute"]) as first,
        GavelClient(address, credentials=granted.tokens["nobody"]) as second,
        consume(first, in_flight_max=100) as one,
        consume(second) as two,
    ):
        item = await one.next()
        assert (expected["parcel/1"], 1) == (item.envelope.event_id, item.delivery)
        other = await two.next()
        assert (expected["parcel/2"], 1) == (other.envelope.event_id, other.delivery)
        one.acknowledge(other)
        assert other.item_id == await one.next_not_held()


@pytest.mark.parametrize("queue", [WORK_QUEUE_DECISIONS, WORK_QUEUE_EXECUTIONS, WORK_QUEUE_REQUESTS])
async def test_work_of_buses_that_a_caller_may_not_use(granted: GrantedServer, queue: WorkQueue.ValueType) -> None:
    """No stream opens on a bus without a grant for the caller. The refusals are alike whether the bus exists, and no group is created."""
    bus = f"closed-{queue}"
    granted.call("gavel.v1.AdministrationService/CreateBus", ADMIN, CreateBusRequest(bus=bus), CreateBusResponse)
    own = grants_of("own", "another-executor", 1).replace("[nobody]", "[others]")
    granted.call("gavel.v1.AdministrationService/DeployGrants", ADMIN, DeployGrantsRequest(bus=bus, document=own), DeployGrantsResponse)
    async with GavelClient(granted.server.address, bus=bus, credentials=granted.tokens[ADMIN]) as admin:
        for caller in ("may-execute", "may-read", "nobody"):
            messages = []
            for name in (bus, f"none-{queue}"):
                async with GavelClient(granted.server.address, bus=name, credentials=granted.tokens[caller]) as client:
                    refused = await refusal_of(client, queue)
                assert "RIGHT_LACKING" == refused.reason
                messages.append(refused.message.replace(name, "BUS"))
            assert messages[0] == messages[1]
        assert "intruders" not in await groups_of(admin)
        async with GavelClient(granted.server.address, bus=bus, credentials=PREFIX + "x" * 43) as stranger:
            assert "UNAUTHENTICATED" == (await refusal_of(stranger, queue)).reason


async def test_a_silent_stream_ends_with_the_right(granted: GrantedServer) -> None:
    """A consumer that waits for work is told when its grant is gone, without another message from either side."""
    granted.deploy(grants_of("silent", "may-execute", 31))
    async with (
        GavelClient(granted.server.address, credentials=granted.tokens["may-execute"]) as client,
        consume(client, group="silent", queue=WORK_QUEUE_REQUESTS) as stream,
    ):
        waiting = asyncio.ensure_future(stream.next_response())
        granted.deploy(grants_of("silent", "another-executor", 32))
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            with pytest.raises(GavelError) as ended:
                await waiting
    assert "RIGHT_LACKING" == ended.value.reason
