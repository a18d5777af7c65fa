"""Servers that require authentication, with certificates, an issuer of JSON Web Tokens and a token file of their own, and calls to them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import grpc
from cryptography import x509
from gavel.v1.event_service_pb2 import SubscribeEventsRequest
from gavel_client import GavelError
from gavel_server.front.programs import FrontSetting
from gavel_server.identity.development_certificates import Authority, host_name
from gavel_server.identity.tokens import add_token

from tests.e2e.world import WAIT_SECONDS_MAX, Server, run_servers
from tests.support.identity.issuer import AUDIENCE, ISSUER, Issuer

CALL_SECONDS_MAX: Final = 20.0
# A call over the link of the front and a forwarded one; without a front both arrive over grpc.aio.
HOT: Final = "/gavel.v1.ArbitrationService/Preflight"
FORWARDED: Final = "/gavel.v1.ProjectionService/GetStatus"
METHODS: Final = (HOT, FORWARDED)
HEALTH: Final = "/grpc.health.v1.Health/Check"
SUBSCRIBE: Final = "/gavel.v1.EventService/SubscribeEvents"
STREAM: Final = "/gavel.v1.ArbitrationService/StreamProposals"
# Everybody whose credentials the tests take: what a caller may do is not their subject.
ADMINS: Final = ["alice", "bob", "orders-agent", "renamed", "worker", "spiffe://acme/orders-db", "old", "new", "group:administrators"]
Metadata = tuple[tuple[str, str], ...]


class SecureServer:
    """A server with TLS that takes JSON Web Tokens and tokens, and with `client_certificates` requires or accepts those.

    Files are in `directory`. `jwks_url` is where it gets the issuer's keys; "": from a file. `options` and `environment` are more of
    `gavel serve`.
    """

    def __init__(
        self,
        directory: Path,
        front: FrontSetting,
        *,
        client_certificates: bool | Literal["optional"] = False,
        redis_url: str = "",
        jwks_url: str = "",
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.authority = Authority.create()
        self.client_authority = Authority.create("clients")
        self.issuer = Issuer()
        self.authority.save(self.file("ca.pem"), self.file("ca-key.pem"))
        self.issue_server_certificate()
        self.issuer.write(self.file("keys.json"))
        self.token = add_token(self.file("tokens.toml"), "orders-agent", ("agents",), None)
        lines = [
            'authentication = "required"',
            f'tls_cert = "{self.file("server.pem")}"',
            f'tls_key = "{self.file("server-key.pem")}"',
            f'token_file = "{self.file("tokens.toml")}"',
            f"admins = {json.dumps(ADMINS)}",
        ]
        if client_certificates:
            self.save_client_authority()
            lines.append(f'tls_client_ca = "{self.file("client-ca.pem")}"')
            if client_certificates == "optional":
                lines.append('tls_client_certificate = "optional"')
        lines += [
            "[[issuers]]",
            f'issuer = "{ISSUER}"',
            f'audience = "{AUDIENCE}"',
            f'jwks_url = "{jwks_url}"' if jwks_url else f'jwks_file = "{self.file("keys.json")}"',
            "leeway_seconds = 0",
            'groups_claim = "realm_access.roles"',
        ]
        self.file("gavel.toml").write_text("\n".join(lines) + "\n")
        arguments = ["--config", str(self.file("gavel.toml")), "--front", front, *options]
        self.server = Server(directory / "data", options=arguments, redis_url=redis_url, environment=environment)

    def file(self, name: str) -> Path:
        """Return the path of a file."""
        return self.directory / name

    def issue_server_certificate(self) -> int:
        """Replace the server's certificate; return its serial number."""
        names = [host_name("localhost"), host_name("127.0.0.1")]
        self.authority.issue(self.file("server.pem"), self.file("server-key.pem"), "localhost", names, for_server=True)
        return x509.load_pem_x509_certificate(self.file("server.pem").read_bytes()).serial_number

    def save_client_authority(self) -> None:
        """Write the file of the authorities of clients."""
        self.client_authority.save(self.file("client-ca.pem"), self.file("client-ca-key.pem"))

    def issue_client_certificate(
        self, name: str, names: tuple[x509.GeneralName, ...] = (), valid_from: datetime | None = None, valid_days: float = 1.0
    ) -> tuple[bytes, bytes]:
        """Return a client's certificate and key in PEM."""
        files = self.file(f"{name}.pem"), self.file(f"{name}-key.pem")
        start = valid_from or datetime.fromtimestamp(time.time() - 60, UTC)
        self.client_authority.issue(*files, name, names, valid_from=start, valid_days=valid_days)
        return files[0].read_bytes(), files[1].read_bytes()

    @contextmanager
    def running(self) -> Iterator[SecureServer]:
        """Run the server for a block."""
        with run_servers(self.server):
            yield self

    def channel(self, certificate: tuple[bytes, bytes] | None = None) -> grpc.Channel:
        """Return a new channel with a connection of its own."""
        chain, key = certificate or (None, None)
        credentials = grpc.ssl_channel_credentials(self.file("ca.pem").read_bytes(), key, chain)
        return grpc.secure_channel(self.server.address, credentials, options=(("grpc.use_local_subchannel_pool", 1),))


def bearer(token: str) -> Metadata:
    """Return the metadata that presents a token."""
    return (("authorization", f"Bearer {token}"),)


def attempt(channel: grpc.Channel, method: str, metadata: Metadata = ()) -> GavelError | None:
    """Make a call without a request body. Return why its caller is refused, or None if the server takes the credentials."""
    call: Any = channel.unary_unary(method)
    try:
        call(b"", timeout=CALL_SECONDS_MAX, metadata=metadata)
    except grpc.RpcError as error:
        failure = GavelError.from_rpc_error(error)
        # The empty request is malformed, which the server says to authenticated callers only.
        return None if failure.reason == "INVALID_REQUEST" else failure
    return None


def refusal(channel: grpc.Channel, method: str, metadata: Metadata = ()) -> str:
    """Return the message with which a call is refused as unauthenticated."""
    failure = attempt(channel, method, metadata)
    assert failure is not None
    assert (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED") == (failure.code, failure.reason), failure
    return failure.message


def open_streams(channel: grpc.Channel, metadata: Metadata) -> list[Any]:
    """Open a subscription, which the front forwards, and a stream of proposals, which goes over its link."""
    subscription: Any = channel.unary_stream(SUBSCRIBE)
    proposals: Any = channel.stream_stream(STREAM)

    def silent() -> Iterator[bytes]:
        time.sleep(WAIT_SECONDS_MAX)
        yield b""

    request = SubscribeEventsRequest(from_sequence_number=1).SerializeToString()
    streams = [
        subscription(request, metadata=metadata, timeout=WAIT_SECONDS_MAX),
        proposals(silent(), metadata=metadata, timeout=WAIT_SECONDS_MAX),
    ]
    next(streams[0])  # the first event: the subscription is open
    return streams


def end_of(stream: Any) -> GavelError:
    """Wait until a stream ends, and return the error with which it ends."""
    try:
        for _ in stream:
            pass
    except grpc.RpcError as error:
        return GavelError.from_rpc_error(error)
    raise AssertionError("the stream has ended without an error")


def wait_until(check: Callable[[], bool], problem: str) -> None:
    """Wait until a check is true."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not check():
        assert time.monotonic() < deadline, problem
        time.sleep(0.05)
