"""One task for all buses of a process: what it costs when nothing happens, and that nothing is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gavel.v1 import error_pb2
from gavel_rules.commands import SubmitProposal
from gavel_server.bus.sequencer import Sequencer
from gavel_server.bus.watching import POLL_INTERVAL_SECONDS, Watch
from gavel_server.clock import GuardedClock
from gavel_server.log import LogUnavailableError
from gavel_server.log.memory import MemoryLog

from tests.simulation.virtual import run_virtually
from tests.unit.core.driver import START_MS, WEEK_MS, proposal_envelope
from tests.unit.core.servers import CROSS_CHECK, Counting, Servers, recorded, scene

BUSES = 20
SECONDS = 10


def now_ms() -> int:
    """The time of the running loop, as a wall clock."""
    return START_MS + int(asyncio.get_running_loop().time() * 1000)


class Looked(Counting):
    """A log that counts how often it was looked at by itself."""

    looks = 0

    async def head(self) -> object:  # type: ignore[override]
        """The head."""
        self.looks += 1
        return await super().head()


class Ends:
    """The ends of logs in memory, which count how often they were asked about, and may be away."""

    def __init__(self, *logs: MemoryLog) -> None:
        self.asked = 0
        self.away = False
        self._logs = {log.bus: log for log in logs}

    async def moved(self, known: Mapping[str, int]) -> list[str]:
        """Those that have grown."""
        self.asked += 1
        if self.away:
            raise LogUnavailableError("the store is away")
        return [bus for bus, number in known.items() if (await self._logs[bus].head()).sequence_number > number]


async def started(log: object, watch: Watch) -> Sequencer:
    """A server of one bus among those that are watched together."""
    sequencer = Sequencer(log, GuardedClock(now_ms), cross_check=CROSS_CHECK, idempotency_window_ms=WEEK_MS, watch=watch)  # type: ignore[arg-type]
    await sequencer.start()
    return sequencer


def test_idle_buses_are_looked_after_together() -> None:
    """However many there are, at each look one question is asked for all, and one log looked at by itself; each has its turn."""

    async def main() -> None:
        logs = [MemoryLog(f"bus-{number}", now_ms) for number in range(BUSES)]
        ends, looked = Ends(*logs), [Looked(log) for log in logs]
        watch = Watch(ends)
        sequencers = [await started(log, watch) for log in looked]
        await asyncio.sleep(2 * POLL_INTERVAL_SECONDS)  # opening them was work
        asked, before = ends.asked, [log.looks for log in looked]
        await asyncio.sleep(SECONDS)
        looks = [log.looks - count for log, count in zip(looked, before, strict=True)]
        assert SECONDS / POLL_INTERVAL_SECONDS - 1 <= ends.asked - asked <= SECONDS / POLL_INTERVAL_SECONDS + 1
        assert abs(sum(looks) - (ends.asked - asked)) <= 1
        assert max(looks) - min(looks) <= 1
        await asyncio.gather(*(sequencer.stop() for sequencer in sequencers))

    run_virtually(main())


def test_what_others_write_is_seen() -> None:
    """An event that another server appends to one of many buses is read on for, on that bus."""

    async def main() -> None:
        logs = [MemoryLog(f"bus-{number}", now_ms) for number in range(3)]
        watch = Watch(Ends(*logs))
        followers = [await started(log, watch) for log in logs]
        writer = await started(logs[1], Watch())
        await recorded(writer, Servers().fact())
        async with asyncio.timeout(SECONDS):
            assert 2 == await followers[1].beyond(1)
        assert [1, 2, 1] == [follower.head.sequence_number for follower in followers]
        await asyncio.gather(*(sequencer.stop() for sequencer in (writer, *followers)))

    run_virtually(main())


def test_an_outage_is_everybodys_and_passes() -> None:
    """While the store does not say, no bus is written to; when it does again, all are."""

    async def main() -> None:
        logs = [MemoryLog(f"bus-{number}", now_ms) for number in range(3)]
        ends = Ends(*logs)
        watch = Watch(ends)
        sequencers = [await started(log, watch) for log in logs]
        ends.away = True
        await asyncio.sleep(1)
        reasons = {trouble.reason for sequencer in sequencers if (trouble := sequencer.unwritable()) is not None}
        assert {error_pb2.ERROR_REASON_LOG_UNAVAILABLE} == reasons
        ends.away = False
        await asyncio.sleep(1)
        assert [None] * 3 == [sequencer.unwritable() for sequencer in sequencers]
        await asyncio.gather(*(sequencer.stop() for sequencer in sequencers))

    run_virtually(main())


def test_a_log_that_lost_events_is_found_out() -> None:
    """Which its end alone does not show: each log is looked at thoroughly in its turn."""

    async def main() -> None:
        logs = [MemoryLog(f"bus-{number}", now_ms) for number in range(3)]
        counting = [Counting(log) for log in logs]
        watch = Watch(Ends(*logs))
        sequencers = [await started(log, watch) for log in counting]
        await recorded(sequencers[1], Servers().fact())
        counting[1]._log = MemoryLog("bus-1", now_ms)
        await asyncio.sleep(SECONDS)
        reasons = [trouble.reason if (trouble := sequencer.unwritable()) is not None else None for sequencer in sequencers]
        assert [None, error_pb2.ERROR_REASON_LOG_REGRESSED, None] == reasons
        await asyncio.gather(*(sequencer.stop() for sequencer in sequencers))

    run_virtually(main())


@scene
async def test_a_clock_that_is_set_is_noticed(servers: Servers) -> None:
    """A timer that is far away by the loop's time speaks soon after the wall clock was set to when it is due."""
    sequencer, _ = await servers.governed()
    fact = await recorded(sequencer, servers.fact())
    await recorded(sequencer, SubmitProposal(servers.admitted(proposal_envelope([fact]))))
    await asyncio.sleep(2)
    assert "DecisionApproved" == (await servers.events())[-1].event_name
    servers.offset_ms += 8_000
    await asyncio.sleep(2)
    assert "DecisionExpired" == (await servers.events())[-1].event_name
    await sequencer.stop()
