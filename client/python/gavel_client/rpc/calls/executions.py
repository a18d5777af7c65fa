"""The calls of ExecutionService: attempts to execute approved decisions."""

from __future__ import annotations

from gavel.v1 import execution_service_pb2 as executions
from gavel.v1.common_pb2 import Producer, VersionBinding
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_service_pb2_grpc import ExecutionServiceStub

from gavel_client.envelopes import new_event_id
from gavel_client.rpc.calls.call import UnaryCall, unary_call, with_event_id
from gavel_client.rpc.deadlines import WRITE_TIMEOUT_MS


def begin_execution(
    decision_id: str,
    *,
    producer: Producer,
    lease_ms: int = 0,
    request_id: str = "",
    version_binding: VersionBinding | None = None,
    bus: str = "",
    timeout_ms: int = WRITE_TIMEOUT_MS,
) -> UnaryCall[executions.BeginExecutionResponse]:
    """Start an attempt of an approved decision with a lease of `lease_ms` (0: 30,000); a refusal is part of the response.

    `request_id` (default: a new one) names the request: sent again after a lost response, it gets the same attempt while that
    runs. Count the lease from the first time that the request was sent. `version_binding` has the versions that the executor runs.
    """
    request = executions.BeginExecutionRequest(
        bus=bus,
        decision_id=decision_id,
        producer=producer,
        lease_ms=lease_ms,
        request_id=request_id or new_event_id(),
        version_binding=version_binding,
    )
    return unary_call(ExecutionServiceStub, lambda stub: stub.BeginExecution, request, timeout_ms)


def renew_execution(
    decision_id: str,
    execution_id: str,
    *,
    producer: Producer,
    lease_ms: int = 0,
    request_id: str = "",
    bus: str = "",
    timeout_ms: int = WRITE_TIMEOUT_MS,
) -> UnaryCall[executions.RenewExecutionResponse]:
    """Extend the lease of a running attempt to `lease_ms` from now (0: 30,000). `request_id` as in `begin_execution`."""
    request = executions.RenewExecutionRequest(
        bus=bus,
        decision_id=decision_id,
        execution_id=execution_id,
        producer=producer,
        lease_ms=lease_ms,
        request_id=request_id or new_event_id(),
    )
    return unary_call(ExecutionServiceStub, lambda stub: stub.RenewExecution, request, timeout_ms)


def report_execution(
    envelope: Envelope, *, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[executions.ReportExecutionResponse]:
    """Record the outcome of an attempt; return the report as recorded in the log (see `ReportExecutionResponse`)."""
    request = executions.ReportExecutionRequest(bus=bus, envelope=with_event_id(envelope))
    return unary_call(ExecutionServiceStub, lambda stub: stub.ReportExecution, request, timeout_ms)
