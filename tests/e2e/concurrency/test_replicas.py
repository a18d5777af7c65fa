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
    open_bus,
    poll,
    proposal,
    prove,
    publish_status,
    replay,
    rule_set,
    wait_for_events,
    wait_for_same_head,
)

Clients = tuple[GavelClient, GavelClient]


async def carry_out(client: GavelClient, decision_id: str) -> None:
    """Start an approved decision and report its success."""
    start = await client.begin_execution(decision_id, producer=COURIER)
    assert start.WhichOneof("result") == "started", start.refusal
    execution = Execution(decision_id=decision_id, execution_id=start.started.execution_id, status=execution_pb2.EXECUTION_STATUS_SUCCESS)
    await client.report_execution(execution_envelope("", COURIER, execution))


async def carry_out_all(from_client: GavelClient, by_client: GavelClient) -> None:
    """Carry out, by one server, every approval that the other shows, until cancelled."""
    async for item in from_client.subscribe_events(categories=[common_pb2.EVENT_CATEGORY_DECISION_EVENT]):
        if item.envelope.decision.outcome == decision_pb2.OUTCOME_APPROVED:
            await carry_out(by_client, item.envelope.event_id)


async def test_two_servers_create_a_bus(pair: tuple[Server, Server], bus: str, redis_url: str) -> None:
    """Two servers whose first writes to a bus coincide agree on its first event, and record both writes."""
    for number in range(5):
        name = f"{bus}-{number}"
        async with pair[0].client(name) as first, pair[1].client(name) as second:
            await asyncio.gather(publish_status(first, ["parcel/1"]), publish_status(second, ["parcel/2"]))
            statuses = await wait_for_same_head((first, second))
        assert [(3, True), (3, True)] == [(status.head_sequence_number, status.writable) for status in statuses]
        ledger = await Ledger.read(redis_url, name)
        assert ["bus_opened", None, None] == [event.fact.WhichOneof("system") for event in ledger.events]


@pytest.mark.long
async def test_concurrent_proposals_by_two_servers_make_one_log(clients: Clients, redis_url: str, bus: str) -> None:
    """With agents and executors at both servers the log stays valid and replays, and both servers reach the same state."""
    first, second = clients
    facts = await publish_status(first, [f"parcel/{number}" for number in range(60)])
    load = Load(random.Random(1), facts)
    load.start(clients)
    executing = asyncio.create_task(carry_out_all(first, second))
    await load.wait_for_answers(1500)
    while len(load.approvals) <= len(facts):
        # Continue until an executor has freed a parcel.
        await load.wait_for_answers(100)
    await load.stop()
    executing.cancel()
    (ended,) = await asyncio.gather(executing, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError), ended
    assert ([], {}) == (load.failures, load.unanswered)

    async def at_rest() -> tuple[list[GetStatusResponse], Ledger] | None:
        # Executors and reactor may still record what they have begun.
        statuses = await wait_for_same_head(clients)
        ledger = await Ledger.read(redis_url, bus)
        return (statuses, ledger) if ledger.head[0] == statuses[0].head_sequence_number else None

    statuses, ledger = await poll(at_rest)
    assert ledger.head == (statuses[0].head_sequence_number, statuses[0].head_chain_hash)
    assert len({status.projection_digest for status in statuses}) == 1
    load.check(ledger)
    assert {COURIER.id} == {event.producer.id for event in ledger.of("execution")}
    verdict = replay(redis_url, bus)
    assert 0 == verdict.returncode, verdict.stderr


async def collect(stream: AsyncIterator[SubscribeEventsResponse], head: asyncio.Future[int]) -> tuple[list[Envelope], list[int]]:
    """Return the envelopes of a subscription, and the numbers that its items named, up to the head that is named later.

    Another event must follow once `head` is set, so that the subscription wakes and sees the head.
    """
    items: list[SubscribeEventsResponse] = []
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        async for item in stream:
            items.append(item)
            if head.done() and number_of(item) >= head.result():
                items_in_range = [item for item in items if number_of(item) <= head.result()]
                return [item.envelope for item in items_in_range if item.HasField("envelope")], [number_of(item) for item in items_in_range]
    raise AssertionError("the subscription ended")


def number_of(item: SubscribeEventsResponse) -> int:
    """Return the sequence number that a subscription reaches with an item."""
    return item.envelope.sequence_number or item.checkpoint.sequence_number


async def name_head(client: GavelClient, head: asyncio.Future[int]) -> None:
    """Write an event, set it as the head, and write another event."""
    head.set_result((await publish_status(client, ["depot/closed"]))["depot/closed"].sequence_number)
    await publish_status(client, ["depot/locked"])


async def test_subscriptions_have_no_gap_and_no_duplicate(clients: Clients, redis_url: str, bus: str) -> None:
    """While both servers write, subscriptions at either from the start, the middle and the future yield exactly the log."""
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
    await load.wait_for_answers(300)
    await load.stop()
    await name_head(second, head)
    collected = await asyncio.gather(*subscriptions)
    ledger = await Ledger.read(redis_url, bus)
    assert [ledger.events[begin - 1 : head.result()] for begin in begins] == [envelopes for envelopes, _ in collected]


async def test_filtered_subscriptions_end_with_checkpoints(clients: Clients, redis_url: str, bus: str) -> None:
    """A filtered subscription yields exactly the matching events, and checkpoints where nothing matches."""
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
    await load.wait_for_answers(100)
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


