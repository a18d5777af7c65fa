"""Metrics and spans of the batches of a bus. A sequencer without an observer records none and spends no time on them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import Answer, EventAnswer, Fault
from gavel_rules.events.kinds import DECISION

from gavel_server.bus.batch.pending_append import PendingAppend
from gavel_server.bus.request import Request, RequestTimes
from gavel_server.process.telemetry.call_trace import CURRENT, Attributes
from gavel_server.process.telemetry.instruments import APPEND_SECONDS, DECISION_SECONDS, QUEUE_SECONDS, QUEUED_COMMANDS

_NANOSECONDS: Final = 1e9


class BatchObserver:
    """Observes the batches of one bus."""

    def __init__(self, bus: str) -> None:
        self._bus: Final = bus
        self._queue_seconds: Final = QUEUE_SECONDS.labels(bus)
        self._append_seconds: Final = APPEND_SECONDS.labels(bus)
        self._queued_commands: Final = QUEUED_COMMANDS.labels(bus)

    def note_queued(self, requests: Iterable[Request]) -> None:
        """Note that requests of the present call enter the queue."""
        now_ns, trace = time.monotonic_ns(), CURRENT.get()
        for request in requests:
            request.times = RequestTimes(now_ns, trace)

    def note_taken(self, requests: Iterable[Request], queue_length: int) -> None:
        """Note that requests have left the queue, which holds `queue_length` others.

        If a request was put back, only its first wait is measured.
        """
        now_ns = time.monotonic_ns()
        self._queued_commands.set(queue_length)
        for request in requests:
            times = request.times
            if times is not None and not times.taken_ns:
                times.taken_ns = now_ns
                self._queue_seconds.observe((now_ns - times.queued_ns) / _NANOSECONDS)

    def note_committed(self, append: PendingAppend) -> None:
        """Note that a batch is in the log. Its callers are answered next."""
        now_ns = time.monotonic_ns()
        ended_ns = append.ended_ns or now_ns
        batch = append.batch
        if batch.entries:
            self._append_seconds.observe((ended_ns - append.sent_ns) / _NANOSECONDS)
        for request, answer in batch.answers:
            times = request.times
            if times is None:
                continue
            decision = _decision_of(answer)
            if decision is not None:
                outcome = Outcome.Name(decision.decision.outcome).removeprefix("OUTCOME_")
                DECISION_SECONDS.labels(self._bus, outcome).observe((now_ns - times.queued_ns) / _NANOSECONDS)
            if times.trace is not None:
                self._trace(times, request, answer, append, ended_ns)

    def _trace(self, times: RequestTimes, request: Request, answer: Answer, append: PendingAppend, ended_ns: int) -> None:
        """Add the spans of one request to the trace of its call."""
        trace, batch = times.trace, append.batch
        assert trace is not None  # noqa: S101  # the caller has checked it
        bus: Attributes = {"gavel.bus": self._bus}
        trace.add("gavel.queue", times.queued_ns, times.taken_ns, bus)
        core: dict[str, str | int | bool] = {**bus, "gavel.command": type(request.command).__name__}
        decision = _decision_of(answer)
        if decision is not None:
            core["gavel.outcome"] = Outcome.Name(decision.decision.outcome).removeprefix("OUTCOME_")
            core["gavel.reason_code"] = decision.decision.reason_code
        if isinstance(answer, Fault):
            core["gavel.fault"] = True
        trace.add("gavel.core", times.decision_began_ns, times.decision_ended_ns, core)
        attributes: Attributes = {
            **bus,
            "gavel.batch_events": len(batch.entries),
            "gavel.batch_commands": len(batch.answers),
            "gavel.head_sequence_number": batch.head.sequence_number,
        }
        trace.add("gavel.append", append.sent_ns, ended_ns, attributes)


def _decision_of(answer: Answer) -> Envelope | None:
    if isinstance(answer, EventAnswer) and answer.envelope.event_category == DECISION:
        return answer.envelope
    return None
