"""ResolveReview and RevokeDecision over real gRPC: what people say, what follows, and how it is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from gavel.v1 import decision_pb2, fact_pb2
from gavel.v1.arbitration_service_pb2 import PreflightRequest, ResolveReviewRequest, RevokeDecisionRequest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetEventRequest
from gavel.v1.projection_service_pb2 import ListPendingDecisionsRequest, ListPendingReviewsRequest

from tests.integration.services.world import World, fact, proposal, refusal, some_uuid

APPROVED = decision_pb2.OUTCOME_APPROVED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
REVOKED = decision_pb2.OUTCOME_REVOKED
APPROVE = fact_pb2.REVIEW_VERDICT_APPROVE
REJECT = fact_pb2.REVIEW_VERDICT_REJECT


async def under_review(world: World, subject: str = "order/1") -> Envelope:
    """The decision that calls a person about a large refund."""
    status = await world.publish(fact(subject, "order.status", "delivered"))
    decision = await world.propose(proposal(subject, amount=5_000, cites=[status], trace_id=f"trace-{subject}"))
    assert decision.decision.outcome == REVIEW
    return decision


def verdict(review: Envelope, said: fact_pb2.ReviewVerdict.ValueType = APPROVE, **changes: Any) -> ResolveReviewRequest:
    """A person's verdict. `changes` go into the request."""
    return ResolveReviewRequest(**{"decision_id": review.event_id, "verdict": said, "reviewer": "ada", "reason": "seen", **changes})


def revocation(approval: Envelope, **changes: Any) -> RevokeDecisionRequest:
    """A person's revocation. `changes` go into the request."""
    return RevokeDecisionRequest(**{"decision_id": approval.event_id, "revoked_by": "ada", "reason": "mistake", **changes})


async def open_reviews(world: World) -> list[str]:
    """What ListPendingReviews shows."""
    return [review.decision_id for review in (await world.projections.ListPendingReviews(ListPendingReviewsRequest())).reviews]


async def test_an_approval_by_a_person(governed: World) -> None:
    """The answer is the DECISION as the log has it; the review is listed no more, the approval is, and it can be started."""
    review = await under_review(governed)
    assert await open_reviews(governed) == [review.event_id]

    answer = (await governed.arbitration.ResolveReview(verdict(review))).decision

    assert answer.decision.outcome == APPROVED
    assert answer == (await governed.events.GetEvent(GetEventRequest(event_id=answer.event_id))).envelope
    said = (await governed.events.GetEvent(GetEventRequest(event_id=answer.causation_id))).envelope
    assert (said.fact.review_resolved.reviewer, said.fact.review_resolved.reason) == ("ada", "seen")
    assert await open_reviews(governed) == []
    pending = (await governed.projections.ListPendingDecisions(ListPendingDecisionsRequest())).decisions
    assert [decision.decision_id for decision in pending] == [answer.event_id]
    assert (await governed.begin(answer)).started.decision == answer


async def test_a_review_that_stays_open(governed: World) -> None:
    """Where the evidence is too old the answer is a value that says so, and the review is still listed under its first id."""
    review = await under_review(governed)
    governed.clock.now_ms += 60_001

    answer = (await governed.arbitration.ResolveReview(verdict(review))).decision.decision

    assert (answer.outcome, answer.reason_code) == (REVIEW, "STALE_FACTS")
    assert list(answer.retry_hint.missing_fact_keys) == ["order.status"]
    assert await open_reviews(governed) == [review.event_id]


async def test_preflight_after_a_rejection(governed: World) -> None:
    """A dry run knows what a person rejected: terminal, in that trace."""
    review = await under_review(governed)
    rejected = (await governed.arbitration.ResolveReview(verdict(review, REJECT))).decision.decision
    assert (rejected.reason_code, rejected.terminal) == ("REVIEW_REJECTED", True)

    tried = await governed.arbitration.Preflight(PreflightRequest(envelope=proposal("order/1", trace_id="trace-order/1")))

    assert (tried.decision.reason_code, tried.decision.terminal) == ("NO_FEASIBLE_PROPOSAL", True)


async def test_the_same_word_again(governed: World) -> None:
    """A word sent again under its event_id is answered with the first answer and appends nothing; other words need another id."""
    review, approval = await under_review(governed), await governed.approve("order/2")
    resolving, revoking = verdict(review, event_id=some_uuid()), revocation(approval, event_id=some_uuid())
    resolved, revoked = await governed.arbitration.ResolveReview(resolving), await governed.arbitration.RevokeDecision(revoking)
    head = await governed.head()

    assert await governed.arbitration.ResolveReview(resolving) == resolved
    assert await governed.arbitration.RevokeDecision(revoking) == revoked
    assert await governed.head() == head
    for call in (
        governed.arbitration.ResolveReview(verdict(review, REJECT, event_id=resolving.event_id)),
        governed.arbitration.RevokeDecision(revocation(approval, event_id=revoking.event_id, reason="other")),
        governed.arbitration.RevokeDecision(revocation(approval, event_id=resolving.event_id)),
    ):
        assert (await refusal(call)).reason == "EVENT_ID_REUSED"


