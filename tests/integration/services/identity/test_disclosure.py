"""Disclosure: callers learn nothing of buses, callers and decisions that they may not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gavel.v1.administration_service_pb2 import CreateBusRequest, DeployGrantsRequest, ListBusesRequest, WhoAmIRequest
from gavel.v1.arbitration_service_pb2 import (
    DECISION_PHASE_CLOSED,
    PreflightRequest,
    ResolveReviewRequest,
    RevokeDecisionRequest,
    SubmitProposalRequest,
    WaitDecisionRequest,
)
from gavel.v1.common_pb2 import Producer
from gavel.v1.event_service_pb2 import PublishEventRequest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel.v1.execution_service_pb2 import BeginExecutionRequest, ReportExecutionRequest
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel.v1.projection_service_pb2 import GetStatusRequest
from gavel_rules.identity.principal import Principal
from gavel_server.bus.registry import IDLE_ROUNDS_MAX
from gavel_server.errors import ServiceError
from gavel_server.fairness.callers import address_of, caller_of
from gavel_server.intake.event_ids import new_event_id
from gavel_server.log import EventLog
from gavel_server.log.memory import MemoryLog
from gavel_server.services.waits.commit_waits import CommitWaits

from tests.integration.services.identity.callers import ADMIN, PAYMENTS, REVIEWER, STRANGER, KnowingInterceptor, by
from tests.integration.services.world import AGENT, EXECUTOR, RULE_SET, Clock, World, fact, proposal, refusal, report, running_world

TENANT = Principal("tenant", "token")
OTHER = Principal("other-tenant", "jwt", "https://issuer.example", ("others",))
GRANTS = "gavel: v1\nname: main\nversion: 1\ngrants:\n  - {to: [ada], may: [grant, operate]}\n"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server of several buses, whose logs last when a bus is closed in the server."""
    logs: dict[str, EventLog] = {}

    async def open_log(bus: str, clock: Clock) -> EventLog:
        return logs.setdefault(bus, MemoryLog(bus, clock))

    async def names() -> list[str]:
        return [*logs]

    async with running_world(open_log, interceptor=KnowingInterceptor(), admins=["ada"], names=names) as running:
        await running.buses.open("")
        yield running


async def deploy(world: World, *grants: str, bus: str = "", version: int = 1) -> None:
    """Put grants in force."""
    document = GRANTS.replace("version: 1", f"version: {version}") + "".join(f"  - {{{grant}}}\n" for grant in grants)
    await world.administration.DeployGrants(DeployGrantsRequest(bus=bus, document=document), metadata=by(ADMIN))


async def test_buses_are_not_opened_for_strangers(world: World) -> None:
    """ListBuses and WhoAmI open no bus for callers without rights, and tell them nothing of it; others they serve as before."""
    for bus in ("one", "two"):
        await world.administration.CreateBus(CreateBusRequest(bus=bus), metadata=by(ADMIN))
        await deploy(world, "to: [tenant], may: [read]" if bus == "one" else "to: [service:payments], may: [read]", bus=bus)
    await deploy(world)
    names = {"default", "one", "two"}

    async def listed(principal: Principal) -> list[str]:
        return [bus.name for bus in (await world.administration.ListBuses(ListBusesRequest(), metadata=by(principal))).buses]

    async def rights(principal: Principal, bus: str) -> tuple[list[str], bool]:
        answer = await world.administration.WhoAmI(WhoAmIRequest(bus=bus), metadata=by(principal))
        return list(answer.rights), bool(answer.grants_digest)

    for is_closed in (False, True):
        if is_closed:
            for _ in range(IDLE_ROUNDS_MAX + 1):
                world.buses.close_idle()
            assert ["default"] == [sequencer.bus for sequencer in world.buses.all()]
        assert [] == await listed(STRANGER)
        for bus in (*names, "none"):
            assert ([], False) == await rights(STRANGER, bus)
        assert is_closed == (["default"] == [sequencer.bus for sequencer in world.buses.all()])
    assert (["read"], True) == await rights(TENANT, "one")
    assert ["one"] == await listed(TENANT)
    assert "two" not in {sequencer.bus for sequencer in world.buses.all()}
    assert ["grant", "operate"] == (await rights(ADMIN, "two"))[0]


