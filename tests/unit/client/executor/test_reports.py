"""Reports as they are sent."""

from __future__ import annotations

from gavel.v1.common_pb2 import PRODUCER_TYPE_EXECUTOR, Producer
from gavel.v1.execution_service_pb2 import ExecutionStarted
from gavel_client.executor.reports import now, report_envelope
from gavel_client.handlers import HandlerResult

from tests.unit.client.fake_server import approved_decision

PRODUCER = Producer(type=PRODUCER_TYPE_EXECUTOR, id="executor-1")
STARTED = ExecutionStarted(execution_id="exec_1", attempt=1, decision=approved_decision(7, "default"))


def test_reports_name_no_cause() -> None:
    """A report leaves its cause to the server, which would refuse an approval that is older than its idempotency window."""
    assert "" == report_envelope(STARTED, PRODUCER, HandlerResult.success(), now(), now()).causation_id
