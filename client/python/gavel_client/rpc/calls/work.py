"""The calls of WorkService: parked items and consumers of work queues."""

from __future__ import annotations

from collections.abc import Iterable

from gavel.v1 import work_service_pb2 as work
from gavel.v1.work_service_pb2 import WorkQueue
from gavel.v1.work_service_pb2_grpc import WorkServiceStub

from gavel_client.rpc.calls.call import UnaryCall, unary_call
from gavel_client.rpc.deadlines import READ_TIMEOUT_MS, WRITE_TIMEOUT_MS


def list_parked(
    queue: WorkQueue.ValueType,
    group: str,
    *,
    page_size: int = 0,
    page_token: str = "",
    bus: str = "",
    timeout_ms: int = READ_TIMEOUT_MS,
) -> UnaryCall[work.ListParkedResponse]:
    """Read a page of the parked items of a group, oldest first."""
    request = work.ListParkedRequest(bus=bus, queue=queue, group=group, page_size=page_size, page_token=page_token)
    return unary_call(WorkServiceStub, lambda stub: stub.ListParked, request, timeout_ms)


def retry_parked(
    queue: WorkQueue.ValueType, group: str, *, item_ids: Iterable[str] = (), bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[work.RetryParkedResponse]:
    """Put parked items back into their queue: those named, or all of the group."""
    request = work.RetryParkedRequest(bus=bus, queue=queue, group=group, item_ids=item_ids)
    return unary_call(WorkServiceStub, lambda stub: stub.RetryParked, request, timeout_ms)


def discard_parked(
    queue: WorkQueue.ValueType, group: str, item_ids: Iterable[str], *, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[work.DiscardParkedResponse]:
    """Drop parked items of a group."""
    request = work.DiscardParkedRequest(bus=bus, queue=queue, group=group, item_ids=item_ids)
    return unary_call(WorkServiceStub, lambda stub: stub.DiscardParked, request, timeout_ms)


def list_consumers(*, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS) -> UnaryCall[work.ListConsumersResponse]:
    """Read the groups of a bus's work queues with their lags."""
    return unary_call(WorkServiceStub, lambda stub: stub.ListConsumers, work.ListConsumersRequest(bus=bus), timeout_ms)
