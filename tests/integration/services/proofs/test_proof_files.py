"""The file of `gavel proof`, for decisions of any age."""

from __future__ import annotations

import asyncio

import pytest
from gavel.v1.proof_service_pb2 import PublishCheckpointRequest
from gavel_client import SyncGavelClient
from gavel_server.cli.commands.proofs.proof import prove
from gavel_server.cli.errors import CommandError
from gavel_server.proofs.verifier import check_events

from tests.integration.services.proofs.test_proof_service import checkpoint_of, records_of
from tests.integration.services.world import World, fact
from tests.support.entries import DAY_MS


def proof_lines(address: str, decision: str) -> list[str]:
    """Return what the proof file of a decision proves."""
    with SyncGavelClient(address) as client:
        return check_events(prove(client, decision))


async def test_a_decision_older_than_the_idempotency_window(world_with_rules: World) -> None:
    """By its number a decision is proved at any age, also one whose proposal is older; by its id the answer asks for the number."""
    world = world_with_rules
    approval = await world.approve()
    world.clock.now_ms += 8 * DAY_MS
    await world.publish(fact("order/2", "order.status", "delivered"))  # which lets the approval expire
    expiry = approval.sequence_number + 1
    world.clock.now_ms += 8 * DAY_MS
    await world.publish(fact("order/2", "order.status", "lost"))
    for table in (await world.buses.open("")).recent_events.tables:
        table.clear()  # as a server has them that has started since
    checkpoint = await checkpoint_of(world, len(await records_of(world)))
    await world.proofs.PublishCheckpoint(PublishCheckpointRequest(checkpoint=str(checkpoint)))

    for number, outcome in ((approval.sequence_number, "APPROVED"), (expiry, "EXPIRED")):
        first, second, *lines = await asyncio.to_thread(proof_lines, world.address, str(number))
        assert f"is event {number} of gavel/default" in first
        assert outcome in second
        assert f"proposal   event {approval.sequence_number - 1} {approval.decision.proposal_id}" in lines
    with pytest.raises(CommandError, match=r"remembers ids for 7 days \(EVENT_NOT_FOUND\); name an older decision by its sequence number"):
        await asyncio.to_thread(proof_lines, world.address, approval.event_id)
