"""The sequencer: the answers of callers, their times, and the log afterwards. In virtual time.

Concurrency, faults and races in the large are tested by the simulation; this module tests each guarantee.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_REJECT, ReviewVerdict
from gavel_rules import reason_codes
from gavel_rules.commands import (
    ActivateRuleSet,
    AttemptRefusal,
    BeginExecution,
    Command,
    DeployRuleSet,
    LeasedAttempt,
    PublishEvent,
    ReportExecution,
    SubmitProposal,
)
from gavel_rules.events.proposal_view import ProposalView
from gavel_server.bus.request import CommittedAnswer
from gavel_server.intake.admission import admit_proposal
from gavel_server.intake.human_commands import resolution

from tests.simulation.virtual_time import run_virtually
from tests.support.driver import (
    EXECUTOR,
    OTHER_EXECUTOR,
    START_MS,
    SUCCESS,
    WEEK_MS,
    compile_cached,
    document,
    event_id,
    fact_envelope,
    observation_envelope,
    proposal_envelope,
)
from tests.support.simulation.servers import CROSS_CHECK, Servers, execute, reason, record_event, repeat_command, with_servers

# Opening, batches, time


@with_servers
async def test_a_new_bus_is_opened_once(servers: Servers) -> None:
    """Servers that meet an empty log at the same time open the bus once, with their settings."""
    started = await asyncio.gather(*(servers.start() for _ in range(3)))
    (opened,) = await servers.events()
    assert (CROSS_CHECK, WEEK_MS) == (opened.fact.bus_opened.cross_check, opened.fact.bus_opened.idempotency_window_ms)
    assert {1} == {sequencer.head.sequence_number for sequencer, _ in started}


@with_servers
async def test_queued_commands_share_an_append(servers: Servers) -> None:
    """Commands that arrive during an append go into the next one, in the order of their arrival."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    first = asyncio.create_task(execute(sequencer, servers.fact()))
    await asyncio.sleep(0.001)
    rest = [asyncio.create_task(execute(sequencer, servers.fact(number))) for number in range(20)]
    results = [await task for task in (first, *rest)]
    assert [1, 1, 20] == log.appended
    numbers = [result.record.sequence_number for result in results if isinstance(result, CommittedAnswer) and result.record]
    assert list(range(2, 23)) == numbers


@with_servers
async def test_timer_fires_on_an_idle_bus(servers: Servers) -> None:
    """On an idle bus an approval expires at its time."""
    sequencer, _ = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
    due_ms = servers.now_ms() + 10_000
    await asyncio.sleep(9.9)
    assert "DecisionApproved" == (await servers.events())[-1].event_name
    await asyncio.sleep(0.2)
    last = (await servers.events())[-1]
    assert ("DecisionExpired", True) == (last.event_name, due_ms <= last.recorded_at.ToMilliseconds() <= due_ms + 100)
    await servers.prove()


@with_servers
async def test_recorded_at_does_not_decrease(servers: Servers) -> None:
    """After the clock is turned back a little, events have the time of the last event."""
    sequencer, _ = await servers.start()
    first = await record_event(sequencer, servers.fact())
    servers.offset_ms -= 3_000
    second = await record_event(sequencer, servers.fact())
    assert first.recorded_at == second.recorded_at


@pytest.mark.long
@with_servers
async def test_many_timers_and_a_moved_head_lose_no_command(servers: Servers) -> None:
    """Every command is answered, with more timers due than a commit takes and another server in between."""
    sequencer, _ = await servers.start()
    many = document(conflict_key="string(params.amount)")
    await sequencer.execute(DeployRuleSet(servers.new_id(), compile_cached(many), many))
    await sequencer.execute(ActivateRuleSet(servers.new_id(), "refunds", 1, None))
    fact = await record_event(sequencer, servers.fact())
    proposals = [
        SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact], amount=n + 1, trace_id=f"t{n}"))))
        for n in range(1_300)
    ]
    await asyncio.gather(*(execute(sequencer, proposal) for proposal in proposals))
    other, _ = await servers.start()
    servers.offset_ms += 10_000
    commands = [servers.fact(number) for number in range(50)]
    results = await asyncio.gather(
        *(execute(server, command) for number, command in enumerate(commands) for server in ((sequencer, other)[number % 2],))
    )
    assert all(isinstance(result, CommittedAnswer) for result in results)
    expired = [event for event in await servers.events() if event.event_name == "DecisionExpired"]
    assert 1_300 == len(expired)
    await servers.prove()


# Idempotency


