"""The consumer of a work queue, which the executor and the fact derivation reactor share.

A Consumer takes entries from its WorkSource, several at a time, and passes each to one function. The function returns the entry's
Disposition and never accesses the queue; the consumer never reads the event. If the function raises, the entry is logged, counted and
left pending: it is delivered again after `min_idle_ms`, here or elsewhere. No entry is ever dropped.

Its own tasks run under a supervisor: no outage of the queue or of the server, and no error, ends a consumer that has begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from gavel.v1.envelope_pb2 import Envelope

from gavel_client.consumers.work_source import BLOCK_MS, START, WorkEntry, WorkSource
from gavel_client.rpc.backoff import Backoff, retry
from gavel_client.rpc.errors import GavelClientError, GavelError, WorkQueueError, describe_error
from gavel_client.supervision import Supervisor
from gavel_client.timeouts import timeout

# Entries that may pause (for another executor's lease, for a retry) without a slot. Further ones keep their slots, which limits reading.
PAUSES_WITHOUT_SLOT_MAX: Final = 1_000
# Time for entries in progress to end after a stop.
STOP_GRACE_MS_DEFAULT: Final = 10_000

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_logger = logging.getLogger(__name__)


class Disposition(Enum):
    """The outcome for a processed entry."""

    DELETE = "delete"
    """Delete it for all groups: its work has ended in the log."""
    ACKNOWLEDGE = "acknowledge"
    """Acknowledge it for this group; other groups may still need it."""
    LEAVE = "leave"
    """Leave it pending, for another consumer or a later delivery."""


@dataclass
class Statistics:
    """Counts since the consumer was created."""

    processed: int = 0
    """Entries that were processed to a disposition."""
    failed: int = 0
    """Entries whose processing raised; each was left pending."""
    claimed: int = 0
    """Entries claimed from silent consumers, including this one."""


class ConsumerStoppedError(GavelClientError):
    """The consumer is stopping; the processing of the entry must end."""


class Consumer:
    """Processes the entries of a work queue, at most `concurrency` at a time.

    `process` receives each event and returns a Disposition. `maintenance`, if given, never returns; it runs as long as the queue
    is open. Call `run` once; call `stop` in the same event loop.
    """

    def __init__(
        self,
        queue: WorkSource,
        process: Callable[[Envelope], Awaitable[Disposition]],
        *,
        concurrency: int,
        stop_grace_ms: int = STOP_GRACE_MS_DEFAULT,
        backoff: Backoff | None = None,
        maintenance: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.statistics = Statistics()
        self._queue = queue
        self._process = process
        self._stop_grace_ms = stop_grace_ms
        self._backoff = backoff or Backoff()
        self._slots = asyncio.Semaphore(concurrency)
        self._pauses_without_slot = 0
        self._maintenance = maintenance
        self._stopping = asyncio.Event()
        self._in_progress: dict[str, asyncio.Task[None]] = {}
        self._submitted: set[asyncio.Task[None]] = set()
        self._drained = False
        # A queue that has never been used may have a wrong setting, which the caller of `run` has to correct.
        self._supervisor = Supervisor(backoff=backoff, fatal=(WorkQueueError,))

    @property
    def is_drained(self) -> bool:
        """Whether the last read found no new entry."""
        return self._drained

    @property
    def problem(self) -> str:
        """The reason why the consumer cannot take entries now, as a sentence, or ""."""
        return self._queue.problem or self._supervisor.problem

    async def run(self) -> None:
        """Process entries until `stop`, then wait for those in progress. Raises WorkQueueError if the queue's settings are wrong.

        Entries that do not end within `stop_grace_ms` after `stop` are cancelled. If this coroutine is cancelled, entries in
        progress are cancelled at once.
        """
        start = self._supervisor.start
        reader, claimer = start("queue reader", self._read), start("queue claimer", self._claim)
        others = [claimer, start("queue heartbeats", self._send_heartbeats), asyncio.create_task(self._wait_for_stop())]
        if self._maintenance is not None:
            others.append(start("queue maintenance", self._maintenance))
        try:
            await asyncio.wait([reader, *others], return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                claimer.cancel()
                await asyncio.wait([reader], timeout=2 * BLOCK_MS / 1000)
                in_progress = [*self._in_progress.values(), *self._submitted]
                if in_progress:
                    await asyncio.wait(in_progress, timeout=self._stop_grace_ms / 1000)
        finally:
            self._stopping.set()
            in_order = reader.done() and not self._in_progress
            tasks = [reader, *others, *self._in_progress.values(), *self._submitted]
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            if in_order:
                # Optional: the name of a consumer that stays in the group does no harm, and Redis may be unreachable.
                await try_for(BLOCK_MS, self._queue.leave())
            await self._queue.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def stop(self) -> None:
        """Take no more entries; `run` returns when those in progress have ended. May be called from a signal handler."""
        self._stopping.set()

    async def submit(self, entry_id: str, work: Callable[[], Awaitable[Disposition]]) -> None:
        """Run `work` once a slot is free, as if it came from `entry_id`. Its disposition affects no entry."""
        await self._slots.acquire()
        task = asyncio.create_task(self._run_submitted(entry_id, work))
        self._submitted.add(task)
        task.add_done_callback(self._submitted.discard)

    async def pause(self, pause_ms: float) -> None:
        """Sleep, inside `process`. Raises ConsumerStoppedError as soon as the consumer stops."""
        if not self._stopping.is_set():
            try:
                async with timeout(pause_ms / 1000):
                    await self._stopping.wait()
            except asyncio.TimeoutError:
                return
        raise ConsumerStoppedError("the consumer is stopping")

    async def pause_without_slot(self, pause_ms: float) -> None:
        """Sleep like `pause`, without occupying a slot, so that another entry can be processed."""
        if self._pauses_without_slot >= PAUSES_WITHOUT_SLOT_MAX:
            await self.pause(pause_ms)
            return
        self._pauses_without_slot += 1
        self._queue.note_pauses(self._pauses_without_slot)
        self._slots.release()
        try:
            await self.pause(pause_ms)
        finally:
            self._pauses_without_slot -= 1
            self._queue.note_pauses(self._pauses_without_slot)
            await self._slots.acquire()

    async def call(self, rpc: Callable[Arguments, Awaitable[Result]], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Call the server, inside `process`, until it accepts or refuses the call. Raises GavelError for a refusal.

        Raises ConsumerStoppedError if the consumer stops between two tries.
        """
        return await self._call(self.pause, rpc, *args, **kwargs)

    async def call_through_stop(
        self, rpc: Callable[Arguments, Awaitable[Result]], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Call the server like `call`, and continue during a stop until cancelled."""
        return await self._call(_sleep_ms, rpc, *args, **kwargs)

    async def _call(
        self,
        wait_ms: Callable[[float], Awaitable[None]],
        rpc: Callable[Arguments, Awaitable[Result]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        async def pause(error: GavelError, pause_ms: float) -> None:
            _logger.warning("queue=%s server unavailable: %s, next try in %d ms", self._queue.key, describe_error(error), pause_ms)
            await wait_ms(pause_ms)

        return await retry(partial(rpc, *args, **kwargs), self._backoff, pause)

    async def _wait_for_stop(self) -> None:
        await self._stopping.wait()

    async def _read(self) -> None:
        """Read new entries while slots are free."""
        while not self._stopping.is_set():
            await self._slots.acquire()
            entry = None
            try:
                entry = await self._queue.read()
                self._drained = entry is None
            finally:
                if entry is None:
                    self._slots.release()
            if entry is not None:
                self._start(entry)

    async def _claim(self) -> None:
        """Claim entries of silent consumers, and entries left pending, for ever."""
        while True:
            cursor = START
            while True:
                await self._slots.acquire()
                entry = None
                try:
                    cursor, entry = await self._queue.claim(cursor)
                finally:
                    if entry is None:
                        self._slots.release()
                if entry is not None:
                    self.statistics.claimed += 1
                    self._start(entry)
                if cursor == START:
                    break
            await asyncio.sleep(self._queue.silence_ms_max / 3000)

    async def _send_heartbeats(self) -> None:
        """Signal that the entries in progress are being processed, for ever."""
        while True:
            await asyncio.sleep(self._queue.silence_ms_max / 3000)
            await self._queue.heartbeat(list(self._in_progress))

    def _start(self, entry: WorkEntry) -> None:
        if entry.entry_id in self._in_progress:
            # This consumer was silent (a suspended process) and claimed the entry from itself.
            self._slots.release()
            return
        self._in_progress[entry.entry_id] = asyncio.create_task(self._handle(entry))

    async def _handle(self, entry: WorkEntry) -> None:
        """Process one entry and apply its disposition. The caller has acquired the slot; this releases it."""
        try:
            disposition = await self._run(entry.entry_id, lambda: self._process(entry.envelope()))
            if disposition is None:
                await self._queue.release(entry.entry_id)
            elif disposition is Disposition.DELETE:
                await self._queue.delete(entry.entry_id)
            elif disposition is Disposition.ACKNOWLEDGE:
                await self._queue.acknowledge(entry.entry_id)
            else:
                await self._queue.postpone(entry.entry_id)
        except Exception as error:  # noqa: BLE001  the entry stays pending, for a later delivery
            self.statistics.failed += 1
            _logger.error(
                "queue=%s entry=%s could not be acknowledged and stays pending: %s", self._queue.key, entry.entry_id, describe_error(error)
            )
        finally:
            del self._in_progress[entry.entry_id]
            self._slots.release()

    async def _run_submitted(self, entry_id: str, work: Callable[[], Awaitable[Disposition]]) -> None:
        """Run submitted work. The caller has acquired the slot; this releases it."""
        try:
            await self._run(entry_id, work)
        finally:
            self._slots.release()

    async def _run(self, entry_id: str, work: Callable[[], Awaitable[Disposition]]) -> Disposition | None:
        """Run `work` and return its disposition; None if the consumer stopped first."""
        if self._stopping.is_set():
            return None
        try:
            disposition = await work()
        except ConsumerStoppedError:
            return None
        except Exception as error:  # noqa: BLE001  one entry must not prevent the processing of the others
            self.statistics.failed += 1
            _logger.error(
                "queue=%s entry=%s could not be processed and stays pending: %s", self._queue.key, entry_id, describe_error(error)
            )
            return Disposition.LEAVE
        self.statistics.processed += 1
        return disposition


async def try_for(timeout_ms: int, coroutine: Coroutine[Any, Any, object]) -> bool:
    """Run a coroutine for at most `timeout_ms`; return whether it succeeded. For callers that are being cancelled."""
    task = asyncio.create_task(coroutine)
    await asyncio.wait({task}, timeout=timeout_ms / 1000)
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    return not isinstance(outcome, BaseException)


async def _sleep_ms(pause_ms: float) -> None:
    await asyncio.sleep(pause_ms / 1000)
