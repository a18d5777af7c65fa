"""The sequencer: what callers hear, when, and what stands in the log afterwards. On a loop of virtual time: nothing here waits.

Concurrency, faults and races in the large are the simulation's; these are the promises one by one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gavel.v1 import decision_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel_rules import reasons
from gavel_rules.commands import (
    ActivateRuleSet,
    BeginExecution,
    DeployRuleSet,
    NotStarted,
    PublishEvent,
    ReportExecution,
    Started,
    SubmitProposal,
)
from gavel_server.bus.planning import Completed

from tests.unit.core.driver import (
    EXECUTOR,
    OTHER_EXECUTOR,
    START_MS,
    SUCCESS,
    WEEK_MS,
    compiled,
    document,
    event_id,
    observation_envelope,
    proposal_envelope,
)
from tests.unit.core.servers import CROSS_CHECK, Servers, again, reason, recorded, scene, tell

# Opening, batches, time


@scene
async def test_a_new_bus_is_opened_once(servers: Servers) -> None:
    """Servers that meet an empty log at the same time open the bus once, with what they were told."""
    started = await asyncio.gather(*(servers.start() for _ in range(3)))
    (opened,) = await servers.events()
    assert (CROSS_CHECK, WEEK_MS) == (opened.fact.bus_opened.cross_check, opened.fact.bus_opened.idempotency_window_ms)
    assert {1} == {sequencer.head.sequence_number for sequencer, _ in started}


@scene
async def test_commands_that_wait_together_are_appended_together(servers: Servers) -> None:
    """Batching comes from load: what comes while an append is under way goes into the next one, in the order in which it came."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    first = asyncio.create_task(tell(sequencer, servers.fact()))
    await asyncio.sleep(0.001)
    rest = [asyncio.create_task(tell(sequencer, servers.fact(number))) for number in range(20)]
    results = [await task for task in (first, *rest)]
    assert [1, 1, 20] == log.appended
    numbers = [result.record.sequence_number for result in results if isinstance(result, Completed) and result.record]
    assert list(range(2, 23)) == numbers


