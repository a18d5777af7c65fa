"""Work queues and grants: a consumer gets the items that it may execute and no other, and the others stay for those who may."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

import grpc
import pytest
from gavel.v1.administration_service_pb2 import DeployGrantsRequest
from gavel.v1.common_pb2 import EventReference
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel.v1.work_service_pb2 import (
    WORK_QUEUE_DECISIONS,
    WORK_QUEUE_EXECUTIONS,
    WORK_QUEUE_REQUESTS,
    AcknowledgeWork,
    ConsumeRequest,
    ConsumeResponse,
    DiscardParkedRequest,
    ListConsumersRequest,
    ListParkedRequest,
    OpenConsumer,
    ParkWork,
    RejectWork,
    RetryParkedRequest,
    WorkItem,
)
from gavel.v1.work_service_pb2_grpc import WorkServiceStub
from gavel_rules.identity.principal import Principal
from gavel_server.log.work.protocol import CALLER_GROUPS_MAX, FIRST_GROUPS_MIN, GROUPS_MAX
from gavel_server.work import group as work_group
from gavel_server.work.group import WorkGroup

from tests.integration.services.identity.callers import ADMIN, PAYMENTS, STRANGER, KnowingInterceptor, by
from tests.integration.services.world import World, proposal, refusal, report, running_world

SECONDS_MAX: Final = 30
GRANTS: Final = """
gavel: v1
name: work
version: 1
grants:
  - {to: [ada], may: [grant, operate, read, replay]}
  - {to: ["service:payments"], may: [execute], actions: ["refund.*"], subjects: ["order/*"]}
