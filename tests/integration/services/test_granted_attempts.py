"""Attempts that a person grants when the approval is older than the idempotency window."""

from __future__ import annotations

from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_PARTIAL, EXECUTION_STATUS_SUCCESS
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel.v1.projection_service_pb2 import ListPendingReviewsRequest
from gavel_client.executor.reports import now, report_envelope
from gavel_client.handlers import HandlerResult
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT

from tests.integration.services.world import EXECUTOR, RULE_SET, World, fact, proposal, report

DAY_MS = 24 * 60 * 60 * 1_000
AGE_MS = 2 * IDEMPOTENCY_WINDOW_MS_DEFAULT


async def half_done(world: World) -> Envelope:
    """Return an approval whose one attempt was PARTIAL, so that it waits for a person."""
    await world.activate(RULE_SET.replace("max_age_ms: 60000", f"max_age_ms: {AGE_MS}"))
    proposed = proposal("order/1", cites=[await world.publish(fact("order/1", "order.status", "delivered"))])
    proposed.proposal.max_fact_age_ms = AGE_MS
    approval = await world.propose(proposed)
    await world.report(report(approval, await world.begin(approval), EXECUTION_STATUS_PARTIAL))
    return approval


async def forget_ids(world: World) -> None:
    """Let the idempotency window pass, and the server's memory of recent events."""
    world.clock.now_ms += IDEMPOTENCY_WINDOW_MS_DEFAULT + DAY_MS
    (await world.buses.open("")).recent_events._locations.clear()


async def test_the_report_of_an_old_approval(world: World) -> None:
    """The client's report of an attempt is recorded, caused by the approval, although the bus has forgotten the approval's event_id."""
    approval = await half_done(world)
    await forget_ids(world)
    (review,) = (await world.projections.ListPendingReviews(ListPendingReviewsRequest())).reviews
    verdict = ResolveReviewRequest(decision_id=review.decision_id, verdict=REVIEW_VERDICT_APPROVE, reviewer="ada", reason="seen")
    grant = (await world.arbitration.ResolveReview(verdict)).decision
    started = (await world.begin(grant)).started
    moment = now()
    moment.FromMilliseconds(world.clock.now_ms)
    recorded = await world.report(report_envelope(started, EXECUTOR, HandlerResult.success(), moment, moment))
    assert (EXECUTION_STATUS_SUCCESS, approval.event_id) == (recorded.execution.status, recorded.causation_id)


async def test_what_an_old_approval_causes(world: World) -> None:
    """A live decision may be the cause of an event, such as a call of a tool by its executor, although it is older than the window."""
    approval = await half_done(world)
    await forget_ids(world)
    caused = fact("order/2", "order.status", "seen")
    caused.causation_id = approval.event_id
    assert approval.trace_id == (await world.publish(caused)).trace_id
    (review,) = (await world.projections.ListPendingReviews(ListPendingReviewsRequest())).reviews
    await forget_ids(world)
    caused.ClearField("event_id")
    caused.causation_id = review.decision_id
    assert approval.trace_id == (await world.publish(caused)).trace_id
