"""The sequencer when things go wrong: faults of the log, clocks that are off, full queues, shutdown. In virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import PublishEvent, SubmitProposal
from gavel_rules.events import ARBITER_VERSION
from gavel_server.bus import sequencer as sequencer_module
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.bus.planning import Completed
from gavel_server.errors import ServiceError
from gavel_server.log import Entry, LogCorruptError, LogUnavailableError, OutcomeUnknownError, Record, chain
from gavel_server.log.memory import MemoryLog

from tests.faults import FaultRates, FaultyLog
from tests.simulation.virtual import run_virtually
from tests.unit.core.driver import BUS, WEEK_MS, event_id, proposal_envelope, rechained
from tests.unit.core.servers import Servers, again, reason, recorded, scene, tell

# Faults of the log


@scene
async def test_an_unknown_outcome_is_found_out(servers: Servers) -> None:
    """Whether an append whose answer was lost is in or not, its callers hear once, and the event stands in the log once."""
    sequencer, log = await servers.start()
    log.after = [OutcomeUnknownError("lost answer")]
    first = await recorded(sequencer, servers.fact())
    log.before = [OutcomeUnknownError("lost request")]
    second = await recorded(sequencer, servers.fact())
    assert [2, 3] == [first.sequence_number, second.sequence_number]
    assert 3 == len(await servers.events())


@scene
async def test_an_outage_is_said_and_passes(servers: Servers) -> None:
    """While the log is away commands hear LOG_UNAVAILABLE; when it is back they go through, the same ones too."""
    sequencer, log = await servers.start()
    log.before = [LogUnavailableError("connection refused")]
    fact = servers.fact()
    assert "LOG_UNAVAILABLE" == reason(await tell(sequencer, again(fact)))
    log.broken = LogUnavailableError("connection refused")
    await asyncio.sleep(1)
    assert "LOG_UNAVAILABLE" == reason(await tell(sequencer, again(fact)))
    log.broken = None
    await asyncio.sleep(1)
    assert fact.envelope.event_id == (await recorded(sequencer, again(fact))).event_id


@scene
async def test_timers_speak_after_an_outage(servers: Servers) -> None:
    """A timer that fell due while the log was away speaks when it is back, on an idle bus too."""
    sequencer, log = await servers.governed()
    fact = await recorded(sequencer, servers.fact())
    await recorded(sequencer, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    log.broken = LogUnavailableError("connection refused")
    log.before = [LogUnavailableError("connection refused")] * 3
    await asyncio.sleep(30)
    log.broken, log.before = None, []
    await asyncio.sleep(5)
    assert "DecisionExpired" == (await servers.events())[-1].event_name


@scene
async def test_a_log_that_contradicts_itself_is_not_written(servers: Servers) -> None:
    """A corrupt log is refused for good, and readers still see the last good state, also when an outcome was in doubt."""
    sequencer, log = await servers.start()
    digest = (await sequencer.settled()).digest()
    log.before, log.broken = [OutcomeUnknownError("lost request")], LogCorruptError("hash chain broken")
    assert "LOG_UNAVAILABLE" == reason(await tell(sequencer, servers.fact()))
    log.broken = None
    await asyncio.sleep(5)
    assert "LOG_UNAVAILABLE" == reason(await tell(sequencer, servers.fact()))
    assert digest == (await asyncio.wait_for(sequencer.settled(), 10)).digest()
    assert 1 == len(await servers.events())


async def _append(log: MemoryLog, records: Sequence[Any], servers: Servers) -> None:
    for record in records:
        head = await log.head()
        event = Envelope.FromString(record.envelope)
        entry = Entry(record.sequence_number, record.envelope, record.chain_hash, event.event_id, "")
        await log.append(head, [entry], servers.now_ms(), [])


@pytest.mark.parametrize("loss", ["shorter", "other"])
def test_a_log_that_lost_acknowledged_events_is_not_written(loss: str) -> None:
    """A log that is behind what was acknowledged, or has something else there, is LOG_REGRESSED: nothing is ever appended to it."""

    async def main() -> None:
        servers = Servers()
        sequencer, counting = await servers.start()
        await recorded(sequencer, servers.fact())
        await recorded(sequencer, servers.fact("later"))
        kept = (await servers.log.read(1, 2, 10))[:2]
        lost = MemoryLog(BUS, servers.now_ms, WEEK_MS)
        if loss == "other":
            events = await servers.events()
            events[2].event_name = "SomethingElse"
            kept = rechained(BUS, events)
        await _append(lost, kept, servers)
        counting._log = lost
        await asyncio.sleep(1)
        result = await tell(sequencer, servers.fact())
        if loss == "shorter":
            assert "LOG_REGRESSED" == reason(result)
        else:
            assert isinstance(result, ServiceError)
            assert "LOG_REGRESSED" == reason(await tell(sequencer, servers.fact()))
        assert len(kept) == (await lost.head()).sequence_number

    run_virtually(main())


def test_a_loss_is_noticed_after_a_restart(tmp_path: Path) -> None:
    """The checkpoint outside of the log says what had been acknowledged: a server that starts on less does not write."""

    async def main() -> None:
        servers = Servers()
        path = tmp_path / "checkpoint.json"
        sequencer, _ = await servers.start(checkpoint=Checkpoint(path))
        await recorded(sequencer, servers.fact())
        await recorded(sequencer, servers.fact())
        await sequencer.stop()
        lost = MemoryLog(BUS, servers.now_ms, WEEK_MS)
        await _append(lost, await servers.log.read(1, 2), servers)
        restarted, _ = await servers.start(checkpoint=Checkpoint(path), log=lost)
        refused = await tell(restarted, servers.fact())
        assert "LOG_REGRESSED" == reason(refused)
        assert f"event 3 was acknowledged ({path} says so), but the log, whose head is 2" in str(refused)
        whole, _ = await servers.start(checkpoint=Checkpoint(path))
        await recorded(whole, servers.fact())

    asyncio.run(main())


def test_a_loss_that_a_running_server_noticed_is_known_after_a_restart(tmp_path: Path) -> None:
    """What a server had acknowledged when the log lost it is in the checkpoint, to the last event."""

    async def main() -> None:
        servers = Servers()
        path = tmp_path / "checkpoint.json"
        sequencer, counting = await servers.start(checkpoint=Checkpoint(path))
        await recorded(sequencer, servers.fact())
        await recorded(sequencer, servers.fact())
        lost = MemoryLog(BUS, servers.now_ms, WEEK_MS)
        await _append(lost, await servers.log.read(1, 2), servers)
        counting._log = lost
        while sequencer.unwritable() is None:  # noqa: ASYNC110 - it looks at the log now and then, and sets no event
            await asyncio.sleep(0.01)
        await sequencer.stop()
        kept = Checkpoint(path).load(BUS)
        assert kept == sequencer.head
        assert 3 == kept.sequence_number
        restarted, _ = await servers.start(checkpoint=Checkpoint(path), log=lost)
        await restarted.stop()
        assert kept == Checkpoint(path).load(BUS)

    asyncio.run(main())


@scene
async def test_a_tampered_log_does_not_start(servers: Servers) -> None:
    """A server that reads a log whose chain breaks does not serve it."""
    await servers.start()
    events = await servers.events()
    records = rechained(BUS, events)
    bad = MemoryLog(BUS, servers.now_ms, WEEK_MS)
    await _append(bad, [Record(1, records[0].envelope, chain(b"", b""))], servers)
    with pytest.raises(LogCorruptError, match="hash chain breaks at event 1"):
        await servers.start(log=bad)


@scene
async def test_semantics_that_this_build_does_not_have(servers: Servers) -> None:
    """A bus of another arbiter_version can be read, and is not written."""
    await servers.start()
    events = await servers.events()
    events[0].fact.bus_opened.arbiter_version = ARBITER_VERSION + 1
    newer = MemoryLog(BUS, servers.now_ms, WEEK_MS)
    await _append(newer, rechained(BUS, events), servers)
    sequencer, _ = await servers.start(log=newer)
    assert ARBITER_VERSION + 1 == (await sequencer.settled()).arbiter_version
    assert "ARBITER_VERSION_NOT_IMPLEMENTED" == reason(await tell(sequencer, servers.fact()))


# The clock


@scene
async def test_a_clock_that_is_off_does_not_write(servers: Servers) -> None:
    """A server whose clock differs from the store's by more than a second answers CLOCK_SKEW, and reads go on."""
    await servers.start()
    sequencer, _ = await servers.start(skew_ms=1_500)
    assert "CLOCK_SKEW" == reason(await tell(sequencer, servers.fact()))
    assert 1 == (await sequencer.settled()).head


