"""What the executor's own log lines tell whoever runs it."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace

import grpc
import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_EXECUTOR, Producer
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_service_pb2 import ExecutionStarted, ReportExecutionResponse
from gavel_client import lease
from gavel_client.client import GavelClient
from gavel_client.executor import Executor
from gavel_client.handlers import HandlerResult, Handlers
from gavel_client.lease import keep_lease
from gavel_client.reports import now, report_envelope

from tests.unit.client.fake_server import FakeServer, approved, refused

PRODUCER = Producer(type=PRODUCER_TYPE_EXECUTOR, id="executor-1")
STARTED = ExecutionStarted(execution_id="exec_1", attempt=1, decision=approved(7, "default"))


async def record(server: FakeServer, result: HandlerResult, kept: Envelope | None = None) -> Envelope:
    """Have a handler's result reported; the log keeps it as `kept`, or as it is. Returns the report."""
    handlers = Handlers()

    @handlers.action("refund.create")
    async def never(_: object) -> HandlerResult:
        raise AssertionError("nothing is carried out here")

    report = report_envelope(STARTED, PRODUCER, result, now(), now())
    server.script("ReportExecution", ReportExecutionResponse(envelope=kept or report))
    async with GavelClient(server.target) as client:
        assert (kept or report) == await Executor(client, "redis://127.0.0.1:1", handlers, producer_id="executor-1")._record(report)
    return report


async def test_an_end_names_its_error(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """The line about an attempt that failed says why."""
    with caplog.at_level(logging.INFO, logger="gavel_client.executor"):
        await record(server, HandlerResult.failed("PSP_DOWN", "no answer"))
    assert caplog.messages[-1].endswith("execution=exec_1 ended: EXECUTION_STATUS_FAILED PSP_DOWN no answer")


async def test_a_late_end_is_no_success(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """A report that came too late is not logged as if it had ended its decision."""
    kept = Envelope(event_name="LateExecutionReport", agent_diagnostic=AgentDiagnostic(kind="LateExecutionReport"))
    await record(server, HandlerResult.success(), kept)
    assert [
        f"decision={STARTED.decision.event_id} execution=exec_1 ended too late: EXECUTION_STATUS_SUCCESS; "
        "the log keeps it as LateExecutionReport, and a person has to look"
    ] == caplog.messages


async def lose_lease(server: FakeServer, asked_at: float) -> None:
    """Keep a lease of ten minutes, asked for at `asked_at` (monotonic seconds), until it is lost."""
    async with GavelClient(server.target) as client:
        await keep_lease(client, STARTED, PRODUCER, 600_000, asked_at)


async def test_a_lease_that_nobody_renewed_says_so(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """Where this process was too busy to renew, the server is not blamed."""
    await lose_lease(server, time.monotonic() - 3_600)
    assert "RenewExecution" not in server.requests
    assert caplog.messages[-1].endswith("lease lost: this process did not come to renew it (does a handler block the event loop?)")


async def test_a_lease_that_could_not_be_renewed_says_why(
    server: FakeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the server did not renew, what it said is named."""
    seconds = [250.0]
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: seconds[0]))

    def refuse(_: object) -> object:
        seconds[0] = 3_600.0  # the lease has lapsed before another try
        return refused(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")

    server.answers["RenewExecution"] = refuse
    await lose_lease(server, 0.0)
    assert caplog.messages[-1].endswith("lease lost: UNAVAILABLE LOG_UNAVAILABLE")
