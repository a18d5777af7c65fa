"""Export of traces and metrics with OpenTelemetry's SDK, which is the extra `telemetry`: `start_export` imports it only when needed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client import REGISTRY

from gavel_server.process.telemetry.settings import Exports, Protocol, TelemetryError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

    from gavel_server.process.telemetry.tracing import Tracing

SERVICE_NAME_DEFAULT: Final = "gavel"
# A stopping server waits this long for what is left to be exported.
FLUSH_SECONDS_MAX: Final = 5.0
_SDK_LOGGER: Final = "opentelemetry"

_LOG: Final = structlog.get_logger(__name__)


class Export:
    """A running export. `tracing` is None if traces are not exported. Call `stop` at the end."""

    def __init__(self, tracing: Tracing | None = None, shutdowns: Sequence[Callable[[], Any]] = ()) -> None:
        self.tracing: Final = tracing
        self._shutdowns: Final = shutdowns

    async def stop(self) -> None:
        """Export what is left, for FLUSH_SECONDS_MAX at most: a collector that does not answer must not hold up the server's end."""
        if not self._shutdowns:
            return
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def shut_down() -> None:
            for shutdown in self._shutdowns:
                try:
                    shutdown()
                except Exception as error:  # noqa: BLE001  # the server ends in any case
                    _LOG.warning("telemetry.problem", problem="the last traces or metrics were not exported", error=type(error).__name__)
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), FLUSH_SECONDS_MAX)
        except TimeoutError:
            _LOG.warning("telemetry.problem", problem=f"the last traces or metrics were not exported within {FLUSH_SECONDS_MAX:.0f} s")


def start_export(exports: Exports) -> Export:
    """Begin to export. Raises TelemetryError if the SDK is missing or refuses its settings."""
    if not exports.needs_sdk:
        return Export()
    _quote_no_values()
    try:
        return _start(exports)
    except ImportError as error:
        raise TelemetryError(
            "OTEL_* variables ask for traces or metrics, but OpenTelemetry is not installed: install gavel-arbiter[telemetry], or unset "
            "OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER and OTEL_EXPORTER_OTLP_ENDPOINT"
        ) from error
    except ValueError as error:
        # The message may quote a variable, and headers hold tokens.
        raise TelemetryError("OpenTelemetry refuses the values of OTEL_* variables; check numbers, endpoints and certificates") from error


def _start(exports: Exports) -> Export:
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource, get_aggregated_resources

    defaults = Resource({"service.name": SERVICE_NAME_DEFAULT, "service.version": version("gavel-arbiter")})
    resource = get_aggregated_resources([OTELResourceDetector()], defaults)
    shutdowns: list[Callable[[], Any]] = []
    tracing = None
    if exports.traces:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from gavel_server.process.telemetry.tracing import Tracing

        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        for name in exports.traces:
            tracers.add_span_processor(BatchSpanProcessor(_span_exporter(name, exports.traces_protocol)))
        shutdowns.append(tracers.shutdown)
        tracing = Tracing(tracers.get_tracer("gavel"))
    if exports.metrics:
        shutdowns.append(_start_metrics(exports, resource))
    metrics = [*exports.metrics, *(["prometheus"] if exports.prometheus else [])]
    _LOG.info("telemetry.started", traces=list(exports.traces), metrics=metrics)
    return Export(tracing, shutdowns)


def _start_metrics(exports: Exports, resource: Resource) -> Callable[[], Any]:
    import time

    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    from gavel_server.process.telemetry.registry_metrics import RegistryExporter

    readers = [
        PeriodicExportingMetricReader(RegistryExporter(_metric_exporter(name, exports.metrics_protocol), REGISTRY, resource))
        for name in exports.metrics
    ]
    meters = MeterProvider(readers, resource, shutdown_on_exit=False)
    began = time.monotonic()

    def uptime(_: CallbackOptions) -> list[Observation]:
        return [Observation(time.monotonic() - began)]

    # The SDK exports nothing, not even the registry, unless it has an instrument of its own.
    meters.get_meter("gavel").create_observable_gauge("process.uptime", [uptime], "s", "The time the process has been running.")
    return meters.shutdown


def _span_exporter(name: str, protocol: Protocol) -> SpanExporter:
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter

    return HttpSpanExporter()


def _metric_exporter(name: str, protocol: Protocol) -> MetricExporter:
    if name == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        return ConsoleMetricExporter()
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        return OTLPMetricExporter()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetricExporter

    return HttpMetricExporter()


class _Problems(logging.Handler):
    """Logs the SDK's warnings without the values in them: they may be headers with tokens, or a collector's text."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a warning's template, with numbers and names of statuses alone filled in. A text without arguments may hold anything."""
        problem = "a warning, which is not quoted: it may hold values of variables"
        if isinstance(record.args, tuple) and record.args:
            values = tuple(value if isinstance(value, int | float | Enum) else "…" for value in record.args)
            with suppress(TypeError, ValueError):
                problem = str(record.msg) % values
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        _LOG.warning("telemetry.problem", source=record.name, problem=problem, error=error)


def _quote_no_values() -> None:
    logger = logging.getLogger(_SDK_LOGGER)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    logger.handlers[:] = [_Problems()]
