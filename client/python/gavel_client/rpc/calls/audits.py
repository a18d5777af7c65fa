"""The calls of AuditService: audits of traces and decisions."""

from __future__ import annotations

from gavel.v1 import audit_service_pb2 as audits
from gavel.v1.audit_service_pb2_grpc import AuditServiceStub

from gavel_client.rpc.calls.call import UnaryCall, unary_call
from gavel_client.rpc.deadlines import AUDIT_TIMEOUT_MS


def audit_trace(
    trace_id: str, *, without_recomputation: bool = False, bus: str = "", timeout_ms: int = AUDIT_TIMEOUT_MS
) -> UnaryCall[audits.AuditTraceResponse]:
    """Audit a trace: models, tools, rule sets, facts, people, drift, and its decisions made again unless `without_recomputation`."""
    request = audits.AuditTraceRequest(bus=bus, trace_id=trace_id, without_recomputation=without_recomputation)
    return unary_call(AuditServiceStub, lambda stub: stub.AuditTrace, request, timeout_ms)


def audit_decision(
    decision_id: str, *, without_recomputation: bool = False, bus: str = "", timeout_ms: int = AUDIT_TIMEOUT_MS
) -> UnaryCall[audits.AuditDecisionResponse]:
    """Audit the decisions on one proposal; see `audit_trace`."""
    request = audits.AuditDecisionRequest(bus=bus, decision_id=decision_id, without_recomputation=without_recomputation)
    return unary_call(AuditServiceStub, lambda stub: stub.AuditDecision, request, timeout_ms)
