"""An agent that waits for the facts of a trusted channel."""

from __future__ import annotations

import asyncio

from gavel.v1.common_pb2 import PRODUCER_TYPE_DATABASE_SNAPSHOT, Producer
from gavel.v1.decision_pb2 import FactRequirement
from gavel_client import FactNeed, GavelClient, fact_envelope, proposal_envelope, wait_for_facts

from tests.e2e.world import ACTION, AGENT, DAY_MS, DEPOT, WAIT_SECONDS_MAX


async def test_only_facts_that_meet_the_need_end_the_wait(clients: tuple[GavelClient, GavelClient]) -> None:
    """The wait ends with facts of the need's subject, keys and sources that follow the rejection, also before the wait."""
    client = clients[0]

    async def publish(subject: str, key: str, value: object, producer: Producer = DEPOT) -> str:
        return (await client.publish_event(fact_envelope(subject, producer, key=key, value=value))).envelope.event_id

    stale = await publish("parcel/1", "parcel.size", 3)
    proposal = proposal_envelope("parcel/1", AGENT, action_type=ACTION, params={"weight": 1.0}, max_fact_age_ms=DAY_MS)
    rejection = (await client.submit_proposal(proposal)).decision
    rows = (FactRequirement(key="parcel.status", sources=[DEPOT.id]), FactRequirement(key="parcel.size"))
    status = await publish("parcel/1", "parcel.status", "ready")
    waiting = asyncio.ensure_future(wait_for_facts(client, FactNeed("parcel/1", rows, rejection.trace_id, rejection.event_id)))
    await publish("parcel/10", "parcel.size", 4)
    await publish("parcel/1", "parcel.colour", "red")
    other = await publish("parcel/1", "parcel.status", "lost", Producer(type=PRODUCER_TYPE_DATABASE_SNAPSHOT, id="stranger"))
    assert not waiting.done()
    size = await publish("parcel/1", "parcel.size", 5)
    event_ids = {event.event_id for event in await asyncio.wait_for(waiting, WAIT_SECONDS_MAX)}
    assert {status, size} == event_ids
    assert event_ids.isdisjoint({stale, other})
