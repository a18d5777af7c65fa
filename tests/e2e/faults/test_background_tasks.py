"""Background tasks of a server: an outage ends none of them, and status, health and metrics show what keeps them from their work."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import redis.asyncio
from gavel.v1 import execution_pb2
from gavel.v1.execution_pb2 import Execution
from gavel_client import GavelClient, execution_envelope
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.e2e.world import COURIER, Server, approve, open_bus, poll, run_servers, wait_for_events
from tests.support.fronts import ANY_FRONT
from tests.support.ports import free_port

REACTOR = "fact derivation"


async def _problem(client: GavelClient) -> str:
    return next(task.problem for task in (await client.get_status()).background_tasks if task.name == REACTOR)


async def _health(address: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        response = await stub.Check(health_pb2.HealthCheckRequest(service="gavel.background"))
        return int(response.status)


def _healthy_metric(metrics: str) -> str:
    with urllib.request.urlopen(f"http://{metrics}/metrics") as response:
        lines: list[str] = response.read().decode().splitlines()
    return next(line for line in lines if line.startswith("gavel_background_task_healthy{") and REACTOR in line).rsplit(" ", 1)[1]


@pytest.mark.long
async def test_reactor_survives_a_redis_that_refuses(tmp_path: Path) -> None:
    """The reactor goes on by itself after Redis refused its commands; meanwhile status, health and a metric name its problem."""
    metrics = f"127.0.0.1:{free_port()}"
    server = Server(tmp_path / "gavel", options=["--front", ANY_FRONT, "--metrics", metrics])
    with run_servers(server):
        async with server.client() as client, redis.asyncio.Redis.from_url(server.redis_url, protocol=2) as admin:
            await open_bus(client)
            decision = await approve(client, "parcel/1")
            attempt = (await client.begin_execution(decision.event_id, producer=COURIER, lease_ms=600_000)).started

            await admin.config_set("min-replicas-to-write", 1)

            async def is_unwell() -> bool | None:
                return True if "NOREPLICAS" in await _problem(client) else None

            async def health_is(expected: int) -> bool | None:
                return True if await _health(server.address) == expected else None

            await poll(is_unwell)
            await poll(lambda: health_is(health_pb2.HealthCheckResponse.NOT_SERVING))
            assert "0.0" == _healthy_metric(metrics)

            await admin.config_set("min-replicas-to-write", 0)
            report = Execution(
                decision_id=decision.event_id,
                execution_id=attempt.execution_id,
                attempt=attempt.attempt,
                status=execution_pb2.EXECUTION_STATUS_SUCCESS,
            )
            await client.report_execution(execution_envelope("parcel/1", COURIER, report))
            (fact,) = await wait_for_events(client, lambda event: event.event_name == "FactDerived")
            assert decision.event_id == fact.fact.decision_id
            await poll(lambda: health_is(health_pb2.HealthCheckResponse.SERVING))
            assert "1.0" == _healthy_metric(metrics)
            assert "" == await _problem(client)
