"""Votes and witnesses of authenticated callers over gRPC, on a bus with grants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from gavel.v1 import common_pb2, decision_pb2, fact_pb2
from gavel.v1.administration_service_pb2 import DeployGrantsRequest
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest, ResolveReviewResponse, SubmitProposalRequest
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import PublishEventRequest
from gavel.v1.observation_pb2 import Observation
from gavel.v1.projection_service_pb2 import ListPendingReviewsRequest
from gavel.v1.replay_service_pb2 import VerifyReplayRequest
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules.identity.principal import Principal
from gavel_rules.values import python_to_value

from tests.integration.services.identity.callers import ADMIN, AGENT, DATABASE, GRANTS, REVIEWER, KnowingInterceptor, by
from tests.integration.services.world import AGENT as AGENT_PRODUCER
from tests.integration.services.world import RULE_SET, World, fact, proposal, refusal, running_world
from tests.support.hashes import sha256_of

APPROVE = fact_pb2.REVIEW_VERDICT_APPROVE
APPROVED = decision_pb2.OUTCOME_APPROVED
OTHER_REVIEWER = Principal("rob", "jwt", "https://issuer.example", ("risk",))
LEAD = Principal("lea", "jwt", "https://issuer.example", ("leads",))
TOOLS = Principal("spiffe://acme/tools", "mtls", "CN=acme")
RUNTIME = Producer(type=common_pb2.PRODUCER_TYPE_TOOL_RUNTIME, id="tools-1")
POLICY = "    retry: {max_attempts: 2}\n    review: {quorum: 2, groups: [risk], separation: true}\n"
MORE_GRANTS = GRANTS + (
    '  - {to: ["group:leads"], may: [review]}\n'
    '  - {to: ["group:refund-agents"], may: [publish], produce: {types: [agent], ids: ["agent-*"]}}\n'
    '  - {to: ["spiffe://acme/tools"], may: [publish], produce: {types: [tool_runtime], ids: ["tools-*"]}}\n'
)


READERS = MORE_GRANTS.replace("version: 1", "version: 2") + '  - {to: ["*"], may: [read]}\n'
# The proposer, as a member of risk.
PROPOSING_REVIEWER = Principal(AGENT.name, "jwt", "https://issuer.example", ("risk",))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server with rules that ask two members of risk, and grants in force."""
    async with running_world(interceptor=KnowingInterceptor(), admins=["ada"]) as running:
        await running.activate(RULE_SET.replace("    retry: {max_attempts: 2}\n", POLICY))
        await running.administration.DeployGrants(DeployGrantsRequest(document=MORE_GRANTS, reason="first"), metadata=by(ADMIN))
        yield running


async def _vote(world: World, review: Envelope, voter: Principal, **changes: Any) -> ResolveReviewResponse:
    request = ResolveReviewRequest(**{"decision_id": review.event_id, "verdict": APPROVE, "reason": "seen", **changes})
    return await world.arbitration.ResolveReview(request, metadata=by(voter))


async def _publish(world: World, envelope: Envelope, principal: Principal) -> Envelope:
    return (await world.events.PublishEvent(PublishEventRequest(envelope=envelope), metadata=by(principal))).envelope


async def _prove(world: World) -> None:
    progress = [one async for one in world.replays.VerifyReplay(VerifyReplayRequest(), metadata=by(ADMIN))]
    assert progress[-1].verdict.proved, progress[-1]


async def test_votes_of_authenticated_callers(world: World) -> None:
    """The voter is the caller, only members of the groups vote, nobody votes in another's name or twice, and the log proves it."""
    status = await _publish(world, fact("order/1", "order.status", "delivered"), DATABASE)
    request = SubmitProposalRequest(envelope=proposal("order/1", amount=5_000, cites=[status]))
    review = (await world.arbitration.SubmitProposal(request, metadata=by(AGENT))).decision
    assert (2, True) == (review.decision.review_policy.quorum, review.decision.review_policy.separation)
    first = await _vote(world, review, REVIEWER)
    assert ("rita", "rita", ["risk"]) == (
        first.vote.fact.review_voted.reviewer,
        first.vote.attestation.principal,
        list(first.vote.attestation.groups),
    )
    for voter, changes, code, reason in (
        (LEAD, {}, grpc.StatusCode.PERMISSION_DENIED, "RIGHT_LACKING"),
        (OTHER_REVIEWER, {"reviewer": "rita"}, grpc.StatusCode.PERMISSION_DENIED, "FIELD_RESERVED"),
        (REVIEWER, {}, grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE"),
    ):
        refused = await refusal(_vote(world, review, voter, **changes))
        assert (code, reason) == (refused.code, refused.reason)
    (pending,) = (await world.projections.ListPendingReviews(ListPendingReviewsRequest(), metadata=by(ADMIN))).reviews
    assert ["rita"] == [vote.reviewer for vote in pending.votes]
    may_vote = {}
    await world.administration.DeployGrants(DeployGrantsRequest(document=READERS), metadata=by(ADMIN))
    for caller in (ADMIN, AGENT, LEAD, REVIEWER, OTHER_REVIEWER, PROPOSING_REVIEWER):
        (pending,) = (await world.projections.ListPendingReviews(ListPendingReviewsRequest(), metadata=by(caller))).reviews
        may_vote[caller.name] = pending.may_vote
    # No right to review, nor a member of risk; no member; has voted; may; is the proposer.
    assert {"ada": False, "lea": False, "rita": False, "rob": True, AGENT.name: False} == may_vote
    last = await _vote(world, review, OTHER_REVIEWER)
    assert APPROVED == last.decision.decision.outcome
    await _prove(world)


@pytest.mark.parametrize(("recorder", "producer", "tier"), [(TOOLS, RUNTIME, 2), (AGENT, AGENT_PRODUCER, 3)])
async def test_witnesses(world: World, recorder: Principal, producer: Producer, tier: int) -> None:
    """An observation is tier 2 only if a tool runtime of another principal recorded the tool result."""
    digest = sha256_of("result")
    call = Envelope(
        subject="order/1", trace_id="t", producer=producer, tool_call=ToolCall(tool_name="scores", execution_id="exec_000000000001")
    )
    await _publish(world, call, recorder)
    result = ToolResult(tool_name="scores", execution_id="exec_000000000001", content_hash=digest)
    recorded = await _publish(world, Envelope(subject="order/1", trace_id="t", producer=producer, tool_result=result), recorder)
    observation = Observation(source_tool="scores", evidence_ref=recorded.event_id, evidence_hash=digest, confidence=0.9)
    observation.extracted_fields["order.score"].CopyFrom(python_to_value(0.1))
    observed = await _publish(world, Envelope(subject="order/1", trace_id="t", producer=AGENT_PRODUCER, observation=observation), AGENT)
    assert tier == observed.observation.trust_tier
    await _prove(world)


async def test_an_agent_is_no_tool_runtime(world: World) -> None:
    """Without a grant for it nobody records tool results as a tool runtime."""
    call = Envelope(
        subject="order/1", trace_id="t", producer=RUNTIME, tool_call=ToolCall(tool_name="scores", execution_id="exec_000000000001")
    )
    assert "RIGHT_LACKING" == (await refusal(_publish(world, call, AGENT))).reason
