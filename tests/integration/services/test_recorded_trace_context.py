"""The trace context of a call is recorded in the event that the caller sent, and has no influence on anything else."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import execution_pb2, fact_pb2, replay_service_pb2
from gavel.v1.administration_service_pb2 import DeployGrantsRequest
from gavel.v1.arbitration_service_pb2 import (
    BatchSubmitProposalsRequest,
    ResolveReviewRequest,
    RevokeDecisionRequest,
    StreamProposalsRequest,
    SubmitProposalRequest,
)
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import BatchPublishEventsRequest, ListEventsRequest, PublishEventRequest
from gavel.v1.execution_service_pb2 import BeginExecutionRequest, RenewExecutionRequest, ReportExecutionRequest
from gavel.v1.replay_service_pb2 import VerifyReplayRequest
from gavel.v1.rule_set_service_pb2 import ActivateRuleSetRequest, DeactivateRuleSetRequest, DeployRuleSetRequest
from gavel_rules.events.fingerprint import fingerprint
from gavel_rules.events.proposal_view import ProposalView
from gavel_server.log import Record

from tests.integration.services.world import EXECUTOR, RULE_SET, World, fact, proposal, report, some_uuid

GRANTS = "gavel: v1\nname: main\nversion: 1\ngrants:\n  - {to: [ada], may: [grant, read]}\n"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def traceparent(number: int) -> str:
    """Return a context whose span shows the number."""
    return f"00-{TRACE}-{number:016x}-01"


def metadata(number: int) -> Any:
    """Return the metadata of a call in the context."""
    return (("traceparent", traceparent(number)),)


async def recorded(world: World) -> list[tuple[str, str]]:
    """Return name and trace context of all events that have one."""
    events = (await world.events.ListEvents(ListEventsRequest(page_size=1000))).envelopes
    return [(event.event_name, event.traceparent) for event in events if event.traceparent]


async def is_proved(world: World) -> bool:
    """Replay the log, and return whether every event of it follows from the others."""
    responses = [response async for response in world.replays.VerifyReplay(VerifyReplayRequest())]
    verdict = responses[-1].verdict
    return verdict.status == replay_service_pb2.REPLAY_STATUS_PROVED


async def test_every_event_that_a_caller_sends_has_the_context_of_its_call(world_with_rules: World) -> None:
    """Facts, proposals, starts, reports and verdicts carry the caller's context, Gavel's own events none, and the log is proved."""
    world = world_with_rules
    status = (
        await world.events.PublishEvent(PublishEventRequest(envelope=fact("order/1", "order.status", "delivered")), metadata=metadata(1))
    ).envelope
    other = BatchPublishEventsRequest(envelopes=[fact("order/2", "order.status", "delivered")])
    large = (await world.events.BatchPublishEvents(other, metadata=metadata(2))).results[0].envelope
    request = SubmitProposalRequest(envelope=proposal("order/1", cites=[status]))
    approval = (await world.arbitration.SubmitProposal(request, metadata=metadata(3))).decision
    begin = BeginExecutionRequest(decision_id=approval.event_id, producer=EXECUTOR)
    started = await world.executions.BeginExecution(begin, metadata=metadata(4))
    renewal = RenewExecutionRequest(decision_id=approval.event_id, execution_id=started.started.execution_id, producer=EXECUTOR)
    await world.executions.RenewExecution(renewal, metadata=metadata(5))
    done = ReportExecutionRequest(envelope=report(approval, started, execution_pb2.EXECUTION_STATUS_FAILED))
    await world.executions.ReportExecution(done, metadata=metadata(6))
    batch = BatchSubmitProposalsRequest(envelopes=[proposal("order/2", amount=5_000, cites=[large])])
    reviewed = (await world.arbitration.BatchSubmitProposals(batch, metadata=metadata(7))).results[0].decision
    verdict = ResolveReviewRequest(decision_id=reviewed.event_id, verdict=fact_pb2.REVIEW_VERDICT_APPROVE, reviewer="ada", reason="seen")
    await world.arbitration.ResolveReview(verdict, metadata=metadata(8))
    second = await world.approve("order/3")
    revocation = RevokeDecisionRequest(decision_id=second.event_id, revoked_by="ada", reason="mistake")
    await world.arbitration.RevokeDecision(revocation, metadata=metadata(9))
    stream = world.arbitration.StreamProposals(
        iter([StreamProposalsRequest(request_id="1", envelope=proposal("order/4"))]), metadata=metadata(10)
    )
    assert [response.request_id async for response in stream] == ["1"]
    names = ["FactRecorded", "FactRecorded", "ProposalSubmitted", "ExecutionStarted", "ExecutionRenewed", "ExecutionFailed"]
    names += ["ProposalSubmitted", "ReviewResolved", "RevocationRequested", "ProposalSubmitted"]
    assert [(name, traceparent(number)) for number, name in enumerate(names, 1)] == await recorded(world)
    assert await is_proved(world)


async def test_changes_of_rule_sets_and_grants_have_the_context_of_their_call(world: World) -> None:
    """Deployments, activations and deactivations carry their caller's context, and the log is proved."""
    deployed = await world.rule_sets.DeployRuleSet(DeployRuleSetRequest(document=RULE_SET), metadata=metadata(1))
    named: dict[str, Any] = {"policy_id": deployed.policy_id, "mode": fact_pb2.ACTIVATION_MODE_ACTIVE}
    await world.rule_sets.ActivateRuleSet(ActivateRuleSetRequest(**named, version=deployed.version), metadata=metadata(2))
    await world.rule_sets.DeactivateRuleSet(DeactivateRuleSetRequest(**named), metadata=metadata(3))
    await world.administration.DeployGrants(DeployGrantsRequest(document=GRANTS), metadata=metadata(4))
    names = ["RuleSetDeployed", "RuleSetActivated", "RuleSetDeactivated", "GrantsDeployed"]
    assert [(name, traceparent(number)) for number, name in enumerate(names, 1)] == await recorded(world)
    assert await is_proved(world)


