"""The edge between gRPC and the servicers: whatever goes wrong is a status of the error table with its details."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest
from gavel.v1.arbitration_service_pb2 import BatchPreflightRequest, BatchSubmitProposalsRequest
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_UNSPECIFIED
from gavel.v1.event_service_pb2 import BatchPublishEventsRequest, GetEventRequest, PublishEventRequest
from gavel.v1.projection_service_pb2 import GetStatusRequest
from gavel_rules.errors import NetworkFaultError
from gavel_rules.language.network import Network
from gavel_server.log import LogCorruptError, LogUnavailableError
from gavel_server.services import boundary
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
async def test_bytes_that_are_no_message(world: World, method: str, data: bytes) -> None:
    """A request that is no message of the contract is INVALID_ARGUMENT on every service, and appends nothing."""
    heard = await refusal(world.call_bytes(method, data))

    assert (heard.code, heard.reason, heard.fields) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", ["request"])
    assert await world.head() == 1


@pytest.mark.parametrize("method", ["EventService/SubscribeEvents", "ReplayService/VerifyReplay"])
async def test_bytes_that_are_no_message_to_a_stream(world: World, method: str) -> None:
    """The same holds for methods that answer with a stream."""

    async def read() -> None:
        call: Any = world.channel.unary_stream(f"/gavel.v1.{method}")
        async for _ in call(b"\xff\xff"):
            pass

    heard = await refusal(read())

    assert (heard.code, heard.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["request"])


async def test_unknown_fields_are_no_mistake(world: World) -> None:
    """A field of a newer contract does not make a request malformed."""
    request = PublishEventRequest(envelope=fact("order/1", "order.status", "paid"))

    await world.call_bytes("EventService/PublishEvent", request.SerializeToString() + b"\xf8\x3f\x01")

    assert await world.head() == 2


async def test_very_many_violations_fit_the_trailers(world: World) -> None:
    """An error with more violations than a client's header limit still arrives, and says how many are left out."""
    params = {f"key-{number}": "bad\0" for number in range(2000)}
    envelope = raw(subject="order/1", producer=AGENT, agent_diagnostic={"kind": "X", "attributes": params})

    heard = await refusal(world.publish(envelope))

    assert (heard.code, heard.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert heard.fields[0].startswith("envelope.agent_diagnostic.attributes.key-")
    left_out = 2000 - (len(heard.fields) - 1)
    assert f"{left_out} more violations" in heard.descriptions[-1]


async def test_very_long_violations_fit_the_trailers(world: World) -> None:
    """A violation whose path is as long as a request still arrives, cut."""
    envelope = raw(subject="order/1", producer=AGENT, agent_diagnostic={"kind": "X", "attributes": {"ü" * 30_000: "bad\0"}})

    heard = await refusal(world.publish(envelope))

    assert (heard.code, heard.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert heard.fields[0].endswith("…")


async def test_a_bug_is_internal_with_an_id_that_the_log_has(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception is INTERNAL with an id; the server's log has the id and the traceback, the caller no internals."""

    async def broken(name: str) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(world.buses, "get", broken)
    with capture_logs() as lines:
        heard = await refusal(world.projections.GetStatus(GetStatusRequest()))

    assert (heard.code, heard.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "secret" not in heard.message
    line = next(line for line in lines if line["event"] == "call.failed")
    assert line["error_id"] in heard.message
    assert isinstance(line["exc_info"], RuntimeError)


@pytest.mark.parametrize("method", ["BatchSubmitProposals", "BatchPreflight"])
async def test_an_engine_that_breaks_costs_one_proposal(world: World, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The proposal on which an engine breaks is INTERNAL, by itself; those that came with it are decided, or would be."""
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
    envelopes = [proposal(subject, amount=10.0, cites=[known]) for subject, known in zip(subjects, facts, strict=True)]
    if method == "BatchSubmitProposals":
        decided = (await world.arbitration.BatchSubmitProposals(BatchSubmitProposalsRequest(envelopes=envelopes))).results
        outcomes = [one.decision.decision.outcome for one in decided]
        errors = [one.error.code for one in decided]
    else:
        tried = (await world.arbitration.BatchPreflight(BatchPreflightRequest(envelopes=envelopes))).results
        outcomes = [one.decision.outcome for one in tried]
        errors = [one.error.code for one in tried]
    assert [OUTCOME_APPROVED, OUTCOME_UNSPECIFIED, OUTCOME_APPROVED] == outcomes
    assert [0, grpc.StatusCode.INTERNAL.value[0], 0] == errors


@pytest.mark.parametrize("error", [LogUnavailableError("cannot reach Redis"), LogCorruptError("a hole")])
async def test_a_log_that_cannot_be_read_is_unavailable(world: World, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A read that the log refuses is UNAVAILABLE / LOG_UNAVAILABLE with a retry delay."""

    async def refuse(numbers: object) -> None:
        raise error

    monkeypatch.setattr((await world.buses.get("")).log, "read_many", refuse)
    heard = await refusal(world.events.GetEvent(GetEventRequest(sequence_number=1)))

    assert (heard.code, heard.reason, heard.message) == (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", str(error))
    assert heard.retry_after_ms > 0


async def test_a_server_that_answers_nobody_logs_little(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals that speak of the server are gathered: the first is said at once, of the others how many there were; all are counted."""
    labels = {"method": "gavel.v1.EventService/GetEvent", "reason": "LOG_UNAVAILABLE"}
    before = REGISTRY.get_sample_value("gavel_calls_refused_total", labels) or 0.0

    async def refuse(numbers: object) -> None:
        raise LogUnavailableError("cannot reach Redis")

    def said() -> list[int]:
        return [line.get("count", 1) for line in lines if line["event"] == "call.refused"]

    monkeypatch.setattr(boundary, "GATHERED_SECONDS", 0.2)
    monkeypatch.setattr((await world.buses.get("")).log, "read_many", refuse)
    with capture_logs() as lines:
        await asyncio.gather(*(refusal(world.events.GetEvent(GetEventRequest(sequence_number=1))) for _ in range(40)))
        assert said()[:1] == [1]
        while sum(said()) < 40:  # noqa: ASYNC110  # nothing sets an event when a line is logged
            await asyncio.sleep(0.05)
    assert sum(said()) == 40
    assert len(said()) < 20  # two, or a few on a slow machine
    assert REGISTRY.get_sample_value("gavel_calls_refused_total", labels) == before + 40


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
