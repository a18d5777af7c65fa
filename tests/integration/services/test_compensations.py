"""Compensations over real gRPC, in the services' answers. A compensation ends only by its execution, whatever the clock does."""

from __future__ import annotations

import grpc
import pytest
from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.arbitration_service_pb2 import RevokeDecisionRequest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetEventRequest, GetTraceRequest
from gavel.v1.projection_service_pb2 import (
    PENDING_PHASE_APPROVED,
    PENDING_PHASE_AWAITING_FACTS,
    PENDING_PHASE_EXECUTING,
    GetProjectionRequest,
    ListPendingDecisionsRequest,
    PendingDecision,
    ProjectedFact,
)
from gavel_rules.derivation import derive
from gavel_rules.language.rule_set import CompiledRuleSet, compile_rule_set

from tests.integration.services.world import RULE_SET, START_MS, World, fact, refusal, report, some_uuid

PARTIAL = execution_pb2.EXECUTION_STATUS_PARTIAL
SUCCESS = execution_pb2.EXECUTION_STATUS_SUCCESS
HOUR_MS = 3_600_000
SAGA = (
    RULE_SET.replace(
        "    rejection_limit", "    compensation: {action: refund.reverse, params: {amount: params.amount}}\n    rejection_limit"
    ).replace("retry: {max_attempts: 2}", "retry: {max_attempts: 2, human_takeover_after_ms: 7200000}")
    + """
derivations:
  - {id: half, version: 7, on: {action: refund.create, status: PARTIAL}, key: order.half, value: '"version 7"'}
"""
)
SAGA_AFTER = SAGA.replace("version: 1", "version: 2").replace("version: 7", "version: 8").replace("version 7", "version 8")


@pytest.fixture
async def saga(world: World) -> World:
    """A server with a rule set that compensates refunds."""
    await world.activate(SAGA)
    return world


async def report_partial(world: World, subject: str = "order/1") -> tuple[Envelope, Envelope, Envelope]:
    """Return an approval with a PARTIAL report, the report, and the compensation."""
    approval = await world.approve(subject)
    record = await world.report(report(approval, await world.begin(approval), PARTIAL))
    compensation = (await world.events.GetEvent(GetEventRequest(sequence_number=record.sequence_number + 1))).envelope
    assert approval.event_id == compensation.decision.compensates_decision_id
    return approval, record, compensation


async def publish_facts(world: World, execution: Envelope, decision: Envelope, rule_set: CompiledRuleSet) -> None:
    """Derive and publish, as the reactor does."""
    for envelope in derive(execution, decision, rule_set):
        await world.publish(envelope)


async def pending(world: World) -> list[PendingDecision]:
    """Return the decisions that ListPendingDecisions lists."""
    return [*(await world.projections.ListPendingDecisions(ListPendingDecisionsRequest())).decisions]


async def test_projection_and_trace_show_both_decisions(saga: World) -> None:
    """Projection and trace show both decisions, their phases, and which one compensates which, until the facts of both are recorded."""
    rule_set = compile_rule_set(SAGA)
    approval, half, compensation = await report_partial(saga)
    assert [(one.decision_id, one.phase, one.compensates_decision_id, one.HasField("valid_until")) for one in await pending(saga)] == [
        (approval.event_id, PENDING_PHASE_AWAITING_FACTS, "", True),
        (compensation.event_id, PENDING_PHASE_APPROVED, approval.event_id, False),
    ]
    attempt = await saga.begin(compensation)
    assert attempt.started.decision == compensation
    await publish_facts(saga, half, approval, rule_set)
    assert [(one.decision_id, one.phase) for one in await pending(saga)] == [(compensation.event_id, PENDING_PHASE_EXECUTING)]
    record = await saga.report(report(compensation, attempt, SUCCESS))
    assert [one.phase for one in await pending(saga)] == [PENDING_PHASE_AWAITING_FACTS]
    await publish_facts(saga, record, compensation, rule_set)
    assert await pending(saga) == []
    trace = (await saga.events.GetTrace(GetTraceRequest(trace_id=approval.trace_id))).envelopes
    assert {approval.event_id, half.event_id, compensation.event_id, record.event_id} <= {event.event_id for event in trace}
    assert (await saga.approve()).decision.outcome == decision_pb2.OUTCOME_APPROVED


