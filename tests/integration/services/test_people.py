"""ResolveReview and RevokeDecision over real gRPC: verdicts, revocations, their effects and their refusals."""

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

from tests.integration.services.world import RULE_SET, World, fact, proposal, refusal, some_uuid

APPROVED = decision_pb2.OUTCOME_APPROVED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
REVOKED = decision_pb2.OUTCOME_REVOKED
APPROVE = fact_pb2.REVIEW_VERDICT_APPROVE
REJECT = fact_pb2.REVIEW_VERDICT_REJECT
COMMENT = fact_pb2.REVIEW_VERDICT_COMMENT


async def under_review(world: World, subject: str = "order/1") -> Envelope:
    """The decision that requests a human review about a large refund."""
    status = await world.publish(fact(subject, "order.status", "delivered"))
    decision = await world.propose(proposal(subject, amount=5_000, cites=[status], trace_id=f"trace-{subject}"))
    assert decision.decision.outcome == REVIEW
    return decision


def verdict(review: Envelope, value: fact_pb2.ReviewVerdict.ValueType = APPROVE, **changes: Any) -> ResolveReviewRequest:
    """A person's verdict. `changes` go into the request."""
    return ResolveReviewRequest(**{"decision_id": review.event_id, "verdict": value, "reviewer": "ada", "reason": "seen", **changes})


def revocation(approval: Envelope, **changes: Any) -> RevokeDecisionRequest:
    """A person's revocation. `changes` go into the request."""
    return RevokeDecisionRequest(**{"decision_id": approval.event_id, "revoked_by": "ada", "reason": "mistake", **changes})


async def open_reviews(world: World) -> list[str]:
    """Return the reviews that ListPendingReviews lists."""
    return [review.decision_id for review in (await world.projections.ListPendingReviews(ListPendingReviewsRequest())).reviews]


async def test_an_approval_by_a_person(world_with_rules: World) -> None:
    """The response is the recorded DECISION; the approval is listed in place of the review and can be started."""
    review = await under_review(world_with_rules)
    assert await open_reviews(world_with_rules) == [review.event_id]

    answer = (await world_with_rules.arbitration.ResolveReview(verdict(review))).decision

    assert answer.decision.outcome == APPROVED
    assert answer == (await world_with_rules.events.GetEvent(GetEventRequest(event_id=answer.event_id))).envelope
    event = (await world_with_rules.events.GetEvent(GetEventRequest(event_id=answer.causation_id))).envelope
    assert (event.fact.review_resolved.reviewer, event.fact.review_resolved.reason) == ("ada", "seen")
    assert await open_reviews(world_with_rules) == []
    pending = (await world_with_rules.projections.ListPendingDecisions(ListPendingDecisionsRequest())).decisions
    assert [decision.decision_id for decision in pending] == [answer.event_id]
    assert (await world_with_rules.begin(answer)).started.decision == answer


async def test_a_review_that_stays_open(world_with_rules: World) -> None:
    """If the evidence is too old, the response names the missing facts, and the review stays listed under its first id."""
    review = await under_review(world_with_rules)
    world_with_rules.clock.now_ms += 60_001

    answer = (await world_with_rules.arbitration.ResolveReview(verdict(review))).decision.decision

    assert (answer.outcome, answer.reason_code) == (REVIEW, "STALE_FACTS")
    assert list(answer.retry_hint.missing_fact_keys) == ["order.status"]
    assert await open_reviews(world_with_rules) == [review.event_id]


async def test_preflight_after_a_rejection(world_with_rules: World) -> None:
    """A preflight in the trace of a proposal that a person rejected is terminal."""
    review = await under_review(world_with_rules)
    rejected = (await world_with_rules.arbitration.ResolveReview(verdict(review, REJECT))).decision.decision
    assert (rejected.reason_code, rejected.terminal) == ("REVIEW_REJECTED", True)

    response = await world_with_rules.arbitration.Preflight(PreflightRequest(envelope=proposal("order/1", trace_id="trace-order/1")))

    assert (response.decision.reason_code, response.decision.terminal) == ("NO_FEASIBLE_PROPOSAL", True)