@scene
async def test_a_clock_far_behind_the_log_does_not_write(servers: Servers) -> None:
    """A clock that was turned back by more than five seconds writes again when it has caught up."""
    sequencer, _ = await servers.start()
    await recorded(sequencer, servers.fact())
    servers.offset_ms -= 6_000
    assert "CLOCK_SKEW" == reason(await tell(sequencer, servers.fact()))
    await asyncio.sleep(1.1)
    await recorded(sequencer, servers.fact())


# Limits and the end


@scene
async def test_a_full_queue_says_so(servers: Servers) -> None:
    """Beyond the queue's limit a command is refused at once with QUEUE_FULL; what is queued is answered."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    limit = sequencer_module.QUEUE_COMMANDS_MAX
    heard: list[Completed | ServiceError] = []
    fact = servers.fact()
    for number in range(limit + 1):
        copy = again(fact)
        copy.envelope.event_id = event_id(10_000 + number)
        if number == limit:
            with pytest.raises(ServiceError) as caught:
                sequencer.submit(copy, heard.append)
            assert "QUEUE_FULL" == reason(caught.value)
        else:
            sequencer.submit(copy, heard.append)
    await asyncio.sleep(60)
    assert limit == len(heard)
    assert all(isinstance(result, Completed) for result in heard)


@scene
async def test_stopping_commits_what_is_queued(servers: Servers) -> None:
    """A server that stops answers everything that it has taken, and takes no more."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    tasks = [asyncio.create_task(tell(sequencer, servers.fact(number))) for number in range(30)]
    await asyncio.sleep(0.001)
    stopping = asyncio.create_task(sequencer.stop())
    await asyncio.sleep(0)
    assert "SHUTTING_DOWN" == reason(await tell(sequencer, servers.fact()))
    assert {Completed} == {type(result) for result in await asyncio.gather(*tasks)}
    await stopping
    assert 31 == len(await servers.events())


