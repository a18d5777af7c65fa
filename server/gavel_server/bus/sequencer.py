"""The sequencer of one bus: queues commands, decides them in batches, commits each batch in one append, then answers.

Load makes batches. While an append is under way, commands gather in the queue, and the next batch is decided on top of the events
that are being appended. Another server may write the same bus: the server whose view of the head is current wins; the other
undoes its batch, reads on and decides again. Readers see only the committed state, and nothing is answered before it is in the log.

Callers need no coroutine: `submit` takes a callback, which runs once, after the commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.fact_pb2 import CrossCheck
from gavel_rules.commands import AcceptClock, AcceptLoss, Command, OpenBus
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.state.state import State

from gavel_server.bus.batch.decision import BatchDecision, DecidedBatch, decide_batch
from gavel_server.bus.batch.observation import BatchObserver
from gavel_server.bus.batch.pacing import BatchPacing
from gavel_server.bus.batch.pending_append import AppendOutcome, PendingAppend
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.bus.committer import UNTIMELY_APPENDS_MAX, Committer, clock_skew
from gavel_server.bus.idempotency.repeated_requests import RepeatedRequests
from gavel_server.bus.queue import CommandQueue
from gavel_server.bus.recent_events import RecentEvents
from gavel_server.bus.references import ReferenceResolution
from gavel_server.bus.replica import Replica
from gavel_server.bus.request import Callback, Cancellation, CommittedAnswer, Request, answer_all
from gavel_server.bus.snapshots import BusSnapshots
from gavel_server.bus.watcher import BusWatcher
from gavel_server.errors import ServiceError
from gavel_server.fairness.callers import INTERNAL
from gavel_server.fairness.waiting import announce_wait
from gavel_server.history.disposal import free
from gavel_server.intake.event_ids import new_event_id
from gavel_server.log import EventLog, Head, LogError, UntimelyError
from gavel_server.log.tail import LogTail, TailBudget
from gavel_server.process.clock import GuardedClock
from gavel_server.process.time_slice import TimeSlice, run_call_passes

QUEUE_COMMANDS_MAX: Final = 10_000
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
# Deciding a batch while the one before is appended hides the append; several small batches hide more of it than one large batch. With 128,
# a caller beside greedy ones waits a third longer. With far fewer, round trips to a remote log would limit the throughput.
BATCH_COMMANDS_MAX: Final = 64
# A batch is dated when it begins, and ends after this time; the other commands go into the next one. A caller waits for the batch under
# way and for its own, while the loop also reads the requests and sends the answers of others. An ordinary full batch takes 10 ms.
BATCH_SECONDS_MAX: Final = 0.03
# Commands that are decided before other tasks get a turn; fewer if a `TimeSlice` ends first.
SLICE_COMMANDS: Final = 16
UNWRITABLE_PAUSE_SECONDS: Final = 0.25
# After a bug, so that a repeated one leaves time for other buses.
FAILURE_PAUSE_SECONDS: Final = 0.25


class _BatchRestart(Exception):  # noqa: N818  # control flow, not an error
    """The batch in preparation is back in the queue: the append before it failed."""


class Sequencer:
    """The only writer of a bus in this process. Call `start` after the constructor, and `stop` at the end."""

    def __init__(
        self,
        log: EventLog,
        clock: GuardedClock,
        *,
        cross_check: CrossCheck,
        idempotency_window_ms: int,
        checkpoint: Checkpoint | None = None,
        watch: BusWatcher | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        observer: BatchObserver | None = None,
        requires_attestation: bool = False,
        snapshots: BusSnapshots | None = None,
        tail_budget: TailBudget | None = None,
    ) -> None:
        """`cross_check` and `idempotency_window_ms` are those of a new bus. `watch` serves several buses; default: one of its own.

        `monotonic` (seconds) paces the deciding; no outcome depends on it. `observer` measures the batches; None: nothing is measured.
        `requires_attestation`, `snapshots`, `tail_budget`: see Replica.
        """
        self.bus = log.bus
        self.log = log
        self.replica = Replica(
            log,
            clock,
            checkpoint,
            monotonic,
            requires_attestation=requires_attestation,
            snapshots=snapshots,
            tail_budget=tail_budget,
        )
        self._watch = watch or BusWatcher()
        self._monotonic = monotonic
        self._observer: Final = observer
        self._opening = OpenBus(new_event_id(), cross_check, idempotency_window_ms)
        self._queue = CommandQueue(self.bus, QUEUE_COMMANDS_MAX, QUEUE_BYTES_MAX)
        repeated = RepeatedRequests(self.replica)
        self._pacing = BatchPacing(BATCH_COMMANDS_MAX)
        self.activating: Final = asyncio.Lock()  # for callers that check an activation before they execute it
        self._committer: Final = Committer(log, self.replica, self._queue, self._pacing, self._wake_readers, observer)
        self._resolution = ReferenceResolution(self.replica, repeated, self._settle_or_restart, self._committer, monotonic)
        self._batch: list[Request] = []  # in preparation
        self._readers: list[asyncio.Future[None]] = []
        self._running: asyncio.Task[None] | None = None
        # Set by each caller that gets the sequencer, and cleared by the registry.
        self.is_used = True
        self._on_opening: tuple[Callable[[], None], Callable[[], None]] | None = None
        self._has_decided = False
        self._is_freed = False

    async def start(self, *, opens: bool = True) -> None:
        """Read the log into the state, and begin to serve. `opens`: open the bus if it is new; otherwise its first event does.

        Raises LogError, or ServiceError if a new bus may not be written to because this host's clock is off.
        """
        replica = self.replica
        untimely_appends = 0
        await replica.load()
        while opens and replica.head.sequence_number == 0 and replica.write_block is None:
            error = replica.write_error()
            if error is not None:
                raise error
            request = Request(self._opening, _ignore, "", 0)
            batch = decide_batch(replica.state, replica.recent_events, replica.head, [request], replica.clock.now_ms())
            outcome, log_error = await PendingAppend(self.log, batch).wait()
            replica.state.undo(batch.mark)
            if outcome is AppendOutcome.FAILED and log_error is not None:
                raise log_error
            if isinstance(log_error, UntimelyError):
                untimely_appends += 1
                if untimely_appends == UNTIMELY_APPENDS_MAX:
                    raise clock_skew(log_error)
            await replica.load()
        self._running = self._watch.supervisor.start("sequencer", self._run, bus=self.bus)
        self._watch.add(replica, self._pacing.wake)

    async def stop(self) -> None:
        """Commit and answer what is queued, then stop. Later commands are refused."""
        self.replica.closing = True
        self._pacing.wake()
        self.replica.wake_followers()
        if self._running is not None:
            await self._running
        await self._watch.remove(self.replica)
        self.replica.contest_waiters.dismiss_all(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down")
        await self.replica.answers.stop()
        await self.replica.acknowledged.save()
        await self.replica.write_last_snapshot()
        self._watch.forget_series(self.replica)
        self._wake_readers()

    async def free(self) -> None:
        """Free the memory of a bus that has stopped; other tasks run meanwhile. Later reads fail."""
        self._is_freed = True
        replica = self.replica
        await free(replica.state, (*replica.recent_events.tables, *replica.trace_owners.tables))

    @property
    def is_open(self) -> bool:
        """Whether the bus has its first event."""
        return self.replica.head.sequence_number > 0

    def watch_opening(self, on_open: Callable[[], None], on_refusal: Callable[[], None]) -> None:
        """Call `on_open` once the bus has its first event, or `on_refusal` once commands were answered and it still has none."""
        self._on_opening = on_open, on_refusal

    @property
    def has_live_decisions(self) -> bool:
        """Whether a decision is approved or executed, or waits for facts."""
        return bool(self.replica.state.decisions)

    @property
    def is_idle(self) -> bool:
        """Whether the bus has no command, caller, follower, live decision, open review or timer."""
        replica = self.replica
        state = replica.state
        return not (
            self._queue
            or self._committer.is_appending
            or self._readers
            or replica.followers
            or replica.tail.is_followed
            or replica.contest_waiters
            or state.has_uncommitted_changes
            or state.decisions
            or state.reviews  # their gauges would vanish, and with them the alert that they wait
            or state.contests
            or state.next_timer_ms() is not None
        )

    # Commands

    @property
    def queue_length(self) -> int:
        """The number of queued commands."""
        return len(self._queue)

    def write_error(self) -> ServiceError | None:
        """Return why commands are refused now, or None."""
        return self._shutting_down() or self.replica.write_error()

    def submit(
        self,
        command: Command,
        callback: Callback,
        idempotency_key: str = "",
        size_bytes: int = 0,
        cancellation: Cancellation | None = None,
        caller: str = INTERNAL,
        principal: Principal = ANONYMOUS,
    ) -> None:
        """Queue an admitted command; `callback` gets the result once it is committed. Raises ServiceError if the queue refuses it.

        `idempotency_key` is the event_id if the producer chose it. `size_bytes` counts against the limits of batch and queue. A command
        whose `cancellation` is cancelled before it is decided is dropped without an answer. It uses `caller`'s share of the queue.
        `principal` is the authenticated caller, whose rights the core checks.
        """
        error = self._shutting_down() or self.replica.write_block
        if error is not None and not (isinstance(command, AcceptLoss) and self.replica.accepts_loss and not self.replica.closing):
            raise error.copy()
        request = Request(command, callback, idempotency_key, size_bytes, cancellation=cancellation, caller=caller, principal=principal)
        if self._observer is not None:
            self._observer.note_queued((request,))
        self._queue.add(request)
        self._pacing.notify_queued(len(self._queue))

    def submit_all(self, requests: list[Request]) -> None:
        """Queue commands that arrived together. Each is answered with its result, or with the reason why the queue refuses it."""
        error = self._shutting_down() or self.replica.write_block
        if error is not None:
            answer_all(requests, error)
            return
        if self._observer is not None:
            self._observer.note_queued(requests)
        self._queue.add_all(requests)
        self._pacing.notify_queued(len(self._queue))

    async def execute(
        self, command: Command, idempotency_key: str = "", size_bytes: int = 0, *, caller: str = INTERNAL, principal: Principal = ANONYMOUS
    ) -> CommittedAnswer:
        """Queue a command and wait until it is committed. Raises ServiceError. A caller that is cancelled drops it if it is not decided."""
        cancellation = Cancellation()
        future: asyncio.Future[CommittedAnswer | ServiceError] = asyncio.get_running_loop().create_future()

        def callback(result: CommittedAnswer | ServiceError) -> None:
            if not future.done():
                future.set_result(result)

        self.submit(command, callback, idempotency_key, size_bytes, cancellation, caller, principal)
        try:
            result = await future
        except asyncio.CancelledError:
            cancellation.cancel()
            raise
        if isinstance(result, ServiceError):
            raise result.copy()
        return result

    async def create(self, caller: str, principal: Principal) -> None:
        """Open the bus. Raises ServiceError WRONG_STATE if it is open."""
        await self.execute(self._opening, caller=caller, principal=principal)

    def _shutting_down(self) -> ServiceError | None:
        return _shutdown_error() if self.replica.closing else None

    # Reads

    @property
    def head(self) -> Head:
        """The last committed event that this server knows."""
        return self.replica.head

    @property
    def recent_events(self) -> RecentEvents:
        """The recent past of the bus."""
        return self.replica.recent_events

    @property
    def tail(self) -> LogTail:
        """The newest events, while somebody follows the bus."""
        return self.replica.tail

    def now_ms(self) -> int:
        """Return the time of a decision made now."""
        return self.replica.now_ms()

    async def confirm(self, sequence_number: int) -> None:
        """Wait until the events up to this number have the durability that the server promises. Raises ServiceError LOG_UNAVAILABLE."""
        if not self.log.is_confirmed(sequence_number):
            if sequence_number > self.head.sequence_number:
                await self.read_on()
            try:
                await self.replica.confirm(sequence_number)
            except LogError as error:
                raise ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, f"{error}; try again") from error

    async def confirmed_state(self) -> State:
        """Return the committed state, once its events are confirmed. Valid until the next await. Raises ServiceError LOG_UNAVAILABLE."""
        state = await self.settled_state()
        while not self.log.is_confirmed(state.head):
            await self.confirm(state.head)
            state = await self.settled_state()
        return state

    async def settled_state(self) -> State:
        """Return the committed state, confirmed or not. Valid until the next await: afterwards it may hold uncommitted changes.

        Raises ServiceError SHUTTING_DOWN if the bus was closed.
        """
        while self.replica.state.has_uncommitted_changes:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.append(future)
            await future
        if self._is_freed:
            raise _shutdown_error()
        return self.replica.state

    async def read_on(self) -> None:
        """Bring the state up to everything that any server committed before this call, as far as the log can be read."""
        if self.replica.closing or self.replica.write_block is not None:
            return
        self.replica.is_behind = True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.append(future)
        self._pacing.wake()
        await future

    async def wait_for(self, sequence_number: int, timeout_ms: int) -> None:
        """Wait until the state has reached a sequence number. Raises ServiceError PROJECTION_BEHIND after `timeout_ms`."""
        if self.head.sequence_number >= sequence_number:
            return
        self.replica.is_behind = True
        self._pacing.wake()
        await announce_wait()
        try:
            await asyncio.wait_for(self.wait_beyond(sequence_number - 1), timeout_ms / 1000)
        except TimeoutError:
            raise ServiceError(
                error_pb2.ERROR_REASON_PROJECTION_BEHIND,
                f"the projection of bus {self.bus} is at event {self.head.sequence_number}, not yet at {sequence_number}; try again",
            ) from None

    async def wait_beyond(self, sequence_number: int) -> int:
        """Return the head's sequence number once it exceeds `sequence_number`."""
        return await self.replica.wait_beyond(sequence_number)

    def _wake_readers(self) -> None:
        readers, self._readers = self._readers, []
        for future in readers:
            if not future.done():
                future.set_result(None)

    # The loop

    async def _run(self) -> None:
        while True:
            try:
                await self._wait_for_work()
                await self._step()
            except LogError as error:
                self.replica.handle_log_error(error)
            except Exception as error:  # noqa: BLE001  # the loop survives a bug: it logs it, refuses the queue and continues
                self._queue.refuse(self._committer.log_bug(error))
                await asyncio.sleep(FAILURE_PAUSE_SECONDS)
            block = self.replica.write_block
            if block is not None:
                if not self.replica.accepts_loss:
                    self._queue.refuse(block)
                self.replica.contest_waiters.dismiss_all(block.reason, block.message)
            if self._on_opening is not None:
                self._notify_opening(*self._on_opening)
            if self.replica.closing and not self._queue and not self._committer.is_appending:
                return

    def _notify_opening(self, on_open: Callable[[], None], on_refusal: Callable[[], None]) -> None:
        if self.is_open:
            self._on_opening = None
            on_open()
        elif self._has_decided and not self._queue and not self._committer.is_appending:
            self._on_opening = None
            on_refusal()

    @property
    def _has_no_work(self) -> bool:
        replica = self.replica
        return not (self._queue or self._readers or self._committer.is_appending or replica.closing or replica.is_behind)

    async def _wait_for_work(self) -> None:
        replica = self.replica
        # A busy bus frees dropped tables with its events.
        time_slice = TimeSlice(1, self._monotonic)
        while self._has_no_work and replica.state.free_dropped():
            await time_slice.end()
        if self._has_no_work:
            due_ms = replica.state.next_timer_ms()
            if due_ms is None:
                await self._pacing.sleep(None)
            elif self.write_error() is not None:
                await self._pacing.sleep(UNWRITABLE_PAUSE_SECONDS)
            elif due_ms > self.now_ms():
                # If the clock's anchor moves meanwhile, the watcher ends the sleep.
                await self._pacing.sleep((due_ms - self.now_ms()) / 1000)
        if not replica.closing:
            await self._pacing.linger(self._queue)

    async def _step(self) -> None:
        """Decide one batch and send it. Wait for the append before it, and for its own unless more commands are queued."""
        if self.replica.is_behind or self._readers:
            await self._committer.settle()
        if self.replica.is_behind:
            await self.replica.refresh()
        if self._readers:
            # Readers run before the state changes again.
            self._wake_readers()
            await asyncio.sleep(0)
        batch = await self._prepare()
        next_requests = [request for request, _ in batch.answers] if batch is not None else []
        if not await self._committer.settle(next_requests) or batch is None:
            return
        self._committer.send(batch)
        if not self._queue or self._readers:
            await self._committer.settle()
        else:
            # One turn of the event loop sends the append before the next slice of commands takes the processor for milliseconds.
            await asyncio.sleep(0)

    # Deciding

    async def _prepare(self) -> DecidedBatch | None:
        """Take a batch from the queue and decide it on top of the append under way. None: nothing to decide."""
        self._batch = self._queue.take(self._pacing.limit)
        self._pacing.record_batch(len(self._batch))
        if self._observer is not None:
            self._observer.note_taken(self._batch, len(self._queue))
        self._has_decided = self._has_decided or bool(self._batch)
        try:
            ready = await self._resolve(self._batch)
            replica = self.replica
            error = replica.write_error()
            if error is not None:
                # An operator's acceptance is the one command that a bus ahead of the clock takes, or one whose log has lost events.
                acceptance = AcceptLoss if replica.accepts_loss else AcceptClock if replica.is_ahead else ()
                accepting = [request for request in ready if isinstance(request.command, acceptance)]
                answer_all([request for request in ready if request not in accepting], error)
                if not accepting:
                    return None
                ready = accepting
                if replica.accepts_loss:
                    return await self._decide(ready)
            due = replica.state.due_count(replica.now_ms())
            if not ready and not due:
                return None
            if due > BATCH_COMMANDS_MAX:
                # That many timers precede the commands, in commits of their own.
                self._batch = []
                self._queue.put_back(ready)
                ready = []
            return await self._decide(ready)
        except _BatchRestart:
            return None
        except LogError as error:
            answer_all(self._batch, self.replica.handle_log_error(error))
            return None
        except Exception as error:  # noqa: BLE001  # a bug costs the batch, not the bus
            answer_all(self._batch, self._committer.log_bug(error))
            await asyncio.sleep(FAILURE_PAUSE_SECONDS)
            return None

    async def _resolve(self, batch: list[Request]) -> list[Request]:
        """Resolve a batch's references, after reading on if they require it; return the requests that can be decided."""
        ready, deferred, is_behind = await self._resolution.resolve(batch)
        self._queue.put_back(deferred)
        self._batch = ready
        if is_behind:
            await self._settle_or_restart()
            await self.replica.refresh()
            ready, deferred, _ = await self._resolution.resolve(ready)
            self._queue.put_back(deferred)
            self._batch = ready
        return ready

    async def _decide(self, ready: list[Request]) -> DecidedBatch:
        """Decide a batch in slices. Other tasks run in between: requests, answers, and the append before it."""
        replica = self.replica
        decision = BatchDecision(replica.state, replica.recent_events, self._committer.head, replica.now_ms(), replica.clock.now_ms())
        opens = replica.state.head == 0
        try:
            is_created = bool(ready) and isinstance(ready[0].command, OpenBus)
            if opens and not is_created:
                decision.decide(Request(self._opening, _ignore, "", 0))
            time_slice = TimeSlice(SLICE_COMMANDS, self._monotonic, run_call_passes)
            ends_at = self._monotonic() + BATCH_SECONDS_MAX
            for _ in () if replica.accepts_loss else decision.emit_timers():
                if not time_slice.is_over(1):
                    continue
                await self._end_slice(time_slice)
                if decision.event_count and self._monotonic() >= ends_at:
                    # The other timers precede the commands, in commits of their own.
                    self._batch = []
                    self._queue.put_back(ready)
                    ready = []
                    break
            for count, request in enumerate(ready, 1):
                decision.decide(request)
                if not time_slice.is_over(1):
                    continue
                await self._end_slice(time_slice)
                if self._monotonic() >= ends_at:
                    self._batch = ready[:count]
                    self._queue.put_back(ready[count:])
                    break
            # A bus is opened only together with another event.
            return decision.finish_unopened() if opens and not is_created and decision.event_count == 1 else decision.finish()
        except _BatchRestart:
            raise  # the state has been undone beyond this batch
        except BaseException:
            replica.state.undo(decision.mark)
            raise

    async def _end_slice(self, time_slice: TimeSlice) -> None:
        """Let other tasks run while a batch is in preparation. Raises _BatchRestart if the append before it failed meanwhile."""
        await time_slice.end()
        if self._committer.has_reply:
            await self._settle_or_restart()

    async def _settle_or_restart(self) -> None:
        """Wait for the append under way while a batch is in preparation. Raises _BatchRestart if it is not in the log."""
        if not await self._committer.settle(self._batch):
            raise _BatchRestart


def _shutdown_error() -> ServiceError:
    return ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down; try again, or use another server")


def _ignore(_: CommittedAnswer | ServiceError) -> None:
    """Take the answer to the opening of a bus, for which nobody waits."""
