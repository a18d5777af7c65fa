"""EventService.SubscribeEvents over real gRPC: past and new events, filters, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from gavel.v1 import common_pb2, decision_pb2
from gavel.v1.event_service_pb2 import Checkpoint, GetEventRequest, SubscribeEventsRequest
from gavel_server.log import Head, Record
from gavel_server.process.polling import wait_until
from gavel_server.services.event import READS_MAX

from tests.integration.services.world import (
    World,
    fact,
    proposal,
    refusal,
)

WAIT_MS_MAX = 60_000


async def _take(world: World, count: int, **fields: object) -> list[int | tuple[str, int]]:
    """Return the first items of a subscription: sequence numbers of events, or ("checkpoint", number)."""
    items: list[int | tuple[str, int]] = []
    call = world.events.SubscribeEvents(SubscribeEventsRequest(**fields))  # type: ignore[arg-type]
    async for response in call:
        if response.HasField("envelope"):
            items.append(response.envelope.sequence_number)
        else:
            items.append(("checkpoint", response.checkpoint.sequence_number))
        if len(items) == count:
            break
    call.cancel()
    return items


async def test_subscription_yields_past_and_new_events(world: World) -> None:
    """Events committed before, during and after the start of a subscription are sent once, in order."""

    async def write() -> None:
        for _ in range(50):
            await world.publish(fact("order/1", "order.status", "paid"))

    await write()
    reading = asyncio.create_task(_take(world, 149, from_sequence_number=3))
    await asyncio.gather(write(), write())

    assert await reading == list(range(3, 152))


async def test_many_subscriptions_read_new_events_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that have reached the head get new events without a read of the log for each of them."""
    first = (await world.publish(fact("order/1", "order.status", "paid"))).sequence_number
    log = (await world.buses.open("")).log
    reads = 0
    read = log.read

    async def count_reads(*arguments: int) -> list[Record]:
        nonlocal reads
        reads += 1
        return await read(*arguments)

    calls = [world.events.SubscribeEvents(SubscribeEventsRequest(from_sequence_number=first)) for _ in range(20)]
    messages = [aiter(call) for call in calls]
    assert {first} == {(await anext(one)).envelope.sequence_number for one in messages}
    monkeypatch.setattr(log, "read", count_reads)
    numbers = [(await world.publish(fact("order/1", "order.status", f"paid {number}"))).sequence_number for number in range(30)]
    for one in messages:
        assert numbers == [(await anext(one)).envelope.sequence_number for _ in numbers]
    assert 0 == reads
    for call in calls:
        call.cancel()


async def test_subscription_filters_and_checkpoints(world: World) -> None:
    """Events that do not pass are not sent; a checkpoint says how far the stream has come instead."""
    await world.publish(fact("order/1", "order.status", "paid"))
    await world.publish(fact("customer/1", "customer.name", "x"))
    call = world.events.SubscribeEvents(SubscribeEventsRequest(subject_prefix="order/", from_sequence_number=2))
    messages = aiter(call)

    assert (await anext(messages)).envelope.sequence_number == 2
    assert (await anext(messages)).checkpoint.sequence_number == 3
    await world.publish(fact("customer/1", "customer.name", "y"))
    assert (await anext(messages)).checkpoint.sequence_number == 4
    await world.publish(fact("order/2", "order.status", "paid"))
    assert (await anext(messages)).envelope.sequence_number == 5
    call.cancel()


async def test_a_subscription_continues_only_after_an_event_of_the_log(world: World) -> None:
    """The last event that a caller has read, of which a checkpoint has the hash too, must be in the log, whatever the filters are."""
    event = await world.publish(fact("order/1", "order.status", "paid"))
    await world.publish(fact("customer/1", "customer.name", "x"))
    call = world.events.SubscribeEvents(SubscribeEventsRequest(subject_prefix="order/", from_sequence_number=3))
    checkpoint = (await anext(aiter(call))).checkpoint
    call.cancel()
    other = Checkpoint(sequence_number=2, chain_hash=event.chain_hash)
    assert [2, 3] == await _take(world, 2, from_sequence_number=2, last_read=checkpoint)
    assert [3] == await _take(world, 1, from_sequence_number=3, last_read=other)

    swapped = (Checkpoint(sequence_number=3, chain_hash=event.chain_hash), Checkpoint(sequence_number=4, chain_hash=checkpoint.chain_hash))
    for last_read in swapped:
        for filters in ({}, {"subject_prefix": "nothing/"}):
            refused = await refusal(_take(world, 1, last_read=last_read, **filters))
            assert (grpc.StatusCode.FAILED_PRECONDITION, "HISTORY_REPLACED") == (refused.code, refused.reason)
            assert f"has lost event {last_read.sequence_number} (" in refused.message
    for invalid in (Checkpoint(), Checkpoint(sequence_number=3), Checkpoint(chain_hash=checkpoint.chain_hash)):
        assert "INVALID_REQUEST" == (await refusal(_take(world, 1, last_read=invalid))).reason


