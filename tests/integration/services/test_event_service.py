"""EventService over real gRPC: publishing, reading single events, and listing."""

from __future__ import annotations

import grpc
import pytest
from gavel.v1 import common_pb2
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, GraphTransition
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import (
    BatchPublishEventsRequest,
    GetEventRequest,
    ListEventsRequest,
    PublishEventRequest,
)
from gavel_rules.events.hash_chain import chain
from google.protobuf.timestamp_pb2 import Timestamp

from tests.integration.services.world import (
    AGENT,
    START_MS,
    World,
    fact,
    observation,
    raw,
    refusal,
    refusal_of,
    some_uuid,
)

NONSENSE = "nonsense"
EMPTY = "W10="


async def test_publish_returns_the_recorded_event(world: World) -> None:
    """A published event is returned with the fields that the server fills in, exactly as GetEvent returns it."""
    envelope = fact("order/1", "order.status", "paid")

    event = await world.publish(envelope)

    assert event.sequence_number == 2
    assert event.schema_version == "gavel.v1"
    assert event.event_category == common_pb2.EVENT_CATEGORY_FACT_EVENT
    assert event.bus == "default"
    assert event.recorded_at.ToMilliseconds() == START_MS
    assert event.occurred_at == event.recorded_at
    assert event.trace_id == event.event_id
    assert (await world.events.GetEvent(GetEventRequest(sequence_number=2))).envelope == event
    assert (await world.events.GetEvent(GetEventRequest(event_id=event.event_id))).envelope == event


async def test_responses_have_the_chain_hash_of_the_stored_bytes(world: World) -> None:
    """The chain hash of a response is the hash of the previous one and the stored bytes, which hold the rest of the response."""
    first = await world.publish(fact("order/1", "order.status", "paid"))
    second = await world.publish(fact("order/1", "order.status", "sent"))
    log = (await world.buses.open("")).log
    stored = (await log.read_many([3]))[3]

    assert second.chain_hash == chain(first.chain_hash, stored.envelope)
    second.ClearField("chain_hash")
    assert Envelope.FromString(stored.envelope) == second


async def test_repeated_event_returns_the_recorded_one(world: World) -> None:
    """The same event_id with the same content is answered with the recorded event, and appends nothing."""
    envelope = fact("order/1", "order.status", "paid", event_id=some_uuid())

    first = await world.publish(envelope)
    repetition = await world.publish(envelope)

    assert repetition == first
    assert await world.head() == 2


async def test_reusing_an_event_id_is_refused(world: World) -> None:
    """The same event_id with other content is ALREADY_EXISTS / EVENT_ID_REUSED, and appends nothing."""
    event_id = some_uuid()
    await world.publish(fact("order/1", "order.status", "paid", event_id=event_id))

    problem = await refusal(world.publish(fact("order/1", "order.status", "sent", event_id=event_id)))

    assert (problem.code, problem.reason) == (grpc.StatusCode.ALREADY_EXISTS, "EVENT_ID_REUSED")
    assert await world.head() == 2


async def test_unknown_cause_is_not_found(world: World) -> None:
    """An event whose causation_id is not in the bus is NOT_FOUND / EVENT_NOT_FOUND, and is not appended."""
    problem = await refusal(world.publish(fact("order/1", "order.status", "paid", causation_id=some_uuid())))

    assert (problem.code, problem.reason) == (grpc.StatusCode.NOT_FOUND, "EVENT_NOT_FOUND")
    assert await world.head() == 1


async def test_batch_keeps_order_and_answers_each_item(world: World) -> None:
    """The results of a batch are in its order, one per item: recorded, repeated, reused, malformed, forged."""
    event_id = some_uuid()
    batch = [
        fact("order/1", "order.status", "paid", event_id=event_id),
        fact("order/1", "order.status", "paid", event_id=event_id),
        fact("order/1", "order.status", "sent", event_id=event_id),
        fact("nobody", "order.status", "paid"),
        raw(subject="order/1", producer={"type": common_pb2.PRODUCER_TYPE_AGENT, "id": "a"}, fact={"key": "a"}),
        fact("order/2", "order.status", "sent"),
    ]

    results = (await world.events.BatchPublishEvents(BatchPublishEventsRequest(envelopes=batch))).results

    assert [result.WhichOneof("result") for result in results] == ["envelope", "envelope", "error", "error", "error", "envelope"]
    assert results[0].envelope == results[1].envelope
    assert [refusal_of(result.error).reason for result in results[2:5]] == ["EVENT_ID_REUSED", "INVALID_REQUEST", "CATEGORY_NOT_ALLOWED"]
    assert [results[0].envelope.sequence_number, results[5].envelope.sequence_number] == [2, 3]
    assert await world.head() == 3


