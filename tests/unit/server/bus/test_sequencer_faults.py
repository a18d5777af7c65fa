"""The sequencer under faults: of the log, of clocks, full queues, shutdown. In virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import DataLossAccepted
from gavel_rules.commands import (
    AcceptClock,
    AcceptLoss,
    ActivateRuleSet,
    BeginExecution,
    Command,
    DeployRuleSet,
    PublishEvent,
    SubmitProposal,
)
from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.events.proposal_view import ProposalView
from gavel_server.archive.archive import Archive
from gavel_server.archive.archived_log import ArchivedLog
from gavel_server.archive.storage import ArchiveError
from gavel_server.bus import sequencer as sequencer_module
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.bus.recent_events import RecentEvents
from gavel_server.bus.request import CommittedAnswer, Request
from gavel_server.errors import ServiceError
from gavel_server.log import (
    Entry,
    Head,
    LogCorruptError,
    LogUnavailableError,
    OutcomeUnknownError,
    Record,
    UntimelyError,
    chain,
)
from gavel_server.log.memory import MemoryLog
from gavel_server.log.protocol import DAY_MS

from tests.simulation.virtual_time import run_virtually
from tests.support.driver import BUS, EXECUTOR, WEEK_MS, compile_cached, event_id, proposal_envelope
from tests.support.entries import rechain
from tests.support.simulation.faults import FaultRates, FaultyLog
from tests.support.simulation.servers import TEXT, CountingLog, Servers, execute, reason, record_event, repeat_command, with_servers

# Faults of the log


@with_servers
async def test_unknown_outcome_is_settled(servers: Servers) -> None:
    """An append with a lost reply is settled: its callers are answered once, and its event is in the log once."""
    sequencer, log = await servers.start()
    log.errors_after = [OutcomeUnknownError("lost answer")]
    first = await record_event(sequencer, servers.fact())
    log.errors_before = [OutcomeUnknownError("lost request")]
    second = await record_event(sequencer, servers.fact())
    assert [2, 3] == [first.sequence_number, second.sequence_number]
    assert 3 == len(await servers.events())


@with_servers
async def test_commands_fail_during_an_outage_only(servers: Servers) -> None:
    """While the log is away commands get LOG_UNAVAILABLE; afterwards they succeed, repeated ones too."""
    sequencer, log = await servers.start()
    log.errors_before = [LogUnavailableError("connection refused")]
    fact = servers.fact()
    assert "LOG_UNAVAILABLE" == reason(await execute(sequencer, repeat_command(fact)))
    log.head_error = LogUnavailableError("connection refused")
    await asyncio.sleep(1)
    assert "LOG_UNAVAILABLE" == reason(await execute(sequencer, repeat_command(fact)))
    log.head_error = None
    await asyncio.sleep(1)
    assert fact.envelope.event_id == (await record_event(sequencer, repeat_command(fact))).event_id


@with_servers
async def test_timers_fire_after_an_outage(servers: Servers) -> None:
    """A timer that fell due during an outage is emitted after it, also on an idle bus."""
    sequencer, log = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
    log.head_error = LogUnavailableError("connection refused")
    log.errors_before = [LogUnavailableError("connection refused")] * 3
    await asyncio.sleep(30)
    log.head_error, log.errors_before = None, []
    await asyncio.sleep(5)
    assert "DecisionExpired" == (await servers.events())[-1].event_name


class UnreadableArchive:
    """An archive that has the events up to `end`, and whose storage does not answer."""

    storage = SimpleNamespace(place="s3://archive")

    def __init__(self, end: int) -> None:
        self.end = Head(end, b"")

    async def read_many(self, _: Sequence[int]) -> dict[int, Record]:
        """See Archive."""
        raise ArchiveError("cannot reach s3://archive")


@pytest.mark.parametrize("kind", ["citation", "cause", "decision", "repeat in memory", "repeat in the index", "repeat with its cause"])
def test_an_unreadable_archive_costs_only_requests_that_need_it(kind: str) -> None:
    """A request that needs an archived event gets LOG_UNAVAILABLE while the archive is away; others of its batch are recorded."""

    async def main() -> None:
        servers = Servers()
        archive = UnreadableArchive(0)
        sequencer, _ = await servers.start(log=ArchivedLog(servers.log, cast("Archive", archive)))
        await sequencer.execute(DeployRuleSet(servers.new_id(), compile_cached(TEXT), TEXT))
        await sequencer.execute(ActivateRuleSet(servers.new_id(), "refunds", 1, None))
        old = servers.fact()
        fact = await record_event(sequencer, repeat_command(old))
        decision = await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
        effect = servers.effect_of(fact.event_id)
        if kind == "repeat with its cause":
            await record_event(sequencer, repeat_command(effect))
        servers.offset_ms += DAY_MS  # the approval expires
        last = await record_event(sequencer, servers.fact())
        await servers.log.trim(last.sequence_number)
        archive.end = Head(last.sequence_number - 1, b"")
        if kind != "repeat in memory":
            sequencer.replica.recent_events = RecentEvents(sequencer.log)
        commands: dict[str, Command] = {
            "citation": SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))),
            "cause": effect,
            "decision": BeginExecution(decision.event_id, EXECUTOR, 60_000, request_id=servers.new_id()),
            "repeat in memory": old,
            "repeat in the index": old,
            "repeat with its cause": effect,
        }
        waiter: list[CommittedAnswer | ServiceError] = []
        sequencer.replica.contest_waiters.add(event_id(900), Request(old, waiter.append, "", 0))
        batch = [servers.fact(1), commands[kind], servers.fact(2)]
        before, refused, after = await asyncio.gather(*(execute(sequencer, command) for command in batch))
        assert "LOG_UNAVAILABLE" == reason(refused)
        assert "cannot reach s3://archive" in str(refused)
        assert [CommittedAnswer, CommittedAnswer] == [type(before), type(after)]
        assert sequencer.write_error() is None
        assert [] == waiter

    run_virtually(main())


@with_servers
async def test_corrupt_log_is_not_written_to(servers: Servers) -> None:
    """A corrupt log takes no more writes, and readers see the last good state, also if an outcome was unknown."""
    sequencer, log = await servers.start()
    digest = (await sequencer.settled_state()).digest()
    log.errors_before, log.head_error = [OutcomeUnknownError("lost request")], LogCorruptError("hash chain broken")
    assert "LOG_UNAVAILABLE" == reason(await execute(sequencer, servers.fact()))
    log.head_error = None
    await asyncio.sleep(5)
    assert "LOG_UNAVAILABLE" == reason(await execute(sequencer, servers.fact()))
    assert digest == (await asyncio.wait_for(sequencer.settled_state(), 10)).digest()
    assert 1 == len(await servers.events())


async def _append(log: MemoryLog, records: Sequence[Any], servers: Servers) -> None:
    for record in records:
        head = await log.head()
        event = Envelope.FromString(record.envelope)
        entry = Entry(record.sequence_number, record.envelope, record.chain_hash, event.event_id, "")
        await log.append(head, [entry], servers.now_ms(), [])


@pytest.mark.parametrize("loss", ["shorter", "other"])
def test_regressed_log_is_not_written_to(loss: str) -> None:
    """A log that lacks acknowledged events or has others in their place is LOG_REGRESSED and never appended to."""

    async def main() -> None:
        servers = Servers()
        sequencer, counting = await servers.start()
        await record_event(sequencer, servers.fact())
        await record_event(sequencer, servers.fact("later"))
        records = (await servers.log.read(1, 2, 10))[:2]
        lost = MemoryLog(BUS, servers.now_ms, WEEK_MS)
        if loss == "other":
            events = await servers.events()
            events[2].event_name = "SomethingElse"
            records = rechain(BUS, events)
        await _append(lost, records, servers)
        counting._log = lost
        await asyncio.sleep(1)
        result = await execute(sequencer, servers.fact())
        if loss == "shorter":
            assert "LOG_REGRESSED" == reason(result)
        else:
            assert isinstance(result, ServiceError)
            assert "LOG_REGRESSED" == reason(await execute(sequencer, servers.fact()))
        assert len(records) == (await lost.head()).sequence_number

    run_virtually(main())


def test_regression_is_detected_after_a_restart(tmp_path: Path) -> None:
    """A server that starts on a log behind its checkpoint does not write."""

    async def main() -> None:
        servers = Servers()
        path = tmp_path / "checkpoint.json"
        sequencer, _ = await servers.start(checkpoint=Checkpoint(path))
        await record_event(sequencer, servers.fact())
        await record_event(sequencer, servers.fact())
        await sequencer.stop()
        lost = MemoryLog(BUS, servers.now_ms, WEEK_MS)
        await _append(lost, await servers.log.read(1, 2), servers)
        restarted, _ = await servers.start(checkpoint=Checkpoint(path), log=lost)
        refusal = await execute(restarted, servers.fact())
        assert "LOG_REGRESSED" == reason(refusal)
        assert f"has lost acknowledged events: event 3 (see {path}) is missing from the log or replaced (head: 2)" in str(refusal)
        whole, _ = await servers.start(checkpoint=Checkpoint(path))
        await record_event(whole, servers.fact())

    asyncio.run(main())


def test_an_operator_accepts_a_loss(tmp_path: Path) -> None:
    """The acceptance directly follows the end of the log, timers that are due come after it, and the checkpoint follows the log again."""

    async def main() -> None:
        servers = Servers()
        path = tmp_path / "checkpoint.json"
        sequencer, _ = await servers.start(checkpoint=Checkpoint(path))
        await sequencer.execute(DeployRuleSet(servers.new_id(), compile_cached(TEXT), TEXT))
        await sequencer.execute(ActivateRuleSet(servers.new_id(), "refunds", 1, None))
        fact = await record_event(sequencer, servers.fact())
        await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
        head = sequencer.head
        await record_event(sequencer, servers.fact())
        await sequencer.stop()
        lost = MemoryLog(BUS, servers.now_ms, WEEK_MS)
        await _append(lost, await servers.log.read(1, head.sequence_number), servers)
        servers.log = lost
        servers.offset_ms += 30_000  # twice the time that the approval holds, and more
        restarted, _ = await servers.start(checkpoint=Checkpoint(path))
        assert head == await lost.head()

        def acceptance(number: int) -> AcceptLoss:
            accepted = DataLossAccepted(accepted_by="ada", head_sequence_number=number, head_chain_hash=head.chain_hash)
            return AcceptLoss(servers.new_id(), accepted)

        assert "WRONG_STATE" == reason(await execute(restarted, acceptance(head.sequence_number + 1)))
        refused, accepted = await asyncio.gather(execute(restarted, servers.fact()), execute(restarted, acceptance(head.sequence_number)))
        assert "LOG_REGRESSED" == reason(refused)
        assert isinstance(accepted, CommittedAnswer)
        await record_event(restarted, servers.fact())
        events = (await servers.events())[head.sequence_number :]
        assert ["DataLossAccepted", "DecisionExpired", "FactRecorded"] == [event.event_name for event in events]
        await restarted.stop()
        assert restarted.head == Checkpoint(path).head_of(BUS)
        await servers.prove()

    asyncio.run(main())


def test_detected_regression_is_in_the_checkpoint(tmp_path: Path) -> None:
    """The checkpoint holds what a server had acknowledged when the log lost it, up to the last event."""

    async def main() -> None:
        servers = Servers()
        path = tmp_path / "checkpoint.json"
        sequencer, counting = await servers.start(checkpoint=Checkpoint(path))
        await record_event(sequencer, servers.fact())
        await record_event(sequencer, servers.fact())
        lost = MemoryLog(BUS, servers.now_ms, WEEK_MS)
        await _append(lost, await servers.log.read(1, 2), servers)
        counting._log = lost
        while sequencer.write_error() is None:  # noqa: ASYNC110 - the poll of the log sets no event
            await asyncio.sleep(0.01)
        await sequencer.stop()
        head = Checkpoint(path).head_of(BUS)
        assert head == sequencer.head
        assert 3 == head.sequence_number
        restarted, _ = await servers.start(checkpoint=Checkpoint(path), log=lost)
        await restarted.stop()
        assert head == Checkpoint(path).head_of(BUS)

    asyncio.run(main())


@with_servers
async def test_log_with_a_broken_chain_is_not_served(servers: Servers) -> None:
    """A server does not serve a log whose hash chain breaks."""
    await servers.start()
    events = await servers.events()
    records = rechain(BUS, events)
    bad = MemoryLog(BUS, servers.now_ms, WEEK_MS)
    await _append(bad, [Record(1, records[0].envelope, chain(b"", b""))], servers)
    with pytest.raises(LogCorruptError, match="hash chain breaks at event 1"):
        await servers.start(log=bad)


@with_servers
async def test_unknown_arbiter_version(servers: Servers) -> None:
    """A bus with another arbiter_version can be read and is not written."""
    await servers.start()
    events = await servers.events()
    events[0].fact.bus_opened.arbiter_version = ARBITER_VERSION + 1
    newer = MemoryLog(BUS, servers.now_ms, WEEK_MS)
    await _append(newer, rechain(BUS, events), servers)
    sequencer, _ = await servers.start(log=newer)
    assert ARBITER_VERSION + 1 == (await sequencer.settled_state()).arbiter_version
    assert "ARBITER_VERSION_NOT_IMPLEMENTED" == reason(await execute(sequencer, servers.fact()))


# The clock


@with_servers
async def test_clock_skew_refuses_writes(servers: Servers) -> None:
    """A server whose clock differs from the store's by more than a second answers CLOCK_SKEW to writes and serves reads."""
    await servers.start()
    sequencer, _ = await servers.start(skew_ms=1_500)
    assert "CLOCK_SKEW" == reason(await execute(sequencer, servers.fact()))
    assert 1 == (await sequencer.settled_state()).head


