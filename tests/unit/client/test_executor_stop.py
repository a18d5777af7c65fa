"""An executor that is stopped: what is under way ends or is cut off, and is reported either way."""

from __future__ import annotations

import asyncio

import pytest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS, EXECUTION_STATUS_TIMEOUT
from gavel_client import executor as runtime
from gavel_client.handlers import ExecutionContext, HandlerResult

from tests.unit.client.executors import Make, carry_out, outcomes, running, succeed
from tests.unit.client.fake_server import FakeExecutions, approved
from tests.unit.client.redis_helpers import SHORT_MS, WAIT_S, Queue, until


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last report has all the time that it needs: here nobody waits for the executor to be gone."""
    monkeypatch.setattr(runtime, "LAST_REPORT_MS", WAIT_S * 1000)


async def test_stop_lets_handlers_end(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A stop waits for a running handler and its report, and begins nothing more."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
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


async def test_stop_cuts_handlers_off(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A handler that does not end within the grace is cancelled, and its attempt reported as TIMEOUT; others may go on with it."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
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


async def test_cancelled_run_reports_too(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """Cancelling `run` cuts handlers off at once; their attempts do not go unsaid."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
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


async def test_a_stop_waits_for_what_was_taken_up(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """What no entry has brought gets the same grace when the executor stops, and is reported."""
    executions.add(approved(7, bus))
    go_on = asyncio.Event()

    async def slow(_: ExecutionContext) -> HandlerResult:
        await go_on.wait()
        return HandlerResult.success()

    executor = make(slow, look_interval_ms=2)
    async with running(executor):
        await until(lambda: executions.decisions[approved(7, bus).event_id].running)
        executor.stop()
        go_on.set()
    assert [(1, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
