"""The principal of a caller on both transports, and the first grants of a bus, which depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from cryptography import x509
from gavel.v1.administration_service_pb2 import CreateBusRequest, DeployGrantsRequest, GetGrantsRequest, WhoAmIRequest
from gavel.v1.administration_service_pb2_grpc import AdministrationServiceStub
from gavel.v1.identity_pb2 import Principal
from gavel.v1.projection_service_pb2 import GetStatusRequest
from gavel.v1.projection_service_pb2_grpc import ProjectionServiceStub
from gavel.v1.replay_service_pb2 import REPLAY_STATUS_PROVED, VerifyReplayRequest
from gavel.v1.replay_service_pb2_grpc import ReplayServiceStub
from gavel_client import GavelError
from gavel_server.front.programs import FrontSetting

from tests.e2e.identity.world import CALL_SECONDS_MAX, METHODS, Metadata, SecureServer, attempt, bearer, end_of, open_streams, refusal
from tests.support.fronts import TRANSPORTS
from tests.support.identity.issuer import ISSUER

SPIFFE = x509.UniformResourceIdentifier("spiffe://acme/orders-db")
DNS = x509.DNSName("orders.acme.example")
GRANTS = """
gavel: v1
name: main
version: {version}
grants:
  - {{to: ["group:security"], may: [grant, read, replay]}}
"""


@pytest.fixture(scope="module", params=TRANSPORTS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    """A server that requires client certificates, and takes tokens beside them."""
    front: FrontSetting = request.param
    with SecureServer(tmp_path_factory.mktemp("principals"), front, client_certificates=True).running() as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: SecureServer) -> Iterator[grpc.Channel]:
    """A connection with a certificate of no administrator."""
    with server.channel(server.issue_client_certificate("nobody")) as opened:
        yield opened


def who_am_i(channel: grpc.Channel, metadata: Metadata = ()) -> Principal:
    """Return the principal of a call."""
    administration: Any = AdministrationServiceStub(channel)
    principal: Principal = administration.WhoAmI(WhoAmIRequest(), metadata=metadata, timeout=CALL_SECONDS_MAX).principal
    return principal


def person(server: SecureServer, name: str, *groups: str) -> Metadata:
    """Return the credentials of a person in some groups."""
    return bearer(server.issuer.token(sub=name, realm_access={"roles": groups}))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((SPIFFE,), "spiffe://acme/orders-db"),
        ((DNS, SPIFFE, x509.UniformResourceIdentifier("https://acme.example")), "spiffe://acme/orders-db"),
        ((DNS, x509.DNSName("second.acme.example")), "orders.acme.example"),
        ((x509.UniformResourceIdentifier("https://acme.example"),), "caller"),
        ((), "caller"),
    ],
    ids=["SPIFFE", "SPIFFE before DNS", "first DNS name", "no URI of SPIFFE", "common name"],
)
def test_names_of_certificates(server: SecureServer, names: tuple[x509.GeneralName, ...], expected: str) -> None:
    """A certificate's SPIFFE id names its principal, else its first DNS name, else its common name."""
    with server.channel(server.issue_client_certificate("caller", names)) as channel:
        principal = who_am_i(channel)
        assert (expected, "mtls", "CN=clients", []) == (principal.name, principal.method, principal.issuer, list(principal.groups))


def test_two_spiffe_ids(server: SecureServer) -> None:
    """A certificate with two SPIFFE ids is refused, because it names two workloads."""
    names = (SPIFFE, x509.UniformResourceIdentifier("spiffe://acme/payments"))
    with server.channel(server.issue_client_certificate("double", names)) as channel:
        for method in METHODS:
            assert "has several SPIFFE ids" in refusal(channel, method)


def test_groups_and_actors(server: SecureServer, channel: grpc.Channel) -> None:
    """A token names the principal in place of the certificate, with the groups at the configured path and its chain of actors."""
    token = server.issuer.token(
        sub="bob", groups=["ignored"], realm_access={"roles": ["risk", "audit"]}, act={"sub": "agent-7", "act": {"sub": "orchestrator"}}
    )
    principal = who_am_i(channel, bearer(token))
    assert ("bob", "jwt", ISSUER) == (principal.name, principal.method, principal.issuer)
    assert (["audit", "risk"], ["agent-7", "orchestrator"]) == (list(principal.groups), list(principal.actors))


