"""What the executor's own log lines tell whoever runs it."""

from __future__ import annotations

import logging

import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_EXECUTOR, Producer
from gavel.v1.execution_service_pb2 import ExecutionStarted, ReportExecutionResponse
from gavel_client.client import GavelClient
from gavel_client.executor import Executor
from gavel_client.handlers import HandlerResult, Handlers
from gavel_client.reports import now, report_envelope

from tests.unit.client.fake_server import FakeServer, approved


async def test_an_end_names_its_error(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """The line about an attempt that failed says why."""
    handlers = Handlers()

    @handlers.action("refund.create")
    async def never(_: object) -> HandlerResult:
        raise AssertionError("nothing is carried out here")

    started = ExecutionStarted(execution_id="exec_1", attempt=1, decision=approved(7, "default"))
    producer = Producer(type=PRODUCER_TYPE_EXECUTOR, id="executor-1")
    report = report_envelope(started, producer, HandlerResult.failed("PSP_DOWN", "no answer"), now(), now())
    server.script("ReportExecution", ReportExecutionResponse(envelope=report))
    async with GavelClient(server.target) as client:
        executor = Executor(client, "redis://127.0.0.1:1", handlers, producer_id="executor-1")
        with caplog.at_level(logging.INFO, logger="gavel_client.executor"):
            assert report == await executor._record(report)
    assert caplog.messages[-1].endswith("execution=exec_1 ended: EXECUTION_STATUS_FAILED PSP_DOWN no answer")