@with_servers
async def test_clock_far_behind_the_log_refuses_writes(servers: Servers) -> None:
    """A clock turned back by more than five seconds writes again after it has caught up."""
    sequencer, _ = await servers.start()
    await record_event(sequencer, servers.fact())
    servers.offset_ms -= 6_000
    assert "CLOCK_SKEW" == reason(await execute(sequencer, servers.fact()))
    await asyncio.sleep(1.1)
    await record_event(sequencer, servers.fact())


@with_servers
async def test_a_wall_clock_that_jumps_dates_nothing_ahead(servers: Servers) -> None:
    """While a server's wall clock is an hour ahead, under load or idle, it dates events rightly, ends no approval, and others write on."""
    jump_ms = 0
    jumping, _ = await servers.start(skew_ms=lambda: jump_ms)
    other, _ = await servers.start()
    for command in (DeployRuleSet(servers.new_id(), compile_cached(TEXT), TEXT), ActivateRuleSet(servers.new_id(), "refunds", 1, None)):
        await jumping.execute(command)
    fact = await record_event(jumping, servers.fact())
    await record_event(jumping, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
    jump_ms = 3_600_000
    for pause_seconds in (*[0.01] * 100, 3.0):
        await asyncio.sleep(pause_seconds)
        written = await record_event(jumping, servers.fact())
        assert written.recorded_at.ToMilliseconds() <= servers.now_ms()
        await record_event(other, servers.fact())
    jump_ms = 0
    await record_event(other, servers.fact())
    assert "DecisionExpired" not in {event.event_name for event in await servers.events()}
    await servers.prove()


@with_servers
async def test_an_append_that_the_log_finds_untimely(servers: Servers) -> None:
    """A batch that was too long on its way into the log is decided again, at another time; after the second refusal its callers hear it."""
    sequencer, log = await servers.start()
    log.errors_before = [UntimelyError(0, 10_000)]
    await record_event(sequencer, servers.fact())
    log.errors_before = [UntimelyError(0, 10_000), UntimelyError(0, 10_000)]
    assert "CLOCK_SKEW" == reason(await execute(sequencer, servers.fact()))
    await record_event(sequencer, servers.fact())


@with_servers
async def test_no_bus_opens_with_an_untimely_event(servers: Servers) -> None:
    """A server whose first append is refused for its date twice does not open the bus, and says why."""

    class UntimelyLog(CountingLog):
        async def append(self, *arguments: Any) -> None:
            raise UntimelyError(0, 10_000)

    with pytest.raises(ServiceError) as error_info:
        await servers.start(log=UntimelyLog(servers.log))
    assert "CLOCK_SKEW" == reason(error_info.value)


@with_servers
async def test_an_operator_accepts_a_bus_that_is_ahead(servers: Servers) -> None:
    """A bus an hour ahead takes no command but its acceptance; then every server writes, never before the last event, and timers fire."""
    sequencer, _ = await servers.start_with_rules()
    other, _ = await servers.start()
    servers.offset_ms += 3_600_000
    fact = await record_event(sequencer, servers.fact())
    await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
    servers.offset_ms -= 3_600_000
    assert "CLOCK_SKEW" == reason(await execute(sequencer, servers.fact()))
    acceptance = AcceptClock(servers.new_id(), servers.now_ms(), "ada", "the host was set wrongly")
    refused, accepted = await asyncio.gather(execute(sequencer, servers.fact()), execute(sequencer, acceptance))
    assert "CLOCK_SKEW" == reason(refused)
    assert isinstance(accepted, CommittedAnswer)
    assert "WRONG_STATE" == reason(await execute(sequencer, AcceptClock(servers.new_id(), servers.now_ms(), "ada", "again")))
    times = [(await record_event(writer, servers.fact())).recorded_at.ToMilliseconds() for writer in (sequencer, other)]
    assert times == sorted(times)
    assert times[0] >= fact.recorded_at.ToMilliseconds()
    await asyncio.sleep(30)  # twice the time that the approval holds, and more
    assert "DecisionExpired" in {event.event_name for event in await servers.events()}
    await servers.prove()


# Limits and shutdown


@with_servers
async def test_full_queue_refuses_commands(servers: Servers) -> None:
    """A full queue refuses a command with QUEUE_FULL; queued commands are answered."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    limit = sequencer_module.QUEUE_COMMANDS_MAX
    results: list[CommittedAnswer | ServiceError] = []
    fact = servers.fact()
    for number in range(limit + 1):
        copy = repeat_command(fact)
        copy.envelope.event_id = event_id(10_000 + number)
        if number == limit:
            with pytest.raises(ServiceError) as error_info:
                sequencer.submit(copy, results.append)
            assert "QUEUE_FULL" == reason(error_info.value)
        else:
            sequencer.submit(copy, results.append)
    await asyncio.sleep(60)
    assert limit == len(results)
    assert all(isinstance(result, CommittedAnswer) for result in results)


@with_servers
async def test_stop_commits_queued_commands(servers: Servers) -> None:
    """A stopping server answers every queued command and takes no more."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    tasks = [asyncio.create_task(execute(sequencer, servers.fact(number))) for number in range(30)]
    await asyncio.sleep(0.001)
    stopping = asyncio.create_task(sequencer.stop())
    await asyncio.sleep(0)
    assert "SHUTTING_DOWN" == reason(await execute(sequencer, servers.fact()))
    assert {CommittedAnswer} == {type(result) for result in await asyncio.gather(*tasks)}
    await stopping
    assert 31 == len(await servers.events())


@with_servers
async def test_failing_callback_does_not_affect_other_callers(servers: Servers) -> None:
    """A callback that raises does not keep other callers from their answers."""
    sequencer, _ = await servers.start()
    results: list[CommittedAnswer | ServiceError] = []

    def broken(result: CommittedAnswer | ServiceError) -> None:
        raise RuntimeError("a caller's own bug")

    sequencer.submit(servers.fact(), broken)
    sequencer.submit(servers.fact(), results.append)
    await asyncio.sleep(1)
    assert 1 == len(results)


@with_servers
async def test_readers_see_the_committed_state_only(servers: Servers) -> None:
    """A reader that comes during an append gets the state after it, also if nothing follows."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    task = asyncio.create_task(execute(sequencer, servers.fact()))
    await asyncio.sleep(0.005)
    state = await asyncio.wait_for(sequencer.settled_state(), 10)
    assert 2 == state.head
    await task


@with_servers
async def test_waiting_for_a_number(servers: Servers) -> None:
    """A caller that waits for a sequence number goes on when the state reaches it, or gets PROJECTION_BEHIND."""
    one, _ = await servers.start()
    other, _ = await servers.start()
    task = asyncio.create_task(other.wait_for(3, 10_000))
    await record_event(one, servers.fact())
    await record_event(one, servers.fact())
    await task
    assert 3 == other.head.sequence_number
    with pytest.raises(ServiceError) as error_info:
        await other.wait_for(4, 100)
    assert "PROJECTION_BEHIND" == reason(error_info.value)


@with_servers
async def test_faults_of_every_kind_at_once(servers: Servers) -> None:
    """Under constant faults every command is recorded exactly once if its caller keeps trying."""
    rates = FaultRates(applied_but_unknown=0.2, lost_and_unknown=0.2, unavailable=0.2)
    first, _ = await servers.start()
    sequencer, _ = await servers.start(log=FaultyLog(servers.log, random.Random(1), rates))
    facts = [servers.fact(number) for number in range(60)]

    async def persist(fact: PublishEvent) -> None:
        for _ in range(100):
            if isinstance(await execute(sequencer, repeat_command(fact)), CommittedAnswer):
                return
            await asyncio.sleep(0.1)

    await asyncio.gather(*(persist(fact) for fact in facts))
    assert sorted(fact.envelope.event_id for fact in facts) == sorted(event.event_id for event in (await servers.events())[1:])
    await first.wait_for(61, 10_000)
    assert (await first.settled_state()).digest() == (await sequencer.settled_state()).digest()
    await servers.prove()


@with_servers
async def test_effect_waits_for_its_cause(servers: Servers) -> None:
    """If an append fails, commands that name its events as causes wait until these are recorded."""
    sequencer, log = await servers.start()
    other, _ = await servers.start()
    log.pause_seconds = 0.01
    cause = servers.fact(trace_id="the-trace")
    commands = [cause, *(servers.fact(number) for number in range(200)), servers.effect_of(cause.envelope.event_id)]
    tasks = [asyncio.create_task(execute(sequencer, command)) for command in commands]
    await asyncio.sleep(0.005)
    await record_event(other, servers.fact())
    results = await asyncio.gather(*tasks)
    assert {CommittedAnswer} == {type(result) for result in results}, [result for result in results if isinstance(result, ServiceError)]
