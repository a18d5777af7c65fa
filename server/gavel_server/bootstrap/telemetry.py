"""The telemetry of a server: the metrics that it serves, and the traces and metrics that it exports."""

from __future__ import annotations

import os
from typing import NamedTuple

from gavel_server.bootstrap.errors import ServeError
from gavel_server.config import Settings, is_local
from gavel_server.process import metrics
from gavel_server.process.telemetry.export import Export, start_export
from gavel_server.process.telemetry.settings import TelemetryError, read_exports
from gavel_server.rpc.telemetry.call_observer import CallObserver


class Telemetry(NamedTuple):
    """The exports, and the observer of calls; None if nobody would read its measurements."""

    export: Export
    observer: CallObserver | None


def start_telemetry(settings: Settings) -> Telemetry:
    """Serve metrics, and export traces and metrics, as settings and OTEL_* variables ask for. Raises ServeError."""
    try:
        exports = read_exports(os.environ)
        if exports.prometheus and not (settings.allow_unauthenticated_network or settings.container or is_local(exports.prometheus)):
            raise TelemetryError(
                f"OTEL_EXPORTER_PROMETHEUS_HOST and _PORT are {exports.prometheus}, which other machines may reach: any caller could read "
                "the metrics. Serve them on localhost, or, if the network is protected by other means, give --allow-unauthenticated-network"
            )
        export = start_export(exports)
    except TelemetryError as error:
        raise ServeError(str(error)) from error
    listens = [address for address in (settings.metrics, exports.prometheus) if address]
    for address in listens:
        try:
            metrics.serve(address)
        except OSError as error:
            raise ServeError(f"cannot serve metrics on {address}: {error.strerror}") from error
    is_observed = bool(listens) or exports.needs_sdk
    return Telemetry(export, CallObserver(export.tracing) if is_observed else None)
