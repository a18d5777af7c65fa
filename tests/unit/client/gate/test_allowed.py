"""The attempt of an approved call: leases that are over before the tool runs, and callers that are cancelled while it is reported."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_EXECUTOR, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_FAILED, EXECUTION_STATUS_SUCCESS
from gavel.v1.execution_service_pb2 import ExecutionStarted
from gavel_client import HandlerError
from gavel_client.envelopes import new_event_id
from gavel_client.executor.reports import now
from gavel_client.gate import Allowed, SyncAllowed
from gavel_client.gate.allowed import Attempt
from gavel_client.gate.results import LEASE_OVER, success

LEASE_MS = 60_000


class Reports:
    """A client that records the reports which it gets, once `open` is set."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.asked = asyncio.Event()
        self.open = asyncio.Event()

    async def report_execution(self, envelope: Envelope, *, timeout_ms: int) -> None:
        """Record a report."""
        self.asked.set()
        await self.open.wait()
        self.envelopes.append(envelope)


def allowed(reports: Reports, *, requested_at: float | None = None) -> Allowed:
    """Return an attempt, begun now by default."""
    decision = Envelope(event_id=new_event_id())
    started = ExecutionStarted(decision=decision, attempt=1, execution_id="exec_000000000001", lease_ms=LEASE_MS)
    executor = Producer(type=PRODUCER_TYPE_EXECUTOR, id="tools")
    client: Any = reports
    return Allowed(Attempt(client, executor, started, time.monotonic() if requested_at is None else requested_at, now()))


async def sent() -> str:
    """Run a tool."""
    return "sent"


@pytest.mark.parametrize("runs_itself", [True, False])
async def test_a_cancelled_caller_does_not_lose_the_report(runs_itself: bool) -> None:
    """A caller that is cancelled while the success of its tool is reported ends once the report is in the log."""
    reports = Reports()
    attempt = allowed(reports)
    caller = asyncio.ensure_future(attempt.report(success("sent")) if runs_itself else attempt.run(sent))
    await reports.asked.wait()
    caller.cancel()
    await asyncio.sleep(0)
    reports.open.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert [EXECUTION_STATUS_SUCCESS] == [envelope.execution.status for envelope in reports.envelopes]


async def test_a_report_that_takes_long_goes_on_without_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that is cancelled does not wait for a report for ever, and the report is made all the same."""
    monkeypatch.setattr("gavel_client.gate.allowed.LAST_RECORD_MS", 1)
    reports = Reports()
    caller = asyncio.ensure_future(allowed(reports).run(sent))
    await reports.asked.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert [] == reports.envelopes
    reports.open.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [EXECUTION_STATUS_SUCCESS] == [envelope.execution.status for envelope in reports.envelopes]


@pytest.mark.parametrize("is_answered", [True, False])
def test_the_end_of_the_event_loop_does_not_lose_the_report(is_answered: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A report that is under way when asyncio.run cancels all tasks is sent once more; one that fails again is logged."""

    class Ending(Reports):
        async def report_execution(self, envelope: Envelope, *, timeout_ms: int) -> None:
            is_first = not self.asked.is_set()
            self.asked.set()
            if is_first:
                await asyncio.Event().wait()
            if not is_answered:
                raise asyncio.CancelledError
            self.envelopes.append(envelope)

    async def main() -> Reports:
        reports = Ending()
        callers.append(asyncio.ensure_future(allowed(reports).run(sent)))
        await reports.asked.wait()
        return reports

    callers: list[asyncio.Task[str]] = []
    reports = asyncio.run(main())
    assert callers[0].cancelled()
    assert [EXECUTION_STATUS_SUCCESS] * is_answered == [envelope.execution.status for envelope in reports.envelopes]
    assert is_answered == ("not in the log" not in caplog.text)


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_tool_does_not_run_after_its_lease(is_sync: bool) -> None:
    """A tool whose lease is over before it begins does not run: the attempt has failed without effect."""
    reports = Reports()
    reports.open.set()
    attempt = allowed(reports, requested_at=time.monotonic() - LEASE_MS / 1000)
    effects: list[str] = []

    async def act() -> None:
        effects.append("sent")

    run = asyncio.to_thread(SyncAllowed(attempt).run, lambda: effects.append("sent")) if is_sync else attempt.run(act)
    with pytest.raises(HandlerError, match=LEASE_OVER):
        await run
    assert [] == effects
    ends = [(envelope.execution.status, envelope.execution.error.code) for envelope in reports.envelopes]
    assert [(EXECUTION_STATUS_FAILED, LEASE_OVER)] == ends


async def test_both_gates_show_the_attempt() -> None:
    """The attempt of a synchronous gate is that of the gate, as handlers see it."""
    attempt = allowed(Reports())
    assert attempt.execution.execution_id == SyncAllowed(attempt).execution.execution_id
    assert attempt.idempotency_key == SyncAllowed(attempt).execution.decision.event_id
