"""The supervisor of background tasks: it runs each again whenever it fails, for ever.

Nobody awaits a background task, so nobody could handle its failure. A task that fails is logged with its traceback and runs again
after a pause that grows to `Backoff.maximum_ms`. Its problem stays visible until it has run for SETTLEMENT_SECONDS without another failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from gavel_client.rpc.backoff import Backoff
from gavel_client.rpc.errors import describe_error

# How long a task must run after a failure to count as healthy again.
SETTLEMENT_SECONDS: Final = 5.0

_logger = logging.getLogger(__name__)


class SupervisedTask:
    """One background task: its name and bus ("" for a task of the whole process), and its failures."""

    def __init__(self, name: str, bus: str, own_problem: Callable[[], str]) -> None:
        self.name = name
        self.bus = bus
        self.failures = 0
        self._own_problem = own_problem
        self._failure = ""
        self._failures_in_a_row = 0
        self._running_since: float | None = None

    @property
    def problem(self) -> str:
        """The reason why the task cannot work now, as a sentence, or ""."""
        if self._failure and (self._running_since is None or time.monotonic() - self._running_since < SETTLEMENT_SECONDS):
            return self._failure
        return self._own_problem()

    def note_start(self) -> None:
        """Note that the task runs."""
        self._running_since = time.monotonic()

    def note_failure(self, error: Exception) -> int:
        """Note that the task has failed; return how often it has failed in a row."""
        if self._running_since is not None and time.monotonic() - self._running_since >= SETTLEMENT_SECONDS:
            self._failures_in_a_row = 0
        self._failures_in_a_row += 1
        self._running_since = None
        self.failures += 1
        self._failure = f"failed and runs again: {describe_error(error)}"
        return self._failures_in_a_row


class Supervisor:
    """Runs background tasks of one event loop. `on_failure`, if given, is called after each failure.

    An exception of one of the types `fatal` is not retried: it ends the task, and awaiting the task raises it.
    """

    def __init__(
        self,
        *,
        backoff: Backoff | None = None,
        fatal: tuple[type[Exception], ...] = (),
        on_failure: Callable[[SupervisedTask], None] | None = None,
    ) -> None:
        self._backoff = backoff or Backoff()
        self._fatal = fatal
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[None], SupervisedTask] = {}

    @property
    def tasks(self) -> list[SupervisedTask]:
        """The tasks that have not ended, in the order of their starts."""
        return list(self._tasks.values())

    @property
    def problem(self) -> str:
        """The problem of the first task that has one, or ""."""
        return next(filter(None, (task.problem for task in self._tasks.values())), "")

    def start(
        self, name: str, run: Callable[[], Awaitable[None]], *, bus: str = "", problem: Callable[[], str] = lambda: ""
    ) -> asyncio.Task[None]:
        """Run a background task until `run` returns or the returned task is cancelled; after a failure, call `run` again.

        `problem` tells what keeps the running task from its work, "" if nothing does.
        """
        supervised = SupervisedTask(name, bus, problem)
        task = asyncio.create_task(self._repeat(supervised, run), name=name)
        self._tasks[task] = supervised
        task.add_done_callback(self._tasks.pop)
        return task

    async def _repeat(self, task: SupervisedTask, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            task.note_start()
            try:
                await run()
            except self._fatal:
                raise
            except Exception as error:
                failures_in_a_row = task.note_failure(error)
                pause_ms = self._backoff.pause_ms(failures_in_a_row)
                _logger.exception("task=%s bus=%s failed; it runs again in %d ms", task.name, task.bus or "-", pause_ms)
                if self._on_failure is not None:
                    self._on_failure(task)
                await asyncio.sleep(pause_ms / 1000)
            else:
                return