@scene
async def test_one_caller_s_mistake_is_his_own(servers: Servers) -> None:
    """A callback that raises keeps nobody else from his answer."""
    sequencer, _ = await servers.start()
    heard: list[Completed | ServiceError] = []

    def broken(result: Completed | ServiceError) -> None:
        raise RuntimeError("a caller's own bug")

    sequencer.submit(servers.fact(), broken)
    sequencer.submit(servers.fact(), heard.append)
    await asyncio.sleep(1)
    assert 1 == len(heard)


@scene
async def test_readers_see_the_committed_state_only(servers: Servers) -> None:
    """A reader that comes during an append waits for it, and gets the state after it, also when nothing follows."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    task = asyncio.create_task(tell(sequencer, servers.fact()))
    await asyncio.sleep(0.005)
    state = await asyncio.wait_for(sequencer.settled(), 10)
    assert 2 == state.head
    await task


@scene
async def test_waiting_for_a_number(servers: Servers) -> None:
    """Whoever waits for a number goes on when the state has come so far, by whichever server; or hears that it has not."""
    one, _ = await servers.start()
    other, _ = await servers.start()
    waiting = asyncio.create_task(other.wait_for(3, 10_000))
    await recorded(one, servers.fact())
    await recorded(one, servers.fact())
    await waiting
    assert 3 == other.head.sequence_number
    with pytest.raises(ServiceError) as caught:
        await other.wait_for(4, 100)
    assert "PROJECTION_BEHIND" == reason(caught.value)


@scene
async def test_faults_of_every_kind_at_once(servers: Servers) -> None:
    """Under constant faults every command comes through in the end, once, when its caller keeps asking."""
    rates = FaultRates(applied_but_unknown=0.2, lost_and_unknown=0.2, unavailable=0.2)
    first, _ = await servers.start()
    sequencer, _ = await servers.start(log=FaultyLog(servers.log, random.Random(1), rates))
    facts = [servers.fact(number) for number in range(60)]

    async def persist(fact: PublishEvent) -> None:
        for _ in range(100):
            if isinstance(await tell(sequencer, again(fact)), Completed):
                return
            await asyncio.sleep(0.1)

    await asyncio.gather(*(persist(fact) for fact in facts))
    assert sorted(fact.envelope.event_id for fact in facts) == sorted(event.event_id for event in (await servers.events())[1:])
    await first.wait_for(61, 10_000)
    assert (await first.settled()).digest() == (await sequencer.settled()).digest()
    await servers.prove()


@scene
async def test_an_effect_does_not_overtake_its_cause(servers: Servers) -> None:
    """Where an append under way loses to another server's, what names its events as causes waits until they are in."""
    sequencer, log = await servers.start()
    other, _ = await servers.start()
    log.pause_seconds = 0.01
    cause = servers.fact(trace_id="the-trace")
    commands = [cause, *(servers.fact(number) for number in range(200)), servers.caused(cause.envelope.event_id)]
    tasks = [asyncio.create_task(tell(sequencer, command)) for command in commands]
    await asyncio.sleep(0.005)
    await recorded(other, servers.fact())
    results = await asyncio.gather(*tasks)
    assert {Completed} == {type(result) for result in results}, [result for result in results if isinstance(result, ServiceError)]
