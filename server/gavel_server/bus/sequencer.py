"""One bus's sequencer: commands in, decided in batches, committed in one append each, answered after it.

Batching comes from load: while an append is under way the next batch gathers and, when there is enough of it, is decided
already, on top of what is being appended. Another server may write the same bus: whoever's view of the head is current
wins, the other undoes, reads on and decides again. Only the committed state is ever shown, and nothing is answered before
it is in the log.

A caller needs no coroutine of its own: `submit` takes a callback, which runs once, after the commit.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import structlog
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CrossCheck
from gavel_rules.commands import Command, OpenBus
from gavel_rules.events import DECISION
from gavel_rules.projection import State

from gavel_server import metrics
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.bus.earlier_answers import EarlierAnswers
from gavel_server.bus.flight import Flight, Landing
from gavel_server.bus.gathering import Gathering
from gavel_server.bus.lookup import Lookup
from gavel_server.bus.planning import Completed, Done, Pending, Plan, Planning, as_sent, plan, tell
from gavel_server.bus.preparation import Preparation
from gavel_server.bus.queue import CommandQueue
from gavel_server.bus.replica import Replica
from gavel_server.bus.watching import Watch
from gavel_server.clock import GuardedClock
from gavel_server.errors import ServiceError, internal
from gavel_server.identifiers import new_event_id
from gavel_server.log import EventIdTakenError, EventLog, Head, LogError

QUEUE_COMMANDS_MAX: Final = 10_000
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
# A batch that is decided while another one is appended hides the append; more, smaller batches hide more of it.
BATCH_COMMANDS_MAX: Final = 128
# How many commands are decided in one go, without giving the event loop a turn.
SLICE_COMMANDS: Final = 16
UNWRITABLE_PAUSE_SECONDS: Final = 0.25
# After a bug, so that one that repeats itself leaves time for others.
FAILURE_PAUSE_SECONDS: Final = 0.25

_LOG: Final = structlog.get_logger(__name__)


class _StartOverError(Exception):
    """The batch that was being prepared is back in the queue: what went before it was not appended."""


class Sequencer:
    """The one writer of a bus in this process. Make it, `start` it, `stop` it."""

    def __init__(
        self,
        log: EventLog,
        clock: GuardedClock,
        *,
        cross_check: CrossCheck,
        idempotency_window_ms: int,
        checkpoint: Checkpoint | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`watch` keeps several buses up to date; without it this one has its own."""
        self.bus = log.bus
        self.log = log
        self.replica = Replica(log, clock, checkpoint)
        self._watch = watch or Watch()
        self._opening = OpenBus(new_event_id(), cross_check, idempotency_window_ms)
        self._queue = CommandQueue(self.bus, QUEUE_COMMANDS_MAX, QUEUE_BYTES_MAX)
        self._earlier = EarlierAnswers(self.replica)
        self._preparation = Preparation(self.replica, self._earlier, self._land_first)
        self._gathering = Gathering(BATCH_COMMANDS_MAX)
        self._flight: Flight | None = None
        self._deciding: list[Pending] = []
        self._readers: list[asyncio.Future[None]] = []
        self._running: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Read the log into the state, opening the bus if it is new, and begin to serve.

        Raises LogError, or ServiceError where a new bus may not be written to: by a host whose clock is off.
        """
        replica = self.replica
        await replica.load()
        while replica.head.sequence_number == 0 and replica.trouble is None:
            forbidden = replica.unwritable()
            if forbidden is not None:
                raise forbidden
            decided = plan(
                replica.state, replica.lookup, replica.head, [Pending(self._opening, lambda _: None, "", 0)], replica.clock.now_ms()
            )
            landing, error = await Flight(self.log, decided).land()
            replica.state.undo(decided.mark)
            if landing is Landing.FAILED and error is not None:
                raise error
            await replica.load()
        self._running = asyncio.create_task(self._run())
        self._watch.add(replica, self._gathering.wake)

    async def stop(self) -> None:
        """Commit what is queued, answer it, and end. Commands that come later are refused."""
        self.replica.closing = True
        self._gathering.wake()
        self.replica.wake_followers()
        if self._running is not None:
            await self._running
        await self._watch.remove(self.replica)
        self.replica.waiting.dismiss(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down")
        await self.replica.save_checkpoint()
        self._wake_readers()

    # Commands

    @property
    def queued(self) -> int:
        """How many commands wait."""
        return len(self._queue)

    def unwritable(self) -> ServiceError | None:
        """Return why commands are refused now, or None."""
        return self._closed() or self.replica.unwritable()

    def submit(self, command: Command, done: Done, check_id: str = "", size_bytes: int = 0) -> None:
        """Queue a command; `done` hears what it came to once it is committed. Raises ServiceError if it cannot be queued.

        `check_id` is the event_id where the producer chose it: an idempotency key. `size_bytes` counts against batch and queue.
        """
        self._enqueue(Pending(command, done, check_id, size_bytes))

    def propose(self, envelope: Envelope, done: Done, size_bytes: int) -> None:
        """Queue a proposal as it was sent; `done` hears its decision, or what is wrong with it. Raises as `submit` does.

        It is checked when its batch is decided, right before it, and not between two reads of the transport. `size_bytes` is in how
        many bytes it came at most; of proposals sent together, its share will do where no one of them can be too large.
        """
        self._enqueue(as_sent(envelope, done, size_bytes))

    def propose_all(self, batch: list[Pending]) -> None:
        """Queue proposals that came together, as they were sent. Each hears what it came to, or why it cannot be queued."""
        trouble = self._closed() or self.replica.trouble
        if trouble is not None:
            _answer_all(batch, trouble)
            return
        self._queue.add_all(batch)
        self._gathering.arrived(len(self._queue))

    async def execute(self, command: Command, check_id: str = "", size_bytes: int = 0) -> Completed:
        """Queue a command and wait until it is committed. Raises ServiceError."""
        future: asyncio.Future[Completed | ServiceError] = asyncio.get_running_loop().create_future()

        def done(result: Completed | ServiceError) -> None:
            if not future.done():
                future.set_result(result)

        self.submit(command, done, check_id, size_bytes)
        result = await future
        if isinstance(result, ServiceError):
            raise result
        return result

    def _enqueue(self, pending: Pending) -> None:
        trouble = self._closed() or self.replica.trouble
        if trouble is not None:
            raise trouble
        self._queue.add(pending)
        self._gathering.arrived(len(self._queue))

    def _closed(self) -> ServiceError | None:
        if self.replica.closing:
            return ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down; try another one")
        return None

    # Reading

    @property
    def head(self) -> Head:
        """The last committed event that this server knows."""
        return self.replica.head

    @property
    def lookup(self) -> Lookup:
        """Where events of the recent past stand."""
        return self.replica.lookup

    def now_ms(self) -> int:
        """The `now` that a decision would be made at."""
        return self.replica.now_ms()

    async def settled(self) -> State:
        """Return the committed state. Use it before the next await: afterwards it may hold what is not committed."""
        while self.replica.state.tentative:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.append(future)
            await future
        return self.replica.state

    async def read_on(self) -> None:
        """Bring the state up to what any server had committed before this call, as far as the log can be read."""
        if self.replica.closing or self.replica.trouble is not None:
            return
        self.replica.behind = True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.append(future)
        self._gathering.wake()
        await future

    async def wait_for(self, sequence_number: int, timeout_ms: int) -> None:
        """Wait until the state has come so far. Raises ServiceError PROJECTION_BEHIND after `timeout_ms`."""
        if self.head.sequence_number >= sequence_number:
            return
        self.replica.behind = True
        self._gathering.wake()
        try:
            await asyncio.wait_for(self.beyond(sequence_number - 1), timeout_ms / 1000)
        except TimeoutError:
            raise ServiceError(
                error_pb2.ERROR_REASON_PROJECTION_BEHIND,
                f"the projection of bus {self.bus} is at {self.head.sequence_number}, not yet at {sequence_number}",
            ) from None

    async def beyond(self, sequence_number: int) -> int:
        """Return the head's number once it is beyond `sequence_number`."""
        return await self.replica.beyond(sequence_number)

    # The loop

    async def _run(self) -> None:
        while True:
            await self._wait_for_work()
            try:
                await self._step()
            except LogError as error:
                self.replica.take_log_error(error)
            except Exception:  # noqa: BLE001  # the loop is the bus: it logs, refuses what it holds, and goes on
                self._queue.refuse(self._failed())
                await asyncio.sleep(FAILURE_PAUSE_SECONDS)
            if self.replica.trouble is not None:
                self._queue.refuse(self.replica.trouble)
                self.replica.waiting.dismiss(self.replica.trouble.reason, self.replica.trouble.message)
            if self.replica.closing and not self._queue and self._flight is None:
                return

    async def _wait_for_work(self) -> None:
        if not self._queue and not self._readers and self._flight is None and not self.replica.closing and not self.replica.behind:
            due_ms = self.replica.state.next_timer_ms()
            if due_ms is None:
                await self._gathering.sleep(None)
            elif self.unwritable() is not None:
                await self._gathering.sleep(UNWRITABLE_PAUSE_SECONDS)
            elif due_ms > self.now_ms():
                # By the monotonic clock. Should the wall clock be set meanwhile, `Watch` ends this.
                await self._gathering.sleep((due_ms - self.now_ms()) / 1000)
        if not self.replica.closing:
            await self._gathering.linger(self._queue)

    async def _step(self) -> None:
        """Decide one batch and send it; wait for the append before it, and for this one unless more is queued."""
        if self.replica.behind or self._readers:
            await self._land()
        if self.replica.behind:
            await self.replica.refresh()
        if self._readers:
            # Readers run before the state changes again.
            self._wake_readers()
            await asyncio.sleep(0)
        decided = await self._decide()
        ahead = [pending for pending, _ in decided.answers] if decided is not None else []
        if not await self._land(ahead) or decided is None:
            return
        self._flight = Flight(self.log, decided)
        if not self._queue or self._readers:
            await self._land()
        else:
            # A turn of the event loop sends it, before a slice of the next batch takes the processor for milliseconds.
            await asyncio.sleep(0)

    async def _decide(self) -> Plan | None:
        """Take a batch from the queue and decide it, on top of what is being appended. None: there is nothing to decide."""
        self._deciding = self._queue.take(self._gathering.limit)
        self._gathering.took(len(self._deciding))
        try:
            ready, later, behind = await self._preparation.prepare(self._deciding)
            self._queue.put_back(later)
            self._deciding = ready
            if behind:
                await self._land_first()
                await self.replica.refresh()
                ready, later, _ = await self._preparation.prepare(ready)
                self._queue.put_back(later)
                self._deciding = ready
            trouble = self.replica.unwritable()
            if trouble is not None:
                _answer_all(ready, trouble)
                return None
            replica = self.replica
            due = replica.state.due_count(replica.now_ms())
            if not ready and not due:
                return None
            if due > BATCH_COMMANDS_MAX:
                # So many timers go ahead of the commands, in commits of their own.
                self._queue.put_back(ready)
                ready = []
            return await self._plan(ready)
        except _StartOverError:
            return None
        except LogError as error:
            _answer_all(self._deciding, self.replica.take_log_error(error))
            return None
        except Exception:  # noqa: BLE001  # a bug: it costs the batch, not the bus
            _answer_all(self._deciding, self._failed())
            await asyncio.sleep(FAILURE_PAUSE_SECONDS)
            return None

    async def _plan(self, ready: list[Pending]) -> Plan:
        """Decide a batch in slices. Between two of them others have their turn: requests, answers, and the append before it."""
        replica = self.replica
        state = replica.state
        expected = self._flight.decided.head if self._flight is not None else replica.head
        planning = Planning(state, replica.lookup, expected, replica.now_ms())
        try:
            if not ready:
                planning.tick()
            for count, pending in enumerate(ready, 1):
                planning.decide(pending)
                if count % SLICE_COMMANDS == 0:
                    await asyncio.sleep(0)
                    if self._flight is not None and self._flight.arrived:
                        await self._land_first()
            return planning.plan()
        except _StartOverError:
            raise  # the state has been undone beyond this batch
        except BaseException:
            state.undo(planning.mark)
            raise

    async def _land(self, ahead: Sequence[Pending] = ()) -> bool:
        """Wait for the append under way and answer its batch.

        False: it is not in; it is undone, and so is what was decided on top of it. `ahead`, the commands taken after it, go
        back to the queue behind it, so that none overtakes another.
        """
        flight, self._flight = self._flight, None
        if flight is None:
            return True
        batch = flight.batch
        try:
            landing, error = await flight.land(partial(self._say_unknown, ahead))
        except Exception:  # noqa: BLE001  # a bug: what the log holds now is what became of the append
            self.replica.state.undo(flight.decided.mark)
            self._queue.put_back(ahead)
            self.replica.behind = True
            _answer_all(batch, self._failed())
            return False
        if flight.undone:
            # Its callers and those behind it have been told; if it is in, it is read like an event of another server.
            if landing is Landing.COMMITTED:
                metrics.committed(self.bus, len(flight.decided.envelopes), flight.decided.watched)
            elif error is not None:
                self.replica.take_log_error(error)
            self.replica.behind = True
            return False
        if landing is Landing.COMMITTED:
            self.replica.recover()
            self._settle(flight.decided, error)
            self._gathering.grow()
            return True
        self.replica.state.undo(flight.decided.mark)
        self._queue.put_back(ahead)
        try:
            if isinstance(error, EventIdTakenError):
                self._queue.put_back(await self._earlier.give_taken(batch, error))
            elif landing is Landing.CORRECTED:
                if error is None:
                    _send_away_lost(batch)
                self._gathering.halve()
                self._queue.put_back(batch)
                await self.replica.refresh()
            else:
                _answer_all(batch, self.replica.take_log_error(error or LogError("the log did not answer")))
        except LogError as failure:
            _answer_all(batch, self.replica.take_log_error(failure))
        return False

    def _settle(self, decided: Plan, error: LogError | None) -> None:
        """The plan is in the log: keep the state, remember, answer."""
        self.replica.advance(decided)
        waiting = self.replica.waiting
        instead = None if error is None else ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error))
        for pending, answer in tell(decided, instead):
            waiting.join(answer.envelope.event_id, pending)
        if waiting:
            for event, entry in zip(decided.envelopes, decided.entries, strict=True):
                if event.event_category == DECISION:
                    waiting.hear(event, entry)

    def _say_unknown(self, ahead: Iterable[Pending], flight: Flight, error: LogError, *, for_long: bool) -> bool:
        """An append's outcome is not known yet. Refuse what would have to wait; in the end the callers of what is decided as well.

        Returns whether it still matters: a server that stops does not wait for a store that stays away.
        """
        self.replica.take_log_error(error)
        unknown = ServiceError(
            error_pb2.ERROR_REASON_LOG_UNAVAILABLE,
            "the log did not answer; whether the event is in it is not known: retry with the same event_id",
        )
        self._queue.refuse(unknown)
        if for_long:
            _answer_all(flight.batch, unknown)
            _answer_all(ahead, unknown)
            if not flight.undone:
                # Who asks for the state, or how the server is, must not wait for as long as the store stays away.
                flight.undone = True
                self.replica.state.undo(flight.decided.mark)
                self._wake_readers()
        return not (for_long and self.replica.closing)

    def _failed(self) -> ServiceError:
        """Log the exception that is being handled, a bug, and return what callers hear of it."""
        error_id = uuid.uuid4().hex
        _LOG.exception("sequencer.failed", bus=self.bus, error_id=error_id)
        return internal(error_id)

    async def _land_first(self) -> bool:
        """Wait for the append under way, while a batch is prepared. Returns whether there was one; if it is not in, starts over."""
        if self._flight is None:
            return False
        if not await self._land(self._deciding):
            raise _StartOverError
        return True

    def _wake_readers(self) -> None:
        readers, self._readers = self._readers, []
        for future in readers:
            if not future.done():
                future.set_result(None)


def _answer_all(batch: Iterable[Pending], error: ServiceError) -> None:
    for pending in batch:
        pending.answer(error)


def _send_away_lost(batch: Iterable[Pending]) -> None:
    """The append is not in, after a doubt. A store that loses one after the other must not keep callers waiting for ever."""
    for pending in batch:
        if pending.lost:
            pending.answer(ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, "the log lost the event twice: it is not in it; try again"))
        pending.lost = True
