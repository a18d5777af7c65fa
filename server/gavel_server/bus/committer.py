"""The committer of one bus: sends decided batches to the log one at a time, and answers their callers.

The next batch may be decided on top of the events that are being appended. If these are not in the log, both batches are undone, and their
requests return to the queue in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

import structlog
from gavel.v1 import error_pb2
from gavel_rules.events.kinds import DECISION

from gavel_server.bus.answers.confirmed_answers import unconfirmed
from gavel_server.bus.answers.delivery import deliver
from gavel_server.bus.batch.decision import DecidedBatch
from gavel_server.bus.batch.observation import BatchObserver
from gavel_server.bus.batch.pacing import BatchPacing
from gavel_server.bus.batch.pending_append import AppendOutcome, PendingAppend
from gavel_server.bus.queue import CommandQueue
from gavel_server.bus.replica import Replica
from gavel_server.bus.request import Request, answer_all
from gavel_server.errors import Bug, ServiceError
from gavel_server.log import EventIdTakenError, EventLog, Head, LogError, UntimelyError
from gavel_server.process import metrics

# Refusals in a row of appends whose date differs from the log store's time; then the callers get an error.
UNTIMELY_APPENDS_MAX: Final = 2

_LOG: Final = structlog.get_logger(__name__)


class Committer:
    """Appends the batches of one bus. `wake_readers` is called when the state has lost uncommitted events that readers wait for."""

    def __init__(
        self,
        log: EventLog,
        replica: Replica,
        queue: CommandQueue,
        pacing: BatchPacing,
        wake_readers: Callable[[], None],
        observer: BatchObserver | None,
    ) -> None:
        self._log: Final = log
        self._replica: Final = replica
        self._queue: Final = queue
        self._pacing: Final = pacing
        self._wake_readers: Final = wake_readers
        self._observer: Final = observer
        self._pending: PendingAppend | None = None
        self._untimely_appends = 0

    @property
    def is_appending(self) -> bool:
        """Whether an append is under way."""
        return self._pending is not None

    @property
    def has_reply(self) -> bool:
        """Whether the log has replied to the append under way, so that `settle` does not wait for it."""
        return self._pending is not None and self._pending.is_done

    @property
    def head(self) -> Head:
        """The head after the append under way, on top of which the next batch is decided."""
        return self._replica.head if self._pending is None else self._pending.batch.head

    def idempotency_keys(self) -> Collection[str]:
        """Return the idempotency keys of the append under way."""
        return () if self._pending is None else self._pending.idempotency_keys

    def send(self, batch: DecidedBatch) -> None:
        """Begin to append a batch. The append before it is settled."""
        self._pending = PendingAppend(self._log, batch)

    async def settle(self, next_requests: Sequence[Request] = ()) -> bool:
        """Wait for the append under way and answer its batch.

        Returns False if the append is not in the log. The append is then undone with everything decided on top of it, and
        `next_requests`, the requests taken after it, return to the queue behind its own requests: the order stays.
        """
        append, self._pending = self._pending, None
        if append is None:
            return True
        try:
            outcome, error = await append.wait(partial(self._on_unknown_outcome, next_requests))
        except Exception as bug:  # noqa: BLE001  # a bug: what the log holds now is the outcome
            self._replica.state.undo(append.batch.mark)
            self._queue.put_back(next_requests)
            self._replica.is_behind = True
            answer_all(append.requests, self.log_bug(bug))
            return False
        if append.is_undone:
            # All callers have their answers. If the batch is in the log, it is read like the events of another server.
            if outcome is AppendOutcome.COMMITTED:
                batch = append.batch
                metrics.count_committed(
                    self._replica.bus, len(batch.envelopes), batch.alarm_candidates, batch.lease_lapses, batch.uncounted_events
                )
            elif error is not None:
                self._replica.handle_log_error(error)
            self._replica.is_behind = True
            return False
        if outcome is AppendOutcome.COMMITTED:
            self._replica.unblock_writes()
            self._untimely_appends = 0
            if self._observer is not None:
                self._observer.note_committed(append)
            self._commit(append.batch, error)
            self._pacing.grow()
            return True
        self._replica.state.undo(append.batch.mark)
        self._queue.put_back(next_requests)
        await self._requeue(append.requests, outcome, error)
        return False

    def log_bug(self, error: Exception) -> ServiceError:
        """Log an exception that is a bug, and return the callers' error."""
        bug = Bug(error)
        _LOG.error("sequencer.failed", bus=self._replica.bus, error_id=bug.error_id, where=bug.where, exc_info=error)
        return bug.service_error()

    async def _requeue(self, batch: list[Request], outcome: AppendOutcome, error: LogError | None) -> None:
        """Put a batch that is not in the log back into the queue, or answer its callers."""
        try:
            if isinstance(error, UntimelyError):
                await self._requeue_untimely(batch, error)
            elif isinstance(error, EventIdTakenError):
                # Lookups of answers take time. With the next batch they end early, so that the other requests do not wait for them.
                for request in batch:
                    request.is_repeated = request.idempotency_key in error.entries
                self._queue.put_back(batch)
            elif outcome is AppendOutcome.RETRIABLE:
                if error is None:
                    _answer_lost_twice(batch)
                self._pacing.halve()
                self._queue.put_back(batch)
                await self._replica.refresh()
            else:
                answer_all(batch, self._replica.handle_log_error(error or LogError("the log did not answer")))
        except LogError as failure:
            answer_all(batch, self._replica.handle_log_error(failure))

    async def _requeue_untimely(self, batch: list[Request], error: UntimelyError) -> None:
        """Compare the clocks, and put the batch back into the queue; the second refusal in a row answers its callers."""
        await self._replica.observe_clock()
        self._untimely_appends += 1
        if self._untimely_appends < UNTIMELY_APPENDS_MAX:
            self._queue.put_back(batch)
        else:
            self._untimely_appends = 0
            answer_all(batch, clock_skew(error))

    def _commit(self, batch: DecidedBatch, error: LogError | None) -> None:
        """Keep a batch that is in the log, and answer its callers; with `error`, too few replicas confirmed it."""
        self._replica.advance(batch)
        waiters = self._replica.contest_waiters
        service_error = None if error is None else unconfirmed(error)
        for request, answer in deliver(batch, service_error):
            waiters.add(answer.envelope.event_id, request)
        if waiters:
            for event, entry in zip(batch.envelopes, batch.entries, strict=True):
                if event.event_category == DECISION:
                    waiters.notify(event, entry)

    def _on_unknown_outcome(self, next_requests: Iterable[Request], append: PendingAppend, error: LogError, *, is_overdue: bool) -> bool:
        """Refuse queued commands while an append's outcome is unknown. `is_overdue`: also refuse its own, and those decided on top of it.

        Returns whether to keep asking the log: a stopping server does not wait for a store that stays away.
        """
        self._replica.handle_log_error(error)
        unknown = ServiceError(
            error_pb2.ERROR_REASON_LOG_UNAVAILABLE,
            "the log did not answer, so it is unknown whether the event was recorded; retry with the same event_id",
        )
        self._queue.refuse(unknown)
        if is_overdue:
            answer_all(append.requests, unknown)
            answer_all(next_requests, unknown)
            if not append.is_undone:
                # Reads of the state and of the server's status must not wait until the store comes back.
                append.is_undone = True
                self._replica.state.undo(append.batch.mark)
                self._wake_readers()
        return not (is_overdue and self._replica.closing)


def clock_skew(error: UntimelyError) -> ServiceError:
    """Return the callers' error if the log refuses the date of a batch again and again."""
    return ServiceError(error_pb2.ERROR_REASON_CLOCK_SKEW, f"{error}; try again", retry_after_ms=1000)


def _answer_lost_twice(batch: Iterable[Request]) -> None:
    """Refuse the requests that two appends have lost: a store that loses every append must not hold callers for ever."""
    message = "the log lost two attempts to append the event, and the event is not recorded; try again"
    for request in batch:
        if request.was_lost:
            request.answer(ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, message))
        request.was_lost = True
