"""Refused calls as events: what is counted, how often it is recorded, and that nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from gavel.v1 import common_pb2
from gavel.v1.administration_service_pb2 import CreateBusRequest, DeployGrantsRequest
from gavel.v1.arbitration_service_pb2 import (
    BatchSubmitProposalsRequest,
    PreflightRequest,
    StreamProposalsRequest,
    SubmitProposalRequest,
)
from gavel.v1.common_pb2 import Producer
from gavel.v1.diagnostic_pb2 import AccessRefused
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import BatchPublishEventsRequest, ListEventsRequest, PublishEventRequest
from gavel.v1.execution_service_pb2 import BeginExecutionRequest
from gavel.v1.replay_service_pb2 import VerifyReplayRequest
from gavel_rules.identity.principal import Principal
from gavel_server.log import LogUnavailableError
from gavel_server.rpc.identity.access_refusals import OTHERS, PRINCIPALS_MAX, RECORD_SECONDS, RETRY_SECONDS

from tests.integration.services.identity.callers import ADMIN, AGENT, DATABASE, GRANTS, STRANGER, KnowingInterceptor, by
from tests.integration.services.world import AGENT as AGENT_PRODUCER
from tests.integration.services.world import EXECUTOR, START_MS, World, fact, proposal, refusal, running_world

FACT = common_pb2.EVENT_CATEGORY_FACT_EVENT
SUBMIT = "gavel.v1.ArbitrationService/SubmitProposal"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server with rules and GRANTS in force."""
    async with running_world(interceptor=KnowingInterceptor(), admins=["ada"]) as running:
        await running.buses.open("")
        await running.activate()
        await running.administration.DeployGrants(DeployGrantsRequest(document=GRANTS), metadata=by(ADMIN))
        yield running


async def submit(world: World, principal: Principal, envelope: Envelope | None = None) -> None:
    """Make a proposal that is refused."""
    request = SubmitProposalRequest(envelope=envelope or proposal("order/1"))
    await refusal(world.arbitration.SubmitProposal(request, metadata=by(principal)))


async def recorded(world: World) -> list[Envelope]:
    """Return the events about refused calls in the log."""
    sequencer = await world.buses.open("")
    records = await sequencer.log.read(1, await world.head(), 10_000)
    envelopes = [Envelope.FromString(record.envelope) for record in records]
    return [envelope for envelope in envelopes if envelope.agent_diagnostic.HasField("access_refused")]


async def refusals(world: World) -> list[AccessRefused]:
    """Return the same without their envelopes."""
    return [envelope.agent_diagnostic.access_refused for envelope in await recorded(world)]


async def proved(world: World) -> bool:
    """Return whether the log replays."""
    answers = [answer async for answer in world.replays.VerifyReplay(VerifyReplayRequest(), metadata=by(ADMIN))]
    return bool(answers[-1].verdict.proved)


async def test_a_refused_call_is_an_event(world: World) -> None:
    """A denied call is recorded with its caller, producer, category, reason, count and times, by Gavel, and the log replays."""
    await submit(world, STRANGER)
    world.clock.now_ms += 500
    await submit(world, STRANGER)
    await world.refusals.record_due()
    (envelope,) = await recorded(world)
    assert ("AccessRefused", "gavel", "AccessRefused", "bus/default", False) == (
        envelope.event_name,
        envelope.producer.id,
        envelope.agent_diagnostic.kind,
        envelope.subject,
        envelope.HasField("attestation"),
    )
    refused = envelope.agent_diagnostic.access_refused
    assert ("mallory", "token", "RIGHT_LACKING", SUBMIT, 2) == (
        refused.principal,
        refused.method,
        refused.reason,
        refused.rpc,
        refused.count,
    )
    assert (AGENT_PRODUCER, common_pb2.EVENT_CATEGORY_PROPOSAL_EVENT) == (refused.producer, refused.category)
    assert (START_MS, START_MS + 500) == (refused.first_at.ToMilliseconds(), refused.last_at.ToMilliseconds())
    assert await proved(world)


