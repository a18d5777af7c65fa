"""Authorities of client certificates that are replaced while callers of several of them are at work, on both transports."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from gavel_server.front.programs import FrontSetting
from gavel_server.identity.development_certificates import Authority

from tests.e2e.identity.world import FORWARDED, METHODS, SecureServer, attempt, end_of, open_streams, wait_until
from tests.support.fronts import TRANSPORTS

ROUNDS = 2


class Load:
    """Calls with a certificate on one connection and on new ones, until the end of the block. `failures` are those that failed."""

    def __init__(self, server: SecureServer, certificate: tuple[bytes, bytes]) -> None:
        self.failures: list[object] = []
        self.calls = 0
        self._over = threading.Event()
        self._server = server
        self._certificate = certificate
        self._threads = [threading.Thread(target=target) for target in (self._on_one_connection, self._on_new_connections)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _on_one_connection(self) -> None:
        with self._server.channel(self._certificate) as channel:
            while not self._over.is_set():
                for method in METHODS:
                    self._note(attempt(channel, method))

    def _on_new_connections(self) -> None:
        while not self._over.is_set():
            with self._server.channel(self._certificate) as channel:
                self._note(attempt(channel, FORWARDED))

    def _note(self, failure: object) -> None:
        self.calls += 1
        if failure is not None:
            self.failures.append(failure)


def use(server: SecureServer, authorities: Sequence[Authority]) -> None:
    """Replace the file of the authorities of clients as a whole."""
    new = server.file("client-ca.new")
    new.write_bytes(b"".join(authority.certificate.public_bytes(Encoding.PEM) for authority in authorities))
    new.replace(server.file("client-ca.pem"))


def is_accepted(server: SecureServer, certificate: tuple[bytes, bytes]) -> bool:
    """Return whether a new connection with a certificate is served."""
    with server.channel(certificate) as channel:
        failure = attempt(channel, FORWARDED)
    assert failure is None or grpc.StatusCode.UNAVAILABLE == failure.code, failure
    return failure is None


@pytest.mark.long
@pytest.mark.parametrize("front", TRANSPORTS)
def test_an_authority_is_removed_under_load(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """Callers of a removed authority are refused and their streams end; those of the other one notice nothing, however often it happens."""
    server = SecureServer(tmp_path, front, client_certificates=True, redis_url=redis_url)
    leaving, staying = Authority.create("leaving clients"), server.client_authority
    stayer = server.issue_client_certificate("worker")
    server.client_authority = leaving
    leaver = server.issue_client_certificate("old")
    use(server, (leaving, staying))
    with server.running(), server.channel(stayer) as channel, Load(server, stayer) as load:
        lasting: list[Any] = open_streams(channel, ())
        for _ in range(ROUNDS):
            with server.channel(leaver) as old:
                streams = open_streams(old, ())
                use(server, (staying,))
                for stream in streams:
                    failure = end_of(stream)
                    assert "UNAUTHENTICATED" == failure.reason
                    assert "not signed by an authority of tls_client_ca" in failure.message
                for method in METHODS:
                    refused = attempt(old, method)
                    assert refused is not None
                    assert "not signed by an authority of tls_client_ca" in refused.message
            wait_until(lambda: not is_accepted(server, leaver), "a removed authority still vouches for new connections")
            use(server, (leaving, staying))
            wait_until(lambda: is_accepted(server, leaver), "an added authority vouches for nobody")
        assert [True, True] == [stream.is_active() for stream in lasting]
    assert [] == load.failures
    assert load.calls > 0
