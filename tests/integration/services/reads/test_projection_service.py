"""ProjectionService over real gRPC: the state that follows from the log, and the status of the server."""

from __future__ import annotations

import asyncio
from typing import Any

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
from gavel_rules.events.arbiter_versions import ARBITER_VERSION

from tests.integration.services.world import START_MS, World, fact, observation, proposal, refusal, report, tool_call, tool_result
from tests.support.hashes import sha256_of

NONSENSE = "nonsense"


async def projection(world: World, subject: str = "order/1", minimum: int = 0) -> Projection:
    """Read a subject's projection."""
    request = GetProjectionRequest(subject=subject, min_sequence_number=minimum)
    return (await world.projections.GetProjection(request)).projection


async def test_facts_are_ordered_by_key_and_age(world: World) -> None:
    """A projection has the latest fact per key and source, by key, newest first, each with its source event."""
    old = await world.publish(fact("order/1", "order.status", "paid"))
    other = Producer(type=common_pb2.PRODUCER_TYPE_API, id="webhook")
    world.clock.now_ms += 10
    new = await world.publish(fact("order/1", "order.status", "sent", producer=other))
    first = await world.publish(fact("order/1", "order.amount", 5))
    await world.publish(fact("order/2", "order.status", "paid"))

    answer = await projection(world)

    assert answer.projection_version == 5
    assert [(item.key, item.source_event.sequence_number) for item in answer.facts] == [
        ("order.amount", first.sequence_number),
        ("order.status", new.sequence_number),
        ("order.status", old.sequence_number),
    ]
    latest = answer.facts[1]
    assert (latest.value.string_value, latest.producer, latest.source_event.event_id) == ("sent", other, new.event_id)
    assert latest.observed_from == fact_pb2.OBSERVED_FROM_API
    assert latest.occurred_at.ToMilliseconds() == START_MS + 10


async def test_retracted_fact_is_shown_as_null(world: World) -> None:
    """A key that its source retracted is shown as null."""
    await world.publish(fact("order/1", "order.status", "paid"))
    await world.publish(fact("order/1", "order.status", None))

    (item,) = (await projection(world)).facts

    assert item.value.WhichOneof("kind") == "null_value"


async def test_observations_with_their_tier_and_evidence(world: World) -> None:
    """An observation is shown with its tool, tier and evidence; one with matching evidence is tier 2, its age from the older time."""
    execution_id = "exec_000000000001"
    await world.publish(tool_call("t", execution_id=execution_id))
    result = await world.publish(tool_result("t", execution_id=execution_id))
    world.clock.now_ms += 1_000
    envelope = observation("order/1", "order.score", 0.25, trace_id="t")
    envelope.observation.evidence_ref = result.event_id
    envelope.observation.evidence_hash = sha256_of("1")
    event = await world.publish(envelope)
    await world.publish(observation("order/1", "order.score", 0.5))

    inference, backed = (await projection(world)).observations

    assert inference.trust_tier == common_pb2.TRUST_TIER_3_AGENT_INFERENCE
    assert backed.trust_tier == common_pb2.TRUST_TIER_2_TOOL_OBSERVATION
    assert (backed.value.number_value, backed.source_tool, backed.confidence) == (0.25, "fraud-mcp", 0.5)
    assert (backed.evidence_ref, backed.evidence_hash) == (result.event_id, sha256_of("1"))
    assert backed.source_event.event_id == event.event_id
    assert backed.observed_at.ToMilliseconds() == START_MS


async def test_decision_through_its_phases(world_with_rules: World) -> None:
    """A decision is pending from its approval until its facts are recorded; its attempt is shown from the start to the final report."""
    decision = await world_with_rules.approve()
    (pending,) = (await projection(world_with_rules)).pending_decisions
    assert (pending.decision_id, pending.phase) == (decision.event_id, projection_service_pb2.PENDING_PHASE_APPROVED)
    assert (pending.proposal_id, pending.conflict_key) == (decision.decision.proposal_id, "order/1")
    assert pending.params["amount"] == 10
    assert pending.valid_until.ToMilliseconds() == START_MS + 60_000

    start = await world_with_rules.begin(decision)
    answer = await projection(world_with_rules)
    assert answer.pending_decisions[0].phase == projection_service_pb2.PENDING_PHASE_EXECUTING
    (running,) = answer.pending_executions
    assert (running.execution_id, running.attempt, running.producer.id) == (start.started.execution_id, 1, "payments")
    assert running.status == execution_pb2.EXECUTION_STATUS_STARTED
    assert running.lease_until == start.started.lease_until
    assert running.source_event.sequence_number == answer.projection_version

    record = await world_with_rules.report(report(decision, start, execution_pb2.EXECUTION_STATUS_SUCCESS))
    answer = await projection(world_with_rules)
    assert answer.pending_decisions[0].phase == projection_service_pb2.PENDING_PHASE_AWAITING_FACTS
    assert list(answer.pending_executions) == []

    for envelope in (record, decision):
        envelope.ClearField("chain_hash")
    await world_with_rules.publish(derive(record, decision, None)[0])
    answer = await projection(world_with_rules)
    assert list(answer.pending_decisions) == []
    status_fact = next(item for item in answer.facts if item.key == "execution.refund.create.status")
    assert (status_fact.value.string_value, status_fact.derivation_rule_id, status_fact.derivation_rule_version) == (
        "SUCCESS",
        "gavel.execution-status",
        1,
    )


