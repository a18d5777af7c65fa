"""ProjectionService over real gRPC: the present as the log makes it, and the state of the server."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from gavel.v1 import common_pb2, execution_pb2, fact_pb2, projection_service_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.projection_service_pb2 import (
    GetProjectionRequest,
    GetStatusRequest,
    ListPendingDecisionsRequest,
    ListPendingReviewsRequest,
    PendingDecision,
    Projection,
)
from gavel.v1.rule_set_service_pb2 import ListRuleSetsRequest
from gavel_rules.derivation import derive
from gavel_rules.events import ARBITER_VERSION

from tests.integration.services.world import (
    START_MS,
    World,
    fact,
    observation,
    proposal,
    refusal,
    report,
    tool_call,
    tool_result,
)

NONSENSE = "nonsense"


async def projection(world: World, subject: str = "order/1", minimum: int = 0) -> Projection:
    """Read a subject's projection."""
    request = GetProjectionRequest(subject=subject, min_sequence_number=minimum)
    return (await world.projections.GetProjection(request)).projection


async def test_facts_by_key_newest_first(world: World) -> None:
    """A projection has the latest fact per key and source, by key, newest first, each with its source event."""
    old = await world.publish(fact("order/1", "order.status", "paid"))
    other = Producer(type=common_pb2.PRODUCER_TYPE_API, id="webhook")
    world.clock.now_ms += 10
    new = await world.publish(fact("order/1", "order.status", "sent", producer=other))
    first = await world.publish(fact("order/1", "order.amount", 5))
    await world.publish(fact("order/2", "order.status", "paid"))

    answer = await projection(world)

    assert answer.projection_version == 5
    assert [(known.key, known.source_event.sequence_number) for known in answer.facts] == [
        ("order.amount", first.sequence_number),
        ("order.status", new.sequence_number),
        ("order.status", old.sequence_number),
    ]
    latest = answer.facts[1]
    assert (latest.value.string_value, latest.producer, latest.source_event.event_id) == ("sent", other, new.event_id)
    assert latest.observed_from == fact_pb2.OBSERVED_FROM_API
    assert latest.occurred_at.ToMilliseconds() == START_MS + 10


async def test_retracted_fact_is_shown_as_null(world: World) -> None:
    """A null is its source's last word on a key, and shown as such."""
    await world.publish(fact("order/1", "order.status", "paid"))
    await world.publish(fact("order/1", "order.status", None))

    (known,) = (await projection(world)).facts

    assert known.value.WhichOneof("kind") == "null_value"


async def test_observations_with_their_tier_and_evidence(world: World) -> None:
    """An observation is shown with its tool, tier and evidence; one with matching evidence is tier 2, its age from the older time."""
    execution_id = "exec_000000000001"
    await world.publish(tool_call("t", execution_id=execution_id))
    result = await world.publish(tool_result("t", execution_id=execution_id))
    world.clock.now_ms += 1_000
    seen = observation("order/1", "order.score", 0.25, trace_id="t")
    seen.observation.evidence_ref = result.event_id
    seen.observation.evidence_hash = "sha256:1"
    recorded = await world.publish(seen)
    await world.publish(observation("order/1", "order.score", 0.5))

    guessed, backed = (await projection(world)).observations

    assert guessed.trust_tier == common_pb2.TRUST_TIER_3_AGENT_INFERENCE
    assert backed.trust_tier == common_pb2.TRUST_TIER_2_TOOL_OBSERVATION
    assert (backed.value.number_value, backed.source_tool, backed.confidence) == (0.25, "fraud-mcp", 0.5)
    assert (backed.evidence_ref, backed.evidence_hash) == (result.event_id, "sha256:1")
    assert backed.source_event.event_id == recorded.event_id
    assert backed.observed_at.ToMilliseconds() == START_MS


async def test_decision_through_its_phases(governed: World) -> None:
    """A decision is pending from its approval until its facts are in; its attempt is shown from the start to the final report."""
    decision = await governed.approve()
    (pending,) = (await projection(governed)).pending_decisions
    assert (pending.decision_id, pending.phase) == (decision.event_id, projection_service_pb2.PENDING_PHASE_APPROVED)
    assert (pending.proposal_id, pending.conflict_key) == (decision.decision.proposal_id, "order/1")
    assert pending.params["amount"] == 10
    assert pending.valid_until.ToMilliseconds() == START_MS + 60_000

    begun = await governed.begin(decision)
    answer = await projection(governed)
    assert answer.pending_decisions[0].phase == projection_service_pb2.PENDING_PHASE_EXECUTING
    (running,) = answer.pending_executions
    assert (running.execution_id, running.attempt, running.producer.id) == (begun.started.execution_id, 1, "payments")
    assert running.status == execution_pb2.EXECUTION_STATUS_STARTED
    assert running.lease_until == begun.started.lease_until
    assert running.source_event.sequence_number == answer.projection_version

    reported = await governed.report(report(decision, begun, execution_pb2.EXECUTION_STATUS_SUCCESS))
    answer = await projection(governed)
    assert answer.pending_decisions[0].phase == projection_service_pb2.PENDING_PHASE_AWAITING_FACTS
    assert list(answer.pending_executions) == []

    for envelope in (reported, decision):
        envelope.ClearField("chain_hash")
    await governed.publish(derive(reported, decision, None)[0])
    answer = await projection(governed)
    assert list(answer.pending_decisions) == []
    derived = next(known for known in answer.facts if known.key == "execution.refund.create.status")
    assert (derived.value.string_value, derived.derivation_rule_id, derived.derivation_rule_version) == (
        "SUCCESS",
        "gavel.execution-status",
        1,
    )