async def test_a_trimmed_event_is_not_a_lost_one(world: World) -> None:
    """A reader goes on at the first event that the log still has; one that is farther back hears that the archive is missing."""
    events = [await world.publish(fact(f"order/{number}", "order.status", "paid")) for number in range(4)]
    positions = [Checkpoint(sequence_number=event.sequence_number, chain_hash=event.chain_hash) for event in events]
    await (await world.buses.open("")).log.trim(events[2].sequence_number)
    assert [4, 5] == await _take(world, 2, from_sequence_number=4, last_read=positions[1])
    refused = await refusal(_take(world, 1, from_sequence_number=4, last_read=positions[0]))
    assert (grpc.StatusCode.NOT_FOUND, "EVENT_NOT_FOUND") == (refused.code, refused.reason)
    other = Checkpoint(sequence_number=3, chain_hash=events[0].chain_hash)
    assert "HISTORY_REPLACED" == (await refusal(_take(world, 1, from_sequence_number=4, last_read=other))).reason
    refused = await refusal(world.events.GetEvent(GetEventRequest(sequence_number=2)))
    assert (grpc.StatusCode.NOT_FOUND, "EVENT_NOT_FOUND") == (refused.code, refused.reason)
    assert "begins with event 4, after event 2; start the server with the archive" in refused.message


