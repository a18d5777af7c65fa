"""A collector of OpenTelemetry for tests: it receives traces and metrics over gRPC and over HTTP, and keeps them."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WAIT_SECONDS_MAX = 60.0


class Collector:
    """What was received so far. `grpc_endpoint` and `http_endpoint` are for OTEL_EXPORTER_OTLP_ENDPOINT."""

    def __init__(self) -> None:
        self.grpc_endpoint = ""
        self.http_endpoint = ""
        self.traces: list[trace_service_pb2.ExportTraceServiceRequest] = []
        self.metrics: list[metrics_service_pb2.ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self._changed = threading.Condition()

    def take(self, request: Any, headers: dict[str, str]) -> None:
        """Keep a request."""
        with self._changed:
            requests: list[Any] = self.traces if isinstance(request, trace_service_pb2.ExportTraceServiceRequest) else self.metrics
            requests.append(request)
            self.headers.append(headers)
            self._changed.notify_all()

    def spans(self) -> list[Span]:
        """Return all spans."""
        return [
            span
            for request in list(self.traces)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def last_metrics(self) -> dict[str, Metric]:
        """Return the last metrics, by name."""
        return {
            metric.name: metric
            for request in self.metrics[-1:]
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def received(self) -> bytes:
        """Return everything that was received, as bytes."""
        return b"".join(request.SerializeToString() for request in [*self.traces, *self.metrics])

    def wait(self, is_complete: Callable[[], bool]) -> None:
        """Return once a condition holds."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        with self._changed:
            while not is_complete():
                assert self._changed.wait(deadline - time.monotonic()), [span.name for span in self.spans()]


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Run a collector on free ports of the loopback interface."""
    collector = Collector()

    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # the contract's name
            collector.take(request, dict(context.invocation_metadata()))
            return trace_service_pb2.ExportTraceServiceResponse()

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # the contract's name
            collector.take(request, dict(context.invocation_metadata()))
            return metrics_service_pb2.ExportMetricsServiceResponse()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's name
            kinds: dict[str, Any] = {
                "/v1/traces": trace_service_pb2.ExportTraceServiceRequest,
                "/v1/metrics": metrics_service_pb2.ExportMetricsServiceRequest,
            }
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(kinds[self.path].FromString(body), {name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)  # type: ignore[no-untyped-call]
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)  # type: ignore[no-untyped-call]
    collector.grpc_endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.http_endpoint = f"http://127.0.0.1:{http.server_port}"
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        http.shutdown()
        http.server_close()
        server.stop(None)
