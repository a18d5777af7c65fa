"""The leases of the gate's attempts: a process that dies between begin and report, and a tool that does not end in time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from gavel.v1.execution_pb2 import ExecutionStatus
from gavel_client import GavelClient
from gavel_client.gate import Allowed, Call, Finished, Gate, Pending
from gavel_client.rpc.paging import pages

from tests.e2e.adapters.agents.agent import TOOL, Depot, actions
from tests.e2e.adapters.conftest import RULES
from tests.e2e.world import PATIENT_MS, POLICY
from tests.support.paths import ROOT

CALL = Call(TOOL, {"parcel": "1", "weight": 2.0}, "task-1", "1")
# Begins an attempt and dies before the tool runs: SERVER BUS LEASE_MS.
DYING = """
import asyncio, os, signal, sys
from gavel_client import GavelClient
from gavel_client.gate import Allowed, Gate
from tests.e2e.adapters.agents.agent import actions
from tests.e2e.adapters.test_leases import CALL

async def main(server, bus, lease_ms):
    async with GavelClient(server, bus=bus) as client:
        answer = await Gate(client, actions(), agent="sender", executor="tools", lease_ms=int(lease_ms))(CALL)
        assert isinstance(answer, Allowed), answer
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


async def statuses(client: GavelClient) -> list[str]:
    """Return the statuses of the executions, in their order."""
    events = [event async for page in pages(client.list_events, page_size=1000) for event in page.envelopes]
    executions = [event.execution for event in events if event.HasField("execution")]
    return [ExecutionStatus.Name(execution.status).removeprefix("EXECUTION_STATUS_") for execution in executions]


def gate(client: GavelClient, **settings: Any) -> Gate:
    """Return a gate that waits as long as a busy machine needs."""
    return Gate(client, actions(), agent="sender", executor="tools", **{"deadline_ms": PATIENT_MS, **settings})


async def die(client: GavelClient, server: str, lease_ms: int) -> None:
    """Begin the call in a process that is killed before it runs the tool."""
    command = [sys.executable, "-c", DYING, server, client.bus, str(lease_ms)]
    finished = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (-9, "") == (finished.returncode, finished.stderr)


@pytest.mark.long
@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_the_lease_of_a_dead_process_lapses(pair: Any, client: GavelClient, max_attempts: int) -> None:
    """After a crash the call waits for the lease to lapse; then the rule set says whether it runs, or a person has to look at it."""
    if max_attempts == 1:
        await client.deploy_rule_set(RULES.replace("version: 1", "version: 2").replace("max_attempts: 3", "max_attempts: 1"))
        await client.activate_rule_set(POLICY, 2)
    await die(client, pair[0].address, 1_000)
    depot = Depot()
    answer = await gate(client)(CALL)
    if max_attempts == 1:
        assert isinstance(answer, Pending)
        assert ["STARTED"] == await statuses(client)
        return
    assert isinstance(answer, Allowed)
    assert "sent 1" == await answer.run(lambda: depot.act("1"))
    assert ["STARTED", "STARTED", "SUCCESS"] == await statuses(client)
    assert isinstance(await gate(client)(CALL), Finished)


@pytest.mark.long
async def test_a_call_that_runs_elsewhere_is_pending_at_the_deadline(pair: Any, client: GavelClient) -> None:
    """A call whose attempt another process holds for longer than the gate may wait is pending, and does not run."""
    await die(client, pair[0].address, 600_000)
    answer = await gate(client, deadline_ms=6_000)(CALL)
    assert isinstance(answer, Pending)
    assert "ALREADY_RUNNING" == answer.reason


async def test_a_tool_that_outlives_its_lease_is_cancelled(client: GavelClient) -> None:
    """A tool that does not end within its lease is cancelled before the lease ends, and its effect counts as unknown."""
    depot = Depot(holds=True)
    answer = await gate(client, lease_ms=2_000)(CALL)
    assert isinstance(answer, Allowed)
    with pytest.raises(asyncio.TimeoutError):
        await answer.run(lambda: depot.act("1"))
    assert ["STARTED", "PARTIAL"] == await statuses(client)
    assert not isinstance(await gate(client)(CALL), Allowed)
    assert ["1"] == depot.effects
