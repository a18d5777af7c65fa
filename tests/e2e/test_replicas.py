"""Two servers on one bus of one Redis: no leader, no lock, one log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from gavel.v1 import common_pb2, decision_pb2, execution_pb2, projection_service_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import SubscribeEventsResponse
from gavel.v1.execution_pb2 import Execution
from gavel.v1.projection_service_pb2 import GetStatusResponse
from gavel_client import GavelClient, execution_envelope

from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.world import (
    ACTION,
    COURIER,
    POLICY,
    WAIT_SECONDS_MAX,
    Server,
    approve,
    caught_up,
    open_bus,
    proposal,
    prove,
    publish_status,
    replay,
    rule_set,
    seen,
    until,
)

Clients = tuple[GavelClient, GavelClient]


async def carry_out(client: GavelClient, decision_id: str) -> None:
    """Start an approved decision and report that it is done."""
    begun = await client.begin_execution(decision_id, producer=COURIER)
    assert begun.WhichOneof("result") == "started", begun.refusal
    execution = Execution(decision_id=decision_id, execution_id=begun.started.execution_id, status=execution_pb2.EXECUTION_STATUS_SUCCESS)
    await client.report_execution(execution_envelope("", COURIER, execution))


async def carry_out_all(from_client: GavelClient, by_client: GavelClient) -> None:
    """Carry out, by one server, every approval that the other shows, until cancelled."""
    async for item in from_client.subscribe_events(categories=[common_pb2.EVENT_CATEGORY_DECISION_EVENT]):
        if item.envelope.decision.outcome == decision_pb2.OUTCOME_APPROVED:
            await carry_out(by_client, item.envelope.event_id)


async def test_a_bus_that_both_open_at_once_is_opened_once(pair: tuple[Server, Server], bus: str, redis_url: str) -> None:
    """Servers that meet a new bus at the same moment agree on its first event and serve on."""
    for number in range(5):
        name = f"{bus}-{number}"
        async with pair[0].client(name) as first, pair[1].client(name) as second:
            await asyncio.gather(first.get_status(), second.get_status())
            statuses = await caught_up((first, second))
        assert [(1, True), (1, True)] == [(status.head_sequence_number, status.writable) for status in statuses]
        ledger = await Ledger.read(redis_url, name)
        assert ["bus_opened"] == [event.fact.WhichOneof("system") for event in ledger.events]


async def test_concurrent_proposals_by_two_servers_make_one_log(clients: Clients, redis_url: str, bus: str) -> None:
    """Hit by agents and executors at both servers, the log is gapless and chained, and decides once; both see the same; it replays."""
    first, second = clients
    facts = await publish_status(first, [f"parcel/{number}" for number in range(60)])
    load = Load(random.Random(1), facts)
    load.start(clients)
    executing = asyncio.create_task(carry_out_all(first, second))
    await load.hears(1500)
    while len(load.approvals) <= len(facts):
        # Until a parcel was free again, however slow the executors are.
        await load.hears(100)
    await load.stop()
    executing.cancel()
    (ended,) = await asyncio.gather(executing, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError), ended
    assert ([], {}) == (load.failures, load.unheard)

    async def at_rest() -> tuple[list[GetStatusResponse], Ledger] | None:
        # What the executors and the reactor had begun may still come.
        statuses = await caught_up(clients)
        ledger = await Ledger.read(redis_url, bus)
        return (statuses, ledger) if ledger.head[0] == statuses[0].head_sequence_number else None

    statuses, ledger = await until(at_rest)
    assert ledger.head == (statuses[0].head_sequence_number, statuses[0].head_chain_hash)
    assert len({status.projection_digest for status in statuses}) == 1
    load.check(ledger)
    assert {COURIER.id} == {event.producer.id for event in ledger.of("execution")}
    proved = replay(redis_url, bus)
    assert 0 == proved.returncode, proved.stderr


async def collect(stream: AsyncIterator[SubscribeEventsResponse], head: asyncio.Future[int]) -> tuple[list[Envelope], list[int]]:
    """Return the envelopes of a subscription, and the numbers that its items named, up to the head that is named later.

    An event must follow once `head` is named: then the subscription is looked at again.
    """
    items: list[SubscribeEventsResponse] = []
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        async for item in stream:
            items.append(item)
            if head.done() and number_of(item) >= head.result():
                upto = [item for item in items if number_of(item) <= head.result()]
                return [item.envelope for item in upto if item.HasField("envelope")], [number_of(item) for item in upto]
    raise AssertionError("the subscription ended")


def number_of(item: SubscribeEventsResponse) -> int:
    """Return how far a subscription has come with an item."""
    return item.envelope.sequence_number or item.checkpoint.sequence_number


async def name_head(client: GavelClient, head: asyncio.Future[int]) -> None:
    """Write one event, name it as the head, and write another."""
    head.set_result((await publish_status(client, ["depot/closed"]))["depot/closed"].sequence_number)
    await publish_status(client, ["depot/locked"])


async def test_subscriptions_have_no_gap_and_no_duplicate(clients: Clients, redis_url: str, bus: str) -> None:
    """While both servers write, subscriptions from the start, the middle and the future, at either, show exactly the log."""
    first, second = clients
    facts = await publish_status(first, [f"parcel/{number}" for number in range(20)])
    begins = [1, 1, 7, 30]
    head: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    subscriptions = [
        asyncio.create_task(collect(client.subscribe_events(from_sequence_number=begin), head))
        for client, begin in zip((first, second, first, second), begins, strict=True)
    ]
    load = Load(random.Random(10), facts)
    load.start(clients)
    await load.hears(300)
    await load.stop()
    await name_head(second, head)
    collected = await asyncio.gather(*subscriptions)
    ledger = await Ledger.read(redis_url, bus)
    assert [ledger.events[begin - 1 : head.result()] for begin in begins] == [envelopes for envelopes, _ in collected]


async def test_filtered_subscriptions_end_with_checkpoints(clients: Clients, redis_url: str, bus: str) -> None:
    """A filter lets through exactly what matches, and where nothing matches checkpoints say how far the subscription has come."""
    first, second = clients
    head: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    nothing, of_parcel, decisions = (
        asyncio.create_task(collect(stream, head))
        for stream in (
            first.subscribe_events(categories=[common_pb2.EVENT_CATEGORY_TOOL_CALL_EVENT]),
            second.subscribe_events(subject_prefix="parcel/1"),
            first.subscribe_events(from_sequence_number=20, categories=[common_pb2.EVENT_CATEGORY_DECISION_EVENT]),
        )
    )
    facts = await publish_status(first, [f"parcel/{number}" for number in range(20)])
    load = Load(random.Random(11), facts)
    load.start(clients, sizes=(1, 7))
    await load.hears(100)
    await load.stop()
    await name_head(second, head)
    events = (await Ledger.read(redis_url, bus)).events[: head.result()]
    for subscription, expected in (
        (nothing, []),
        (of_parcel, [event for event in events if event.subject.startswith("parcel/1")]),
        (decisions, [event for event in events[19:] if event.HasField("decision")]),
    ):
        envelopes, numbers = await subscription
        assert expected == envelopes
        assert sorted(set(numbers)) == numbers


async def test_an_approval_that_nobody_starts_expires_once(unopened: Clients, redis_url: str, bus: str) -> None:
    """On two idle servers the timer of an approval speaks by itself, once, not before its time, and frees the parcel."""
    first, second = unopened
    await open_bus(first, rule_set(decision_ttl_ms=300))
    # Both follow the bus, so both have the timer.
    await caught_up(unopened)
    approved = [await approve(first, "parcel/1"), await approve(second, "parcel/2")]
    expired = await seen(second, lambda event: event.decision.outcome == decision_pb2.OUTCOME_EXPIRED, count=2)
    assert [event.event_id for event in approved] == [event.decision.previous_decision_id for event in expired]
    for approval, expiry in zip(approved, expired, strict=True):
        assert approval.decision.valid_until.ToNanoseconds() <= expiry.recorded_at.ToNanoseconds()
    # Whatever the slower server would still say of these two would stand before a third.
    again = await approve(first, "parcel/1")
    await seen(first, lambda event: event.decision.previous_decision_id == again.event_id)
    await caught_up(unopened)
    ledger = await Ledger.read(redis_url, bus)
    endings = [event for event in ledger.of("decision") if event.decision.previous_decision_id]
    assert [event.event_id for event in (*approved, again)] == [event.decision.previous_decision_id for event in endings]
    assert {"APPROVAL_EXPIRED"} == {event.decision.reason_code for event in endings}
    await prove(second)


@pytest.mark.parametrize(
    ("max_attempts", "reason_code"),
    [pytest.param(1, "ATTEMPTS_EXHAUSTED", id="none-left"), pytest.param(2, "EXECUTION_ABANDONED", id="one-left")],
)
async def test_a_lapsed_lease_calls_a_person_once(unopened: Clients, redis_url: str, bus: str, max_attempts: int, reason_code: str) -> None:
    """A lease that nobody renews, reports or takes over ends in one review, in time, with the parcel still held."""
    first, second = unopened
    await open_bus(first, rule_set(max_attempts=max_attempts, human_takeover_after_ms=300))
    approval = await approve(first, "parcel/1")
    begun = await second.begin_execution(approval.event_id, producer=COURIER, lease_ms=200)
    (review,) = await seen(first, lambda event: event.decision.previous_decision_id == approval.event_id)
    assert (decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW, reason_code) == (review.decision.outcome, review.decision.reason_code)
    due_ms = begun.started.lease_until.ToMilliseconds() + (300 if max_attempts > 1 else 0)
    assert due_ms <= review.recorded_at.ToMilliseconds()
    fact = (await publish_status(second, ["parcel/1"]))["parcel/1"]
    refused = (await second.submit_proposal(proposal(fact))).decision.decision
    assert ("CONFLICTING_DECISION", [approval.decision.proposal_id]) == (refused.reason_code, list(refused.conflict_with_proposal_ids))
    statuses = await caught_up(unopened)
    assert statuses[0].projection_digest == statuses[1].projection_digest
    (pending,) = (await second.list_pending_reviews()).reviews
    assert (review.event_id, projection_service_pb2.REVIEW_KIND_EXECUTION) == (pending.decision_id, pending.kind)
    ledger = await Ledger.read(redis_url, bus)
    assert [review] == [event for event in ledger.of("decision") if event.decision.previous_decision_id]
    await prove(first)


async def test_what_one_server_approved_the_other_starts_at_once(clients: Clients) -> None:
    """An executor may begin and report at any server, right after the approval was heard from another."""
    first, second = clients
    for number in range(20):
        approval = await approve(first, f"parcel/{number}")
        await carry_out(second, approval.event_id)


async def test_what_one_server_wrote_the_other_can_be_asked_for(clients: Clients) -> None:
    """Whoever knows the number of what one server answered finds it in the other's projection, by waiting for it."""
    first, second = clients
    for number in range(20):
        subject = f"parcel/{number}"
        approval = await approve(first, subject)
        response = await second.get_projection(subject, min_sequence_number=approval.sequence_number)
        assert [approval.event_id] == [pending.decision_id for pending in response.projection.pending_decisions]


