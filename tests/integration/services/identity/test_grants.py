"""Grants over gRPC: who deploys them, what they allow and refuse, what the log then says, and that replay proves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from gavel.v1.administration_service_pb2 import (
    CreateBusRequest,
    DeployGrantsRequest,
    GetGrantsRequest,
    ListBusesRequest,
    ListGrantsRequest,
    ValidateGrantsRequest,
    WhoAmIRequest,
)
from gavel.v1.arbitration_service_pb2 import SubmitProposalRequest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import PublishEventRequest, SubscribeEventsRequest
from gavel.v1.fact_pb2 import ACTIVATION_MODE_SHADOW
from gavel.v1.replay_service_pb2 import VerifyReplayRequest
from gavel.v1.rule_set_service_pb2 import ActivateRuleSetRequest, DeployRuleSetRequest
from gavel.v1.work_service_pb2 import WORK_QUEUE_DECISIONS, ConsumeRequest, ConsumerHeartbeat, OpenConsumer
from gavel.v1.work_service_pb2_grpc import WorkServiceStub
from gavel_rules.identity.principal import Principal
from gavel_rules.identity.rights import RIGHTS
from gavel_rules.replay import DivergedError
from gavel_rules.replay.recomputation import Recomputation

from tests.integration.services.identity.callers import ADMIN, AGENT, DATABASE, GRANTS, STRANGER, KnowingInterceptor, by
from tests.integration.services.world import RULE_SET, World, fact, proposal, refusal, running_world
from tests.support.hashes import sha256_of


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server with one administrator, on a bus without grants."""
    async with running_world(interceptor=KnowingInterceptor(), admins=["ada"]) as running:
        await running.buses.open("")
        yield running


@pytest.fixture
async def granted(world: World) -> World:
    """The same with rules and GRANTS in force."""
    await world.activate()
    await world.administration.DeployGrants(DeployGrantsRequest(document=GRANTS, reason="first"), metadata=by(ADMIN))
    return world


async def _publish(world: World, envelope: Envelope, principal: Principal = DATABASE) -> Envelope:
    request = PublishEventRequest(envelope=envelope)
    return (await world.events.PublishEvent(request, metadata=by(principal))).envelope


async def test_first_grants(world: World) -> None:
    """Only an administrator deploys the first grants, and the log names it and its reason."""
    request = DeployGrantsRequest(document=GRANTS, reason="first", expected_version=0)
    refused = await refusal(world.administration.DeployGrants(request, metadata=by(STRANGER)))
    assert (grpc.StatusCode.PERMISSION_DENIED, "RIGHT_LACKING") == (refused.code, refused.reason)
    deployed = await world.administration.DeployGrants(request, metadata=by(ADMIN))
    read = await world.administration.GetGrants(GetGrantsRequest(), metadata=by(ADMIN))
    assert ("main", 1, deployed.digest, "ada", True) == (
        read.grants.name,
        read.grants.version,
        read.grants.digest,
        read.grants.principal,
        read.grants.in_force,
    )
    assert read.document == GRANTS
    listed = await world.administration.ListGrants(ListGrantsRequest(), metadata=by(ADMIN))
    assert [read.grants] == list(listed.grants)


async def test_events_are_attested_and_replay_proves_them(granted: World) -> None:
    """An allowed event names its caller and the grants, a denied one is not in the log, and the log replays."""
    recorded = await _publish(granted, fact("order/1", "order.status", "delivered"))
    in_force = (await granted.administration.GetGrants(GetGrantsRequest(), metadata=by(ADMIN))).grants
    attestation = recorded.attestation
    assert ("spiffe://acme/orders-db", "mtls", "CN=acme", sha256_of("1"), in_force.digest) == (
        attestation.principal,
        attestation.method,
        attestation.issuer,
        attestation.credential_id,
        attestation.grants_digest,
    )
    head = await granted.head()
    for envelope, principal in (
        (fact("order/1", "customer.status", "vip"), DATABASE),  # another fact
        (fact("order/1", "order.status", "delivered"), AGENT),  # no right to publish
        (fact("order/1", "order.status", "delivered"), STRANGER),
    ):
        refused = await refusal(granted.events.PublishEvent(PublishEventRequest(envelope=envelope), metadata=by(principal)))
        assert (grpc.StatusCode.PERMISSION_DENIED, "RIGHT_LACKING") == (refused.code, refused.reason)
    assert head == await granted.head()
    request = SubmitProposalRequest(envelope=proposal("order/1", amount=10.0, cites=[recorded]))
    decision = (await granted.arbitration.SubmitProposal(request, metadata=by(AGENT))).decision
    assert "DecisionApproved" == decision.event_name
    assert not decision.HasField("attestation")  # the decision is Gavel's own
    answers = [answer async for answer in granted.replays.VerifyReplay(VerifyReplayRequest(), metadata=by(ADMIN))]
    assert answers[-1].verdict.proved, answers[-1]


