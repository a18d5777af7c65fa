"""Executors and their leases: renewed while a handler works, lost, waited for where somebody else holds one, and taken over."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel.v1.execution_service_pb2 import BeginExecutionRequest, BeginExecutionResponse, ExecutionRefusal
from gavel_client import lease
from gavel_client.client import GavelClient
from gavel_client.handlers import ExecutionContext, HandlerResult

from tests.unit.client.executors import GROUP, Make, carry_out, outcomes, running
from tests.unit.client.fake_server import FakeExecutions, FakeServer, approved, refused
from tests.unit.client.redis_helpers import SHORT_MS, WAIT_S, Queue, until, until_equal


@pytest.fixture
def early_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew after 30 ms of a lease of 30 s: soon enough for a test, without any danger that a slow machine loses the lease."""
    monkeypatch.setattr(lease, "RENEWAL_PART", 0.001)


@pytest.mark.usefixtures("early_renewals")
async def test_lease_is_renewed(server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """While a handler works its lease is renewed, by the same producer, and nobody else may begin."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))

    async def until_renewed(_: ExecutionContext) -> HandlerResult:
        await until(lambda: len(server.requests["RenewExecution"]) >= 3)
        return HandlerResult.success()

    await carry_out(make(until_renewed), queue)
    assert [(1, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
    request = server.requests["RenewExecution"][0]
    assert ("exec_000000000001", "refunds", 30_000) == (request.execution_id, request.producer.id, request.lease_ms)


@pytest.mark.usefixtures("early_renewals")
async def test_refused_renewal_stops_the_handler(
    server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str
) -> None:
    """When the lease is refused the handler is cancelled and nothing is reported; what follows, the server says."""
    known = executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
    cancelled: list[int] = []

    def renew(_: object) -> Any:
        known.running = False
        known.refusal = "UNDER_REVIEW"
        return refused(grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")

    server.answers["RenewExecution"] = renew

    async def dawdle(_: ExecutionContext) -> HandlerResult:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.append(1)
        return HandlerResult.success()

    async with running(make(dawdle)):
        await until(lambda: cancelled == [1])
        await until_equal(lambda: queue.pending(GROUP), 0)
    assert {} == executions.reports
    assert ["7-0"] == await queue.ids()


@pytest.mark.usefixtures("early_renewals")
async def test_unreachable_server_stops_the_handler_in_time(
    server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that cannot renew stops acting while its lease still holds, and carries on once the server lets it."""
    # Give the lease of 30 s up after 150 ms, so that no slow machine can stop too late.
    monkeypatch.setattr(lease, "STOPPING_PART", 0.995)
    known = executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
    left_s: list[float] = []
    server.answers["RenewExecution"] = lambda _: refused(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")

    async def dawdle(context: ExecutionContext) -> HandlerResult:
        if context.attempt == 1:
            try:
                await asyncio.sleep(3600)
            finally:
                left_s.append(known.lease_until - time.monotonic())
                known.lease_until = 0.0
        return HandlerResult.success()

    await carry_out(make(dawdle), queue)
    assert left_s[0] > 0
    assert [(2, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)


@pytest.mark.usefixtures("early_renewals")
async def test_an_unforeseen_failure_to_renew_is_said(
    executions: FakeExecutions, queue: Queue, make: Make, bus: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever keeps the lease from being renewed stops the handler, is logged with its traceback, and leaves the end to the server."""
    known = executions.add(approved(7, bus))
    await queue.add(approved(7, bus))

    async def broken(*_: object, **__: object) -> None:
        known.running = False
        known.refusal = "UNDER_REVIEW"
        raise TypeError("a mistake of ours")

    monkeypatch.setattr(GavelClient, "renew_execution", broken)

    async def dawdle(_: ExecutionContext) -> HandlerResult:
        await asyncio.sleep(3600)
        return HandlerResult.success()

    async with running(make(dawdle)):
        await until(lambda: known.refusal == "UNDER_REVIEW")
        await until_equal(lambda: queue.pending(GROUP), 0)
    assert {} == executions.reports
    (said,) = [record for record in caplog.records if "lease in doubt" in record.message]
    assert ("ERROR", True) == (said.levelname, "a mistake of ours" in (said.exc_text or ""))


async def test_result_of_a_lost_attempt_is_still_said(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A result that comes after another attempt has begun is reported; the server keeps it as late, and says what follows."""
    known = executions.add(approved(7, bus))
    await queue.add(approved(7, bus))

    async def overtaken(_: ExecutionContext) -> HandlerResult:
        known.attempt += 1
        known.refusal = "UNDER_REVIEW"
        return HandlerResult.success()

    async with running(make(overtaken)):
        await until(lambda: len(executions.reports) == 1)
        await until_equal(lambda: queue.pending(GROUP), 0)
    (report,) = executions.reports.values()
    assert "agent_diagnostic" == report.WhichOneof("payload")
    assert ["7-0"] == await queue.ids()


async def test_running_elsewhere_is_waited_for(server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """An attempt that runs elsewhere under a lease is waited for; meanwhile other work goes on."""
    first, second = approved(1, bus), approved(2, bus)
    executions.add(first).attempt = 1
    executions.add(second)
    await queue.add(first, second)
    order: list[tuple[int, int]] = []

    def begin(request: BeginExecutionRequest) -> Any:
        if request.decision_id == first.event_id and not order:
            return BeginExecutionResponse(refusal=ExecutionRefusal(reason_code="ALREADY_RUNNING", retry_after_ms=1))
        return executions.begin(request)

    server.answers["BeginExecution"] = begin

    async def note(context: ExecutionContext) -> HandlerResult:
        order.append((context.decision.sequence_number, context.attempt))
        return HandlerResult.success()

    await carry_out(make(note, concurrency=1), queue)
    assert [(2, 1), (1, 2)] == order


async def test_killed_executor_is_taken_over(
    server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str, redis_url: str
) -> None:
    """An executor killed between STARTED and its report: another takes its entry over, waits for the lease, and ends it once."""
    known = executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
    program = Path(__file__).with_name("executor_process.py")
    arguments = [server.target, redis_url, bus, "200", str(int(WAIT_S * 1000))]
    doomed = await asyncio.create_subprocess_exec(sys.executable, str(program), *arguments, stdout=asyncio.subprocess.PIPE)
    assert doomed.stdout is not None
    assert b"begun 1\n" == await asyncio.wait_for(doomed.stdout.readline(), WAIT_S)
    os.kill(doomed.pid, signal.SIGKILL)
    await doomed.wait()
    known.lease_until = time.monotonic() + 0.2  # of a lease so long that it cannot have lapsed before
    attempts = []

    async def refund(context: ExecutionContext) -> HandlerResult:
        attempts.append(context.attempt)
        return HandlerResult.success()

    executor = make(refund, min_idle_ms=SHORT_MS)
    await carry_out(executor, queue)
    assert [2] == attempts
    assert [(2, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
    assert executor.statistics.claimed >= 1
