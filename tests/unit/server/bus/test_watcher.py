"""The watcher of all buses of a process: its cost on idle buses, and the changes that it detects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from gavel.v1 import error_pb2
from gavel_rules.commands import SubmitProposal
from gavel_rules.events.proposal_view import ProposalView
from gavel_server.bus.sequencer import Sequencer
from gavel_server.bus.watcher import POLL_INTERVAL_SECONDS, BusWatcher
from gavel_server.log import LogUnavailableError
from gavel_server.log.memory import MemoryLog
from gavel_server.log.protocol import Growth
from gavel_server.process.clock import GuardedClock

from tests.simulation.virtual_time import run_virtually
from tests.support.driver import START_MS, WEEK_MS, proposal_envelope
from tests.support.simulation.servers import CROSS_CHECK, CountingLog, Servers, record_event, with_servers

BUSES = 20
SECONDS = 10


def now_ms() -> int:
    """Return the time of the running loop, as a wall clock."""
    return START_MS + int(asyncio.get_running_loop().time() * 1000)


class HeadCountingLog(CountingLog):
    """A log that counts the reads of its head."""

    looks = 0

    async def head(self) -> object:  # type: ignore[override]
        """Count and return the head."""
        self.looks += 1
        return await super().head()


class LogStore:
    """A log store over logs in memory that counts polls and may be unavailable."""

    def __init__(self, *logs: MemoryLog) -> None:
        self.polls = 0
        self.away = False
        self._logs = {log.bus: log for log in logs}

    async def grown(self, known: Mapping[str, int]) -> Growth:
        """Return the buses with new events."""
        self.polls += 1
        if self.away:
            return Growth((), dict.fromkeys(known, LogUnavailableError("the store is away")))
        return Growth([bus for bus, number in known.items() if (await self._logs[bus].head()).sequence_number > number])

    async def durability(self, buses: Sequence[str]) -> dict[str, list[str]]:
        """Return that every log is durable."""
        return {bus: [] for bus in buses}


async def start_sequencer(log: object, watch: BusWatcher) -> Sequencer:
    """Start a sequencer of one of the watched buses."""
    sequencer = Sequencer(log, GuardedClock(now_ms, now_ms), cross_check=CROSS_CHECK, idempotency_window_ms=WEEK_MS, watch=watch)  # type: ignore[arg-type]
    await sequencer.start()
    return sequencer


def test_idle_buses_share_one_poll() -> None:
    """For any number of idle buses, each poll asks the store once and checks one log thoroughly, in turn."""

    async def main() -> None:
        logs = [MemoryLog(f"bus-{number}", now_ms) for number in range(BUSES)]
        store, logs_of_watcher = LogStore(*logs), [HeadCountingLog(log) for log in logs]
        watch = BusWatcher(store)
        sequencers = [await start_sequencer(log, watch) for log in logs_of_watcher]
        await asyncio.sleep(2 * POLL_INTERVAL_SECONDS)  # opening them reads the heads as well
        polls, before = store.polls, [log.looks for log in logs_of_watcher]
        await asyncio.sleep(SECONDS)
        looks = [log.looks - count for log, count in zip(logs_of_watcher, before, strict=True)]
        assert SECONDS / POLL_INTERVAL_SECONDS - 1 <= store.polls - polls <= SECONDS / POLL_INTERVAL_SECONDS + 1
        assert abs(sum(looks) - (store.polls - polls)) <= 1
        assert max(looks) - min(looks) <= 1
        await asyncio.gather(*(sequencer.stop() for sequencer in sequencers))

    run_virtually(main())


def test_events_of_other_servers_are_applied() -> None:
    """An event that another server appends to one of many buses is applied on that bus."""

    async def main() -> None:
        logs = [MemoryLog(f"bus-{number}", now_ms) for number in range(3)]
        watch = BusWatcher(LogStore(*logs))
        followers = [await start_sequencer(log, watch) for log in logs]
        writer = await start_sequencer(logs[1], BusWatcher())
        await record_event(writer, Servers().fact())
        async with asyncio.timeout(SECONDS):
            assert 2 == await followers[1].wait_beyond(1)
        assert [1, 2, 1] == [follower.head.sequence_number for follower in followers]
        await asyncio.gather(*(sequencer.stop() for sequencer in (writer, *followers)))

    run_virtually(main())


def test_outage_affects_every_bus() -> None:
    """While the store does not answer no bus is writable; afterwards all are."""

    async def main() -> None:
        logs = [MemoryLog(f"bus-{number}", now_ms) for number in range(3)]
        store = LogStore(*logs)
        watch = BusWatcher(store)
        sequencers = [await start_sequencer(log, watch) for log in logs]
        store.away = True
        await asyncio.sleep(1)
        reasons = {write_block.reason for sequencer in sequencers if (write_block := sequencer.write_error()) is not None}
        assert {error_pb2.ERROR_REASON_LOG_UNAVAILABLE} == reasons
        store.away = False
        await asyncio.sleep(1)
        assert [None] * 3 == [sequencer.write_error() for sequencer in sequencers]
        await asyncio.gather(*(sequencer.stop() for sequencer in sequencers))

    run_virtually(main())


def test_regressed_log_is_detected() -> None:
    """A log that lost events is found by its thorough check, in turn."""

    async def main() -> None:
        logs = [MemoryLog(f"bus-{number}", now_ms) for number in range(3)]
        counting = [CountingLog(log) for log in logs]
        watch = BusWatcher(LogStore(*logs))
        sequencers = [await start_sequencer(log, watch) for log in counting]
        await record_event(sequencers[1], Servers().fact())
        counting[1]._log = MemoryLog("bus-1", now_ms)
        await asyncio.sleep(SECONDS)
        reasons = [write_block.reason if (write_block := sequencer.write_error()) is not None else None for sequencer in sequencers]
        assert [None, error_pb2.ERROR_REASON_LOG_REGRESSED, None] == reasons
        await asyncio.gather(*(sequencer.stop() for sequencer in sequencers))

    run_virtually(main())


@with_servers
async def test_timer_fires_after_the_wall_clock_is_set(servers: Servers) -> None:
    """A timer is emitted soon after the wall clock is set to its time, although it is far away by the loop's clock."""
    sequencer, _ = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    await record_event(sequencer, SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact])))))
    await asyncio.sleep(2)
    assert "DecisionApproved" == (await servers.events())[-1].event_name
    servers.offset_ms += 8_000
    await asyncio.sleep(2)
    assert "DecisionExpired" == (await servers.events())[-1].event_name
    await sequencer.stop()