async def test_failed_attempt_that_will_be_retried_stays_pending(world_with_rules: World) -> None:
    """After a failed attempt with another one due, decision and attempt are still shown as executing."""
    decision = await world_with_rules.approve()
    await world_with_rules.report(report(decision, await world_with_rules.begin(decision), execution_pb2.EXECUTION_STATUS_FAILED))

    answer = await projection(world_with_rules)

    assert [one.phase for one in answer.pending_decisions] == [projection_service_pb2.PENDING_PHASE_EXECUTING]
    assert [one.status for one in answer.pending_executions] == [execution_pb2.EXECUTION_STATUS_FAILED]


async def test_no_field_depends_on_the_clock(world_with_rules: World) -> None:
    """Time that passes without an event changes no projection."""
    decision = await world_with_rules.approve()
    await world_with_rules.begin(decision, lease_ms=1_000)
    before = await projection(world_with_rules)

    world_with_rules.clock.now_ms += 30_000

    assert await projection(world_with_rules) == before


async def test_read_your_own_writes(world: World) -> None:
    """With min_sequence_number the response waits until the projection has reached that number."""
    read = asyncio.create_task(projection(world, minimum=2))
    event = await world.publish(fact("order/1", "order.status", "paid"))

    answer = await read

    assert answer.projection_version >= event.sequence_number
    assert len(answer.facts) == 1