@with_servers
async def test_repeated_request_returns_the_first_answer(servers: Servers) -> None:
    """A repeated request gets the first answer from any server, also after a restart, and appends nothing."""
    sequencer, _ = await servers.start_with_rules()
    fact = servers.fact()
    proposal = SubmitProposal(
        ProposalView(servers.admit_envelope(proposal_envelope([await record_event(sequencer, repeat_command(fact))])))
    )
    decision = await record_event(sequencer, repeat_command(proposal))
    head = sequencer.head
    other, _ = await servers.start()
    await sequencer.stop()
    lagging, _ = await servers.start()
    for server in (other, lagging):
        assert decision == await record_event(server, repeat_command(proposal))
        assert fact.envelope.event_id == (await record_event(server, repeat_command(fact))).event_id
    assert head == lagging.head


@with_servers
async def test_concurrent_repetitions_are_recorded_once(servers: Servers) -> None:
    """A command sent several times at once to several servers is recorded once, and all callers get the same answer."""
    one, _ = await servers.start_with_rules()
    other, _ = await servers.start()
    fact = servers.fact()
    results = await asyncio.gather(*(execute(server, repeat_command(fact)) for server in (one, other, one, other, one)))
    assert 1 == len({result.record for result in results if isinstance(result, CommittedAnswer)})
    assert 1 == len([event for event in await servers.events() if event.event_id == fact.envelope.event_id])


@with_servers
async def test_other_content_under_a_known_id_is_refused(servers: Servers) -> None:
    """The same event_id with other content is EVENT_ID_REUSED: in one batch, later, and on another server."""
    sequencer, _ = await servers.start()
    fact = servers.fact()
    other = servers.fact("cancelled")
    other.envelope.event_id = fact.envelope.event_id
    first, second = await asyncio.gather(execute(sequencer, repeat_command(fact)), execute(sequencer, repeat_command(other)))
    assert isinstance(first, CommittedAnswer)
    assert "EVENT_ID_REUSED" == reason(second)
    elsewhere, _ = await servers.start()
    assert "EVENT_ID_REUSED" == reason(await execute(elsewhere, repeat_command(other)))


@with_servers
async def test_event_id_of_a_refused_command_is_free(servers: Servers) -> None:
    """The event_id of a refused command can be used again."""
    sequencer, _ = await servers.start()
    early = servers.fact(occurred_at_ms=START_MS + 60_000)
    assert "INVALID_REQUEST" == reason(await execute(sequencer, repeat_command(early)))
    servers.offset_ms += 60_000
    assert early.envelope.event_id == (await record_event(sequencer, repeat_command(early))).event_id


@with_servers
async def test_repeated_observation_at_a_server_that_is_behind(servers: Servers) -> None:
    """A server that is behind decides a repeated observation, loses the append, and then answers from the log."""
    one, _ = await servers.start()
    other, log = await servers.start()
    observation = PublishEvent(servers.admit_envelope(observation_envelope("order.score", 0.5)))
    first = await record_event(one, repeat_command(observation))
    log.pause_seconds = 0.01
    assert first == await record_event(other, repeat_command(observation))


# Causes


@with_servers
async def test_event_inherits_the_trace_of_its_cause(servers: Servers) -> None:
    """An event without a trace inherits that of its cause, which may be in the log, in the same batch, or in the append under way."""
    sequencer, log = await servers.start()
    cause = servers.fact(trace_id="the-trace")
    batch = [cause, servers.effect_of(cause.envelope.event_id)]
    batch.append(servers.effect_of(batch[1].envelope.event_id))
    results = await asyncio.gather(*(execute(sequencer, command) for command in batch))
    assert all(isinstance(result, CommittedAnswer) for result in results)
    await record_event(sequencer, servers.effect_of(cause.envelope.event_id))
    log.pause_seconds = 0.01
    under_way = servers.fact(trace_id="another-trace")
    task = asyncio.create_task(execute(sequencer, under_way))
    await asyncio.sleep(0.005)
    assert "another-trace" == (await record_event(sequencer, servers.effect_of(under_way.envelope.event_id))).trace_id
    await task
    assert ["the-trace"] * 4 == [event.trace_id for event in (await servers.events())[1:5]]


@with_servers
async def test_event_inherits_the_trace_of_a_report_in_its_batch(servers: Servers) -> None:
    """An event caused by a report of its batch inherits the trace of the report's decision."""
    sequencer, _ = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    approval = await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
    attempt = await execute(sequencer, BeginExecution(approval.event_id, EXECUTOR, 5_000))
    assert isinstance(attempt, CommittedAnswer)
    assert isinstance(attempt.answer, LeasedAttempt)
    started = attempt.answer.envelope.execution
    execution = Execution(decision_id=approval.event_id, execution_id=started.execution_id, status=SUCCESS)
    report = ReportExecution(servers.admit_envelope(Envelope(producer=EXECUTOR, execution=execution)))
    effect = servers.effect_of(report.envelope.event_id)
    await asyncio.gather(execute(sequencer, report), execute(sequencer, effect))
    assert {"trace-1"} == {event.trace_id for event in (await servers.events())[-2:]}