async def test_batch_of_500_and_no_more(world: World) -> None:
    """A batch takes 1 to 500 items; others are refused whole with the field named."""
    full = BatchPublishEventsRequest(envelopes=[fact(f"order/{number}", "order.status", "paid") for number in range(500)])
    results = (await world.events.BatchPublishEvents(full)).results
    assert [result.envelope.sequence_number for result in results] == list(range(2, 502))

    full.envelopes.append(fact("order/500", "order.status", "paid"))
    for request in (BatchPublishEventsRequest(), full):
        problem = await refusal(world.events.BatchPublishEvents(request))
        assert (problem.code, problem.reason, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", ["envelopes"])
    assert await world.head() == 501


async def test_batch_over_4_mib_is_refused(world: World) -> None:
    """A batch request of more than 4 MiB is INVALID_ARGUMENT and appends nothing, though each item is small enough."""
    large = ["x" * 60_000 for _ in range(15)]
    request = BatchPublishEventsRequest(envelopes=[fact(f"order/{number}", "order.notes", large) for number in range(5)])

    problem = await refusal(world.events.BatchPublishEvents(request))

    assert (problem.code, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["request"])
    assert await world.head() == 1


@pytest.mark.parametrize(
    ("request_", "code", "fields"),
    [
        (GetEventRequest(), grpc.StatusCode.INVALID_ARGUMENT, ["key"]),
        (GetEventRequest(event_id="x"), grpc.StatusCode.INVALID_ARGUMENT, ["event_id"]),
        (GetEventRequest(sequence_number=0), grpc.StatusCode.INVALID_ARGUMENT, ["sequence_number"]),
        (GetEventRequest(sequence_number=99), grpc.StatusCode.NOT_FOUND, []),
        (GetEventRequest(event_id="00000000-0000-4000-8000-000000000000"), grpc.StatusCode.NOT_FOUND, []),
    ],
)
async def test_invalid_get_event(world: World, request_: GetEventRequest, code: grpc.StatusCode, fields: list[str]) -> None:
    """A key that is malformed is INVALID_ARGUMENT, one that names nothing NOT_FOUND."""
    problem = await refusal(world.events.GetEvent(request_))

    assert (problem.code, problem.fields) == (code, fields)


async def test_live_decision_is_found_beyond_the_window(world_with_rules: World) -> None:
    """The event of a live decision is found by its id after the idempotency window."""
    decision = await world_with_rules.approve()
    attempt = await world_with_rules.begin(decision, lease_ms=86_400_000)
    assert attempt.WhichOneof("result") == "started"
    world_with_rules.clock.now_ms += 86_000_000
    (await world_with_rules.buses.open("")).recent_events._locations.clear()

    assert (await world_with_rules.events.GetEvent(GetEventRequest(event_id=decision.event_id))).envelope == decision


async def test_buses_share_nothing(world: World) -> None:
    """An event of one bus is not on another; an event_id of one is free on another."""
    event_id = some_uuid()
    await world.publish(fact("order/1", "order.status", "paid", event_id=event_id))

    request = PublishEventRequest(bus="other", envelope=fact("order/1", "order.status", "sent", event_id=event_id))
    event = (await world.events.PublishEvent(request)).envelope

    assert (event.bus, event.sequence_number) == ("other", 2)
    assert await world.head() == 2


async def test_a_transition_names_events_of_the_bus(world: World) -> None:
    """The events that a GraphTransition names must be in the log, or be published by an earlier item of its batch that is recorded."""

    def transition(*event_ids: str) -> Envelope:
        step = GraphTransition(graph_node="triage", input_event_ids=event_ids[:1], output_event_ids=event_ids[1:])
        return Envelope(
            subject="order/1", producer=AGENT, agent_diagnostic=AgentDiagnostic(kind="GraphTransitioned", graph_transition=step)
        )

    known = await world.publish(fact("order/1", "order.status", "paid"))
    unknown = some_uuid()
    assert (await world.publish(transition(known.event_id))).sequence_number == 3
    problem = await refusal(world.publish(transition(known.event_id, unknown)))
    assert (grpc.StatusCode.NOT_FOUND, "EVENT_NOT_FOUND") == (problem.code, problem.reason)
    assert unknown in problem.message

    first = fact("order/1", "order.status", "sent", event_id=some_uuid())
    refused = fact("order/1", "order.status", "lost", event_id=some_uuid(), causation_id=unknown)
    step = transition(known.event_id, first.event_id)
    step.event_id = some_uuid()
    effect = fact("order/1", "order.status", "closed", causation_id=step.event_id)
    batch = BatchPublishEventsRequest(envelopes=[first, refused, step, effect, transition(refused.event_id)])
    results = (await world.events.BatchPublishEvents(batch)).results
    assert [True, False, True, True, False] == [result.HasField("envelope") for result in results]


# Listing


async def _list_events(world: World, **fields: object) -> list[int]:
    """Return the sequence numbers of a whole listing, page by page."""
    numbers: list[int] = []
    token = ""
    while True:
        page = await world.events.ListEvents(ListEventsRequest(page_token=token, **fields))  # type: ignore[arg-type]
        numbers.extend(envelope.sequence_number for envelope in page.envelopes)
        token = page.next_page_token
        if not token:
            return numbers


async def test_list_filters(world: World) -> None:
    """All filters must hold; pages of any size give each event once, in order."""
    for number in range(1, 31):
        await world.publish(fact(f"order/{number % 3}", "order.status", "paid", trace_id=f"trace-{number % 2}"))
    await world.publish(observation("order/0", "order.status", "paid", trace_id="trace-0"))

    assert await _list_events(world) == list(range(1, 33))
    for page_size in (1, 2, 7, 1000):
        assert await _list_events(world, page_size=page_size, subject="order/0") == [*range(4, 32, 3), 32]
    assert await _list_events(world, page_size=3, trace_id="trace-1", from_sequence_number=10, to_sequence_number=20) == list(
        range(10, 21, 2)
    )
    assert await _list_events(world, categories=[common_pb2.EVENT_CATEGORY_OBSERVATION_EVENT]) == [32]
    assert await _list_events(world, subject="order/0", trace_id="trace-1", page_size=2) == [4, 10, 16, 22, 28]
    assert await _list_events(world, subject="order/") == []


async def test_listing_ends_at_the_head_of_its_first_page(world: World) -> None:
    """Events that are appended after the first page are not in the following pages."""
    for _ in range(4):
        await world.publish(fact("order/1", "order.status", "paid"))
    first = await world.events.ListEvents(ListEventsRequest(page_size=3))
    await world.publish(fact("order/1", "order.status", "paid"))

    second = await world.events.ListEvents(ListEventsRequest(page_size=3, page_token=first.next_page_token))

    assert [envelope.sequence_number for envelope in second.envelopes] == [4, 5]
    assert second.next_page_token == ""


async def test_list_scans_a_bounded_number_of_events(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page with a selective filter ends after SCAN_EVENTS_MAX events with a token, and the next page continues there."""
    monkeypatch.setattr("gavel_server.services.event.SCAN_EVENTS_MAX", 200)
    await world.events.BatchPublishEvents(
        BatchPublishEventsRequest(envelopes=[fact(f"order/{number}", "order.status", "paid") for number in range(450)])
    )

    first = await world.events.ListEvents(ListEventsRequest(subject="order/449"))

    assert list(first.envelopes) == []
    assert first.next_page_token != ""
    assert await _list_events(world, subject="order/449") == [451]


async def test_pages_are_bounded_in_bytes(world: World) -> None:
    """A page of large events ends before it outgrows the clients' limit, and no event is lost."""
    for _ in range(8):
        await world.publish(fact("order/1", "order.notes", ["x" * 60_000] * 8))

    page = await world.events.ListEvents(ListEventsRequest())

    assert page.ByteSize() < 4 * 1024 * 1024
    assert page.next_page_token != ""
    assert await _list_events(world) == list(range(1, 10))


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (ListEventsRequest(page_size=-1), ["page_size"]),
        (ListEventsRequest(page_size=1001), ["page_size"]),
        (ListEventsRequest(page_token=NONSENSE), ["page_token"]),
        (ListEventsRequest(page_token=EMPTY), ["page_token"]),
        (ListEventsRequest(page_token="x" * 2000), ["page_token"]),
        (ListEventsRequest(from_sequence_number=-1, to_sequence_number=-2), ["from_sequence_number", "to_sequence_number"]),
        (ListEventsRequest(from_sequence_number=3, to_sequence_number=2), ["to_sequence_number"]),
        (ListEventsRequest(categories=[common_pb2.EVENT_CATEGORY_UNSPECIFIED]), ["categories[0]"]),
        (ListEventsRequest(categories=[1, 99]), ["categories[1]"]),  # type: ignore[list-item]  # what a newer client may send
        (ListEventsRequest(recorded_until=Timestamp()), ["recorded_until"]),
        (ListEventsRequest(bus="No Bus"), ["bus"]),
    ],
)
async def test_invalid_list_events(world: World, request_: ListEventsRequest, fields: list[str]) -> None:
    """A malformed listing is INVALID_ARGUMENT with every wrong field named."""
    problem = await refusal(world.events.ListEvents(request_))

    assert (problem.code, problem.reason, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", fields)


async def test_token_belongs_to_its_filters(world: World) -> None:
    """A page token of one query is refused by another, so that pages of two queries are never mixed."""
    for _ in range(3):
        await world.publish(fact("order/1", "order.status", "paid"))
    token = (await world.events.ListEvents(ListEventsRequest(page_size=1))).next_page_token

    problem = await refusal(world.events.ListEvents(ListEventsRequest(page_size=1, page_token=token, subject="order/1")))

    assert problem.fields == ["page_token"]
    assert "other filters" in problem.descriptions[0]