@pytest.mark.long
async def test_an_approval_that_nobody_starts_expires_once(new_bus_clients: Clients, redis_url: str, bus: str) -> None:
    """On two idle servers an approval expires once, not early, and frees its key."""
    first, second = new_bus_clients
    await open_bus(first, rule_set(decision_ttl_ms=300))
    # Both servers follow the bus, so both set the timer.
    await wait_for_same_head(new_bus_clients)
    approved = [await approve(first, "parcel/1"), await approve(second, "parcel/2")]
    expired = await wait_for_events(second, lambda event: event.decision.outcome == decision_pb2.OUTCOME_EXPIRED, count=2)
    assert [event.event_id for event in approved] == [event.decision.previous_decision_id for event in expired]
    for approval, expiry in zip(approved, expired, strict=True):
        assert approval.decision.valid_until.ToNanoseconds() <= expiry.recorded_at.ToNanoseconds()
    # A duplicate by the slower server would precede the expiry of a third approval.
    successor = await approve(first, "parcel/1")
    await wait_for_events(first, lambda event: event.decision.previous_decision_id == successor.event_id)
    await wait_for_same_head(new_bus_clients)
    ledger = await Ledger.read(redis_url, bus)
    endings = [event for event in ledger.of("decision") if event.decision.previous_decision_id]
    assert [event.event_id for event in (*approved, successor)] == [event.decision.previous_decision_id for event in endings]
    assert {"APPROVAL_EXPIRED"} == {event.decision.reason_code for event in endings}
    await prove(second)


@pytest.mark.parametrize(
    ("max_attempts", "reason_code"),
    [pytest.param(1, "ATTEMPTS_EXHAUSTED", id="none-left"), pytest.param(2, "EXECUTION_ABANDONED", id="one-left")],
)
async def test_a_lapsed_lease_calls_a_person_once(
    new_bus_clients: Clients, redis_url: str, bus: str, max_attempts: int, reason_code: str
) -> None:
    """A lapsed lease that nobody takes over leads to one review, in time, and the key stays held."""
    first, second = new_bus_clients
    await open_bus(first, rule_set(max_attempts=max_attempts, human_takeover_after_ms=300))
    approval = await approve(first, "parcel/1")
    start = await second.begin_execution(approval.event_id, producer=COURIER, lease_ms=200)
    (review,) = await wait_for_events(first, lambda event: event.decision.previous_decision_id == approval.event_id)
    assert (decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW, reason_code) == (review.decision.outcome, review.decision.reason_code)
    due_ms = start.started.lease_until.ToMilliseconds() + (300 if max_attempts > 1 else 0)
    assert due_ms <= review.recorded_at.ToMilliseconds()
    fact = (await publish_status(second, ["parcel/1"]))["parcel/1"]
    rejection = (await second.submit_proposal(proposal(fact))).decision.decision
    assert ("CONFLICTING_DECISION", [approval.decision.proposal_id]) == (rejection.reason_code, list(rejection.conflict_with_proposal_ids))
    statuses = await wait_for_same_head(new_bus_clients)
    assert statuses[0].projection_digest == statuses[1].projection_digest
    (pending,) = (await second.list_pending_reviews()).reviews
    assert (review.event_id, projection_service_pb2.REVIEW_KIND_EXECUTION) == (pending.decision_id, pending.kind)
    ledger = await Ledger.read(redis_url, bus)
    assert [review] == [event for event in ledger.of("decision") if event.decision.previous_decision_id]
    await prove(first)


async def test_approval_of_one_server_can_begin_at_the_other(clients: Clients) -> None:
    """An executor can begin and report at one server right after the other server has answered the approval."""
    first, second = clients
    for number in range(20):
        approval = await approve(first, f"parcel/{number}")
        await carry_out(second, approval.event_id)


async def test_projection_of_one_server_includes_writes_of_the_other(clients: Clients) -> None:
    """With min_sequence_number one server's projection includes what the other server has answered."""
    first, second = clients
    for number in range(20):
        subject = f"parcel/{number}"
        approval = await approve(first, subject)
        response = await second.get_projection(subject, min_sequence_number=approval.sequence_number)
        assert [approval.event_id] == [pending.decision_id for pending in response.projection.pending_decisions]


async def test_activation_applies_at_both_servers(clients: Clients) -> None:
    """An activation applies from its sequence number on, at whichever server the next proposal is submitted."""
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


@pytest.mark.long
async def test_facts_of_an_execution_are_derived_once_by_two_reactors(clients: Clients, redis_url: str, bus: str) -> None:
    """Both servers run a reactor, and yet each fact of an execution is derived once and the key is free again."""
    first, second = clients
    facts = await publish_status(first, [f"parcel/{number}" for number in range(10)])
    results = (await first.batch_submit_proposals([proposal(fact) for fact in facts.values()])).results
    await asyncio.gather(*(carry_out((first, second)[n % 2], one.decision.event_id) for n, one in enumerate(results)))
    derivations = await wait_for_events(first, lambda event: bool(event.fact.derivation_rule_id), count=10)
    assert sorted(facts) == sorted(event.subject for event in derivations)
    assert {(f"execution.{ACTION}.status", "SUCCESS")} == {(event.fact.key, event.fact.value.string_value) for event in derivations}

    async def nothing_pending() -> bool | None:
        return True if not (await second.list_pending_decisions()).decisions else None

    await poll(nothing_pending)
    ledger = await Ledger.read(redis_url, bus)
    assert derivations == [event for event in ledger.of("fact") if event.fact.derivation_rule_id]
    await prove(second)
