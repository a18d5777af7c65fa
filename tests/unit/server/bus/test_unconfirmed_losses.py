"""A failover may lose events that the log took and never confirmed: the server goes on, because nobody was told that they are recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import PublishEvent
from gavel_server.bus.acknowledged_head import UNCONFIRMED_HEADS_MAX, AcknowledgedHead
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.bus.snapshot_writer import write_if_due
from gavel_server.bus.snapshots import BusSnapshots
from gavel_server.errors import ServiceError
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.log import Entry, Head, LogUnavailableError, NotReplicatedError
from gavel_server.log.memory import MemoryLog
from gavel_server.log.protocol import has_event

from tests.support.driver import BUS, WEEK_MS
from tests.support.simulation.servers import CountingLog, Servers, execute, reason, record_event, repeat_command


class ReplicatedLog(CountingLog):
    """A log whose only replica may be away: it then takes events and confirms none."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.has_replica = True
        self.pause: asyncio.Event | None = None  # a confirmation sets `is_waiting` and waits for it
        self.is_waiting = asyncio.Event()
        self._confirmed = 0

    async def append(
        self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None = None
    ) -> None:
        """Append, and confirm."""
        await super().append(expected, entries, recorded_at_ms, idempotency_keys, date_ms)
        await self.confirm(Head(entries[-1].sequence_number, entries[-1].chain_hash))

    def is_confirmed(self, sequence_number: int) -> bool:
        """See EventLog."""
        return sequence_number <= self._confirmed

    async def confirm(self, head: Head) -> None:
        """See EventLog."""
        if self.is_confirmed(head.sequence_number):
            return
        if self.pause is not None:
            self.is_waiting.set()
            await self.pause.wait()
        if not await has_event(self._log, head):
            raise LogUnavailableError(f"the log does not hold event {head.sequence_number} any more")
        if not self.has_replica:
            raise NotReplicatedError(f"events up to {head.sequence_number} are in the log, but it has no replica")
        self._confirmed = max(self._confirmed, head.sequence_number)

    async def fail_over(self, servers: Servers, last: int) -> None:
        """Go on with a replica that has the events up to this number."""
        replica = MemoryLog(BUS, servers.now_ms, WEEK_MS)
        for record in await servers.log.read(1, last) if last else []:
            event = Envelope.FromString(record.envelope)
            entry = Entry(record.sequence_number, record.envelope, record.chain_hash, event.event_id, "")
            await replica.append(await replica.head(), [entry], servers.now_ms(), [])
        self._log = servers.log = replica
        self.has_replica = True


async def start(servers: Servers, snapshots: BusSnapshots | None = None) -> tuple[Sequencer, ReplicatedLog]:
    """Start a server on a replicated log, and record an event."""
    log = ReplicatedLog(servers.log)
    sequencer, _ = await servers.start(log=log, snapshots=snapshots)
    await record_event(sequencer, servers.fact())
    return sequencer, log


async def start_with_unconfirmed(servers: Servers) -> tuple[Sequencer, ReplicatedLog, PublishEvent]:
    """Start a server, and let the log take one event more without confirming it. Returns the event's command too."""
    sequencer, log = await start(servers)
    log.has_replica = False
    fact = servers.fact("unconfirmed")
    assert "LOG_UNAVAILABLE" == reason(await execute(sequencer, repeat_command(fact)))
    return sequencer, log, fact


async def lose(servers: Servers, sequencer: Sequencer, log: ReplicatedLog, last: int) -> list[PublishEvent]:
    """Let the log take two events without confirming them, and go on with one that ends at `last`. Returns the commands."""
    log.has_replica = False
    facts = [servers.fact("unconfirmed"), servers.fact("unconfirmed too")]
    for fact in facts:
        assert "LOG_UNAVAILABLE" == reason(await execute(sequencer, repeat_command(fact)))
    await log.fail_over(servers, last)
    return facts