async def test_two_people_at_once(governed: World) -> None:
    """Of two words about one thing at the same time, one counts and the other is told that it comes too late."""
    review, approval = await under_review(governed), await governed.approve("order/2")
    words: list[Any] = [
        governed.arbitration.ResolveReview(verdict(review)),
        governed.arbitration.ResolveReview(verdict(review, REJECT)),
        governed.arbitration.RevokeDecision(revocation(approval)),
        governed.begin(approval),
    ]
    answers: list[Any] = await asyncio.gather(*words, return_exceptions=True)
    first, second, revoked, begun = answers
    assert first.decision.decision.outcome == APPROVED
    assert isinstance(second, grpc.aio.AioRpcError)
    assert second.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert revoked.decision.decision.outcome == REVOKED
    assert begun.refusal.reason_code == "REVOKED"


async def test_revoking(governed: World) -> None:
    """The approval is listed no more, its key is free, and whoever wants to start it is told."""
    approval = await governed.approve()

    answer = (await governed.arbitration.RevokeDecision(revocation(approval))).decision

    assert (answer.decision.outcome, answer.decision.previous_decision_id) == (REVOKED, approval.event_id)
    assert not (await governed.projections.ListPendingDecisions(ListPendingDecisionsRequest())).decisions
    assert (await governed.begin(approval)).refusal.reason_code == "REVOKED"
    again = await refusal(governed.arbitration.RevokeDecision(revocation(approval)))
    assert (again.code, again.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
    assert (await governed.approve()).decision.outcome == APPROVED


async def test_what_has_begun_is_not_revoked(governed: World) -> None:
    """Once an attempt has started, revoking is FAILED_PRECONDITION, and nothing is appended."""
    approval = await governed.approve()
    await governed.begin(approval)
    head = await governed.head()
    heard = await refusal(governed.arbitration.RevokeDecision(revocation(approval)))
    assert (heard.code, heard.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
    assert "has begun" in heard.message
    assert await governed.head() == head


async def test_unknown_decisions(governed: World) -> None:
    """A decision that the bus does not have is NOT_FOUND, also where the id is some other event's."""
    status = await governed.publish(fact("order/1", "order.status", "delivered"))
    for unknown in (Envelope(event_id=some_uuid()), status):
        for call in (governed.arbitration.ResolveReview(verdict(unknown)), governed.arbitration.RevokeDecision(revocation(unknown))):
            heard = await refusal(call)
            assert (heard.code, heard.reason) == (grpc.StatusCode.NOT_FOUND, "DECISION_NOT_FOUND")


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"decision_id": ""}, ["decision_id"]),
        ({"decision_id": "no-uuid", "reviewer": ""}, ["decision_id", "reviewer"]),
        ({"reviewer": " "}, ["reviewer"]),
        ({"reviewer": "a" * 129}, ["reviewer"]),
        ({"reviewer": "a\0"}, ["reviewer"]),
        ({"reason": "\0"}, ["reason"]),
        ({"reason": "x" * (64 * 1024 + 1)}, ["reason"]),
        ({"verdict": 0}, ["verdict"]),
        ({"verdict": 7}, ["verdict"]),
        ({"event_id": "x"}, ["event_id"]),
        ({"event_id": "00000000-0000-8000-8000-000000000001"}, ["event_id"]),
    ],
)
async def test_malformed_verdicts(governed: World, changes: dict[str, Any], fields: list[str]) -> None:
    """Every violation of a request is named at once, before anything is looked up."""
    heard = await refusal(governed.arbitration.ResolveReview(verdict(Envelope(event_id=some_uuid()), **changes)))
    assert (heard.code, heard.reason, heard.fields) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", fields)
    if "verdict" not in changes:
        named = {("revoked_by" if name == "reviewer" else name): value for name, value in changes.items()}
        heard = await refusal(governed.arbitration.RevokeDecision(revocation(Envelope(event_id=some_uuid()), **named)))
        assert heard.fields == ["revoked_by" if field == "reviewer" else field for field in fields]


async def test_nobody_speaks_for_people(governed: World) -> None:
    """A FACT with a person's word cannot be published: the calls that check it are the only way."""
    review = await under_review(governed)
    forged = fact("order/1", "gavel.review_resolved", "x")
    forged.fact.review_resolved.decision_id = review.event_id
    assert (await refusal(governed.publish(forged))).reason == "FIELD_RESERVED"
    named = fact("order/1", "order.note", "x", event_name="ReviewResolved")
    assert (await refusal(governed.publish(named))).reason == "FIELD_RESERVED"
