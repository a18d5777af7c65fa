"""Keys of issuers from web servers, on both transports."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from gavel_server.front.programs import FrontSetting
from gavel_server.identity.development_certificates import make_certificates
from gavel_server.identity.key_set import FETCH_SECONDS_MAX, KEY_SET_BYTES_MAX

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


@pytest.mark.long
@pytest.mark.parametrize("front", TRANSPORTS)
def test_bad_answers(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """Redirects, endless, slow and malformed answers change nothing; an empty key set withdraws all keys, and the refusal says so."""
    certificates = tmp_path / "issuer"
    make_certificates(certificates, ["localhost"], ["client"])
    with running_key_server(certificates / "server.pem", certificates / "server-key.pem") as web:
        server = SecureServer(
            tmp_path, front, redis_url=redis_url, jwks_url=web.url, environment={"SSL_CERT_FILE": str(certificates / "ca.pem")}
        )
        content = web.content = server.issuer.key_set().encode()

        def reload(event: str, problem: str) -> None:
            """Let the server ask the issuer again, and wait until it says what is wrong."""
            length = len(server.server.log())
            server.server.running.send_signal(signal.SIGHUP)
            wait_until(lambda: event in (log := server.server.log()[length:]) and problem in log, f"the log does not say: {problem}")

        with server.running(), server.channel() as channel:
            old = bearer(server.issuer.token())
            streams = open_streams(channel, old)
            web.status, web.location = 302, "https://localhost:1/keys"
            reload("identity.keys_unavailable", "answered 302")
            web.status, web.location, web.content = 200, "", content + b" " * KEY_SET_BYTES_MAX
            reload("identity.keys_unavailable", f"larger than {KEY_SET_BYTES_MAX} bytes")
            web.content, web.pause_seconds = content, 3600.0
            reload("identity.keys_unavailable", f"took longer than {FETCH_SECONDS_MAX:g} s")
            web.content, web.pause_seconds = b"<html>", 0.0
            reload("identity.keys_unavailable", "is not a JSON Web Key Set")
            for method in METHODS:
                assert attempt(channel, method, old) is None
                assert attempt(channel, method, bearer(server.issuer.token())) is None
            assert [True, True] == [stream.is_active() for stream in streams]
            web.content = b'{"keys": []}'
            reload("identity.no_keys", "no public key for signatures")
            for stream in streams:
                assert "no longer among the keys of issuer" in end_of(stream).message
            for method in METHODS:
                assert "has no key that can verify its tokens" in refusal(channel, method, bearer(server.issuer.token()))
                assert attempt(channel, method, bearer(server.token)) is None
            web.content = content
            server.server.running.send_signal(signal.SIGHUP)
            wait_until(lambda: attempt(channel, METHODS[0], old) is None, "keys that are published again are not used")