@with_servers
async def test_rejection_counts_for_the_inherited_trace(servers: Servers) -> None:
    """A rejection of a proposal counts for the trace that it inherits from its cause."""
    sequencer, _ = await servers.start_with_rules()
    cause = await record_event(sequencer, servers.fact(trace_id="the-trace"))
    decisions: list[Envelope] = []
    for amount in (1, 2):
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        command, _ = admit_proposal(proposal_envelope(trace_id="", causation_id=cause.event_id, amount=amount), sequencer.bus)
        sequencer.submit(command, answered.set_result)
        decisions.append((await answered).answer.envelope)
    assert [("the-trace", 1), ("the-trace", 2)] == [(one.trace_id, one.decision.consecutive_rejections) for one in decisions]
    await servers.prove()


@with_servers
async def test_an_unknown_cause_is_refused(servers: Servers) -> None:
    """An event whose cause is not in the log, or was refused in its own batch, is EVENT_NOT_FOUND."""
    sequencer, _ = await servers.start()
    assert "EVENT_NOT_FOUND" == reason(await execute(sequencer, servers.effect_of(event_id(999))))
    early = servers.fact(occurred_at_ms=START_MS + 60_000)
    refusal, orphan = await asyncio.gather(execute(sequencer, early), execute(sequencer, servers.effect_of(early.envelope.event_id)))
    assert ["INVALID_REQUEST", "EVENT_NOT_FOUND"] == [reason(refusal), reason(orphan)]
    assert 1 == len(await servers.events())


# Citations


@with_servers
async def test_server_that_is_behind_reads_cited_events_first(servers: Servers) -> None:
    """A server that is behind reads on before it decides a proposal that cites newer events."""
    one, _ = await servers.start_with_rules()
    other, _ = await servers.start()
    fact = await record_event(one, servers.fact())
    decision = await record_event(other, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
    assert decision_pb2.OUTCOME_APPROVED == decision.decision.outcome
    newer = await record_event(one, servers.fact(subject="order/2"))
    ahead = proposal_envelope([newer], subject="order/2", projection_version=newer.sequence_number, trace_id="t2")
    assert "" == (await record_event(other, SubmitProposal(ProposalView(servers.admit_envelope(ahead))))).decision.reason_code
    await servers.prove()


@with_servers
async def test_citation_of_an_event_that_is_being_appended(servers: Servers) -> None:
    """A proposal may cite an event of its batch or of the append under way; the log replays."""
    sequencer, log = await servers.start_with_rules()
    log.pause_seconds = 0.01
    for gap_seconds in (0.0, 0.005):
        fact = servers.fact(subject=f"order/{gap_seconds}")
        task = asyncio.create_task(execute(sequencer, repeat_command(fact)))
        await asyncio.sleep(gap_seconds)
        proposal = proposal_envelope([], subject=fact.envelope.subject, trace_id=f"t{gap_seconds}")
        cited = proposal.proposal.based_on_events.add()
        cited.event_id, cited.sequence_number = fact.envelope.event_id, sequencer.head.sequence_number + 1
        decision = await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal))))
        assert decision_pb2.OUTCOME_APPROVED == decision.decision.outcome
        await task
    await servers.prove()


@pytest.mark.parametrize("limit", [1, 64])
def test_citation_of_a_large_event_that_is_being_appended(limit: int) -> None:
    """An event that is too large for the memory may be cited in its own batch, and while it is being appended; the log replays."""
    run_virtually(cite_large_event(Servers(), limit))


async def cite_large_event(servers: Servers, limit: int) -> None:
    """Publish a large event and propose on it, with so many commands in a batch."""
    sequencer, log = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    large = observation_envelope("order.note", "long")
    for number in range(9):
        large.observation.extracted_fields[f"order.x{number:0193}"].number_value = 1.0
    command = PublishEvent(servers.admit_envelope(large))
    proposal = proposal_envelope([fact])
    cited = proposal.proposal.based_on_events.add()
    cited.event_id, cited.sequence_number = large.event_id, fact.sequence_number + 1
    log.pause_seconds = 0.01
    sequencer._pacing.limit = limit
    commands: list[Command] = [command, SubmitProposal(ProposalView(servers.admit_envelope(proposal)))]
    await asyncio.gather(*(execute(sequencer, one) for one in commands))
    decision = (await servers.events())[-1].decision
    assert (decision_pb2.OUTCOME_APPROVED, "") == (decision.outcome, decision.reason_code)
    await servers.prove()


