"""Requests that are small on the wire and large in memory, on both transports: refused before they cost anything."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from gavel.v1 import decision_pb2
from gavel.v1.arbitration_service_pb2 import (
    BatchSubmitProposalsRequest,
    BatchSubmitProposalsResponse,
    StreamProposalsRequest,
    StreamProposalsResponse,
    SubmitProposalRequest,
    SubmitProposalResponse,
)
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelError, SyncGavelClient, fact_envelope
from gavel_rules.limits import BATCH_BYTES_MAX, VIOLATIONS_MAX
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.e2e.world import DEPOT, POLICY, Server, proposal, rule_set

CALL_SECONDS_MAX = 60.0
# Of a request of 16 MB there are a few copies; millions of objects would take far more.
GROWTH_KIB_MAX = 150 * 1024
# What a gRPC client accepts by default.
ANSWER_BYTES_MAX = 4 * 1024 * 1024
UNKNOWN = b"\xc0\x3e\x05\xca\x3e\x03abc"  # fields 1000 and 1001


class Target(NamedTuple):
    """A server that is sent raw bytes, and a fact that proposals may rest on."""

    server: Server
    channel: grpc.Channel
    client: SyncGavelClient
    bus: str
    fact: Envelope

    def call(self, method: str, data: bytes) -> bytes:
        """Send bytes, compressed."""
        rpc: Any = self.channel.unary_unary(f"/gavel.v1.{method}")
        answer: bytes = rpc(data, timeout=CALL_SECONDS_MAX, compression=grpc.Compression.Gzip)
        return answer

    def proposal(self) -> Envelope:
        """Return a proposal that is approved."""
        return proposal(self.fact)


@pytest.fixture(params=[0, 1], ids=["front", "no-front"])
def target(pair: tuple[Server, Server], request: pytest.FixtureRequest) -> Iterator[Target]:
    """A bus of its own, on a server with a front and on one without."""
    bus = f"limits-{uuid.uuid4().hex[:12]}"
    server = pair[request.param]
    with grpc.insecure_channel(server.address) as channel, SyncGavelClient(channel, bus=bus) as client:
        client.deploy_rule_set(rule_set())
        client.activate_rule_set(POLICY, 1)
        fact = client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")).envelope
        yield Target(server, channel, client, bus, fact)


def _peak_kib(server: Server) -> int:
    status = Path(f"/proc/{server.running.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


MIB = 1024 * 1024
BOMBS = [
    pytest.param("ArbitrationService/BatchSubmitProposals", b"\x12\x00" * (8 * MIB - 1), id="16-mib-of-envelopes", marks=pytest.mark.long),
    pytest.param("ArbitrationService/BatchSubmitProposals", b"\x12\x00" * (2 * MIB), id="4-mib-of-envelopes"),
    pytest.param("ArbitrationService/BatchPreflight", b"\x12\x00" * (2 * MIB), id="preflight"),
    pytest.param("EventService/BatchPublishEvents", b"\x12\x00" * (2 * MIB), id="publish"),
    pytest.param("EventService/ListEvents", _field(2, b"\x01" * (16 * MIB - 10)), id="categories"),
    pytest.param("EventService/ListEvents", b"\x10\x01" * 30_000, id="unpacked-categories"),
    pytest.param("EventService/ListEvents", _field(2, b"\x7f" * 60_000), id="unknown-categories"),
    pytest.param("ArbitrationService/SubmitProposal", _field(2, _field(21, b"\x42\x00" * (MIB // 2 - 10))), id="required-facts"),
    pytest.param("ArbitrationService/SubmitProposal", _field(2, _field(21, b"\x42\x00" * 30_000)), id="60-kb-of-required-facts"),
    pytest.param("ArbitrationService/SubmitProposal", _field(2, _field(21, b"\x4a\x00" * 30_000)), id="60-kb-of-citations"),
]


@pytest.mark.parametrize(("method", "data"), BOMBS)
def test_bombs(target: Target, method: str, data: bytes) -> None:
    """A request with far too many items is INVALID_ARGUMENT with few violations, and costs little memory."""
    Path(f"/proc/{target.server.running.pid}/clear_refs").write_text("5")
    before_kib = _peak_kib(target.server)
    with pytest.raises(grpc.RpcError) as refused:
        target.call(method, data)
    error = GavelError.from_rpc_error(refused.value)
    assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") == (error.code, error.reason)
    assert 1 <= len(error.violations) <= VIOLATIONS_MAX
    assert _peak_kib(target.server) - before_kib < GROWTH_KIB_MAX


def test_subscription_bombs(target: Target) -> None:
    """A subscription with far too many categories is refused in the same way."""
    rpc: Any = target.channel.unary_stream("/gavel.v1.EventService/SubscribeEvents")
    for data in (_field(3, b"\x01" * (16 * MIB - 10)), _field(3, b"\x7f" * 60_000)):
        with pytest.raises(grpc.RpcError) as refused:
            list(rpc(data, timeout=CALL_SECONDS_MAX, compression=grpc.Compression.Gzip))
        assert grpc.StatusCode.INVALID_ARGUMENT == GavelError.from_rpc_error(refused.value).code


def _bad_proposal(target: Target, size_bytes: int) -> Envelope:
    """Return a proposal with a long name around many bad values: each violation would quote the name."""
    envelope = target.proposal()
    envelope.ClearField("event_id")
    items = [Value(string_value="\0" * 20)] * (size_bytes // 48)
    bad = Struct(fields={"n" * (size_bytes // 2): Value(list_value=ListValue(values=items))})
    envelope.proposal.params.CopyFrom(bad)
    return envelope


def test_batches_of_bad_items(target: Target) -> None:
    """A batch of 4 MB of bad items is answered within what a client accepts, each item with its violations."""
    batch = BatchSubmitProposalsRequest(bus=target.bus, envelopes=[_bad_proposal(target, 7_500)] * 490)
    assert BATCH_BYTES_MAX * 0.8 < batch.ByteSize() <= BATCH_BYTES_MAX
    answer = target.call("ArbitrationService/BatchSubmitProposals", batch.SerializeToString())
    assert len(answer) < ANSWER_BYTES_MAX
    errors = [GavelError.from_status(result.error) for result in BatchSubmitProposalsResponse.FromString(answer).results]
    assert [grpc.StatusCode.INVALID_ARGUMENT] * 490 == [error.code for error in errors]
    assert errors[0].violations[-1].description.endswith("more violations, which this answer has no room for")


def test_large_items_of_a_stream(target: Target) -> None:
    """In a stream of proposals an item that is too large or bad is answered by itself, and the others are decided."""
    too_large = target.proposal()
    too_large.event_name = "X" * (2 * MIB)
    requests: list[Message] = [
        StreamProposalsRequest(request_id="bad", bus=target.bus, envelope=_bad_proposal(target, 100_000)),
        StreamProposalsRequest(request_id="large", bus=target.bus, envelope=too_large),
        StreamProposalsRequest(request_id="good", bus=target.bus, envelope=target.proposal()),
    ]
    rpc: Any = target.channel.stream_stream("/gavel.v1.ArbitrationService/StreamProposals")
    answers = {}
    for data in rpc(iter([request.SerializeToString() for request in requests]), timeout=CALL_SECONDS_MAX):
        assert len(data) < 16 * 1024
        response = StreamProposalsResponse.FromString(data)
        answers[response.request_id] = response
    assert {"bad", "large", "good"} == {*answers}
    for name in ("bad", "large"):
        assert grpc.StatusCode.INVALID_ARGUMENT == GavelError.from_status(answers[name].error).code
    assert decision_pb2.OUTCOME_APPROVED == answers["good"].decision.decision.outcome


def test_unknown_fields_are_not_stored(target: Target) -> None:
    """Unknown fields are discarded at every depth: the log does not have them, and a repetition without them gets the same answer."""
    plain = target.proposal()
    envelope = plain.SerializeToString()
    within = Envelope(proposal=plain.proposal)
    padded = envelope + UNKNOWN + _field(10, b"\x4a\x01x" + UNKNOWN) + _field(21, UNKNOWN + _field(2, UNKNOWN) + b"\x82\x01\x00")
    data = SubmitProposalRequest(bus=target.bus).SerializeToString() + _field(2, padded) + UNKNOWN
    decision = SubmitProposalResponse.FromString(target.call("ArbitrationService/SubmitProposal", data)).decision
    assert decision_pb2.OUTCOME_APPROVED == decision.decision.outcome

    stored = target.client.get_event(event_id=plain.event_id).envelope
    assert within.proposal == stored.proposal
    for message in (stored, stored.producer, stored.proposal, stored.proposal.params):
        assert 0 == len(UnknownFieldSet(message))
    assert decision == target.client.submit_proposal(plain).decision

    publish = fact_envelope("parcel/2", DEPOT, key="parcel.status", value="ready")
    data = _field(1, target.bus.encode()) + _field(2, publish.SerializeToString() + UNKNOWN + _field(20, _field(2, UNKNOWN) + UNKNOWN))
    target.call("EventService/PublishEvent", data)
    stored = target.client.get_event(event_id=publish.event_id).envelope
    for of_fact in (stored, stored.fact, stored.fact.value):
        assert 0 == len(UnknownFieldSet(of_fact))