async def test_repeated_verdict(world_with_rules: World) -> None:
    """A verdict repeated under its event_id returns the first answer and appends nothing; another verdict needs another id."""
    review, approval = await under_review(world_with_rules), await world_with_rules.approve("order/2")
    resolving, revoking = verdict(review, event_id=some_uuid()), revocation(approval, event_id=some_uuid())
    verdicts, revocation_response = (
        await world_with_rules.arbitration.ResolveReview(resolving),
        await world_with_rules.arbitration.RevokeDecision(revoking),
    )
    head = await world_with_rules.head()

    assert await world_with_rules.arbitration.ResolveReview(resolving) == verdicts
    assert await world_with_rules.arbitration.RevokeDecision(revoking) == revocation_response
    assert await world_with_rules.head() == head
    for call in (
        world_with_rules.arbitration.ResolveReview(verdict(review, REJECT, event_id=resolving.event_id)),
        world_with_rules.arbitration.RevokeDecision(revocation(approval, event_id=revoking.event_id, reason="other")),
        world_with_rules.arbitration.RevokeDecision(revocation(approval, event_id=resolving.event_id)),
    ):
        assert (await refusal(call)).reason == "EVENT_ID_REUSED"


async def test_concurrent_verdicts(world_with_rules: World) -> None:
    """Of two verdicts on one review at the same time, one counts and the other is refused as too late."""
    review, approval = await under_review(world_with_rules), await world_with_rules.approve("order/2")
    calls: list[Any] = [
        world_with_rules.arbitration.ResolveReview(verdict(review)),
        world_with_rules.arbitration.ResolveReview(verdict(review, REJECT)),
        world_with_rules.arbitration.RevokeDecision(revocation(approval)),
        world_with_rules.begin(approval),
    ]
    answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    first, second, revocation_response, attempt = answers
    assert first.decision.decision.outcome == APPROVED
    assert isinstance(second, grpc.aio.AioRpcError)
    assert second.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert revocation_response.decision.decision.outcome == REVOKED
    assert attempt.refusal.reason_code == "REVOKED"