def test_forged_metadata_changes_nobody(server: SecureServer, channel: grpc.Channel) -> None:
    """No key of Gavel's that a caller sends changes who it is, on a forwarded call and on the hot path."""
    forged = tuple(
        (f"gavel-{key}", value)
        for key, value in (
            ("handle", "1"),
            ("secret", "0" * 64),
            ("peer", "unix:"),
            ("principal", "alice"),
            ("received", "1"),
            ("user", "0"),
        )
    )
    for metadata, name in ((forged, "nobody"), ((*forged, *person(server, "bob")), "bob")):
        assert name == who_am_i(channel, metadata).name
    for method in METHODS:
        failure = attempt(channel, method, forged)
        assert failure is not None
        assert "RIGHT_LACKING" == failure.reason
        assert "'nobody'" in failure.message


@pytest.mark.long
def test_certificate_that_expires(server: SecureServer) -> None:
    """When a client certificate expires, streams on its open connection end, and its calls are refused."""
    start = datetime.now(UTC) - timedelta(seconds=60)
    certificate = server.issue_client_certificate("worker", valid_from=start, valid_days=(60 + 6) / 86_400)
    with server.channel(certificate) as channel:
        for stream in open_streams(channel, ()):
            failure = end_of(stream)
            assert "UNAUTHENTICATED" == failure.reason
            assert "expired" in failure.message
        for method in METHODS:
            assert "the client certificate has expired" in refusal(channel, method)


def failure_of(call: Any, request: Any, metadata: Metadata) -> tuple[str, str]:
    """Return status code and reason of a call that fails."""
    with pytest.raises(grpc.RpcError) as raised:
        call(request, metadata=metadata, timeout=CALL_SECONDS_MAX)
    failure = GavelError.from_rpc_error(raised.value)
    return failure.code.name, failure.reason


def test_first_grants(server: SecureServer, channel: grpc.Channel, bus: str) -> None:
    """Only an administrator of the settings opens a bus without grants and deploys the first ones; then only who has the right grant."""
    administration: Any = AdministrationServiceStub(channel)
    lacking = ("PERMISSION_DENIED", "RIGHT_LACKING")
    mallory, alice = person(server, "mallory", "security"), person(server, "alice")
    first = DeployGrantsRequest(bus=bus, document=GRANTS.format(version=1), reason="first")
    second = DeployGrantsRequest(bus=bus, document=GRANTS.format(version=2), reason="second")

    assert lacking == failure_of(administration.CreateBus, CreateBusRequest(bus=bus), mallory)
    administration.CreateBus(CreateBusRequest(bus=bus), metadata=alice)
    # The group has the right in the document that it would deploy. A certificate, forged metadata, or names of administrators elsewhere
    # in the token make nobody an administrator.
    boasting = bearer(server.issuer.token(sub="mallory", name="alice", groups=["administrators"], act={"sub": "alice"}))
    for nobody in (mallory, (), (("gavel-principal", "alice"),), boasting):
        assert lacking == failure_of(administration.DeployGrants, first, nobody)
    assert "NOT_FOUND" == failure_of(administration.GetGrants, GetGrantsRequest(bus=bus), alice)[0]

    deployed = administration.DeployGrants(first, metadata=alice)
    grants = administration.GetGrants(GetGrantsRequest(bus=bus), metadata=mallory).grants
    assert (1, deployed.digest, "alice") == (grants.version, grants.digest, grants.principal)

    assert lacking == failure_of(administration.DeployGrants, second, alice)
    assert lacking == failure_of(administration.DeployGrants, second, ())
    administration.DeployGrants(second, metadata=mallory)
    assert "mallory" == administration.GetGrants(GetGrantsRequest(bus=bus), metadata=mallory).grants.principal

    replay: Any = ReplayServiceStub(channel)
    (verdict,) = [one.verdict for one in replay.VerifyReplay(VerifyReplayRequest(bus=bus), metadata=mallory) if one.HasField("verdict")]
    assert REPLAY_STATUS_PROVED == verdict.status, verdict


def test_administrators_by_group(server: SecureServer, channel: grpc.Channel, bus: str) -> None:
    """The settings may make a group administrators: its members deploy first grants, and the same name without the group may not."""
    administration: Any = AdministrationServiceStub(channel)
    member = person(server, "dora", "administrators")
    administration.CreateBus(CreateBusRequest(bus=bus), metadata=member)
    request = DeployGrantsRequest(bus=bus, document=GRANTS.format(version=1), reason="first")
    assert ("PERMISSION_DENIED", "RIGHT_LACKING") == failure_of(administration.DeployGrants, request, person(server, "dora"))
    administration.DeployGrants(request, metadata=member)
    projection: Any = ProjectionServiceStub(channel)
    status = projection.GetStatus(GetStatusRequest(bus=bus), metadata=person(server, "erin", "security"), timeout=CALL_SECONDS_MAX)
    assert status.head_sequence_number >= 2
