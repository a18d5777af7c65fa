"""Streams of work on two servers that share a Redis; the first has a front where one is built."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from gavel.v1.decision_pb2 import OUTCOME_NEEDS_HUMAN_REVIEW
from gavel.v1.work_service_pb2 import (
    WORK_QUEUE_DECISIONS,
    WORK_QUEUE_EXECUTIONS,
    WORK_QUEUE_REQUESTS,
    WORK_QUEUE_UNSPECIFIED,
    AcknowledgeWork,
    ConsumeRequest,
    OpenConsumer,
    ParkWork,
    RejectWork,
    WorkItem,
)
from gavel_client import GavelClient
from gavel_client.envelopes import new_event_id, observation_envelope, tool_call_envelope, tool_result_envelope
from gavel_client.rpc.errors import GavelError
from gavel_server.errors import RETRY_AFTER_MS_DEFAULT
from gavel_server.work.limits import NOT_HELD_MAX

from tests.e2e.work.consumer import consume
from tests.e2e.world import AGENT, DEPOT, approve, poll, proposal

Clients = tuple[GavelClient, GavelClient]


async def parked_of(client: GavelClient, group: str = "executors") -> list[tuple[str, int, str]]:
    """Return the parked decisions of a group: item, deliveries and reason of each."""
    response = await client.list_parked(WORK_QUEUE_DECISIONS, group)
    return [(item.item_id, item.deliveries, item.reason) for item in response.items]


async def await_parked(client: GavelClient, count: int, group: str = "executors") -> list[tuple[str, int, str]]:
    """Return the parked decisions of a group once there are `count`."""

    async def found() -> list[tuple[str, int, str]] | None:
        parked = await parked_of(client, group)
        return parked if len(parked) == count else None

    return await poll(found)


@pytest.mark.parametrize("server", [0, 1])
async def test_items_arrive_as_recorded(clients: Clients, server: int) -> None:
    """A stream delivers approved decisions as the log has them, those before it was opened and those after, through front and without."""
    client = clients[server]
    first = await approve(client, "parcel/1")
    async with consume(client) as consumer:
        item = await consumer.next()
        assert (first, str(first.sequence_number), 1) == (item.envelope, item.item_id, item.delivery)
        second = await approve(clients[1 - server], "parcel/2")
        assert second == (await consumer.next()).envelope


async def test_each_item_goes_to_one_consumer_of_each_group(clients: Clients) -> None:
    """Consumers of a group on two servers share its items, each takes at most its limit, and another group gets all of them."""
    decisions = [(await approve(clients[0], f"parcel/{number}")).event_id for number in range(6)]
    async with (
        consume(clients[0], in_flight_max=3) as one,
        consume(clients[1], in_flight_max=3) as two,
        consume(clients[1], "others") as other,
    ):
        shared = [item.envelope.event_id for item in (*await one.take(3), *await two.take(3))]
        assert sorted(decisions) == sorted(shared)
        assert decisions == [item.envelope.event_id for item in await other.take(6)]


async def test_the_limit_in_flight_holds_and_moves_on(clients: Clients) -> None:
    """A consumer gets no further item until it settles one."""
    for number in range(3):
        await approve(clients[0], f"parcel/{number}")
    async with consume(clients[0], in_flight_max=1) as consumer:
        subjects = []
        for _ in range(3):
            item = await consumer.next()
            subjects.append(item.envelope.subject)
            status = await clients[0].list_consumers()
            assert [1] == [group.pending for group in status.consumers if group.group == "executors"]
            consumer.acknowledge(item)
        assert ["parcel/0", "parcel/1", "parcel/2"] == subjects


async def test_a_broken_stream_gives_back_its_items_at_once(clients: Clients) -> None:
    """Unsettled items of a broken stream go to another consumer, also on another server, and count one more delivery."""
    decision = (await approve(clients[0], "parcel/1")).event_id
    async with consume(clients[0], in_flight_max=2) as first:
        assert decision == (await first.next()).envelope.event_id
    later = (await approve(clients[0], "parcel/2")).event_id
    async with consume(clients[1]) as second:
        assert {decision: 2, later: 1} == {item.envelope.event_id: item.delivery for item in await second.take(2)}


@pytest.mark.long
async def test_a_silent_consumer_loses_its_items(clients: Clients) -> None:
    """A consumer that promises heartbeats and sends none loses its items and, until it opens another, its stream."""
    approval = await approve(clients[0], "parcel/1")
    async with consume(clients[0], silence_ms_max=1_000) as silent:
        assert approval == (await silent.next()).envelope
        async with consume(clients[1], silence_ms_max=5_000) as lively:
            item = await lively.next()
            assert (approval, 2) == (item.envelope, item.delivery)
            with pytest.raises(GavelError) as refused:
                await silent.next()
            assert ("CONSUMER_SILENT", RETRY_AFTER_MS_DEFAULT) == (refused.value.reason, refused.value.retry_after_ms)
            for _ in range(12):
                lively.send_heartbeat()
                await asyncio.sleep(0.5)
            lively.acknowledge(item)

            async def settled() -> bool:
                return not (await clients[1].list_consumers()).consumers[0].pending

            await poll(settled)


async def test_a_rejected_item_comes_again_and_is_parked_in_the_end(clients: Clients) -> None:
    """Deliveries are counted over rejections; the last one allowed parks the item with the consumer's reason."""
    await approve(clients[0], "parcel/1")
    async with consume(clients[0], deliveries_max=3) as consumer:
        for delivery in (1, 2, 3):
            item = await consumer.next()
            assert delivery == item.delivery
            consumer.reject(item, reason=f"no {delivery}")
        assert [(item.item_id, 3, "no 3")] == await await_parked(clients[1], 1)


