"""Metrics and spans of each call, on both transports.

Without an observer a call records none and spends no time on them. Names follow the semantic conventions of RPCs
(https://opentelemetry.io/docs/specs/semconv/rpc). Neither spans nor labels hold payloads, metadata or messages of errors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
from gavel_rules.identity.principal import ANONYMOUS

from gavel_server.errors import ServiceError, reason_name
from gavel_server.process.telemetry.call_trace import CURRENT, CallTrace
from gavel_server.process.telemetry.instruments import REFUSALS, RPC_DURATION, BoundedLabel
from gavel_server.process.telemetry.trace_context import TRACESTATE_KEY
from gavel_server.rpc.call_context import CallContext

if TYPE_CHECKING:
    from gavel_server.process.telemetry.tracing import Tracing

# Codes that are the server's fault, of which the conventions say that a span fails with them.
_FAILURES: Final = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)


class CallObserver:
    """Measures the calls of this server, and traces them if `tracing` is given."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self._tracing: Final = tracing
        self._principals: Final = BoundedLabel()
        self._durations: Final[dict[tuple[str, grpc.StatusCode], Any]] = {}

    def begin(self, context: CallContext, *, is_traced: bool = True) -> Observation:
        """Begin to observe a call. A health check, of which there is one a second, is not traced."""
        trace: CallTrace | None = None
        if is_traced and self._tracing is not None:
            state = [str(value) for key, value in context.metadata if key == TRACESTATE_KEY]
            attributes = {"gavel.transport": context.transport, "gavel.principal": context.principal.name}
            trace = self._tracing.begin(context.method, context.traceparent, ",".join(state), context.received_ns, attributes)
        return Observation(self, context, trace)

    def count_refusal(self, context: CallContext, reason: str) -> None:
        """Count a call that was answered with an error."""
        REFUSALS.labels(self._principals.bound(context.principal.name), reason).inc()

    def count_unauthenticated(self) -> None:
        """Count a call whose caller has no valid credentials, and which was not begun."""
        REFUSALS.labels(self._principals.bound(ANONYMOUS.name), "UNAUTHENTICATED").inc()

    def record(self, method: str, code: grpc.StatusCode, milliseconds: float) -> None:
        """Record the duration of a call."""
        duration = self._durations.get((method, code))
        if duration is None:
            service, _, name = method.partition("/")
            duration = self._durations[method, code] = RPC_DURATION.labels("grpc", service, name, str(code.value[0]))
        duration.observe(milliseconds)


class Observation:
    """The observation of one call. `trace` is None if the call is not sampled."""

    def __init__(self, observer: CallObserver, context: CallContext, trace: CallTrace | None) -> None:
        self._observer: Final = observer
        self._context: Final = context
        self.trace: Final = trace
        self._began_ns: Final = time.monotonic_ns()
        self._is_over = False
        context.cancellation.listen(self.cancel)

    def cancel(self) -> None:
        """End the observation of a call whose caller has gone."""
        self._end(grpc.StatusCode.CANCELLED, "")

    def end(self, error: BaseException | None = None) -> None:
        """End the observation with the outcome of the call. Only the first end counts."""
        if error is None:
            self._end(grpc.StatusCode.OK, "")
        elif isinstance(error, ServiceError):
            self._end(error.code, reason_name(error.reason))
        elif isinstance(error, asyncio.CancelledError):
            self.cancel()
        else:
            self._end(grpc.StatusCode.INTERNAL, "INTERNAL")

    def end_with_code(self, code: grpc.StatusCode) -> None:
        """End the observation of a call that a library has ended by itself."""
        self._end(code, "")

    def _end(self, code: grpc.StatusCode, reason: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        context = self._context
        context.cancellation.unlisten(self.cancel)
        self._observer.record(context.method, code, (time.monotonic_ns() - self._began_ns) / 1e6)
        if reason:
            self._observer.count_refusal(context, reason)
        if self.trace is not None:
            attributes: dict[str, str | int | bool] = {"rpc.grpc.status_code": int(code.value[0])}
            if reason:
                attributes["gavel.error_reason"] = reason
            self.trace.end(attributes, is_failure=code in _FAILURES)


@contextmanager
def current(trace: CallTrace | None) -> Iterator[None]:
    """Make a trace the one that the parts of the server add their spans to."""
    token = CURRENT.set(trace)
    try:
        yield
    finally:
        CURRENT.reset(token)