async def test_once_a_minute(world: World) -> None:
    """However many calls are refused, one event a minute tells of each principal and reason, and the counts add up."""
    for _ in range(26):
        await submit(world, STRANGER)
        await world.refusals.record_due()
        world.clock.now_ms += 5_000
    assert [1, 12, 12] == [refused.count for refused in await refusals(world)]
    await world.refusals.stop()
    assert 26 == sum(refused.count for refused in await refusals(world))
    assert await proved(world)


@pytest.mark.parametrize(
    ("principal", "envelope", "reason", "category"),
    [
        (DATABASE, fact("order/1", "customer.status", "vip"), "RIGHT_LACKING", FACT),
        (
            DATABASE,
            fact("order/1", "order.status", "x", producer=AGENT_PRODUCER),
            "CATEGORY_NOT_ALLOWED",
            common_pb2.EVENT_CATEGORY_FACT_EVENT,
        ),
    ],
)
async def test_events_are_told_apart(world: World, principal: Principal, envelope: Envelope, reason: str, category: int) -> None:
    """A refusal by the core or by the checks of events counts like a lacking right, under its own reason."""
    await refusal(world.events.PublishEvent(PublishEventRequest(envelope=envelope), metadata=by(principal)))
    await world.refusals.record_due()
    (refused,) = await refusals(world)
    assert (principal.name, reason, category, envelope.producer) == (refused.principal, refused.reason, refused.category, refused.producer)


async def test_items_of_batches_and_streams(world: World) -> None:
    """Each refused item of a batch or stream counts; the others do not."""
    good, bad = proposal("order/1"), proposal("parcel/1")
    request = BatchSubmitProposalsRequest(envelopes=[good, bad, bad])
    await world.arbitration.BatchSubmitProposals(request, metadata=by(AGENT))
    stream = world.arbitration.StreamProposals(
        iter([StreamProposalsRequest(envelope=one) for one in (good, bad)]),
        metadata=by(AGENT),
    )
    assert [False, True] == [answer.HasField("error") async for answer in stream]
    facts = [fact("order/1", "order.status", "x"), fact("order/1", "customer.status", "x")]
    await world.events.BatchPublishEvents(BatchPublishEventsRequest(envelopes=facts), metadata=by(DATABASE))
    await world.refusals.record_due()
    assert {(AGENT.name, 3), (DATABASE.name, 1)} == {(refused.principal, refused.count) for refused in await refusals(world)}


async def test_other_calls(world: World) -> None:
    """Executions name their executor, calls without an event neither producer nor category; a refused CreateBus is on bus default."""
    begin = BeginExecutionRequest(decision_id="0190f2a4-7e3b-7c5d-8f10-0123456789ab", producer=EXECUTOR)
    await refusal(world.executions.BeginExecution(begin, metadata=by(AGENT)))
    await refusal(world.administration.CreateBus(CreateBusRequest(bus="mine"), metadata=by(STRANGER)))
    await world.refusals.record_due()
    by_rpc = {refused.rpc.rpartition("/")[2]: refused for refused in await refusals(world)}
    assert (EXECUTOR, common_pb2.EVENT_CATEGORY_EXECUTION_EVENT) == (by_rpc["BeginExecution"].producer, by_rpc["BeginExecution"].category)
    assert (False, 0) == (by_rpc["CreateBus"].HasField("producer"), by_rpc["CreateBus"].category)
    assert {"BeginExecution", "CreateBus"} == by_rpc.keys()


async def test_what_is_not_recorded(world: World) -> None:
    """Reads, dry runs, requests that are merely invalid, and buses that do not exist leave no event."""
    head = await world.head()
    await refusal(world.events.ListEvents(ListEventsRequest(), metadata=by(STRANGER)))
    await refusal(world.arbitration.Preflight(PreflightRequest(envelope=proposal("order/1")), metadata=by(STRANGER)))
    await refusal(world.arbitration.SubmitProposal(SubmitProposalRequest(), metadata=by(AGENT)))
    request = PublishEventRequest(bus="none", envelope=fact("order/1", "order.status", "x"))
    assert "RIGHT_LACKING" == (await refusal(world.events.PublishEvent(request, metadata=by(DATABASE)))).reason
    await world.refusals.stop()
    assert head == await world.head()