async def test_items_of_broken_streams_are_parked_in_the_end(clients: Clients) -> None:
    """An item whose every consumer breaks is parked after deliveries_max deliveries: it may be what breaks them."""
    decision = await approve(clients[0], "parcel/1")
    for delivery in (1, 2):
        async with consume(clients[0], deliveries_max=2) as consumer:
            assert delivery == (await consumer.next()).delivery
    async with consume(clients[1], deliveries_max=2):
        assert [(str(decision.sequence_number), 2, "deliveries_max")] == await await_parked(clients[0], 1)


async def test_parked_items_are_retried_or_discarded(clients: Clients) -> None:
    """A consumer parks items; an operator lists them by pages, retries some, and discards others. GetStatus counts them."""
    for number in range(3):
        await approve(clients[0], f"parcel/{number}")
    async with consume(clients[0]) as consumer:
        items = await consumer.take(3)
        for item in items:
            consumer.park(item, f"parked {item.envelope.subject}")
        await await_parked(clients[1], 3)
        page = await clients[1].list_parked(WORK_QUEUE_DECISIONS, "executors", page_size=2)
        rest = await clients[1].list_parked(WORK_QUEUE_DECISIONS, "executors", page_size=2, page_token=page.next_page_token)
        parked_items = [*page.items, *rest.items]
        assert ([item.envelope.event_id for item in items], "") == ([one.event_id for one in parked_items], rest.next_page_token)
        assert ["parked parcel/0", "parked parcel/1", "parked parcel/2"] == [one.reason for one in parked_items]
        assert all(one.parked_at.ToMilliseconds() > 1_600_000_000_000 for one in parked_items)
        consumers = (await clients[1].get_status()).consumers
        assert [3] == [group.parked for group in consumers if group.group == "executors"]
        assert 1 == (await clients[1].discard_parked(WORK_QUEUE_DECISIONS, "executors", [items[0].item_id])).discarded
        assert 1 == (await clients[1].retry_parked(WORK_QUEUE_DECISIONS, "executors", item_ids=[items[1].item_id])).retried
        again = await consumer.next()
        assert (items[1].item_id, 1) == (again.item_id, again.delivery)
        assert 1 == (await clients[1].retry_parked(WORK_QUEUE_DECISIONS, "executors")).retried
        assert items[2].item_id == (await consumer.next()).item_id
        assert [] == await parked_of(clients[0])


