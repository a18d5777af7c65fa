"""The registry of buses: opening, limits and refusals. In virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from gavel_rules.commands import PublishEvent
from gavel_rules.state.disposal import ROWS_PER_STEP
from gavel_server.bus.registry import IDLE_ROUNDS_MAX, BusRegistry
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.log import LogUnavailableError
from gavel_server.log.memory import MemoryLog
from gavel_server.process.clock import GuardedClock

from tests.support.driver import WEEK_MS, replay_log
from tests.support.simulation.servers import CROSS_CHECK, Servers, execute, reason, with_servers


async def is_known(name: str) -> bool:
    """Tell whether the log store holds a bus: only one called "known"."""
    return name == "known"


@with_servers
async def test_a_read_opens_no_unknown_bus(servers: Servers) -> None:
    """A read of a bus that the log store does not hold is BUS_NOT_FOUND and opens nothing; a bus in the store is opened."""
    opened: list[str] = []

    async def opener(name: str) -> Sequencer:
        opened.append(name)
        return (await servers.start())[0]

    buses = BusRegistry(opener, is_known)
    with pytest.raises(ServiceError) as error_info:
        await buses.existing("nosuch")
    assert ("BUS_NOT_FOUND", []) == (reason(error_info.value), opened)
    assert await buses.existing("known") is buses.find_open("known")
    created = await buses.open("nosuch")
    assert (created, ["known", "nosuch"]) == (await buses.existing("nosuch"), opened)


@with_servers
async def test_a_read_waits_for_a_write_that_opens_its_bus(servers: Servers) -> None:
    """A read that arrives while a write opens the bus gets the same sequencer."""

    async def opener(name: str) -> Sequencer:
        await asyncio.sleep(1)
        return (await servers.start())[0]

    buses = BusRegistry(opener, is_known)
    created, read = await asyncio.gather(buses.open("new"), buses.existing("new"))
    assert created is read


@with_servers
async def test_read_while_the_store_is_unavailable(servers: Servers) -> None:
    """A read of a bus is LOG_UNAVAILABLE while the log store cannot tell whether it holds the bus."""

    async def fails(name: str) -> bool:
        raise LogUnavailableError("connection refused")

    async def opener(name: str) -> Sequencer:
        raise AssertionError(name)

    with pytest.raises(ServiceError) as error_info:
        await BusRegistry(opener, fails).existing("default")
    assert "LOG_UNAVAILABLE" == reason(error_info.value)


async def test_each_caller_of_a_failed_opening_has_its_own_error() -> None:
    """Callers that wait for one opening do not share the exception that they raise: its traceback would keep the frames of all of them."""

    async def fails(name: str) -> Sequencer:
        await asyncio.sleep(0)
        raise LogUnavailableError("connection refused")

    buses = BusRegistry(fails, is_known)
    results = await asyncio.gather(*(buses.open("known") for _ in range(3)), return_exceptions=True)
    errors = [result for result in results if isinstance(result, ServiceError)]
    assert [("LOG_UNAVAILABLE", "connection refused")] * 3 == [(reason(error), str(error.__cause__)) for error in errors]
    assert 3 == len({id(error) for error in errors})


@with_servers
async def test_a_bus_is_opened_once(servers: Servers) -> None:
    """Concurrent callers open a bus once; a failed attempt does not prevent the next."""
    tries = 0

    async def opened(name: str) -> Sequencer:
        nonlocal tries
        tries += 1
        await asyncio.sleep(1)
        if tries == 1:
            raise LogUnavailableError("connection refused")
        return (await servers.start())[0]

    buses = BusRegistry(opened, is_known)
    failed = await asyncio.gather(*(buses.open("") for _ in range(5)), return_exceptions=True)
    assert ["LOG_UNAVAILABLE"] * 5 == [reason(result) for result in failed if isinstance(result, ServiceError)]
    sequencers = await asyncio.gather(*(buses.open("") for _ in range(5)))
    assert (2, buses.all()) == (tries, [*set(sequencers)])
    assert buses.find_open("default") is await buses.open("default")


@with_servers
async def test_bus_is_opened_after_its_callers_gave_up(servers: Servers) -> None:
    """A log that takes longer to read than its callers wait is read once, for later callers."""
    tries = 0

    async def opened(name: str) -> Sequencer:
        nonlocal tries
        tries += 1
        await asyncio.sleep(30)
        return (await servers.start())[0]

    buses = BusRegistry(opened, is_known)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(buses.open("default"), 10)
    assert [await asyncio.wait_for(buses.open("default"), 15)] == buses.all()
    assert 1 == tries


@with_servers
async def test_open_buses_are_limited(servers: Servers) -> None:
    """Buses that are being opened count against the limit."""

    async def opened(name: str) -> Sequencer:
        await asyncio.sleep(1)
        return (await servers.start())[0]

    buses = BusRegistry(opened, is_known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gavel_server.bus.registry.BUSES_MAX", 2)
        results = await asyncio.gather(*(buses.open(name) for name in ("one", "two", "three")), return_exceptions=True)
    assert ["QUEUE_FULL"] == [reason(result) for result in results if isinstance(result, ServiceError)]
    assert 2 == len(buses.all())


@with_servers
async def test_no_bus_is_opened_while_the_server_stops(servers: Servers) -> None:
    """Callers that wait for a bus get SHUTTING_DOWN when the server stops, and no bus is opened afterwards."""

    async def opened(name: str) -> Sequencer:
        await asyncio.sleep(60)
        raise AssertionError("a server that stops does not wait for a log to be read")

    buses = BusRegistry(opened, is_known)
    opening = asyncio.create_task(buses.open("default"))
    await asyncio.sleep(0.5)
    await buses.stop()
    for waiting in (opening, buses.open("another")):
        with pytest.raises(ServiceError) as error_info:
            await waiting
        assert "SHUTTING_DOWN" == reason(error_info.value)
    assert [] == buses.all()


class Buses:
    """A registry over logs in memory, whose buses are opened by their first event."""

    def __init__(self, servers: Servers) -> None:
        self.logs: dict[str, MemoryLog] = {}
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.closing_seconds = 0.0
        self._servers = servers
        self.registry = BusRegistry(self._open, self._exists, opened=self._opened, closed=self._closed)

    def log(self, name: str) -> MemoryLog:
        """Return the log of a bus."""
        return self.logs.setdefault(name, MemoryLog(name, self._servers.now_ms, WEEK_MS))

    async def publish(self, name: str, command: PublishEvent) -> CommittedAnswer | ServiceError:
        """Publish an event on a bus."""
        return await execute(await self.registry.open(name), command)

    async def head(self, name: str) -> int:
        """Return the last sequence number of a log."""
        return (await self.log(name).head()).sequence_number

    async def _open(self, name: str) -> Sequencer:
        clock = GuardedClock(self._servers.now_ms, self._servers.now_ms)
        sequencer = Sequencer(self.log(name), clock, cross_check=CROSS_CHECK, idempotency_window_ms=WEEK_MS)
        await sequencer.start(opens=False)
        return sequencer

    async def _exists(self, name: str) -> bool:
        return await self.head(name) > 0

    async def _opened(self, sequencer: Sequencer) -> None:
        self.opened.append(sequencer.bus)

    async def _closed(self, sequencer: Sequencer) -> None:
        await asyncio.sleep(self.closing_seconds)
        self.closed.append(sequencer.bus)


@with_servers
async def test_the_first_accepted_command_opens_a_bus(servers: Servers) -> None:
    """Refused commands leave no event and no bus; the first accepted one is recorded in one append with the opening."""
    buses = Buses(servers)
    for _ in range(3):
        assert "EVENT_NOT_FOUND" == reason(await buses.publish("new", servers.effect_of(servers.new_id())))
        await asyncio.sleep(1)
        assert (0, [], None) == (await buses.head("new"), buses.registry.all(), buses.registry.find_open("new"))
    sequencer = await buses.registry.open("new")
    commands = [servers.effect_of(servers.new_id()), servers.fact(), servers.effect_of(servers.new_id()), servers.fact("lost")]
    results = await asyncio.gather(*(execute(sequencer, command) for command in commands))
    assert ["EVENT_NOT_FOUND", "EVENT_NOT_FOUND"] == [reason(result) for result in results if isinstance(result, ServiceError)]
    assert [2, 3] == [result.record.sequence_number for result in results if isinstance(result, CommittedAnswer) and result.record]
    assert (sequencer, ["new"]) == (await buses.registry.existing("new"), buses.opened)
    replay_log("new", await buses.log("new").read(1, 10))
    await buses.registry.stop()


@with_servers
async def test_two_servers_open_a_bus_at_once(servers: Servers) -> None:
    """If two servers get the first commands of a bus at once, it is opened once, and both commands are recorded."""
    one, other = Buses(servers), Buses(servers)
    other.logs = one.logs
    results = await asyncio.gather(one.publish("new", servers.fact()), other.publish("new", servers.fact("lost")))
    assert {2, 3} == {result.record.sequence_number for result in results if isinstance(result, CommittedAnswer) and result.record}
    replay_log("new", await one.log("new").read(1, 10))
    await one.registry.stop()
    await other.registry.stop()


@with_servers
async def test_a_read_finds_a_bus_that_another_server_opens(servers: Servers) -> None:
    """A server that has a bus in memory without an event finds the events of another server at the first read."""
    one, other = Buses(servers), Buses(servers)
    other.logs = one.logs
    await one.registry.open("new")
    with pytest.raises(ServiceError) as error_info:
        await one.registry.existing("new")
    assert "BUS_NOT_FOUND" == reason(error_info.value)
    await other.publish("new", servers.fact())
    assert 2 == (await one.registry.existing("new")).head.sequence_number
    await one.registry.stop()
    await other.registry.stop()


@with_servers
async def test_idle_buses_are_closed(servers: Servers) -> None:
    """A bus without calls, followers and work is closed after the last round, and its next call opens it with its events.

    A stream that has been sending old events since the first round follows the bus as well.
    """
    buses = Buses(servers)
    for name in ("idle", "read", "followed", "sent", "default"):
        await buses.publish(name, servers.fact())
    followed = await buses.registry.existing("followed")
    follower = asyncio.create_task(followed.wait_beyond(2))
    await asyncio.sleep(0)
    abandoned = await buses.registry.open("abandoned")
    with (await buses.registry.existing("sent")).tail.followed():
        for _ in range(IDLE_ROUNDS_MAX + 1):
            buses.registry.find_open("read")
            buses.registry.close_idle()
            await asyncio.sleep(1)
    assert ["default", "followed", "read", "sent"] == [sequencer.bus for sequencer in buses.registry.all()]
    assert {"idle", "abandoned"} == {*buses.closed}
    assert not abandoned.is_open
    assert 2 == (await buses.registry.existing("idle")).head.sequence_number
    assert 3 == _number(await buses.publish("idle", servers.fact("lost")))
    replay_log("idle", await buses.log("idle").read(1, 10))
    follower.cancel()
    await buses.registry.stop()


@with_servers
async def test_a_closed_bus_is_freed_in_steps(servers: Servers) -> None:
    """A bus that is closed frees at most ROWS_PER_STEP rows before other tasks run, and later reads of its state are SHUTTING_DOWN."""
    buses = Buses(servers)
    await buses.publish("wide", servers.fact())
    sequencer = await buses.registry.existing("wide")
    state = sequencer.replica.state
    for number in range(3 * ROWS_PER_STEP):
        state.store.put(state.traces, f"trace-{number}", number)
    state.commit()
    reopening = asyncio.create_task(buses.registry.reopen("wide"))
    rows = [len(state.traces)]
    while rows[-1]:
        await asyncio.sleep(0)
        rows.append(len(state.traces))
    assert max(before - after for before, after in pairwise(rows)) <= ROWS_PER_STEP
    assert 2 == (await reopening).head.sequence_number
    with pytest.raises(ServiceError) as error_info:
        await sequencer.settled_state()
    assert "SHUTTING_DOWN" == reason(error_info.value)
    assert {} == sequencer.replica.recent_events.citable
    await buses.registry.stop()


@with_servers
async def test_a_reopened_bus_is_closed_to_its_end(servers: Servers) -> None:
    """A bus that is reopened is closed completely, and only then opened, although the caller that asked for it goes."""
    buses = Buses(servers)
    await buses.publish("lost", servers.fact())
    before = await buses.registry.existing("lost")
    buses.closing_seconds = 1.0
    reopening = asyncio.create_task(buses.registry.reopen("lost"))
    await asyncio.sleep(0)
    reopening.cancel()
    await asyncio.wait([reopening])
    after = await buses.registry.existing("lost")
    assert (["lost"], ["lost", "lost"], [after]) == (buses.closed, buses.opened, buses.registry.all())
    with pytest.raises(ServiceError) as error_info:
        await before.settled_state()
    assert "SHUTTING_DOWN" == reason(error_info.value)
    await buses.registry.stop()


def _number(result: CommittedAnswer | ServiceError) -> int:
    assert isinstance(result, CommittedAnswer)
    assert result.record is not None
    return result.record.sequence_number
