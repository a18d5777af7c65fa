"""Repeated requests: in flight, in memory, and known to the log's index alone. The first answer, whatever the state forbids by then."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from gavel.v1 import fact_pb2
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest, RevokeDecisionRequest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel_rules.commands import BeginExecution, Command, LeasedAttempt, RenewExecution, ReportExecution, SubmitProposal
from gavel_rules.events.proposal_view import ProposalView
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.intake.human_commands import resolution, revocation

from tests.simulation.virtual_time import run_virtually
from tests.support.driver import EXECUTOR, FAILED, OTHER_EXECUTOR, SUCCESS, proposal_envelope
from tests.support.simulation.servers import Servers, execute, reason, record_event, repeat_command, with_servers

KINDS: Final = ("begin", "renewal", "report", "revocation", "verdict", "proposal", "fact")


def forget(sequencer: Sequencer) -> None:
    """Let a server forget all event_ids, as after many other events. The log's index knows them still."""
    sequencer.recent_events._locations.clear()
    sequencer.recent_events._older_locations.clear()


async def approve(servers: Servers, sequencer: Sequencer) -> Envelope:
    """Return a new approval."""
    fact = await record_event(sequencer, servers.fact())
    proposal = servers.admit_envelope(proposal_envelope([fact], trace_id=""))
    return await record_event(sequencer, SubmitProposal(ProposalView(proposal)))


async def start(sequencer: Sequencer, approval: Envelope) -> Envelope:
    """Start an attempt at an approval, and return its STARTED event."""
    result = await sequencer.execute(BeginExecution(approval.event_id, EXECUTOR, 60_000))
    assert isinstance(result.answer, LeasedAttempt), result.answer
    return result.answer.envelope


def report(servers: Servers, started: Envelope, status: int) -> ReportExecution:
    """Return the command that reports an attempt."""
    execution = Execution(decision_id=started.execution.decision_id, execution_id=started.execution.execution_id)
    execution.status = status  # type: ignore[assignment]  # an enum's value
    return ReportExecution(servers.admit_envelope(Envelope(producer=EXECUTOR, execution=execution)))


async def command_of(kind: str, servers: Servers, sequencer: Sequencer) -> Command:
    """Return a command of this kind that the state allows once."""
    if kind == "fact":
        return servers.fact("cancelled")
    if kind == "proposal":
        fact = await record_event(sequencer, servers.fact())
        return SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact]))))
    approval = await approve(servers, sequencer)
    if kind == "revocation":
        request = RevokeDecisionRequest(decision_id=approval.event_id, revoked_by="ada", reason="mistake", event_id=servers.new_id())
        return revocation(request)
    if kind == "begin":
        return BeginExecution(approval.event_id, EXECUTOR, 60_000, request_id=servers.new_id())
    if kind == "renewal":
        execution_id = (await start(sequencer, approval)).execution.execution_id
        return RenewExecution(approval.event_id, execution_id, EXECUTOR, 120_000, request_id=servers.new_id())
    if kind == "report":
        return report(servers, await start(sequencer, approval), SUCCESS)
    while not sequencer.replica.state.reviews:
        await record_event(sequencer, report(servers, await start(sequencer, approval), FAILED))
        await asyncio.sleep(60)
    (review_id,) = sequencer.replica.state.reviews
    verdict = fact_pb2.REVIEW_VERDICT_REJECT
    return resolution(
        ResolveReviewRequest(decision_id=review_id, reviewer="ada", reason="seen", verdict=verdict, event_id=servers.new_id())
    )


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_repeat_in_flight(kind: str, others: int) -> None:
    """A request that is sent again while the first is on its way into the log gets the first answer, alone in its batch or not."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await servers.start_with_rules()
        command = await command_of(kind, servers, sequencer)
        log.pause_seconds = 0.01
        sequencer._pacing.limit = 1 + others  # the next batch is decided while the first one is appended
        commands = [
            command,
            *(servers.fact(number) for number in range(others)),
            command,
            *(servers.fact() for _ in range(others)),
            command,
        ]
        results = await asyncio.gather(*(execute(sequencer, repeat_command(again)) for again in commands))
        assert {CommittedAnswer} == {type(result) for result in results}, results
        answers = [results[0], results[1 + others], results[-1]]
        assert 1 == len({result.record for result in answers if isinstance(result, CommittedAnswer)})
        await servers.prove()

    run_virtually(main())


@pytest.mark.parametrize("kind", KINDS)
def test_repeat_that_memory_has_forgotten(kind: str) -> None:
    """A request whose event_id only the log's index knows gets the first answer, alone in its batch or among others."""

    async def main() -> None:
        servers = Servers()
        sequencer, _ = await servers.start_with_rules()
        other, _ = await servers.start()
        command = await command_of(kind, servers, sequencer)
        first = await execute(sequencer, repeat_command(command))
        assert isinstance(first, CommittedAnswer)
        head = sequencer.head.sequence_number
        await other.wait_for(head, 1_000)
        for server in (sequencer, other):
            forget(server)
            again = await execute(server, repeat_command(command))
            assert isinstance(again, CommittedAnswer), again
            assert first.record == again.record
            forget(server)
            again, fact = await asyncio.gather(execute(server, repeat_command(command)), execute(server, servers.fact()))
            assert isinstance(again, CommittedAnswer), again
            assert isinstance(fact, CommittedAnswer)
            assert first.record == again.record
        assert head + 2 == len(await servers.events())

    run_virtually(main())