async def test_a_consumer_gets_only_the_actions_it_names(clients: Clients) -> None:
    """Items of other actions stay for the other consumers of the group, wherever they are and whenever they come."""
    decision = await approve(clients[0], "parcel/1")
    async with consume(clients[0], action_types=["other.action"]) as narrow:
        async with consume(clients[1], action_types=["parcel.send"]) as second:
            item = await second.next()
            assert (decision.event_id, 1) == (item.envelope.event_id, item.delivery)
        async with consume(clients[0]) as wide:
            assert (decision.event_id, 2) == ((again := await wide.next()).envelope.event_id, again.delivery)
        assert not await narrow.has_next(0.3)


async def test_requests_for_facts_and_people(clients: Clients) -> None:
    """The queue of requests delivers what asks for facts and for people, by kind."""
    call = tool_call_envelope("parcel/2", AGENT, tool_name=DEPOT.id, arguments={}, trace_id="run-1")
    result = tool_result_envelope(call, result={"status": "ready"})
    observation = observation_envelope(
        "parcel/2", AGENT, source_tool=DEPOT.id, evidence=result, extracted_fields={"parcel.status": "ready"}, trace_id="run-1"
    )
    recorded = [(await clients[0].publish_event(event)).envelope for event in (call, result, observation)]
    unknown = proposal(recorded[-1])
    unknown.trace_id = "run-1"
    decision = (await clients[0].submit_proposal(unknown)).decision
    assert "INSUFFICIENT_EVIDENCE_TIER" == decision.decision.reason_code
    async with (
        consume(clients[1], "collectors", WORK_QUEUE_REQUESTS, kinds=["FactCollectionRequested"]) as collector,
        consume(clients[0], "people", WORK_QUEUE_REQUESTS, kinds=["NeedsHumanReview"]) as people,
    ):
        item = await collector.next()
        assert decision.event_id == item.envelope.agent_diagnostic.fact_collection.decision_id
        while decision.decision.outcome != OUTCOME_NEEDS_HUMAN_REVIEW:
            unknown.event_id = new_event_id()
            decision = (await clients[0].submit_proposal(unknown)).decision
        assert "NeedsHumanReview" == (await people.next()).envelope.agent_diagnostic.kind


@pytest.mark.parametrize("server", [0, 1])
async def test_settlements_of_items_that_are_not_held(clients: Clients, server: int) -> None:
    """A settlement of an item that the consumer does not hold has no effect, and the consumer is told; its stream goes on."""
    held, other = await approve(clients[0], "parcel/1"), await approve(clients[0], "parcel/2")
    async with consume(clients[server], in_flight_max=1) as consumer, consume(clients[1], in_flight_max=1) as second:
        item, of_another = await consumer.next(), await second.next()
        assert {held.event_id, other.event_id} == {item.envelope.event_id, of_another.envelope.event_id}
        unknown = WorkItem(item_id="999999")
        consumer.acknowledge(unknown)
        consumer.reject(of_another)
        consumer.park(of_another)
        assert ["999999", of_another.item_id, of_another.item_id] == [await consumer.next_not_held() for _ in range(3)]
        consumer.acknowledge(item)
        consumer.acknowledge(item)
        assert item.item_id == await consumer.next_not_held()
        assert [] == await parked_of(clients[0])
        later = await approve(clients[0], "parcel/3")
        assert later == (await consumer.next()).envelope


async def test_a_consumer_that_reads_no_answers(clients: Clients) -> None:
    """A consumer that settles what it does not hold, and reads nothing, delays no other one; it gets all answers when it reads."""
    count = 20 * NOT_HELD_MAX
    unknown = [str(number) for number in range(1_000_000, 1_000_000 + count)]
    async with consume(clients[0], in_flight_max=1) as stalled, consume(clients[0], in_flight_max=1) as second:
        for number in unknown:
            stalled.acknowledge(WorkItem(item_id=number))
        first, other = await approve(clients[0], "parcel/1"), await approve(clients[0], "parcel/2")
        assert (await second.next()).envelope.event_id in {first.event_id, other.event_id}
        responses = [await stalled.next_response() for _ in range(count + 1)]  # one of them is the other item
        assert unknown == [response.not_held.item_id for response in responses if response.HasField("not_held")]


