"""Answers about events that are in the log, given once the log has confirmed these events as durably as the server promises.

Without GAVEL_ACK=replicas:N every event of the log is confirmed, and answers are given at once. Otherwise an answer waits, beside the
sequencer's loop, until enough replicas have its event; all waiting answers share one call of `confirm`. If too few replicas confirm,
the caller gets LOG_UNAVAILABLE and may retry with the same event_id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from gavel.v1 import error_pb2

from gavel_server.bus.request import CommittedAnswer, Request
from gavel_server.errors import ServiceError
from gavel_server.log import EventLog, LogError

WAITERS_MAX: Final = 10_000


class _UnconfirmedAnswer(NamedTuple):
    request: Request
    answer: CommittedAnswer
    sequence_number: int


class ConfirmedAnswers:
    """The answers of one bus that wait for the confirmation of their events, which `confirm` awaits. It raises LogError."""

    def __init__(self, log: EventLog, confirm: Callable[[int], Awaitable[None]]) -> None:
        self._log = log
        self._confirm = confirm
        self._waiting: list[_UnconfirmedAnswer] = []
        self._running: asyncio.Task[None] | None = None

    def answer(self, request: Request, answer: CommittedAnswer, sequence_number: int) -> None:
        """Answer a request once the events up to this number are confirmed."""
        if self._log.is_confirmed(sequence_number):
            request.answer(answer)
        elif len(self._waiting) >= WAITERS_MAX:
            message = f"the event is recorded, but {WAITERS_MAX} answers already wait for replicas; retry with the same event_id"
            request.answer(ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message))
        else:
            self._waiting.append(_UnconfirmedAnswer(request, answer, sequence_number))
            if self._running is None:
                self._running = asyncio.create_task(self._run())

    def refuse_all(self, error: ServiceError) -> None:
        """Refuse the answers that wait: the log has lost their events. A confirmation under way fails by itself."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.request.answer(error.copy())

    async def stop(self) -> None:
        """Wait until no answer waits: the log's own timeout bounds this."""
        if self._running is not None:
            await self._running

    async def _run(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                await self._confirm(max(one.sequence_number for one in waiting))
            except LogError as error:
                refusal = unconfirmed(error)
                for one in waiting:
                    one.request.answer(refusal)
            else:
                for one in waiting:
                    one.request.answer(one.answer)
        self._running = None


def unconfirmed(error: LogError) -> ServiceError:
    """Return the callers' error for events that are in the log and not confirmed."""
    return ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, f"{error}; retry with the same event_id")
