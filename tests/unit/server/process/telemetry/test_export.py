"""The start of the export of traces and metrics."""

from __future__ import annotations

from gavel_server.process.telemetry.export import start_export
from gavel_server.process.telemetry.settings import read_exports
from structlog.testing import capture_logs


async def test_the_log_names_every_exporter() -> None:
    """The log says what is exported, Prometheus included, which needs no SDK of its own."""
    environment = {"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "prometheus"}
    with capture_logs() as lines:
        export = start_export(read_exports(environment))
    await export.stop()
    assert [(["console"], ["prometheus"])] == [(line["traces"], line["metrics"]) for line in lines if line["event"] == "telemetry.started"]
