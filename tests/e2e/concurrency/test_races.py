"""Concurrency on two servers: proposals, changing facts, executors that are slow, stop or report late, and short timers."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections import Counter

import grpc
import pytest
from gavel.v1 import common_pb2, decision_pb2, execution_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel_client import GavelClient, GavelError, SyncGavelClient, execution_envelope

from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.world import Server, open_bus, proposal, prove, publish_status, rule_set, wait_for_same_head

Clients = tuple[GavelClient, GavelClient]

# Weights of the statuses that end an attempt.
ENDS = (
    *(execution_pb2.EXECUTION_STATUS_SUCCESS,) * 5,
    execution_pb2.EXECUTION_STATUS_FAILED,
    execution_pb2.EXECUTION_STATUS_TIMEOUT,
    execution_pb2.EXECUTION_STATUS_PARTIAL,
    execution_pb2.EXECUTION_STATUS_ABORTED,
)
# Errors that a late executor must expect.
TOO_LATE = {"WRONG_STATE", "DECISION_NOT_FOUND", "PRODUCER_NOT_ALLOWED"}


class Couriers:
    """Executors that carry out the approvals seen by `clients`, each at a pace drawn from `randomness`."""

    def __init__(self, clients: Clients, randomness: random.Random) -> None:
        self._clients = clients
        self._randomness = randomness
        self._attempts: set[asyncio.Task[None]] = set()
        self._watching = [asyncio.create_task(self._watch(client, f"courier-{n}")) for n, client in enumerate(clients)]

    async def stop(self) -> None:
        """Begin no further decision, and end those in progress."""
        for watching in self._watching:
            watching.cancel()
        for ended in await asyncio.gather(*self._watching, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended
        await asyncio.gather(*self._attempts)

    async def _watch(self, client: GavelClient, name: str) -> None:
        async for item in client.subscribe_events(categories=[common_pb2.EVENT_CATEGORY_DECISION_EVENT]):
            if item.envelope.decision.outcome == decision_pb2.OUTCOME_APPROVED and self._randomness.random() < 0.7:
                attempt = asyncio.create_task(self._attempt(item.envelope.event_id, name))
                self._attempts.add(attempt)

    async def _attempt(self, decision_id: str, name: str) -> None:
        try:
            await self._carry_out(decision_id, Producer(type=common_pb2.PRODUCER_TYPE_EXECUTOR, id=name))
        except GavelError as error:
            if error.reason not in TOO_LATE:
                raise

    async def _carry_out(self, decision_id: str, producer: Producer) -> None:
        """Begin, perhaps renew, wait, and mostly report, each step at any server."""
        choice = self._randomness.choice
        await asyncio.sleep(choice((0.0, 0.0, 0.02, 0.06)))
        response = await choice(self._clients).begin_execution(decision_id, producer=producer, lease_ms=choice((100, 150, 300)))
        if response.HasField("refusal"):
            return
        execution_id = response.started.execution_id
        if choice((True, False, False, False)):
            await choice(self._clients).renew_execution(decision_id, execution_id, producer=producer, lease_ms=200)
        await asyncio.sleep(choice((0.0, 0.0, 0.05, 0.25)))
        if choice((True, True, True, True, False)):
            execution = Execution(decision_id=decision_id, execution_id=execution_id, status=choice(ENDS))
            await choice(self._clients).report_execution(execution_envelope("", producer, execution))


async def change_facts(clients: Clients, facts: dict[str, Envelope], randomness: random.Random) -> None:
    """Publish new versions of the parcels' statuses, at either server, until cancelled."""
    subjects = sorted(facts)
    while True:
        subject, status = randomness.choice(subjects), randomness.choice(("ready", "ready", "lost"))
        facts.update(await publish_status(randomness.choice(clients), [subject], status))
        await asyncio.sleep(0.01)