@pytest.mark.parametrize(
    "sent",
    [(), (("traceparent", "00-1-2-3"),), (("tracestate", "vendor=1"),)],
    ids=["none", "invalid", "state alone"],
)
async def test_no_context_is_recorded_without_a_valid_one(world: World, sent: Any) -> None:
    """A call without a context or with an invalid one is carried out, and none is recorded."""
    await world.events.PublishEvent(PublishEventRequest(envelope=fact("order/1", "order.status", "delivered")), metadata=sent)
    assert await recorded(world) == []


async def test_a_repeated_request_may_come_with_another_context(world_with_rules: World) -> None:
    """A request that is repeated in another context gets its first answer, and the first context stays."""
    world = world_with_rules
    envelope = proposal("order/1", event_id=some_uuid())
    first = await world.arbitration.SubmitProposal(SubmitProposalRequest(envelope=envelope), metadata=metadata(1))
    assert first == await world.arbitration.SubmitProposal(SubmitProposalRequest(envelope=envelope), metadata=metadata(2))
    assert await recorded(world) == [("ProposalSubmitted", traceparent(1))]


def test_a_context_is_outside_the_fingerprint() -> None:
    """Two proposals that differ in their contexts alone are the same proposal."""
    one, other = Envelope(), proposal("order/1")
    one.CopyFrom(other)
    other.traceparent = traceparent(1)
    assert fingerprint(ProposalView(one)) == fingerprint(ProposalView(other))


async def test_replay_detects_a_changed_context_as_damage(world_with_rules: World) -> None:
    """The context is part of the hashed bytes: changing it in the log is DAMAGED."""
    world = world_with_rules
    await world.arbitration.SubmitProposal(SubmitProposalRequest(envelope=proposal("order/1")), metadata=metadata(1))
    log: Any = (await world.buses.open("")).log
    for index, record in enumerate(log._records):
        changed = record.envelope.replace(traceparent(1).encode(), traceparent(2).encode())
        log._records[index] = Record(record.sequence_number, changed, record.chain_hash)
    responses = [response async for response in world.replays.VerifyReplay(VerifyReplayRequest())]
    assert responses[-1].verdict.status == replay_service_pb2.REPLAY_STATUS_DAMAGED
