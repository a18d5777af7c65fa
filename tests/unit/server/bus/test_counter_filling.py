"""Fills of counters in a server: calls that end, and calls that come while a fill is under way."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, RuleSetPosition, UnfilledCounters
from gavel_rules.counter_backlog import CounterBacklog
from gavel_rules.language.counters.counter import NEVER_MS
from gavel_rules.language.rule_set import compile_rule_set
from gavel_rules.state.counters import CounterEntry
from gavel_rules.state.disposal import ROWS_PER_STEP
from gavel_rules.state.transitions.counters import enter
from gavel_server.bus.counter_filling import SLICE_EVENTS, CounterFilling
from gavel_server.log import LogUnavailableError

from tests.support.counted_plays import WITH, WITHOUT
from tests.support.simulation.servers import CountingLog, Servers, with_servers

RULE_SET = compile_rule_set(WITH[0])


class GatedLog(CountingLog):
    """A log whose reads wait until it is opened, or fail."""

    def __init__(self, log: Any) -> None:
        super().__init__(log)
        self.opened = asyncio.Event()
        self.error: Exception | None = None
        self.begun = asyncio.Event()

    async def read(self, *arguments: Any) -> Any:
        """Read when the log is open."""
        self.begun.set()
        await self.opened.wait()
        if self.error is not None:
            raise self.error
        return await self._log.read(*arguments)


async def start(servers: Servers) -> tuple[Any, GatedLog, ActivateRuleSet]:
    """Start a server with a deployed rule set whose counters are to be filled; its log reads again when it is opened."""
    log = GatedLog(servers.log)
    log.opened.set()
    sequencer, _ = await servers.start(log=log)
    await sequencer.execute(DeployRuleSet(servers.new_id(), RULE_SET, WITH[0]))
    activation = ActivateRuleSet(servers.new_id(), RULE_SET.policy_id, RULE_SET.version, None)
    assert isinstance((await sequencer.execute(activation)).answer, UnfilledCounters)
    log.opened.clear()
    log.begun.clear()
    return sequencer, log, activation


def opened_counters(events: list[Any]) -> int:
    """Return how often counters were opened."""
    return sum(event.event_name == "CountersOpened" for event in events)


@with_servers
async def test_a_fill_outlasts_its_call(servers: Servers) -> None:
    """A fill goes on if its call is cancelled; a later call waits for it, and then the version comes into force."""
    sequencer, log, activation = await start(servers)
    filling = CounterFilling()
    first = asyncio.create_task(filling.fill(sequencer, RULE_SET))
    await log.begun.wait()
    first.cancel()
    second = asyncio.create_task(filling.fill(sequencer, RULE_SET))
    await asyncio.sleep(1)
    assert (True, False) == (first.cancelled(), second.done())
    log.opened.set()
    await second
    assert isinstance((await sequencer.execute(activation)).answer, RuleSetPosition)
    assert 1 == opened_counters(await servers.events())
    await servers.prove()


@with_servers
async def test_a_failed_fill_begins_anew(servers: Servers) -> None:
    """All calls that wait for a fill get its error, and the next call begins another fill."""
    sequencer, log, activation = await start(servers)
    filling = CounterFilling()
    calls = [asyncio.create_task(filling.fill(sequencer, RULE_SET)) for _ in range(2)]
    await log.begun.wait()
    log.error = LogUnavailableError("connection refused")
    log.opened.set()
    for call in calls:
        with pytest.raises(LogUnavailableError, match="connection refused"):
            await call
    log.error = None
    await filling.fill(sequencer, RULE_SET)
    assert isinstance((await sequencer.execute(activation)).answer, RuleSetPosition)
    assert 2 == opened_counters(await servers.events())
    await servers.prove()


@with_servers
async def test_an_idle_bus_frees_dropped_counters(servers: Servers) -> None:
    """The rows of a counter that is dropped are freed although no event follows."""
    sequencer, log, activation = await start(servers)
    log.opened.set()
    await CounterFilling().fill(sequencer, RULE_SET)
    await sequencer.execute(activation)
    state = sequencer.replica.state
    table = next(iter(state.counters.values()))
    for number in range(3 * ROWS_PER_STEP):
        enter(state.store, table, CounterEntry(f"entry-{number}", "", 1, NEVER_MS, number))
    state.commit()
    without = compile_rule_set(WITHOUT)
    await sequencer.execute(DeployRuleSet(servers.new_id(), without, WITHOUT))
    await sequencer.execute(ActivateRuleSet(servers.new_id(), without.policy_id, without.version, None))
    assert table.entries
    await asyncio.sleep(1)
    assert (0, False) == (len(table.entries), state.store.disposal.has_tables)


@with_servers
async def test_commands_are_handled_during_a_fill(servers: Servers) -> None:
    """A fill counts at most SLICE_EVENTS events before other tasks run, and a command is committed before all events are counted."""
    sequencer, log, _ = await start(servers)
    log.opened.set()
    for _ in range(10 * SLICE_EVENTS):
        await sequencer.execute(servers.fact())
    begun: list[tuple[CounterBacklog, asyncio.Task[Any]]] = []

    def create_backlog(*arguments: Any) -> CounterBacklog:
        begun.append((CounterBacklog(*arguments), asyncio.create_task(sequencer.execute(servers.fact("lost")))))
        return begun[0][0]

    counted = [0]  # after each pass of the loop
    committed_at = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gavel_server.bus.counter_filling.CounterBacklog", create_backlog)
        fill = asyncio.create_task(CounterFilling().fill(sequencer, RULE_SET))
        while not fill.done():
            await asyncio.sleep(0)
            for backlog, command in begun:
                counted.append(backlog.state.head)
                committed_at = committed_at or (backlog.state.head if command.done() else 0)
    fill.result()
    assert max(after - before for before, after in pairwise(counted)) <= SLICE_EVENTS
    assert 0 < committed_at < counted[-1]