@pytest.mark.long
async def test_everything_at_once(new_bus_clients: Clients, redis_url: str, bus: str) -> None:
    """After every race both servers reach one state, no key is held twice, and every decision and timer replays."""
    randomness = random.Random(6)
    await open_bus(new_bus_clients[0], rule_set(decision_ttl_ms=60, max_attempts=2, human_takeover_after_ms=80))
    facts = await publish_status(new_bus_clients[0], [f"parcel/{number}" for number in range(100)])
    couriers = Couriers(new_bus_clients, randomness)
    changing = asyncio.create_task(change_facts(new_bus_clients, facts, randomness))
    load = Load(randomness, facts)
    load.start(new_bus_clients, sizes=(1, 1, 5))
    await load.wait_for_answers(1000)
    await load.stop()
    changing.cancel()
    await couriers.stop()
    assert ([], {}) == (load.failures, load.unanswered)
    statuses = await wait_for_same_head(new_bus_clients)
    assert statuses[0].projection_digest == statuses[1].projection_digest
    ledger = await Ledger.read(redis_url, bus)
    load.check(ledger)
    reasons = Counter(event.decision.reason_code for event in ledger.of("decision"))
    assert {"APPROVAL_EXPIRED", "CONFLICTING_DECISION"} < reasons.keys(), reasons
    await prove(new_bus_clients[1])


async def test_suspended_server_decides_on_the_current_state(
    pair: tuple[Server, Server], clients: Clients, redis_url: str, bus: str
) -> None:
    """A server decides the proposals sent while it was suspended on the state that the other server has written since."""
    first, second = clients
    facts = await publish_status(first, [f"parcel/{number}" for number in range(20)])
    await wait_for_same_head(clients)
    pair[0].running.send_signal(signal.SIGSTOP)
    try:
        late = [asyncio.create_task(first.submit_proposal(proposal(fact))) for fact in facts.values()]
        # Wait until they are sent, because nothing answers.
        await asyncio.wait(late, timeout=0.2)
        assert not any(task.done() for task in late)
        decisions = [(await second.submit_proposal(proposal(fact))).decision for fact in facts.values()]
    finally:
        pair[0].running.send_signal(signal.SIGCONT)
    refusals = [(await task).decision for task in late]
    assert {decision_pb2.OUTCOME_APPROVED} == {event.decision.outcome for event in decisions}
    assert [event.decision.proposal_id for event in decisions] == [event.decision.conflict_with_proposal_ids[0] for event in refusals]
    statuses = await wait_for_same_head(clients)
    assert statuses[0].projection_digest == statuses[1].projection_digest
    await Ledger.read(redis_url, bus)


async def test_reads_beside_writes_are_answered(clients: Clients) -> None:
    """A read during an append is answered when the append ends, even if no other write follows."""
    first, _ = clients
    fact = (await publish_status(first, ["parcel/1"]))["parcel/1"]
    for _ in range(50):
        _, *answers = await asyncio.gather(
            publish_status(first, ["parcel/1"]),
            first.get_projection("parcel/1"),
            first.get_event(event_id=fact.event_id),
            first.preflight(proposal(fact)),
            first.get_status(),
        )
        assert 4 == len(answers)


async def test_closing_a_client_ends_its_calls(pair: tuple[Server, Server]) -> None:
    """Closing a client ends its calls with CANCELLED, without a retry."""
    client, blocking = pair[0].client(), SyncGavelClient(pair[0].address)
    await asyncio.gather(client.get_status(), asyncio.to_thread(blocking.get_status))
    response = threading.Event()

    def ask() -> None:
        response.set()
        blocking.get_status()

    pair[0].running.send_signal(signal.SIGSTOP)
    try:
        calls = [asyncio.create_task(client.get_status()), asyncio.create_task(asyncio.to_thread(ask))]
        await asyncio.to_thread(response.wait)
        await asyncio.wait(calls, timeout=0.2)
        await client.close()
        blocking.close()
        for ended in await asyncio.gather(*calls, return_exceptions=True):
            # The timing decides whether asyncio or gRPC raises its error.
            assert isinstance(ended, asyncio.CancelledError | GavelError), ended
            assert not isinstance(ended, GavelError) or grpc.StatusCode.CANCELLED == ended.code
    finally:
        pair[0].running.send_signal(signal.SIGCONT)
