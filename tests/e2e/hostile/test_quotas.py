"""Quotas of a caller, on servers with low ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from gavel.v1.event_service_pb2 import SubscribeEventsRequest, SubscribeEventsResponse
from gavel.v1.event_service_pb2_grpc import EventServiceStub
from gavel.v1.projection_service_pb2 import GetStatusRequest
from gavel.v1.projection_service_pb2_grpc import ProjectionServiceStub
from gavel_client import fact_envelope
from gavel_server.front.programs import FrontSetting
from google.rpc.error_details_pb2 import ErrorInfo, QuotaFailure
from grpc_status import rpc_status

from tests.e2e.identity.granted import ADMIN, GrantedServer
from tests.e2e.world import DEPOT, Server, run_servers
from tests.support.fronts import TRANSPORTS


def quota_failure(error: grpc.aio.AioRpcError) -> str:
    """Return the quota that an error names."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # its stubs know only the blocking API
    assert status is not None
    info, failure = ErrorInfo(), QuotaFailure()
    assert [True, True] == [any(detail.Unpack(message) for detail in status.details) for message in (info, failure)]
    assert (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED") == (error.code(), info.reason)
    return failure.violations[0].description


@pytest.mark.parametrize("front", TRANSPORTS)
async def test_quotas_of_a_server(tmp_path: Path, front: str) -> None:
    """Calls and subscriptions beyond a quota hear QUOTA_EXCEEDED with the quota; the status names the caller; time gives the rate back."""
    options = ["--front", front, "--quota-calls-per-second", "20", "--quota-subscriptions", "2"]
    server = Server(tmp_path / "gavel", options=options)
    with run_servers(server):
        async with server.client() as client:
            await client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready"))
        async with grpc.aio.insecure_channel(server.address) as channel:
            events, projections = EventServiceStub(channel), ProjectionServiceStub(channel)
            subscriptions = [events.SubscribeEvents(SubscribeEventsRequest()) for _ in range(2)]
            for subscription in subscriptions:
                assert isinstance(await subscription.read(), object)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await events.SubscribeEvents(SubscribeEventsRequest()).read()
            assert "subscriptions is limited to 2" == quota_failure(caught.value)
            outcomes = await asyncio.gather(*(projections.GetStatus(GetStatusRequest()) for _ in range(200)), return_exceptions=True)
            refused = [outcome for outcome in outcomes if isinstance(outcome, grpc.aio.AioRpcError)]
            assert 0 < len(refused) < 200
            assert {"calls_per_second is limited to 20"} == {quota_failure(error) for error in refused}
            await asyncio.sleep(1)
            (throttled,) = (await projections.GetStatus(GetStatusRequest())).throttled_callers
            assert ("127.0.0.1", "calls_per_second") == (throttled.caller, throttled.quota)
            assert throttled.refused >= len(refused)


@pytest.mark.parametrize("front", TRANSPORTS)
async def test_quotas_of_principals(tmp_path: Path, front: FrontSetting) -> None:
    """Authenticated callers on one connection have quotas of their own, and the status names the throttled one by its principal."""
    options = ("--quota-calls-per-second", "20", "--quota-subscriptions", "1")
    granted = GrantedServer(tmp_path, front, options=options)
    with granted.running():
        async with grpc.aio.insecure_channel(granted.server.address) as channel:
            events, projections = EventServiceStub(channel), ProjectionServiceStub(channel)
            subscriptions = [
                events.SubscribeEvents(SubscribeEventsRequest(from_sequence_number=1), metadata=granted.by(name))
                for name in ("may-subscribe", ADMIN)
            ]
            for subscription in subscriptions:
                assert isinstance(await subscription.read(), SubscribeEventsResponse)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await events.SubscribeEvents(SubscribeEventsRequest(), metadata=granted.by("may-subscribe")).read()
            assert "subscriptions is limited to 1" == quota_failure(caught.value)
            calls = (projections.GetStatus(GetStatusRequest(), metadata=granted.by("may-read")) for _ in range(200))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            refused = [outcome for outcome in outcomes if isinstance(outcome, grpc.aio.AioRpcError)]
            assert {"calls_per_second is limited to 20"} == {quota_failure(error) for error in refused}
            throttled = (await projections.GetStatus(GetStatusRequest(), metadata=granted.by(ADMIN))).throttled_callers
            assert {("may-subscribe", "subscriptions"), ("may-read", "calls_per_second")} == {(one.caller, one.quota) for one in throttled}