async def test_callers_without_authentication() -> None:
    """On a server without authentication refused calls leave no event."""
    async with running_world() as world:
        await world.publish(fact("order/1", "order.status", "x"))
        head = await world.head()
        assert (
            "CATEGORY_NOT_ALLOWED" == (await refusal(world.publish(fact("order/1", "order.status", "x", producer=AGENT_PRODUCER)))).reason
        )
        await world.refusals.stop()
        assert head == await world.head()


async def test_many_principals(world: World) -> None:
    """The number of events is bounded: callers beyond the limit share one for each reason, and no call is left out."""
    callers = PRINCIPALS_MAX + 20
    for number in range(callers):
        await submit(world, Principal(f"caller-{number}", "token"))
    await world.refusals.record_due()
    refused_calls = await refusals(world)
    assert PRINCIPALS_MAX + 1 == len(refused_calls)
    assert [20] == [refused.count for refused in refused_calls if refused.principal == OTHERS]
    world.clock.now_ms += int(RECORD_SECONDS * 1000)
    await world.refusals.record_due()
    await submit(world, Principal("late", "token"))
    await world.refusals.record_due()
    assert "late" == (await refusals(world))[-1].principal  # the table has room again


async def test_producers_of_any_form(world: World) -> None:
    """A producer that no event could name does not reach the log."""
    await submit(world, STRANGER, Envelope(producer=Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id="x" * 100_000)))
    await submit(world, Principal("other", "token"), Envelope(producer=Producer(id="a b\n")))
    await world.refusals.record_due()
    assert [False, False] == [refused.HasField("producer") for refused in await refusals(world)]


async def test_failed_appends_lose_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that the log did not take is kept and recorded later, once, also if the log had taken it after all."""
    sequencer = await world.buses.open("")
    append = sequencer.log.append
    fails = True

    async def failing(*arguments: Any, **options: Any) -> Any:
        if fails:
            raise LogUnavailableError("away")
        return await append(*arguments, **options)

    monkeypatch.setattr(sequencer.log, "append", failing)
    await submit(world, STRANGER)
    await world.refusals.record_due()
    assert [] == await refusals(world)
    await submit(world, STRANGER)
    fails = False
    await sequencer.replica.refresh()  # as the watcher does in time
    world.clock.now_ms += int(RETRY_SECONDS * 1000)
    await world.refusals.record_due()
    await world.refusals.stop()
    assert [1, 1] == [refused.count for refused in await refusals(world)]


async def test_a_repeated_record_is_one_event(world: World) -> None:
    """A count whose append was not answered is sent again with the same event_id and gets the event that the log has."""
    await submit(world, STRANGER)
    (tally,) = (tally for _, tally in world.refusals._all())
    command = tally.take()
    sequencer = await world.buses.open("")
    await sequencer.execute(command, command.event_id)  # recorded, and the answer was lost
    await world.refusals.record_due()
    assert [1] == [refused.count for refused in await refusals(world)]


async def test_expired_credentials_have_no_name(world: World) -> None:
    """Callers without valid credentials are counted together, on the default bus."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gavel_server.identity.sessions.time.time", lambda: float("inf"))
        refused = await refusal(
            world.arbitration.SubmitProposal(SubmitProposalRequest(envelope=proposal("order/1")), metadata=by(STRANGER))
        )
    assert grpc.StatusCode.UNAUTHENTICATED == refused.code
    await world.refusals.record_due()
    (event,) = await refusals(world)
    assert ("", "", "UNAUTHENTICATED", 1, False) == (event.principal, event.method, event.reason, event.count, event.HasField("producer"))
