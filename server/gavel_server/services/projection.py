"""ProjectionService: the present, as the log makes it (seeds 002 §10). Every answer is one committed state's."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import grpc
from gavel.v1 import projection_service_pb2_grpc
from gavel.v1.projection_service_pb2 import (
    Consumer,
    GetProjectionRequest,
    GetProjectionResponse,
    GetStatusRequest,
    GetStatusResponse,
    ListPendingDecisionsRequest,
    ListPendingDecisionsResponse,
    ListPendingReviewsRequest,
    ListPendingReviewsResponse,
    PendingDecision,
    PendingReview,
)
from gavel_rules.events import set_timestamp

from gavel_server import views
from gavel_server.admission import SUBJECT
from gavel_server.errors import invalid
from gavel_server.log import ConsumerGroup, LogError
from gavel_server.services.paging import Page, fill, page_of

if TYPE_CHECKING:
    from gavel_server.buses import Buses

WAIT_MS_MAX: Final = 5_000
_SERVER_VERSION: Final = f"gavel {version('gavel')}"

_Context = grpc.aio.ServicerContext[Any, Any]


class ProjectionServicer(projection_service_pb2_grpc.ProjectionServiceServicer):
    """Serves ProjectionService on the buses of this server."""

    def __init__(self, buses: Buses) -> None:
        self._buses = buses

    async def GetProjection(self, request: GetProjectionRequest, context: _Context) -> GetProjectionResponse:
        """Read what holds for one subject, once the state has come as far as asked."""
        violations = []
        if not SUBJECT.match(request.subject):
            violations.append(("subject", 'is not "type/id", e.g. "order/123"'))
        if request.min_sequence_number < 0:
            violations.append(("min_sequence_number", "is negative"))
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.get(request.bus)
        await sequencer.wait_for(request.min_sequence_number, WAIT_MS_MAX)
        state = await sequencer.settled()
        return GetProjectionResponse(projection=views.projection(state, request.subject))

    async def ListPendingDecisions(self, request: ListPendingDecisionsRequest, context: _Context) -> ListPendingDecisionsResponse:
        """Read a page of the approved decisions that have not come to their end, oldest first."""
        sequencer = await self._buses.get(request.bus)
        page = page_of(request.page_size, request.page_token, ("pending decisions", sequencer.bus), (int,))
        state = await sequencer.settled()
        decisions, token = fill(page, views.pending_decisions(state, _after(page)), _place)
        return ListPendingDecisionsResponse(decisions=decisions, next_page_token=token, projection_version=state.head)

    async def ListPendingReviews(self, request: ListPendingReviewsRequest, context: _Context) -> ListPendingReviewsResponse:
        """Read a page of what waits for a person, oldest first."""
        sequencer = await self._buses.get(request.bus)
        page = page_of(request.page_size, request.page_token, ("pending reviews", sequencer.bus), (int,))
        state = await sequencer.settled()
        reviews, token = fill(page, views.pending_reviews(state, _after(page)), _place)
        return ListPendingReviewsResponse(reviews=reviews, next_page_token=token, projection_version=state.head)

    async def GetStatus(self, request: GetStatusRequest, context: _Context) -> GetStatusResponse:
        """Read the state of the bus and of this server."""
        sequencer = await self._buses.get(request.bus)
        consumers: list[ConsumerGroup] = []
        unreadable = ""
        try:
            consumers = await sequencer.log.consumers()
            durability_warnings = await sequencer.log.durability()
        except LogError as error:
            # A caller asks this most of all when the log is away: what is in memory is answered, and the reason.
            unreadable = str(error)
            durability_warnings = [f"the log does not say how durable it is: {unreadable}"]
        state = await sequencer.settled()
        head = sequencer.head
        unwritable = sequencer.unwritable()
        response = GetStatusResponse(
            head_sequence_number=head.sequence_number,
            head_chain_hash=head.chain_hash,
            active_rule_sets=views.active_rule_sets(state),
            shadow_rule_sets=views.shadow_rule_sets(state),
            consumers=[Consumer(**group._asdict()) for group in consumers],
            arbiter_version=state.arbiter_version,
            cross_check=state.cross_check,
            server_version=_SERVER_VERSION,
            durable=not durability_warnings,
            durability_warnings=durability_warnings,
            projection_digest=state.digest() if request.include_projection_digest else "",
            queued_commands=sequencer.queued,
            writable=unwritable is None and not unreadable,
            unwritable_reason=unwritable.message if unwritable is not None else unreadable,
        )
        if state.recorded_at_ms:
            set_timestamp(response.head_recorded_at, state.recorded_at_ms)
        return response


def _after(page: Page) -> int:
    return 0 if page.after is None else int(page.after[0])


def _place(item: PendingDecision | PendingReview) -> tuple[int]:
    return (item.sequence_number,)