@scene
async def test_timers_speak_by_themselves(servers: Servers) -> None:
    """On an idle bus an approval expires at its time, without anybody asking."""
    sequencer, _ = await servers.governed()
    fact = await recorded(sequencer, servers.fact())
    await recorded(sequencer, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    due_ms = servers.now_ms() + 10_000
    await asyncio.sleep(9.9)
    assert "DecisionApproved" == (await servers.events())[-1].event_name
    await asyncio.sleep(0.2)
    last = (await servers.events())[-1]
    assert ("DecisionExpired", True) == (last.event_name, due_ms <= last.recorded_at.ToMilliseconds() <= due_ms + 100)
    await servers.prove()


@scene
async def test_times_never_go_back(servers: Servers) -> None:
    """When the clock is turned back a little, events are dated with the last event's time."""
    sequencer, _ = await servers.start()
    first = await recorded(sequencer, servers.fact())
    servers.offset_ms -= 3_000
    second = await recorded(sequencer, servers.fact())
    assert first.recorded_at == second.recorded_at


@scene
async def test_many_timers_and_a_moved_head_lose_no_command(servers: Servers) -> None:
    """More timers than one commit takes, another server in between: every command that waits is answered all the same."""
    sequencer, _ = await servers.start()
    many = document(conflict_key="string(params.amount)")
    await sequencer.execute(DeployRuleSet(servers.new_id(), compiled(many), many))
    await sequencer.execute(ActivateRuleSet(servers.new_id(), "refunds", 1, None))
    fact = await recorded(sequencer, servers.fact())
    proposals = [SubmitProposal(servers.admitted(proposal_envelope([fact], amount=n + 1, trace_id=f"t{n}"))) for n in range(1_300)]
    await asyncio.gather(*(tell(sequencer, proposal) for proposal in proposals))
    other, _ = await servers.start()
    servers.offset_ms += 10_000
    commands = [servers.fact(number) for number in range(50)]
    results = await asyncio.gather(
        *(tell(server, command) for number, command in enumerate(commands) for server in ((sequencer, other)[number % 2],))
    )
    assert all(isinstance(result, Completed) for result in results)
    expired = [event for event in await servers.events() if event.event_name == "DecisionExpired"]
    assert 1_300 == len(expired)
    await servers.prove()


# Idempotency


@scene
async def test_a_repetition_hears_the_first_answer(servers: Servers) -> None:
    """The same event_id with the same content is answered as the first time, by any server, also after a restart, and appends nothing."""
    sequencer, _ = await servers.governed()
    fact = servers.fact()
    proposal = SubmitProposal(servers.admitted(proposal_envelope([await recorded(sequencer, again(fact))])))
    decision = await recorded(sequencer, again(proposal))
    head = sequencer.head
    other, _ = await servers.start()
    await sequencer.stop()
    late, _ = await servers.start()
    for server in (other, late):
        assert decision == await recorded(server, again(proposal))
        assert fact.envelope.event_id == (await recorded(server, again(fact))).event_id
    assert head == late.head


@scene
async def test_repetitions_at_the_same_time(servers: Servers) -> None:
    """A command that is sent several times at once, to several servers, is recorded once, and all hear the same."""
    one, _ = await servers.governed()
    other, _ = await servers.start()
    fact = servers.fact()
    results = await asyncio.gather(*(tell(server, again(fact)) for server in (one, other, one, other, one)))
    assert 1 == len({result.record for result in results if isinstance(result, Completed)})
    assert 1 == len([event for event in await servers.events() if event.event_id == fact.envelope.event_id])


@scene
async def test_other_content_under_a_known_id_is_refused(servers: Servers) -> None:
    """The same event_id with other content is EVENT_ID_REUSED: in one batch, later, and on another server."""
    sequencer, _ = await servers.start()
    fact = servers.fact()
    other = servers.fact("cancelled")
    other.envelope.event_id = fact.envelope.event_id
    first, second = await asyncio.gather(tell(sequencer, again(fact)), tell(sequencer, again(other)))
    assert isinstance(first, Completed)
    assert "EVENT_ID_REUSED" == reason(second)
    elsewhere, _ = await servers.start()
    assert "EVENT_ID_REUSED" == reason(await tell(elsewhere, again(other)))


@scene
async def test_what_was_refused_may_be_sent_again(servers: Servers) -> None:
    """An event_id whose command was refused stands for nothing yet."""
    sequencer, _ = await servers.start()
    early = servers.fact(occurred_at_ms=START_MS + 60_000)
    assert "INVALID_REQUEST" == reason(await tell(sequencer, again(early)))
    servers.offset_ms += 60_000
    assert early.envelope.event_id == (await recorded(sequencer, again(early))).event_id


@scene
async def test_an_observation_is_recognised_by_a_server_that_tried_it(servers: Servers) -> None:
    """A server that lags decides a repetition, loses the append, and then answers it as what it is."""
    one, _ = await servers.start()
    other, log = await servers.start()
    observation = PublishEvent(servers.admitted(observation_envelope("order.score", 0.5)))
    first = await recorded(one, again(observation))
    log.pause_seconds = 0.01
    assert first == await recorded(other, again(observation))


# Causes


@scene
async def test_an_event_without_a_trace_joins_its_cause(servers: Servers) -> None:
    """The trace is the cause's, whether that stands in the log, in the same batch, or in an append under way."""
    sequencer, log = await servers.start()
    cause = servers.fact(trace_id="the-trace")
    batch = [cause, servers.caused(cause.envelope.event_id)]
    batch.append(servers.caused(batch[1].envelope.event_id))
    results = await asyncio.gather(*(tell(sequencer, command) for command in batch))
    assert all(isinstance(result, Completed) for result in results)
    await recorded(sequencer, servers.caused(cause.envelope.event_id))
    log.pause_seconds = 0.01
    under_way = servers.fact(trace_id="another-trace")
    task = asyncio.create_task(tell(sequencer, under_way))
    await asyncio.sleep(0.005)
    assert "another-trace" == (await recorded(sequencer, servers.caused(under_way.envelope.event_id))).trace_id
    await task
    assert ["the-trace"] * 4 == [event.trace_id for event in (await servers.events())[1:5]]


@scene
async def test_an_event_joins_the_trace_of_a_report_in_its_batch(servers: Servers) -> None:
    """The trace of a report is its decision's; an event that names the report as its cause gets it, even in the same batch."""
    sequencer, _ = await servers.governed()
    fact = await recorded(sequencer, servers.fact())
    approval = await recorded(sequencer, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    begun = await tell(sequencer, BeginExecution(approval.event_id, EXECUTOR, 5_000))
    assert isinstance(begun, Completed)
    assert isinstance(begun.answer, Started)
    started = begun.answer.envelope.execution
    execution = Execution(decision_id=approval.event_id, execution_id=started.execution_id, status=SUCCESS)
    report = ReportExecution(servers.admitted(Envelope(producer=EXECUTOR, execution=execution)))
    effect = servers.caused(report.envelope.event_id)
    await asyncio.gather(tell(sequencer, report), tell(sequencer, effect))
    assert {"trace-1"} == {event.trace_id for event in (await servers.events())[-2:]}


@scene
async def test_a_proposal_is_judged_by_the_trace_of_its_cause(servers: Servers) -> None:
    """Refusals of proposals that have their trace from their cause count as that trace's."""
    sequencer, _ = await servers.governed()
    cause = await recorded(sequencer, servers.fact(trace_id="the-trace"))
    decisions: list[Envelope] = []
    for amount in (1, 2):
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sequencer.propose(proposal_envelope(trace_id="", causation_id=cause.event_id, amount=amount), answered.set_result, 0)
        decisions.append((await answered).answer.envelope)
    assert [("the-trace", 1), ("the-trace", 2)] == [(one.trace_id, one.decision.consecutive_rejections) for one in decisions]
    await servers.prove()


@scene
async def test_an_unknown_cause_is_refused(servers: Servers) -> None:
    """An event whose cause is not in the log, or was refused in its own batch, is EVENT_NOT_FOUND."""
    sequencer, _ = await servers.start()
    assert "EVENT_NOT_FOUND" == reason(await tell(sequencer, servers.caused(event_id(999))))
    early = servers.fact(occurred_at_ms=START_MS + 60_000)
    refused, orphan = await asyncio.gather(tell(sequencer, early), tell(sequencer, servers.caused(early.envelope.event_id)))
    assert ["INVALID_REQUEST", "EVENT_NOT_FOUND"] == [reason(refused), reason(orphan)]
    assert 1 == len(await servers.events())


# Citing


@scene
async def test_a_server_that_lags_reads_on_before_it_judges_a_citation(servers: Servers) -> None:
    """A proposal that cites what another server has just recorded is not told UNKNOWN_EVENT."""
    one, _ = await servers.governed()
    other, _ = await servers.start()
    fact = await recorded(one, servers.fact())
    decision = await recorded(other, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    assert decision_pb2.OUTCOME_APPROVED == decision.decision.outcome
    newer = await recorded(one, servers.fact(subject="order/2"))
    ahead = proposal_envelope([newer], subject="order/2", projection_version=newer.sequence_number, trace_id="t2")
    assert "" == (await recorded(other, SubmitProposal(servers.admitted(ahead)))).decision.reason_code
    await servers.prove()


@scene
async def test_citing_what_is_on_its_way(servers: Servers) -> None:
    """A proposal may cite an event of its own batch or of an append under way; the log replays."""
    sequencer, log = await servers.governed()
    log.pause_seconds = 0.01
    for gap_seconds in (0.0, 0.005):
        fact = servers.fact(subject=f"order/{gap_seconds}")
        task = asyncio.create_task(tell(sequencer, again(fact)))
        await asyncio.sleep(gap_seconds)
        proposal = proposal_envelope([], subject=fact.envelope.subject, trace_id=f"t{gap_seconds}")
        cited = proposal.proposal.based_on_events.add()
        cited.event_id, cited.sequence_number = fact.envelope.event_id, sequencer.head.sequence_number + 1
        decision = await recorded(sequencer, SubmitProposal(servers.admitted(proposal)))
        assert decision_pb2.OUTCOME_APPROVED == decision.decision.outcome
        await task
    await servers.prove()


# Decisions that have ended


@scene
async def test_a_start_on_a_server_that_lags(servers: Servers) -> None:
    """A server that has not heard of the approval yet reads on before it answers a start."""
    one, _ = await servers.governed()
    other, _ = await servers.start()
    fact = await recorded(one, servers.fact())
    approval = await recorded(one, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    begun = await tell(other, BeginExecution(approval.event_id, EXECUTOR, 1_000))
    assert isinstance(begun, Completed)
    assert isinstance(begun.answer, Started)
    refused = await tell(one, BeginExecution(approval.event_id, OTHER_EXECUTOR, 1_000))
    assert isinstance(refused, Completed)
    assert isinstance(refused.answer, NotStarted)
    assert reasons.ALREADY_RUNNING == refused.answer.reason_code


@scene
async def test_a_start_after_the_end_says_how_it_ended(servers: Servers) -> None:
    """An expired approval is EXPIRED for whoever asks, in the very batch in which it expires and long after."""
    sequencer, _ = await servers.governed()
    fact = await recorded(sequencer, servers.fact())
    approval = await recorded(sequencer, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    servers.offset_ms += 10_000
    start = BeginExecution(approval.event_id, EXECUTOR, 1_000)
    _, at_once = await asyncio.gather(tell(sequencer, servers.fact()), tell(sequencer, start))
    fresh, _ = await servers.start()
    later = [await tell(server, start) for server in (sequencer, fresh)]
    said = [result.answer for result in (at_once, *later) if isinstance(result, Completed)]
    assert [reasons.EXPIRED] * 3 == [answer.reason_code for answer in said if isinstance(answer, NotStarted)]
