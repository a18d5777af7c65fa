"""The commands of one bus that wait to be decided: fair between callers, in order within a caller (`fairness/fair_queue`)."""

from __future__ import annotations

from collections.abc import Sequence

from gavel.v1 import error_pb2
from gavel_rules.limits import BATCH_BYTES_MAX

from gavel_server.bus.request import Request, answer_all
from gavel_server.errors import ServiceError
from gavel_server.fairness.fair_queue import FairQueue
from gavel_server.process import metrics


class CommandQueue:
    """The queue of `bus`. It is full with `commands_max` commands, or with more than `bytes_max` bytes.

    A single caller may fill it. When it is full, a caller with less than its share displaces the newest commands of the caller with most.
    """

    def __init__(self, bus: str, commands_max: int, bytes_max: int) -> None:
        self._bus = bus
        self._requests: FairQueue[Request] = FairQueue(commands_max, bytes_max)

    def __len__(self) -> int:
        return self._requests.count

    @property
    def size_bytes(self) -> int:
        """The bytes of the commands."""
        return self._requests.size_bytes

    def add(self, request: Request) -> None:
        """Append a request. Raises ServiceError QUEUE_FULL."""
        requests = self._requests
        displaced = requests.make_room(request.caller)
        if displaced is None:
            raise self._full()
        if displaced:
            answer_all(displaced, self._full())
        requests.add(request.caller, request, request.size_bytes)

    def add_all(self, requests: list[Request]) -> None:
        """Append requests; answer QUEUE_FULL to those for which there is no room."""
        for request in requests:
            try:
                self.add(request)
            except ServiceError as error:
                request.answer(error)

    def take(self, commands_max: int) -> list[Request]:
        """Remove the next batch: at most `commands_max` requests, and none after BATCH_BYTES_MAX is exceeded.

        Requests whose caller has gone are dropped: nobody would receive the answer. So are those that have their answer.
        """
        requests = self._requests
        batch: list[Request] = []
        size_bytes = 0
        while requests.count and len(batch) < commands_max and size_bytes <= BATCH_BYTES_MAX:
            request = requests.take()
            if request.is_answered:
                continue
            if request.is_cancelled:
                metrics.COMMANDS_DROPPED.labels(self._bus).inc()
                continue
            size_bytes += request.size_bytes
            batch.append(request)
        return batch

    def put_back(self, batch: Sequence[Request]) -> None:
        """Return requests to the front of their callers' requests, in order, except those that have been answered."""
        for request in reversed(batch):
            if not request.is_answered:
                self._requests.put_back(request.caller, request, request.size_bytes)

    def refuse(self, error: ServiceError) -> None:
        """Answer everything in the queue with an error, and empty it."""
        while self._requests.count:
            self._requests.take().answer(error)

    def _full(self) -> ServiceError:
        requests = self._requests
        return ServiceError(
            error_pb2.ERROR_REASON_QUEUE_FULL,
            f"the queue of bus {self._bus} is full, with {requests.count} of {requests.items_max} commands and {requests.size_bytes} of "
            f"{requests.bytes_max} bytes, and the caller has used its share; try again",
        )
