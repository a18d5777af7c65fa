"""The metrics of the Prometheus registry in the form of OpenTelemetry's SDK, so that there is one set of metrics for both.

Names stay, without the suffix "_total" of counters. RPC metrics get the dotted names of the semantic conventions. Import this only if
metrics are exported over OTLP: the SDK is an extra.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family

from gavel_server.process.telemetry.instruments import RPC_DURATION_NAME

# Not the scope of the SDK's own instruments: the exporters keep only the last of two equal ones.
SCOPE: Final = "gavel.registry"
# Name and unit in the semantic conventions, by the name in the registry.
_RPC_NAMES: Final = {RPC_DURATION_NAME: ("rpc.server.duration", "ms")}
_RPC_ATTRIBUTES: Final = {
    "rpc_system": "rpc.system",
    "rpc_service": "rpc.service",
    "rpc_method": "rpc.method",
    "rpc_grpc_status_code": "rpc.grpc.status_code",
}


class RegistryExporter(MetricExporter):
    """Exports the metrics of a registry, beside those that the SDK has collected itself, through another exporter."""

    def __init__(self, exporter: MetricExporter, registry: CollectorRegistry, resource: Resource) -> None:
        super().__init__()
        self._exporter: Final = exporter
        self._registry: Final = registry
        self._resource: Final = resource
        self._start_ns: Final = time.time_ns()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Export everything."""
        own = ScopeMetrics(InstrumentationScope(SCOPE), registry_metrics(self._registry, self._start_ns, time.time_ns()), "")
        # One entry for the resource: the exporters keep only the last of several equal ones.
        collected = [scope for resource in metrics_data.resource_metrics for scope in resource.scope_metrics]
        data = MetricsData([ResourceMetrics(self._resource, [own, *collected], "")])
        return self._exporter.export(data, timeout_millis=timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Export the metrics that wait."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Close the exporter."""
        self._exporter.shutdown(timeout_millis=timeout_millis, **kwargs)


def registry_metrics(registry: CollectorRegistry, start_ns: int, now_ns: int) -> list[Metric]:
    """Return all metrics of a registry that have data; counters and histograms count since `start_ns`."""
    return [metric for family in registry.collect() if (metric := _metric(family, start_ns, now_ns)) is not None]


def _metric(family: Family, start_ns: int, now_ns: int) -> Metric | None:
    name, unit = _RPC_NAMES.get(family.name, (family.name, ""))
    data: Sum | Gauge | Histogram
    if family.type == "histogram":
        data = Histogram(_histogram_points(family, start_ns, now_ns), AggregationTemporality.CUMULATIVE)
    elif family.type == "counter":
        counts = _number_points(family, family.name + "_total", start_ns, now_ns)
        data = Sum(counts, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(_number_points(family, family.name, start_ns, now_ns))
    return Metric(name, family.documentation, unit, data) if data.data_points else None


def _number_points(family: Family, name: str, start_ns: int, now_ns: int) -> list[NumberDataPoint]:
    return [NumberDataPoint(_attributes(sample.labels), start_ns, now_ns, sample.value) for sample in family.samples if sample.name == name]


def _histogram_points(family: Family, start_ns: int, now_ns: int) -> list[HistogramDataPoint]:
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if sample.name == family.name + "_bucket":
            buckets.setdefault(labels, []).append((float(sample.labels["le"]), int(sample.value)))
        elif sample.name == family.name + "_sum":
            sums[labels] = sample.value
    points = []
    for labels, cumulative in buckets.items():
        counts = [count for _, count in cumulative]
        points.append(
            HistogramDataPoint(
                _attributes(dict(labels)),
                start_ns,
                now_ns,
                counts[-1],
                sums.get(labels, 0.0),
                list(_differences(counts)),
                [bound for bound, _ in cumulative[:-1]],
                # The registry knows neither; NaN would be taken for values.
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
        )
    return points


def _differences(counts: Iterable[int]) -> Iterable[int]:
    before = 0
    for count in counts:
        yield count - before
        before = count


def _attributes(labels: Mapping[str, str]) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {_RPC_ATTRIBUTES.get(name, name): value for name, value in labels.items()}
    if "rpc.grpc.status_code" in attributes:
        attributes["rpc.grpc.status_code"] = int(attributes["rpc.grpc.status_code"])
    return attributes
