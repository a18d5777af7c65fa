"""The executor's log lines."""

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
from gavel_client.executor import lease
from gavel_client.executor.executor import Executor
from gavel_client.executor.lease import keep_alive
from gavel_client.executor.reports import now, report_envelope
from gavel_client.handlers import HandlerResult, Handlers
from gavel_client.rpc.client import GavelClient

from tests.unit.client.fake_server import FakeServer, approved_decision, refusal

PRODUCER = Producer(type=PRODUCER_TYPE_EXECUTOR, id="executor-1")
STARTED = ExecutionStarted(execution_id="exec_1", attempt=1, decision=approved_decision(7, "default"))


async def record(server: FakeServer, result: HandlerResult, recorded: Envelope | None = None) -> Envelope:
    """Report a handler's result, which the server records as `recorded` or unchanged; return the report."""
    handlers = Handlers()

    @handlers.action("refund.create")
    async def never(_: object) -> HandlerResult:
        raise AssertionError("nothing is carried out here")

    report = report_envelope(STARTED, PRODUCER, result, now(), now())
    server.script("ReportExecution", ReportExecutionResponse(envelope=recorded or report))
    async with GavelClient(server.target) as client:
        assert (recorded or report) == await Executor(client, handlers, redis_url="redis://127.0.0.1:1", producer_id="executor-1")._report(
            report
        )
    return report


async def test_log_line_holds_the_error(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """The log line of a failed attempt holds the error."""
    with caplog.at_level(logging.INFO, logger="gavel_client.executor.executor"):
        await record(server, HandlerResult.failed("PSP_DOWN", "no answer"))
    assert caplog.messages[-1].endswith("execution=exec_1 ended: EXECUTION_STATUS_FAILED PSP_DOWN no answer")


async def test_log_line_of_a_late_report(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """The log line of a late report does not claim that the decision ended."""
    recorded = Envelope(event_name="LateExecutionReport", agent_diagnostic=AgentDiagnostic(kind="LateExecutionReport"))
    await record(server, HandlerResult.success(), recorded)
    assert [
        f"decision={STARTED.decision.event_id} execution=exec_1 ended too late: EXECUTION_STATUS_SUCCESS; "
        "the log keeps it as LateExecutionReport, and a person has to decide"
    ] == caplog.messages


async def lose_lease(server: FakeServer, requested_at: float) -> None:
    """Keep a lease of ten minutes, requested at `requested_at` (monotonic seconds), until it is lost."""
    async with GavelClient(server.target) as client:
        await keep_alive(client, STARTED, PRODUCER, 600_000, requested_at)


async def test_log_line_of_a_lease_without_renewal(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """The log line of a lease lost for lack of time blames this process, not the server."""
    await lose_lease(server, time.monotonic() - 3_600)
    assert "RenewExecution" not in server.requests
    assert caplog.messages[-1].endswith("lease lost: this process had no time to renew it; does a handler block the event loop?")


async def test_log_line_of_a_refused_renewal(server: FakeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log line of a lease lost after refused renewals holds the server's error."""
    seconds = [250.0]
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: seconds[0]))

    def refuse(_: object) -> object:
        seconds[0] = 3_600.0  # the lease has lapsed before another try
        return refusal(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")

    server.answers["RenewExecution"] = refuse
    await lose_lease(server, 0.0)
    assert caplog.messages[-1].endswith("lease lost: UNAVAILABLE LOG_UNAVAILABLE")
