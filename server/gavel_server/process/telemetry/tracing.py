"""Spans of calls, with OpenTelemetry's SDK. Import this only if traces are exported: the SDK is an extra.

A call has one span of the kind SERVER, whose parent is the caller's span if the caller sent its context. The parts of the server report
their times when a call's batch is committed, and become spans below it. So nothing of the SDK runs between queue and append.
"""

from __future__ import annotations

import time
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)

from gavel_server.process.telemetry.call_trace import Attributes

# Spans below that of one call. A batch has several for each of its proposals, and a trace of thousands of spans helps nobody.
SPANS_PER_CALL_MAX: Final = 128
# Of a caller's `tracestate`, as Trace Context recommends.
TRACESTATE_LENGTH_MAX: Final = 512


class Tracing:
    """Begins the traces of calls."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer: Final = tracer

    def begin(self, method: str, traceparent: str, tracestate: str, received_ns: int, attributes: Attributes) -> SampledCall | None:
        """Return the trace of a call that begins now, or None if it is not sampled.

        `method` is "gavel.v1.EventService/GetEvent" or the like; `traceparent` is valid and of version 00, or "". `received_ns` is when
        the native front received the call, in nanoseconds since the epoch; 0: the server itself did.
        """
        now_ns = time.time_ns()
        start_ns = min(received_ns, now_ns) if received_ns else now_ns
        service, _, name = method.partition("/")
        context = _remote_context(traceparent, tracestate) if traceparent else Context()
        span = self._tracer.start_span(
            method,
            context,
            kind=SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": name, **attributes},
            start_time=start_ns,
        )
        if not span.is_recording():
            return None
        call = SampledCall(self._tracer, span, now_ns - time.monotonic_ns())
        if received_ns:
            call.add_at("gavel.front", start_ns, now_ns, {})
        return call


class SampledCall:
    """The trace of one sampled call (`CallTrace`)."""

    def __init__(self, tracer: Tracer, span: Span, offset_ns: int) -> None:
        """`offset_ns` is the time since the epoch minus `time.monotonic_ns`."""
        self._tracer: Final = tracer
        self._span: Final = span
        self._context: Final = set_span_in_context(span, Context())
        self._offset_ns: Final = offset_ns
        self._spans = 0

    def add(self, name: str, begin_ns: int, end_ns: int, attributes: Attributes) -> None:
        """Add a span below the call's own span."""
        self.add_at(name, begin_ns + self._offset_ns, end_ns + self._offset_ns, attributes)

    def add_at(self, name: str, begin_ns: int, end_ns: int, attributes: Attributes) -> None:
        """Add a span like `add`, with times since the epoch."""
        self._spans += 1
        if self._spans <= SPANS_PER_CALL_MAX:
            self._tracer.start_span(name, self._context, attributes=dict(attributes), start_time=begin_ns).end(max(begin_ns, end_ns))

    def end(self, attributes: Attributes, *, is_failure: bool) -> None:
        """End the call's own span."""
        self._span.set_attributes(dict(attributes))
        if self._spans > SPANS_PER_CALL_MAX:
            self._span.set_attribute("gavel.spans_omitted", self._spans - SPANS_PER_CALL_MAX)
        if is_failure:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def _remote_context(traceparent: str, tracestate: str) -> Context:
    _, trace_id, span_id, flags = traceparent.split("-")
    state = TraceState.from_header([tracestate]) if 0 < len(tracestate) <= TRACESTATE_LENGTH_MAX else None
    remote = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)), state)
    return set_span_in_context(NonRecordingSpan(remote), Context())
