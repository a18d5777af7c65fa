"""This process's copy of a bus: its state at the last committed event, and how it keeps up with the log.

Several servers may write one bus, so the log can move without this process, go away and come back, or turn out to have
lost what was acknowledged. Whatever forbids writing is found and kept here, as the error that callers hear.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.error_pb2 import ErrorReason
from gavel_rules.chain import chain
from gavel_rules.events import ARBITER_VERSION, DECISION, EXECUTION
from gavel_rules.projection import State

from gavel_server import metrics
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.bus.lookup import Lookup
from gavel_server.bus.planning import Plan
from gavel_server.bus.waiting import WaitingRoom
from gavel_server.clock import GuardedClock
from gavel_server.errors import ServiceError
from gavel_server.log import EventLog, Head, LogCorruptError, LogError, Record
from gavel_server.log.protocol import empty_head
from gavel_server.precompiling import Precompiler

# How often a log that takes its time to be read says how far it is.
READING_WORD_SECONDS: Final = 5.0

_LOG: Final = structlog.get_logger(__name__)


class Replica:
    """One bus as this process sees it. The sequencer alone changes it."""

    def __init__(self, log: EventLog, clock: GuardedClock, checkpoint: Checkpoint | None) -> None:
        self.bus = log.bus
        self.log = log
        self.clock = clock
        self.state = State(log.bus)
        self.head = empty_head(log.bus)
        self.lookup = Lookup(log)
        self.waiting = WaitingRoom()
        self.trouble: ServiceError | None = None
        self.behind = False  # whether the log is known to have more
        self.closing = False
        self._trouble_for_good = False
        self.astray = False  # whether the log is no longer what was followed here: then nothing more of it is applied
        self.checkpoint = checkpoint
        self.on_execution: Callable[[], None] | None = None  # hears that the log has one more report, or start, of an execution
        self._followers: list[tuple[int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        """Return the `now` that a decision would be made at: never before the head's `recorded_at`."""
        return max(self.clock.now_ms(), self.state.recorded_at_ms)

    def unwritable(self) -> ServiceError | None:
        """Return why nothing may be written now, or None."""
        if self.trouble is not None:
            return self.trouble
        problem = self.clock.problem(self.state.recorded_at_ms)
        return ServiceError(error_pb2.ERROR_REASON_CLOCK_SKEW, problem, retry_after_ms=1000) if problem else None

    # Keeping up

    async def load(self) -> None:
        """Read the log from its start, and compare it with what was acknowledged before a restart. Raises LogError."""
        head = await self.log.head()
        checkpoint = self.checkpoint
        seen = checkpoint.load(self.bus) if checkpoint is not None else None
        if checkpoint is not None and seen is not None and not await self._has(seen):
            self.give_up(error_pb2.ERROR_REASON_LOG_REGRESSED, _regressed(self.bus, head, seen, f" ({checkpoint.path} says so)"))
            # What it says must stay: this log has less.
            self.checkpoint = None
        elif seen is None and checkpoint is not None and head.sequence_number > 1:  # 1: opened, and nothing to lose
            note = "no checkpoint of this bus: whether its log has lost acknowledged events cannot be told"
            _LOG.warning("checkpoint.none", bus=self.bus, head=head.sequence_number, note=note)
        await self._read_on(head)
        await self.observe_clock()

    def _check_arbiter_version(self) -> None:
        if self.head.sequence_number and self.state.arbiter_version != ARBITER_VERSION and not self._trouble_for_good:
            self.give_up(
                error_pb2.ERROR_REASON_ARBITER_VERSION_NOT_IMPLEMENTED,
                f"bus {self.bus} has arbiter_version {self.state.arbiter_version}; this build implements {ARBITER_VERSION}: "
                "serve it with a build that does, or upgrade the bus",
                astray=False,
            )

    async def refresh(self) -> None:
        """Apply what other servers have appended. The state holds nothing tentative. Raises LogError."""
        self.behind = False
        if self.astray:
            return
        head = await self.log.head()
        if head != self.head:
            if self.head.sequence_number and not await self._has(self.head):
                self.give_up(error_pb2.ERROR_REASON_LOG_REGRESSED, _regressed(self.bus, head, self.head))
                return
            await self._read_on(head)
        self.recover()

    def advance(self, decided: Plan) -> None:
        """Take a plan that is in the log: what it changed is no longer tentative."""
        self.state.commit(decided.end)
        if decided.entries:
            self.head = decided.head
            self.lookup.note_all(decided.entries, decided.trace_ids)
            metrics.committed(self.bus, len(decided.envelopes), decided.watched)
            self.wake_followers()
            if self.on_execution is not None and decided.reports:
                self.on_execution()

    async def _has(self, head: Head) -> bool:
        """Return whether the log has this event, with this chain hash."""
        record = (await self.log.read_many([head.sequence_number])).get(head.sequence_number)
        return record is not None and record.chain_hash == head.chain_hash

    async def _read_on(self, head: Head) -> None:
        precompiler = Precompiler()
        loop = asyncio.get_running_loop()
        next_word = loop.time() + READING_WORD_SECONDS
        while self.head.sequence_number < head.sequence_number:
            records = await self.log.read(self.head.sequence_number + 1, head.sequence_number)
            if not records or records[0].sequence_number != self.head.sequence_number + 1:
                raise LogCorruptError(f"bus {self.bus}: event {self.head.sequence_number + 1} is missing")
            for record in records:
                await precompiler.before(self.state, record.envelope)
                self._follow(record)
            self.wake_followers()
            await asyncio.sleep(0)
            if loop.time() >= next_word:
                next_word = loop.time() + READING_WORD_SECONDS
                _LOG.info("log.reading", bus=self.bus, sequence_number=self.head.sequence_number, head=head.sequence_number)
        self._check_arbiter_version()

    def _follow(self, record: Record) -> None:
        chain_hash = chain(self.head.chain_hash, record.envelope)
        if chain_hash != record.chain_hash:
            raise LogCorruptError(f"bus {self.bus}: the hash chain breaks at event {record.sequence_number}; run gavel replay")
        mark = self.state.mark()
        try:
            envelope = Envelope.FromString(record.envelope)
            made = self.state.apply(envelope)
        except Exception as error:
            self.state.undo(mark)
            _LOG.exception("event.not_applied", bus=self.bus, sequence_number=record.sequence_number)
            raise LogCorruptError(f"bus {self.bus}: this build cannot apply event {record.sequence_number}; run gavel replay") from error
        self.state.commit()
        made.pack(record.envelope)
        self.lookup.note(envelope)
        self.head = Head(record.sequence_number, chain_hash)
        if self.waiting and envelope.event_category == DECISION:
            self.waiting.hear(envelope, record)
        if self.on_execution is not None and envelope.event_category == EXECUTION:
            self.on_execution()

    # Looking after it: see `watching`

    @property
    def is_waiting_for_log(self) -> bool:
        """Whether the log was away: to read on clears that."""
        return self.trouble is not None and not self._trouble_for_good

    async def has_moved(self) -> bool:
        """Look at the log thoroughly; return whether there is something to read on for."""
        known = self.head
        try:
            head = await self.log.head()
        except LogError as error:
            self.take_log_error(error)
            return False
        # A log that came back is read on from where this process is, which also clears the trouble.
        return self.is_waiting_for_log or (head != known and known == self.head and not self.state.tentative)

    async def observe_clock(self) -> None:
        """Compare this host's clock with the store's."""
        sent_ms = self.clock.now_ms()
        try:
            store_ms = await self.log.time_ms()
        except LogError as error:
            self.take_log_error(error)
            return
        self.clock.observe(store_ms, sent_ms, self.clock.now_ms())

    def acknowledged(self) -> Head | None:
        """Return the last event that a checkpoint may hold this server to, above all when the log has lost it; or None."""
        return self.head if self.head.sequence_number else None

    async def save_checkpoint(self) -> None:
        """Note what is acknowledged, at the end. A disk that is full must not keep the bus from stopping: it is said."""
        head = self.acknowledged()
        if self.checkpoint is not None and head is not None:
            try:
                await self.checkpoint.save({self.bus: head})
            except OSError as error:
                _LOG.error("checkpoint.not_written", bus=self.bus, problem=error.strerror)

    # Those who wait for events

    async def beyond(self, sequence_number: int) -> int:
        """Return the head's number once it is beyond `sequence_number`. Raises ServiceError SHUTTING_DOWN."""
        while self.head.sequence_number <= sequence_number:
            if self.closing:
                raise ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down; resume elsewhere")
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = (sequence_number, future)
            self._followers.append(waiting)
            try:
                await future
            finally:
                if waiting in self._followers:
                    self._followers.remove(waiting)
        return self.head.sequence_number

    @property
    def followers(self) -> int:
        """How many wait for events."""
        return len(self._followers)

    def wake_followers(self) -> None:
        """Let those go on for whom the head has come far enough; all of them when closing."""
        if not self._followers:
            return
        number = self.head.sequence_number
        for beyond, future in self._followers:
            if (number > beyond or self.closing) and not future.done():
                future.set_result(None)

    # Trouble

    def take_log_error(self, error: LogError) -> ServiceError:
        """Refuse writes until the log is there again; for good if it contradicts itself."""
        if isinstance(error, LogCorruptError):
            return self.give_up(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error))
        if self.trouble is None:
            _LOG.warning("log.unavailable", bus=self.bus, problem=str(error))
        if self.trouble is None or not self._trouble_for_good:
            self.trouble = ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error))
        return self.trouble

    def give_up(self, reason: ErrorReason.ValueType, message: str, *, astray: bool = True) -> ServiceError:
        """Refuse writes until an operator has looked and the server is started again. `astray`: follow the log no further either."""
        _LOG.error("bus.unwritable", bus=self.bus, problem=message)
        self.trouble = ServiceError(reason, message, retry_after_ms=5000)
        self._trouble_for_good = True
        self.astray = self.astray or astray
        return self.trouble

    def recover(self) -> None:
        """The log is there again."""
        if self.trouble is not None and not self._trouble_for_good:
            _LOG.info("log.available", bus=self.bus)
            self.trouble = None


def _regressed(bus: str, head: Head, seen: Head, says_who: str = "") -> str:
    return (
        f"bus {bus}: event {seen.sequence_number} was acknowledged{says_who}, but the log, whose head is {head.sequence_number}, has it "
        "no more or otherwise: acknowledged events were lost. Nothing is written until the log is restored"
    )