async def test_revoking(world_with_rules: World) -> None:
    """The approval is no longer listed, its key is free, and beginning its execution is refused."""
    approval = await world_with_rules.approve()

    answer = (await world_with_rules.arbitration.RevokeDecision(revocation(approval))).decision

    assert (answer.decision.outcome, answer.decision.previous_decision_id) == (REVOKED, approval.event_id)
    assert not (await world_with_rules.projections.ListPendingDecisions(ListPendingDecisionsRequest())).decisions
    assert (await world_with_rules.begin(approval)).refusal.reason_code == "REVOKED"
    problem = await refusal(world_with_rules.arbitration.RevokeDecision(revocation(approval)))
    assert (problem.code, problem.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
    assert (await world_with_rules.approve()).decision.outcome == APPROVED


async def test_started_execution_is_not_revoked(world_with_rules: World) -> None:
    """Once an attempt has started, revoking is FAILED_PRECONDITION, and nothing is appended."""
    approval = await world_with_rules.approve()
    await world_with_rules.begin(approval)
    head = await world_with_rules.head()
    problem = await refusal(world_with_rules.arbitration.RevokeDecision(revocation(approval)))
    assert (problem.code, problem.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
    assert "has begun" in problem.message
    assert await world_with_rules.head() == head


async def test_unknown_decisions(world_with_rules: World) -> None:
    """A decision that the bus does not have is NOT_FOUND, also where the id is some other event's."""
    status = await world_with_rules.publish(fact("order/1", "order.status", "delivered"))
    for unknown in (Envelope(event_id=some_uuid()), status):
        for call in (
            world_with_rules.arbitration.ResolveReview(verdict(unknown)),
            world_with_rules.arbitration.RevokeDecision(revocation(unknown)),
        ):
            problem = await refusal(call)
            assert (problem.code, problem.reason) == (grpc.StatusCode.NOT_FOUND, "DECISION_NOT_FOUND")


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
async def test_malformed_verdicts(world_with_rules: World, changes: dict[str, Any], fields: list[str]) -> None:
    """Every violation of a request is named at once, before anything is looked up."""
    problem = await refusal(world_with_rules.arbitration.ResolveReview(verdict(Envelope(event_id=some_uuid()), **changes)))
    assert (problem.code, problem.reason, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", fields)
    if "verdict" not in changes:
        names = {("revoked_by" if name == "reviewer" else name): value for name, value in changes.items()}
        problem = await refusal(world_with_rules.arbitration.RevokeDecision(revocation(Envelope(event_id=some_uuid()), **names)))
        assert problem.fields == ["revoked_by" if field == "reviewer" else field for field in fields]


async def test_verdicts_cannot_be_published(world_with_rules: World) -> None:
    """A FACT with a verdict cannot be published, because only ResolveReview and RevokeDecision check it."""
    review = await under_review(world_with_rules)
    forged = fact("order/1", "gavel.review_resolved", "x")
    forged.fact.review_resolved.decision_id = review.event_id
    assert (await refusal(world_with_rules.publish(forged))).reason == "FIELD_RESERVED"
    envelope = fact("order/1", "order.note", "x", event_name="ReviewResolved")
    assert (await refusal(world_with_rules.publish(envelope))).reason == "FIELD_RESERVED"


POLICY = "    retry: {max_attempts: 2}\n    review: {quorum: 2}\n"


async def test_votes(world: World) -> None:
    """A vote that is not the last one is answered with its FACT, is listed, and may be repeated; after the last one comes the decision."""
    await world.activate(RULE_SET.replace("    retry: {max_attempts: 2}\n", POLICY))
    review = await under_review(world)
    first = verdict(review, event_id=some_uuid())
    answer = await world.arbitration.ResolveReview(first)
    assert not answer.HasField("decision")
    assert ("ReviewVoted", first.event_id, 1, 2) == (
        answer.vote.event_name,
        answer.vote.event_id,
        answer.vote.fact.review_voted.votes,
        answer.vote.fact.review_voted.quorum,
    )
    assert answer.vote == (await world.events.GetEvent(GetEventRequest(event_id=first.event_id))).envelope
    head = await world.head()
    assert answer == await world.arbitration.ResolveReview(first)
    assert head == await world.head()
    assert (
        "EVENT_ID_REUSED"
        == (await refusal(world.arbitration.ResolveReview(verdict(review, event_id=first.event_id, reason="other")))).reason
    )
    assert "WRONG_STATE" == (await refusal(world.arbitration.ResolveReview(verdict(review)))).reason
    await world.arbitration.ResolveReview(verdict(review, COMMENT, reviewer="eve", reason="why?"))
    (pending,) = (await world.projections.ListPendingReviews(ListPendingReviewsRequest())).reviews
    assert (2, False) == (pending.review_policy.quorum, pending.escalated)
    assert [("ada", APPROVE, "seen"), ("eve", COMMENT, "why?")] == [(one.reviewer, one.verdict, one.reason) for one in pending.votes]
    assert [answer.vote.recorded_at, True] == [pending.votes[0].voted_at, pending.votes[1].HasField("voted_at")]
    last = await world.arbitration.ResolveReview(verdict(review, reviewer="ben"))
    assert (APPROVED, False) == (last.decision.decision.outcome, last.HasField("vote"))
    assert [] == await open_reviews(world)


async def test_an_empty_comment(world_with_rules: World) -> None:
    """A comment needs a text."""
    review = await under_review(world_with_rules)
    problem = await refusal(world_with_rules.arbitration.ResolveReview(verdict(review, COMMENT, reason=" ")))
    assert "INVALID_REQUEST" == problem.reason
