"""A bus that was emptied and opened again is another bus: clients that know the old one are refused, on both transports."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from gavel.v1.arbitration_service_pb2 import StreamProposalsResponse
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError, SyncGavelClient
from gavel_client.rpc.connection import BUS_INCARNATION_KEY
from gavel_server.front.programs import FrontSetting

from tests.e2e.world import COURIER, Server, approve, open_bus, proposal, publish_status, run_servers
from tests.support.fronts import TRANSPORTS

BUS_REPLACED: Final = (grpc.StatusCode.FAILED_PRECONDITION, "BUS_REPLACED")


@pytest.mark.parametrize("front", TRANSPORTS)
async def test_a_client_of_the_emptied_bus_is_refused(front: FrontSetting, tmp_path: Path) -> None:
    """After the loss of everything, the clients of before can neither write nor read the new bus; a new client can."""
    server = Server(tmp_path / "data", listen=f"unix:{tmp_path}/socket", options=["--front", front])
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client)
            approval = await approve(client, "parcel/1")
            fact = (await publish_status(client, ["parcel/2"]))["parcel/2"]
            with SyncGavelClient(server.address) as blocking:
                incarnation = blocking.get_status().bus_incarnation
                assert (await client.get_event(sequence_number=1)).envelope.event_id == incarnation
                assert 0 == await asyncio.to_thread(server.terminate)
                shutil.rmtree(tmp_path / "data")
                await asyncio.to_thread(server.start)
                await _refuses(client, approval.event_id, fact)
                with pytest.raises(GavelError) as refused:
                    blocking.publish_event(Envelope(subject="parcel/2", producer=fact.producer, fact=fact.fact))
                assert (*BUS_REPLACED,) == (refused.value.code, refused.value.reason)
        async with server.client() as fresh:
            assert incarnation != (await fresh.get_status()).bus_incarnation
            await open_bus(fresh)


async def _refuses(client: GavelClient, decision_id: str, fact: Envelope) -> None:
    """Check that every kind of call is refused."""

    async def first_of(stream: Any) -> StreamProposalsResponse:
        return await anext(stream)

    async def stream() -> Any:
        async def requests() -> Any:
            yield "one", proposal(fact)

        response = await first_of(client.stream_proposals(requests()))
        raise GavelError.from_status(response.error)

    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: client.submit_proposal(proposal(fact)),
        lambda: client.batch_submit_proposals([proposal(fact)]),
        lambda: client.preflight(proposal(fact)),
        lambda: client.publish_event(Envelope(subject=fact.subject, producer=fact.producer, fact=fact.fact)),
        lambda: client.begin_execution(decision_id, producer=COURIER),
        lambda: client.revoke_decision(decision_id, revoked_by="ada", reason="mistake"),
        lambda: client.deactivate_rule_set("deliveries"),
        lambda: client.get_event(event_id=decision_id),
        lambda: client.get_projection(fact.subject),
        lambda: first_of(client.subscribe_events()),
        lambda: first_of(client.verify_replay()),
        stream,
    ]
    for call in calls:
        with pytest.raises(GavelError) as refused:
            await call()
        assert BUS_REPLACED == (refused.value.code, refused.value.reason), refused.value


@pytest.mark.parametrize("front", TRANSPORTS)
async def test_a_known_bus_that_is_gone_is_not_opened(front: FrontSetting, tmp_path: Path) -> None:
    """A write that names an incarnation of a bus that does not exist opens no bus."""
    server = Server(tmp_path / "data", listen=f"unix:{tmp_path}/socket", options=["--front", front])
    with run_servers(server):
        async with GavelClient(f"unix:{tmp_path}/socket", bus="lost") as client:
            client._incarnations["lost"] = "00000000-0000-4000-8000-000000000001"
            for _ in range(2):
                with pytest.raises(GavelError) as refused:
                    await client.deactivate_rule_set("refunds")
                assert BUS_REPLACED == (refused.value.code, refused.value.reason)
            assert "00000000-0000-4000-8000-000000000001" in str(refused.value)
            client._incarnations.clear()
            with pytest.raises(GavelError) as refused:
                await client.get_status()
            assert "BUS_NOT_FOUND" == refused.value.reason
            await open_bus(client)  # by its first write
            opened = (await client.get_event(sequence_number=1)).envelope
            assert opened.event_id == (await client.get_status()).bus_incarnation
        assert "gavel-bus-incarnation" == BUS_INCARNATION_KEY
