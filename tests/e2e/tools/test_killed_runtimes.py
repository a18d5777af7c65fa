"""Runtimes of tools that are killed at every point of their work (constitution §5.3).

No call stays open beyond its lease, no effect is without its call and decision, and all evidence that the log names verifies.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import TOOL_PAIR_STATE_OPEN, TOOL_PAIR_STATE_PAIRED
from gavel.v1.tool_pb2 import ToolContract, ToolProvider
from gavel_client import GavelClient
from gavel_client.evidence import EvidenceStore
from gavel_client.evidence.verification import VERIFIED, verify_trace
from gavel_client.tools import ToolRuntime, errors

from tests.e2e.runs import forker
from tests.e2e.tools.runtime_process import RUNTIME
from tests.e2e.world import COURIER, Server, approve, open_bus, poll, prove, run_servers

POINTS = 24
STRIDE_LONG = 2
# How long after its lease a call may still be open on a machine under load.
LATE_MS_MAX = 60_000


class Runtimes:
    """The process that forks runtimes, and the attempts that they carry out."""

    def __init__(self, client: GavelClient, process: asyncio.subprocess.Process, directory: Path) -> None:
        self.client = client
        self.directory = directory
        self.traces: list[str] = []
        self._process = process

    async def run(self, point: int) -> tuple[int, int]:
        """Approve and begin an action, and let a runtime work on it; return its status of os.waitpid and the lines that it executed."""
        decision = await approve(self.client, f"parcel/{point}")
        started = (await self.client.begin_execution(decision.event_id, producer=COURIER, lease_ms=60_000)).started
        self.traces.append(decision.trace_id)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{point} {started.SerializeToString().hex()}\n".encode())
        answer = (await stdout.readline()).split()
        assert 3 == len(answer), "the process has ended"
        return int(answer[1]), int(answer[2])


@asynccontextmanager
async def runtimes(server: Server, directory: Path) -> AsyncIterator[Runtimes]:
    """Start the process on a bus with the rule set and both tools."""
    async with server.client() as client:
        await open_bus(client)
        for name, effects in (("parcel.send", ["external.write"]), ("parcel.note", ["workspace.note"])):
            await client.register_contract(ToolContract(name=name, version="1", side_effects=effects, default_provider="parcels"))
        await client.register_provider(ToolProvider(provider_id="parcels", version="1", tools=["parcel.send", "parcel.note"]))
        command = (*forker().command("tests.e2e.tools.runtime_process"), server.address, "default", str(directory))
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield Runtimes(client, process, directory)
        finally:
            process.kill()
            await process.wait()


async def kill_at(server: Server, directory: Path, points: Sequence[int] | None) -> None:
    """Kill a runtime at each point, by default at POINTS of them, and check what they leave."""
    async with runtimes(server, directory) as started:
        status, lines = await started.run(0)
        assert (0, True) == (status, lines > POINTS)
        if points is None:
            points = sorted(random.Random(1).sample(range(1, lines), POINTS))
        else:
            points = [point for point in points if point < lines]
        # The number of lines varies a little, so the last ones may not come.
        statuses = [(await started.run(point))[0] for point in points]
        assert {signal.SIGKILL} == set(statuses[: len(statuses) * 9 // 10])
        await check(started)


async def check(started: Runtimes) -> None:
    """Let another runtime of the name close what is open; check calls, effects and evidence of all traces."""
    client, directory = started.client, started.directory
    async with ToolRuntime(client, RUNTIME, providers=[]):
        traces = await poll(lambda: _closed_traces(client, started.traces))
    effects = [tuple(line.split()) for line in (directory / "effects").read_text().splitlines()]
    store = EvidenceStore(str(directory / "evidence"))
    calls: dict[str, Envelope] = {}
    codes: list[str] = []
    for events in traces:
        for event in events:
            if event.HasField("tool_call"):
                calls[event.tool_call.execution_id] = event
            elif event.HasField("tool_result"):
                codes.append(event.tool_result.error_code)
                _check_result(event, calls[event.tool_result.execution_id], effects)
        states = {one.state for one in verify_trace(store, events, lambda _: ()) if any("tool result" in pin for pin in one.pinned_by)}
        assert states <= {VERIFIED}
    assert len(effects) == len(set(effects))
    for tool, execution_id in effects:
        assert tool == calls[execution_id].tool_call.tool_name
        assert (tool == "parcel.send") == bool(calls[execution_id].tool_call.decision_id)
    assert {"", errors.LOST} == set(codes)
    await prove(client)


def _check_result(result: Envelope, call: Envelope, effects: Sequence[tuple[str, ...]]) -> None:
    """Check that a result without error had its effect, and that a call was closed as lost after its lease, and soon."""
    if not result.tool_result.is_error:
        assert (result.tool_result.tool_name, result.tool_result.execution_id) in effects
    else:
        late_ms = result.recorded_at.ToMilliseconds() - call.tool_call.lease_until.ToMilliseconds()
        assert 0 <= late_ms < LATE_MS_MAX


async def _closed_traces(client: GavelClient, traces: Sequence[str]) -> list[list[Envelope]] | None:
    """Return the events of the traces, or None while a call is open."""
    records = [await client.get_trace(trace) for trace in traces]
    states = [pair.state for trace in records for pair in trace.pairs]
    if TOOL_PAIR_STATE_OPEN in states:
        return None
    assert {TOOL_PAIR_STATE_PAIRED} == set(states)
    return [list(trace.envelopes) for trace in records]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, and an empty directory `work` for the runtimes."""
    (tmp_path / "work").mkdir()
    server = Server(tmp_path / "data")
    with run_servers(server):
        yield server


@pytest.mark.long
async def test_runtimes_killed_at_some_points(server: Server, tmp_path: Path) -> None:
    """A runtime that is killed leaves calls that are closed after their lease, and nothing that the log does not know."""
    await kill_at(server, tmp_path / "work", None)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_runtimes_killed_everywhere(server: Server, tmp_path: Path) -> None:
    """The same, at every other line of the runtime's code."""
    await kill_at(server, tmp_path / "work", range(1, 100_000, STRIDE_LONG))
