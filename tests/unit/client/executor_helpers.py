"""Helpers of the executor's tests: an action, handlers, and the run of an executor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gavel_client.executor.executor import Executor
from gavel_client.handlers import ExecutionContext, HandlerResult

from tests.unit.client.fake_server import FakeExecutions
from tests.unit.client.work_queues import WAIT_S, Queue, until_equal

ACTION = "refund.create"
GROUP = "executors"

Make = Callable[..., Executor]
Behaviour = Callable[[ExecutionContext], Any]


@asynccontextmanager
async def running(executor: Executor) -> AsyncIterator[None]:
    """Run an executor in the context and stop it at the end."""
    task = asyncio.create_task(executor.run())
    try:
        yield
    finally:
        executor.stop()
        await asyncio.wait_for(task, WAIT_S)


async def succeed(_: ExecutionContext) -> HandlerResult:
    """Return success."""
    return HandlerResult.success()


async def carry_out(executor: Executor, queue: Queue) -> None:
    """Run the executor until the queue is empty."""
    async with running(executor):
        await until_equal(queue.ids, [])


def outcomes(executions: FakeExecutions) -> list[tuple[int, int]]:
    """Return (attempt, status) of every recorded report, in order."""
    return [(report.execution.attempt, report.execution.status) for report in executions.reports.values()]
