"""Leases of executors: renewal, loss, and leases held by other executors."""

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
from gavel.v1.common_pb2 import Producer
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel.v1.execution_service_pb2 import (
    BeginExecutionRequest,
    BeginExecutionResponse,
    ExecutionRefusal,
    ExecutionStarted,
    RenewExecutionRequest,
    RenewExecutionResponse,
)
from gavel.v1.projection_service_pb2 import GetStatusResponse
from gavel.v1.reason_code_pb2 import REASON_CODE_ALREADY_RUNNING
from gavel_client.executor import lease
from gavel_client.executor.lease import keep_alive
from gavel_client.handlers import ExecutionContext, HandlerResult
from gavel_client.rpc.client import GavelClient

from tests.unit.client.executor_helpers import GROUP, Make, carry_out, outcomes, running
from tests.unit.client.fake_server import FakeExecutions, FakeServer, approved_decision, refusal
from tests.unit.client.work_queues import SHORT_MS, WAIT_S, Queue, until, until_equal


@pytest.fixture
def early_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew a lease of 30 s after 30 ms: soon enough for a test, and safe on a slow machine."""
    monkeypatch.setattr(lease, "RENEWAL_FRACTION", 0.001)


@pytest.mark.usefixtures("early_renewals")
async def test_lease_is_renewed(server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """The lease of a running handler is renewed by the same producer, and no other attempt begins."""
    executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))

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
    """After a refused renewal the handler is cancelled and nothing is reported; the server decides what follows."""
    fake = executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))
    cancelled: list[int] = []

    def renew(_: object) -> Any:
        fake.running = False
        fake.refusal = "UNDER_REVIEW"
        return refusal(grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")

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
    """An executor that cannot renew stops before its lease lapses, and continues once the server allows it."""
    # Give the lease of 30 s up after 150 ms, so that no slow machine can stop too late.
    monkeypatch.setattr(lease, "STOP_FRACTION", 0.995)
    fake = executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))
    left_s: list[float] = []
    server.answers["RenewExecution"] = lambda _: refusal(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")

    async def dawdle(context: ExecutionContext) -> HandlerResult:
        if context.attempt == 1:
            try:
                await asyncio.sleep(3600)
            finally:
                left_s.append(fake.lease_until - time.monotonic())
                fake.lease_until = 0.0
        return HandlerResult.success()

    await carry_out(make(dawdle), queue)
    assert left_s[0] > 0
    assert [(2, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)


@pytest.mark.usefixtures("early_renewals")
async def test_unexpected_renewal_error_is_logged(
    executions: FakeExecutions, queue: Queue, make: Make, bus: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error of a renewal stops the handler and is logged with its traceback; the server ends the attempt."""
    fake = executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))

    async def broken(*_: object, **__: object) -> None:
        fake.running = False
        fake.refusal = "UNDER_REVIEW"
        raise TypeError("a mistake of ours")

    monkeypatch.setattr(GavelClient, "renew_execution", broken)

    async def dawdle(_: ExecutionContext) -> HandlerResult:
        await asyncio.sleep(3600)
        return HandlerResult.success()

    async with running(make(dawdle)):
        await until(lambda: fake.refusal == "UNDER_REVIEW")
        await until_equal(lambda: queue.pending(GROUP), 0)
    assert {} == executions.reports
    (record,) = [record for record in caplog.records if "lease in doubt" in record.message]
    assert ("ERROR", True) == (record.levelname, "a mistake of ours" in (record.exc_text or ""))


async def test_result_of_a_lost_attempt_is_reported(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A result that arrives after another attempt began is reported; the server records it as late."""
    fake = executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))

    async def overtaken(_: ExecutionContext) -> HandlerResult:
        fake.attempt += 1
        fake.refusal = "UNDER_REVIEW"
        return HandlerResult.success()

    async with running(make(overtaken)):
        await until(lambda: len(executions.reports) == 1)
        await until_equal(lambda: queue.pending(GROUP), 0)
    (report,) = executions.reports.values()
    assert "agent_diagnostic" == report.WhichOneof("payload")
    assert ["7-0"] == await queue.ids()


async def test_foreign_lease_is_awaited(server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """The executor waits for another executor's lease and processes other entries meanwhile."""
    first, second = approved_decision(1, bus), approved_decision(2, bus)
    executions.add(first).attempt = 1
    executions.add(second)
    await queue.add(first, second)
    order: list[tuple[int, int]] = []

    def begin(request: BeginExecutionRequest) -> Any:
        if request.decision_id == first.event_id and not order:
            return BeginExecutionResponse(refusal=ExecutionRefusal(reason=REASON_CODE_ALREADY_RUNNING, retry_after_ms=1))
        return executions.begin(request)

    server.answers["BeginExecution"] = begin

    async def note(context: ExecutionContext) -> HandlerResult:
        order.append((context.decision.sequence_number, context.attempt))
        return HandlerResult.success()

    await carry_out(make(note, concurrency=1), queue)
    assert [(2, 1), (1, 2)] == order


async def test_entry_of_a_killed_executor_is_claimed(
    server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str, redis_url: str
) -> None:
    """Another executor claims the entry of a killed one, waits for the lease, and carries the decision out once."""
    fake = executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))
    program = Path(__file__).with_name("executor_process.py")
    arguments = [server.target, redis_url, bus, "200", str(int(WAIT_S * 1000))]
    doomed = await asyncio.create_subprocess_exec(sys.executable, str(program), *arguments, stdout=asyncio.subprocess.PIPE)
    assert doomed.stdout is not None
    assert b"begun 1\n" == await asyncio.wait_for(doomed.stdout.readline(), WAIT_S)
    os.kill(doomed.pid, signal.SIGKILL)
    await doomed.wait()
    fake.lease_until = time.monotonic() + 0.2  # its lease is long enough not to lapse before
    attempts = []

    async def refund(context: ExecutionContext) -> HandlerResult:
        attempts.append(context.attempt)
        return HandlerResult.success()

    executor = make(refund, min_idle_ms=SHORT_MS)
    await carry_out(executor, queue)
    assert [2] == attempts
    assert [(2, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
    assert executor.statistics.claimed >= 1


async def test_provider_of_tokens_that_fails_once(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease is renewed although the provider of the client's token fails once meanwhile."""
    monkeypatch.setattr(lease, "RETRY_FRACTION", 0.0)
    renewed = asyncio.Event()
    failures: list[Exception] = []

    def token() -> str:
        if failures:
            raise failures.pop()
        return "token"

    def renew(_: RenewExecutionRequest) -> RenewExecutionResponse:
        renewed.set()
        return RenewExecutionResponse()

    server.answers["RenewExecution"] = renew
    started = ExecutionStarted(execution_id="exec_1", attempt=1, decision=approved_decision(7, "default"))
    server.script("GetStatus", GetStatusResponse())
    async with GavelClient(server.target, credentials=token) as client:
        await client.get_status()
        failures.append(OSError("the token cannot be read"))
        # The renewal is due, and the lease is far from its end.
        renewal = asyncio.create_task(keep_alive(client, started, Producer(id="executor-1"), 3_000_000, time.monotonic() - 1_500))
        ends = asyncio.create_task(renewed.wait())
        await asyncio.wait({renewal, ends}, return_when=asyncio.FIRST_COMPLETED)
        assert not renewal.done()
        renewal.cancel()
        await ends
