"""A failover may lose events that the log took and never confirmed: the server goes on, because nobody was told that they are recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import PublishEvent
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.bus.snapshot_writer import write_if_due
from gavel_server.bus.snapshots import BusSnapshots
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.log import Entry, Head, NotReplicatedError
from gavel_server.log.memory import MemoryLog

from tests.support.driver import BUS, WEEK_MS
from tests.support.simulation.servers import CountingLog, Servers, execute, reason, record_event, repeat_command


class ReplicatedLog(CountingLog):
    """A log whose only replica may be away: it then takes events and confirms none."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.has_replica = True
        self._confirmed = 0

    async def append(
        self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None = None
    ) -> None:
        """Append, and confirm."""
        await super().append(expected, entries, recorded_at_ms, idempotency_keys, date_ms)
        await self.confirm(entries[-1].sequence_number)

    def is_confirmed(self, sequence_number: int) -> bool:
        """See EventLog."""
        return sequence_number <= self._confirmed

    async def confirm(self, sequence_number: int) -> None:
        """See EventLog."""
        if not self.has_replica:
            raise NotReplicatedError(f"events up to {sequence_number} are in the log, but it has no replica")
        self._confirmed = max(self._confirmed, (await self.head()).sequence_number)

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
        await record_event(sequencer, servers.fact("other"))
        await record_event(sequencer, fact)
        await write_if_due(sequencer)
        assert last + 2 == files.numbers()[0]
        await assert_same_state(servers, sequencer)
        restarted, _ = await servers.start(snapshots=BusSnapshots(files, 1))
        assert (await restarted.settled_state()).digest() == (await sequencer.settled_state()).digest()

    asyncio.run(main())
