"""Callers whose proposals compete: they hear the decision when it is in the log, wherever the contest is closed. In virtual time."""

from __future__ import annotations

import asyncio

from gavel.v1 import decision_pb2
from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, Recorded, SubmitProposal
from gavel_server.bus import waiting
from gavel_server.bus.planning import Completed
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.log import LogUnavailableError, OutcomeUnknownError

from tests.unit.core.driver import compiled, document, proposal_envelope
from tests.unit.core.servers import Counting, Servers, again, reason, recorded, scene, tell

APPROVED = decision_pb2.OUTCOME_APPROVED
TEXT = document(contest_window_ms=1_000)

Verdict = tuple[int, str, list[str]]


async def governed(servers: Servers) -> tuple[Sequencer, Counting]:
    """Start a server and put rules with a contest in force."""
    sequencer, counting = await servers.start()
    await sequencer.execute(DeployRuleSet(servers.new_id(), compiled(TEXT), TEXT))
    await sequencer.execute(ActivateRuleSet(servers.new_id(), "refunds", 1, None))
    return sequencer, counting


async def proposals(servers: Servers, sequencer: Sequencer, *priorities: int) -> list[SubmitProposal]:
    """Proposals for one key, each of a trace of its own."""
    fact = await recorded(sequencer, servers.fact())
    return [
        SubmitProposal(servers.admitted(proposal_envelope([fact], trace_id=f"trace-{priority}", priority=priority)))
        for priority in priorities
    ]


def verdict(result: Completed | ServiceError) -> Verdict:
    """What a caller has heard of a proposal."""
    assert isinstance(result, Completed), result
    assert isinstance(result.answer, Recorded)
    decision = result.answer.envelope.decision
    return decision.outcome, decision.reason_code, list(decision.conflict_with_proposal_ids)


@scene
async def test_callers_hear_when_the_window_closes(servers: Servers) -> None:
    """Nobody hears anything before the window closes; then everybody hears his own decision, as the log has it."""
    sequencer, _ = await governed(servers)
    low, high = await proposals(servers, sequencer, 1, 2)
    tasks = [asyncio.create_task(tell(sequencer, command)) for command in (low, high)]
    await asyncio.sleep(0.9)
    assert ([False, False], 2) == ([task.done() for task in tasks], sequencer.replica.waiting.count)
    results = [await task for task in tasks]
    expected: list[Verdict] = [(2, "OUTRANKED", [high.envelope.event_id]), (APPROVED, "", [])]
    assert expected == [verdict(result) for result in results]
    assert 0 == sequencer.replica.waiting.count
    await servers.prove()


@scene
async def test_the_other_server_may_close_the_contest(servers: Servers) -> None:
    """Candidates of two servers compete with each other, and each caller hears, whoever of the two closes the contest."""
    first, _ = await governed(servers)
    second, _ = await servers.start()
    low, high = await proposals(servers, first, 1, 2)
    results = await asyncio.gather(tell(first, low), tell(second, high))
    expected: list[Verdict] = [(2, "OUTRANKED", [high.envelope.event_id]), (APPROVED, "", [])]
    assert expected == [verdict(result) for result in results]
    await servers.prove()


@scene
async def test_a_retry_joins_the_wait(servers: Servers) -> None:
    """The same proposal again, at any server, waits for the same decision, is recorded once, and afterwards is answered at once."""
    first, _ = await governed(servers)
    second, _ = await servers.start()
    (command,) = await proposals(servers, first, 1)
    copies = [again(command) for _ in range(3)]
    asked = [asyncio.create_task(tell(first, command))]
    await asyncio.sleep(0.2)
    asked += [asyncio.create_task(tell(sequencer, copy)) for sequencer, copy in ((first, copies[0]), (second, copies[1]))]
    results = [verdict(await task) for task in asked]
    assert [(APPROVED, "", [])] * 3 == results
    assert (APPROVED, "", []) == verdict(await tell(second, copies[2]))
    assert 1 == len([event for event in await servers.events() if event.HasField("proposal")])


