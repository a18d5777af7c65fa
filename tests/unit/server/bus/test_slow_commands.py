"""Costly decisions are made in slices by time, and in short batches. In virtual time, with a clock that every reading moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, GraphTransition
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import (
    ActivateRuleSet,
    BeginExecution,
    Command,
    DeployRuleSet,
    EventAnswer,
    PublishEvent,
    SubmitProposal,
    command_envelope,
)
from gavel_rules.events.proposal_view import ProposalView
from gavel_server.bus.recent_events import CITED_READ_MAX, RecentEvents
from gavel_server.bus.references import LOOKUP_SECONDS_MAX
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import BATCH_COMMANDS_MAX, BATCH_SECONDS_MAX, Sequencer
from gavel_server.errors import ServiceError
from gavel_server.intake.admission import admit_proposal
from gavel_server.log import EventLog, IdEntry, Record
from gavel_server.process.time_slice import CALL_PASSES, SLICE_SECONDS, TimeSlice

from tests.simulation.virtual_time import run_virtually
from tests.support.driver import AGENT, BUS, EXECUTOR, compile_cached, document, proposal_envelope
from tests.support.simulation.servers import TEXT, Servers, execute, reason, record_event, repeat_command, with_servers


class Clock:
    """A clock that moves on by `step_seconds` whenever it is read."""

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds = step_seconds
        self.seconds = 0.0

    def read(self) -> float:
        """Return the time."""
        self.seconds += self.step_seconds
        return self.seconds


@with_servers
async def test_other_tasks_run_between_slow_decisions(servers: Servers) -> None:
    """If each decision takes a slice's time, a short call can come and be answered after each of them; fast ones share a slice."""
    passes_of: dict[float, int] = {}
    for step_seconds in (SLICE_SECONDS, 0.0):
        sequencer, log = await servers.start(monotonic=Clock(step_seconds).read)
        answers: list[CommittedAnswer | ServiceError] = []
        before = len(log.appended)
        for number in range(2):  # more slow ones would get a second batch
            sequencer.submit(servers.fact(number), answers.append)
        passes = 0
        while len(answers) < 2:
            await asyncio.sleep(0)
            passes += 1
        assert [CommittedAnswer] * 2 == [type(answer) for answer in answers]
        assert 1 == len(log.appended) - before
        passes_of[step_seconds] = passes
        await sequencer.stop()
    assert passes_of[SLICE_SECONDS] - passes_of[0.0] >= 2 * CALL_PASSES
    await servers.prove()


@with_servers
async def test_batch_of_slow_decisions_ends_early(servers: Servers) -> None:
    """A batch that takes long is appended with what is decided; the other commands follow in order, and every caller is answered."""
    sequencer, log = await servers.start(monotonic=Clock(BATCH_SECONDS_MAX / 8).read)
    answers: list[CommittedAnswer | ServiceError] = []
    before = len(log.appended)
    for number in range(100):
        sequencer.submit(servers.fact(f"{number:03}"), answers.append)
    await asyncio.sleep(1)
    assert [CommittedAnswer] * 100 == [type(answer) for answer in answers]
    assert len(log.appended) - before > 10
    values = [event.fact.value.string_value for event in await servers.events() if event.fact.key == "order.status"]
    assert [f"{number:03}" for number in range(100)] == values
    await servers.prove()


class SlowLog:
    """A log whose lookups take `pause_seconds`; `lookups` has their names, and `numbers` the events that were read."""

    def __init__(self, log: EventLog) -> None:
        self.bus = log.bus
        self.pause_seconds = 0.0
        self.lookups: list[str] = []
        self.numbers: list[int] = []
        self._log = log

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """See EventLog."""
        self.numbers += sequence_numbers
        await self._note("read_many")
        return await self._log.read_many(sequence_numbers)

    async def find(self, event_ids: Sequence[str], now_ms: int) -> dict[str, IdEntry]:
        """See EventLog."""
        await self._note("find")
        return await self._log.find(event_ids, now_ms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def _note(self, name: str) -> None:
        self.lookups.append(name)
        await asyncio.sleep(self.pause_seconds)


async def start_on_slow_log(servers: Servers) -> tuple[Sequencer, SlowLog]:
    """Start a server with rules on a log whose lookups take time once `pause_seconds` is set. Each append takes a millisecond."""
    log = SlowLog(servers.log)
    sequencer, counting = await servers.start(log=cast("EventLog", log))
    counting.pause_seconds = 0.001  # so that a batch that is repeated for ever does not stop the virtual time
    await sequencer.execute(DeployRuleSet(servers.new_id(), compile_cached(TEXT), TEXT))
    await sequencer.execute(ActivateRuleSet(servers.new_id(), "refunds", 1, None))
    return sequencer, log


def slow_down(sequencer: Sequencer, log: SlowLog) -> None:
    """Let lookups take time from now on, and the server forget the events in memory, as after a start from a snapshot."""
    sequencer.replica.recent_events = RecentEvents(sequencer.log)
    log.lookups.clear()
    log.numbers.clear()
    log.pause_seconds = LOOKUP_SECONDS_MAX


async def slow_commands(kind: str, servers: Servers, sequencer: Sequencer) -> list[Command]:
    """Return 20 commands, each with a lookup of its own."""
    facts = [await record_event(sequencer, servers.fact(number)) for number in range(20)]
    if kind == "causes":
        return [servers.effect_of(fact.event_id) for fact in facts]
    if kind == "transitions":
        return [transition(servers, [fact.event_id]) for fact in facts]
    if kind == "citations":
        return [SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))) for fact in facts]
    if kind == "decisions":
        return [BeginExecution(fact.event_id, EXECUTOR, 60_000, request_id=servers.new_id()) for fact in facts]
    commands: list[Command] = [servers.fact(number) for number in range(20)]
    for command in commands:
        await record_event(sequencer, repeat_command(command))
    return commands