async def test_strangers_do_not_keep_buses_open(world: World) -> None:
    """A bus whose only callers have no right there is closed as one that nobody calls."""
    await world.administration.CreateBus(CreateBusRequest(bus="one"), metadata=by(ADMIN))
    await deploy(world, bus="one")
    await deploy(world)
    for _ in range(IDLE_ROUNDS_MAX + 1):
        await world.administration.ListBuses(ListBusesRequest(), metadata=by(STRANGER))
        await world.administration.WhoAmI(WhoAmIRequest(bus="one"), metadata=by(STRANGER))
        world.buses.close_idle()
    assert ["default"] == [sequencer.bus for sequencer in world.buses.all()]


async def test_throttled_callers_of_other_buses_are_hidden() -> None:
    """GetStatus names the throttled callers that have rights on the bus, and the caller itself, by their names; administrators see all."""
    interceptor = KnowingInterceptor()
    async with running_world(interceptor=interceptor, admins=["ada"]) as world:
        await world.buses.open("")
        await deploy(world, "to: [ada, tenant, service:payments], may: [read]", "to: [rita], may: [review]")
        for principal in (PAYMENTS, REVIEWER, OTHER):
            caller = address_of(caller_of("127.0.0.1:1", principal))
            interceptor.quotas.charge(caller, 1 << 50, principal)  # overdraws the bytes for long
            with pytest.raises(ServiceError):
                interceptor.quotas.charge(caller, 1, principal)

        async def throttled(viewer: Principal) -> list[str]:
            status = await world.projections.GetStatus(GetStatusRequest(), metadata=by(viewer))
            return sorted(one.caller for one in status.throttled_callers)

        assert sorted([PAYMENTS.name, REVIEWER.name]) == await throttled(TENANT)
        assert sorted([OTHER.name, PAYMENTS.name, REVIEWER.name]) == await throttled(ADMIN)


async def test_refusals_do_not_tell_what_a_decision_is_about(world: World) -> None:
    """A caller that knows a decision by its id alone learns neither action nor subject, unless it may read."""
    await world.activate()
    decision = await world.approve("order/1")
    may_begin = "to: [mallory], may: [execute, revoke], actions: [parcel.create]"
    await deploy(world, may_begin, "to: [tenant], may: [execute, revoke, read], subjects: [parcel/1]")
    begin = BeginExecutionRequest(decision_id=decision.event_id, producer=EXECUTOR)
    revoke = RevokeDecisionRequest(decision_id=decision.event_id, reason="no")
    for principal, is_told in ((STRANGER, False), (TENANT, True)):
        for call in (
            world.executions.BeginExecution(begin, metadata=by(principal)),
            world.arbitration.RevokeDecision(revoke, metadata=by(principal)),
        ):
            refused = await refusal(call)
            assert "RIGHT_LACKING" == refused.reason
            assert is_told == ("refund.create" in refused.message or "order/1" in refused.message), refused.message


async def test_refusals_do_not_tell_how_a_decision_ended(world: World) -> None:
    """A caller whose grants do not cover a decision learns neither that it has ended nor how; one whose grants do is told."""
    await world.activate()
    executed = await world.approve("order/1")
    started = await world.begin(executed)
    success = report(executed, started, EXECUTION_STATUS_SUCCESS)
    await world.report(success)
    rejected = await world.propose(proposal("order/2"))
    rights = "may: [execute, revoke, review]"
    await deploy(world, f"to: [mallory], {rights}, actions: [parcel.create]", f"to: [tenant], {rights}, actions: [refund.create]")
    success.event_id = ""
    revocations = [RevokeDecisionRequest(decision_id=one.event_id, reason="no") for one in (executed, rejected)]
    verdict = ResolveReviewRequest(decision_id=rejected.event_id, verdict=REVIEW_VERDICT_APPROVE, reason="yes")
    calls: list[tuple[Any, Any]] = [
        *((world.arbitration.RevokeDecision, revocation) for revocation in revocations),
        (world.arbitration.ResolveReview, verdict),
        (world.executions.ReportExecution, ReportExecutionRequest(envelope=success)),
    ]
    for call, request in calls:
        hidden = await refusal(call(request, metadata=by(STRANGER)))
        assert "RIGHT_LACKING" == hidden.reason
        assert "grant 2 lacks what this decision is about" in hidden.message
        assert "WRONG_STATE" == (await refusal(call(request, metadata=by(TENANT)))).reason
    begin = BeginExecutionRequest(decision_id=executed.event_id, producer=EXECUTOR)
    assert "RIGHT_LACKING" == (await refusal(world.executions.BeginExecution(begin, metadata=by(STRANGER)))).reason
    assert (await world.executions.BeginExecution(begin, metadata=by(TENANT))).HasField("refusal")


