"""Metrics of a running server: what is exported, under which names, and what never is."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from ruamel.yaml import YAML

from tests.e2e.telemetry.calls import SOON, TRACEPARENT, decide, prepare
from tests.e2e.telemetry.otlp import Collector
from tests.e2e.world import Server, run_servers
from tests.support.fronts import ANY_FRONT
from tests.support.paths import ROOT

MONITORING = ROOT / "docs/monitoring"
NAME = re.compile(r"\b(?:gavel|rpc_server)_[a-z_]+\b")
PLANTED = ("planted-token", "planted-header", "planted-status")


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def expressions() -> Iterator[str]:
    """Yield every expression of the alert rules and of the dashboard."""
    for group in YAML(typ="safe").load(MONITORING / "alerts.yaml")["groups"]:
        for rule in group["rules"]:
            assert {"alert", "expr", "labels", "annotations"} <= {*rule}
            assert {"summary", "action"} == {*rule["annotations"]}
            yield rule["expr"]
    dashboard: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query")


def test_secrets_and_metrics(tmp_path: Path, collector: Collector) -> None:
    """Prometheus and OTLP have the same metrics, all that dashboard and alerts name, and nothing has a token or a payload."""
    port = free_port()
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc_endpoint,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-collector-token=planted-header",
        **SOON,
    }
    server = Server(tmp_path, options=["--front", ANY_FRONT, "--metrics", f"127.0.0.1:{port}"], environment=environment)
    metadata = (("traceparent", TRACEPARENT), ("authorization", "Bearer planted-token"))
    with run_servers(server):
        asyncio.run(prepare(server))
        asyncio.run(decide(server, metadata, status="planted-status"))
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        assert server.terminate() == 0
    families = set(re.findall(r"^# TYPE (\S+) ", text, flags=re.MULTILINE))
    named = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(named) > 20
    assert {name for name in named if name not in families and re.sub(r"_(bucket|count|sum)$", "", name) not in families} == set()
    assert 'rpc_service="gavel.v1.ArbitrationService"' in text
    assert re.search(r'gavel_decision_seconds_count\{bus="default",outcome="[A-Z_]+"\} [1-9]', text)
    exported = collector.last_metrics()
    assert {"rpc.server.duration", "gavel_decision_seconds", "gavel_queue_seconds", "gavel_append_seconds", "gavel_events"} <= {*exported}
    points = exported["rpc.server.duration"].histogram.data_points
    assert all(sum(point.bucket_counts) == point.count for point in points)
    assert "ms" == exported["rpc.server.duration"].unit
    # The collector's own token reaches the collector alone, as a header.
    assert any(headers.get("x-collector-token") == "planted-header" for headers in collector.headers)
    for planted in PLANTED:
        assert planted.encode() not in collector.received()
        assert planted not in text + server.log()


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
        ({"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_HOST": "0.0.0.0"}, "OTEL_EXPORTER_PROMETHEUS_HOST"),  # noqa: S104
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path: Path, environment: dict[str, str], problem: str) -> None:
    """A server that is asked for an export that it does not have does not start, and names the variable."""
    server = Server(tmp_path, environment=environment)
    server.launch()
    assert server.wait() != 0
    assert problem in server.log()
