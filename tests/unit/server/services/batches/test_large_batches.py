"""A large batch of proposals is decoded and admitted in turns. In virtual time."""

from __future__ import annotations

import asyncio

import pytest
from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsRequest, BatchSubmitProposalsResponse
from gavel_server.errors import ServiceError
from gavel_server.process import time_slice

from tests.support.calls import call_arbitration
from tests.support.driver import proposal_envelope
from tests.support.simulation.servers import Servers, record_event, with_servers
from tests.unit.server.services.test_preflight import arbitration


@with_servers
async def test_other_tasks_run_while_a_large_batch_is_admitted(servers: Servers) -> None:
    """Other tasks run between the proposals of a large batch; each is answered in its place, an invalid one with its error."""
    sequencer, _ = await servers.start_with_rules()
    service = await arbitration(sequencer)
    fact = await record_event(sequencer, servers.fact())
    proposals = [proposal_envelope([fact], trace_id=f"trace-{number}", expected_outcome="x" * 2_000) for number in range(50)]
    proposals[7].subject = "no subject"
    request = BatchSubmitProposalsRequest(envelopes=proposals)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time_slice, "SLICE_SECONDS", -1.0)  # every proposal takes longer
        submitting = asyncio.create_task(call_arbitration(service, "BatchSubmitProposals", request))
        rounds = 0
        while not submitting.done():
            await asyncio.sleep(0)
            rounds += 1
    assert rounds > 100
    results = BatchSubmitProposalsResponse.FromString(await submitting).results
    assert [7] == [index for index, result in enumerate(results) if result.HasField("error")]
    traces = [result.decision.trace_id for result in results]
    assert [f"trace-{number}" for number in range(50) if number != 7] == traces[:7] + traces[8:]
    await servers.prove()


@with_servers
async def test_large_batch_without_a_proposal(servers: Servers) -> None:
    """A large batch is refused as a whole for the reasons that a small one is."""
    sequencer, _ = await servers.start_with_rules()
    service = await arbitration(sequencer)
    with pytest.raises(ServiceError) as refused:
        await call_arbitration(service, "BatchSubmitProposals", BatchSubmitProposalsRequest(bus="x" * 100_000))
    assert [("envelopes", "has 0 items; 1 to 500 are allowed")] == [*refused.value.violations]
