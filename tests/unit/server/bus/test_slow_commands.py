"""Costly decisions are made in slices by time, and in short batches. In virtual time, with a clock that every reading moves."""

from __future__ import annotations

import asyncio

from gavel_rules.commands import ActivateRuleSet, DeployRuleSet
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import BATCH_SECONDS_MAX
from gavel_server.errors import ServiceError
from gavel_server.intake.admission import admit_proposal
from gavel_server.process.time_slice import CALL_PASSES, SLICE_SECONDS, TimeSlice

from tests.support.driver import BUS, compile_cached, document, proposal_envelope
from tests.support.simulation.servers import Servers, record_event, with_servers


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