def transition(servers: Servers, event_ids: Sequence[str]) -> PublishEvent:
    """Return the command to publish a step of a graph, with these events as its inputs and outputs."""
    step = GraphTransition(graph_node="triage", input_event_ids=event_ids, output_event_ids=event_ids)
    diagnostic = AgentDiagnostic(kind="GraphTransitioned", graph_transition=step)
    return PublishEvent(servers.admit_envelope(Envelope(subject="order/1", producer=AGENT, agent_diagnostic=diagnostic)))


@pytest.mark.parametrize("kind", ["causes", "transitions", "citations", "decisions", "repeats"])
def test_lookups_of_a_caller_do_not_hold_up_others(kind: str) -> None:
    """If lookups in the log take long, a batch makes few of them; another caller's fact is recorded, and all requests are answered."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await start_on_slow_log(servers)
        commands = await slow_commands(kind, servers, sequencer)
        slow_down(sequencer, log)
        answers: list[CommittedAnswer | ServiceError] = []
        for command in commands:
            envelope = command_envelope(command)
            key = envelope.event_id if envelope is not None else ""
            sequencer.submit(command, answers.append, key, caller="greedy:1")
        async with asyncio.timeout(10):
            await sequencer.execute(servers.fact("quick"), caller="other:1")
        # Those of one request, and the first one of the next batch.
        assert len(log.lookups) <= 4
        assert len(answers) <= 1
        await asyncio.sleep(10)
        assert 20 == len(answers)
        await servers.prove()

    run_virtually(main())


@with_servers
async def test_many_citations_are_read_over_several_batches(servers: Servers) -> None:
    """A proposal that cites many events is decided once all are read, each once; other callers' facts are recorded meanwhile."""
    sequencer, log = await start_on_slow_log(servers)
    facts = [await record_event(sequencer, servers.fact()) for _ in range(5 * CITED_READ_MAX)]
    slow_down(sequencer, log)
    proposal = servers.admit_envelope(proposal_envelope(facts))
    proposing = asyncio.create_task(sequencer.execute(SubmitProposal(ProposalView(proposal)), caller="greedy:1"))
    await asyncio.sleep(0)
    quick = 0
    async with asyncio.timeout(10):
        while not proposing.done():
            await sequencer.execute(servers.fact("quick"), caller="other:1")
            quick += 1
    assert quick >= 3
    assert ["read_many"] * 5 == log.lookups
    answer = (await proposing).answer
    assert isinstance(answer, EventAnswer)
    # One citation that is not found would make it UNKNOWN_EVENT.
    assert "FACT_SUPERSEDED" == answer.envelope.decision.reason_code
    await servers.prove()


