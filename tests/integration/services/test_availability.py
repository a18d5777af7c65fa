"""When a server cannot write, or two serve one bus: the rest of the error table, and what callers of either server see."""

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
from gavel_rules.events import ARBITER_VERSION
from gavel_rules.projection import State
from gavel_server.admission import admit
from gavel_server.bus.planning import Completed
from gavel_server.clock import wall_clock_ms
from gavel_server.errors import ServiceError
from gavel_server.log import Entry, EventLog, IdEntry, LogUnavailableError, OutcomeUnknownError, chain, empty_head
from gavel_server.log.memory import MemoryLog
from gavel_server.log.redis import RedisLog
from gavel_server.services.event import PUBLISHABLE

from tests.integration.services.world import (
    START_MS,
    Clock,
    World,
    fact,
    proposal,
    refusal,
    refusal_of,
    running_world,
    some_uuid,
)


async def test_full_queue(world: World) -> None:
    """A command that finds the queue full is RESOURCE_EXHAUSTED / QUEUE_FULL with a delay; in a batch, that item alone is."""
    (await world.buses.get(""))._queue.commands_max = 3
    envelopes = [fact(f"order/{number}", "order.status", "paid") for number in range(5)]

    results = (await world.events.BatchPublishEvents(BatchPublishEventsRequest(envelopes=envelopes))).results

    assert [result.WhichOneof("result") for result in results] == ["envelope"] * 3 + ["error"] * 2
    heard = refusal_of(results[3].error)
    assert (heard.code, heard.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert heard.retry_after_ms > 0
    assert await world.head() == 4


async def test_log_that_refuses_writes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the log is away writes are UNAVAILABLE / LOG_UNAVAILABLE, GetStatus says why, and when it is back all is well."""
    log = (await world.buses.get("")).log

    async def refuse(*arguments: object) -> None:
        raise LogUnavailableError("cannot reach Redis")

    with monkeypatch.context() as away:
        for method in ("append", "head", "consumers", "durability"):
            away.setattr(log, method, refuse)
        heard = await refusal(world.publish(fact("order/1", "order.status", "paid")))
        status = await world.projections.GetStatus(GetStatusRequest())
    assert (heard.code, heard.reason) == (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")
    assert heard.retry_after_ms > 0
    assert (status.writable, status.unwritable_reason) == (False, "cannot reach Redis")

    while not (await world.projections.GetStatus(GetStatusRequest())).writable:  # noqa: ASYNC110  # a caller has no other way
        await asyncio.sleep(0.01)  # a caller has no other way to learn of it
    await world.publish(fact("order/1", "order.status", "paid"))


async def test_log_that_loses_one_append_after_the_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose append gets lost is sent again once; lost twice, its caller hears so and does not wait for ever."""
    log = (await world.buses.get("")).log
    lost: list[int] = []

    async def lose(*arguments: object) -> None:
        lost.append(len(lost))
        raise OutcomeUnknownError("the request was lost")

    with monkeypatch.context() as away:
        away.setattr(log, "append", lose)
        heard = await refusal(world.publish(fact("order/1", "order.status", "paid")))
    assert (heard.code, heard.reason) == (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")
    assert (2, 1) == (len(lost), await world.head())


async def test_clock_that_is_behind_the_log(world: World) -> None:
    """A server whose clock lags the log's last event by more than 5 s refuses writes with CLOCK_SKEW, and still reads."""
    await world.publish(fact("order/1", "order.status", "paid"))
    world.clock.now_ms -= 5_001

    heard = await refusal(world.publish(fact("order/1", "order.status", "sent")))

    assert (heard.code, heard.reason) == (grpc.StatusCode.UNAVAILABLE, "CLOCK_SKEW")
    assert not (await world.projections.GetStatus(GetStatusRequest())).writable
    assert (await world.events.GetEvent(GetEventRequest(sequence_number=2))).envelope.fact.value.string_value == "paid"


async def test_clock_slightly_behind_never_turns_back_time(world: World) -> None:
    """A clock that is a little behind still writes, and recorded_at never goes back."""
    first = await world.publish(fact("order/1", "order.status", "paid"))
    world.clock.now_ms -= 4_000

    second = await world.publish(fact("order/1", "order.status", "sent"))

    assert second.recorded_at == first.recorded_at


async def test_stopping_server_refuses_writes(world: World) -> None:
    """A server that is shutting down refuses writes with UNAVAILABLE / SHUTTING_DOWN."""
    await world.buses.stop()

    heard = await refusal(world.publish(fact("order/1", "order.status", "paid")))

    assert (heard.code, heard.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")


async def test_bus_of_another_arbiter_version() -> None:
    """A bus that needs semantics which this build does not have is served for reading and refuses every write."""
    state = State("default")
    command = OpenBus(some_uuid(), CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS), 7 * 86_400_000)
    (opened,) = handle(state, command, now_ms=START_MS).events
    opened.fact.bus_opened.arbiter_version = ARBITER_VERSION + 1
    data = opened.SerializeToString()
    log = MemoryLog("default", Clock())
    head = empty_head("default")
    await log.append(head, [Entry(1, data, chain(head.chain_hash, data), opened.event_id, "")], START_MS, ())

    async def open_log(bus: str, clock: Clock) -> EventLog:
        return log

    async with running_world(open_log) as world:
        heard = await refusal(world.publish(fact("order/1", "order.status", "paid")))
        status = await world.projections.GetStatus(GetStatusRequest())

    assert (heard.code, heard.reason) == (grpc.StatusCode.UNAVAILABLE, "ARBITER_VERSION_NOT_IMPLEMENTED")
    assert (status.writable, status.arbiter_version, status.head_sequence_number) == (False, ARBITER_VERSION + 1, 1)


async def test_log_that_lost_events(world: World) -> None:
    """A log whose head is behind what was acknowledged is never written to again: UNAVAILABLE / LOG_REGRESSED."""
    for _ in range(3):
        await world.publish(fact("order/1", "order.status", "paid"))
    log = (await world.buses.get("")).log
    assert isinstance(log, MemoryLog)
    del log._records[2:]
    log._head = log._head._replace(sequence_number=2, chain_hash=log._records[-1].chain_hash)

    heard = await refusal(world.publish(fact("order/1", "order.status", "paid")))

    assert (heard.code, heard.reason) == (grpc.StatusCode.UNAVAILABLE, "LOG_REGRESSED")
    assert await world.head() == 2


# Two servers on one bus of one Redis


class WallClock(Clock):
    """The real one: Redis has no other."""

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


async def test_subscribers_of_both_servers_hear_the_same(two_servers: tuple[World, World, str]) -> None:
    """Both servers write at once; subscribers of each hear every event of both once, in the one order."""
    one, other, bus = two_servers
    total = 2 * 40 + 1

    async def read(world: World) -> list[tuple[int, str]]:
        heard = []
        call = world.events.SubscribeEvents(SubscribeEventsRequest(bus=bus))
        async for response in call:
            heard.append((response.envelope.sequence_number, response.envelope.event_id))
            if len(heard) == total:
                break
        call.cancel()
        return heard

    async def write(world: World, name: str) -> None:
        for number in range(40):
            await world.events.PublishEvent(PublishEventRequest(bus=bus, envelope=fact(f"order/{name}{number}", "order.status", "paid")))

    readers = [asyncio.create_task(read(world)) for world in (one, other)]
    await asyncio.gather(write(one, "a"), write(other, "b"))
    first, second = await asyncio.gather(*readers)

    assert first == second
    assert [number for number, _ in first] == list(range(1, total + 1))
    assert len({event_id for _, event_id in first}) == total


async def test_writes_of_one_server_are_read_at_the_other(two_servers: tuple[World, World, str]) -> None:
    """What one server has answered is in the other's listing, its event by id, and, waited for, its projection."""
    one, other, bus = two_servers
    envelope = fact("order/1", "order.status", "paid", event_id=some_uuid())
    recorded = (await one.events.PublishEvent(PublishEventRequest(bus=bus, envelope=envelope))).envelope
    minimum = recorded.sequence_number

    listed = await other.events.ListEvents(ListEventsRequest(bus=bus))
    read = await other.events.GetEvent(GetEventRequest(bus=bus, event_id=recorded.event_id))
    projected = await other.projections.GetProjection(GetProjectionRequest(bus=bus, subject="order/1", min_sequence_number=minimum))
    again = await other.events.PublishEvent(PublishEventRequest(bus=bus, envelope=envelope))

    assert [event.sequence_number for event in listed.envelopes] == [1, 2]
    assert read.envelope == recorded == again.envelope
    assert projected.projection.facts[0].source_event.event_id == recorded.event_id


async def test_both_servers_have_one_projection(two_servers: tuple[World, World, str]) -> None:
    """At one head, both servers answer the same digest of their whole state, and see the Redis they are on as durable."""
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


async def test_no_call_writes_to_a_bus_with_a_bad_name(world: World) -> None:
    """A bus name that no bus can have is INVALID_ARGUMENT on every service."""
    for call in (
        world.events.GetEvent(GetEventRequest(bus="No_Bus", sequence_number=1)),
        world.projections.GetStatus(GetStatusRequest(bus="x" * 64)),
        world.rule_sets.GetRuleSet(GetRuleSetRequest(bus="\x00", policy_id="x")),
    ):
        heard = await refusal(call)
        assert (heard.code, heard.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["bus"])


async def test_proposal_without_a_producer_is_an_agents(world: World) -> None:
    """A proposal that names no producer is recorded as an agent's, since nobody else may propose."""
    sent = proposal("order/1")
    sent.ClearField("producer")

    decision = await world.propose(sent)

    recorded = (await world.events.GetEvent(GetEventRequest(event_id=decision.decision.proposal_id))).envelope
    assert recorded.producer.type == common_pb2.PRODUCER_TYPE_AGENT


async def test_every_command_is_answered_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that fails while a batch is prepared is told to the commands that wait, and not to those answered before."""
    sequencer = await world.buses.get("")
    known, unknown, lost = some_uuid(), some_uuid(), some_uuid()
    await world.publish(fact("order/1", "order.status", "paid", event_id=known))
    heard: list[tuple[str, str]] = []

    async def find(event_ids: list[str], now_ms: int) -> dict[str, IdEntry]:
        if lost in event_ids:
            raise LogUnavailableError("cannot reach Redis")
        return {}

    monkeypatch.setattr(sequencer.log, "find", find)

    def submit(name: str, envelope: Envelope) -> None:
        def done(result: Completed | ServiceError) -> None:
            heard.append((name, ErrorReason.Name(result.reason) if isinstance(result, ServiceError) else "OK"))

        chosen = admit(envelope, "default", PUBLISHABLE)
        sequencer.submit(PublishEvent(envelope), done, envelope.event_id if chosen else "")

    submit("repeated", fact("order/1", "order.status", "paid", event_id=known))
    submit("of unknown cause", fact("order/1", "order.status", "sent", causation_id=unknown))
    submit("unlucky", fact("order/1", "order.status", "sent", causation_id=lost))
    await refusal(world.publish(fact("order/1", "order.status", "sent", causation_id=lost)))

    assert heard == [
        ("repeated", "OK"),
        ("of unknown cause", "ERROR_REASON_EVENT_NOT_FOUND"),
        ("unlucky", "ERROR_REASON_LOG_UNAVAILABLE"),
    ]


async def test_timer_that_may_not_be_written_does_not_spin(governed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer that is due while the clock forbids writing waits; the sequencer does not run in circles until it may."""
    await governed.approve()
    sequencer = await governed.buses.get("")
    rounds = 0
    wait_for_work = sequencer._wait_for_work

    async def counting() -> None:
        nonlocal rounds
        rounds += 1
        await wait_for_work()

    monkeypatch.setattr(sequencer, "_wait_for_work", counting)
    governed.clock.now_ms += 120_000
    sequencer.replica.clock.observe(0, 10_000, 10_000)
    sequencer._gathering.wake()
    await asyncio.sleep(0.1)

    assert rounds < 20
