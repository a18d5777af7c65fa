"""Errors of calls: every failure is a status of the error table with its details."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from gavel.v1.arbitration_service_pb2 import BatchPreflightRequest, BatchSubmitProposalsRequest
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_UNSPECIFIED
from gavel.v1.event_service_pb2 import BatchPublishEventsRequest, GetEventRequest, PublishEventRequest
from gavel.v1.projection_service_pb2 import GetStatusRequest
from gavel_rules.errors import NetworkFaultError
from gavel_rules.language.engines.rete import Network
from gavel_rules.limits import VIOLATIONS_MAX
from gavel_server.log import LogCorruptError, LogUnavailableError
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.integration.services.world import AGENT, World, fact, proposal, raw, refusal

UNDECODABLE = [
    b"\xff\xff",  # no field
    b"\x0a\x03\xed\xa0\x80",  # a lone surrogate in `bus`
    b"\x0a\x05ab",  # a string that ends early
]
METHODS = [
    "EventService/PublishEvent",
    "EventService/BatchPublishEvents",
    "EventService/ListEvents",
    "ExecutionService/BeginExecution",
    "RuleSetService/DeployRuleSet",
    "ProjectionService/GetProjection",
    "ToolService/BindTool",
    "ArbitrationService/SubmitProposal",
    "ArbitrationService/BatchSubmitProposals",
    "ArbitrationService/Preflight",
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("data", UNDECODABLE)
async def test_undecodable_requests(world: World, method: str, data: bytes) -> None:
    """Bytes that are not a request are INVALID_ARGUMENT on every service, and append nothing."""
    problem = await refusal(world.call_bytes(method, data))

    assert (problem.code, problem.reason, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", ["request"])
    assert await world.head() == 1


@pytest.mark.parametrize("method", ["EventService/SubscribeEvents", "ReplayService/VerifyReplay"])
async def test_undecodable_requests_of_streams(world: World, method: str) -> None:
    """The same holds for methods that answer with a stream."""

    async def read() -> None:
        call: Any = world.channel.unary_stream(f"/gavel.v1.{method}")
        async for _ in call(b"\xff\xff"):
            pass

    problem = await refusal(read())

    assert (problem.code, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["request"])


async def test_unknown_fields_are_accepted(world: World) -> None:
    """A field of a newer contract does not make a request malformed."""
    request = PublishEventRequest(envelope=fact("order/1", "order.status", "paid"))

    await world.call_bytes("EventService/PublishEvent", request.SerializeToString() + b"\xf8\x3f\x01")

    assert await world.head() == 2


async def test_very_many_violations_fit_the_trailers(world: World) -> None:
    """An error with more violations than fit into a client's header limit still arrives and says how many of the first 100 are missing."""
    params = {f"key-{number}": "bad\0" for number in range(2000)}
    envelope = raw(subject="order/1", producer=AGENT, agent_diagnostic={"kind": "X", "attributes": params})

    problem = await refusal(world.publish(envelope))

    assert (problem.code, problem.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert problem.fields[0].startswith("envelope.agent_diagnostic.attributes.key-")
    left_out = VIOLATIONS_MAX - (len(problem.fields) - 1)
    assert f"{left_out} more violations" in problem.descriptions[-1]


async def test_very_long_violations_fit_the_trailers(world: World) -> None:
    """A violation whose path is as long as a request still arrives, cut."""
    envelope = raw(subject="order/1", producer=AGENT, agent_diagnostic={"kind": "X", "attributes": {"ü" * 30_000: "bad\0"}})

    problem = await refusal(world.publish(envelope))

    assert (problem.code, problem.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert problem.fields[0].endswith("…")


async def test_unexpected_error_is_internal_with_the_id_of_its_log_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception is INTERNAL with an id; the server's log has the id and the traceback, the caller no internals."""

    async def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(world.buses, "existing", broken)
    with capture_logs() as lines:
        problem = await refusal(world.projections.GetStatus(GetStatusRequest()))

    assert (problem.code, problem.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "secret" not in problem.message
    line = next(line for line in lines if line["event"] == "call.failed")
    assert line["error_id"] in problem.message
    assert isinstance(line["exc_info"], RuntimeError)


@pytest.mark.parametrize("method", ["BatchSubmitProposals", "BatchPreflight"])
async def test_broken_engine_fails_one_proposal(world: World, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """A proposal on which an engine breaks is INTERNAL; the others of its batch are decided."""
    await world.activate()
    subjects = [f"order/{number}" for number in range(3)]
    facts = [await world.publish(fact(subject, "order.status", "delivered")) for subject in subjects]
    match = Network.match
    calls = 0

    def broken(network: Network, text: str) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise NetworkFaultError("the engine is gone")
        return match(network, text)

    monkeypatch.setattr(Network, "match", broken)
    envelopes = [proposal(subject, amount=10.0, cites=[event]) for subject, event in zip(subjects, facts, strict=True)]
    if method == "BatchSubmitProposals":
        results = (await world.arbitration.BatchSubmitProposals(BatchSubmitProposalsRequest(envelopes=envelopes))).results
        outcomes = [one.decision.decision.outcome for one in results]
        errors = [one.error.code for one in results]
    else:
        previews = (await world.arbitration.BatchPreflight(BatchPreflightRequest(envelopes=envelopes))).results
        outcomes = [one.decision.outcome for one in previews]
        errors = [one.error.code for one in previews]
    assert [OUTCOME_APPROVED, OUTCOME_UNSPECIFIED, OUTCOME_APPROVED] == outcomes
    assert [0, grpc.StatusCode.INTERNAL.value[0], 0] == errors


@pytest.mark.parametrize("error", [LogUnavailableError("cannot reach Redis"), LogCorruptError("a hole")])
async def test_a_log_that_cannot_be_read_is_unavailable(world: World, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A read that the log refuses is UNAVAILABLE / LOG_UNAVAILABLE with a retry delay."""

    async def refuse(numbers: object) -> None:
        raise error

    monkeypatch.setattr((await world.buses.open("")).log, "read_many", refuse)
    problem = await refusal(world.events.GetEvent(GetEventRequest(sequence_number=1)))

    assert (problem.code, problem.reason, problem.message) == (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", str(error))
    assert problem.retry_after_ms > 0


async def test_refusals_are_counted_and_logged(world: World) -> None:
    """A refused publication is counted by method and reason, alone or in a batch, and logged without its payload."""
    labels = {"method": "gavel.v1.EventService/PublishEvent", "reason": "CATEGORY_NOT_ALLOWED"}
    in_batch = {"method": "gavel.v1.EventService/BatchPublishEvents", "reason": "CATEGORY_NOT_ALLOWED"}
    before = [REGISTRY.get_sample_value("gavel_calls_refused_total", labels) or 0.0 for labels in (labels, in_batch)]
    forged = raw(subject="order/1", producer=AGENT, fact={"key": "order.status", "value": {"string_value": "hush"}})

    with capture_logs() as lines:
        await refusal(world.publish(forged))
        await world.events.BatchPublishEvents(BatchPublishEventsRequest(envelopes=[forged, forged]))

    after = [REGISTRY.get_sample_value("gavel_calls_refused_total", labels) or 0.0 for labels in (labels, in_batch)]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1.0, 2.0]
    assert [line["reason"] for line in lines if line["event"] == "call.refused"] == ["CATEGORY_NOT_ALLOWED"] * 3
    assert "hush" not in json.dumps(lines, default=str)
