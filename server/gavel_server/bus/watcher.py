"""Keeps all buses of a process up to date: events of other servers, clocks, checkpoints and gauges, with one task each for all buses.

A process may serve a thousand idle buses, which must cost almost nothing, so no bus has a watching task of its own. One Redis command
asks which logs have grown. In addition one log after the other is checked thoroughly, because only that finds a log that has lost
events or contradicts itself. A busy bus needs no check: its append fails if another server has written meanwhile, or if the number of
entries in the stream differs from the count in its head (`append.lua`).

This module neither reads events nor decides. It wakes the sequencer of a bus, which does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import structlog
from gavel_client.supervision import Supervisor
from gavel_rules.events.timestamps import milliseconds

from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.bus.replica import Replica
from gavel_server.log import Head, LogError
from gavel_server.log.protocol import Growth, volatility_message
from gavel_server.process import metrics
from gavel_server.process.background import new_supervisor

POLL_INTERVAL_SECONDS: Final = 0.05
ROUND_INTERVAL_SECONDS: Final = 1.0
# The pause after a check, in multiples of its duration: with many buses or a slow store, checks get rarer. A check that ran into a timeout
# must not delay the next check, which detects that the store is back.
PAUSE_FACTOR: Final = 10
PAUSE_SECONDS_MAX: Final = 1.0
# A larger drift of the clock from the loop's within one round means that the clock's anchor has moved, or that the machine was suspended.
CLOCK_SET_MS: Final = 100

_LOG: Final = structlog.get_logger(__name__)


class WatchedLogs(Protocol):
    """A store of many logs that can tell which of them have grown. The logs may be in several places, which fail separately."""

    async def grown(self, known: Mapping[str, int]) -> Growth:
        """Return the buses whose logs may hold events beyond the given sequence numbers."""

    async def durability(self, buses: Sequence[str]) -> Mapping[str, list[str]]:
        """Return `EventLog.durability` of each bus; those whose log cannot be reached are absent."""


class _WatchedBus:
    """One bus and its last observation."""

    def __init__(self, replica: Replica, wake: Callable[[], None]) -> None:
        self.replica = replica
        self.last_head = replica.head
        self._wake = wake
        self._last_gauges: tuple[int, bool, int, int] | None = None
        self._had_reviews = True  # so that the gauges are set once

    def read_on(self) -> None:
        """Wake the bus to read on."""
        self.replica.is_behind = True
        self._wake()

    def update_gauges(self) -> None:
        """Set the gauges of the bus if they have changed."""
        replica = self.replica
        gauges = (replica.head.sequence_number, replica.write_error() is None, replica.contest_waiters.count, len(replica.state.contests))
        if gauges != self._last_gauges:
            self._last_gauges = gauges
            metrics.set_gauges(replica.bus, *gauges)
        reviews = replica.state.reviews
        # Reviews are kept in the order in which they opened.
        oldest = next(iter(reviews.values()), None)
        age_ms = 0 if oldest is None else max(0, replica.now_ms() - milliseconds(oldest.decision.recorded_at))
        if oldest is not None or self._had_reviews:
            metrics.set_review_gauges(replica.bus, len(reviews), age_ms / 1000)
        self._had_reviews = oldest is not None

    def check_timers(self) -> None:
        """Wake the bus to look at its timers again, after the clock was set."""
        if self.replica.state.next_timer_ms() is not None:
            self._wake()


class BusWatcher:
    """Watches buses from `add` to `remove`, on the running loop. Without `logs` it checks every log by itself.

    `supervisor` runs its tasks and those of the buses; default: one of its own. Unless `accept_volatile`, writes are refused while the
    log may lose acknowledged events.
    """

    def __init__(self, logs: WatchedLogs | None = None, supervisor: Supervisor | None = None, *, accept_volatile: bool = True) -> None:
        self.supervisor = supervisor or new_supervisor()
        self._accept_volatile = accept_volatile
        self._volatility: dict[Replica, list[str]] = {}
        self._problems: list[str] = []  # those of all buses, as they were logged
        self._logs = logs
        self._buses: dict[Replica, _WatchedBus] = {}
        self._idle: list[_WatchedBus] = []  # of the last poll
        self._turn = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._drift_ms = 0

    def add(self, replica: Replica, wake: Callable[[], None]) -> None:
        """Watch a bus; `wake` ends the sleep of its sequencer."""
        self._buses[replica] = _WatchedBus(replica, wake)
        if not self._tasks:
            self._drift_ms = _drift_ms(replica)
            self._tasks = [
                self.supervisor.start("log polls", partial(_repeat, self._poll, POLL_INTERVAL_SECONDS)),
                self.supervisor.start("log checks", partial(_repeat, self._check_logs, POLL_INTERVAL_SECONDS)),
                self.supervisor.start("bus rounds", partial(_repeat, self._do_round, ROUND_INTERVAL_SECONDS)),
            ]

    async def remove(self, replica: Replica) -> None:
        """Stop watching a bus; after the last one the tasks end."""
        self._buses.pop(replica, None)
        self._volatility.pop(replica, None)
        if not self._buses:
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def forget_series(self, replica: Replica) -> None:
        """Forget the gauges of a bus that was removed, once nothing sets them any more."""
        if not any(other.bus == replica.bus for other in self._buses):
            metrics.remove_series(replica.bus, is_empty=replica.head.sequence_number == 0)

    # Events of other servers

    async def _poll(self) -> None:
        """Ask the store which logs have grown. Nothing else may delay this: it notices that the store is back."""
        self._idle = []
        for bus in self._buses.values():
            head = bus.replica.head
            if head is not bus.last_head:
                bus.last_head = head  # busy: the head has moved since the last poll
            elif not bus.replica.has_diverged:
                self._idle.append(bus)
        if self._idle and self._logs is not None:
            await self._poll_store(self._logs, self._idle)

    async def _check_logs(self) -> None:
        """Check the logs of idle buses thoroughly: one after the other, or all without a store."""
        idle = [bus for bus in self._idle if bus.replica in self._buses]
        if idle and self._logs is not None:
            self._turn = (self._turn + 1) % len(idle)
            idle = [idle[self._turn]]
        for bus in idle:
            if not bus.replica.state.has_uncommitted_changes and await bus.replica.has_moved():
                bus.read_on()

    async def _poll_store(self, logs: WatchedLogs, idle: list[_WatchedBus]) -> None:
        known = {bus.replica.bus: bus.last_head.sequence_number for bus in idle}
        growth = await logs.grown(known)
        for bus in idle:
            replica = bus.replica
            failure = growth.failures.get(replica.bus)
            if failure is not None:
                replica.handle_log_error(failure)
            elif (replica.is_waiting_for_log and replica.bus not in growth.pending) or (
                replica.bus in growth.buses and replica.head is bus.last_head and not replica.state.has_uncommitted_changes
            ):
                bus.read_on()

    # Periodic work

    async def _do_round(self) -> None:
        replicas = list(self._buses)
        for bus in self._buses.values():
            bus.update_gauges()
        await self._save_checkpoints(replicas)
        await self._check_durability(replicas)
        # One log for each clock, and rather one that answers: the logs may be in several places.
        ordered = sorted(replicas, key=lambda replica: not replica.is_waiting_for_log)
        for replica in {id(replica.clock): replica for replica in ordered}.values():
            await replica.observe_clock()
        self._check_clock()

    async def _check_durability(self, replicas: list[Replica]) -> None:
        """Refuse writes to a bus while its log may lose acknowledged events: settings change, and a failover moves logs."""
        for replica, reasons in (await self._durability(replicas)).items():
            self._volatility[replica] = reasons
            replica.volatility = "" if self._accept_volatile else volatility_message(reasons)
        problems = sorted({reason for reasons in self._volatility.values() for reason in reasons})
        if problems != self._problems:
            self._problems = problems
            for problem in problems:
                _LOG.error("log.volatile", problem=problem, writes="accepted" if self._accept_volatile else "refused")
            if not problems:
                _LOG.info("log.durable")

    async def _durability(self, replicas: list[Replica]) -> dict[Replica, list[str]]:
        """Return `EventLog.durability` of each bus; a log that cannot be reached is absent, as the polls report it."""
        reasons: dict[Replica, list[str]] = {}
        if self._logs is not None:
            reasons_of_bus = await self._logs.durability([replica.bus for replica in replicas])
            return {replica: reasons_of_bus[replica.bus] for replica in replicas if replica.bus in reasons_of_bus}
        for replica in replicas:
            with suppress(LogError):
                reasons[replica] = await replica.log.durability()
        return reasons

    def _check_clock(self) -> None:
        """Wake the buses that have timers if the clock's anchor has moved: timers follow it, and sequencers sleep by the loop's."""
        for replica in self._buses:
            drift_ms = _drift_ms(replica)
            was_set = abs(drift_ms - self._drift_ms) > CLOCK_SET_MS
            self._drift_ms = drift_ms
            if was_set:
                for bus in self._buses.values():
                    bus.check_timers()
            return

    async def _save_checkpoints(self, replicas: list[Replica]) -> None:
        """Sync the checkpoint. A failure, such as a full disk, is logged; the next round tries again."""
        heads: dict[Checkpoint, dict[str, Head]] = {}
        for replica in replicas:
            head, checkpoint = replica.acknowledged.head, replica.acknowledged.checkpoint
            if checkpoint is not None and head is not None:
                heads.setdefault(checkpoint, {})[replica.bus] = head
        for checkpoint, heads_of_buses in heads.items():
            try:
                await checkpoint.save(heads_of_buses)
            except OSError as error:
                _LOG.error("checkpoint.not_written", problem=error.strerror)


async def _repeat(check: Callable[[], Awaitable[None]], seconds: float) -> None:
    loop = asyncio.get_running_loop()
    pause_seconds = seconds
    while True:
        await asyncio.sleep(pause_seconds)
        began = loop.time()
        await check()
        pause_seconds = max(seconds, min(PAUSE_SECONDS_MAX, PAUSE_FACTOR * (loop.time() - began)))


def _drift_ms(replica: Replica) -> int:
    return replica.clock.now_ms() - int(asyncio.get_running_loop().time() * 1000)
