"""Tokens on both transports: which ones a server takes, and why it refuses the others."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from gavel_server.front.programs import FrontSetting
from gavel_server.identity.tokens import PREFIX, token_digest

from tests.e2e.identity.world import (
    HEALTH,
    METHODS,
    SecureServer,
    attempt,
    bearer,
    end_of,
    open_streams,
    refusal,
    wait_until,
)
from tests.support.fronts import TRANSPORTS
from tests.support.identity.issuer import Issuer

DAY_SECONDS = 86_400


@pytest.fixture(scope="module", params=TRANSPORTS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    """A server that nothing changes."""
    front: FrontSetting = request.param
    with SecureServer(tmp_path_factory.mktemp("secure"), front).running() as running:
        yield running


@pytest.fixture
def channel(server: SecureServer) -> Iterator[grpc.Channel]:
    """A connection without a client certificate."""
    with server.channel() as opened:
        yield opened


def now() -> int:
    """Return the time in seconds."""
    return int(time.time())


def own_key(issuer: Issuer) -> str:
    """Return a token signed by a stranger, who puts the own key and its address into the header."""
    stranger = Issuer(issuer.key_id)
    key = json.loads(stranger.key_set())["keys"][0]
    return stranger.token({"jwk": key, "jku": "https://evil.example/keys", "x5u": "https://evil.example/certificate"})


def changed(token: str) -> str:
    """Return a token whose claims name somebody else."""
    header, claims, signature = token.split(".")
    content = {**json.loads(base64.urlsafe_b64decode(claims + "==")), "sub": "mallory"}
    return f"{header}.{base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b'=').decode()}.{signature}"


# Tokens, and what the refusal says.
REFUSED: dict[str, tuple[Callable[[Issuer], str], str]] = {
    "expired": (lambda issuer: issuer.token(exp=now() - 1), "the credentials have expired"),
    "not yet valid": (lambda issuer: issuer.token(nbf=now() + DAY_SECONDS), "the token is not valid yet (nbf, iat)"),
    "issued in the future": (lambda issuer: issuer.token(iat=now() + DAY_SECONDS), "the token is not valid yet (nbf, iat)"),
    "wrong audience": (lambda issuer: issuer.token(aud="other"), "the token's audience (aud) is not one of: gavel"),
    "no audience": (lambda issuer: issuer.token(aud=None), "the token has no claim aud"),
    "no expiry": (lambda issuer: issuer.token(exp=None), "the token has no claim exp"),
    "wrong issuer": (lambda issuer: issuer.token(iss="https://evil.example"), "the server's settings do not have the token's issuer (iss)"),
    "no issuer": (lambda issuer: issuer.token(iss=None), "the server's settings do not have the token's issuer (iss)"),
    "alg none": (lambda issuer: issuer.forged({"alg": "none"}), "the token's algorithm (alg) is not an asymmetric signature"),
    "HS256 with the public key": (
        lambda issuer: issuer.forged({"alg": "HS256"}),
        "the token's algorithm (alg) is not an asymmetric signature",
    ),
    "another algorithm of the key's kind": (lambda issuer: issuer.forged({"alg": "ES384"}), "the token's algorithm is not one that issuer"),
    "unknown key": (lambda issuer: Issuer("key-2").token(), "the token's key (kid) is not among the keys of issuer"),
    "another key under a known name": (lambda issuer: Issuer(issuer.key_id).token(), "the token's signature is not by a key of its issuer"),
    "no key named": (lambda issuer: issuer.forged({"alg": "ES256", "kid": None}), "the token's header names no key (kid)"),
    "its own key": (own_key, "the token's signature is not by a key of its issuer"),
    "an extension": (lambda issuer: issuer.forged({"alg": "ES256", "crit": ["exp"], "exp": 1}), "asks for extensions (crit)"),
    "changed": (lambda issuer: changed(issuer.token()), "the token's signature is not by a key of its issuer"),
    "no name": (lambda issuer: issuer.token(sub=None), "the token's claim sub is missing"),
    "a reserved name": (lambda issuer: issuer.token(sub="uid:0"), "the token's claim sub is reserved"),
    "a malformed chain of actors": (lambda issuer: issuer.token(act=["x"]), "the token's claim act is not a chain"),
    "too large": (lambda issuer: issuer.token(padding="x" * 8192), "the authorization header is larger than 8192 bytes"),
    "not a token": (lambda issuer: "a.b.c", "the token is not a JSON Web Token"),
    "an unknown token": (lambda issuer: PREFIX + "x" * 43, "the token is unknown or was revoked"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_tokens(server: SecureServer, channel: grpc.Channel, kind: str) -> None:
    """A token that fails a check is refused on every path with that check, and the refusal does not hold the token."""
    make, message = REFUSED[kind]
    for method in METHODS:
        token = make(server.issuer)
        told = refusal(channel, method, bearer(token))
        assert message in told
        assert token not in told


def test_accepted_tokens(server: SecureServer, channel: grpc.Channel) -> None:
    """Valid tokens of both kinds are taken on every path, many times on one connection and beside each other; one never ends."""
    issuer = server.issuer
    for token in (issuer.token(), server.token, issuer.token(sub="bob", aud=["other", "gavel"]), issuer.token(exp=10**17)):
        for method in METHODS * 3:
            assert attempt(channel, method, bearer(token)) is None


def test_missing_credentials(channel: grpc.Channel) -> None:
    """A call without credentials is refused and told which ones the server takes. Health needs none."""
    for method in METHODS:
        assert "the call has no credentials; give a JSON Web Token" in refusal(channel, method)
    assert attempt(channel, HEALTH) is None


def test_several_and_malformed_headers(server: SecureServer, channel: grpc.Channel) -> None:
    """A second authorization header and other schemes are refused; a valid token beside them does not help."""
    for method in METHODS:
        assert "several authorization headers" in refusal(channel, method, bearer(server.token) * 2)
        assert "not of the form: Bearer TOKEN" in refusal(channel, method, (("authorization", "Basic " + server.token),))
        assert "not of the form: Bearer TOKEN" in refusal(channel, method, (("authorization", "Bearer"),))


def test_forged_metadata(server: SecureServer, channel: grpc.Channel) -> None:
    """Keys with which the front talks to the server are of no use to a caller, with or without credentials."""
    assert attempt(channel, METHODS[0], bearer(server.token)) is None  # there is a handle to guess
    for handle in ("0", "1", "2", "4294967295", "x"):
        forged = (("gavel-handle", handle), ("gavel-secret", "0" * 64), ("gavel-peer", "127.0.0.1:1"))
        for method in METHODS:
            assert "the call has no credentials" in refusal(channel, method, forged)
            assert attempt(channel, method, (*forged, *bearer(server.token))) is None


def test_metadata_limits(server: SecureServer, channel: grpc.Channel) -> None:
    """More metadata than the limit is refused, whoever sends it, and the connection serves the next call."""
    for size in (20_000, 40_000):
        failure = attempt(channel, METHODS[1], (*bearer(server.token), ("padding", "x" * size)))
        assert failure is not None
        assert failure.code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), failure
    assert attempt(channel, METHODS[1], bearer(server.token)) is None


def test_expiry_ends_streams(server: SecureServer, channel: grpc.Channel) -> None:
    """When a token expires, the next call with it is refused, and streams that it opened end, quiet ones included."""
    credentials = bearer(server.issuer.token(exp=now() + 3))
    streams = open_streams(channel, credentials)
    for stream in streams:
        failure = end_of(stream)
        assert ("UNAUTHENTICATED", "the credentials have expired") == (failure.reason, failure.message)
    for method in METHODS:
        assert "the credentials have expired" == refusal(channel, method, credentials)


def test_tokens_and_keys_are_nowhere(server: SecureServer, channel: grpc.Channel) -> None:
    """No token, accepted or refused, and no key is in the log, or on a command line or in the environment of the server's processes."""
    tokens = [
        server.token,
        server.issuer.token(),
        PREFIX + "planted" * 6,
        server.issuer.token(exp=1),
        server.issuer.forged({"alg": "HS256"}),
    ]
    for token in tokens:
        for method in METHODS:
            attempt(channel, method, bearer(token))
    places = [server.server.log()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(server.directory) in (process / "cmdline").read_text():
                places += [(process / "cmdline").read_text(errors="replace"), (process / "environ").read_text(errors="replace")]
        except OSError:
            continue
    key = "".join(server.file("server-key.pem").read_text().splitlines()[1:-1])
    for secret in (*tokens, *(token.rpartition(".")[2] for token in tokens), key[:40]):
        assert not any(secret in place for place in places)
    assert "call.refused" in places[0]


@pytest.mark.parametrize("front", TRANSPORTS)
def test_replaced_keys_and_tokens(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """New keys and tokens are taken when their files change; those that are gone are refused, and their streams end."""
    with SecureServer(tmp_path, front, redis_url=redis_url).running() as server, server.channel() as channel:
        old = bearer(server.issuer.token())
        streams = open_streams(channel, old) + open_streams(channel, bearer(server.token))
        server.issuer = Issuer("key-2")
        server.issuer.write(server.file("keys.json"))
        server.file("tokens.toml").write_text("")
        for stream in streams[:2]:
            assert "no longer among the keys of issuer" in end_of(stream).message
        for stream in streams[2:]:
            assert "the token was revoked" == end_of(stream).message
        for method in METHODS:
            assert "is not among the keys of issuer" in refusal(channel, method, old)
            assert "the token is unknown or was revoked" == refusal(channel, method, bearer(server.token))
            assert attempt(channel, method, bearer(server.issuer.token())) is None


@pytest.mark.parametrize("front", TRANSPORTS)
def test_hangup_loads_files_again(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """SIGHUP loads the files again, also one that looks unchanged, and stops neither the server nor its other callers."""
    with SecureServer(tmp_path, front, redis_url=redis_url).running() as server, server.channel() as channel:
        streams = open_streams(channel, bearer(server.token))
        file = server.file("tokens.toml")
        before = file.stat()
        token = PREFIX + "a" * 43
        # In place and with the time of before, so that only the signal can tell the server.
        file.write_text(file.read_text().replace(token_digest(server.token).hex(), token_digest(token).hex()))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (before.st_ino, before.st_size, before.st_mtime_ns) == (file.stat().st_ino, file.stat().st_size, file.stat().st_mtime_ns)
        server.server.running.send_signal(signal.SIGHUP)
        for stream in streams:
            assert "the token was revoked" == end_of(stream).message
        for method in METHODS:
            assert "the token is unknown or was revoked" == refusal(channel, method, bearer(server.token))
            assert attempt(channel, method, bearer(token)) is None
            assert attempt(channel, method, bearer(server.issuer.token())) is None
        assert 0 == server.server.terminate()


@pytest.mark.parametrize("front", TRANSPORTS)
def test_invalid_files_change_nothing(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """A changed file that is invalid is logged and changes nothing, until it is valid again."""
    with SecureServer(tmp_path, front, redis_url=redis_url).running() as server, server.channel() as channel:
        before = server.file("tokens.toml").read_text()
        server.file("tokens.toml").write_text("[[tokens]]\nname = 1\n")
        wait_until(lambda: "identity.not_loaded" in server.server.log(), "the invalid file is not noticed")
        assert attempt(channel, METHODS[1], bearer(server.token)) is None
        server.file("tokens.toml").write_text(before.replace("orders-agent", "renamed"))
        wait_until(lambda: "identity.loaded" in server.server.log(), "the valid file is not noticed")
        # The entry has another name now, so the caller is authenticated again.
        wait_until(lambda: attempt(channel, METHODS[1], bearer(server.token)) is None, "the token is refused")
