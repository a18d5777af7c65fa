"""Metrics of a running server: what is exported, under which names, and what never is."""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from gavel.v1.common_pb2 import Producer
from gavel.v1.execution_service_pb2 import ExecutionStarted
from gavel.v1.fact_pb2 import REVIEW_VERDICT_REJECT
from ruamel.yaml import YAML

from tests.e2e.telemetry.calls import SOON, TRACEPARENT, decide, prepare
from tests.e2e.telemetry.otlp import Collector
from tests.e2e.world import COURIER, Server, approve, open_bus, poll, proposal, publish_status, rule_set, run_servers
from tests.support.fronts import ANY_FRONT
from tests.support.paths import ROOT

MONITORING = ROOT / "docs/monitoring"
NAME = re.compile(r"\b(?:gavel|rpc_server)_[a-z_]+\b")
LOOK = "  - {id: heavy, action: parcel.send, priority: 900, when: params.weight > 40, effect: review, reason_code: HEAVY}\n"
PLANTED = ("planted-token", "planted-header", "planted-status")


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


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


def sample(port: int, series: str) -> float:
    """Return the value of a series that the server shows; NaN if it shows none."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        match = re.search(rf"^{re.escape(series)} (\S+)$", answer.read().decode(), flags=re.MULTILINE)
    return float(match[1]) if match else math.nan


@pytest.mark.long
async def test_lapsed_leases_and_waiting_reviews(tmp_path: Path) -> None:
    """A lease that lapses without a report counts once; an open review counts and ages, until a person resolves it."""
    port = free_port()
    server = Server(tmp_path, options=["--front", ANY_FRONT, "--metrics", f"127.0.0.1:{port}"])

    async def until(series: str, holds: Callable[[float], bool]) -> float:
        async def value() -> float | None:
            number = sample(port, series)
            return number if holds(number) else None

        return await poll(value, lambda: f"{series} is {sample(port, series)}")

    lapses, reviews, age = (
        f'gavel_{name}{{bus="default"}}' for name in ("lease_lapses_total", "open_reviews", "oldest_review_age_seconds")
    )
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client, rule_set() + LOOK)
            approval = await approve(client, "parcel/lapse")
            assert (await client.begin_execution(approval.event_id, producer=COURIER, lease_ms=100)).HasField("started")
            other = Producer(type=COURIER.type, id="courier-2")

            async def begin() -> ExecutionStarted | None:
                answer = await client.begin_execution(approval.event_id, producer=other, lease_ms=60_000)
                return answer.started if answer.HasField("started") else None

            assert 2 == (await poll(begin)).attempt
            await until(lapses, lambda value: value == 1)
            await until(age, lambda value: value == 0)
            assert 0 == sample(port, reviews)
            fact = (await publish_status(client, ["parcel/heavy"]))["parcel/heavy"]
            review = (await client.submit_proposal(proposal(fact, 45.0))).decision
            first = await until(age, lambda value: value > 0)
            assert 1 == sample(port, reviews)
            await until(age, lambda value: value > first)
            await client.resolve_review(review.event_id, REVIEW_VERDICT_REJECT, reviewer="kim", reason="too heavy")
            await until(age, lambda value: value == 0)
            assert [1, 0] == [sample(port, lapses), sample(port, reviews)]


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
