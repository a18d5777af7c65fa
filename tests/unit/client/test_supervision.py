"""The supervisor of background tasks."""

from __future__ import annotations

import asyncio

import pytest
from gavel_client.rpc.backoff import Backoff
from gavel_client.supervision import SupervisedTask, Supervisor

from tests.unit.client.work_queues import WAIT_S


class FatalError(Exception):
    """Ends a task."""


async def test_failed_task_runs_again(backoff: Backoff) -> None:
    """A task runs again after every failure, until it returns; each failure is counted and reported."""
    outcomes: list[Exception | None] = [OSError("first"), ValueError("second"), KeyError("third"), None]
    reported: list[SupervisedTask] = []

    async def run() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    supervisor = Supervisor(backoff=backoff, on_failure=reported.append)
    task = supervisor.start("work", run, bus="orders")
    (supervised,) = supervisor.tasks
    await asyncio.wait_for(task, WAIT_S)
    assert [] == outcomes
    assert (3, "work", "orders") == (supervised.failures, supervised.name, supervised.bus)
    assert [supervised] * 3 == reported
    assert [] == supervisor.tasks


async def test_problem_stays_visible_after_a_failure(backoff: Backoff, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure stays visible until the task has run for a while; its text has no message that may hold secrets."""
    failed, again = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        if not failed.is_set():
            failed.set()
            raise ValueError("secret")
        again.set()
        await asyncio.sleep(WAIT_S)

    supervisor = Supervisor(backoff=backoff)
    task = supervisor.start("work", run)
    assert "" == supervisor.problem
    await asyncio.wait_for(again.wait(), WAIT_S)
    assert "ValueError" in supervisor.problem
    assert "secret" not in supervisor.problem
    monkeypatch.setattr("gavel_client.supervision.SETTLEMENT_SECONDS", 0.0)
    assert "" == supervisor.problem
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_task_names_its_own_problem() -> None:
    """A running task may name what keeps it from its work."""
    problems = ["Redis is away"]
    supervisor = Supervisor()
    task = supervisor.start("work", asyncio.Event().wait, problem=lambda: "".join(problems))  # type: ignore[arg-type]
    assert "Redis is away" == supervisor.problem
    problems.clear()
    assert "" == supervisor.problem
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_fatal_error_ends_the_task() -> None:
    """An exception of a fatal type ends the task, and whoever awaits it gets the exception."""

    async def run() -> None:
        raise FatalError

    supervisor = Supervisor(fatal=(FatalError,))
    with pytest.raises(FatalError):
        await supervisor.start("work", run)
    assert [] == supervisor.tasks