async def repeat(sequencer: Sequencer, command: PublishEvent) -> Envelope:
    """Repeat a command as its caller would; the server may find the loss by the first call. Returns the event."""
    first = await execute(sequencer, repeat_command(command))
    assert isinstance(first, CommittedAnswer) or "LOG_UNAVAILABLE" == reason(first)
    return await record_event(sequencer, command)


async def assert_same_state(servers: Servers, sequencer: Sequencer) -> None:
    """Assert that a server has the state of one that has just read the log, and that the log replays."""
    other, _ = await servers.start()
    assert (await other.settled_state()).digest() == (await sequencer.settled_state()).digest()
    assert other.head == sequencer.head
    await servers.prove()


@pytest.mark.parametrize("kept", [0, 1])
def test_unconfirmed_events_are_forgotten(kept: int) -> None:
    """The server takes the state of the shorter log, and records the events when their callers repeat them."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await start(servers)
        last = sequencer.head.sequence_number + kept
        for fact in await lose(servers, sequencer, log, last):
            recorded = await repeat(sequencer, fact)
        assert last + 2 - kept == recorded.sequence_number
        await assert_same_state(servers, sequencer)

    asyncio.run(main())


@pytest.mark.parametrize("last", [0, 1])
def test_acknowledged_events_are_not_forgotten(last: int) -> None:
    """If an acknowledged event is lost with those that were never confirmed, nothing is written."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await start(servers)
        for fact in await lose(servers, sequencer, log, last):
            assert "LOG_REGRESSED" == reason(await execute(sequencer, fact))
        assert last == (await servers.log.head()).sequence_number

    asyncio.run(main())


