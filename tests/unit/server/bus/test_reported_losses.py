"""A server that finds a loss of acknowledged events stops all servers of the log, and an acceptance lets them go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import DataLossAccepted
from gavel_rules.commands import AcceptLoss
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.log import Entry, Record
from gavel_server.log.memory import MemoryLog

from tests.support.driver import BUS, WEEK_MS
from tests.support.simulation.servers import Servers, execute, reason, record_event

KEPT = 2


async def lose_an_event(servers: Servers, path: Path) -> None:
    """Record events at a server with a checkpoint at `path`, stop it, and replace the log by one that lacks the last event."""
    first, _ = await servers.start(checkpoint=Checkpoint(path))
    while first.head.sequence_number <= KEPT:
        await record_event(first, servers.fact())
    await first.stop()
    lost = MemoryLog(BUS, servers.now_ms, WEEK_MS)
    for record in await servers.log.read(1, KEPT):
        event = Envelope.FromString(record.envelope)
        await lost.append(await lost.head(), [Entry(*_values(record), event.event_id, "")], servers.now_ms(), [])
    servers.log = lost


def _values(record: Record) -> tuple[int, bytes, bytes]:
    return record.sequence_number, record.envelope, record.chain_hash


async def accept(servers: Servers, sequencer: Sequencer) -> None:
    """Accept the loss at a server."""
    head = await servers.log.head()
    accepted = DataLossAccepted(accepted_by="ada", head_sequence_number=head.sequence_number, head_chain_hash=head.chain_hash)
    assert isinstance(await execute(sequencer, AcceptLoss(servers.new_id(), accepted)), CommittedAnswer)


async def until_writable(sequencer: Sequencer) -> None:
    """Return once a server takes writes."""
    async with asyncio.timeout(30):
        while sequencer.write_error() is not None:  # noqa: ASYNC110 - the poll of the log sets no event
            await asyncio.sleep(0.01)


def test_a_new_server_does_not_write_to_a_log_that_lost_events(tmp_path: Path) -> None:
    """Servers without a checkpoint refuse writes once another one has found the loss, and go on by themselves after the acceptance."""

    async def main() -> None:
        servers = Servers()
        path = tmp_path / "checkpoint.json"
        await lose_an_event(servers, path)
        earlier, _ = await servers.start(checkpoint=Checkpoint(tmp_path / "earlier.json"))
        restarted, _ = await servers.start(checkpoint=Checkpoint(path))
        later, _ = await servers.start(checkpoint=Checkpoint(tmp_path / "later.json"))
        assert "LOG_REGRESSED" == reason(await execute(later, servers.fact()))
        # Its append is refused before it knows why.
        assert reason(await execute(earlier, servers.fact())) in ("LOG_UNAVAILABLE", "LOG_REGRESSED")
        async with asyncio.timeout(30):
            while earlier.replica.lost_head is None:  # noqa: ASYNC110 - the poll of the log sets no event
                await asyncio.sleep(0.01)
        assert "LOG_REGRESSED" == reason(await execute(earlier, servers.fact()))
        assert KEPT == (await servers.log.head()).sequence_number
        await accept(servers, restarted)
        for sequencer in (earlier, later):
            await until_writable(sequencer)
            await record_event(sequencer, servers.fact())
            await sequencer.stop()
        assert later.head == Checkpoint(tmp_path / "later.json").head_of(BUS)
        await servers.prove()

    asyncio.run(main())


def test_a_new_server_accepts_a_loss(tmp_path: Path) -> None:
    """An operator may accept a reported loss at any server; the one that reported it keeps its own refusal, and stops nobody again."""

    async def main() -> None:
        servers = Servers()
        path = tmp_path / "checkpoint.json"
        await lose_an_event(servers, path)
        restarted, _ = await servers.start(checkpoint=Checkpoint(path))
        await restarted.stop()
        new, _ = await servers.start()
        await accept(servers, new)
        await record_event(new, servers.fact())
        again, _ = await servers.start(checkpoint=Checkpoint(path))
        assert "LOG_REGRESSED" == reason(await execute(again, servers.fact()))
        await record_event(new, servers.fact())

    asyncio.run(main())


def test_a_report_ends_by_acceptance_although_the_events_are_back(tmp_path: Path) -> None:
    """A log that has got the lost events back, with the report of their loss, takes appends again once an operator has accepted it."""

    async def main() -> None:
        servers = Servers()
        path = tmp_path / "checkpoint.json"
        first, _ = await servers.start(checkpoint=Checkpoint(path))
        await record_event(first, servers.fact())
        await first.stop()
        await servers.log.report_loss(await servers.log.head())
        new, _ = await servers.start()
        assert "LOG_REGRESSED" == reason(await execute(new, servers.fact()))
        await accept(servers, new)
        await record_event(new, servers.fact())

    asyncio.run(main())


def test_the_checkpoint_of_another_bus_stops_nobody(tmp_path: Path) -> None:
    """A server whose checkpoint is of another log with a bus of the same name refuses writes, and the other servers of the log do not."""

    async def main() -> None:
        servers, others = Servers(), Servers()
        others.skip_ids(100)
        path = tmp_path / "checkpoint.json"
        foreign, _ = await others.start(checkpoint=Checkpoint(path))
        for number in range(3):
            await record_event(foreign, others.fact(number))
        await foreign.stop()
        server, _ = await servers.start()
        misplaced, _ = await servers.start(checkpoint=Checkpoint(path))
        assert "LOG_REGRESSED" == reason(await execute(misplaced, servers.fact()))
        await record_event(server, servers.fact())

    asyncio.run(main())