@scene
async def test_another_content_under_the_same_id_is_refused(servers: Servers) -> None:
    """While a proposal waits, its event_id is taken like that of any event in the log."""
    sequencer, _ = await governed(servers)
    (command,) = await proposals(servers, sequencer, 1)
    waits = asyncio.create_task(tell(sequencer, again(command)))
    await asyncio.sleep(0.1)
    other = again(command)
    other.envelope.proposal.priority = 7
    assert "EVENT_ID_REUSED" == reason(await tell(sequencer, other))
    assert (APPROVED, "", []) == verdict(await waits)


@scene
async def test_a_server_that_stops_sends_callers_away(servers: Servers) -> None:
    """They hear that the proposal is in the log and how to come back; another server decides it, and they hear it there."""
    first, _ = await governed(servers)
    second, _ = await servers.start()
    (command,) = await proposals(servers, first, 1)
    waits = asyncio.create_task(tell(first, again(command)))
    await asyncio.sleep(0.1)
    await first.stop()
    result = await waits
    assert "SHUTTING_DOWN" == reason(result)
    assert command.envelope.event_id in str(result)
    assert (APPROVED, "", []) == verdict(await tell(second, command))
    await servers.prove()


@scene
async def test_a_contest_outlives_its_servers(servers: Servers) -> None:
    """A server that starts after the window has closed decides at once, as of now; a retry hears it."""
    sequencer, _ = await governed(servers)
    low, high = await proposals(servers, sequencer, 1, 2)
    tasks = [asyncio.create_task(tell(sequencer, again(command))) for command in (low, high)]
    await asyncio.sleep(0.1)
    await sequencer.stop()
    await asyncio.gather(*tasks)
    await asyncio.sleep(30)
    later, _ = await servers.start()
    results = [verdict(await tell(later, command)) for command in (low, high)]
    expected: list[Verdict] = [(2, "OUTRANKED", [high.envelope.event_id]), (APPROVED, "", [])]
    assert expected == results
    await servers.prove()


@scene
async def test_an_append_that_is_lost_on_the_way(servers: Servers) -> None:
    """Whether entry and close are in the log although nobody said so is found out; the caller hears the decision all the same."""
    sequencer, log = await governed(servers)
    low, high = await proposals(servers, sequencer, 1, 2)
    log.after.append(OutcomeUnknownError("lost"))
    first = asyncio.create_task(tell(sequencer, again(low)))
    await asyncio.sleep(0.5)
    log.after.append(OutcomeUnknownError("lost"))
    results = await asyncio.gather(first, tell(sequencer, again(low)), tell(sequencer, high))
    outranked: Verdict = (2, "OUTRANKED", [high.envelope.event_id])
    assert [outranked, outranked, (APPROVED, "", [])] == [verdict(result) for result in results]
    await servers.prove()


@scene
async def test_callers_hear_when_the_log_goes_away(servers: Servers) -> None:
    """Who waits while the log cannot be reached is told so, and comes back."""
    sequencer, log = await governed(servers)
    (command,) = await proposals(servers, sequencer, 1)
    waits = asyncio.create_task(tell(sequencer, again(command)))
    await asyncio.sleep(0.1)
    log.broken = LogUnavailableError("away")
    assert "LOG_UNAVAILABLE" == reason(await waits)
    log.broken = None
    await asyncio.sleep(0.2)
    assert (APPROVED, "", []) == verdict(await tell(sequencer, command))


@scene
async def test_waiting_is_bounded(servers: Servers) -> None:
    """Of many who wait for one decision the first is sent away for the next; nothing is lost by it."""
    sequencer, _ = await governed(servers)
    (command,) = await proposals(servers, sequencer, 1)
    tasks = []
    for _ in range(waiting.CALLERS_PER_PROPOSAL_MAX + 1):
        tasks.append(asyncio.create_task(tell(sequencer, again(command))))
        await asyncio.sleep(0.01)
    first, *others = [await task for task in tasks]
    assert "QUEUE_FULL" == reason(first)
    assert {APPROVED} == {verdict(result)[0] for result in others}
    assert 0 == sequencer.replica.waiting.count
