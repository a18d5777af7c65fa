"""Callers whose proposals compete get the decision once it is in the log, whichever server closes the contest. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, EventAnswer, OpenBus, SubmitProposal
from gavel_rules.events.proposal_view import ProposalView
from gavel_server.bus.answers import contest_waiters
from gavel_server.bus.answers.confirmed_answers import ConfirmedAnswers
from gavel_server.bus.request import CommittedAnswer, Request
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.log import ArchiveUnavailableError, EventLog, LogUnavailableError, OutcomeUnknownError, Record
from gavel_server.log.memory import MemoryLog

from tests.support.driver import BUS, WEEK_MS, compile_cached, document, proposal_envelope
from tests.support.simulation.servers import CountingLog, Servers, execute, reason, record_event, repeat_command, with_servers

APPROVED = decision_pb2.OUTCOME_APPROVED
TEXT = document(contest_window_ms=1_000)

Verdict = tuple[int, str, list[str]]


async def start_with_rules(servers: Servers, log: EventLog | None = None) -> tuple[Sequencer, CountingLog]:
    """Start a server and put rules with a contest in force."""
    sequencer, counting = await servers.start(log=log)
    await sequencer.execute(DeployRuleSet(servers.new_id(), compile_cached(TEXT), TEXT))
    await sequencer.execute(ActivateRuleSet(servers.new_id(), "refunds", 1, None))
    return sequencer, counting


async def proposals(servers: Servers, sequencer: Sequencer, *priorities: int) -> list[SubmitProposal]:
    """Return proposals for one key, each in its own trace."""
    fact = await record_event(sequencer, servers.fact())
    return [
        SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact], trace_id=f"trace-{priority}", priority=priority))))
        for priority in priorities
    ]


def verdict(result: CommittedAnswer | ServiceError) -> Verdict:
    """Return outcome, reason code and conflicting proposals of a caller's answer."""
    assert isinstance(result, CommittedAnswer), result
    assert isinstance(result.answer, EventAnswer)
    decision = result.answer.envelope.decision
    return decision.outcome, decision.reason_code, list(decision.conflict_with_proposal_ids)


@with_servers
async def test_callers_are_answered_when_the_window_closes(servers: Servers) -> None:
    """Callers are answered when the window closes, not before, each with the decision that the log has."""
    sequencer, _ = await start_with_rules(servers)
    low, high = await proposals(servers, sequencer, 1, 2)
    tasks = [asyncio.create_task(execute(sequencer, command)) for command in (low, high)]
    await asyncio.sleep(0.9)
    assert ([False, False], 2) == ([task.done() for task in tasks], sequencer.replica.contest_waiters.count)
    results = [await task for task in tasks]
    expected: list[Verdict] = [(2, "OUTRANKED", [high.envelope.event_id]), (APPROVED, "", [])]
    assert expected == [verdict(result) for result in results]
    assert 0 == sequencer.replica.contest_waiters.count
    await servers.prove()