async def test_few_callers_look_for_their_last_event_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller occupies a place for reads while the log is read for its last event, and not while it waits for the server to read on.

    Its wait is not announced: an announcement sends the headers, which say that the caller is subscribed.
    """
    event = await world.publish(fact("order/1", "order.status", "paid"))
    sequencer = await world.buses.open("")
    read_many, may_read, has_read_on = sequencer.log.read_many, asyncio.Event(), asyncio.Event()
    reads = 0

    async def count_reads(numbers: Sequence[int]) -> dict[int, Record]:
        nonlocal reads
        reads += 1
        await may_read.wait()
        return await read_many(numbers)

    monkeypatch.setattr(sequencer.log, "read_many", count_reads)
    monkeypatch.setattr(sequencer, "read_on", has_read_on.wait)
    announced: list[str] = []

    async def announce_wait() -> None:
        announced.append("")

    monkeypatch.setattr("gavel_server.fairness.places.announce_wait", announce_wait)
    lost = Checkpoint(sequence_number=event.sequence_number, chain_hash=bytes(32))
    readers = [asyncio.create_task(refusal(_take(world, 1, last_read=lost))) for _ in range(3 * READS_MAX)]
    assert not await wait_until(lambda: reads > READS_MAX, 200)
    assert READS_MAX == reads
    may_read.set()
    assert await wait_until(lambda: reads == len(readers), WAIT_MS_MAX)
    has_read_on.set()
    assert {"HISTORY_REPLACED"} == {(await reader).reason for reader in readers}
    assert [] == announced


async def test_a_reported_loss_is_not_accepted_yet(world: World) -> None:
    """As long as a loss that some server has reported is not accepted, the log may be restored, and a reader of lost events waits."""
    event = await world.publish(fact("order/1", "order.status", "paid"))
    log = (await world.buses.open("")).log
    await log.report_loss(Head(9, event.chain_hash))
    last_read = Checkpoint(sequence_number=9, chain_hash=event.chain_hash)
    assert "LOG_REGRESSED" == (await refusal(_take(world, 1, last_read=last_read))).reason


async def test_subscription_filters_by_action_and_outcome(world_with_rules: World) -> None:
    """Only proposals and decisions of the named action types pass, and only decisions of the named outcomes; the rest are checkpoints."""
    world = world_with_rules
    approval = await world.approve()
    await world.begin(approval)
    rejection = await world.propose(proposal("order/9", cites=[await world.publish(fact("order/9", "order.status", "cancelled"))]))
    approved, rejected = decision_pb2.OUTCOME_APPROVED, decision_pb2.OUTCOME_REJECTED
    numbers = [approval.sequence_number - 1, approval.sequence_number, rejection.sequence_number - 1, rejection.sequence_number]
    cases: tuple[tuple[list[Any], dict[str, Any]], ...] = (
        (numbers, {"action_types": ["order.nothing", approval.decision.action_type]}),
        ([approval.sequence_number], {"outcomes": [approved]}),
        ([approval.sequence_number, rejection.sequence_number], {"outcomes": [approved, rejected]}),
        ([rejection.sequence_number], {"action_types": [approval.decision.action_type], "outcomes": [rejected]}),
        ([], {"action_types": ["order.nothing"]}),
    )
    for expected, filters in cases:
        call = world.events.SubscribeEvents(SubscribeEventsRequest(**filters))
        passed = []
        async for message in call:
            if message.HasField("checkpoint") and message.checkpoint.sequence_number >= await world.head():
                break
            if message.HasField("envelope"):
                passed.append(message.envelope.sequence_number)
                if message.envelope.sequence_number == await world.head():
                    break
        call.cancel()
        assert expected == passed, filters


async def test_subscription_refuses_bad_filters(world: World) -> None:
    """Too many or malformed action types and outcomes are refused, each with its place."""
    bad: tuple[tuple[str, dict[str, Any]], ...] = (
        ("action_types", {"action_types": ["order.act"] * 65}),
        ("action_types[1]", {"action_types": ["order.act", "Order Act"]}),
        ("action_types[0]", {"action_types": ["a" * 129]}),
        ("outcomes", {"outcomes": [1] * 17}),
        ("outcomes[0]", {"outcomes": [0]}),
        ("outcomes[0]", {"outcomes": [99]}),
    )
    for field, filters in bad:
        problem = await refusal(anext(aiter(world.events.SubscribeEvents(SubscribeEventsRequest(**filters)))))
        assert [field] == problem.fields


async def test_subscription_from_beyond_the_head_waits(world: World) -> None:
    """A subscription that begins after the head sends its first event once that exists, and nothing before."""
    reading = asyncio.create_task(_take(world, 1, from_sequence_number=4))
    for _ in range(4):
        await world.publish(fact("order/1", "order.status", "paid"))

    assert await reading == [4]


async def test_subscription_ends_when_the_server_stops(world: World) -> None:
    """A subscription ends with UNAVAILABLE / SHUTTING_DOWN when the server stops, so that the client resumes elsewhere."""
    call = world.events.SubscribeEvents(SubscribeEventsRequest())

    async def drain() -> None:
        async for _ in call:
            pass

    reading = asyncio.create_task(refusal(drain()))
    await call.initial_metadata()
    await world.buses.stop()

    problem = await reading
    assert (problem.code, problem.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")


async def test_invalid_subscription(world: World) -> None:
    """A malformed subscription is INVALID_ARGUMENT, not a stream that never sends."""
    call = world.events.SubscribeEvents(SubscribeEventsRequest(from_sequence_number=-1, categories=[common_pb2.EVENT_CATEGORY_UNSPECIFIED]))

    async def drain() -> None:
        async for _ in call:
            pass

    problem = await refusal(drain())
    assert (problem.code, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["categories[0]", "from_sequence_number"])


async def test_cancelled_subscriptions_leave_no_task(world: World) -> None:
    """A subscription ends when its caller leaves: no task waits for the next event."""
    sequencer = await world.buses.open("")
    for _ in range(5):
        call = world.events.SubscribeEvents(SubscribeEventsRequest(from_sequence_number=2))
        await call.initial_metadata()
        call.cancel()
    await world.publish(fact("order/1", "order.status", "paid"))
    await world.publish(fact("order/1", "order.status", "paid"))

    assert sequencer.replica.followers == 0
