"""Contests on real servers: who wins does not depend on who comes first, where, or on what becomes of the servers meanwhile."""

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
from gavel_rules.language.ruleset import compile_rule_set
from gavel_server.clock import GuardedClock, wall_clock_ms

from tests.e2e.in_process import sequencer_on
from tests.e2e.ledger import Ledger
from tests.e2e.world import PATIENT_MS, Server, open_bus, proposal, prove, publish_status, replay, rule_set, seen, serving, until, writable
from tests.fronts import ANY_FRONT

APPROVED = decision_pb2.OUTCOME_APPROVED
# Longer than it takes to have all candidates in, on a busy machine; for those that have to see the contest open, much longer.
WINDOW_MS = 2_000
LONG_WINDOW_MS = 3_000

Clients = tuple[GavelClient, GavelClient]


async def decided(client: GavelClient, envelope: Envelope, timeout_ms: int = PATIENT_MS) -> Decision:
    """Propose, or ask again, and return the decision."""
    return (await client.submit_proposal(envelope, timeout_ms=timeout_ms)).decision.decision


async def decided_in_the_end(client: GavelClient, envelope: Envelope) -> Decision:
    """Propose and ask again, under the same event_id, for as long as there is no server."""

    async def heard() -> Decision | None:
        try:
            return await decided(client, envelope)
        except GavelError as error:
            if error.code != grpc.StatusCode.UNAVAILABLE:
                raise
            return None

    return await until(heard)


async def entered(client: GavelClient, *proposals: Envelope) -> list[Envelope]:
    """Return proposals as the log has them, once a server shows that they are in it."""
    ids = {envelope.event_id for envelope in proposals}
    return await seen(client, lambda event: event.event_id in ids, count=len(ids))


async def together(client: GavelClient, *proposals: Envelope) -> bool:
    """Whether proposals met in one contest. If not, some came after it had closed: then a busy machine was too slow for it."""
    first, *others = await entered(client, *proposals)
    closed_at = first.proposal.contest.closes_at
    late = [entry for entry in others if entry.proposal.contest.closes_at != closed_at]
    assert all(entry.recorded_at.ToNanoseconds() >= closed_at.ToNanoseconds() for entry in late)
    return not late


def candidate(fact: Envelope, priority: int) -> Envelope:
    """Return a proposal that competes, under an event_id to ask again by."""
    return proposal(fact, priority=priority, event_id=new_event_id())


@pytest.mark.parametrize("best_first", [True, False])
@pytest.mark.parametrize("best_at", [0, 1])
async def test_the_same_winner_in_either_order_at_either_server(
    unopened: Clients, redis_url: str, bus: str, best_first: bool, best_at: int
) -> None:
    """Two proposals on one key within a window, in either order, at either of two servers: the better wins, the other names it."""
    clients = unopened
    await open_bus(clients[0], rule_set(contest_window_ms=WINDOW_MS))
    for number in itertools.count(1):
        fact = (await publish_status(clients[0], [f"parcel/{number}"]))[f"parcel/{number}"]
        best, other = candidate(fact, 2), candidate(fact, 1)
        asked = [(best, clients[best_at]), (other, clients[1 - best_at])]
        tasks = {}
        for envelope, client in asked if best_first else reversed(asked):
            tasks[envelope.event_id] = asyncio.create_task(decided(client, envelope))
            await entered(clients[1 - best_at], envelope)
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
    proved = replay(redis_url, bus)
    assert 0 == proved.returncode, proved.stderr


async def test_a_batch_and_a_preflight_of_candidates(unopened: Clients) -> None:
    """A batch is answered when its contests have closed; a preflight says when that would be, and enters nothing."""
    client = unopened[0]
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


async def test_a_deadline_that_passes_loses_nothing(unopened: Clients) -> None:
    """A caller whose deadline passes hears so; asked again, at the other server, he waits for the same decision."""
    first, second = unopened
    await open_bus(first, rule_set(contest_window_ms=LONG_WINDOW_MS))
    fact = (await publish_status(first, ["parcel/1"]))["parcel/1"]
    envelope = candidate(fact, 1)
    with pytest.raises(GavelError) as late:
        await decided(first, envelope, timeout_ms=700)
    assert grpc.StatusCode.DEADLINE_EXCEEDED == late.value.code
    assert APPROVED == (await decided(second, envelope)).outcome
    assert 1 == len(await seen(first, lambda event: event.HasField("proposal")))


@pytest.mark.parametrize(("gently", "front"), [(True, False), (False, True)], ids=["SIGTERM-no-front", "SIGKILL-front"])
async def test_a_contest_outlives_its_server(tmp_path: Path, gently: bool, front: bool) -> None:
    """A server that ends while callers wait sends them away with UNAVAILABLE; after its start the contest closes and they hear."""
    options = ["--front", ANY_FRONT if front else "none"]
    server = Server(tmp_path / "gavel", listen=f"unix:{tmp_path}/gavel.sock", options=options)
    with serving(server):
        async with server.client() as client:
            await open_bus(client, rule_set(contest_window_ms=WINDOW_MS))
            for number in itertools.count(1):
                fact = (await publish_status(client, [f"parcel/{number}"]))[f"parcel/{number}"]
                best, other = candidate(fact, 2), candidate(fact, 1)
                tasks = [asyncio.create_task(decided_in_the_end(client, envelope)) for envelope in (best, other)]
                await entered(client, best, other)
                if gently:
                    assert 0 == await asyncio.to_thread(server.terminate)
                else:
                    server.kill()
                await asyncio.to_thread(server.start)
                await writable(client)
                decisions = [await task for task in tasks]
                if await together(client, best, other):
                    break
            assert ["", "OUTRANKED"] == [decision.reason_code for decision in decisions]
            await prove(client)


async def test_a_caller_without_patience_is_sent_away(tmp_path: Path) -> None:
    """What a caller hears from a server that stops says that his proposal competes on, and how to come back."""
    server = Server(tmp_path / "gavel", options=["--no-front"])
    with serving(server):
        async with server.client() as client:
            await open_bus(client, rule_set(contest_window_ms=600_000))
            fact = (await publish_status(client, ["parcel/1"]))["parcel/1"]
            envelope = candidate(fact, 1)
            task = asyncio.create_task(decided(client, envelope))
            await entered(client, envelope)
            assert 0 == await asyncio.to_thread(server.terminate)
            with pytest.raises(GavelError) as sent_away:
                await task
    assert grpc.StatusCode.UNAVAILABLE == sent_away.value.code


async def test_a_clock_that_jumps_back_closes_no_contest_early(redis_url: str, bus: str, pair: tuple[Server, Server]) -> None:
    """`recorded_at` never goes back: a contest that a host opened whose clock was ahead closes by the log's time, once."""
    ahead_ms = 900
    async with pair[0].client(bus) as client:
        await open_bus(client, rule_set(contest_window_ms=WINDOW_MS))
        fact = (await publish_status(client, ["parcel/1"]))["parcel/1"]
        async with sequencer_on(redis_url, bus, GuardedClock(lambda: wall_clock_ms() + ahead_ms)) as ahead:
            await ahead.execute(DeployRuleSet(new_event_id(), compile_rule_set(rule_set(version=2)), rule_set(version=2)))
        assert APPROVED == (await decided(client, candidate(fact, 1))).outcome
    ledger = await Ledger.read(redis_url, bus)
    (entry,) = ledger.of("proposal")
    decision = ledger.first_decisions[entry.event_id]
    assert decision.recorded_at.ToMilliseconds() >= entry.proposal.contest.closes_at.ToMilliseconds()
