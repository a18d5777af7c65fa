"""The exports that the environment variables of OpenTelemetry ask for.

Nothing is exported unless a variable names an exporter or an endpoint. The SDK reads the other variables itself: sampler, resource,
headers, intervals and limits. See https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Protocol = Literal["grpc", "http/protobuf"]

TRACE_EXPORTERS: Final = ("otlp", "console", "none")
METRIC_EXPORTERS: Final = ("otlp", "prometheus", "console", "none")
PROTOCOLS: Final[tuple[Protocol, ...]] = ("grpc", "http/protobuf")
# The address of the exporter "prometheus", if no variable names another.
PROMETHEUS_HOST_DEFAULT: Final = "localhost"
PROMETHEUS_PORT_DEFAULT: Final = "9464"


class TelemetryError(Exception):
    """Traces or metrics cannot be exported as configured; the message says what to do."""


class Exports(NamedTuple):
    """The exporters of each signal, and the protocol of OTLP for each. `prometheus` is HOST:PORT, or "" if it is not asked for."""

    traces: tuple[str, ...]
    metrics: tuple[str, ...]
    traces_protocol: Protocol
    metrics_protocol: Protocol
    prometheus: str

    @property
    def needs_sdk(self) -> bool:
        """Whether something is exported for which the SDK is needed."""
        return bool(self.traces or self.metrics)


NO_EXPORTS: Final = Exports((), (), "grpc", "grpc", "")


def read_exports(environment: Mapping[str, str]) -> Exports:
    """Return the exports that the environment asks for. Raises TelemetryError."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return NO_EXPORTS
    metrics = _exporters(environment, "METRICS", METRIC_EXPORTERS)
    host = environment.get("OTEL_EXPORTER_PROMETHEUS_HOST") or PROMETHEUS_HOST_DEFAULT
    port = environment.get("OTEL_EXPORTER_PROMETHEUS_PORT") or PROMETHEUS_PORT_DEFAULT
    if "prometheus" in metrics and not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise TelemetryError(f"OTEL_EXPORTER_PROMETHEUS_PORT is {port!r}; give a port from 0 to 65535")
    return Exports(
        _exporters(environment, "TRACES", TRACE_EXPORTERS),
        tuple(exporter for exporter in metrics if exporter != "prometheus"),
        _protocol(environment, "TRACES"),
        _protocol(environment, "METRICS"),
        f"{host}:{port}" if "prometheus" in metrics else "",
    )


def _exporters(environment: Mapping[str, str], signal: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the exporters of a signal; by default OTLP if there is an endpoint for it, else none."""
    name = f"OTEL_{signal}_EXPORTER"
    exporters = [exporter.strip() for exporter in environment.get(name, "").split(",") if exporter.strip()]
    if not exporters:
        has_endpoint = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT") or environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
        return ("otlp",) if has_endpoint else ()
    unknown = sorted({*exporters} - {*known})
    if unknown:
        raise TelemetryError(f"{name} names {', '.join(unknown)}; Gavel has the exporters {', '.join(known)}")
    return tuple(dict.fromkeys(exporter for exporter in exporters if exporter != "none"))


def _protocol(environment: Mapping[str, str], signal: str) -> Protocol:
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environment.get(name, "").strip()
        if protocol and protocol not in PROTOCOLS:
            raise TelemetryError(f"{name} is {protocol}; use {' or '.join(PROTOCOLS)}")
        if protocol:
            return "grpc" if protocol == "grpc" else "http/protobuf"
    return "grpc"  # the default of OpenTelemetry's Python SDK
