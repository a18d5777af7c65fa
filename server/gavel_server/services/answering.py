"""The answers to a batch of proposals: each comes by itself, and the caller hears all of them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from google.rpc.status_pb2 import Status

from gavel_server.bus.planning import Completed, Pending, as_sent
from gavel_server.errors import ServiceError
from gavel_server.framing import results
from gavel_server.log import Record
from gavel_server.services.boundary import refused


class BatchAnswers:
    """The answers to the `count` proposals of a call of `method`; `heard` hears the response's bytes once the last one is there."""

    def __init__(self, method: str, count: int, heard: Callable[[bytes], None]) -> None:
        self._method = method
        self._answers: list[Record | Status | None] = [None] * count
        self._missing = count
        self._heard = heard

    def waiting(self, envelopes: list[Envelope], share_bytes: int | None) -> list[Pending]:
        """Return the call's proposals as they wait to be decided, each of which is answered here.

        `share_bytes` is how large each is taken to be; None: it is measured.
        """
        waiting: list[Pending] = []
        for index, envelope in enumerate(envelopes):
            size_bytes = envelope.ByteSize() if share_bytes is None else share_bytes
            waiting.append(as_sent(envelope, _Place(self, index), size_bytes))
        return waiting

    def take(self, index: int, result: Completed | ServiceError) -> None:
        """Take the answer to one proposal, once."""
        self._answers[index] = refused(self._method, result).status() if isinstance(result, ServiceError) else record_of(result)
        self._missing -= 1
        if not self._missing:
            self._heard(results([answer for answer in self._answers if answer is not None]))


class _Place:
    """Where the answer to one proposal of a batch goes. No `partial`: one is made for each, and compiled a class costs less."""

    def __init__(self, answers: BatchAnswers, index: int) -> None:
        self._answers: Final = answers
        self._index: Final = index

    def __call__(self, result: Completed | ServiceError) -> None:
        self._answers.take(self._index, result)


def record_of(result: Completed) -> Record:
    """Return the record of a proposal's decision."""
    assert result.record is not None  # noqa: S101  # a decided proposal always has its decision's record
    return result.record
