"""Streams of work on a real server with grants, on both transports."""

from __future__ import annotations

from gavel_client import GavelClient
from gavel_rules.identity.rights import RIGHTS

from tests.e2e.identity.granted import ADMIN, GrantedServer
from tests.e2e.work.consumer import consume
from tests.e2e.world import approve, open_bus

GRANTS = f"""
gavel: v1
name: work
version: 2
grants:
  - {{to: [{ADMIN}], may: [{", ".join(RIGHTS)}]}}
  - {{to: [may-execute], may: [execute], actions: ["parcel.*"], subjects: ["parcel/1"]}}
  - {{to: [nobody], may: [execute], actions: ["parcel.*"], subjects: ["parcel/2"]}}
"""


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
