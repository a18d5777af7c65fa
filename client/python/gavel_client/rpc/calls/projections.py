"""The calls of ProjectionService: the state of a bus."""

from __future__ import annotations

from collections.abc import Sequence

from gavel.v1 import projection_service_pb2 as projections
from gavel.v1.projection_service_pb2_grpc import ProjectionServiceStub

from gavel_client.rpc.calls.call import UnaryCall, unary_call
from gavel_client.rpc.deadlines import READ_TIMEOUT_MS


def get_projection(
    subject: str,
    *,
    min_sequence_number: int = 0,
    page_size: int = 0,
    page_token: str = "",
    bus: str = "",
    timeout_ms: int = READ_TIMEOUT_MS,
) -> UnaryCall[projections.GetProjectionResponse]:
    """Read a page of the state of `subject` once the projection covers `min_sequence_number` (constitution §10).

    `paging.whole_projection` reads all pages. Few subjects have more than one: a page holds 1,000 items and 2 MiB.
    """
    request = projections.GetProjectionRequest(
        bus=bus, subject=subject, min_sequence_number=min_sequence_number, page_size=page_size, page_token=page_token
    )
    return unary_call(ProjectionServiceStub, lambda stub: stub.GetProjection, request, timeout_ms)


def list_pending_decisions(
    *,
    phases: Sequence[projections.PendingPhase.ValueType] = (),
    action_types: Sequence[str] = (),
    lost_work: bool = False,
    page_size: int = 0,
    page_token: str = "",
    bus: str = "",
    timeout_ms: int = READ_TIMEOUT_MS,
) -> UnaryCall[projections.ListPendingDecisionsResponse]:
    """Read a page of approved decisions that have not ended, oldest first. Empty filters select all.

    `lost_work` selects those whose item the work queue has lost.
    """
    request = projections.ListPendingDecisionsRequest(
        bus=bus, page_size=page_size, page_token=page_token, phases=phases, action_types=action_types, lost_work=lost_work
    )
    return unary_call(ProjectionServiceStub, lambda stub: stub.ListPendingDecisions, request, timeout_ms)


def list_pending_reviews(
    *, page_size: int = 0, page_token: str = "", bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[projections.ListPendingReviewsResponse]:
    """Read a page of open reviews, oldest first."""
    request = projections.ListPendingReviewsRequest(bus=bus, page_size=page_size, page_token=page_token)
    return unary_call(ProjectionServiceStub, lambda stub: stub.ListPendingReviews, request, timeout_ms)


def get_status(
    *, include_projection_digest: bool = False, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[projections.GetStatusResponse]:
    """Read the state of the bus and of the server. The digest requires a read of the whole projection."""
    request = projections.GetStatusRequest(bus=bus, include_projection_digest=include_projection_digest)
    return unary_call(ProjectionServiceStub, lambda stub: stub.GetStatus, request, timeout_ms)
