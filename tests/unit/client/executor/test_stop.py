"""The stop of an executor: attempts in progress end or are cancelled, and are reported."""

from __future__ import annotations

import asyncio

import pytest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS, EXECUTION_STATUS_TIMEOUT
from gavel_client.executor import executor as runtime
from gavel_client.handlers import ExecutionContext, HandlerResult

from tests.unit.client.executor_helpers import Make, carry_out, outcomes, running, succeed
from tests.unit.client.fake_server import FakeExecutions, approved_decision
from tests.unit.client.work_queues import SHORT_MS, WAIT_S, Queue, until


@pytest.fixture(autouse=True)
def deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the last report of a stopping executor all the time it needs."""
    monkeypatch.setattr(runtime, "LAST_REPORT_MS", WAIT_S * 1000)


async def test_stop_waits_for_handlers(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A stop waits for a running handler and its report, and begins no further attempt."""
    executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: ExecutionContext) -> HandlerResult:
        begun.set()
        await go_on.wait()
        return HandlerResult.success()

    executor = make(slow)
    async with running(executor):
        await asyncio.wait_for(begun.wait(), WAIT_S)
        executor.stop()
        go_on.set()
    assert [(1, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
    assert [] == await queue.ids()


async def test_stop_cancels_late_handlers(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A handler that exceeds the grace is cancelled and reported as TIMEOUT; another executor may continue."""
    executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))
    begun = asyncio.Event()

    async def endless(_: ExecutionContext) -> HandlerResult:
        begun.set()
        await asyncio.sleep(3600)
        return HandlerResult.success()

    executor = make(endless, stop_grace_ms=10)
    async with running(executor):
        await asyncio.wait_for(begun.wait(), WAIT_S)
        executor.stop()
    (report,) = executions.reports.values()
    assert (EXECUTION_STATUS_TIMEOUT, "EXECUTOR_STOPPED") == (report.execution.status, report.execution.error.code)
    assert ["7-0"] == await queue.ids()
    await carry_out(make(succeed, min_idle_ms=SHORT_MS), queue)
    assert [(1, EXECUTION_STATUS_TIMEOUT), (2, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)


async def test_cancelled_run_reports(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """Cancelling `run` cancels handlers at once and reports their attempts."""
    executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))
    begun = asyncio.Event()

    async def endless(_: ExecutionContext) -> HandlerResult:
        begun.set()
        await asyncio.sleep(3600)
        return HandlerResult.success()

    task = asyncio.create_task(make(endless).run())
    await asyncio.wait_for(begun.wait(), WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(1, EXECUTION_STATUS_TIMEOUT)] == outcomes(executions)


async def test_stop_waits_for_lost_decisions(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A decision begun without a queue entry gets the same grace at a stop, and is reported."""
    executions.add(approved_decision(7, bus))
    go_on = asyncio.Event()

    async def slow(_: ExecutionContext) -> HandlerResult:
        await go_on.wait()
        return HandlerResult.success()

    executor = make(slow, scan_interval_ms=2)
    async with running(executor):
        await until(lambda: executions.decisions[approved_decision(7, bus).event_id].running)
        executor.stop()
        go_on.set()
    assert [(1, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
