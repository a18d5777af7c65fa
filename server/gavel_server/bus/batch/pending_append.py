"""One append under way, and its outcome. An unknown outcome is settled by reading the log: the chain hash identifies the batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol

from gavel_server.bus.batch.decision import DecidedBatch
from gavel_server.bus.request import Request
from gavel_server.log import (
    EventIdTakenError,
    EventLog,
    HeadMovedError,
    LogCorruptError,
    LogError,
    NotReplicatedError,
    OutcomeUnknownError,
    UntimelyError,
)
from gavel_server.log.protocol import has_event

# How long after sending an outcome may stay unknown before callers get an error and readers the state without the batch.
UNKNOWN_ANSWER_SECONDS: Final = 5.0
PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 1.0


class AppendOutcome(Enum):
    """The outcome of an append."""

    COMMITTED = 1  # the batch is in the log
    RETRIABLE = 2  # not in the log, to be decided again: another server appended first, an event_id was taken, or clocks differ
    FAILED = 3  # not in the log, which is unavailable; or still unknown when the server stops


class OnUnknownOutcome(Protocol):
    """Called while an outcome is unknown; `is_overdue` after UNKNOWN_ANSWER_SECONDS."""

    def __call__(self, append: PendingAppend, error: LogError, *, is_overdue: bool) -> bool:
        """Handle the error; return whether to keep asking the log."""


class PendingAppend:
    """A decided batch on its way into the log. The constructor sends it; call `wait` once."""

    def __init__(self, log: EventLog, batch: DecidedBatch) -> None:
        self.batch = batch
        self.requests: list[Request] = [request for request, _ in batch.answers]
        # Whether the state lacks the batch although the log may have it: the outcome was unknown for too long.
        self.is_undone = False
        self._log = log
        self._sent_at = asyncio.get_running_loop().time()
        self.sent_ns: Final = time.monotonic_ns()
        self.ended_ns = 0  # 0: the log has not replied
        # The event_ids of the batch that producers chose: their requests have no answer yet.
        self.idempotency_keys: Final = dict.fromkeys(request.idempotency_key for request in self.requests if request.idempotency_key)
        keys = list(self.idempotency_keys)
        self._append = asyncio.ensure_future(
            log.append(batch.expected_head, batch.entries, batch.recorded_at_ms, keys, batch.date_ms)
            if batch.entries
            else self._confirm(keys)
        )
        self._append.add_done_callback(self._note_end)

    def _note_end(self, _: object) -> None:
        self.ended_ns = time.monotonic_ns()

    @property
    def is_done(self) -> bool:
        """Whether the log has replied, so that `wait` does not wait for it."""
        return self._append.done()

    async def wait(self, on_unknown: OnUnknownOutcome | None = None) -> tuple[AppendOutcome, LogError | None]:
        """Wait for the append; return its outcome and the error that explains it, if any.

        COMMITTED with an error: too few replicas confirmed the events. RETRIABLE with an EventIdTakenError: some commands have been
        answered before; with an UntimelyError: the clocks of server and store must be compared.
        Any other exception is a bug, and is raised.
        """
        try:
            await self._append
        except NotReplicatedError as error:
            return AppendOutcome.COMMITTED, error
        except (EventIdTakenError, HeadMovedError, UntimelyError) as error:
            return AppendOutcome.RETRIABLE, error
        except OutcomeUnknownError as error:
            return await self._settle(error, on_unknown)
        except LogError as error:
            return AppendOutcome.FAILED, error
        return AppendOutcome.COMMITTED, None

    async def _confirm(self, idempotency_keys: Sequence[str]) -> None:
        """Confirm answers without events: they hold only at the expected head, and not for event_ids that the log has."""
        actual = await self._log.head()
        if actual != self.batch.expected_head:
            raise HeadMovedError(self.batch.expected_head, actual)
        known_ids = await self._log.find(idempotency_keys, self.batch.recorded_at_ms) if idempotency_keys else {}
        if known_ids:
            raise EventIdTakenError(known_ids)
        await self._log.confirm(actual)

    async def _settle(self, first: LogError, on_unknown: OnUnknownOutcome | None) -> tuple[AppendOutcome, LogError | None]:
        """Ask the log until the outcome is known, or until `on_unknown` returns False."""
        loop = asyncio.get_running_loop()
        deadline = self._sent_at + UNKNOWN_ANSWER_SECONDS
        pause_seconds = PAUSE_SECONDS_MIN
        error = first
        while True:
            if on_unknown is not None and not on_unknown(self, error, is_overdue=loop.time() >= deadline):
                return AppendOutcome.FAILED, error
            try:
                if not await self._is_in_log():
                    return AppendOutcome.RETRIABLE, None
            except LogCorruptError as failure:
                return AppendOutcome.FAILED, failure
            except LogError as failure:
                error = failure
            else:
                return await self._confirm_batch()
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(PAUSE_SECONDS_MAX, pause_seconds * 2)

    async def _confirm_batch(self) -> tuple[AppendOutcome, LogError | None]:
        """Return COMMITTED, with an error if too few replicas confirm the batch, which is in the log."""
        try:
            await self._log.confirm(self.batch.head)
        except LogError as error:
            return AppendOutcome.COMMITTED, error
        return AppendOutcome.COMMITTED, None

    async def _is_in_log(self) -> bool:
        """Return whether the log has the batch. Final: after `head` has replied, a lost append can no longer arrive."""
        last = self.batch.head
        head = await self._log.head()
        if head.sequence_number < last.sequence_number:
            return False
        return await has_event(self._log, last)
