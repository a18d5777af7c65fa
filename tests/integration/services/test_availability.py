"""A server that cannot write, and two servers on one bus: the rest of the error table, and the answers of either server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from gavel.v1 import common_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.error_pb2 import ErrorReason
from gavel.v1.event_service_pb2 import (
    BatchPublishEventsRequest,
    GetEventRequest,
    ListEventsRequest,
    PublishEventRequest,
    SubscribeEventsRequest,
)
from gavel.v1.fact_pb2 import CrossCheck
from gavel.v1.projection_service_pb2 import GetProjectionRequest, GetStatusRequest
from gavel.v1.rule_set_service_pb2 import GetRuleSetRequest
from gavel_rules.commands import OpenBus, PublishEvent
from gavel_rules.decider import handle
from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.state.state import State
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import QUEUE_BYTES_MAX
from gavel_server.errors import ServiceError
from gavel_server.fairness.fair_queue import FairQueue
from gavel_server.intake.admission import admit
from gavel_server.log import Entry, EventLog, IdEntry, LogUnavailableError, OutcomeUnknownError, Record, chain, empty_head
from gavel_server.log.memory import MemoryLog
from gavel_server.log.redis.log import RedisLog
from gavel_server.process.clock import wall_clock_ms
from gavel_server.services.event import PUBLISHABLE

from tests.integration.services.world import START_MS, Clock, World, fact, proposal, refusal, refusal_of, running_world, some_uuid


async def test_full_queue(world: World) -> None:
    """A command that finds the queue full is RESOURCE_EXHAUSTED / QUEUE_FULL with a delay; in a batch, only that item fails."""
    sequencer = await world.buses.open("")
    sequencer._queue._requests = FairQueue(3, QUEUE_BYTES_MAX)
    envelopes = [fact(f"order/{number}", "order.status", "paid") for number in range(5)]

    results = (await world.events.BatchPublishEvents(BatchPublishEventsRequest(envelopes=envelopes))).results

    assert [result.WhichOneof("result") for result in results] == ["envelope"] * 3 + ["error"] * 2
    problem = refusal_of(results[3].error)
    assert (problem.code, problem.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert problem.retry_after_ms > 0
    assert await world.head() == 4


async def test_unavailable_log(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the log is unavailable, writes are UNAVAILABLE / LOG_UNAVAILABLE and GetStatus has the reason; afterwards writes succeed."""
    log = (await world.buses.open("")).log

    async def refuse(*arguments: object) -> None:
        raise LogUnavailableError("cannot reach Redis")

    with monkeypatch.context() as outage:
        for method in ("append", "head", "durability"):
            outage.setattr(log, method, refuse)
        problem = await refusal(world.publish(fact("order/1", "order.status", "paid")))
        status = await world.projections.GetStatus(GetStatusRequest())
    assert (problem.code, problem.reason) == (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")
    assert problem.retry_after_ms > 0
    assert (status.writable, status.unwritable_reason) == (False, "cannot reach Redis")

    while not (await world.projections.GetStatus(GetStatusRequest())).writable:  # noqa: ASYNC110  # callers have no other way
        await asyncio.sleep(0.01)  # callers have no other way to notice it
    await world.publish(fact("order/1", "order.status", "paid"))


async def test_append_that_is_lost_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose append is lost is appended again once; if it is lost twice, its caller gets an error."""
    log = (await world.buses.open("")).log
    losses: list[int] = []

    async def lose(*arguments: object) -> None:
        losses.append(len(losses))
        raise OutcomeUnknownError("the request was lost")

    with monkeypatch.context() as outage:
        outage.setattr(log, "append", lose)
        problem = await refusal(world.publish(fact("order/1", "order.status", "paid")))
    assert (problem.code, problem.reason) == (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")
    assert (2, 1) == (len(losses), await world.head())


async def test_clock_that_is_behind_the_log(world: World) -> None:
    """A server whose clock lags the log's last event by more than 5 s refuses writes with CLOCK_SKEW, and still reads."""
    await world.publish(fact("order/1", "order.status", "paid"))
    world.clock.now_ms -= 5_001

    problem = await refusal(world.publish(fact("order/1", "order.status", "sent")))

    assert (problem.code, problem.reason) == (grpc.StatusCode.UNAVAILABLE, "CLOCK_SKEW")
    assert not (await world.projections.GetStatus(GetStatusRequest())).writable
    assert (await world.events.GetEvent(GetEventRequest(sequence_number=2))).envelope.fact.value.string_value == "paid"


async def test_recorded_at_never_decreases(world: World) -> None:
    """A server whose clock is slightly behind writes, and recorded_at never decreases."""
    first = await world.publish(fact("order/1", "order.status", "paid"))
    world.clock.now_ms -= 4_000

    second = await world.publish(fact("order/1", "order.status", "sent"))

    assert second.recorded_at == first.recorded_at


async def test_stopping_server_refuses_writes(world: World) -> None:
    """A server that is shutting down refuses writes with UNAVAILABLE / SHUTTING_DOWN."""
    await world.buses.stop()

    problem = await refusal(world.publish(fact("order/1", "order.status", "paid")))

    assert (problem.code, problem.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")


async def test_bus_of_another_arbiter_version() -> None:
    """A bus that needs semantics which this build does not have is served for reading and refuses every write."""
    state = State("default")
    command = OpenBus(some_uuid(), CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS), 7 * 86_400_000)
    (opened,) = handle(state, command, now_ms=START_MS).envelopes
    opened.fact.bus_opened.arbiter_version = ARBITER_VERSION + 1
    data = opened.SerializeToString()
    log = MemoryLog("default", Clock())
    head = empty_head("default")
    await log.append(head, [Entry(1, data, chain(head.chain_hash, data), opened.event_id, "")], START_MS, ())

    async def open_log(bus: str, clock: Clock) -> EventLog:
        return log

    async with running_world(open_log) as world:
        problem = await refusal(world.publish(fact("order/1", "order.status", "paid")))
        status = await world.projections.GetStatus(GetStatusRequest())

    assert (problem.code, problem.reason) == (grpc.StatusCode.UNAVAILABLE, "ARBITER_VERSION_NOT_IMPLEMENTED")
    assert (status.writable, status.arbiter_version, status.head_sequence_number) == (False, ARBITER_VERSION + 1, 1)


async def test_log_that_lost_events(world: World) -> None:
    """A log that lacks acknowledged events is never written to again: UNAVAILABLE / LOG_REGRESSED."""
    for _ in range(3):
        await world.publish(fact("order/1", "order.status", "paid"))
    log = (await world.buses.open("")).log
    assert isinstance(log, MemoryLog)
    del log._records[2:]
    log._head = log._head._replace(sequence_number=2, chain_hash=log._records[-1].chain_hash)

    problem = await refusal(world.publish(fact("order/1", "order.status", "paid")))

    assert (problem.code, problem.reason) == (grpc.StatusCode.UNAVAILABLE, "LOG_REGRESSED")
    assert await world.head() == 2


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_lost_event_is_not_mistaken_for_another_one(world: World, is_replaced: bool) -> None:
    """A read by the event_id of a lost event is LOG_REGRESSED and names it, whether or not another event has its number now."""
    events = [await world.publish(fact("order/1", "order.status", "paid")) for _ in range(3)]
    log = (await world.buses.open("")).log
    assert isinstance(log, MemoryLog)
    lost, number = events[-1].event_id, events[-1].sequence_number
    other = log._records[number - 2]
    del log._records[number - 1 :]
    if is_replaced:
        log._records.append(Record(number, other.envelope, other.chain_hash))

    problem = await refusal(world.events.GetEvent(GetEventRequest(event_id=lost)))

    assert (grpc.StatusCode.UNAVAILABLE, "LOG_REGRESSED") == (problem.code, problem.reason)
    assert f"has lost event {number} ({lost})" in problem.message


# Two servers on one bus of one Redis


class WallClock(Clock):
    """The system's clock, because Redis has no other."""

    def __call__(self) -> int:
        """Return the time, in milliseconds since the epoch."""
        return wall_clock_ms()


@pytest.fixture
async def two_servers(redis_url: str, bus: str) -> AsyncIterator[tuple[World, World, str]]:
    """Two servers on one Redis, and the name of a bus of their own."""

    async def open_log(name: str, clock: Clock) -> EventLog:
        return await RedisLog.connect(redis_url, name)

    async with running_world(open_log, WallClock()) as one, running_world(open_log, WallClock()) as other:
        yield one, other, bus


async def test_subscribers_of_both_servers_receive_one_order(two_servers: tuple[World, World, str]) -> None:
    """While both servers write, subscribers of each receive every event of both once, in the order of the log."""
    one, other, bus = two_servers
    total = 2 * 40 + 1

    async def read(world: World) -> list[tuple[int, str]]:
        answers = []
        call = world.events.SubscribeEvents(SubscribeEventsRequest(bus=bus))
        async for response in call:
            answers.append((response.envelope.sequence_number, response.envelope.event_id))
            if len(answers) == total:
                break
        call.cancel()
        return answers

    async def write(world: World, name: str) -> None:
        for number in range(40):
            await world.events.PublishEvent(PublishEventRequest(bus=bus, envelope=fact(f"order/{name}{number}", "order.status", "paid")))

    await one.buses.open(bus)
    readers = [asyncio.create_task(read(world)) for world in (one, other)]
    await asyncio.gather(write(one, "a"), write(other, "b"))
    first, second = await asyncio.gather(*readers)

    assert first == second
    assert [number for number, _ in first] == list(range(1, total + 1))
    assert len({event_id for _, event_id in first}) == total


async def test_writes_at_one_server_are_readable_at_the_other(two_servers: tuple[World, World, str]) -> None:
    """An event recorded by one server is listed by the other, can be read there by id, and is in its projection after a wait."""
    one, other, bus = two_servers
    envelope = fact("order/1", "order.status", "paid", event_id=some_uuid())
    fact_event = (await one.events.PublishEvent(PublishEventRequest(bus=bus, envelope=envelope))).envelope
    minimum = fact_event.sequence_number

    listing = await other.events.ListEvents(ListEventsRequest(bus=bus))
    read = await other.events.GetEvent(GetEventRequest(bus=bus, event_id=fact_event.event_id))
    response = await other.projections.GetProjection(GetProjectionRequest(bus=bus, subject="order/1", min_sequence_number=minimum))
    repetition = await other.events.PublishEvent(PublishEventRequest(bus=bus, envelope=envelope))

    assert [event.sequence_number for event in listing.envelopes] == [1, 2]
    assert read.envelope == fact_event == repetition.envelope
    assert response.projection.facts[0].source_event.event_id == fact_event.event_id


async def test_both_servers_have_one_projection(two_servers: tuple[World, World, str]) -> None:
    """At the same head both servers answer the same digest of their state, and report their Redis as durable."""
    one, other, bus = two_servers
    for world, number in ((one, 1), (other, 2), (one, 3)):
        await world.events.PublishEvent(PublishEventRequest(bus=bus, envelope=fact(f"order/{number}", "order.status", "paid")))
    subject = GetProjectionRequest(bus=bus, subject="order/1", min_sequence_number=4)
    await asyncio.gather(one.projections.GetProjection(subject), other.projections.GetProjection(subject))

    request = GetStatusRequest(bus=bus, include_projection_digest=True)
    first, second = await asyncio.gather(one.projections.GetStatus(request), other.projections.GetStatus(request))

    assert first.projection_digest == second.projection_digest
    assert (first.head_sequence_number, first.head_chain_hash) == (second.head_sequence_number, second.head_chain_hash)
    assert (first.durable, list(first.durability_warnings)) == (True, [])


async def test_invalid_bus_name_is_refused_by_every_service(world: World) -> None:
    """A bus name that no bus can have is INVALID_ARGUMENT on every service."""
    for call in (
        world.events.GetEvent(GetEventRequest(bus="No_Bus", sequence_number=1)),
        world.projections.GetStatus(GetStatusRequest(bus="x" * 64)),
        world.rule_sets.GetRuleSet(GetRuleSetRequest(bus="\x00", policy_id="x")),
    ):
        problem = await refusal(call)
        assert (problem.code, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["bus"])


async def test_proposal_without_a_producer_is_recorded_as_the_agents(world: World) -> None:
    """A proposal that names no producer is recorded as an agent's, because only agents may propose."""
    envelope = proposal("order/1")
    envelope.ClearField("producer")

    decision = await world.propose(envelope)

    event = (await world.events.GetEvent(GetEventRequest(event_id=decision.decision.proposal_id))).envelope
    assert event.producer.type == common_pb2.PRODUCER_TYPE_AGENT


async def test_every_command_is_answered_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the log fails while a batch is resolved, its waiting commands get an error; commands answered before get no second answer."""
    sequencer = await world.buses.open("")
    published, unknown, lost = some_uuid(), some_uuid(), some_uuid()
    await world.publish(fact("order/1", "order.status", "paid", event_id=published))
    answers: list[tuple[str, str]] = []

    async def find(event_ids: list[str], now_ms: int) -> dict[str, IdEntry]:
        if lost in event_ids:
            raise LogUnavailableError("cannot reach Redis")
        return {}

    monkeypatch.setattr(sequencer.log, "find", find)

    def submit(name: str, envelope: Envelope) -> None:
        def collect(result: CommittedAnswer | ServiceError) -> None:
            answers.append((name, ErrorReason.Name(result.reason) if isinstance(result, ServiceError) else "OK"))

        idempotency_key = admit(envelope, "default", PUBLISHABLE)
        sequencer.submit(PublishEvent(envelope), collect, idempotency_key)

    submit("repeated", fact("order/1", "order.status", "paid", event_id=published))
    submit("of unknown cause", fact("order/1", "order.status", "sent", causation_id=unknown))
    submit("unlucky", fact("order/1", "order.status", "sent", causation_id=lost))
    await refusal(world.publish(fact("order/1", "order.status", "sent", causation_id=lost)))

    assert answers == [
        ("repeated", "OK"),
        ("of unknown cause", "ERROR_REASON_EVENT_NOT_FOUND"),
        ("unlucky", "ERROR_REASON_LOG_UNAVAILABLE"),
    ]


async def test_blocked_timer_does_not_spin(world_with_rules: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer that is due while the clock forbids writes waits without a busy loop."""
    await world_with_rules.approve()
    sequencer = await world_with_rules.buses.open("")
    rounds = 0
    wait_for_work = sequencer._wait_for_work

    async def counting() -> None:
        nonlocal rounds
        rounds += 1
        await wait_for_work()

    monkeypatch.setattr(sequencer, "_wait_for_work", counting)
    world_with_rules.clock.now_ms += 120_000
    sequencer.replica.clock.observe(0, 10_000, 10_000)
    sequencer._pacing.wake()
    await asyncio.sleep(0.1)

    assert rounds < 20