async def test_sent_attestations_are_refused(granted: World) -> None:
    """A request that states its own attestation is refused."""
    envelope = fact("order/1", "order.status", "delivered")
    envelope.attestation.principal = "spiffe://acme/orders-db"
    refused = await refusal(granted.events.PublishEvent(PublishEventRequest(envelope=envelope), metadata=by(DATABASE)))
    assert ("INVALID_REQUEST", ["envelope.attestation"]) == (refused.reason, refused.fields)


async def test_event_ids_belong_to_their_caller(granted: World) -> None:
    """The same request repeated by its caller gets its answer; repeated by another caller it is refused."""
    grants = GRANTS.replace("version: 1", "version: 2").replace('["spiffe://acme/orders-db"]', '["spiffe://acme/orders-db", copy]')
    await granted.administration.DeployGrants(DeployGrantsRequest(document=grants), metadata=by(ADMIN))
    envelope = fact("order/1", "order.status", "delivered")
    envelope.event_id = "0190f2a4-7e3b-7c5d-8f10-0123456789ab"
    first = await _publish(granted, envelope)
    assert first.sequence_number == (await _publish(granted, envelope)).sequence_number
    copy = Principal("copy", "token")
    refused = await refusal(granted.events.PublishEvent(PublishEventRequest(envelope=envelope), metadata=by(copy)))
    assert "EVENT_ID_REUSED" == refused.reason


async def test_activations_warn_of_actions_without_grants(granted: World) -> None:
    """The answer to an activation names what the grants let nobody do, also if it changes nothing; a shadow needs no rights."""
    request = ActivateRuleSetRequest(policy_id="refunds", version=1)
    expected = "no grant lets anybody execute refund.create, an action of rule set refunds version 1"
    for version, executing, messages in ((2, "refund.*", []), (3, "refnd.*", [("action-without-grant", expected)])):
        grants = GRANTS.replace("version: 1", f"version: {version}").replace(
            'ids: ["payments*"]}, actions: ["refund.*"]', f'ids: ["payments*"]}}, actions: ["{executing}"]'
        )
        await granted.administration.DeployGrants(DeployGrantsRequest(document=grants), metadata=by(ADMIN))
        answer = await granted.rule_sets.ActivateRuleSet(request, metadata=by(ADMIN))
        assert messages == [(warning.code, warning.message) for warning in answer.warnings]
    deployment = DeployRuleSetRequest(document=RULE_SET.replace("version: 1", "version: 2"))
    await granted.rule_sets.DeployRuleSet(deployment, metadata=by(ADMIN))
    request.version, request.mode = 2, ACTIVATION_MODE_SHADOW
    assert [] == list((await granted.rule_sets.ActivateRuleSet(request, metadata=by(ADMIN))).warnings)


async def test_versions_never_change(granted: World) -> None:
    """The digest in force again changes nothing; another document under a known version is refused."""
    head = await granted.head()
    again = await granted.administration.DeployGrants(DeployGrantsRequest(document=GRANTS), metadata=by(ADMIN))
    assert (head, "main", 1) == (await granted.head(), again.name, again.version)
    other = DeployGrantsRequest(document=GRANTS.replace("orders-db", "orders"))
    assert "VERSION_REUSED" == (await refusal(granted.administration.DeployGrants(other, metadata=by(ADMIN)))).reason
    raced = DeployGrantsRequest(document=GRANTS.replace("version: 1", "version: 2"), expected_version=7)
    refused = await refusal(granted.administration.DeployGrants(raced, metadata=by(ADMIN)))
    assert (grpc.StatusCode.ABORTED, "ACTIVATION_RACED") == (refused.code, refused.reason)


async def test_mistakes_have_places(world: World) -> None:
    """A document with mistakes is not deployed, and each mistake has its line and column."""
    document = "gavel: v1\nname: main\nversion: 1\ngrants:\n  - {to: [x], may: [porpose]}\n  - {to: [], mai: [read]}\n"
    report = await world.administration.ValidateGrants(ValidateGrantsRequest(document=document), metadata=by(ADMIN))
    assert not report.valid
    assert [(5, "unknown-right", "did you mean propose?"), (6, "missing-key", "add it")] == [
        (error.line, error.code, error.suggestion) for error in report.errors if error.code in ("unknown-right", "missing-key")
    ]
    refused = await refusal(world.administration.DeployGrants(DeployGrantsRequest(document=document), metadata=by(ADMIN)))
    assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_GRANTS") == (refused.code, refused.reason)
    assert "document:5:21" in refused.fields


async def test_warnings_about_the_rule_sets_in_force(world: World) -> None:
    """Grants are compared with the rule sets in force on their bus, and with none on a bus that has none."""
    await world.activate()
    document = "gavel: v1\nname: main\nversion: 1\ngrants:\n  - {to: [ada], may: [grant]}\n"
    expected = ["no grant lets anybody propose or execute or review refund.create, an action of rule set refunds version 1"]
    await world.administration.CreateBus(CreateBusRequest(bus="other"), metadata=by(ADMIN))
    for bus, warnings in (("", expected), ("other", [])):
        request = ValidateGrantsRequest(bus=bus, document=document)
        report = await world.administration.ValidateGrants(request, metadata=by(ADMIN))
        assert (True, warnings) == (report.valid, [warning.message for warning in report.warnings])