@with_servers
async def test_repeat_after_its_cause_has_left_the_window(servers: Servers) -> None:
    """A repeated request is answered although nobody remembers the event_id of its cause any more."""
    sequencer, _ = await servers.start()
    cause = await record_event(sequencer, servers.fact())
    days_ms = 4 * 24 * 60 * 60 * 1000
    servers.offset_ms += days_ms
    effect = servers.effect_of(cause.event_id)
    first = await record_event(sequencer, repeat_command(effect))
    servers.offset_ms += days_ms + 24 * 60 * 60 * 1000
    forget(sequencer)
    assert first == await record_event(sequencer, repeat_command(effect))
    late = servers.effect_of(cause.event_id)
    forget(sequencer)
    assert "EVENT_NOT_FOUND" == reason(await execute(sequencer, late))


@with_servers
async def test_repeat_of_a_lost_append_is_decided(servers: Servers) -> None:
    """A request sent again while an append that fails carries the first is decided afresh."""
    sequencer, log = await servers.start_with_rules()
    command = await command_of("report", servers, sequencer)
    log.pause_seconds = 0.01
    await servers.start()
    other, _ = await servers.start()
    first = asyncio.create_task(execute(sequencer, repeat_command(command)))
    await asyncio.sleep(0.005)
    again = asyncio.create_task(execute(sequencer, repeat_command(command)))
    await record_event(other, servers.fact())
    results = await asyncio.gather(first, again)
    assert 1 == len({result.record for result in results if isinstance(result, CommittedAnswer)}), results
    await servers.prove()


@with_servers
async def test_a_repeated_start_is_the_same_attempt(servers: Servers) -> None:
    """The same request_id gets the same attempt, also after renewals and on a restarted server; other content is refused."""
    sequencer, _ = await servers.start_with_rules()
    approval = await approve(servers, sequencer)
    begin = BeginExecution(approval.event_id, EXECUTOR, 60_000, request_id=servers.new_id())
    first = await _start_of(sequencer, begin)
    assert (begin.request_id, begin.request_id, "ExecutionStarted") == (first.event_id, first.execution.request_id, first.event_name)
    renewal = RenewExecution(approval.event_id, first.execution.execution_id, EXECUTOR, 90_000, request_id=servers.new_id())
    renewed = await record_event(sequencer, renewal)
    assert (renewal.request_id, "ExecutionRenewed") == (renewed.execution.request_id, renewed.event_name)
    restarted, _ = await servers.start()
    forget(restarted)
    for server in (sequencer, restarted):
        again = await _start_of(server, begin)
        assert first.execution == again.execution
        for other in (
            BeginExecution(approval.event_id, EXECUTOR, 61_000, request_id=begin.request_id),
            BeginExecution(approval.event_id, OTHER_EXECUTOR, 60_000, request_id=begin.request_id),
            RenewExecution(approval.event_id, first.execution.execution_id, EXECUTOR, 60_000, request_id=begin.request_id),
            BeginExecution(approval.event_id, EXECUTOR, 60_000, request_id=approval.decision.proposal_id),
            BeginExecution(approval.event_id, EXECUTOR, 90_000, request_id=renewal.request_id),
        ):
            assert "EVENT_ID_REUSED" == reason(await execute(server, other))
    await servers.prove()


@pytest.mark.parametrize("ends_by_report", [True, False])
def test_a_repeated_start_does_not_revive_an_attempt(*, ends_by_report: bool) -> None:
    """Once an attempt has been reported or its lease has lapsed, its request_id starts nothing and gets WRONG_STATE."""

    async def main() -> None:
        servers = Servers()
        sequencer, _ = await servers.start_with_rules()
        approval = await approve(servers, sequencer)
        begin = BeginExecution(approval.event_id, EXECUTOR, 60_000, request_id=servers.new_id())
        started = await _start_of(sequencer, begin)
        if ends_by_report:
            await record_event(sequencer, report(servers, started, FAILED))
        else:
            servers.offset_ms += 60_000
        assert "WRONG_STATE" == reason(await execute(sequencer, begin))
        second = await _start_of(sequencer, BeginExecution(approval.event_id, EXECUTOR, 60_000, request_id=servers.new_id()))
        assert 2 == second.execution.attempt
        assert "WRONG_STATE" == reason(await execute(sequencer, begin))
        await servers.prove()

    run_virtually(main())


@with_servers
async def test_a_repeated_start_does_not_outlive_its_lease(servers: Servers) -> None:
    """Once a renewal has shortened a lease, requests that leased the attempt for longer get WRONG_STATE; the renewal gets its answer."""
    sequencer, _ = await servers.start_with_rules()
    approval = await approve(servers, sequencer)
    begin = BeginExecution(approval.event_id, EXECUTOR, 60_000, request_id=servers.new_id())
    started = (await _start_of(sequencer, begin)).execution
    longer, shorter = [
        RenewExecution(approval.event_id, started.execution_id, EXECUTOR, lease_ms, request_id=servers.new_id())
        for lease_ms in (90_000, 10_000)
    ]
    await record_event(sequencer, longer)
    renewed = await record_event(sequencer, shorter)
    for request in (begin, longer):
        assert "WRONG_STATE" == reason(await execute(sequencer, request))
    assert renewed == await record_event(sequencer, shorter)
    await servers.prove()


async def _start_of(sequencer: Sequencer, command: BeginExecution) -> Envelope:
    result = await execute(sequencer, command)
    assert isinstance(result, CommittedAnswer), result
    assert isinstance(result.answer, LeasedAttempt), result.answer
    return result.answer.envelope