@with_servers
async def test_citation_of_a_trimmed_event(servers: Servers) -> None:
    """A proposal that cites an event that the log has no more is answered with an error, not decided; others of its batch are decided."""
    sequencer, _ = await servers.start_with_rules()
    trimmed, present = [await record_event(sequencer, servers.fact()) for _ in range(2)]
    sequencer.recent_events.remove_citable(trimmed.sequence_number)
    await servers.log.trim(present.sequence_number)
    envelopes = [proposal_envelope([trimmed]), proposal_envelope([present])]
    commands = [SubmitProposal(ProposalView(servers.admit_envelope(envelope))) for envelope in envelopes]
    refused, decided = await asyncio.gather(*(execute(sequencer, command) for command in commands))
    assert "LOG_UNAVAILABLE" == reason(refused)
    assert isinstance(decided, CommittedAnswer)


@with_servers
async def test_approval_of_a_review_that_cites_a_trimmed_event(servers: Servers) -> None:
    """Approving a review whose evidence the log has no more is an error that says so; rejecting it needs no evidence."""
    sequencer, _ = await servers.start_with_rules()
    score = PublishEvent(servers.admit_envelope(fact_envelope("order.score", 0.95)))
    cited = [await record_event(sequencer, command) for command in (servers.fact(), score)]
    proposed = SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope(cited))))
    review = await record_event(sequencer, proposed)
    assert decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW == review.decision.outcome
    sequencer.recent_events.remove_citable(cited[0].sequence_number)
    await servers.log.trim(cited[1].sequence_number)

    def verdict(value: ReviewVerdict.ValueType) -> Command:
        request = ResolveReviewRequest(decision_id=review.event_id, verdict=value, reviewer="ada", reason="seen", event_id=servers.new_id())
        return resolution(request)

    refused = await execute(sequencer, verdict(REVIEW_VERDICT_APPROVE))
    assert "LOG_UNAVAILABLE" == reason(refused)
    assert isinstance(await execute(sequencer, verdict(REVIEW_VERDICT_REJECT)), CommittedAnswer)


@with_servers
async def test_a_bus_with_an_open_review_is_not_idle(servers: Servers) -> None:
    """A bus stays in memory while a person has to decide: its gauges say for how long the review has waited."""
    sequencer, _ = await servers.start_with_rules()
    assert sequencer.is_idle
    score = PublishEvent(servers.admit_envelope(fact_envelope("order.score", 0.95)))
    cited = [await record_event(sequencer, command) for command in (servers.fact(), score)]
    await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope(cited)))))
    assert not sequencer.has_live_decisions
    assert not sequencer.is_idle


# Ended decisions


@with_servers
async def test_start_at_a_server_that_is_behind(servers: Servers) -> None:
    """A server that does not know an approval yet reads on before it answers a start."""
    one, _ = await servers.start_with_rules()
    other, _ = await servers.start()
    fact = await record_event(one, servers.fact())
    approval = await record_event(one, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
    attempt = await execute(other, BeginExecution(approval.event_id, EXECUTOR, 1_000))
    assert isinstance(attempt, CommittedAnswer)
    assert isinstance(attempt.answer, LeasedAttempt)
    refusal = await execute(one, BeginExecution(approval.event_id, OTHER_EXECUTOR, 1_000))
    assert isinstance(refusal, CommittedAnswer)
    assert isinstance(refusal.answer, AttemptRefusal)
    assert reason_codes.ALREADY_RUNNING == refusal.answer.reason_code


@with_servers
async def test_start_after_the_expiry_is_expired(servers: Servers) -> None:
    """A start of an expired approval is EXPIRED, in the batch in which it expires and long after."""
    sequencer, _ = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    approval = await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
    servers.offset_ms += 10_000
    start = BeginExecution(approval.event_id, EXECUTOR, 1_000)
    _, at_once = await asyncio.gather(execute(sequencer, servers.fact()), execute(sequencer, start))
    fresh, _ = await servers.start()
    later = [await execute(server, start) for server in (sequencer, fresh)]
    answers = [result.answer for result in (at_once, *later) if isinstance(result, CommittedAnswer)]
    assert [reason_codes.EXPIRED] * 3 == [answer.reason_code for answer in answers if isinstance(answer, AttemptRefusal)]