async def test_taken_event_ids_tell_strangers_nothing(world: World) -> None:
    """A caller that repeats an event_id or request_id of another caller learns where the event is only if it may read the bus."""
    await world.activate()
    decision = await world.approve("order/1")
    rights = "may: [publish, execute]"
    await deploy(world, f"to: [service:payments, mallory], {rights}", f"to: [tenant], {rights[:-1]}, read]")
    publish = PublishEventRequest(envelope=fact("order/2", "order.status", "delivered"))
    publish.envelope.event_id = new_event_id()
    begin = BeginExecutionRequest(decision_id=decision.event_id, producer=EXECUTOR, request_id=new_event_id())
    recorded = (await world.events.PublishEvent(publish, metadata=by(PAYMENTS))).envelope
    assert (await world.executions.BeginExecution(begin, metadata=by(PAYMENTS))).HasField("started")
    calls: list[tuple[Any, Any, str, int]] = [
        (world.events.PublishEvent, publish, f"event_id {recorded.event_id}", recorded.sequence_number),
        (world.executions.BeginExecution, begin, f"request_id {begin.request_id}", await world.head()),
    ]
    for call, request, name, number in calls:
        stranger = await refusal(call(request, metadata=by(STRANGER)))
        assert ("EVENT_ID_REUSED", f"{name} is taken; choose a new {name.split()[0]}") == (stranger.reason, stranger.message)
        reader = await refusal(call(request, metadata=by(TENANT)))
        assert ("EVENT_ID_REUSED", True) == (reader.reason, f"{name} is event {number}," in reader.message)
    publish.envelope.fact.value.string_value = "other"
    owner = await refusal(world.events.PublishEvent(publish, metadata=by(PAYMENTS)))
    assert f"is event {recorded.sequence_number}," in owner.message


async def test_explanations_are_for_readers(world: World) -> None:
    """A dry run that would show facts, by explanations or by rules of the caller's own, needs the right to read as well."""
    await world.activate()
    await deploy(world, "to: [mallory], may: [preflight]", "to: [tenant], may: [preflight, read]")
    plain = PreflightRequest(envelope=proposal("order/1"))
    assert "refund.create" == (await world.arbitration.Preflight(plain, metadata=by(STRANGER))).decision.action_type
    for request in (
        PreflightRequest(envelope=proposal("order/1"), explain=True),
        PreflightRequest(envelope=proposal("order/1"), rule_set_override=RULE_SET),
    ):
        assert "RIGHT_LACKING" == (await refusal(world.arbitration.Preflight(request, metadata=by(STRANGER)))).reason
        assert "refund.create" == (await world.arbitration.Preflight(request, metadata=by(TENANT))).decision.action_type


async def test_refusals_do_not_name_the_owner_of_a_trace(world: World) -> None:
    """A caller that may not join a trace is not told who opened it."""
    await world.activate()
    may_propose = "may: [propose], produce: {types: [agent]}"
    await deploy(world, f"to: [mallory], {may_propose}", f"to: [tenant], {may_propose}")
    opened = await world.arbitration.SubmitProposal(SubmitProposalRequest(envelope=proposal("order/1")), metadata=by(TENANT))
    joining = proposal("order/1", causation_id=opened.decision.event_id, producer=Producer(type=AGENT.type, id="agent-2", version="1"))
    refused = await refusal(world.arbitration.SubmitProposal(SubmitProposalRequest(envelope=joining), metadata=by(STRANGER)))
    assert ("RIGHT_LACKING", False) == (refused.reason, TENANT.name in refused.message)


async def test_a_wait_ends_with_the_right(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that has lost the right to read while it waited for a decision is not told how the decision ended."""
    await world.activate()
    decision = await world.approve("order/1")
    await deploy(world, "to: [mallory], may: [read]", "to: [tenant], may: [execute]")
    request = WaitDecisionRequest(decision_id=decision.event_id, phase=DECISION_PHASE_CLOSED)
    has_begun, wait = asyncio.Event(), CommitWaits.wait

    async def observed(*arguments: Any) -> None:
        has_begun.set()
        await wait(*arguments)

    monkeypatch.setattr(CommitWaits, "wait", observed)
    waiting = asyncio.ensure_future(world.arbitration.WaitDecision(request, metadata=by(STRANGER), timeout=30))
    await has_begun.wait()
    await deploy(world, "to: [tenant], may: [execute, revoke]", version=2)
    await world.arbitration.RevokeDecision(RevokeDecisionRequest(decision_id=decision.event_id, reason="no"), metadata=by(TENANT))
    assert "RIGHT_LACKING" == (await refusal(waiting)).reason