async def test_who_am_i(granted: World) -> None:
    """Every caller learns who it is and what it may do; without authentication that is everything."""
    agent = await granted.administration.WhoAmI(WhoAmIRequest(), metadata=by(AGENT))
    assert ("agents-7", ["refund-agents"], ["preflight", "propose", "read"], False) == (
        agent.principal.name,
        list(agent.principal.groups),
        list(agent.rights),
        agent.admin,
    )
    assert agent.bus_incarnation == (await granted.buses.existing("")).replica.incarnation
    stranger = await granted.administration.WhoAmI(WhoAmIRequest(), metadata=by(STRANGER))
    assert ([], "") == (list(stranger.rights), stranger.bus_incarnation)
    assert (await granted.administration.WhoAmI(WhoAmIRequest(), metadata=by(ADMIN))).admin


async def test_buses(world: World) -> None:
    """No request of an authenticated caller opens a bus; CreateBus does, once, for those who may."""
    request = DeployGrantsRequest(bus="other", document=GRANTS)
    assert "BUS_NOT_FOUND" == (await refusal(world.administration.DeployGrants(request, metadata=by(ADMIN)))).reason
    create = CreateBusRequest(bus="other")
    assert "RIGHT_LACKING" == (await refusal(world.administration.CreateBus(create, metadata=by(STRANGER)))).reason
    created = await world.administration.CreateBus(create, metadata=by(ADMIN))
    assert created.bus_incarnation
    assert "BUS_EXISTS" == (await refusal(world.administration.CreateBus(create, metadata=by(ADMIN)))).reason
    listed = await world.administration.ListBuses(ListBusesRequest(), metadata=by(ADMIN))
    assert [("default", 1), ("other", 1)] == [(bus.name, bus.head_sequence_number) for bus in listed.buses]
    assert [] == list((await world.administration.ListBuses(ListBusesRequest(), metadata=by(STRANGER))).buses)


async def test_streams_end_with_the_right(world: World) -> None:
    """A stream that is open gives nothing more, and takes nothing more, once its caller's grant is gone."""

    async def deploy(version: int, may: str) -> None:
        document = (
            f"gavel: v1\nname: main\nversion: {version}\ngrants:\n  - {{to: [ada], may: [grant]}}\n  - {{to: [mallory], may: [{may}]}}\n"
        )
        await world.administration.DeployGrants(DeployGrantsRequest(document=document), metadata=by(ADMIN))

    async def rest(stream: Any) -> None:
        async for _ in stream:
            pass

    async def requests(revoked: asyncio.Event) -> AsyncIterator[ConsumeRequest]:
        yield ConsumeRequest(open=OpenConsumer(queue=WORK_QUEUE_DECISIONS, group="executors"))
        await revoked.wait()
        yield ConsumeRequest(heartbeat=ConsumerHeartbeat())

    await deploy(1, "subscribe, execute")
    revoked = asyncio.Event()
    subscription = world.events.SubscribeEvents(SubscribeEventsRequest(), metadata=by(STRANGER), timeout=10)
    work = WorkServiceStub(world.channel).Consume(requests(revoked), metadata=by(STRANGER), timeout=10)
    await anext(aiter(subscription))
    await anext(aiter(work))
    await deploy(2, "tools")
    revoked.set()
    for stream in (subscription, work):
        assert "RIGHT_LACKING" == (await refusal(rest(stream))).reason


async def test_without_authentication(world: World) -> None:
    """Without authentication everything is allowed, and events have no attestation."""
    recorded = await world.publish(fact("order/1", "order.status", "delivered"))
    assert not recorded.HasField("attestation")
    assert sorted(RIGHTS) == list((await world.administration.WhoAmI(WhoAmIRequest())).rights)


async def test_callers_without_authentication_on_a_bus_with_grants(granted: World) -> None:
    """Grants of an authenticated caller also bind a server that runs without authentication: the log would not replay otherwise."""
    request = PublishEventRequest(envelope=fact("order/1", "order.status", "delivered"))
    assert "RIGHT_LACKING" == (await refusal(granted.events.PublishEvent(request))).reason


@pytest.mark.parametrize("principal", ["mallory", ""])
async def test_replay_refuses_a_changed_attestation(granted: World, principal: str) -> None:
    """A log in which one attestation is changed, or taken away, diverges at that event, and the replay says what lacked."""
    recorded = await _publish(granted, fact("order/1", "order.status", "delivered"))
    log = (await granted.buses.open("")).log
    replayed = Recomputation("default")
    records = await log.read_many(list(range(1, await granted.head() + 1)))
    for number, record in sorted(records.items()):
        content = record.envelope
        if number == recorded.sequence_number:
            envelope = Envelope.FromString(content)
            if principal:
                envelope.attestation.principal = principal
            else:
                envelope.ClearField("attestation")
            with pytest.raises(DivergedError, match="no grant of main version 1 is for") as raised:
                replayed.feed(number, envelope.SerializeToString(deterministic=True))
            assert number == raised.value.divergence.sequence_number
            return
        replayed.feed(number, content)
