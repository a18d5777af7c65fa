"""A command queued on a bus, and the answer that its caller gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import structlog
from gavel_rules.commands import NO_REFERENCES, Answer, Command, References
from gavel_rules.events.citation import CitedEvent
from gavel_rules.identity.principal import ANONYMOUS, Principal

from gavel_server.errors import ServiceError
from gavel_server.fairness.callers import INTERNAL
from gavel_server.log import Record
from gavel_server.process.telemetry.call_trace import CallTrace

_LOG: Final = structlog.get_logger(__name__)


class CommittedAnswer:
    """The core's answer to a committed command. `record` is the log's record of the answer's event, None if it has no event."""

    def __init__(self, answer: Answer, record: Record | None) -> None:
        self.answer: Final = answer
        self.record: Final = record


class Cancellation:
    """Whether the caller of a command has gone. A command that is still queued is then dropped before it is decided."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._listeners: dict[Callable[[], None], None] | None = None

    def cancel(self) -> None:
        """Note that the caller has gone: it has cancelled the call, lost its connection, or its deadline has passed."""
        self.is_cancelled = True
        if self._listeners:
            for listener in list(self._listeners):
                listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function when the caller goes. A call has several if its requests are answered one by one."""
        if self._listeners is None:
            self._listeners = {}
        self._listeners[listener] = None

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Do not call a function of `listen`."""
        if self._listeners is not None:
            self._listeners.pop(listener, None)


Callback = Callable[[CommittedAnswer | ServiceError], None]


class RequestTimes:
    """When a request passed the steps of a sequencer, by `time.monotonic_ns`; 0: not yet. `trace` is that of its call, if it is sampled."""

    def __init__(self, queued_ns: int, trace: CallTrace | None) -> None:
        self.trace: Final = trace
        self.queued_ns: Final = queued_ns
        self.taken_ns = 0
        self.decision_began_ns = 0
        self.decision_ended_ns = 0


class Request:
    """A command on its way through a sequencer.

    `idempotency_key` is the command's event_id if the producer chose it, else "". `named_in_batch` has the event_ids of earlier events of
    the same batch that the command names: its cause, and those of a graph transition. `partial_citations` has the cited events that were
    read so far, and the RecentEvents at that time. `was_lost`: one append of the command was lost.
    `is_repeated`: one append was refused because the log has the idempotency_key.
    `cancellation`, if there is one, says whether the caller still waits. `caller` is the key under which limits count it, `principal` the
    authenticated caller.
    """

    def __init__(
        self,
        command: Command,
        callback: Callback,
        idempotency_key: str,
        size_bytes: int,
        references: References = NO_REFERENCES,
        cancellation: Cancellation | None = None,
        caller: str = INTERNAL,
        principal: Principal = ANONYMOUS,
    ) -> None:
        self.command = command
        self._callback: Callback | None = callback
        self.idempotency_key: Final = idempotency_key
        self.size_bytes: Final = size_bytes
        self.references = references
        self.named_in_batch: list[str] = []
        self.partial_citations: tuple[object, dict[int, CitedEvent]] | None = None
        self.was_lost = False
        self.is_repeated = False
        self._cancellation: Final = cancellation
        self.caller: Final = caller
        self.principal: Final = principal
        self.times: RequestTimes | None = None  # only if they are measured

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has gone."""
        return self._cancellation is not None and self._cancellation.is_cancelled

    @property
    def is_answered(self) -> bool:
        """Whether the caller has been answered."""
        return self._callback is None

    def answer(self, result: CommittedAnswer | ServiceError) -> None:
        """Call the callback with the result. Only the first call has an effect."""
        callback = self._callback
        if callback is None:
            return
        self._callback = None
        try:
            callback(result)
        except Exception:  # noqa: BLE001  # the failure of one callback must not keep other callers from their answers
            _LOG.exception("callback.failed")


def answer_all(requests: Iterable[Request], error: ServiceError) -> None:
    """Answer every request with an error."""
    for request in requests:
        request.answer(error)
