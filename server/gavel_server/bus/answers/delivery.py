"""The answers to the callers of a committed batch."""

from __future__ import annotations

from typing import Final

from gavel_rules.commands import Answer, ContestEntry, EventAnswer, Fault, LeasedAttempt

from gavel_server.bus.batch.decision import DecidedBatch
from gavel_server.bus.request import CommittedAnswer, Request
from gavel_server.errors import ServiceError, of_fault

# docs/performance.md#isinstance-tuples
_WITH_EVENT: Final = (EventAnswer, LeasedAttempt)


def deliver(batch: DecidedBatch, error: ServiceError | None = None) -> list[tuple[Request, ContestEntry]]:
    """Answer the callers of a committed batch, all with `error` if it is given.

    Returns the requests whose proposals wait for a contest: their callers are not answered yet.
    """
    waiting: list[tuple[Request, ContestEntry]] = []
    for request, answer in batch.answers:
        result = result_of(batch, answer) if error is None else error
        if result is not None:
            request.answer(result)
        elif isinstance(answer, ContestEntry):
            waiting.append((request, answer))
    return waiting


def result_of(batch: DecidedBatch, answer: Answer) -> CommittedAnswer | ServiceError | None:
    """Return the result of a committed command; None if its caller must wait for a contest."""
    if isinstance(answer, _WITH_EVENT):
        return CommittedAnswer(answer, batch.entries[answer.envelope.sequence_number - batch.expected_head.sequence_number - 1])
    if isinstance(answer, Fault):
        return of_fault(answer)
    return None if isinstance(answer, ContestEntry) else CommittedAnswer(answer, None)
