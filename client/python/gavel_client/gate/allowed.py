"""Allowed: the leased attempt of an approved call. It runs the tool and reports how that ended.

The lease is not renewed: it is the time that the tool has. If the process dies, the lease lapses, and the rule set says what follows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_service_pb2 import ExecutionStarted
from google.protobuf.timestamp_pb2 import Timestamp

from gavel_client.agents.deadline import LAST_RECORD_MS
from gavel_client.agents.threaded_client import LoopClient
from gavel_client.blocking import run_blocking
from gavel_client.executor.lease import STOP_FRACTION
from gavel_client.executor.reports import now, report_envelope, strip_result
from gavel_client.gate.results import LEASE_OVER, failure, success, unknown
from gavel_client.handlers import ExecutionContext, HandlerResult
from gavel_client.rpc.errors import GavelError, HandlerError, describe_error
from gavel_client.timeouts import timeout
from gavel_client.values import from_struct

# How long a report is sent again while the server cannot be reached.
REPORT_MS: Final = 60_000

_logger = logging.getLogger(__name__)
# The reports whose callers were cancelled: the event loop itself keeps no task alive.
_reports: Final[set[asyncio.Task[None]]] = set()
Output = TypeVar("Output")


@dataclass(frozen=True)
class Attempt:
    """A started attempt. `requested_at` is the time.monotonic() before BeginExecution, from which the lease counts."""

    client: LoopClient
    executor: Producer
    started: ExecutionStarted
    requested_at: float
    began_at: Timestamp

    def seconds_left(self) -> float:
        """Return the time that the tool still has. It ends before the lease does."""
        return self.requested_at + self.started.lease_ms / 1000 * (1 - STOP_FRACTION) - time.monotonic()


class Allowed:
    """The tool may run once, now, by `run`. A framework that runs it itself calls `report` when it has ended."""

    def __init__(self, attempt: Attempt | None) -> None:
        """`attempt` is None for a tool without effect."""
        self._attempt = attempt

    @property
    def decision(self) -> Envelope | None:
        """The approved decision; None for a tool without effect."""
        return None if self._attempt is None else self._attempt.started.decision

    @property
    def execution(self) -> ExecutionContext:
        """The attempt, as handlers and the runtime of tools see it. Raises ValueError for a tool without effect."""
        if self._attempt is None:
            raise ValueError("a tool without effect has no attempt")
        started = self._attempt.started
        return ExecutionContext(started.decision, from_struct(started.decision.decision.params), started.attempt, started.execution_id)

    @property
    def idempotency_key(self) -> str:
        """The decision_id, the same for every attempt, for systems that must act only once; "" for a tool without effect."""
        return "" if self.decision is None else self.decision.event_id

    async def run(self, tool: Callable[[], Awaitable[Output]], output: Callable[[Output], HandlerResult] = success) -> Output:
        """Run the tool and report its end; return its output. `output` turns the tool's output into the report.

        The tool is cancelled shortly before its lease ends. Raises what the tool raises, and HandlerError if the lease is over before.
        """
        if self._attempt is None:
            return await tool()
        try:
            self.check_time()
            async with timeout(self._attempt.seconds_left()):
                value = await tool()
        except BaseException as error:
            is_overdue = isinstance(error, asyncio.TimeoutError) and self._attempt.seconds_left() <= 0
            result = unknown("the tool did not end within its lease", LEASE_OVER) if is_overdue else failure(error)
            is_cancelled = isinstance(error, asyncio.CancelledError)
            await self.report(result, timeout_ms=LAST_RECORD_MS if is_cancelled else REPORT_MS)
            raise
        await self.report(_result_of(value, output))
        return value

    def check_time(self) -> None:
        """Raise HandlerError if the lease leaves the tool no time. The tool must not run then."""
        if self._attempt is not None and self._attempt.seconds_left() <= 0:
            raise HandlerError(LEASE_OVER, "the tool did not run: its lease was over")

    async def report(self, result: HandlerResult, *, timeout_ms: int = REPORT_MS) -> None:
        """Record how the attempt ended. A report that the server does not take is logged; the lease then lapses.

        A cancellation does not stop the report, and waits for it for LAST_RECORD_MS. The end of the event loop does stop it: the
        cancelled caller then sends it once more.
        """
        if self._attempt is None:
            return
        report = report_envelope(self._attempt.started, self._attempt.executor, result, self._attempt.began_at, now())
        sending = _start_sending(self._attempt, report, timeout_ms)
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            await asyncio.wait({sending}, timeout=LAST_RECORD_MS / 1000)
            if sending.cancelled():  # asyncio.run ends, and has cancelled all tasks
                sending = _start_sending(self._attempt, report, LAST_RECORD_MS)
                await asyncio.wait({sending}, timeout=LAST_RECORD_MS / 1000)
            if not sending.done() or sending.cancelled():
                _logger.error("decision=%s the report of a cancelled call is not in the log yet", report.execution.decision_id)
            raise


def _start_sending(attempt: Attempt, report: Envelope, timeout_ms: int) -> asyncio.Task[None]:
    sending = asyncio.ensure_future(_send(attempt, report, timeout_ms))
    _reports.add(sending)
    sending.add_done_callback(_reports.discard)
    return sending


async def _send(attempt: Attempt, report: Envelope, timeout_ms: int) -> None:
    """Send a report, without its result if the server refuses that."""
    try:
        try:
            await attempt.client.report_execution(report, timeout_ms=timeout_ms)
        except GavelError as error:
            if not error.violations:
                raise
            # The tool took effect all the same. The refused report is not in the log, so its event_id is free.
            problem = "; ".join(": ".join(violation) for violation in error.violations)
            await attempt.client.report_execution(strip_result(report, problem), timeout_ms=timeout_ms)
    except GavelError as error:
        _logger.error(
            "decision=%s execution=%s could not be reported: %s",
            report.execution.decision_id,
            report.execution.execution_id,
            describe_error(error),
        )


def _result_of(value: Output, output: Callable[[Output], HandlerResult]) -> HandlerResult:
    """Return what to report of a tool that has returned. Its effect must be reported whatever its output is."""
    try:
        return output(value)
    except Exception as error:  # noqa: BLE001  # the output is a tool's, and `output` may be a framework's
        _logger.warning("the output of a tool cannot be recorded: %s", describe_error(error))
        return unknown("the output of the tool cannot be recorded")


class SyncAllowed:
    """Allowed, for tools that are plain functions. A tool that runs cannot be stopped: give the gate a lease that suffices."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed

    @property
    def decision(self) -> Envelope | None:
        """The approved decision; None for a tool without effect."""
        return self._allowed.decision

    @property
    def execution(self) -> ExecutionContext:
        """The attempt; see `Allowed.execution`."""
        return self._allowed.execution

    @property
    def idempotency_key(self) -> str:
        """The decision_id; see `Allowed.idempotency_key`."""
        return self._allowed.idempotency_key

    def run(self, tool: Callable[[], Output], output: Callable[[Any], HandlerResult] = success) -> Output:
        """Run the tool and report its end; return its output. Raises what the tool raises, and HandlerError if the lease is over before."""
        try:
            self._allowed.check_time()
            value = tool()
        except BaseException as error:
            self.report(failure(error))
            raise
        self.report(_result_of(value, output))
        return value

    def report(self, result: HandlerResult) -> None:
        """Record how the attempt ended; see `Allowed.report`."""
        run_blocking(lambda: self._allowed.report(result))
