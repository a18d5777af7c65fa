"""Health of each bus by grpc.health.v1, on both transports."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from tests.e2e.world import Server, open_bus, poll, run_servers
from tests.support.fronts import TRANSPORTS

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING
UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN
SERVICE = "gavel.v1.ArbitrationService"


@pytest.fixture(params=TRANSPORTS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Server:
    """A server on each transport, not started."""
    return Server(tmp_path, options=["--front", request.param])


async def check(channel: grpc.aio.Channel, service: str) -> int:
    """Return the status of a name. Raises AioRpcError."""
    call: Any = channel.unary_unary("/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString)
    return int((await call(HealthCheckRequest(service=service))).status)


def watch(channel: grpc.aio.Channel, service: str) -> Any:
    """Return the stream of statuses of a name."""
    call: Any = channel.unary_stream("/grpc.health.v1.Health/Watch", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString)
    return call(HealthCheckRequest(service=service))


async def next_status(stream: Any) -> int:
    """Return the next status that a watch streams."""
    return int((await asyncio.wait_for(stream.read(), 60)).status)


def test_a_bus_serves_while_it_can_be_written(server: Server) -> None:
    """A bus is SERVING, NOT_SERVING while its log refuses writes, and SERVING again; the process is SERVING all the time."""

    async def scenario() -> None:
        async with grpc.aio.insecure_channel(server.address) as channel:
            watching = watch(channel, f"{SERVICE}/default")
            assert [SERVING, SERVING] == [await check(channel, f"{SERVICE}/default"), await next_status(watching)]
            with redis.Redis.from_url(server.redis_url) as connection:
                connection.config_set("appendfsync", "everysec")
                assert await next_status(watching) == NOT_SERVING
                assert [NOT_SERVING, SERVING, SERVING] == [await check(channel, name) for name in (f"{SERVICE}/default", SERVICE, "")]
                connection.config_set("appendfsync", "always")
                assert await next_status(watching) == SERVING
                assert await check(channel, f"{SERVICE}/default") == SERVING
            watching.cancel()

    with run_servers(server):
        asyncio.run(scenario())


def test_a_check_opens_no_bus(server: Server) -> None:
    """An unknown bus is NOT_FOUND, SERVICE_UNKNOWN for a watch until it is opened, and neither leaves a trace in the store."""

    async def scenario() -> None:
        async with grpc.aio.insecure_channel(server.address) as channel:
            watching = watch(channel, f"{SERVICE}/later")
            assert await next_status(watching) == UNKNOWN
            for service in (f"{SERVICE}/later", f"{SERVICE}/", f"{SERVICE}/No Bus", "gavel.v1.EventService/default"):
                with pytest.raises(grpc.aio.AioRpcError) as error_info:
                    await check(channel, service)
                assert error_info.value.code() == grpc.StatusCode.NOT_FOUND
            with redis.Redis.from_url(server.redis_url) as connection:
                assert connection.keys("*later*") == []
            async with server.client("later") as client:
                await open_bus(client)
            assert await next_status(watching) == SERVING

            async def serves() -> bool | None:
                return await check(channel, f"{SERVICE}/later") == SERVING or None

            await poll(serves)
            watching.cancel()

    with run_servers(server):
        asyncio.run(scenario())


@pytest.mark.long
def test_a_stopping_server_reports_it_for_its_buses(server: Server) -> None:
    """A watch of a bus gets NOT_SERVING when the server begins to stop."""

    async def scenario() -> None:
        async with grpc.aio.insecure_channel(server.address) as channel:
            watching = watch(channel, f"{SERVICE}/default")
            assert await next_status(watching) == SERVING
            status = asyncio.create_task(next_status(watching))
            await asyncio.to_thread(server.terminate)
            assert await status == NOT_SERVING

    with run_servers(server):
        asyncio.run(scenario())
