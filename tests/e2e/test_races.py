"""Everything at once on two servers: proposals, changing facts, executors that dawdle, lie still or report late, and short timers."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections import Counter

import grpc
from gavel.v1 import common_pb2, decision_pb2, execution_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel_client import GavelClient, GavelError, SyncGavelClient, execution_envelope

from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.world import Server, caught_up, open_bus, proposal, prove, publish_status, rule_set

Clients = tuple[GavelClient, GavelClient]

# How often which end of an attempt is reported.
ENDS = (
    *(execution_pb2.EXECUTION_STATUS_SUCCESS,) * 5,
    execution_pb2.EXECUTION_STATUS_FAILED,
    execution_pb2.EXECUTION_STATUS_TIMEOUT,
    execution_pb2.EXECUTION_STATUS_PARTIAL,
    execution_pb2.EXECUTION_STATUS_ABORTED,
)
# Errors that an executor who comes too late has to expect.
TOO_LATE = {"WRONG_STATE", "DECISION_NOT_FOUND", "PRODUCER_NOT_ALLOWED"}


class Couriers:
    """Executors that carry out what they see approved at `clients`, each at its own pace, drawn from `randomness`."""

    def __init__(self, clients: Clients, randomness: random.Random) -> None:
        self._clients = clients
        self._randomness = randomness
        self._attempts: set[asyncio.Task[None]] = set()
        self._watching = [asyncio.create_task(self._watch(client, f"courier-{n}")) for n, client in enumerate(clients)]

    async def stop(self) -> None:
        """Take on nothing more, and end what is under way."""
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
        """Begin, perhaps renew, dawdle, and mostly report, each step at any server."""
        choice = self._randomness.choice
        await asyncio.sleep(choice((0.0, 0.0, 0.02, 0.06)))
        begun = await choice(self._clients).begin_execution(decision_id, producer=producer, lease_ms=choice((100, 150, 300)))
        if begun.HasField("refusal"):
            return
        execution_id = begun.started.execution_id
        if choice((True, False, False, False)):
            await choice(self._clients).renew_execution(decision_id, execution_id, producer=producer, lease_ms=200)
        await asyncio.sleep(choice((0.0, 0.0, 0.05, 0.25)))
        if choice((True, True, True, True, False)):
            execution = Execution(decision_id=decision_id, execution_id=execution_id, status=choice(ENDS))
            await choice(self._clients).report_execution(execution_envelope("", producer, execution))


async def change_facts(clients: Clients, facts: dict[str, Envelope], randomness: random.Random) -> None:
    """Publish new versions of the parcels' statuses, at any server, until cancelled."""
    subjects = sorted(facts)
    while True:
        subject, status = randomness.choice(subjects), randomness.choice(("ready", "ready", "lost"))
        facts.update(await publish_status(randomness.choice(clients), [subject], status))
        await asyncio.sleep(0.01)


async def test_everything_at_once(unopened: Clients, redis_url: str, bus: str) -> None:
    """Whatever races, both servers come to one state, no parcel is promised twice, and every decision and timer replays."""
    randomness = random.Random(6)
    await open_bus(unopened[0], rule_set(decision_ttl_ms=60, max_attempts=2, human_takeover_after_ms=80))
    facts = await publish_status(unopened[0], [f"parcel/{number}" for number in range(100)])
    couriers = Couriers(unopened, randomness)
    changing = asyncio.create_task(change_facts(unopened, facts, randomness))
    load = Load(randomness, facts)
    load.start(unopened, sizes=(1, 1, 5))
    await load.hears(1000)
    await load.stop()
    changing.cancel()
    await couriers.stop()
    assert ([], {}) == (load.failures, load.unheard)
    statuses = await caught_up(unopened)
    assert statuses[0].projection_digest == statuses[1].projection_digest
    ledger = await Ledger.read(redis_url, bus)
    load.check(ledger)
    reasons = Counter(event.decision.reason_code for event in ledger.of("decision"))
    assert {"APPROVAL_EXPIRED", "CONFLICTING_DECISION"} < reasons.keys(), reasons
    await prove(unopened[1])


async def test_a_server_that_was_suspended(pair: tuple[Server, Server], clients: Clients, redis_url: str, bus: str) -> None:
    """What was sent to a server that stood still is decided when it goes on, on what the other has written meanwhile."""
    first, second = clients
    facts = await publish_status(first, [f"parcel/{number}" for number in range(20)])
    await caught_up(clients)
    pair[0].running.send_signal(signal.SIGSTOP)
    try:
        late = [asyncio.create_task(first.submit_proposal(proposal(fact))) for fact in facts.values()]
        # Let them be sent: nothing answers.
        await asyncio.wait(late, timeout=0.2)
        assert not any(task.done() for task in late)
        early = [(await second.submit_proposal(proposal(fact))).decision for fact in facts.values()]
    finally:
        pair[0].running.send_signal(signal.SIGCONT)
    refused = [(await task).decision for task in late]
    assert {decision_pb2.OUTCOME_APPROVED} == {event.decision.outcome for event in early}
    assert [event.decision.proposal_id for event in early] == [event.decision.conflict_with_proposal_ids[0] for event in refused]
    statuses = await caught_up(clients)
    assert statuses[0].projection_digest == statuses[1].projection_digest
    await Ledger.read(redis_url, bus)


async def test_reads_beside_writes_are_answered(clients: Clients) -> None:
    """A read that comes while an append is under way is answered after it, although nothing else follows."""
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
    """Who closes a client in the middle of a call makes that call end with CANCELLED, and not be tried again."""
    client, blocking = pair[0].client(), SyncGavelClient(pair[0].address)
    await asyncio.gather(client.get_status(), asyncio.to_thread(blocking.get_status))
    begun = threading.Event()

    def ask() -> None:
        begun.set()
        blocking.get_status()

    pair[0].running.send_signal(signal.SIGSTOP)
    try:
        calls = [asyncio.create_task(client.get_status()), asyncio.create_task(asyncio.to_thread(ask))]
        await asyncio.to_thread(begun.wait)
        await asyncio.wait(calls, timeout=0.2)
        await client.close()
        blocking.close()
        for ended in await asyncio.gather(*calls, return_exceptions=True):
            # asyncio and gRPC each have an error for this; which one comes is a matter of moments.
            assert isinstance(ended, asyncio.CancelledError | GavelError), ended
            assert not isinstance(ended, GavelError) or grpc.StatusCode.CANCELLED == ended.code
    finally:
        pair[0].running.send_signal(signal.SIGCONT)
