"""The producers that opened the traces of a bus.

The first proposal of a trace opens it. The trace belongs to that producer until it has had no proposal for TRACE_LAPSE_MS. A proposal or
observation of another producer in the trace has to name a cause in it: nobody takes part in another's work by its trace_id alone.

The owners come from the log alone. Their number is limited: beyond the limit, the producer with the most traces loses those that it opened
first, so no producer makes others lose theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gavel.v1 import error_pb2
from gavel_rules.limits import TRACE_LAPSE_MS

from gavel_server.errors import ServiceError

TRACES_MAX: Final = 50_000
# How many traces are forgotten at once.
FORGOTTEN_AT_ONCE: Final = 1_000


# A producer's type and id.
ProducerKey = tuple[int, str]


class _Owned:
    """A trace's producer, and the time of its last proposal."""

    def __init__(self, producer: ProducerKey, last_proposal_ms: int) -> None:
        self.producer: Final = producer
        self.last_proposal_ms = last_proposal_ms


class TraceOwners:
    """The owners of traces by trace_id."""

    def __init__(self, traces_max: int = TRACES_MAX) -> None:
        self._traces_max = traces_max
        self._owned: dict[str, _Owned] = {}
        self._traces: dict[ProducerKey, dict[str, None]] = {}  # trace_ids by producer, in the order in which they were opened

    def note(self, trace_id: str, producer: ProducerKey, now_ms: int) -> None:
        """Note a proposal that is in the log, recorded at `now_ms`."""
        owned = self._owned.get(trace_id)
        if owned is not None:
            if now_ms - owned.last_proposal_ms <= TRACE_LAPSE_MS:
                owned.last_proposal_ms = now_ms
                return
            self._forget(owned.producer, trace_id)
        self._owned[trace_id] = _Owned(producer, now_ms)
        self._traces.setdefault(producer, {})[trace_id] = None
        if len(self._owned) > self._traces_max:
            self._forget_oldest()

    def owner(self, trace_id: str, now_ms: Callable[[], int]) -> ProducerKey | None:
        """Return the producer that a trace belongs to; None if nobody is known to own it. The clock is read only if the trace is known."""
        owned = self._owned.get(trace_id)
        return owned.producer if owned is not None and now_ms() - owned.last_proposal_ms <= TRACE_LAPSE_MS else None

    def _forget_oldest(self) -> None:
        largest = max(self._traces, key=lambda producer: len(self._traces[producer]))
        traces = list(self._traces[largest])
        for trace_id in traces[: min(FORGOTTEN_AT_ONCE, (len(traces) + 1) // 2)]:
            self._forget(largest, trace_id)

    def _forget(self, producer: ProducerKey, trace_id: str) -> None:
        del self._owned[trace_id]
        traces = self._traces[producer]
        del traces[trace_id]
        if not traces:
            del self._traces[producer]


def foreign_trace(trace_id: str) -> ServiceError:
    """Return the error for an event of another producer than the trace's that names no cause in the trace."""
    message = f"trace {trace_id} was opened by another producer; to continue it, set causation_id to an event of that trace"
    return ServiceError(error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED, message)