def test_a_later_confirmation_counts() -> None:
    """Events that are confirmed only after their append count as acknowledged, also if later ones are not."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await start(servers)
        log.has_replica = False
        assert "LOG_UNAVAILABLE" == reason(await execute(sequencer, servers.fact()))
        confirmed = sequencer.head.sequence_number
        log.has_replica = True
        await sequencer.confirm(confirmed)
        log.has_replica = False
        assert "LOG_UNAVAILABLE" == reason(await execute(sequencer, servers.fact()))
        await log.fail_over(servers, confirmed)
        await record_event(sequencer, servers.fact())
        await lose(servers, sequencer, log, confirmed)
        assert "LOG_REGRESSED" == reason(await execute(sequencer, servers.fact()))

    asyncio.run(main())


def test_the_state_starts_over_from_a_snapshot(tmp_path: Path) -> None:
    """A snapshot with lost events is refused, and an earlier one is used; later snapshots are written as before."""

    async def main() -> None:
        servers = Servers()
        files = SnapshotFiles(tmp_path, BUS)
        sequencer, log = await start(servers, BusSnapshots(files, 1, count(step=1000).__next__))
        await write_if_due(sequencer)
        last = sequencer.head.sequence_number
        log.has_replica = False
        fact = servers.fact("unconfirmed")
        assert "LOG_UNAVAILABLE" == reason(await execute(sequencer, repeat_command(fact)))
        await write_if_due(sequencer)
        assert [last + 1, last] == list(files.numbers())
        await log.fail_over(servers, last)
        await sequencer.read_on()
        assert [last] == list(files.numbers())
        await record_event(sequencer, servers.fact("other"))
        await record_event(sequencer, fact)
        await write_if_due(sequencer)
        assert last + 2 == files.numbers()[0]
        await assert_same_state(servers, sequencer)
        restarted, _ = await servers.start(snapshots=BusSnapshots(files, 1))
        assert (await restarted.settled_state()).digest() == (await sequencer.settled_state()).digest()

    asyncio.run(main())


async def write_at_the_new_primary(servers: Servers, count: int) -> None:
    """Let another server record events at the new primary."""
    other, _ = await servers.start()
    for number in range(count):
        await record_event(other, servers.fact(f"other {number}"))
    await other.stop()


def test_a_lost_event_is_not_confirmed_by_another_one() -> None:
    """Before a server has noticed the failover, it confirms no lost event, although the log has confirmed another with its number."""

    async def main() -> None:
        servers = Servers()
        sequencer, log, fact = await start_with_unconfirmed(servers)
        confirmed = sequencer.head.sequence_number - 1
        await log.fail_over(servers, confirmed)
        await write_at_the_new_primary(servers, 3)
        with pytest.raises(ServiceError) as refusal:
            await sequencer.confirm(confirmed + 1)
        assert "LOG_UNAVAILABLE" == reason(refusal.value)
        recorded = await repeat(sequencer, fact)
        assert confirmed + 4 == recorded.sequence_number
        await assert_same_state(servers, sequencer)

    asyncio.run(main())


def test_a_later_event_confirms_no_lost_one() -> None:
    """A server that may not read on confirms no event of the new primary, because its own lost events would pass for confirmed."""

    async def main() -> None:
        servers = Servers()
        sequencer, log, _ = await start_with_unconfirmed(servers)
        confirmed = sequencer.head.sequence_number - 1
        await log.fail_over(servers, confirmed)
        await write_at_the_new_primary(servers, 3)
        sequencer.replica.handle_log_error(LogUnavailableError("a poll failed"))
        (refusal,) = await asyncio.gather(sequencer.confirm(confirmed + 3), return_exceptions=True)
        if refusal is None:
            # It has read on in time, so what it confirms is the new primary's.
            assert await servers.log.head() == sequencer.head
        else:
            assert isinstance(refusal, ServiceError)
            assert ("LOG_UNAVAILABLE", False) == (reason(refusal), log.is_confirmed(confirmed + 1))

    asyncio.run(main())


def test_who_waits_beyond_a_lost_event_gets_an_error() -> None:
    """A follower that waits beyond a lost event might miss the one in its place, so it fails; one beyond a confirmed event goes on."""

    async def main() -> None:
        servers = Servers()
        sequencer, log, _ = await start_with_unconfirmed(servers)
        confirmed = sequencer.head.sequence_number - 1
        lost = asyncio.ensure_future(sequencer.wait_beyond(confirmed + 1))
        await asyncio.sleep(0)
        await log.fail_over(servers, confirmed)
        await sequencer.read_on()
        waiter = asyncio.ensure_future(sequencer.wait_beyond(confirmed))
        with pytest.raises(ServiceError) as refusal:
            await lost
        assert "LOG_UNAVAILABLE" == reason(refusal.value)
        await record_event(sequencer, servers.fact())
        assert confirmed + 1 == await waiter

    asyncio.run(main())


def test_answers_that_wait_are_refused() -> None:
    """An answer that waits for the confirmation of an event is refused once the event is lost, also if the log grows beyond its number."""

    async def main() -> None:
        servers = Servers()
        sequencer, log, fact = await start_with_unconfirmed(servers)
        confirmed = sequencer.head.sequence_number - 1
        log.pause = asyncio.Event()
        first, second = (asyncio.ensure_future(execute(sequencer, repeat_command(fact))) for _ in range(2))
        await log.is_waiting.wait()
        await log.fail_over(servers, confirmed)
        await write_at_the_new_primary(servers, 3)
        await sequencer.read_on()
        log.pause.set()
        assert ["LOG_UNAVAILABLE"] * 2 == [reason(await one) for one in (first, second)]

    asyncio.run(main())


def test_acknowledgements_that_were_forgotten_count() -> None:
    """If more events wait for their confirmation than are remembered, a loss of any of them stops the bus: callers may know of them."""

    async def main() -> None:
        servers = Servers()
        sequencer, log = await start(servers)
        acknowledged = AcknowledgedHead(log, None)
        log._confirmed = 0
        heads = [Head(number, bytes([number % 256]) * 32) for number in range(1, UNCONFIRMED_HEADS_MAX + 3)]
        for head in heads:
            acknowledged.add(head)
        log._confirmed = 2
        assert not await acknowledged.is_in_log(sequencer.replica.incarnation)
        assert acknowledged.last is None
        log._confirmed = 3
        assert heads[2] == acknowledged.last

    asyncio.run(main())
