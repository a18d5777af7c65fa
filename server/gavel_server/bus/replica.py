"""This process's copy of a bus: the state at the last committed event, and how it follows the log.

Several servers may write one bus. The log may therefore move without this process, go away and come back, or turn out to have lost
acknowledged events. This module detects the conditions that forbid writing and holds the error that callers get.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import aclosing
from typing import Final

import structlog
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.error_pb2 import ErrorReason
from gavel_rules.authorization import principal_of
from gavel_rules.commands import Fault, SubmitProposal
from gavel_rules.events.arbiter_versions import implemented_versions, is_implemented
from gavel_rules.events.hash_chain import chain
from gavel_rules.events.kinds import AGENT_DIAGNOSTIC, DECISION, EXECUTION, PROPOSAL
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.state.state import State

from gavel_server.bus.acknowledged_head import AcknowledgedHead, regression
from gavel_server.bus.answers.confirmed_answers import ConfirmedAnswers
from gavel_server.bus.answers.contest_waiters import ContestWaiters
from gavel_server.bus.batch.decision import DecidedBatch
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.bus.recent_events import RecentEvents
from gavel_server.bus.snapshots import BusSnapshots
from gavel_server.bus.trace_owners import TraceOwners, TraceParty
from gavel_server.compile.precompiler import Precompiler
from gavel_server.errors import ServiceError
from gavel_server.history.read_ahead import read_ahead
from gavel_server.log import EventLog, Head, LogCorruptError, LogError, LogUnavailableError, Record
from gavel_server.log.protocol import empty_head, has_event
from gavel_server.log.tail import LogTail, TailBudget
from gavel_server.process import metrics
from gavel_server.process.clock import GuardedClock, lag_problem
from gavel_server.process.time_slice import TimeSlice

# How often the progress of reading a long log is logged.
PROGRESS_INTERVAL_SECONDS: Final = 5.0
# At a start, after a read of the log has failed.
READ_TRIES_MAX: Final = 3
READ_PAUSE_SECONDS: Final = 0.5
SLICE_EVENTS: Final = 64

# The queue that an event of another server may have entered.
_QUEUE_OF_CATEGORY: Final = {DECISION: "decisions", EXECUTION: "executions", AGENT_DIAGNOSTIC: "requests"}

_LOG: Final = structlog.get_logger(__name__)


class Replica:
    """One bus as this process knows it. Only the sequencer changes it.

    `write_block` is the error that writes get, None while they are allowed. `volatility` says why writes are refused because the log
    may lose acknowledged events; "" if they are not. `is_behind`: the log is known to have more events. `has_diverged`: the log is no
    longer the one that this process followed, so nothing more of it is applied. `on_execution` is called
    after the log gets a start or report of an execution.
    """

    def __init__(
        self,
        log: EventLog,
        clock: GuardedClock,
        checkpoint: Checkpoint | None,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        requires_attestation: bool = False,
        snapshots: BusSnapshots | None = None,
        tail_budget: TailBudget | None = None,
    ) -> None:
        """`snapshots`: where the bus starts from; None: from the start of its log. `tail_budget`: see LogTail.

        `requires_attestation`: events must name their caller. Nothing is written to a bus of an arbiter version whose events do not.
        """
        self._monotonic = monotonic
        self._requires_attestation = requires_attestation
        self.bus = log.bus
        self.log = log
        self.clock = clock
        self.state = State(log.bus)
        self.head = empty_head(log.bus)
        self.incarnation = ""  # the event_id of the first event, once it is read
        self.recent_events = RecentEvents(log)
        self.tail = LogTail(budget=tail_budget)
        self.trace_owners = TraceOwners()
        self.answers = ConfirmedAnswers(log, self.confirm)
        self.contest_waiters = ContestWaiters(self.answers)
        self.write_block: ServiceError | None = None
        # The last acknowledged event, if the log has lost it.
        self.lost_head: Head | None = None
        self._awaits_acceptance = False  # of a loss that another server has reported
        self._is_block_permanent = False
        self.volatility = ""
        self.is_behind = False
        self.closing = False
        self.has_diverged = False
        self.acknowledged = AcknowledgedHead(log, checkpoint)
        self.snapshots = snapshots
        self._is_reading = False
        self.on_execution: Callable[[], None] | None = None
        # Called with the names of work queues that have got entries, and once with none when the bus closes.
        self.work_listeners: set[Callable[[Collection[str]], None]] = set()
        self._followers: list[tuple[int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        """Return the time of a decision made now: never before the head's `recorded_at`."""
        state = self.state
        return max(state.time_ms(self.clock.now_ms()), state.recorded_at_ms)

    def trace_of_pending(self, event_id: str) -> str | None:
        """Return the trace of a live decision or an open review, whose id is known for as long as it lives; None for other events."""
        pending = self.state.live_decision(event_id) or self.state.reviews.get(event_id)
        return None if pending is None else pending.decision.trace_id

    def write_error(self) -> ServiceError | None:
        """Return the error that writes get now, or None."""
        if self.write_block is not None:
            return self.write_block
        if self.volatility:
            return ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, self.volatility, retry_after_ms=1000)
        problem = self.clock.problem() or self._lag_problem()
        return ServiceError(error_pb2.ERROR_REASON_CLOCK_SKEW, problem, retry_after_ms=1000) if problem else None

    @property
    def accepts_loss(self) -> bool:
        """Whether nothing may be written now only because the log has lost acknowledged events, and the state is that of the log."""
        return self.lost_head is not None and not self.has_diverged

    @property
    def is_ahead(self) -> bool:
        """Whether nothing may be written now only because the last event is ahead of the clock."""
        return self.write_block is None and not self.volatility and not self.clock.problem() and self._lag_problem() != ""

    def _lag_problem(self) -> str:
        state = self.state
        return lag_problem(state.time_ms(self.clock.now_ms()), state.recorded_at_ms)

    # Following the log

    async def load(self) -> None:
        """Read the log from the newest snapshot or from its start, and compare it with the checkpoint. Raises LogError."""
        head = await self.log.head()
        checkpoint = self.acknowledged.checkpoint
        acknowledged = checkpoint.head_of(self.bus) if checkpoint is not None else None
        if checkpoint is not None and acknowledged is not None and not await has_event(self.log, acknowledged):
            self._block_regressed(head, acknowledged, f" (see {checkpoint.path})", has_diverged=False)
            self.acknowledged.suspend()
        elif (lost_head := self._reported_lost_head) is not None:
            self._block_reported(head, lost_head)
        elif acknowledged is None and checkpoint is not None and head.sequence_number > 1:  # 1: opened, with nothing to lose
            note = "no checkpoint of this bus: only other servers can detect a loss of acknowledged events"
            _LOG.warning("checkpoint.none", bus=self.bus, head=head.sequence_number, note=note)
        await self._restore(head)
        await self._read_with_retries(head)
        # A checkpoint of another store does not stop the servers of this one.
        if acknowledged is not None and self.lost_head is acknowledged and self.acknowledged.suspended_incarnation == self.incarnation:
            await self._report_loss(acknowledged)
        self.acknowledged.note(self.head, self.incarnation)
        await self.observe_clock()

    async def _restore(self, head: Head) -> None:
        """Start from a snapshot instead of an empty state, if there is one that the log confirms."""
        if self.snapshots is None or self.head.sequence_number:
            return
        restored = await self.snapshots.restore(self.log, head)
        if restored is not None:
            self.state, self.head, self.incarnation, self.trace_owners = restored

    async def refresh(self) -> None:
        """Apply what other servers have appended. The state must hold nothing uncommitted. Raises LogError."""
        self.is_behind = False
        if self.has_diverged:
            return
        head = await self.log.head()
        if head != self.head:
            if self.head.sequence_number and not await has_event(self.log, self.head):
                if not await self.acknowledged.is_in_log(self.incarnation):
                    self._block_regressed(head, self.head)
                    await self._report_loss(self.acknowledged.last)
                    return
                await self._start_over(head)
            await self._read_on(head)
            self.acknowledged.note(self.head, self.incarnation)
        if self._awaits_acceptance and self.log.lost_head is None:
            self._end_loss()
        elif (lost_head := self._reported_lost_head) is not None:
            self._block_reported(head, lost_head)
        self.unblock_writes()

    def advance(self, batch: DecidedBatch) -> None:
        """Keep a batch that is now in the log: its changes of the state are committed."""
        self.state.commit(batch.end)
        if batch.entries:
            self.head = batch.head
            if self.lost_head is not None and batch.envelopes[0].event_name == "DataLossAccepted":
                self._end_loss()
            if batch.entries[0].sequence_number == 1:
                self.incarnation = batch.entries[0].event_id
            self.acknowledged.note(self.head, self.incarnation)
            self.recent_events.add_batch(batch.entries, batch.trace_ids)
            self.tail.add(batch.entries)
            for request, answer in batch.answers:
                command = request.command
                if isinstance(command, SubmitProposal) and not isinstance(answer, Fault):
                    proposal = command.proposal
                    party = TraceParty(proposal.producer_type, proposal.producer_id, request.principal)
                    self.trace_owners.note(proposal.trace_id, party, batch.recorded_at_ms)
            metrics.count_committed(self.bus, len(batch.envelopes), batch.alarm_candidates, batch.lease_lapses, batch.uncounted_events)
            self.wake_followers()
            if self.on_execution is not None and batch.execution_count:
                self.on_execution()
            if self.work_listeners and (queues := {entry.work for entry in batch.entries} - {""}):
                self._notify_work(queues)

    async def note_missing(self, problem: str) -> ServiceError:
        """Block writes because the log lacks an event that it had; return the callers' error. `problem` describes the event.

        Raises LogError if the log cannot be read.
        """
        head = await self.log.head()
        if await has_event(self.log, self.head):
            return self.handle_log_error(LogCorruptError(f"bus {self.bus}: {problem}; restore the log from a backup or replica"))
        if await self.acknowledged.is_in_log(self.incarnation):
            self.is_behind = True
            return ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, f"bus {self.bus}: {problem}. It was never acknowledged; try again")
        error = self._block_regressed(head, self.head)
        await self._report_loss(self.acknowledged.last)
        return error

    async def _start_over(self, head: Head) -> None:
        """Forget events that the log took, never confirmed, and lost with a failover: nobody was told that they are recorded.

        Who waits for something after the last acknowledged event gets an error, because the events after it may be others now.
        """
        _LOG.warning("log.unconfirmed_events_lost", bus=self.bus, sequence_number=self.head.sequence_number, head=head.sequence_number)
        error = ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, "a failover has lost events that were not confirmed; try again")
        self.contest_waiters.dismiss_all(error.reason, error.message)
        self.answers.refuse_all(error)
        last = self.acknowledged.last or empty_head(self.bus)
        self._refuse_followers(last.sequence_number, error)
        self.state = State(self.bus)
        self.head = empty_head(self.bus)
        self.recent_events = RecentEvents(self.log)
        self.tail.clear()
        self.trace_owners = TraceOwners()
        self.acknowledged.forget_unconfirmed()
        if self.snapshots is not None:
            self.snapshots = self.snapshots.begin_anew(last.sequence_number)
        await self._restore(head)

    async def _report_loss(self, lost_head: Head | None) -> None:
        """Tell the servers that have no checkpoint, or another one, that the log has lost an event. May raise LogError."""
        if lost_head is None or await has_event(self.log, lost_head):
            return  # the lost events were not acknowledged yet
        try:
            await self.log.report_loss(lost_head)
        except LogError as error:
            _LOG.warning("log.loss_not_reported", bus=self.bus, problem=str(error))

    @property
    def _reported_lost_head(self) -> Head | None:
        """The event that another server has reported as lost, or None. The log refuses appends even if it has the event again."""
        return self.log.lost_head if self.lost_head is None else None

    async def _read_on(self, head: Head) -> None:
        self._is_reading = True
        try:
            await self._apply_up_to(head)
        finally:
            self._is_reading = False
        self._check_arbiter_version()

    async def _read_with_retries(self, head: Head) -> None:
        """Read on, and again from where a read has failed. A start on a long log would otherwise begin anew after each late reply.

        Raises LogError if READ_TRIES_MAX tries in turn have read nothing.
        """
        failures = 0
        while True:
            reached = self.head
            try:
                return await self._read_on(head)
            except LogUnavailableError as error:
                failures = failures + 1 if self.head == reached else 1
                if failures == READ_TRIES_MAX:
                    raise
                _LOG.warning("log.read_failed", bus=self.bus, sequence_number=self.head.sequence_number, problem=str(error))
            await asyncio.sleep(READ_PAUSE_SECONDS)
            if not await has_event(self.log, self.head):
                raise LogUnavailableError(f"bus {self.bus}: the log has lost event {self.head.sequence_number} while it was read")

    async def _apply_up_to(self, head: Head) -> None:
        precompiler = Precompiler()
        time_slice = TimeSlice(SLICE_EVENTS, self._monotonic)
        loop = asyncio.get_running_loop()
        next_report = loop.time() + PROGRESS_INTERVAL_SECONDS
        async with aclosing(read_ahead(self.log, self.head.sequence_number + 1, head.sequence_number)) as pages:
            async for records in pages:
                if records[0].sequence_number != self.head.sequence_number + 1:
                    break
                for record in records:
                    compilation = precompiler.before(self.state, record.envelope)
                    if compilation is not None:
                        await compilation
                    self._apply(record)
                    if time_slice.is_over(1):
                        await time_slice.end()
                self.wake_followers()
                await asyncio.sleep(0)
                if loop.time() >= next_report:
                    next_report = loop.time() + PROGRESS_INTERVAL_SECONDS
                    _LOG.info("log.reading", bus=self.bus, sequence_number=self.head.sequence_number, head=head.sequence_number)
        if self.head.sequence_number < head.sequence_number:
            raise LogCorruptError(f"bus {self.bus}: event {self.head.sequence_number + 1} is missing")

    def _apply(self, record: Record) -> None:
        chain_hash = chain(self.head.chain_hash, record.envelope)
        if chain_hash != record.chain_hash:
            raise LogCorruptError(f"bus {self.bus}: the hash chain breaks at event {record.sequence_number}; run gavel replay")
        mark = self.state.mark()
        try:
            envelope = Envelope.FromString(record.envelope)
            event = self.state.apply(envelope)
        except Exception as error:
            self.state.undo(mark)
            _LOG.exception("event.not_applied", bus=self.bus, sequence_number=record.sequence_number)
            raise LogCorruptError(f"bus {self.bus}: this build cannot apply event {record.sequence_number}; run gavel replay") from error
        self.state.commit()
        if record.sequence_number == 1:
            self.incarnation = envelope.event_id
        event.pack(record.envelope)
        self.recent_events.add(envelope)
        self.tail.add((record,))
        if envelope.event_category == PROPOSAL:
            producer = envelope.producer
            party = TraceParty(producer.type, producer.id, principal_of(envelope))
            self.trace_owners.note(envelope.trace_id, party, milliseconds(envelope.recorded_at))
        self.head = Head(record.sequence_number, chain_hash)
        if not self.log.is_confirmed(record.sequence_number):
            self.acknowledged.add(self.head)
        if self.contest_waiters and envelope.event_category == DECISION:
            self.contest_waiters.notify(envelope, record)
        if self.on_execution is not None and envelope.event_category == EXECUTION:
            self.on_execution()
        queue = _QUEUE_OF_CATEGORY.get(envelope.event_category)
        if self.work_listeners and queue is not None:
            self._notify_work((queue,))

    @property
    def is_settled(self) -> bool:
        """Whether the state is that of the log at the end of a commit, and may be written as a snapshot."""
        return not (
            self._is_reading or self.has_diverged or self.state.has_uncommitted_changes or not is_implemented(self.state.arbiter_version)
        )

    async def write_last_snapshot(self) -> None:
        """Write a snapshot of a bus that has stopped, in a thread, because other buses may still have work."""
        if self.snapshots is not None and self.is_settled:
            await asyncio.to_thread(self.snapshots.write_last, self.state, self.head, self.incarnation, self.trace_owners)

    @property
    def lacks_attestation(self) -> bool:
        """Whether nothing may be written because the events of this bus could not name their caller."""
        return self._requires_attestation and self.head.sequence_number > 0 and not self.state.semantics.attests

    def _check_arbiter_version(self) -> None:
        if self.lacks_attestation and not self._is_block_permanent:
            self.block_writes(
                error_pb2.ERROR_REASON_WRONG_STATE,
                f"bus {self.bus} has arbiter version {self.state.arbiter_version}, whose events do not name their caller, and this server "
                "requires authentication: write to a bus of a later version, or serve this one without authentication",
                has_diverged=False,
            )
        if self.head.sequence_number and not is_implemented(self.state.arbiter_version) and not self._is_block_permanent:
            self.block_writes(
                error_pb2.ERROR_REASON_ARBITER_VERSION_NOT_IMPLEMENTED,
                f"bus {self.bus} has arbiter_version {self.state.arbiter_version}; this build implements {implemented_versions()}: "
                "serve it with a build that implements the bus's version",
                has_diverged=False,
            )

    # Periodic checks: see `watcher`

    @property
    def is_waiting_for_log(self) -> bool:
        """Whether writes are blocked only until the log can be read again."""
        return self.write_block is not None and not self._is_block_permanent

    async def has_moved(self) -> bool:
        """Check the log's head and integrity; return whether there is a reason to read on."""
        known = self.head
        try:
            head = await self.log.head()
        except LogError as error:
            self.handle_log_error(error)
            return False
        # Reading on also unblocks writes after the log has come back.
        if self.log.lost_head is not None and self.lost_head is None:
            return True
        return self.is_waiting_for_log or (head != known and known == self.head and not self.state.has_uncommitted_changes)

    async def observe_clock(self) -> None:
        """Compare this host's clock with the store's."""
        sent_ms = self.clock.now_ms()
        try:
            store_ms = await self.log.time_ms()
        except LogError as error:
            self.handle_log_error(error)
            return
        self.clock.observe(store_ms, sent_ms, self.clock.now_ms())

    async def confirm(self, sequence_number: int) -> None:
        """Wait until the events up to this number are confirmed, and note it in the checkpoint. Raises LogError.

        The events are those of the state: after a failover the log may have others with their numbers, and the call fails.
        """
        is_known = sequence_number <= self.head.sequence_number and not self.has_diverged
        head = self.head if is_known else await self.log.head()
        if head.sequence_number < sequence_number:
            raise LogUnavailableError(f"bus {self.bus} has no event {sequence_number} yet")
        try:
            if not is_known and not self.log.is_confirmed(self.head.sequence_number):
                # Events are confirmed by number. First make sure that the log still has those of the state.
                await self.log.confirm(self.head)
            await self.log.confirm(head)
        except LogUnavailableError:
            self.is_behind = True  # a failover may have lost the event
            raise
        self.acknowledged.settle()

    # Followers

    async def wait_beyond(self, sequence_number: int) -> int:
        """Return the head's sequence number once it exceeds `sequence_number`. Raises ServiceError SHUTTING_DOWN."""
        while self.head.sequence_number <= sequence_number:
            if self.closing:
                raise ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down; try again, or use another server")
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            follower = (sequence_number, future)
            self._followers.append(follower)
            try:
                await future
            finally:
                if follower in self._followers:
                    self._followers.remove(follower)
        return self.head.sequence_number

    def _refuse_followers(self, sequence_number: int, error: ServiceError) -> None:
        """Let the followers that wait beyond a later event fail."""
        for beyond, future in self._followers:
            if beyond > sequence_number and not future.done():
                future.set_exception(error.copy())

    @property
    def followers(self) -> int:
        """How many callers wait for events."""
        return len(self._followers)

    def _notify_work(self, queues: Collection[str]) -> None:
        for listener in list(self.work_listeners):
            listener(queues)

    def wake_followers(self) -> None:
        """Wake the followers whose awaited sequence number the head has passed; on closing, wake all."""
        if self.closing:
            self._notify_work(())
        if not self._followers:
            return
        number = self.head.sequence_number
        for beyond, future in self._followers:
            if (number > beyond or self.closing) and not future.done():
                future.set_result(None)

    # Blocked writes

    def handle_log_error(self, error: LogError) -> ServiceError:
        """Block writes until the log can be read again; permanently if it contradicts itself. Returns the callers' error."""
        if isinstance(error, LogCorruptError):
            return self.block_writes(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error))
        if self.write_block is None:
            _LOG.warning("log.unavailable", bus=self.bus, problem=str(error))
        if self.write_block is None or not self._is_block_permanent:
            self.write_block = ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error))
        return self.write_block

    def block_writes(self, reason: ErrorReason.ValueType, message: str, *, has_diverged: bool = True) -> ServiceError:
        """Block writes until an operator restarts the server. `has_diverged`: stop following the log too."""
        _LOG.error("bus.unwritable", bus=self.bus, problem=message)
        self.write_block = ServiceError(reason, message, retry_after_ms=5000)
        self._is_block_permanent = True
        self.has_diverged = self.has_diverged or has_diverged
        if self.has_diverged:
            self.acknowledged.forget_unconfirmed()
            self.tail.clear()
        return self.write_block

    def _block_regressed(self, head: Head, acknowledged: Head, source: str = "", *, has_diverged: bool = True) -> ServiceError:
        """Block writes because the log, which ends at `head`, lacks an acknowledged event."""
        self.lost_head = acknowledged
        message = regression(self.bus, head, acknowledged, source)
        return self.block_writes(error_pb2.ERROR_REASON_LOG_REGRESSED, message, has_diverged=has_diverged)

    def _block_reported(self, head: Head, lost_head: Head) -> None:
        """Block writes because another server found that the log, which ends at `head`, lacked an event. The state is that of the log."""
        self.lost_head = lost_head
        message = (
            f"bus {self.bus} has lost acknowledged events: another server found that the log lacked event {lost_head.sequence_number} "
            f"(head: {head.sequence_number}). Writes are refused until the loss is accepted with "
            f"gavel accept-loss --at {head.sequence_number}"
        )
        self.block_writes(error_pb2.ERROR_REASON_LOG_REGRESSED, message, has_diverged=False)
        self.acknowledged.suspend()
        self._awaits_acceptance = True

    def _end_loss(self) -> None:
        """Allow writes after an operator has accepted the loss, which the log has now. The checkpoint follows the log again."""
        _LOG.warning("log.loss_accepted", bus=self.bus, sequence_number=self.head.sequence_number)
        self.lost_head = None
        self._awaits_acceptance = False
        self.write_block = None
        self._is_block_permanent = False
        self.acknowledged.resume()
        self._check_arbiter_version()

    def unblock_writes(self) -> None:
        """Allow writes after the log has come back. A permanent block stays."""
        if self.write_block is not None and not self._is_block_permanent:
            _LOG.info("log.available", bus=self.bus)
            self.write_block = None
