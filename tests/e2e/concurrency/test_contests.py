"""Contests on real servers: the winner depends neither on the order, nor on the server, nor on restarts."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import grpc
import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError, new_event_id
from gavel_rules.commands import DeployRuleSet
from gavel_rules.language.rule_set import compile_rule_set
from gavel_server.process.clock import GuardedClock, wall_clock_ms

from tests.e2e.in_process import run_sequencer
from tests.e2e.ledger import Ledger
from tests.e2e.world import (
    PATIENT_MS,
    Server,
    open_bus,
    poll,
    proposal,
    prove,
    publish_status,
    replay,
    rule_set,
    run_servers,
    wait_for_events,
    wait_until_writable,
)
from tests.support.fronts import ANY_FRONT

APPROVED = decision_pb2.OUTCOME_APPROVED
# Long enough to submit all candidates on a slow machine; much longer for tests that must see the contest open.
WINDOW_MS = 2_000
LONG_WINDOW_MS = 3_000

Clients = tuple[GavelClient, GavelClient]


async def decide(client: GavelClient, envelope: Envelope, timeout_ms: int = PATIENT_MS) -> Decision:
    """Submit or resubmit a proposal; return the decision."""
    return (await client.submit_proposal(envelope, timeout_ms=timeout_ms)).decision.decision


async def decide_with_retries(client: GavelClient, envelope: Envelope) -> Decision:
    """Resubmit a proposal under the same event_id until a server decides it."""

    async def try_once() -> Decision | None:
        try:
            return await decide(client, envelope)
        except GavelError as error:
            if error.code != grpc.StatusCode.UNAVAILABLE:
                raise
            return None

    return await poll(try_once)


async def wait_for_proposals(client: GavelClient, *proposals: Envelope) -> list[Envelope]:
    """Return proposals as recorded, once a server has them in its log."""
    ids = {envelope.event_id for envelope in proposals}
    return await wait_for_events(client, lambda event: event.event_id in ids, count=len(ids))


async def together(client: GavelClient, *proposals: Envelope) -> bool:
    """Whether proposals met in one contest. On a slow machine some may come after it has closed."""
    first, *others = await wait_for_proposals(client, *proposals)
    closed_at = first.proposal.contest.closes_at
    late = [entry for entry in others if entry.proposal.contest.closes_at != closed_at]
    assert all(entry.recorded_at.ToNanoseconds() >= closed_at.ToNanoseconds() for entry in late)
    return not late


def candidate(fact: Envelope, priority: int) -> Envelope:
    """Return a proposal that competes, with an event_id for resubmission."""
    return proposal(fact, priority=priority, event_id=new_event_id())


@pytest.mark.long
@pytest.mark.parametrize("best_first", [True, False])
@pytest.mark.parametrize("best_at", [0, 1])
async def test_the_same_winner_in_either_order_at_either_server(
    new_bus_clients: Clients, redis_url: str, bus: str, best_first: bool, best_at: int
) -> None:
    """Of two proposals for one key, in either order and at either server, the better one wins and the other names it."""
    clients = new_bus_clients
    await open_bus(clients[0], rule_set(contest_window_ms=WINDOW_MS))
    for number in itertools.count(1):
        fact = (await publish_status(clients[0], [f"parcel/{number}"]))[f"parcel/{number}"]
        best, other = candidate(fact, 2), candidate(fact, 1)
        submissions = [(best, clients[best_at]), (other, clients[1 - best_at])]
        tasks = {}
        for envelope, client in submissions if best_first else reversed(submissions):
            tasks[envelope.event_id] = asyncio.create_task(decide(client, envelope))
            await wait_for_proposals(clients[1 - best_at], envelope)
        winner, loser = await tasks[best.event_id], await tasks[other.event_id]
        if await together(clients[0], best, other):
            break
    assert ((APPROVED, ""), (decision_pb2.OUTCOME_REJECTED, "OUTRANKED")) == (
        (winner.outcome, winner.reason_code),
        (loser.outcome, loser.reason_code),
    )
    assert ([best.event_id], winner.contest) == (list(loser.conflict_with_proposal_ids), loser.contest)
    assert [best.event_id, other.event_id] == [one.proposal_id for one in winner.contest.candidates]
    await Ledger.read(redis_url, bus)
    verdict = replay(redis_url, bus)
    assert 0 == verdict.returncode, verdict.stderr


async def test_a_batch_and_a_preflight_of_candidates(new_bus_clients: Clients) -> None:
    """A batch is answered when its contests close; a preflight shows that time and enters no contest."""
    client = new_bus_clients[0]
    await open_bus(client, rule_set(contest_window_ms=WINDOW_MS))
    fact = (await publish_status(client, ["parcel/1"]))["parcel/1"]
    would_be = (await client.preflight(candidate(fact, 3))).decision
    window_ms = would_be.contest.closed_at.ToMilliseconds() - would_be.contest.opened_at.ToMilliseconds()
    assert (APPROVED, WINDOW_MS, [300.0]) == (would_be.outcome, window_ms, [one.score for one in would_be.contest.candidates])
    assert [] == list((await client.get_projection("parcel/1")).projection.pending_proposals)
    results = (
        await client.batch_submit_proposals([candidate(fact, 1), candidate(fact, 3), candidate(fact, 2)], timeout_ms=PATIENT_MS)
    ).results
    assert ["OUTRANKED", "", "OUTRANKED"] == [result.decision.decision.reason_code for result in results]
    await prove(client)


async def test_a_deadline_that_passes_loses_nothing(new_bus_clients: Clients) -> None:
    """A call whose deadline passes fails; resubmitted at the other server, the proposal gets the decision of its contest."""
    first, second = new_bus_clients
    await open_bus(first, rule_set(contest_window_ms=LONG_WINDOW_MS))
    fact = (await publish_status(first, ["parcel/1"]))["parcel/1"]
    envelope = candidate(fact, 1)
    with pytest.raises(GavelError) as late:
        await decide(first, envelope, timeout_ms=700)
    assert grpc.StatusCode.DEADLINE_EXCEEDED == late.value.code
    assert APPROVED == (await decide(second, envelope)).outcome
    assert 1 == len(await wait_for_events(first, lambda event: event.HasField("proposal")))


@pytest.mark.parametrize(("gently", "front"), [(True, False), (False, True)], ids=["SIGTERM-no-front", "SIGKILL-front"])
async def test_a_contest_outlives_its_server(tmp_path: Path, gently: bool, front: bool) -> None:
    """A server that ends answers waiting calls with UNAVAILABLE; after its restart the contest closes and retries get the decision."""
    options = ["--front", ANY_FRONT if front else "none"]
    server = Server(tmp_path / "gavel", listen=f"unix:{tmp_path}/gavel.sock", options=options)
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client, rule_set(contest_window_ms=WINDOW_MS))
            for number in itertools.count(1):
                fact = (await publish_status(client, [f"parcel/{number}"]))[f"parcel/{number}"]
                best, other = candidate(fact, 2), candidate(fact, 1)
                tasks = [asyncio.create_task(decide_with_retries(client, envelope)) for envelope in (best, other)]
                await wait_for_proposals(client, best, other)
                if gently:
                    assert 0 == await asyncio.to_thread(server.terminate)
                else:
                    server.kill()
                await asyncio.to_thread(server.start)
                await wait_until_writable(client)
                decisions = [await task for task in tasks]
                if await together(client, best, other):
                    break
            assert ["", "OUTRANKED"] == [decision.reason_code for decision in decisions]
            await prove(client)


async def test_stopping_server_tells_callers_how_to_get_their_decision(tmp_path: Path) -> None:
    """The error of a server that stops says that the proposal still competes and how to get its decision."""
    server = Server(tmp_path / "gavel", options=["--no-front"])
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client, rule_set(contest_window_ms=600_000))
            fact = (await publish_status(client, ["parcel/1"]))["parcel/1"]
            envelope = candidate(fact, 1)
            task = asyncio.create_task(decide(client, envelope))
            await wait_for_proposals(client, envelope)
            assert 0 == await asyncio.to_thread(server.terminate)
            with pytest.raises(GavelError) as sent_away:
                await task
    assert grpc.StatusCode.UNAVAILABLE == sent_away.value.code


async def test_a_clock_that_jumps_back_closes_no_contest_early(redis_url: str, bus: str, pair: tuple[Server, Server]) -> None:
    """A contest that was opened by a host whose clock is ahead closes by the log's time, once."""
    ahead_ms = 900
    async with pair[0].client(bus) as client:
        await open_bus(client, rule_set(contest_window_ms=WINDOW_MS))
        fact = (await publish_status(client, ["parcel/1"]))["parcel/1"]
        async with run_sequencer(redis_url, bus, GuardedClock(lambda: wall_clock_ms() + ahead_ms)) as ahead:
            await ahead.execute(DeployRuleSet(new_event_id(), compile_rule_set(rule_set(version=2)), rule_set(version=2)))
        assert APPROVED == (await decide(client, candidate(fact, 1))).outcome
    ledger = await Ledger.read(redis_url, bus)
    (entry,) = ledger.of("proposal")
    decision = ledger.first_decisions[entry.event_id]
    assert decision.recorded_at.ToMilliseconds() >= entry.proposal.contest.closes_at.ToMilliseconds()