async def test_failed_attempt_that_will_be_retried_stays_pending(governed: World) -> None:
    """After a failed attempt with another one due, decision and attempt are still shown as executing."""
    decision = await governed.approve()
    await governed.report(report(decision, await governed.begin(decision), execution_pb2.EXECUTION_STATUS_FAILED))

    answer = await projection(governed)

    assert [one.phase for one in answer.pending_decisions] == [projection_service_pb2.PENDING_PHASE_EXECUTING]
    assert [one.status for one in answer.pending_executions] == [execution_pb2.EXECUTION_STATUS_FAILED]


async def test_no_field_depends_on_the_clock(governed: World) -> None:
    """Time that passes without an event changes no projection."""
    decision = await governed.approve()
    await governed.begin(decision, lease_ms=1_000)
    before = await projection(governed)

    governed.clock.now_ms += 30_000

    assert await projection(governed) == before


async def test_one_can_read_ones_own_write(world: World) -> None:
    """With min_sequence_number the answer waits until the projection has come so far."""
    waiting = asyncio.create_task(projection(world, minimum=2))
    recorded = await world.publish(fact("order/1", "order.status", "paid"))

    answer = await waiting

    assert answer.projection_version >= recorded.sequence_number
    assert len(answer.facts) == 1


async def test_projection_that_does_not_come_so_far(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A projection that does not come as far as asked in time is UNAVAILABLE / PROJECTION_BEHIND."""
    monkeypatch.setattr("gavel_server.services.projection.WAIT_MS_MAX", 1)

    heard = await refusal(projection(world, minimum=99))

    assert (heard.code, heard.reason) == (grpc.StatusCode.UNAVAILABLE, "PROJECTION_BEHIND")


async def test_unknown_subject_is_empty(world: World) -> None:
    """A subject that nobody spoke of has an empty projection, not an error."""
    assert await projection(world, "nothing/1") == Projection(subject="nothing/1", projection_version=1)


async def test_malformed_requests(world: World) -> None:
    """Malformed reads are INVALID_ARGUMENT with every wrong field named."""
    heard = await refusal(world.projections.GetProjection(GetProjectionRequest(subject="order", min_sequence_number=-1)))
    assert (heard.code, heard.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["subject", "min_sequence_number"])
    for call in (
        world.projections.ListPendingDecisions(ListPendingDecisionsRequest(page_size=1001, page_token=NONSENSE)),
        world.projections.ListPendingReviews(ListPendingReviewsRequest(page_size=-1, page_token=NONSENSE)),
        world.rule_sets.ListRuleSets(ListRuleSetsRequest(page_size=-1, page_token=NONSENSE)),
    ):
        heard = await refusal(call)
        assert (heard.code, heard.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["page_size", "page_token"])


async def test_pending_decisions_in_pages(governed: World) -> None:
    """Pending decisions are listed oldest first, in pages of any size, each once."""
    decisions = [await governed.approve(f"order/{number}") for number in range(7)]

    for page_size in (1, 3, 7, 100):
        listed: list[PendingDecision] = []
        token = ""
        while True:
            page = await governed.projections.ListPendingDecisions(ListPendingDecisionsRequest(page_size=page_size, page_token=token))
            listed.extend(page.decisions)
            token = page.next_page_token
            if not token:
                break
        assert [one.decision_id for one in listed] == [one.event_id for one in decisions]
        assert page.projection_version == await governed.head()


async def test_pending_reviews(governed: World) -> None:
    """What waits for a person is listed oldest first, of proposals and of executions."""
    known = await governed.publish(fact("order/1", "order.status", "delivered"))
    large = await governed.propose(proposal("order/1", amount=5_000, cites=[known], trace_id="large"))
    decision = await governed.approve("order/2")
    await governed.report(report(decision, await governed.begin(decision), execution_pb2.EXECUTION_STATUS_PARTIAL))

    reviews = (await governed.projections.ListPendingReviews(ListPendingReviewsRequest())).reviews

    assert [(one.kind, one.reason_code, one.subject) for one in reviews] == [
        (projection_service_pb2.REVIEW_KIND_PROPOSAL, "LARGE_REFUND", "order/1"),
        (projection_service_pb2.REVIEW_KIND_EXECUTION, "PARTIAL_EXECUTION", "order/2"),
    ]
    assert (reviews[0].decision_id, reviews[0].trace_id, reviews[0].params["amount"]) == (large.event_id, "large", 5_000)
    assert reviews[1].approved_decision_id == decision.event_id
    assert reviews[1].opened_at.ToMilliseconds() == START_MS
    (pending,) = (await projection(governed, "order/2")).pending_decisions
    assert pending.phase == projection_service_pb2.PENDING_PHASE_UNDER_REVIEW


async def test_status(governed: World) -> None:
    """GetStatus says where the log stands, what is in force, and whether events survive; the digest only when asked for."""
    last = await governed.publish(fact("order/1", "order.status", "paid"))

    status = await governed.projections.GetStatus(GetStatusRequest())

    assert (status.head_sequence_number, status.head_chain_hash) == (last.sequence_number, last.chain_hash)
    assert status.head_recorded_at == last.recorded_at
    assert [(one.policy_id, one.version) for one in status.active_rule_sets] == [("refunds", 1)]
    assert (status.arbiter_version, status.cross_check.mode) == (ARBITER_VERSION, fact_pb2.CROSS_CHECK_MODE_ALWAYS)
    assert status.server_version.startswith("gavel ")
    assert not status.durable
    assert "memory" in status.durability_warnings[0]
    assert (status.writable, status.unwritable_reason, status.projection_digest) == (True, "", "")
    digests = [(await governed.projections.GetStatus(GetStatusRequest(include_projection_digest=True))).projection_digest for _ in range(2)]
    assert digests[0] == digests[1]
    assert digests[0].startswith("sha256:")
