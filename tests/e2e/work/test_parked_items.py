"""Parked items belong to the operator: no executor takes them up by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio
from gavel.v1.work_service_pb2 import WORK_QUEUE_DECISIONS
from gavel_client import GavelClient
from gavel_client.executor import Executor
from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers
from gavel_rules.redis_keys import work_key

from tests.e2e.cli.programs import gavel
from tests.e2e.work.consumer import consume
from tests.e2e.world import ACTION, Server, approve, poll

Clients = tuple[GavelClient, GavelClient]
# Scans after the one that has found the lost decision.
SCANS = 4


class ScanningClient(GavelClient):
    """A client that counts how often pending decisions are read from their start."""

    scans = 0

    async def list_pending_decisions(self, **arguments: Any) -> Any:
        """Count a scan, and read."""
        self.scans += not arguments.get("page_token") and not arguments.get("lost_work")
        return await super().list_pending_decisions(**arguments)


@asynccontextmanager
async def running_executor(client: GavelClient, queue_url: str, subjects: list[str]) -> AsyncIterator[None]:
    """Run an executor that scans often and notes the subjects that it carries out."""
    handlers = Handlers()

    @handlers.action(ACTION)
    async def send(context: ExecutionContext) -> HandlerResult:
        subjects.append(context.decision.subject)
        return HandlerResult.success()

    executor = Executor(client, handlers, redis_url=queue_url, producer_id="courier", scan_interval_ms=20)
    running = asyncio.create_task(executor.run())
    try:
        yield
    finally:
        executor.stop()
        await running


@pytest.mark.parametrize("discarded", [False, True], ids=["parked", "discarded"])
async def test_scans_leave_parked_items(
    pair: tuple[Server, Server], clients: Clients, redis_url: str, bus: str, queue_url: str, discarded: bool
) -> None:
    """A decision whose item is parked or discarded is not lost: an executor's scan begins the one whose item is lost, and no other."""
    await approve(clients[0], "parcel/parked")
    async with consume(clients[0]) as consumer:
        item = await consumer.next()
        consumer.park(item, "broken")

        async def parked() -> bool | None:
            return bool((await clients[0].list_parked(WORK_QUEUE_DECISIONS, "executors")).items) or None

        await poll(parked)
    unknown = gavel("work", "retry", "decisions", "executors", "999", "--bus", bus, server=pair[0])
    assert (1, True) == (unknown.returncode, "1 item of those named is not parked" in unknown.stderr), unknown.stderr
    for arguments in (
        ("parked", "decisions", "nobody"),
        ("retry", "decisions", "nobody", "--all"),
        ("discard", "decisions", "nobody", "9"),
    ):
        mistyped = gavel("work", *arguments, "--bus", bus, server=pair[0])
        assert 1 == mistyped.returncode
        assert f"the queue decisions of bus {bus} has no group 'nobody'; its groups are executors" in mistyped.stderr
    if discarded:
        assert 1 == (await clients[0].discard_parked(WORK_QUEUE_DECISIONS, "executors", [item.item_id])).discarded
    lost = await approve(clients[0], "parcel/lost")
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as connection:
        assert 1 == await connection.xdel(work_key(bus, "decisions"), f"{lost.sequence_number}-0")
    subjects: list[str] = []
    async with ScanningClient(pair[1].address, bus=bus) as client, running_executor(client, queue_url, subjects):
        await poll(lambda: _when(bool(subjects)))
        scans = client.scans
        await poll(lambda: _when(client.scans >= scans + SCANS))
        assert ["parcel/lost"] == subjects
        if not discarded:
            assert 1 == (await clients[0].retry_parked(WORK_QUEUE_DECISIONS, "executors")).retried
            if not queue_url:  # a consumer of Redis itself knows nothing of rejected and retried items
                await poll(lambda: _when(len(subjects) == 2))


async def _when(condition: bool) -> bool | None:
    return condition or None
