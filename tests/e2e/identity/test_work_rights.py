"""Streams of work on a real server with grants, on both transports."""

from __future__ import annotations

import asyncio

import pytest
from gavel.v1.work_service_pb2 import WORK_QUEUE_REQUESTS
from gavel_client import GavelClient, GavelError
from gavel_rules.identity.rights import RIGHTS

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
