"""The background tasks of a server: one supervisor for all of them, shown in `gavel status`, health and metrics.

`gavel_background_task_healthy` is 0 while something keeps a task from its work, and `gavel_background_task_failures_total` counts how
often a task has failed and was started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from gavel_client.supervision import SupervisedTask, Supervisor
from prometheus_client import Counter, Gauge

# How often the tasks are looked at for health and metrics.
REPORT_INTERVAL_SECONDS: Final = 1.0

HEALTHY: Final = Gauge("gavel_background_task_healthy", "1 if nothing keeps the background task from its work, else 0.", ["task", "bus"])
FAILURES: Final = Counter("gavel_background_task_failures", "How often a background task failed and was started again.", ["task", "bus"])

_LOG: Final = structlog.get_logger(__name__)


def new_supervisor() -> Supervisor:
    """Return a supervisor that counts the failures of its tasks."""
    return Supervisor(on_failure=_count_failure)


async def report_forever(supervisor: Supervisor, set_health: Callable[[bool], Awaitable[None]]) -> None:
    """Set the gauges of all tasks and log their problems, every second; call `set_health` with whether all tasks are well."""
    problems: dict[SupervisedTask, str] = {}
    while True:
        tasks = supervisor.tasks
        current_problems = {task: task.problem for task in tasks}
        for task, problem in current_problems.items():
            HEALTHY.labels(task.name, task.bus).set(0 if problem else 1)
            if problem and not problems.get(task):
                _LOG.warning("background.unwell", task=task.name, bus=task.bus, problem=problem)
            elif problems.get(task) and not problem:
                _LOG.info("background.well", task=task.name, bus=task.bus)
        for ended in problems.keys() - current_problems.keys():
            HEALTHY.remove(ended.name, ended.bus)
        problems = current_problems
        await set_health(not any(current_problems.values()))
        await asyncio.sleep(REPORT_INTERVAL_SECONDS)


def _count_failure(task: SupervisedTask) -> None:
    FAILURES.labels(task.name, task.bus).inc()
