"""Traces of a running server, received by a collector, on both transports."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.telemetry.calls import PARENT_ID, PUBLISH, SOON, SUBMIT, TRACE_ID, TRACEPARENT, decide, prepare
from tests.e2e.telemetry.otlp import Collector
from tests.e2e.world import Server, run_servers
from tests.support.fronts import TRANSPORTS

BELOW = {"gavel.queue", "gavel.core", "gavel.append"}


def attributes(span: Span) -> dict[str, Any]:
    """Return a span's attributes."""
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes}


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("front", TRANSPORTS)
def test_one_trace_from_the_caller_to_the_append(tmp_path: Path, collector: Collector, front: str, protocol: str) -> None:
    """A call continues its caller's trace: the server's span is below the caller's, and front, queue, core and append are below it."""
    endpoint = collector.grpc_endpoint if protocol == "grpc" else collector.http_endpoint
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, **SOON}
    server = Server(tmp_path, options=["--front", front], environment=environment)
    with run_servers(server):
        asyncio.run(prepare(server))
        assert asyncio.run(decide(server, (("traceparent", TRACEPARENT),))) == TRACEPARENT
        assert server.terminate() == 0
    for method in (SUBMIT, PUBLISH):
        (call,) = [span for span in collector.spans() if span.name == method]
        assert (TRACE_ID, PARENT_ID, Span.SPAN_KIND_SERVER) == (call.trace_id.hex(), call.parent_span_id.hex(), call.kind)
        call_attributes = attributes(call)
        assert ("grpc", *method.split("/"), 0) == tuple(
            call_attributes[f"rpc.{name}"] for name in ("system", "service", "method", "grpc.status_code")
        )
        assert call_attributes["gavel.transport"] == ("native" if front == "native" else "grpc.aio")
        below = {span.name: span for span in collector.spans() if span.parent_span_id == call.span_id}
        assert {*below} == (BELOW | {"gavel.front"} if front == "native" else BELOW)
        assert {TRACE_ID} == {span.trace_id.hex() for span in below.values()}
        for span in below.values():
            assert call.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano <= call.end_time_unix_nano
        assert below["gavel.queue"].end_time_unix_nano <= below["gavel.core"].start_time_unix_nano
        assert below["gavel.core"].end_time_unix_nano <= below["gavel.append"].start_time_unix_nano
    cores = [attributes(span) for span in collector.spans() if span.name == "gavel.core"]
    assert ("SubmitProposal", "APPROVED") in [(core["gavel.command"], core.get("gavel.outcome")) for core in cores]


@pytest.mark.parametrize("front", TRANSPORTS)
def test_callers_and_the_sampler_choose_what_is_traced(tmp_path: Path, collector: Collector, front: str) -> None:
    """With parentbased_always_off a call is traced if its caller samples, and only then; the context is recorded in any case."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc_endpoint, "OTEL_TRACES_SAMPLER": "parentbased_always_off", **SOON}
    server = Server(tmp_path, options=["--front", front], environment=environment)
    unsampled = f"00-{'1' * 32}-{PARENT_ID}-00"
    with run_servers(server):
        asyncio.run(prepare(server))
        assert asyncio.run(decide(server, (("traceparent", unsampled),))) == unsampled
        assert asyncio.run(decide(server, (), parcel="parcel/2")) == ""
        assert asyncio.run(decide(server, (("traceparent", TRACEPARENT),), parcel="parcel/3")) == TRACEPARENT
        assert server.terminate() == 0
    assert {SUBMIT, PUBLISH} | BELOW <= {span.name for span in collector.spans()}
    assert {TRACE_ID} == {span.trace_id.hex() for span in collector.spans()}


def test_nothing_is_exported_unless_it_is_configured(tmp_path: Path, collector: Collector) -> None:
    """Without OTEL_* variables, or with OTEL_SDK_DISABLED, nothing is exported, and the context is recorded all the same."""
    disabled = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc_endpoint, "OTEL_SDK_DISABLED": "true"}
    servers = [Server(tmp_path / "plain"), Server(tmp_path / "disabled", environment=disabled)]
    with run_servers(*servers):
        for server in servers:
            asyncio.run(prepare(server))
            assert asyncio.run(decide(server, (("traceparent", TRACEPARENT),))) == TRACEPARENT
            assert server.terminate() == 0
            assert "telemetry" not in server.log().replace(str(tmp_path), "")
    assert collector.received() == b""


def test_a_collector_that_does_not_answer_stops_nothing(tmp_path: Path) -> None:
    """If the collector cannot be reached, calls are answered, the problem is logged without values, and the server stops."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer planted-secret",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        **SOON,
    }
    server = Server(tmp_path, environment=environment)
    with run_servers(server):
        asyncio.run(prepare(server))
        assert asyncio.run(decide(server, (("traceparent", TRACEPARENT),))) == TRACEPARENT
        assert server.terminate() == 0
    assert "telemetry.problem" in server.log()
    assert "planted-secret" not in server.log()