"""
# Grants of another executor, which may do nothing about orders.
OTHERS: Final = ['actions: ["parcel.*"]', 'subjects: ["parcel/*"]']


class Consumer:
    """An open stream of one caller."""

    def __init__(self, requests: asyncio.Queue[ConsumeRequest], responses: AsyncIterator[ConsumeResponse]) -> None:
        self._requests = requests
        self._responses = responses

    async def answer(self) -> ConsumeResponse:
        """Return the next answer."""
        async with asyncio.timeout(SECONDS_MAX):
            return await anext(self._responses)

    async def next(self) -> WorkItem:
        """Return the next item."""
        answer = await self.answer()
        assert answer.HasField("work"), answer
        return answer.work

    async def subjects(self, count: int) -> dict[str, int]:
        """Return the deliveries of the next items, by subject."""
        items = [await self.next() for _ in range(count)]
        return {item.envelope.subject: item.delivery for item in items}

    def send(self, **action: Any) -> None:
        """Send a request."""
        self._requests.put_nowait(ConsumeRequest(**action))


@asynccontextmanager
async def consume(
    world: World, principal: Principal, queue: Any = WORK_QUEUE_DECISIONS, group: str = "executors", **settings: Any
) -> AsyncIterator[Consumer]:
    """Open a stream of a group."""
    requests: asyncio.Queue[ConsumeRequest] = asyncio.Queue()

    async def sent() -> AsyncIterator[ConsumeRequest]:
        while True:
            yield await requests.get()

    call: Any = WorkServiceStub(world.channel).Consume(sent(), metadata=by(principal))
    consumer = Consumer(requests, aiter(call))
    consumer.send(open=OpenConsumer(queue=queue, group=group, **settings))
    try:
        assert (await consumer.answer()).HasField("opened")
        yield consumer
    finally:
        call.cancel()


async def deploy(world: World, *others: str, version: int = 1) -> None:
    """Deploy GRANTS with more grants."""
    lines = [GRANTS.replace("version: 1", f"version: {version}").rstrip(), *(f"  - {{{other}}}" for other in others), ""]
    await world.administration.DeployGrants(DeployGrantsRequest(document="\n".join(lines)), metadata=by(ADMIN))


async def await_given_back(world: World, count: int) -> None:
    """Wait until so many decisions were read and not settled."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            listed = await WorkServiceStub(world.channel).ListConsumers(ListConsumersRequest(), metadata=by(ADMIN))
            if count == sum(group.pending for group in listed.consumers if group.group == "executors"):
                return
            await asyncio.sleep(0.01)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server whose callers are authenticated, with rules in force and no grants."""
    async with running_world(interceptor=KnowingInterceptor(), admins=["ada"]) as running:
        await running.buses.open("")
        await running.activate()
        yield running


@pytest.mark.parametrize("restriction", OTHERS)
async def test_items_go_to_those_who_may_execute_them(world: World, restriction: str) -> None:
    """A consumer without a grant for the items gets none and settles none; they go uncounted to one that has a grant."""
    decisions = [await world.approve(f"order/{number}") for number in range(3)]
    await deploy(world, f"to: [mallory], may: [execute], {restriction}")
    async with consume(world, STRANGER, in_flight_max=100) as stranger:
        await await_given_back(world, 3)
        for decision in decisions:
            stranger.send(acknowledge=AcknowledgeWork(item_id=str(decision.sequence_number)))
        for decision in decisions:
            assert str(decision.sequence_number) == (await stranger.answer()).not_held.item_id
        async with consume(world, PAYMENTS) as payments:
            assert {"order/0": 1, "order/1": 1, "order/2": 1} == await payments.subjects(3)


async def test_no_caller_takes_all_groups(world: World) -> None:
    """A caller that has created CALLER_GROUPS_MAX groups of a queue creates no other one, but opens another stream of these; others do."""
    await deploy(world, "to: [mallory], may: [execute]")
    async with AsyncExitStack() as streams:
        for number in range(CALLER_GROUPS_MAX):
            await streams.enter_async_context(consume(world, STRANGER, group=f"group-{number}"))
        with pytest.raises(grpc.aio.AioRpcError, match=f"has {CALLER_GROUPS_MAX} groups that the caller has created") as refused:
            await streams.enter_async_context(consume(world, STRANGER, group="another"))
        assert grpc.StatusCode.RESOURCE_EXHAUSTED == refused.value.code()
        await streams.enter_async_context(consume(world, STRANGER, group="group-0"))
        await streams.enter_async_context(consume(world, PAYMENTS))
    async with asyncio.timeout(SECONDS_MAX):
        while True:  # until the server has noticed the end of a stream
            with suppress(grpc.aio.AioRpcError):
                async with consume(world, STRANGER, group="another"):
                    break
            await asyncio.sleep(0.01)


async def test_left_groups_count(world: World) -> None:
    """Groups that a caller leaves with items in them count: it cannot use up the places one after the other, and others get theirs."""
    await world.approve("order/1")
    await deploy(world, *(f"to: [mallory-{number}], may: [execute]" for number in range(3)))

    async def create(principal: Principal, group: str) -> grpc.StatusCode:
        try:
            async with consume(world, principal, group=group) as stream:
                await stream.next()
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    accomplices = [Principal(f"mallory-{number}", "token") for number in range(3)]
    codes = [
        await create(accomplice, f"left-{number}-{group}")
        for number, accomplice in enumerate(accomplices)
        for group in range(CALLER_GROUPS_MAX + 1)
    ]
    listed = await WorkServiceStub(world.channel).ListConsumers(ListConsumersRequest(), metadata=by(ADMIN))
    names = [group.group for group in listed.consumers]
    # The last accomplice gets a first one.
    shared = GROUPS_MAX - FIRST_GROUPS_MIN - sum(not name.startswith("left-") for name in names)
    expected = [CALLER_GROUPS_MAX, shared - CALLER_GROUPS_MAX, 1]
    assert expected == [sum(name.startswith(f"left-{number}-") for name in names) for number in range(3)]
    assert {grpc.StatusCode.OK: sum(expected), grpc.StatusCode.RESOURCE_EXHAUSTED: len(codes) - sum(expected)} == Counter(codes)
    assert grpc.StatusCode.OK == await create(PAYMENTS, "payments")


async def test_forbidden_items_do_not_hold_up_others(world: World) -> None:
    """A consumer gets the items that it may execute although nobody takes those before them."""
    for subject in ("order/1", "order/2", "parcel/1"):
        await world.approve(subject)
    await deploy(world, 'to: [mallory], may: [execute], subjects: ["parcel/*"]')
    async with consume(world, STRANGER, in_flight_max=1) as stranger:
        assert {"parcel/1": 1} == await stranger.subjects(1)
        async with consume(world, PAYMENTS) as payments:
            assert {"order/1": 1, "order/2": 1} == await payments.subjects(2)


async def test_a_consumer_with_room_does_not_slow_down_a_full_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items that another consumer has read ahead reach a full one as soon as it has room, without a sweep for lost items."""
    for number in range(5):
        await world.approve(f"order/{number}")
    await deploy(world, 'to: [mallory], may: [execute], subjects: ["parcel/*"]')
    monkeypatch.setattr(work_group, "SWEEP_SECONDS", 3_600.0)
    async with consume(world, PAYMENTS, in_flight_max=1) as payments, consume(world, STRANGER, in_flight_max=100):
        item = await payments.next()
        await await_given_back(world, 5)
        subjects = [item.envelope.subject]
        for _ in range(4):
            payments.send(acknowledge=AcknowledgeWork(item_id=item.item_id))
            item = await payments.next()
            assert 1 == item.delivery
            subjects.append(item.envelope.subject)
        assert [f"order/{number}" for number in range(5)] == sorted(subjects)