async def test_half_closing_ends_the_stream_after_its_settlements(clients: Clients) -> None:
    """A consumer that sends no more gets the end of the stream, and what it sent before is settled."""
    await approve(clients[0], "parcel/1")
    async with consume(clients[0]) as consumer:
        consumer.acknowledge(await consumer.next())
        consumer.send(None)
        with pytest.raises(StopAsyncIteration):
            await consumer.next()
    groups = (await clients[1].list_consumers()).consumers
    assert [(0, 0)] == [(group.lag, group.pending) for group in groups if group.group == "executors"]


@pytest.mark.parametrize("server", [0, 1])
@pytest.mark.parametrize(
    ("opening", "fields"),
    [
        (ConsumeRequest(), ["open"]),
        (ConsumeRequest(acknowledge=AcknowledgeWork(item_id="1")), ["open"]),
        (ConsumeRequest(open=OpenConsumer(queue=WORK_QUEUE_UNSPECIFIED, group="x")), ["open.queue"]),
        (ConsumeRequest(open=OpenConsumer(queue=WORK_QUEUE_DECISIONS, group="a b")), ["open.group"]),
        (ConsumeRequest(open=OpenConsumer(queue=WORK_QUEUE_DECISIONS)), ["open.group"]),
        (ConsumeRequest(open=OpenConsumer(queue=WORK_QUEUE_DECISIONS, group="x", in_flight_max=1001)), ["open.in_flight_max"]),
        (ConsumeRequest(open=OpenConsumer(queue=WORK_QUEUE_DECISIONS, group="x", deliveries_max=-1)), ["open.deliveries_max"]),
        (ConsumeRequest(open=OpenConsumer(queue=WORK_QUEUE_DECISIONS, group="x", kinds=["K"])), ["open.kinds"]),
        (ConsumeRequest(open=OpenConsumer(queue=WORK_QUEUE_EXECUTIONS, group="x", action_types=["a"])), ["open.action_types"]),
        (ConsumeRequest(open=OpenConsumer(queue=WORK_QUEUE_DECISIONS, group="x", action_types=["a"] * 65)), ["open.action_types"]),
    ],
)
async def test_wrong_openings(clients: Clients, server: int, opening: ConsumeRequest, fields: list[str]) -> None:
    """A stream that is not opened as the contract says is refused, and the error names the field."""
    client = clients[server]
    if opening.HasField("open"):
        opening.open.bus = client.bus

    async def requests() -> AsyncIterator[ConsumeRequest]:
        yield opening

    with pytest.raises(GavelError) as caught:
        await anext(client.consume(requests()))
    assert (grpc.StatusCode.INVALID_ARGUMENT, fields) == (caught.value.code, [violation.field for violation in caught.value.violations])


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ConsumeRequest(), "action"),
        (ConsumeRequest(open=OpenConsumer(queue=WORK_QUEUE_DECISIONS, group="x")), "action"),
        (ConsumeRequest(acknowledge=AcknowledgeWork(item_id="-1")), "acknowledge.item_id"),
        (ConsumeRequest(reject=RejectWork(item_id="1", delay_ms=86_400_001)), "reject.delay_ms"),
        (ConsumeRequest(reject=RejectWork(item_id="1", reason="x" * 1025)), "reject.reason"),
        (ConsumeRequest(park=ParkWork(item_id="")), "park.item_id"),
    ],
)
async def test_wrong_settlements(clients: Clients, request_: ConsumeRequest, field: str) -> None:
    """A malformed settlement ends the stream with an error that names the field."""
    async with consume(clients[0]) as consumer:
        consumer.send(request_)
        with pytest.raises(GavelError) as caught:
            await consumer.next()
    assert (grpc.StatusCode.INVALID_ARGUMENT, [field]) == (caught.value.code, [violation.field for violation in caught.value.violations])


async def test_a_bus_that_does_not_exist(pair: object, clients: Clients) -> None:
    """A stream opens no bus."""
    with pytest.raises(GavelError) as caught:
        await clients[1].list_consumers(bus="no-such-bus")
    assert "BUS_NOT_FOUND" == caught.value.reason
