"""Client certificates and the server's own certificate, on both transports."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from gavel_server.front.programs import FrontSetting
from gavel_server.identity.development_certificates import Authority

from tests.e2e.identity.world import FORWARDED, METHODS, SecureServer, attempt, bearer, end_of, open_streams, refusal, wait_until
from tests.support.fronts import FRONTS, TRANSPORTS

ROTATIONS = 3


def serial_number(server: SecureServer, version: ssl.TLSVersion | None = None) -> tuple[int, str]:
    """Return the serial number of the certificate that the server presents to a new connection, and the version of TLS."""
    context = ssl.create_default_context(cafile=str(server.file("ca.pem")))
    context.set_alpn_protocols(["h2"])
    if version is not None:
        context.minimum_version = context.maximum_version = version
    host, _, port = server.server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as raw, context.wrap_socket(raw, server_hostname=host) as secure:
        certificate = secure.getpeercert(binary_form=True)
        assert certificate is not None
        return x509.load_der_x509_certificate(certificate).serial_number, str(secure.version())


@pytest.mark.parametrize("front", TRANSPORTS)
def test_client_certificates(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """Only a valid certificate of the configured authority gets a connection; the others get none, whatever else they present."""
    server = SecureServer(tmp_path, front, client_certificates=True, redis_url=redis_url)
    (tmp_path / "stranger").mkdir()
    stranger = SecureServer(tmp_path / "stranger", front)
    stranger.client_authority = Authority.create("clients")  # of the same name
    with server.running():
        spiffe = (x509.UniformResourceIdentifier("spiffe://acme/orders-db"),)
        yesterday = datetime.now(UTC) - timedelta(days=1)
        for certificate in (server.issue_client_certificate("worker"), server.issue_client_certificate("orders", spiffe)):
            with server.channel(certificate) as channel:
                for method in METHODS:
                    assert attempt(channel, method) is None
        refused: dict[str, tuple[bytes, bytes] | None] = {
            "none": None,
            "expired": server.issue_client_certificate("expired", valid_from=yesterday, valid_days=0.5),
            "not yet valid": server.issue_client_certificate("later", valid_from=datetime.now(UTC) + timedelta(days=1)),
            "of another authority": stranger.issue_client_certificate("stranger"),
        }
        for kind, other in refused.items():
            with server.channel(other) as channel:
                failure = attempt(channel, FORWARDED, bearer(server.token))
                assert failure is not None, kind
                assert grpc.StatusCode.UNAVAILABLE == failure.code, (kind, failure)


@pytest.mark.parametrize("front", TRANSPORTS)
def test_revoked_authority(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """When the authority of clients is replaced, its certificates are refused on open connections too, and their streams end."""
    server = SecureServer(tmp_path, front, client_certificates=True, redis_url=redis_url)
    with server.running(), server.channel(old := server.issue_client_certificate("old")) as channel:
        streams = open_streams(channel, ())
        server.client_authority = Authority.create("new clients")
        server.save_client_authority()
        for stream in streams:
            failure = end_of(stream)
            assert "UNAUTHENTICATED" == failure.reason
            assert "not signed by an authority of tls_client_ca" in failure.message
        for method in METHODS:
            failure_of_call = attempt(channel, method)
            assert failure_of_call is not None
            assert "not signed by an authority of tls_client_ca" in failure_of_call.message
        with server.channel(old) as again:
            failure_of_connection = attempt(again, FORWARDED)
            assert failure_of_connection is not None
            assert grpc.StatusCode.UNAVAILABLE == failure_of_connection.code
        with server.channel(server.issue_client_certificate("new")) as again:
            assert attempt(again, FORWARDED) is None


@pytest.mark.long
@pytest.mark.parametrize("front", TRANSPORTS)
def test_rotation_under_load(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """While the server's certificate is replaced again and again, no call fails, on open connections and on new ones."""
    server = SecureServer(tmp_path, front, redis_url=redis_url)
    failures: list[object] = []
    over = threading.Event()

    def call_on_one_connection() -> None:
        with server.channel() as channel:
            while not over.is_set():
                failures.extend(failure for method in METHODS if (failure := attempt(channel, method, bearer(server.token))) is not None)

    def call_on_new_connections() -> None:
        while not over.is_set():
            with server.channel() as channel:
                if (failure := attempt(channel, FORWARDED, bearer(server.token))) is not None:
                    failures.append(failure)

    with server.running():
        threads = [threading.Thread(target=target) for target in (call_on_one_connection, call_on_new_connections)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(ROTATIONS):
                expected = server.issue_server_certificate()
                wait_until(lambda expected=expected: expected == serial_number(server)[0], "the new certificate is not presented")  # type: ignore[misc]
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert [] == failures


@pytest.mark.parametrize("front", TRANSPORTS)
def test_versions_of_tls(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """TLS 1.3 and 1.2 are spoken; 1.1 and connections in the clear are not."""
    with SecureServer(tmp_path, front, redis_url=redis_url).running() as server:
        assert "TLSv1.3" == serial_number(server)[1]
        assert "TLSv1.2" == serial_number(server, ssl.TLSVersion.TLSv1_2)[1]
        with pytest.raises((ssl.SSLError, ConnectionError)):
            serial_number(server, ssl.TLSVersion.TLSv1_1)
        with grpc.insecure_channel(server.server.address) as channel:
            failure = attempt(channel, FORWARDED, bearer(server.token))
            assert failure is not None
            assert grpc.StatusCode.UNAVAILABLE == failure.code


@pytest.mark.parametrize("front", FRONTS)
def test_optional_certificates(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """With optional certificates, a caller needs either a valid certificate or a token, and an invalid certificate is refused."""
    server = SecureServer(tmp_path, front, client_certificates="optional", redis_url=redis_url)
    (tmp_path / "stranger").mkdir()
    stranger = SecureServer(tmp_path / "stranger", front)
    with server.running():
        with server.channel(server.issue_client_certificate("worker")) as channel:
            for method in METHODS:
                assert attempt(channel, method) is None
        with server.channel() as channel:
            for method in METHODS:
                assert attempt(channel, method, bearer(server.token)) is None
                assert "the call has no credentials; give a client certificate" in refusal(channel, method)
        with server.channel(stranger.issue_client_certificate("stranger")) as channel:
            failure = attempt(channel, FORWARDED, bearer(server.token))
            assert failure is not None
            assert grpc.StatusCode.UNAVAILABLE == failure.code


def test_optional_certificates_need_the_front(tmp_path: Path, redis_url: str) -> None:
    """Without the native front a server with optional certificates does not start, and says what to do."""
    server = SecureServer(tmp_path, "none", client_certificates="optional", redis_url=redis_url)
    with pytest.raises(AssertionError, match="in place of its ready line"), server.running():
        pass
    assert "Require it, or serve with the native front (--front native)" in server.server.log()
