"""A server with many buses: what they share."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path

import pytest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS, Execution
from gavel_client import GavelClient, execution_envelope

from tests.e2e.world import COURIER, Server, approve, open_bus, poll, run_servers, wait_for_events
from tests.support.fronts import ANY_FRONT

BUSES = 60


async def work(server: Server, bus: str) -> None:
    """Approve and carry out an action on a bus, and wait until its key is free."""
    async with server.client(bus) as client:
        await open_bus(client)
        await report_success(client)
        await wait_for_events(client, lambda event: bool(event.fact.derivation_rule_id))


async def report_success(client: GavelClient) -> None:
    """Approve an action, and report its success."""
    decision_id = (await approve(client, "parcel/1")).event_id
    begun = await client.begin_execution(decision_id, producer=COURIER)
    execution = Execution(decision_id=decision_id, execution_id=begun.started.execution_id, status=EXECUTION_STATUS_SUCCESS)
    await client.report_execution(execution_envelope("", COURIER, execution))


@pytest.mark.long
async def test_buses_share_connections(tmp_path: Path) -> None:
    """Many buses work at once with fewer descriptors than buses, and the limit of descriptors is the hard one."""
    server = Server(tmp_path / "gavel", options=["--front", ANY_FRONT])
    with run_servers(server):
        process_id = server.running.pid
        soft, hard = resource.prlimit(process_id, resource.RLIMIT_NOFILE)
        assert soft == min(hard, 1 << 20)

        async def is_logged() -> bool | None:
            return f"descriptors_max={soft}" in server.log() or None

        await poll(is_logged)
        await work(server, "first")
        before = len(os.listdir(f"/proc/{process_id}/fd"))
        resource.prlimit(process_id, resource.RLIMIT_NOFILE, (before + 2 * BUSES, hard))
        for first in range(0, BUSES, 10):
            await asyncio.gather(*(work(server, f"bus-{number}") for number in range(first, first + 10)))
        assert len(os.listdir(f"/proc/{process_id}/fd")) < before + BUSES