@pytest.mark.parametrize("kind", ["citations", "transitions"])
def test_a_request_with_several_lookups_is_decided(kind: str) -> None:
    """Requests whose cause is also looked up are decided though each lookup takes all the time of a batch, and the bus can stop."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await start_on_slow_log(servers)
        causes = [await record_event(sequencer, servers.fact(number)) for number in range(20)]
        commands = await slow_commands(kind, servers, sequencer)
        answers: list[CommittedAnswer | ServiceError] = []
        for command, cause in zip(commands, causes, strict=True):
            envelope = command_envelope(command)
            assert envelope is not None
            envelope.causation_id = cause.event_id
            sequencer.submit(command, answers.append, caller="one:1")
        slow_down(sequencer, log)
        await asyncio.wait_for(sequencer.stop(), 60)
        assert [CommittedAnswer] * 20 == [type(answer) for answer in answers]
        await servers.prove()

    run_virtually(main())


@with_servers
async def test_callers_take_turns_at_lookups(servers: Servers) -> None:
    """If the requests of several callers need slow lookups, they are answered in turn, those of one caller in order."""
    sequencer, log = await start_on_slow_log(servers)
    callers = ["one:1", "two:1", "three:1", "four:1"]
    facts = {caller: [await record_event(sequencer, servers.fact()) for _ in range(30)] for caller in callers}
    slow_down(sequencer, log)
    order: list[str] = []
    for caller in callers:
        for fact in facts[caller]:
            sequencer.submit(servers.effect_of(fact.event_id), lambda _, caller=caller: order.append(caller), caller=caller)  # type: ignore[misc]
    await asyncio.sleep(20)
    assert callers * 30 == order
    causes = [event.causation_id for event in await servers.events() if event.causation_id]
    assert [facts[caller][number].event_id for number in range(30) for caller in callers] == causes


@with_servers
async def test_turns_at_lookups_outlast_reading_on(servers: Servers) -> None:
    """Requests that make the server read on, and are then resolved again, do not take another caller's turn at lookups."""
    sequencer, log = await start_on_slow_log(servers)
    facts = [await record_event(sequencer, servers.fact()) for _ in range(200)]
    slow_down(sequencer, log)
    order: list[str] = []
    for fact in facts[:150]:
        envelope = proposal_envelope([fact], projection_version=10**6)
        command = SubmitProposal(ProposalView(servers.admit_envelope(envelope)))
        sequencer.submit(command, lambda _: order.append("ahead:1"), caller="ahead:1")
    for fact in facts[150:]:
        sequencer.submit(servers.effect_of(fact.event_id), lambda _: order.append("other:1"), caller="other:1")
    await asyncio.sleep(20)
    assert 200 == len(order)
    assert order[:40].count("other:1") >= 10


@with_servers
async def test_callers_that_leave_do_not_wait_for_turns(servers: Servers) -> None:
    """A caller whose requests are answered or cancelled no longer counts among those that wait for a turn at lookups."""
    sequencer, log = await start_on_slow_log(servers)
    facts = [await record_event(sequencer, servers.fact()) for _ in range(4)]
    slow_down(sequencer, log)
    effects = [servers.effect_of(fact.event_id) for fact in facts]
    calls = [asyncio.create_task(sequencer.execute(effect, caller=f"{number}:1")) for number, effect in enumerate(effects)]
    await asyncio.sleep(3 * LOOKUP_SECONDS_MAX)  # a cause takes two lookups
    assert ["1:1", "2:1", "3:1"] == list(sequencer._resolution._waiting)
    calls[3].cancel()
    await asyncio.wait(calls, timeout=10)
    assert [True, True, True, False] == [call.done() and not call.cancelled() for call in calls]
    assert {} == sequencer._resolution._waiting


@with_servers
async def test_an_append_takes_no_time_of_lookups(servers: Servers) -> None:
    """If lookups wait for a slow append, those of a batch still have all their time after it."""
    log = SlowLog(servers.log)
    sequencer, counting = await servers.start(log=cast("EventLog", log))
    facts = [await record_event(sequencer, servers.fact(number)) for number in range(10)]
    slow_down(sequencer, log)
    log.pause_seconds = 0.001
    counting.pause_seconds = 2 * LOOKUP_SECONDS_MAX
    counting.appended.clear()
    answers: list[CommittedAnswer | ServiceError] = []
    for number in range(BATCH_COMMANDS_MAX):
        sequencer.submit(servers.fact(number), answers.append)
    for fact in facts:
        sequencer.submit(servers.effect_of(fact.event_id), answers.append)
    await asyncio.sleep(1)
    assert [BATCH_COMMANDS_MAX, 10] == counting.appended


@with_servers
async def test_citations_after_the_head_are_read_with_the_state(servers: Servers) -> None:
    """A cited event of another server is not looked up before the state has read on: until then a failover may lose it.

    What was looked up before is not looked up again.
    """
    sequencer, log = await start_on_slow_log(servers)
    old, head = [await record_event(sequencer, servers.fact()) for _ in range(2)]
    other, _ = await servers.start()
    new = await record_event(other, servers.fact())
    slow_down(sequencer, log)
    proposal = servers.admit_envelope(proposal_envelope([old, new]))
    answer = (await sequencer.execute(SubmitProposal(ProposalView(proposal)))).answer
    assert isinstance(answer, EventAnswer)
    assert OUTCOME_APPROVED == answer.envelope.decision.outcome
    assert [old.sequence_number, head.sequence_number] == log.numbers  # the head is read to see whether the log still has it
    await servers.prove()


