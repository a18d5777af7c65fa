"""Keys of issuers from web servers, on both transports."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from gavel_server.front.programs import FrontSetting
from gavel_server.identity.development_certificates import make_certificates

from tests.e2e.identity.world import METHODS, SecureServer, attempt, bearer, end_of, open_streams, refusal, wait_until
from tests.support.fronts import TRANSPORTS
from tests.support.identity.issuer import Issuer
from tests.support.identity.key_server import running_key_server


@pytest.mark.parametrize("front", TRANSPORTS)
def test_replaced_keys(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """Keys are fetched from the issuer. After SIGHUP those that it has replaced are refused, and their streams end; new ones are taken."""
    certificates = tmp_path / "issuer"
    make_certificates(certificates, ["localhost"], ["client"])
    with running_key_server(certificates / "server.pem", certificates / "server-key.pem") as web:
        server = SecureServer(
            tmp_path, front, redis_url=redis_url, jwks_url=web.url, environment={"SSL_CERT_FILE": str(certificates / "ca.pem")}
        )
        web.content = server.issuer.key_set().encode()
        with server.running(), server.channel() as channel:
            old = bearer(server.issuer.token())
            streams = open_streams(channel, old)
            server.issuer = Issuer("key-2")
            web.content = server.issuer.key_set().encode()
            server.server.running.send_signal(signal.SIGHUP)
            for stream in streams:
                assert "no longer among the keys of issuer" in end_of(stream).message
            for method in METHODS:
                assert "is not among the keys of issuer" in refusal(channel, method, old)
                assert attempt(channel, method, bearer(server.issuer.token())) is None


@pytest.mark.parametrize("front", TRANSPORTS)
def test_issuer_without_a_trusted_certificate(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """Keys from a server whose certificate nobody vouches for are not used, and tokens are refused with the reason."""
    certificates = tmp_path / "issuer"
    make_certificates(certificates, ["localhost"], ["client"])
    with running_key_server(certificates / "server.pem", certificates / "server-key.pem") as web:
        server = SecureServer(tmp_path, front, redis_url=redis_url, jwks_url=web.url)
        web.content = server.issuer.key_set().encode()
        with server.running(), server.channel() as channel:
            for method in METHODS:
                assert "cannot be read now, so its tokens cannot be verified" in refusal(channel, method, bearer(server.issuer.token()))
            assert 0 == web.requests
            wait_until(lambda: "identity.keys_unavailable" in server.server.log(), "the failure is not logged")
            assert attempt(channel, METHODS[0], bearer(server.token)) is None
