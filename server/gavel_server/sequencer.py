"""One bus's sequencer: commands in, decided in batches, committed in one append, answered after it.

Batching comes from load: while an append is under way the next batch gathers. The state is changed only here and only
the committed state is ever shown. Another server may write the same bus: whoever's view of the head is current wins, the
other undoes, reads on and decides again. Nothing is answered before it is in the log.

A caller needs no coroutine of its own: `submit` takes a callback, which runs once, after the commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import structlog
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CrossCheck
from gavel_rules.chain import chain
from gavel_rules.commands import Command, OpenBus, Recorded, SubmitProposal
from gavel_rules.events import ARBITER_VERSION
from gavel_rules.limits import BATCH_BYTES_MAX
from gavel_rules.projection import State

from gavel_server.checkpoint import Checkpoint
from gavel_server.clock import SKEW_CHECK_INTERVAL_SECONDS, GuardedClock
from gavel_server.errors import ServiceError
from gavel_server.idempotency import same_content
from gavel_server.identifiers import new_event_id
from gavel_server.log import (
    EventIdTakenError,
    EventLog,
    Head,
    HeadMovedError,
    LogCorruptError,
    LogError,
    NotReplicatedError,
    OutcomeUnknownError,
    Record,
)
from gavel_server.log.protocol import empty_head
from gavel_server.lookup import Known, Lookup
from gavel_server.planning import Completed, Done, Pending, Plan, outcome, plan
from gavel_server.preparation import command_envelope, prepare

QUEUE_COMMANDS_MAX: Final = 10_000
BATCH_COMMANDS_MAX: Final = 512
LINGER_SECONDS: Final = 0.002
LINGER_MOMENTS_MAX: Final = 5
POLL_INTERVAL_SECONDS: Final = 0.05
UNWRITABLE_PAUSE_SECONDS: Final = 0.25
UNKNOWN_ANSWER_SECONDS: Final = 5.0
CHECKPOINT_INTERVAL_SECONDS: Final = 1.0

_LOG: Final = structlog.get_logger(__name__)


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
    ) -> None:
        self.bus = log.bus
        self.log = log
        self.lookup = Lookup(log)
        self._clock = clock
        self._cross_check = cross_check
        self._idempotency_window_ms = idempotency_window_ms
        self._checkpoint = checkpoint
        self._state = State(log.bus)
        self._head = empty_head(log.bus)
        self._queue: deque[Pending] = deque()
        self._sleeper: asyncio.Future[None] | None = None
        self._gathered: asyncio.Future[None] | None = None
        self._gather_target = 0
        self._batch_limit = BATCH_COMMANDS_MAX
        self._last_batch = 0
        self._company = 0
        self._in_flight = False
        self._refresh_wanted = False
        self._settled: list[asyncio.Future[None]] = []
        self._followers: list[tuple[int, asyncio.Future[None]]] = []
        self._trouble: ServiceError | None = None
        self._trouble_for_good = False
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    # Life

    async def start(self) -> None:
        """Read the log into the state, opening the bus if it is new, and begin to serve. Raises LogError."""
        head = await self.log.head()
        await self._check_acknowledged(head)
        while head.sequence_number == 0 and self._trouble is None:
            head = await self._open()
        await self._read_on(head)
        await self._observe_clock()
        if self._state.arbiter_version != ARBITER_VERSION and self._trouble is None:
            self._give_up(
                error_pb2.ERROR_REASON_ARBITER_VERSION_NOT_IMPLEMENTED,
                f"bus {self.bus} has arbiter_version {self._state.arbiter_version}; this build implements {ARBITER_VERSION}: "
                "serve it with a build that does, or upgrade the bus",
            )
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._watch())]

    async def stop(self) -> None:
        """Commit what is queued, answer it, and end. Commands that come later are refused."""
        self._stopping = True
        self._wake()
        self._wake_followers()
        if self._tasks:
            await self._tasks[0]
            self._tasks[1].cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._save_checkpoint()
        self._wake_readers()

    async def _open(self) -> Head:
        opening = OpenBus(new_event_id(), self._cross_check, self._idempotency_window_ms)
        pending = Pending(opening, lambda _: None, "", 0)
        decided = plan(self._state, self._head, [pending], self._clock.now_ms())
        try:
            await self.log.append(decided.expected, decided.entries, decided.recorded_at_ms, ())
        except (HeadMovedError, OutcomeUnknownError):
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
        finally:
            self._state.undo(decided.mark)
        return await self.log.head()

    # Commands

    @property
    def queued(self) -> int:
        """How many commands wait."""
        return len(self._queue)

    def unwritable(self) -> ServiceError | None:
        """Return why commands are refused now, or None."""
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        problem = self._clock.problem(self._state.recorded_at_ms)
        return ServiceError(error_pb2.ERROR_REASON_CLOCK_SKEW, problem, retry_after_ms=1000) if problem else None

    def _refusal(self) -> ServiceError | None:
        if self._stopping:
            return ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down; try another one")
        return self._trouble

    def submit(self, command: Command, done: Done, check_id: str = "", size_bytes: int = 0) -> None:
        """Queue a command; `done` hears what it came to once it is committed. Raises ServiceError if it cannot be queued.

        `check_id` is the event_id where the producer chose it: an idempotency key. `size_bytes` counts against a batch.
        """
        self._enqueue(Pending(command, done, check_id, size_bytes))

    def propose(self, envelope: Envelope, done: Done, size_bytes: int) -> None:
        """Queue a proposal as it was sent; `done` hears its decision, or what is wrong with it. Raises as `submit` does.

        It is checked when its batch is decided: the checks of many proposals in a row cost a third of as many checks each
        between two other things (docs/decisions/0010-hot-path.md).
        """
        self._enqueue(Pending(SubmitProposal(envelope), done, "", size_bytes, unchecked=True))

    def _enqueue(self, pending: Pending) -> None:
        trouble = self._refusal()
        if trouble is not None:
            raise trouble
        if len(self._queue) >= QUEUE_COMMANDS_MAX:
            raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, f"{QUEUE_COMMANDS_MAX} commands wait on bus {self.bus}; try again")
        self._queue.append(pending)
        if self._gathered is None:
            self._wake()
        elif len(self._queue) >= self._gather_target and not self._gathered.done():
            self._gathered.set_result(None)

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

    # Reading

    @property
    def head(self) -> Head:
        """The last committed event that this server knows."""
        return self._head

    def now_ms(self) -> int:
        """The `now` that a decision would be made at."""
        return max(self._clock.now_ms(), self._state.recorded_at_ms)

    async def settled(self) -> State:
        """Return the committed state. Use it before the next await: afterwards it may hold what is not committed."""
        while self._in_flight:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settled.append(future)
            await future
        return self._state

    async def wait_for(self, sequence_number: int, timeout_ms: int) -> None:
        """Wait until the state has come so far. Raises ServiceError PROJECTION_BEHIND after `timeout_ms`."""
        if self._head.sequence_number >= sequence_number:
            return
        self._want_refresh()
        try:
            await asyncio.wait_for(self.beyond(sequence_number - 1), timeout_ms / 1000)
        except TimeoutError:
            raise ServiceError(
                error_pb2.ERROR_REASON_PROJECTION_BEHIND,
                f"the projection of bus {self.bus} is at {self._head.sequence_number}, not yet at {sequence_number}",
            ) from None

    async def beyond(self, sequence_number: int) -> int:
        """Return the head's number once it is beyond `sequence_number`."""
        while self._head.sequence_number <= sequence_number:
            if self._stopping:
                raise ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down; resume elsewhere")
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._followers.append((sequence_number, future))
            await future
        return self._head.sequence_number

    # The loop

    async def _run(self) -> None:
        while True:
            await self._wait_for_work()
            try:
                if self._refresh_wanted:
                    await self._refresh()
                if self._queue or self._timer_due():
                    await self._serve(self._drain())
            except LogError as error:
                self._take_log_error(error)
            except Exception:  # noqa: BLE001  # the loop is the bus: it logs, refuses what it holds, and goes on
                _LOG.exception("sequencer.failed", bus=self.bus)
                self._refuse_queue(ServiceError(error_pb2.ERROR_REASON_INTERNAL, "the sequencer failed; the server's log has the details"))
            if self._trouble is not None:
                self._refuse_queue(self._trouble)
            if self._stopping and not self._queue:
                return
            if self._settled:
                self._wake_readers()
                await asyncio.sleep(0)

    async def _wait_for_work(self) -> None:
        if not self._queue and not self._stopping and not self._refresh_wanted and not self._timer_due():
            due_ms = self._state.next_timer_ms()
            if due_ms is None:
                await self._sleep(None)
            elif self.unwritable() is None:
                await self._sleep(max(0.0, (due_ms - self.now_ms()) / 1000))
            else:
                await self._sleep(UNWRITABLE_PAUSE_SECONDS)
        if self._last_batch > 1 and len(self._queue) < self._company and not self._stopping:
            await self._linger()

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep until something wakes the loop, or for so long."""
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer = loop.call_later(seconds, self._wake) if seconds is not None else None
        await self._sleeper
        self._sleeper = None
        if timer is not None:
            timer.cancel()

    def _wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def _linger(self) -> None:
        """Give the callers of a busy bus a moment to come back, so that the next append carries all of them.

        A moment is over when as many wait as lately came, or when nobody came for LINGER_SECONDS; reading requests takes
        longer than that when there are many, hence more moments while they keep coming.
        """
        loop = asyncio.get_running_loop()
        self._gather_target = min(self._company, self._batch_limit)
        for _ in range(LINGER_MOMENTS_MAX):
            waiting = len(self._queue)
            self._gathered = gathered = loop.create_future()
            timer = loop.call_later(LINGER_SECONDS, _release, gathered)
            await gathered
            timer.cancel()
            if len(self._queue) in (waiting, self._gather_target):
                break
        self._gathered = None

    def _timer_due(self) -> bool:
        due_ms = self._state.next_timer_ms()
        return due_ms is not None and due_ms <= self.now_ms() and self.unwritable() is None

    def _drain(self) -> list[Pending]:
        batch: list[Pending] = []
        size_bytes = 0
        queue = self._queue
        while queue and len(batch) < self._batch_limit and size_bytes <= BATCH_BYTES_MAX:
            pending = queue.popleft()
            size_bytes += pending.size_bytes
            batch.append(pending)
        self._last_batch = len(batch)
        # How many callers to expect at once: as many as lately came, forgotten slowly.
        self._company = max(self._last_batch, self._company - 1 - self._company // 16)
        return batch

    async def _serve(self, batch: list[Pending]) -> None:
        """Commit a batch, however often others get in between. Every caller hears something, whatever happens."""
        remaining = batch
        try:
            while True:
                remaining, behind = await prepare(self, remaining)
                if behind:
                    await self._refresh()
                    remaining, _ = await prepare(self, remaining)
                if batch and not remaining:
                    return
                trouble = self.unwritable()
                if trouble is not None and not self._stopping:
                    _answer_all(remaining, trouble)
                    return
                timers_first = self._state.due_count(self.now_ms()) > len(remaining) + BATCH_COMMANDS_MAX
                decided = self._plan([] if timers_first else remaining)
                left = await self._commit(decided)
                if left is not None:
                    remaining = left
                elif not timers_first:
                    return
        except LogError as error:
            _answer_all(remaining, self._take_log_error(error))
        except BaseException:
            _answer_all(remaining, ServiceError(error_pb2.ERROR_REASON_INTERNAL, "the sequencer failed; the server's log has the details"))
            raise

    def _plan(self, batch: list[Pending]) -> Plan:
        self._in_flight = True
        return plan(self._state, self._head, batch, self.now_ms())

    async def _commit(self, decided: Plan) -> list[Pending] | None:
        """Append a plan and answer it. Returns the commands to decide again, or None if all have been answered."""
        batch = [pending for pending, _ in decided.answers]
        if not decided.entries:
            return await self._answer_unwritten(decided, batch)
        check_ids = [pending.check_id for pending in batch if pending.check_id]
        try:
            await self.log.append(decided.expected, decided.entries, decided.recorded_at_ms, check_ids)
        except EventIdTakenError as error:
            self._undo(decided)
            return await self._answer_taken(batch, error)
        except HeadMovedError:
            self._undo(decided)
            return await self._after_conflict(batch)
        except OutcomeUnknownError:
            if not await self._is_in(decided, batch):
                self._undo(decided)
                return await self._after_conflict(batch)
        except NotReplicatedError as error:
            self._settle(decided, ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error)))
            return None
        except LogError:
            self._undo(decided)
            raise
        self._settle(decided)
        self._batch_limit = min(BATCH_COMMANDS_MAX, self._batch_limit + max(1, self._batch_limit // 8))
        return None

    async def _answer_unwritten(self, decided: Plan, batch: list[Pending]) -> list[Pending] | None:
        """Answer what appends nothing, e.g. a refusal. No append checks the head for it, and another server may have moved it."""
        try:
            head = await self.log.head()
        except LogError:
            self._undo(decided)
            raise
        if head == decided.expected:
            self._settle(decided)
            return None
        self._undo(decided)
        await self._refresh()
        return batch

    def _settle(self, decided: Plan, instead: ServiceError | None = None) -> None:
        """The plan is in the log: keep the state, remember, answer, wake whoever follows."""
        self._state.commit()
        self._in_flight = False
        if decided.entries:
            self._head = decided.head
            note = self.lookup.note
            for envelope in decided.envelopes:
                note(envelope)
        for pending, answer in decided.answers:
            pending.answer(outcome(decided, answer) if instead is None else instead)
        self._wake_followers()

    def _undo(self, decided: Plan) -> None:
        self._state.undo(decided.mark)
        self._in_flight = False

    async def _after_conflict(self, batch: list[Pending]) -> list[Pending]:
        """Read what another server wrote; come back with half the batch, the rest goes to the front of the queue."""
        await self._refresh()
        self._batch_limit = max(1, self._batch_limit // 2)
        again, rest = batch[: self._batch_limit], batch[self._batch_limit :]
        self._queue.extendleft(reversed(rest))
        return again

    async def _is_in(self, decided: Plan, batch: list[Pending]) -> bool:
        """Find out whether an append whose outcome is unknown is in the log. The chain hash says exactly."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + UNKNOWN_ANSWER_SECONDS
        unknown = ServiceError(
            error_pb2.ERROR_REASON_LOG_UNAVAILABLE,
            "the log did not answer; whether the event is in it is unknown: retry with the same event_id",
        )
        pause_seconds = POLL_INTERVAL_SECONDS
        while True:
            try:
                head = await self.log.head()
                if head.sequence_number < decided.head.sequence_number:
                    return False
                record = (await self.log.read_many([decided.head.sequence_number])).get(decided.head.sequence_number)
                self._refresh_wanted = head.sequence_number > decided.head.sequence_number
                self._recover()
                return record is not None and record.chain_hash == decided.head.chain_hash
            except LogCorruptError:
                raise
            except LogError as error:
                self._take_log_error(error)
                self._refuse_queue(unknown)
                if loop.time() > deadline or self._stopping:
                    _answer_all(batch, unknown)
                    if self._stopping:
                        raise
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(1.0, pause_seconds * 2)

    # Answers that need no decision

    async def answer_known(self, pending: Pending, known: Known) -> None:
        """Answer a command whose event_id the log has: with the first answer if it asks for the same, else with an error."""
        envelope = command_envelope(pending.command)
        numbers = [number for number in (known.sequence_number, known.decision_sequence_number) if number]
        records = await self.log.read_many(numbers)
        record = records.get(known.sequence_number)
        if record is None or envelope is None:
            raise LogCorruptError(f"event {known.sequence_number} of bus {self.bus} is indexed but not in the log")
        if not same_content(Envelope.FromString(record.envelope), envelope):
            message = f"event_id {pending.check_id} is event {known.sequence_number}, which has other content; choose a new event_id"
            pending.answer(ServiceError(error_pb2.ERROR_REASON_EVENT_ID_REUSED, message))
            return
        first = records.get(known.decision_sequence_number, record)
        pending.answer(Completed(Recorded(Envelope.FromString(first.envelope)), first))

    async def _answer_taken(self, batch: list[Pending], error: EventIdTakenError) -> list[Pending]:
        left: list[Pending] = []
        for pending in batch:
            entry = error.taken.get(pending.check_id) if pending.check_id else None
            if entry is None:
                left.append(pending)
            else:
                await self.answer_known(pending, Known(entry.sequence_number, entry.decision_sequence_number, ""))
        return left

    # Following the log

    async def _watch(self) -> None:
        """Look at the log's head and clock now and then: another server may write, Redis may go and come back."""
        loop = asyncio.get_running_loop()
        next_clock = loop.time() + SKEW_CHECK_INTERVAL_SECONDS
        next_checkpoint = loop.time() + CHECKPOINT_INTERVAL_SECONDS
        seen = self._head
        while True:
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
            busy, seen = self._head != seen, self._head
            if not busy and not self._in_flight and not self._trouble_for_good:
                await self._look()
            if loop.time() >= next_clock:
                next_clock = loop.time() + SKEW_CHECK_INTERVAL_SECONDS
                await self._observe_clock()
            if loop.time() >= next_checkpoint:
                next_checkpoint = loop.time() + CHECKPOINT_INTERVAL_SECONDS
                await self._save_checkpoint()

    async def _look(self) -> None:
        known = self._head
        try:
            head = await self.log.head()
        except LogError as error:
            self._take_log_error(error)
            return
        if head != known and known == self._head and not self._in_flight:
            self._want_refresh()
        elif self._trouble is not None:
            self._recover()

    def _want_refresh(self) -> None:
        self._refresh_wanted = True
        self._wake()

    async def _refresh(self) -> None:
        """Apply what other servers have appended."""
        self._refresh_wanted = False
        head = await self.log.head()
        if head == self._head:
            self._recover()
            return
        record: Record | None = None
        if head.sequence_number >= self._head.sequence_number > 0:
            record = (await self.log.read_many([self._head.sequence_number])).get(self._head.sequence_number)
        if self._head.sequence_number and (record is None or record.chain_hash != self._head.chain_hash):
            self._give_up(error_pb2.ERROR_REASON_LOG_REGRESSED, _regressed(self.bus, head, self._head))
            return
        await self._read_on(head)
        self._recover()

    async def _read_on(self, head: Head) -> None:
        while self._head.sequence_number < head.sequence_number:
            records = await self.log.read(self._head.sequence_number + 1, head.sequence_number)
            if not records or records[0].sequence_number != self._head.sequence_number + 1:
                raise LogCorruptError(f"bus {self.bus}: event {self._head.sequence_number + 1} is missing")
            for record in records:
                self._follow(record)
            self._wake_followers()
            await asyncio.sleep(0)

    def _follow(self, record: Record) -> None:
        chain_hash = chain(self._head.chain_hash, record.envelope)
        if chain_hash != record.chain_hash:
            raise LogCorruptError(f"bus {self.bus}: the hash chain breaks at event {record.sequence_number}; run gavel replay")
        envelope = Envelope.FromString(record.envelope)
        self._state.apply(envelope)
        self._state.commit()
        self.lookup.note(envelope)
        self._head = Head(record.sequence_number, chain_hash)

    async def _check_acknowledged(self, head: Head) -> None:
        """Compare the log with what was acknowledged before a restart."""
        seen = self._checkpoint.load(self.bus) if self._checkpoint else None
        if seen is None:
            return
        record = (await self.log.read_many([seen.sequence_number])).get(seen.sequence_number)
        if record is None or record.chain_hash != seen.chain_hash:
            self._give_up(error_pb2.ERROR_REASON_LOG_REGRESSED, _regressed(self.bus, head, seen))

    async def _save_checkpoint(self) -> None:
        if self._checkpoint is not None and self._head.sequence_number and not self._trouble_for_good:
            await self._checkpoint.save(self.bus, self._head)

    async def _observe_clock(self) -> None:
        sent_ms = self._clock.now_ms()
        try:
            store_ms = await self.log.time_ms()
        except LogError as error:
            self._take_log_error(error)
            return
        self._clock.observe(store_ms, sent_ms, self._clock.now_ms())

    # Trouble

    def _take_log_error(self, error: LogError) -> ServiceError:
        if isinstance(error, LogCorruptError):
            return self._give_up(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error))
        if self._trouble is None:
            _LOG.warning("log.unavailable", bus=self.bus, problem=str(error))
        if not self._trouble_for_good:
            self._trouble = ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error))
        assert self._trouble is not None  # noqa: S101  # for the type checker
        return self._trouble

    def _give_up(self, reason: error_pb2.ErrorReason.ValueType, message: str) -> ServiceError:
        """Refuse writes until an operator has looked and the server is started again."""
        _LOG.error("bus.unwritable", bus=self.bus, problem=message)
        self._trouble = ServiceError(reason, message, retry_after_ms=5000)
        self._trouble_for_good = True
        return self._trouble

    def _recover(self) -> None:
        if self._trouble is not None and not self._trouble_for_good:
            _LOG.info("log.available", bus=self.bus)
            self._trouble = None

    def _refuse_queue(self, error: ServiceError) -> None:
        while self._queue:
            self._queue.popleft().answer(error)

    def requeue(self, pending: list[Pending]) -> None:
        """Put commands back to the front of the queue, in their order."""
        self._queue.extendleft(reversed(pending))

    @property
    def state_for_preparation(self) -> State:
        """The committed state, for the sequencer's own preparation of a batch, between two commits."""
        return self._state

    def _wake_readers(self) -> None:
        readers, self._settled = self._settled, []
        for future in readers:
            if not future.done():
                future.set_result(None)

    def _wake_followers(self) -> None:
        if not self._followers:
            return
        number = self._head.sequence_number
        waiting = []
        for beyond, future in self._followers:
            if number <= beyond and not self._stopping:
                waiting.append((beyond, future))
            elif not future.done():
                future.set_result(None)
        self._followers = waiting


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _regressed(bus: str, head: Head, seen: Head) -> str:
    return (
        f"bus {bus}: event {seen.sequence_number} was acknowledged, but the log, whose head is {head.sequence_number}, has it no more "
        "or otherwise: acknowledged events were lost. Nothing is written until the log is restored"
    )


def _answer_all(batch: list[Pending], error: ServiceError) -> None:
    for pending in batch:
        pending.answer(error)
