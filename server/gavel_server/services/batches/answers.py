"""The answers to a batch of proposals: each arrives separately, and the caller gets them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.identity.principal import ANONYMOUS, Principal

from gavel_server.bus.request import Cancellation, CommittedAnswer, Request
from gavel_server.errors import ServiceError
from gavel_server.fairness.callers import INTERNAL
from gavel_server.intake.admission import admit_proposal
from gavel_server.log import Record
from gavel_server.rpc.errors import refuse
from gavel_server.rpc.framing import batch_response
from gavel_server.rpc.limits import BATCH_ANSWER_BYTES_MAX

_QUEUE_FULL: Final = error_pb2.ERROR_REASON_QUEUE_FULL


class BatchAnswers:
    """Gathers the answers to the `count` proposals of a call of `method`, and calls `respond` with the response's bytes after the last.

    `on_error` is called with the index and the error of each proposal that is refused.
    """

    def __init__(
        self, method: str, count: int, respond: Callable[[bytes], None], on_error: Callable[[int, Exception], None] | None = None
    ) -> None:
        self._method = method
        self._on_error = on_error
        self._answers: list[Record | bytes | None] = [None] * count
        self._missing = count
        self._respond = respond
        self._room_bytes = BATCH_ANSWER_BYTES_MAX

    def admit(
        self,
        envelopes: list[Envelope],
        bus: str,
        share_bytes: int | None,
        cancellation: Cancellation | None = None,
        caller: str = INTERNAL,
        first: int = 0,
        traceparent: str = "",
        principal: Principal = ANONYMOUS,
    ) -> list[Request]:
        """Admit proposals; return requests for the valid ones, which are answered here, and take the errors of the others.

        `share_bytes` is taken as the size of each proposal; None: each is measured. `cancellation`, `caller`,
        `traceparent` and `principal` are those of the call. `first` is the index of the first of these proposals in the call.
        """
        requests: list[Request] = []
        for index, envelope in enumerate(envelopes, first):
            try:
                size_bytes = envelope.ByteSize() if share_bytes is None else share_bytes
                command, idempotency_key = admit_proposal(envelope, bus, size_bytes, traceparent)
            except Exception as error:  # noqa: BLE001  # a bug in the checks of one proposal must not cost the others
                self.take(index, error)
            else:
                slot = _Slot(self, index)
                requests.append(
                    Request(command, slot, idempotency_key, size_bytes, cancellation=cancellation, caller=caller, principal=principal)
                )
        return requests

    def take(self, index: int, result: CommittedAnswer | Exception) -> None:
        """Take the answer to one proposal. Call it once for each index."""
        if self._on_error is not None and isinstance(result, Exception):
            self._on_error(index, result)
        self._answers[index] = self._answer(result)
        self._missing -= 1
        if not self._missing:
            self._respond(batch_response([answer for answer in self._answers if answer is not None]))

    def _answer(self, result: CommittedAnswer | Exception) -> Record | bytes:
        if not isinstance(result, CommittedAnswer):
            return refuse(self._method, result).encoded_status()
        record = record_of(result)
        self._room_bytes -= len(record.envelope)
        if self._room_bytes >= 0:
            return record
        message = (
            f"the decisions of this batch have more than {BATCH_ANSWER_BYTES_MAX} bytes; "
            f"read this one, event {record.sequence_number}, with GetEvent"
        )
        return refuse(self._method, ServiceError(_QUEUE_FULL, message)).encoded_status()


class _Slot:
    """The callback for one proposal of a batch. A class costs less than `partial` when compiled (docs/performance.md#plain-classes)."""

    def __init__(self, answers: BatchAnswers, index: int) -> None:
        self._answers: Final = answers
        self._index: Final = index

    def __call__(self, result: CommittedAnswer | Exception) -> None:
        self._answers.take(self._index, result)


def record_of(result: CommittedAnswer) -> Record:
    """Return the record of a proposal's decision."""
    assert result.record is not None  # noqa: S101  # a decided proposal always has its decision's record
    return result.record
