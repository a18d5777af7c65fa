"""The answers to a batch of proposals: each comes by itself, and the caller hears all of them together."""

from __future__ import annotations

from collections.abc import Callable

from google.rpc.status_pb2 import Status

from gavel_server.bus.planning import Completed
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

    def take(self, index: int, result: Completed | ServiceError) -> None:
        """Take the answer to one proposal, once."""
        self._answers[index] = refused(self._method, result).status() if isinstance(result, ServiceError) else record_of(result)
        self._missing -= 1
        if not self._missing:
            self._heard(results([answer for answer in self._answers if answer is not None]))


def record_of(result: Completed) -> Record:
    """Return the record of a proposal's decision."""
    assert result.record is not None  # noqa: S101  # a decided proposal always has its decision's record
    return result.record
