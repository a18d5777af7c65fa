"""Preflight on a server that lags, and one mistake in a batch. In virtual time."""

from __future__ import annotations

import asyncio

import pytest
from gavel.v1.arbitration_service_pb2 import BatchPreflightRequest, BatchPreflightResponse, PreflightRequest, PreflightResponse
from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel_server.bus.sequencer import Sequencer
from gavel_server.buses import Buses
from gavel_server.compiler import Compiler
from gavel_server.errors import ServiceError
from gavel_server.log import LogUnavailableError
from gavel_server.services.arbitration import Arbitration
from google.protobuf.message import Message

from tests.unit.core.driver import BUS, proposal_envelope
from tests.unit.core.servers import Servers, reason, recorded, scene


async def arbitration(sequencer: Sequencer) -> Arbitration:
    """The service of one server."""

    async def opened(name: str) -> Sequencer:
        return sequencer

    buses = Buses(opened)
    await buses.get(BUS)
    return Arbitration(buses, Compiler())


async def ask(service: Arbitration, method: str, request: Message) -> bytes:
    """The answer's bytes. Raises ServiceError."""
    future: asyncio.Future[bytes | ServiceError] = asyncio.get_running_loop().create_future()
    service.methods[method](request.SerializeToString(), future.set_result)
    answer = await future
    if isinstance(answer, ServiceError):
        raise answer
    return answer


@scene
async def test_preflight_reads_on_like_a_submission(servers: Servers) -> None:
    """A proposal about what another server has just recorded gets the decision that submitting it would give."""
    one, _ = await servers.governed()
    lagging, _ = await servers.start()
    service = await arbitration(lagging)
    first = await recorded(one, servers.fact("cancelled"))
    await lagging.wait_for(first.sequence_number, 1_000)
    fact = await recorded(one, servers.fact())
    request = PreflightRequest(envelope=proposal_envelope([fact], projection_version=fact.sequence_number))
    response = PreflightResponse.FromString(await ask(service, "Preflight", request))
    assert (OUTCOME_APPROVED, "") == (response.decision.outcome, response.decision.reason_code)
    assert fact.sequence_number == response.evaluated_at_sequence_number


@scene
async def test_a_version_that_is_ahead_of_the_log_is_one_proposal_s_mistake(servers: Servers) -> None:
    """In a batch it is that item's error; the others get their decisions."""
    sequencer, _ = await servers.governed()
    service = await arbitration(sequencer)
    fact = await recorded(sequencer, servers.fact())
    request = BatchPreflightRequest(
        envelopes=[proposal_envelope([fact]), proposal_envelope([fact], projection_version=1_000), proposal_envelope([fact])]
    )
    response = BatchPreflightResponse.FromString(await ask(service, "BatchPreflight", request))
    assert ["decision", "error", "decision"] == [result.WhichOneof("result") for result in response.results]
    alone = PreflightRequest(envelope=request.envelopes[1])
    with pytest.raises(ServiceError) as caught:
        await ask(service, "Preflight", alone)
    assert "INVALID_REQUEST" == reason(caught.value)


@scene
async def test_reading_on_ends_whatever_happens(servers: Servers) -> None:
    """Who wants the newest state gets what there is, also while the log is away and while the server stops."""
    sequencer, log = await servers.start()
    other, _ = await servers.start()
    fact = await recorded(other, servers.fact())
    await sequencer.read_on()
    assert fact.sequence_number == sequencer.head.sequence_number
    log.broken = LogUnavailableError("connection refused")
    await asyncio.wait_for(sequencer.read_on(), 5)
    await asyncio.wait_for(sequencer.read_on(), 5)
    log.broken = None
    await asyncio.sleep(1)
    reading = asyncio.create_task(sequencer.read_on())
    await asyncio.sleep(0)
    await sequencer.stop()
    await asyncio.wait_for(reading, 5)
    await asyncio.wait_for(sequencer.read_on(), 5)