async def test_a_rule_set_activated_by_one_server_governs_at_the_other(clients: Clients) -> None:
    """An activation takes effect at its own place in the log, wherever the next proposal is submitted."""
    first, second = clients
    facts = await publish_status(second, ["parcel/1", "parcel/2"])
    assert (await second.submit_proposal(proposal(facts["parcel/1"]))).decision.decision.outcome == decision_pb2.OUTCOME_APPROVED
    stricter = rule_set(version=2).replace("params.weight <= 30", "params.weight <= 0.5")
    await first.deploy_rule_set(stricter)
    await first.activate_rule_set(POLICY, 2, expected_active_version=1)
    decision = (await second.submit_proposal(proposal(facts["parcel/2"]))).decision.decision
    assert ("NO_RULE_MATCHED", [(POLICY, 2)]) == (
        decision.reason_code,
        [(active.policy_id, active.version) for active in decision.active_rule_sets],
    )


async def test_facts_of_an_execution_are_derived_once_by_two_reactors(clients: Clients, redis_url: str, bus: str) -> None:
    """Both servers run a reactor; every execution still has its fact once, and the parcel is free again."""
    first, second = clients
    facts = await publish_status(first, [f"parcel/{number}" for number in range(10)])
    decided = (await first.batch_submit_proposals([proposal(fact) for fact in facts.values()])).results
    await asyncio.gather(*(carry_out((first, second)[n % 2], one.decision.event_id) for n, one in enumerate(decided)))
    derived = await seen(first, lambda event: bool(event.fact.derivation_rule_id), count=10)
    assert sorted(facts) == sorted(event.subject for event in derived)
    assert {(f"execution.{ACTION}.status", "SUCCESS")} == {(event.fact.key, event.fact.value.string_value) for event in derived}

    async def nothing_pending() -> bool | None:
        return True if not (await second.list_pending_decisions()).decisions else None

    await until(nothing_pending)
    ledger = await Ledger.read(redis_url, bus)
    assert derived == [event for event in ledger.of("fact") if event.fact.derivation_rule_id]
    await prove(second)
