"""Keeping all buses of a process up to date: what other servers have written, clocks, checkpoints, gauges. One task each, for all.

A process may serve a thousand buses on which nothing happens, and they should cost next to nothing. So no bus has a task of its
own that looks around. Of a Redis, one command asks whether any of its logs has grown; besides, one log after the other is looked at
thoroughly, as only that finds a log that has lost events or contradicts itself. A bus at work needs no look: its own appends
meet whatever others have written.

Nothing is read or decided here. A bus for which there is something to do is woken, and sees to it itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

import structlog

from gavel_server import metrics
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.bus.replica import Replica
from gavel_server.clock import SKEW_CHECK_INTERVAL_SECONDS
from gavel_server.log import Head, LogError

POLL_INTERVAL_SECONDS: Final = 0.05
ROUND_INTERVAL_SECONDS: Final = 1.0
# Very many buses, or a slow store, make looking slower rather than the server busy with it.
PAUSE_FACTOR: Final = 10
# By how much the wall clock may run away from the monotonic one in a round without being set.
CLOCK_SET_MS: Final = 100

_LOG: Final = structlog.get_logger(__name__)


class Tails(Protocol):
    """The ends of many logs in one store."""

    async def moved(self, known: Mapping[str, int]) -> Collection[str]:
        """Return the buses whose logs may hold more than the numbers given. Raises LogError."""


class _Watched:
    """One bus, and what was seen of it last."""

    def __init__(self, replica: Replica, wake: Callable[[], None]) -> None:
        self.replica = replica
        self.seen = replica.head
        self._wake = wake
        self._shown: tuple[int, bool, int, int] | None = None

    def rouse(self) -> None:
        """Have the bus read on."""
        self.replica.behind = True
        self._wake()

    def show(self) -> None:
        """Renew the gauges of the bus, if anything has changed."""
        replica = self.replica
        now = (replica.head.sequence_number, replica.unwritable() is None, replica.waiting.count, len(replica.state.contests))
        if now != self._shown:
            self._shown = now
            metrics.show(replica.bus, *now)

    def let_time_pass(self) -> None:
        """Have the bus look at its timers again: the clock was set."""
        if self.replica.state.next_timer_ms() is not None:
            self._wake()


class Watch:
    """Watches over buses from `add` to `remove`, on the running loop. Without `tails` each log is looked at by itself."""

    def __init__(self, tails: Tails | None = None) -> None:
        self._tails = tails
        self._watched: dict[Replica, _Watched] = {}
        self._turn = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._clock_ms = 0
        self._next_skew_check = 0.0

    def add(self, replica: Replica, wake: Callable[[], None]) -> None:
        """Watch a bus; `wake` ends its sequencer's sleep."""
        self._watched[replica] = _Watched(replica, wake)
        if not self._tasks:
            self._next_skew_check = asyncio.get_running_loop().time() + SKEW_CHECK_INTERVAL_SECONDS
            self._clock_ms = _drift_ms(replica)
            self._tasks = [
                asyncio.create_task(self._for_ever(self._look, POLL_INTERVAL_SECONDS)),
                asyncio.create_task(self._for_ever(self._make_round, ROUND_INTERVAL_SECONDS)),
            ]

    async def remove(self, replica: Replica) -> None:
        """Watch a bus no more; with the last one everything ends."""
        self._watched.pop(replica, None)
        if not self._watched:
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _for_ever(self, look: Callable[[], Awaitable[None]], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        pause_seconds = seconds
        while True:
            await asyncio.sleep(pause_seconds)
            began = loop.time()
            try:
                await look()
            except Exception:  # noqa: BLE001  # without this task idle buses would see nothing of what others write
                _LOG.exception("watch.failed")
            pause_seconds = max(seconds, PAUSE_FACTOR * (loop.time() - began))

    # What others have written

    async def _look(self) -> None:
        quiet: list[_Watched] = []
        for one in self._watched.values():
            head = one.replica.head
            if head is not one.seen:
                one.seen = head  # busy: it has moved since the last look
            elif not one.replica.astray:
                quiet.append(one)
        if not quiet:
            return
        thorough = quiet
        if self._tails is not None:
            self._turn = (self._turn + 1) % len(quiet)
            thorough = [quiet[self._turn]]
            await self._look_at_ends(self._tails, quiet)
        for one in thorough:
            if not one.replica.state.tentative and await one.replica.has_moved():
                one.rouse()

    async def _look_at_ends(self, tails: Tails, quiet: list[_Watched]) -> None:
        known = {one.replica.bus: one.seen.sequence_number for one in quiet}
        try:
            moved = await tails.moved(known)
        except LogError as error:
            for one in quiet:
                one.replica.take_log_error(error)
            return
        for one in quiet:
            replica = one.replica
            if (replica.trouble is not None and replica.is_waiting_for_log) or (
                moved and replica.bus in moved and replica.head is one.seen and not replica.state.tentative
            ):
                one.rouse()

    # What is done now and then

    async def _make_round(self) -> None:
        replicas = list(self._watched)
        for one in self._watched.values():
            one.show()
        self._notice_set_clock()
        await self._save_checkpoints(replicas)
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_skew_check:
            self._next_skew_check = loop.time() + SKEW_CHECK_INTERVAL_SECONDS
            for replica in {id(replica.clock): replica for replica in replicas}.values():
                await replica.observe_clock()

    def _notice_set_clock(self) -> None:
        """Timers are slept through by the monotonic clock and due by the wall clock: wake whoever has one if that was set."""
        for replica in self._watched:
            drift_ms = _drift_ms(replica)
            was_set = abs(drift_ms - self._clock_ms) > CLOCK_SET_MS
            self._clock_ms = drift_ms
            if was_set:
                for one in self._watched.values():
                    one.let_time_pass()
            return

    async def _save_checkpoints(self, replicas: list[Replica]) -> None:
        """Note what is acknowledged, of all buses in one go. A disk that is full must not stop them: it is said, and tried again."""
        heads: dict[Checkpoint, dict[str, Head]] = {}
        for replica in replicas:
            head = replica.acknowledged()
            if replica.checkpoint is not None and head is not None:
                heads.setdefault(replica.checkpoint, {})[replica.bus] = head
        for checkpoint, of_buses in heads.items():
            try:
                await checkpoint.save(of_buses)
            except OSError as error:
                _LOG.error("checkpoint.not_written", problem=error.strerror)


def _drift_ms(replica: Replica) -> int:
    return replica.clock.now_ms() - int(asyncio.get_running_loop().time() * 1000)
