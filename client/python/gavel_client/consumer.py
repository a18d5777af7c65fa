"""The loop around a work queue that executors and the fact derivation reactor share.

A Consumer takes entries from its WorkQueue, several at a time, and hands each to one function. That function says what is to
become of the entry (Verdict) and never touches Redis; the consumer never looks into the event. An entry whose function
raises is logged, counted and left pending: it comes back after `min_idle_ms`, here or elsewhere. Nothing is ever dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, ParamSpec, TypeVar

from gavel.v1.envelope_pb2 import Envelope

from gavel_client.backoff import Backoff, may_heal
from gavel_client.errors import GavelClientError, GavelError, WorkQueueError, where_and_what
from gavel_client.work_queue import BLOCK_MS, START, Entry, WorkQueue

# Entries that may wait for something (a lease of somebody else's, a retry) without counting as work under way. Beyond this
# they keep their slots, and the consumer reads no more.
RESTING_MAX: Final = 1_000
# How long entries under way may take to end after a stop.
STOP_GRACE_MS_DEFAULT: Final = 10_000

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_logger = logging.getLogger(__name__)


class Verdict(Enum):
    """What becomes of an entry."""

    DELETE = "delete"
    """Its work has come to its end in the log: no group needs it."""
    ACKNOWLEDGE = "acknowledge"
    """This group is done with it; others may not be."""
    LEAVE = "leave"
    """It stays pending, for another consumer or another time."""


@dataclass
class Statistics:
    """Counts since the consumer was made."""

    processed: int = 0
    """Entries that came to a verdict."""
    failed: int = 0
    """Times that processing an entry raised; the entry was left pending."""
    claimed: int = 0
    """Entries taken over after their consumer had fallen silent, this one included."""


class ConsumerStoppedError(GavelClientError):
    """The consumer is stopping; what was waiting gives up its entry."""


class Consumer:
    """Reads a work queue and processes its entries, at most `concurrency` at a time.

    `process` receives each event and returns a Verdict. `chore`, where given, runs beside it for as long as the queue is open and
    never returns. `run` once; `stop` from anywhere in the same event loop.
    """

    def __init__(
        self,
        queue: WorkQueue,
        process: Callable[[Envelope], Awaitable[Verdict]],
        *,
        concurrency: int,
        stop_grace_ms: int = STOP_GRACE_MS_DEFAULT,
        backoff: Backoff | None = None,
        chore: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.statistics = Statistics()
        self._queue = queue
        self._process = process
        self._stop_grace_ms = stop_grace_ms
        self._backoff = backoff or Backoff()
        self._slots = asyncio.Semaphore(concurrency)
        self._resting = 0
        self._chore = chore
        self._stopping = asyncio.Event()
        self._held: dict[str, asyncio.Task[None]] = {}
        self._brought: set[asyncio.Task[None]] = set()
        self._drained = False
        self._broken: WorkQueueError | None = None

    @property
    def drained(self) -> bool:
        """Whether the queue had nothing new when it was last read."""
        return self._drained

    async def run(self) -> None:
        """Process entries until `stop`, then let those under way end. Raises WorkQueueError if the queue cannot be used.

        After `stop` entries get `stop_grace_ms` to end and are cancelled then; if this coroutine is cancelled, they are at once.
        """
        reading, claiming = asyncio.create_task(self._read()), asyncio.create_task(self._take_over())
        others = [claiming, asyncio.create_task(self._keep()), asyncio.create_task(self._stopping.wait())]
        if self._chore is not None:
            others.append(asyncio.create_task(self._chore()))
        try:
            await asyncio.wait([reading, *others], return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                claiming.cancel()
                await asyncio.wait([reading], timeout=2 * BLOCK_MS / 1000)
                under_way = [*self._held.values(), *self._brought]
                if under_way:
                    await asyncio.wait(under_way, timeout=self._stop_grace_ms / 1000)
        finally:
            self._stopping.set()
            in_order = reading.done() and not self._held
            tasks = [reading, *others, *self._held.values(), *self._brought]
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            if in_order:
                # A courtesy: a name that stays behind does no harm, and Redis may be away.
                await try_for(BLOCK_MS, self._queue.leave())
            await self._queue.close()
        for result in (*results, self._broken):
            if isinstance(result, Exception):
                raise result

    def stop(self) -> None:
        """Take no more entries; `run` returns when those under way have ended. May be called from a signal handler."""
        self._stopping.set()

    async def bring(self, entry_id: str, work: Callable[[], Awaitable[Verdict]]) -> None:
        """Have something done that no entry has brought, as if `entry_id` had: when a slot is free. Its verdict touches no entry."""
        await self._slots.acquire()
        task = asyncio.create_task(self._do(entry_id, work))
        self._brought.add(task)
        task.add_done_callback(self._brought.discard)

    async def pause(self, pause_ms: float) -> None:
        """Wait, from within `process`. Raises ConsumerStoppedError as soon as the consumer stops."""
        if not self._stopping.is_set():
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._stopping.wait()
            except TimeoutError:
                return
        raise ConsumerStoppedError("the consumer is stopping")

    async def rest(self, pause_ms: float) -> None:
        """Wait likewise, and let another entry be processed meanwhile."""
        if self._resting >= RESTING_MAX:
            await self.pause(pause_ms)
            return
        self._resting += 1
        self._slots.release()
        try:
            await self.pause(pause_ms)
        finally:
            self._resting -= 1
            await self._slots.acquire()

    async def persist(self, call: Callable[Arguments, Awaitable[Result]], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Make a call to the server, from within `process`, until it has judged it; what it refuses is raised as GavelError.

        A stop ends the tries with ConsumerStoppedError.
        """
        return await self._until_judged(self.pause, call, *args, **kwargs)

    async def persist_through_stop(
        self, call: Callable[Arguments, Awaitable[Result]], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Do so in spite of a stop, until cancelled: for what must not go unsaid."""
        return await self._until_judged(_sleep_ms, call, *args, **kwargs)

    async def _until_judged(
        self,
        wait_ms: Callable[[float], Awaitable[None]],
        call: Callable[Arguments, Awaitable[Result]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        failures = 0
        while True:
            try:
                return await call(*args, **kwargs)
            except GavelError as error:
                if not may_heal(error):
                    raise
                failures += 1
                pause_ms = self._backoff.pause_ms(failures, error.retry_after_ms)
                _logger.warning("queue=%s the server is away: %s, next try in %d ms", self._queue.key, where_and_what(error), pause_ms)
                await wait_ms(pause_ms)

    async def _read(self) -> None:
        """Take new entries while there are free slots."""
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

    async def _take_over(self) -> None:
        """Claim, again and again, the entries of consumers that have fallen silent, and those that were left pending."""
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
            await asyncio.sleep(self._queue.min_idle_ms / 3000)

    async def _keep(self) -> None:
        """Say, again and again, that the entries held here are being worked on."""
        while True:
            await asyncio.sleep(self._queue.min_idle_ms / 3000)
            await self._queue.keep(list(self._held))

    def _start(self, entry: Entry) -> None:
        if entry.entry_id in self._held:
            # Fallen silent ourselves (a suspended process) and claimed from ourselves.
            self._slots.release()
            return
        self._held[entry.entry_id] = asyncio.create_task(self._handle(entry))

    async def _handle(self, entry: Entry) -> None:
        """Process one entry and do what its verdict says. Holds a slot, which it was given, until the end."""
        try:
            verdict = await self._verdict(entry.entry_id, lambda: self._process(entry.envelope()))
            if verdict is None:
                await self._queue.release(entry.entry_id)
            elif verdict is Verdict.DELETE:
                await self._queue.delete(entry.entry_id)
            elif verdict is Verdict.ACKNOWLEDGE:
                await self._queue.acknowledge(entry.entry_id)
        except WorkQueueError as error:
            self._broken = error
            self.stop()
        finally:
            del self._held[entry.entry_id]
            self._slots.release()

    async def _do(self, entry_id: str, work: Callable[[], Awaitable[Verdict]]) -> None:
        """Do what no entry has brought. Holds a slot, which it was given, until the end."""
        try:
            await self._verdict(entry_id, work)
        finally:
            self._slots.release()

    async def _verdict(self, entry_id: str, work: Callable[[], Awaitable[Verdict]]) -> Verdict | None:
        """Return what becomes of an entry; None if the consumer stopped before that was known."""
        if self._stopping.is_set():
            return None
        try:
            verdict = await work()
        except ConsumerStoppedError:
            return None
        except Exception as error:  # noqa: BLE001  what one entry causes must not keep the others from being processed
            self.statistics.failed += 1
            _logger.error(
                "queue=%s entry=%s could not be processed and stays pending: %s", self._queue.key, entry_id, where_and_what(error)
            )
            return Verdict.LEAVE
        self.statistics.processed += 1
        return verdict


async def try_for(timeout_ms: int, coroutine: Coroutine[Any, Any, object]) -> bool:
    """Run a coroutine for at most so long, and return whether it ended well; for callers that are being cancelled themselves."""
    task = asyncio.create_task(coroutine)
    await asyncio.wait({task}, timeout=timeout_ms / 1000)
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    return not isinstance(outcome, BaseException)


async def _sleep_ms(pause_ms: float) -> None:
    await asyncio.sleep(pause_ms / 1000)