async def test_repeated_partial_report_has_one_compensation(saga: World) -> None:
    """A PARTIAL report sent again under its event_id is answered with the first answer; there is one compensation."""
    approval = await saga.approve()
    envelope = report(approval, await saga.begin(approval), PARTIAL, event_id=some_uuid())
    first = await saga.report(envelope)
    head = await saga.head()
    assert await saga.report(envelope) == first
    assert await saga.head() == head
    assert [one.compensates_decision_id for one in await pending(saga)] == ["", approval.event_id]


async def test_compensation_cannot_be_revoked(saga: World) -> None:
    """RevokeDecision of a compensation is FAILED_PRECONDITION and names the compensated decision, before and during its execution."""
    approval, _, compensation = await report_partial(saga)
    revoking = RevokeDecisionRequest(decision_id=compensation.event_id, revoked_by="ada", reason="no")
    problem = await refusal(saga.arbitration.RevokeDecision(revoking))
    assert (problem.code, problem.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
    assert f"compensates {approval.event_id}" in problem.message
    await saga.begin(compensation)
    assert (await refusal(saga.arbitration.RevokeDecision(revoking))).reason == "WRONG_STATE"


async def test_the_clock_jumps(saga: World) -> None:
    """A clock an hour ahead ends approvals, not compensations; an hour back it stops writes, not reads; times in the log never decrease."""
    _, _, compensation = await report_partial(saga)
    approval = await saga.approve("order/2")
    saga.clock.now_ms += HOUR_MS
    assert (await saga.begin(approval)).refusal.reason_code == "EXPIRED"
    saga.clock.now_ms -= HOUR_MS
    problem = await refusal(saga.begin(compensation))
    assert (problem.code, problem.reason) == (grpc.StatusCode.UNAVAILABLE, "CLOCK_SKEW")
    assert len(await pending(saga)) == 2
    saga.clock.now_ms = START_MS + HOUR_MS - 1_000
    attempt = await saga.begin(compensation, lease_ms=30_000)
    assert attempt.started.lease_until.ToMilliseconds() == START_MS + HOUR_MS + 30_000
    await saga.report(report(compensation, attempt, SUCCESS))
    sequencer = await saga.buses.open("")
    records = await sequencer.log.read(1, await saga.head())
    times = [Envelope.FromString(record.envelope).recorded_at.ToMilliseconds() for record in records]
    assert times == sorted(times)
    assert times[-1] == START_MS + HOUR_MS


async def test_derived_values_keep_the_version_that_derived_them(saga: World) -> None:
    """The facts of an old decision's report are derived by its own rule set; the projection has each value's rule and version."""

    async def projected_fact(subject: str) -> ProjectedFact:
        answer = await saga.projections.GetProjection(GetProjectionRequest(subject=subject))
        return next(one for one in answer.projection.facts if one.key == "order.half")

    before = await saga.approve("order/1")
    await saga.activate(SAGA_AFTER)
    after = await saga.approve("order/2")
    for decision, document in ((before, SAGA), (after, SAGA_AFTER)):
        half = await saga.report(report(decision, await saga.begin(decision), PARTIAL))
        await publish_facts(saga, half, decision, compile_rule_set(document))
    old, new = await projected_fact("order/1"), await projected_fact("order/2")
    assert (old.derivation_rule_id, old.derivation_rule_version, old.value.string_value) == ("half", 7, "version 7")
    assert (new.derivation_rule_id, new.derivation_rule_version, new.value.string_value) == ("half", 8, "version 8")


async def test_superseded_approval_is_not_begun(saga: World) -> None:
    """An approval whose fact has changed is not begun: ABORTED before any attempt, with the reason, and no compensation."""
    approval = await saga.approve()
    await saga.publish(fact("order/1", "order.status", "cancelled"))
    assert (await saga.begin(approval)).refusal.reason_code == "FACT_SUPERSEDED"
    aborted = (await saga.events.GetEvent(GetEventRequest(sequence_number=await saga.head()))).envelope
    assert (aborted.execution.status, aborted.execution.reason_code, aborted.execution.attempt) == (
        execution_pb2.EXECUTION_STATUS_ABORTED,
        "FACT_SUPERSEDED",
        0,
    )
    assert [one.compensates_decision_id for one in await pending(saga)] == [""]
