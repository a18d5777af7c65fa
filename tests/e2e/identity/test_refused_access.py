"""Refused calls as events of a real server, on both transports, and replays of logs whose attestations were changed."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from gavel.v1 import common_pb2
from gavel.v1.arbitration_service_pb2 import PreflightRequest, StreamProposalsRequest, StreamProposalsResponse, SubmitProposalRequest
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import PublishEventRequest, PublishEventResponse
from gavel_client import fact_envelope, proposal_envelope
from gavel_server.front.programs import FrontSetting

from tests.e2e.cli.programs import copy_of, gavel, rewrite
from tests.e2e.identity.granted import GrantedServer
from tests.e2e.identity.world import CALL_SECONDS_MAX, Metadata, bearer
from tests.e2e.world import ACTION, AGENT, DEPOT, run_servers
from tests.support.fronts import ANY_FRONT, TRANSPORTS

SUBMIT = "gavel.v1.ArbitrationService/SubmitProposal"
PREFLIGHT = "gavel.v1.ArbitrationService/Preflight"
STREAM = "gavel.v1.ArbitrationService/StreamProposals"
PUBLISH = "gavel.v1.EventService/PublishEvent"
DEPLOY = "gavel.v1.RuleSetService/DeployRuleSet"
LIST = "gavel.v1.EventService/ListEvents"
FACT = fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")
GRANTS = """
gavel: v1
name: depot
version: 2
grants:
  - {to: [may-publish], may: [publish], produce: {types: [database_snapshot], ids: [depot]}, facts: ["parcel.*"]}
  - {to: [may-propose], may: [propose, preflight], produce: {types: [agent]}, actions: ["other.*"]}
  - {to: [ada], may: [grant, read, replay]}
"""


def proposal() -> Envelope:
    """Return a proposal that cites nothing."""
    return proposal_envelope("parcel/1", AGENT, action_type=ACTION, params={"weight": 1}, max_fact_age_ms=1000, confidence=0.5)


def codes(server: GrantedServer, rpc: str, metadata: Metadata, request: bytes = b"", times: int = 1) -> list[grpc.StatusCode]:
    """Make calls at once on one connection; return how they end."""
    with server.channel() as channel:
        method: Any = channel.unary_unary(f"/{rpc}")
        calls = [method.future(request, metadata=metadata, timeout=CALL_SECONDS_MAX) for _ in range(times)]
        return [call.code() for call in calls]


def test_denied_calls(granted: GrantedServer) -> None:
    """Calls of an authenticated caller without the right are recorded with its name and the producer that it named."""
    request = SubmitProposalRequest(envelope=proposal()).SerializeToString()
    assert [grpc.StatusCode.PERMISSION_DENIED] * 3 == codes(granted, SUBMIT, granted.by("may-read"), request, times=3)
    refusal = granted.await_refusal(lambda one: one.principal == "may-read")
    assert ("token", "RIGHT_LACKING", SUBMIT, AGENT.id, common_pb2.EVENT_CATEGORY_PROPOSAL_EVENT) == (
        refusal.method,
        refusal.reason,
        refusal.rpc,
        refusal.producer.id,
        refusal.category,
    )
    assert 0 < refusal.first_at.ToNanoseconds() <= refusal.last_at.ToNanoseconds()


def test_forwarded_calls(granted: GrantedServer) -> None:
    """So are calls that the front forwards."""
    request = PublishEventRequest(envelope=FACT).SerializeToString()
    assert [grpc.StatusCode.PERMISSION_DENIED] == codes(granted, PUBLISH, granted.by("may-deploy"), request)
    refusal = granted.await_refusal(lambda one: one.principal == "may-deploy")
    assert (PUBLISH, DEPOT.id, common_pb2.EVENT_CATEGORY_FACT_EVENT) == (refusal.rpc, refusal.producer.id, refusal.category)


def test_streams(granted: GrantedServer) -> None:
    """So is each refused proposal of a stream, which goes on."""

    def requests() -> Iterator[bytes]:
        for _ in range(2):
            yield StreamProposalsRequest(envelope=proposal()).SerializeToString()

    with granted.channel() as channel:
        stream: Any = channel.stream_stream(f"/{STREAM}", response_deserializer=StreamProposalsResponse.FromString)
        with pytest.raises(grpc.RpcError):
            list(stream(requests(), metadata=granted.by("may-simulate"), timeout=CALL_SECONDS_MAX))
    assert STREAM == granted.await_refusal(lambda one: one.principal == "may-simulate").rpc


def test_what_leaves_no_event(granted: GrantedServer) -> None:
    """Refused reads and dry runs are not recorded: a later refusal is, and they are not."""
    request = PreflightRequest(envelope=proposal()).SerializeToString()
    assert [grpc.StatusCode.PERMISSION_DENIED] == codes(granted, PREFLIGHT, granted.by("may-prove"), request)
    assert [grpc.StatusCode.PERMISSION_DENIED] == codes(granted, LIST, granted.by("may-prove"))
    codes(granted, DEPLOY, granted.by("may-tools"))
    granted.await_refusal(lambda one: one.principal == "may-tools")
    assert [] == [one for one in granted.refusals() if one.principal == "may-prove"]


@pytest.mark.parametrize("front", TRANSPORTS)
def test_unauthenticated_calls(tmp_path: Path, front: FrontSetting) -> None:
    """Every call without valid credentials counts, in the log and in the metric: a few events tell of all, and none of the credentials."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        metrics = f"127.0.0.1:{listener.getsockname()[1]}"
    granted = GrantedServer(tmp_path, front, options=("--metrics", metrics))
    request = SubmitProposalRequest(envelope=proposal()).SerializeToString()
    with granted.running():
        for metadata in ((), bearer("forged-secret"), (("gavel-secret", "0" * 64),)):
            assert [grpc.StatusCode.UNAUTHENTICATED] * 5 == codes(granted, SUBMIT, metadata, request, times=5)
            assert [grpc.StatusCode.UNAUTHENTICATED] * 5 == codes(granted, PUBLISH, metadata, times=5)
            assert [grpc.StatusCode.UNAUTHENTICATED] * 5 == codes(granted, LIST, metadata, times=5)
        refusal = granted.await_refusal(lambda one: one.reason == "UNAUTHENTICATED")
        assert ("", "", False) == (refusal.principal, refusal.method, refusal.HasField("producer"))
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=CALL_SECONDS_MAX) as answer:
            assert 'gavel_refusals_total{principal="anonymous",reason="UNAUTHENTICATED"} 45.0' in answer.read().decode()
        assert 0 == granted.server.terminate()
    with run_servers(granted.server):
        events = granted.events()
        found_now = granted.refusals()
        assert 30 == sum(one.count for one in found_now if one.reason == "UNAUTHENTICATED")
        assert len(found_now) <= 3
    assert b"forged-secret" not in b"".join(event.SerializeToString() for event in events)
    assert "forged-secret" not in granted.server.log()
    result = gavel("replay", "--data", granted.server.data)
    assert 0 == result.returncode, result.stdout + result.stderr