@with_servers
async def test_events_of_transitions_are_looked_up_together(servers: Servers) -> None:
    """The events that transitions name are looked up in the index, once in a batch, and not read: they may be large, or archived."""
    sequencer, log = await start_on_slow_log(servers)
    facts = [await record_event(sequencer, servers.fact()) for _ in range(3)]
    slow_down(sequencer, log)
    event_ids = [fact.event_id for fact in facts]
    results = await asyncio.gather(*(execute(sequencer, transition(servers, event_ids * 20)) for _ in range(3)))
    assert [CommittedAnswer] * 3 == [type(result) for result in results]
    assert ["find"] == log.lookups
    unknown = servers.new_id()
    refused = await execute(sequencer, transition(servers, [*event_ids, unknown]))
    assert "EVENT_NOT_FOUND" == reason(refused)
    assert unknown in str(refused)


@with_servers
async def test_other_tasks_run_while_a_contest_closes(servers: Servers) -> None:
    """If judging a candidate takes a slice's time, other tasks run after each one when the contest closes, before all are decided."""
    clock = Clock(0.0)
    answers: list[CommittedAnswer | ServiceError] = []
    # How often the event loop ran other callbacks between two readings of the clock, and the answers given by then.
    passes: list[int] = []
    is_scheduled = False

    def count() -> None:
        nonlocal is_scheduled
        is_scheduled = False
        passes.append(len(answers))

    def read() -> float:
        nonlocal is_scheduled
        if clock.step_seconds and not is_scheduled:
            is_scheduled = True
            asyncio.get_running_loop().call_soon(count)
        return clock.read()

    sequencer, _ = await servers.start(monotonic=read)
    text = document(contest_window_ms=1_000)
    await sequencer.execute(DeployRuleSet(servers.new_id(), compile_cached(text), text))
    await sequencer.execute(ActivateRuleSet(servers.new_id(), "refunds", 1, None))
    fact = await record_event(sequencer, servers.fact())
    for number in range(12):
        envelope = proposal_envelope([fact], trace_id=f"trace-{number}", event_id=servers.new_id())
        sequencer.submit(admit_proposal(envelope, BUS)[0], answers.append)
    await asyncio.sleep(0.9)
    clock.step_seconds = 2 * SLICE_SECONDS
    await asyncio.sleep(1)
    clock.step_seconds = 0.0
    assert passes.count(0) >= 12
    assert [CommittedAnswer] * 12 == [type(answer) for answer in answers]
    await servers.prove()


@with_servers
async def test_slow_timers_are_recorded_in_several_commits(servers: Servers) -> None:
    """Timers that take long are appended as far as they have fired; the others and the commands after them follow, in order."""
    clock = Clock(0.0)
    sequencer, log = await servers.start(monotonic=clock.read)
    text = document(decision_ttl_ms=1_000)
    await sequencer.execute(DeployRuleSet(servers.new_id(), compile_cached(text), text))
    await sequencer.execute(ActivateRuleSet(servers.new_id(), "refunds", 1, None))
    for number in range(40):
        subject = f"order/{number}"
        fact = await record_event(sequencer, servers.fact(subject=subject))
        envelope = proposal_envelope([fact], subject=subject, trace_id=f"trace-{number}", event_id=servers.new_id())
        await sequencer.execute(admit_proposal(envelope, BUS)[0])
    before = len(log.appended)
    clock.step_seconds = BATCH_SECONDS_MAX / 8
    answers: list[CommittedAnswer | ServiceError] = []
    asyncio.get_running_loop().call_later(1.0, lambda: sequencer.submit(servers.fact("cancelled"), answers.append))
    await asyncio.sleep(5)
    assert 0 == sequencer.replica.state.due_count(sequencer.now_ms())
    assert len(log.appended) - before > 4
    events = await servers.events()
    expired = [event.decision.evaluated_at.ToMilliseconds() for event in events if event.decision.reason_code == "APPROVAL_EXPIRED"]
    assert 40 == len(expired)
    assert [CommittedAnswer] == [type(answer) for answer in answers]
    await servers.prove()


def test_turns_are_bounded_by_units_and_by_time() -> None:
    """A turn is over after its units or its time, whichever comes first."""
    clock = Clock(0.0)
    time_slice = TimeSlice(3, clock.read)
    assert [False, False, True] == [time_slice.is_over(1) for _ in range(3)]
    time_slice = TimeSlice(3, clock.read)
    clock.seconds += SLICE_SECONDS
    assert time_slice.is_over(1)