async def test_projection_behind_the_requested_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A projection that does not reach the requested sequence number in time is UNAVAILABLE / PROJECTION_BEHIND."""
    monkeypatch.setattr("gavel_server.services.projection.WAIT_MS_MAX", 1)

    problem = await refusal(projection(world, minimum=99))

    assert (problem.code, problem.reason) == (grpc.StatusCode.UNAVAILABLE, "PROJECTION_BEHIND")


async def test_unknown_subject_is_empty(world: World) -> None:
    """A subject without events has an empty projection."""
    assert await projection(world, "nothing/1") == Projection(subject="nothing/1", projection_version=1)


async def test_malformed_requests(world: World) -> None:
    """Malformed reads are INVALID_ARGUMENT with every wrong field named."""
    problem = await refusal(world.projections.GetProjection(GetProjectionRequest(subject="order", min_sequence_number=-1)))
    assert (problem.code, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["subject", "min_sequence_number"])
    for call in (
        world.projections.ListPendingDecisions(ListPendingDecisionsRequest(page_size=1001, page_token=NONSENSE)),
        world.projections.ListPendingReviews(ListPendingReviewsRequest(page_size=-1, page_token=NONSENSE)),
        world.rule_sets.ListRuleSets(ListRuleSetsRequest(page_size=-1, page_token=NONSENSE)),
    ):
        problem = await refusal(call)
        assert (problem.code, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["page_size", "page_token"])


async def test_pending_decisions_in_pages(world_with_rules: World) -> None:
    """Pending decisions are listed oldest first, in pages of any size, each once."""
    decisions = [await world_with_rules.approve(f"order/{number}") for number in range(7)]

    for page_size in (1, 3, 7, 100):
        items: list[PendingDecision] = []
        token = ""
        while True:
            page = await world_with_rules.projections.ListPendingDecisions(
                ListPendingDecisionsRequest(page_size=page_size, page_token=token)
            )
            items.extend(page.decisions)
            token = page.next_page_token
            if not token:
                break
        assert [one.decision_id for one in items] == [one.event_id for one in decisions]
        assert page.projection_version == await world_with_rules.head()


async def test_pending_decisions_by_phase_and_action(world_with_rules: World) -> None:
    """The filters select by phase and action type, hold over pages, and bind the token."""
    world = world_with_rules
    waiting = [await world.approve(f"order/{number}") for number in (1, 2, 3)]
    running = await world.approve("order/4")
    await world.begin(running)
    action_type = running.decision.action_type
    phases = [projection_service_pb2.PENDING_PHASE_APPROVED]
    ids = [decision.event_id for decision in waiting]
    cases: tuple[tuple[list[Any], dict[str, Any]], ...] = (
        (ids, {"phases": phases}),
        ([running.event_id], {"phases": [projection_service_pb2.PENDING_PHASE_EXECUTING]}),
        ([*ids, running.event_id], {"action_types": [action_type]}),
        ([], {"action_types": ["order.nothing"]}),
    )
    for expected, filters in cases:
        answer = await world.projections.ListPendingDecisions(ListPendingDecisionsRequest(**filters))
        assert expected == [one.decision_id for one in answer.decisions], filters
        assert "" == answer.next_page_token
    request = ListPendingDecisionsRequest(phases=phases, action_types=[action_type], page_size=2)
    first = await world.projections.ListPendingDecisions(request)
    request.page_token = first.next_page_token
    second = await world.projections.ListPendingDecisions(request)
    assert ids == [one.decision_id for page in (first, second) for one in page.decisions]
    request.phases[:] = []
    assert ["page_token"] == (await refusal(world.projections.ListPendingDecisions(request))).fields
    bad: tuple[tuple[str, dict[str, Any]], ...] = (
        ("phases[0]", {"phases": [77]}),
        ("action_types[0]", {"action_types": [""]}),
        ("phases", {"phases": [1] * 17}),
    )
    for field, filters in bad:
        problem = await refusal(world.projections.ListPendingDecisions(ListPendingDecisionsRequest(**filters)))
        assert [field] == problem.fields


async def test_pending_reviews(world_with_rules: World) -> None:
    """Open reviews of proposals and executions are listed oldest first."""
    item = await world_with_rules.publish(fact("order/1", "order.status", "delivered"))
    large = await world_with_rules.propose(proposal("order/1", amount=5_000, cites=[item], trace_id="large"))
    decision = await world_with_rules.approve("order/2")
    await world_with_rules.report(report(decision, await world_with_rules.begin(decision), execution_pb2.EXECUTION_STATUS_PARTIAL))

    reviews = (await world_with_rules.projections.ListPendingReviews(ListPendingReviewsRequest())).reviews

    assert [(one.kind, one.reason_code, one.subject) for one in reviews] == [
        (projection_service_pb2.REVIEW_KIND_PROPOSAL, "LARGE_REFUND", "order/1"),
        (projection_service_pb2.REVIEW_KIND_EXECUTION, "PARTIAL_EXECUTION", "order/2"),
    ]
    assert (reviews[0].decision_id, reviews[0].trace_id, reviews[0].params["amount"]) == (large.event_id, "large", 5_000)
    assert reviews[1].approved_decision_id == decision.event_id
    assert reviews[1].opened_at.ToMilliseconds() == START_MS
    (pending,) = (await projection(world_with_rules, "order/2")).pending_decisions
    assert pending.phase == projection_service_pb2.PENDING_PHASE_UNDER_REVIEW


async def test_status(world_with_rules: World) -> None:
    """GetStatus returns the head, the active rule sets and the durability, and the digest if the request asks for it."""
    last = await world_with_rules.publish(fact("order/1", "order.status", "paid"))

    status = await world_with_rules.projections.GetStatus(GetStatusRequest())

    assert (status.head_sequence_number, status.head_chain_hash) == (last.sequence_number, last.chain_hash)
    assert status.head_recorded_at == last.recorded_at
    assert [(one.policy_id, one.version) for one in status.active_rule_sets] == [("refunds", 1)]
    assert (status.arbiter_version, status.cross_check.mode) == (ARBITER_VERSION, fact_pb2.CROSS_CHECK_MODE_ALWAYS)
    assert status.server_version.startswith("gavel ")
    assert not status.durable
    assert "memory" in status.durability_warnings[0]
    assert (status.writable, status.unwritable_reason, status.projection_digest) == (True, "", "")
    digests = [
        (await world_with_rules.projections.GetStatus(GetStatusRequest(include_projection_digest=True))).projection_digest for _ in range(2)
    ]
    assert digests[0] == digests[1]
    assert digests[0].startswith("sha256:")