@pytest.mark.long
@pytest.mark.parametrize("front", TRANSPORTS)
async def test_replay_refuses_a_changed_attestation(tmp_path: Path, front: FrontSetting) -> None:
    """One event's attestation is changed and the log chained again: `gavel replay` exits with 3 and names the grant that lacked."""
    granted = GrantedServer(tmp_path, front)
    with granted.running():
        granted.deploy(GRANTS)
        published = granted.call(PUBLISH, "may-publish", PublishEventRequest(envelope=FACT), PublishEventResponse).envelope
        codes(granted, SUBMIT, granted.by("may-publish"), SubmitProposalRequest(envelope=proposal()).SerializeToString())
        granted.await_refusal(lambda one: one.principal == "may-publish")
    data = granted.server.data
    assert 0 == gavel("replay", "--data", data).returncode
    for name, lack in (
        ("nobody", "no grant of depot version 2 is for 'nobody', so it may not publish on bus default"),
        ("may-propose", "no grant of depot version 2 gives 'may-propose' the right publish on bus default; it may: preflight, propose"),
        ("", "no grant of depot version 2 is for 'anonymous' (a caller that is not authenticated), so it may not publish on bus default"),
    ):
        forged = copy_of(data, tmp_path / f"forged-{name}")

        def forge(event: Envelope, name: str = name) -> None:
            if event.event_id == published.event_id:
                event.attestation.principal = name
                if not name:
                    event.ClearField("attestation")

        await rewrite(forged, forge, rechain=True)
        result = gavel("replay", "--data", forged)
        assert 3 == result.returncode, result.stdout + result.stderr
        assert f"event {published.sequence_number}" in result.stdout
        assert lack in result.stdout


async def test_replay_names_the_grant_that_lacked(tmp_path: Path) -> None:
    """The grants are changed and the log chained again: the replay names the grant and the part of the event that it lacks."""
    granted = GrantedServer(tmp_path, ANY_FRONT)
    with granted.running():
        granted.deploy(GRANTS)
        granted.call(PUBLISH, "may-publish", PublishEventRequest(envelope=FACT), PublishEventResponse)

    def forge(event: Envelope) -> None:
        if event.fact.key == "parcel.status":
            event.producer.CopyFrom(Producer(type=common_pb2.PRODUCER_TYPE_DATABASE_SNAPSHOT, id="other"))

    await rewrite(granted.server.data, forge, rechain=True)
    result = gavel("replay", "--data", granted.server.data)
    assert (3, True) == (result.returncode, "grant 1 lacks producer id other" in result.stdout), result.stdout