class LogWithUnreadableEvent:
    """A log with an archive that does not answer, which has the event `unreadable`."""

    def __init__(self, log: EventLog) -> None:
        self.bus = log.bus
        self.unreadable = 0
        self._log = log

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """See EventLog."""
        if self.unreadable in sequence_numbers:
            raise ArchiveUnavailableError("cannot reach s3://archive")
        return await self._log.read_many(sequence_numbers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@with_servers
async def test_a_repeat_whose_decision_is_unreadable_does_not_wait(servers: Servers) -> None:
    """A repeated proposal whose decision is in an archive that cannot be read is refused, and keeps no place among the waiting callers."""
    log = LogWithUnreadableEvent(servers.log)
    sequencer, _ = await start_with_rules(servers, cast("EventLog", log))
    low, high = await proposals(servers, sequencer, 1, 2)
    results = await asyncio.gather(*(execute(sequencer, repeat_command(command)) for command in (low, high)))
    assert isinstance(results[0], CommittedAnswer)
    assert results[0].record is not None
    log.unreadable = results[0].record.sequence_number
    assert "LOG_UNAVAILABLE" == reason(await execute(sequencer, low))
    assert 0 == sequencer.replica.contest_waiters.count


@with_servers
async def test_the_other_server_may_close_the_contest(servers: Servers) -> None:
    """Candidates of two servers compete, and each caller is answered, whichever server closes the contest."""
    first, _ = await start_with_rules(servers)
    second, _ = await servers.start()
    low, high = await proposals(servers, first, 1, 2)
    results = await asyncio.gather(execute(first, low), execute(second, high))
    expected: list[Verdict] = [(2, "OUTRANKED", [high.envelope.event_id]), (APPROVED, "", [])]
    assert expected == [verdict(result) for result in results]
    await servers.prove()


@with_servers
async def test_a_retry_joins_the_wait(servers: Servers) -> None:
    """A repeated proposal, at any server, waits for the same decision, is recorded once, and later is answered at once."""
    first, _ = await start_with_rules(servers)
    second, _ = await servers.start()
    (command,) = await proposals(servers, first, 1)
    copies = [repeat_command(command) for _ in range(3)]
    tasks = [asyncio.create_task(execute(first, command))]
    await asyncio.sleep(0.2)
    tasks += [asyncio.create_task(execute(sequencer, copy)) for sequencer, copy in ((first, copies[0]), (second, copies[1]))]
    results = [verdict(await task) for task in tasks]
    assert [(APPROVED, "", [])] * 3 == results
    assert (APPROVED, "", []) == verdict(await execute(second, copies[2]))
    assert 1 == len([event for event in await servers.events() if event.HasField("proposal")])


@with_servers
async def test_event_id_of_a_waiting_proposal_is_not_reused(servers: Servers) -> None:
    """The event_id of a waiting proposal is taken like that of any event in the log."""
    sequencer, _ = await start_with_rules(servers)
    (command,) = await proposals(servers, sequencer, 1)
    task = asyncio.create_task(execute(sequencer, repeat_command(command)))
    await asyncio.sleep(0.1)
    other = repeat_command(command)
    other.envelope.proposal.priority = 7
    assert "EVENT_ID_REUSED" == reason(await execute(sequencer, other))
    assert (APPROVED, "", []) == verdict(await task)


@with_servers
async def test_stopping_server_dismisses_waiting_callers(servers: Servers) -> None:
    """Callers of a stopping server are told how to come back; another server decides, and answers them there."""
    first, _ = await start_with_rules(servers)
    second, _ = await servers.start()
    (command,) = await proposals(servers, first, 1)
    task = asyncio.create_task(execute(first, repeat_command(command)))
    await asyncio.sleep(0.1)
    await first.stop()
    result = await task
    assert "SHUTTING_DOWN" == reason(result)
    assert command.envelope.event_id in str(result)
    assert (APPROVED, "", []) == verdict(await execute(second, command))
    await servers.prove()


@with_servers
async def test_a_contest_outlives_its_servers(servers: Servers) -> None:
    """A server that starts after the window has closed decides at once; a retry gets the decision."""
    sequencer, _ = await start_with_rules(servers)
    low, high = await proposals(servers, sequencer, 1, 2)
    tasks = [asyncio.create_task(execute(sequencer, repeat_command(command))) for command in (low, high)]
    await asyncio.sleep(0.1)
    await sequencer.stop()
    await asyncio.gather(*tasks)
    await asyncio.sleep(30)
    later, _ = await servers.start()
    results = [verdict(await execute(later, command)) for command in (low, high)]
    expected: list[Verdict] = [(2, "OUTRANKED", [high.envelope.event_id]), (APPROVED, "", [])]
    assert expected == results
    await servers.prove()


@with_servers
async def test_callers_are_answered_after_a_lost_append(servers: Servers) -> None:
    """After a lost reply to an entry or a close, the outcome is settled and the caller gets the decision."""
    sequencer, log = await start_with_rules(servers)
    low, high = await proposals(servers, sequencer, 1, 2)
    log.errors_after.append(OutcomeUnknownError("lost"))
    first = asyncio.create_task(execute(sequencer, repeat_command(low)))
    await asyncio.sleep(0.5)
    log.errors_after.append(OutcomeUnknownError("lost"))
    results = await asyncio.gather(first, execute(sequencer, repeat_command(low)), execute(sequencer, high))
    outranked: Verdict = (2, "OUTRANKED", [high.envelope.event_id])
    assert [outranked, outranked, (APPROVED, "", [])] == [verdict(result) for result in results]
    await servers.prove()


@with_servers
async def test_callers_are_dismissed_while_the_log_is_unavailable(servers: Servers) -> None:
    """Waiting callers are dismissed while the log is unavailable, and can come back."""
    sequencer, log = await start_with_rules(servers)
    (command,) = await proposals(servers, sequencer, 1)
    task = asyncio.create_task(execute(sequencer, repeat_command(command)))
    await asyncio.sleep(0.1)
    log.head_error = LogUnavailableError("away")
    assert "LOG_UNAVAILABLE" == reason(await task)
    log.head_error = None
    await asyncio.sleep(0.2)
    assert (APPROVED, "", []) == verdict(await execute(sequencer, command))


@with_servers
async def test_waiters_of_a_decision_are_bounded(servers: Servers) -> None:
    """Of too many callers for one decision the first is dismissed, and its proposal is decided."""
    sequencer, _ = await start_with_rules(servers)
    (command,) = await proposals(servers, sequencer, 1)
    tasks = []
    for _ in range(contest_waiters.CALLERS_PER_PROPOSAL_MAX + 1):
        tasks.append(asyncio.create_task(execute(sequencer, repeat_command(command))))
        await asyncio.sleep(0.01)
    first, *others = [await task for task in tasks]
    assert "QUEUE_FULL" == reason(first)
    assert {APPROVED} == {verdict(result)[0] for result in others}
    assert 0 == sequencer.replica.contest_waiters.count


async def confirm_nothing(_: int) -> None:
    """Stand for a confirmation that no test waits for."""


def test_a_request_waits_once() -> None:
    """A request that is added again keeps its one place, and is answered once."""
    answered: list[CommittedAnswer | ServiceError] = []
    log = MemoryLog(BUS, lambda: 0, WEEK_MS)
    waiters = contest_waiters.ContestWaiters(ConfirmedAnswers(log, confirm_nothing))
    request = Request(OpenBus("", fact_pb2.CrossCheck(), 1), answered.append, "", 0)
    waiters.add("proposal", request)
    waiters.add("proposal", request)
    assert 1 == waiters.count
    waiters.dismiss_all(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server stops")
    assert (1, 0) == (len(answered), waiters.count)


def test_waiting_callers_share_the_places() -> None:
    """A caller that waits for very many decisions is dismissed beyond its share; others still find a place, and places become free."""
    log = MemoryLog(BUS, lambda: 0, WEEK_MS)
    waiters = contest_waiters.ContestWaiters(ConfirmedAnswers(log, confirm_nothing))
    dismissed: list[str] = []

    def wait(number: int, caller: str) -> None:
        def callback(result: CommittedAnswer | ServiceError) -> None:
            dismissed.append(f"{caller} {reason(result)}")

        waiters.add(f"proposal-{number}", Request(OpenBus("", fact_pb2.CrossCheck(), 1), callback, "", 0, caller=caller))

    for number in range(contest_waiters.CALLERS_MAX + 10):
        wait(number, "10.0.0.1:1")
    assert ["10.0.0.1:1 QUEUE_FULL"] * 10 == dismissed
    for caller in ("10.0.0.1:2", "10.0.0.2:1"):
        wait(0, caller)
    assert ["10.0.0.1:1 QUEUE_FULL"] * 12 == dismissed
    assert contest_waiters.CALLERS_MAX == waiters.count
    waiters.dismiss_all(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down")
    assert 0 == waiters.count
    wait(0, "10.0.0.1:1")
    assert 1 == waiters.count