async def test_grants_that_change(world: World) -> None:
    """Items that nobody could take are delivered once grants allow it; a consumer that holds what it may execute no more loses it."""
    await world.approve("order/1")
    await deploy(world, 'to: [mallory], may: [execute], subjects: ["parcel/*"]')
    async with consume(world, STRANGER) as stranger:
        await await_given_back(world, 1)
        await deploy(world, 'to: [mallory], may: [execute], subjects: ["order/*"]', version=2)
        assert {"order/1": 1} == await stranger.subjects(1)
        await deploy(world, 'to: [mallory], may: [execute], subjects: ["parcel/*"]', version=3)
        assert "RIGHT_LACKING" == (await refusal(stranger.answer())).reason
    async with consume(world, PAYMENTS) as payments:
        assert {"order/1": 2} == await payments.subjects(1)


@pytest.mark.parametrize("settlement", ["acknowledge", "reject", "park"])
async def test_settlements_after_a_change_of_grants(world: World, settlement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer settles nothing from the moment on at which the grants forbid its item; the stream ends, and others get the item."""
    await world.approve("order/1")
    await deploy(world, 'to: [mallory], may: [execute], subjects: ["order/*"]')
    async with consume(world, STRANGER) as stranger:
        item = await stranger.next()
        monkeypatch.setattr(WorkGroup, "_follow_grants", lambda group: None)  # as if the group had not looked yet
        await deploy(world, 'to: [mallory], may: [execute], subjects: ["parcel/*"]', version=2)
        action: dict[str, Any] = {
            "acknowledge": AcknowledgeWork(item_id=item.item_id),
            "reject": RejectWork(item_id=item.item_id, delay_ms=3_600_000),
            "park": ParkWork(item_id=item.item_id, reason="spite"),
        }
        stranger.send(**{settlement: action[settlement]})
        assert "RIGHT_LACKING" == (await refusal(stranger.answer())).reason
    async with consume(world, PAYMENTS) as payments:
        assert {"order/1": 2} == await payments.subjects(1)


async def test_the_queue_of_executions_is_for_reactors(world: World) -> None:
    """An executor may not open the queue of executions, and the log tells who tried; a reactor gets those that it may execute."""
    approval = await world.approve("order/1")
    await world.report(report(approval, await world.begin(approval), EXECUTION_STATUS_SUCCESS))
    reactor = Principal("reactor", "token")
    may_derive = "to: [reactor], may: [execute, publish], produce: {types: [system]}"
    await deploy(world, f'{may_derive}, actions: ["parcel.*"]')
    opening = consume(world, PAYMENTS, WORK_QUEUE_EXECUTIONS)
    assert "RIGHT_LACKING" == (await refusal(opening.__aenter__())).reason
    before = await world.head()
    await world.refusals.record_due()
    (record,) = await (await world.buses.open("")).log.read(before + 1, before + 1)
    noted = Envelope.FromString(record.envelope).agent_diagnostic.access_refused
    assert ("service:payments", "gavel.v1.WorkService/Consume", "RIGHT_LACKING", 1) == (
        noted.principal,
        noted.rpc,
        noted.reason,
        noted.count,
    )
    async with consume(world, reactor, WORK_QUEUE_EXECUTIONS) as stream:
        await await_given_back(world, 2)
        await deploy(world, may_derive, version=2)
        assert {"order/1": 1} == await stream.subjects(2)


async def test_requests_are_for_those_who_may_execute_the_action(world: World) -> None:
    """A request goes to a consumer with a grant for the action of its decision, although the request does not name it."""
    cause = await world.approve("order/1")
    for _ in range(3):
        reference = EventReference(event_id=cause.event_id, sequence_number=cause.sequence_number)
        refused: Envelope = proposal("order/2", amount=500.0, trace_id="trace-1")
        refused.proposal.based_on_events.append(reference)
        await world.propose(refused)
    await deploy(world, 'to: [mallory], may: [execute], actions: ["parcel.*"]')
    async with consume(world, STRANGER, WORK_QUEUE_REQUESTS) as stranger:
        await await_given_back(world, 1)
        async with consume(world, PAYMENTS, WORK_QUEUE_REQUESTS) as payments:
            item = await payments.next()
            assert ("NeedsHumanReview", 1) == (item.envelope.agent_diagnostic.kind, item.delivery)
            stranger.send(acknowledge=AcknowledgeWork(item_id=item.item_id))
            assert item.item_id == (await stranger.answer()).not_held.item_id


async def test_parked_items_of_other_actions_are_hidden(world: World) -> None:
    """An operator with a grant for some subjects sees, retries and discards their parked items only."""
    for subject in ("order/1", "parcel/1", "parcel/2"):
        await world.approve(subject)
    await deploy(world, "to: [all], may: [execute]", 'to: [mallory], may: [operate], subjects: ["parcel/*"]')
    parked: dict[str, str] = {}
    stub: Any = WorkServiceStub(world.channel)
    group: dict[str, Any] = {"queue": WORK_QUEUE_DECISIONS, "group": "executors"}

    async def listed(principal: Principal) -> list[str]:
        items: list[str] = []
        token = ""
        while True:
            page = await stub.ListParked(ListParkedRequest(**group, page_size=1, page_token=token), metadata=by(principal))
            items += [item.item_id for item in page.items]
            token = page.next_page_token
            if not token:
                return items

    async with consume(world, Principal("all", "token")) as consumer:
        for _ in range(3):
            item = await consumer.next()
            parked[item.envelope.subject] = item.item_id
            consumer.send(park=ParkWork(item_id=item.item_id, reason="broken"))
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                if len(await listed(ADMIN)) == 3:
                    break
                await asyncio.sleep(0.01)
    assert [parked["parcel/1"], parked["parcel/2"]] == await listed(STRANGER)
    discard = DiscardParkedRequest(**group, item_ids=[parked["order/1"], parked["parcel/1"]])
    assert 1 == (await stub.DiscardParked(discard, metadata=by(STRANGER))).discarded
    named = RetryParkedRequest(**group, item_ids=[parked["order/1"]])
    assert 0 == (await stub.RetryParked(named, metadata=by(STRANGER))).retried
    assert 1 == (await stub.RetryParked(RetryParkedRequest(**group), metadata=by(STRANGER))).retried
    assert [parked["order/1"]] == await listed(ADMIN)
    assert 1 == (await stub.RetryParked(RetryParkedRequest(**group), metadata=by(ADMIN))).retried
