"""The identity files of a server: which are loaded again when they change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from gavel_server.errors import ServiceError
from gavel_server.identity import identity as identity_module
from gavel_server.identity.credentials import Credentials
from gavel_server.identity.development_certificates import Authority, host_name
from gavel_server.identity.identity import Identity
from gavel_server.identity.settings import IdentitySettings
from gavel_server.identity.tokens import add_token

SECONDS_MAX = 10.0


@asynccontextmanager
async def watched(identity: Identity) -> AsyncIterator[None]:
    """Watch the files for a block."""
    task = asyncio.create_task(identity.watch_forever())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_streams_end_after_a_step_of_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session ends within the interval of the watch once the wall clock has passed its end, even if the clock was set."""
    tokens = tmp_path / "tokens.toml"
    now = time.time()
    texts = [add_token(tokens, name, (), datetime.fromtimestamp(now + seconds, UTC)) for name, seconds in (("short", 600), ("long", 7200))]
    identity = Identity(IdentitySettings("required", token_file=tokens))
    assert identity.authenticator is not None
    short, long = [
        await identity.authenticator.authenticate(Credentials("127.0.0.1:1", authorizations=(f"Bearer {text}",))) for text in texts
    ]

    async def stream() -> None:
        async with short.scope():
            await asyncio.Event().wait()

    running = asyncio.create_task(stream())
    await asyncio.sleep(0)
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    async with watched(identity), asyncio.timeout(SECONDS_MAX):
        with pytest.raises(ServiceError, match="the credentials have expired"):
            await running
    assert long.error() is None


@pytest.mark.parametrize("broken", ["server.pem", "server-key.pem"])
async def test_an_invalid_certificate_keeps_no_token_in_force(tmp_path: Path, broken: str) -> None:
    """A deleted token is revoked although the server's certificate or key is invalid at that time."""
    certificate, key, tokens = (tmp_path / name for name in ("server.pem", "server-key.pem", "tokens.toml"))
    Authority.create().issue(certificate, key, "localhost", [host_name("localhost")], for_server=True)
    token = add_token(tokens, "agent", (), None)
    identity = Identity(IdentitySettings("required", tls_cert=certificate, tls_key=key, token_file=tokens))
    assert identity.authenticator is not None
    session = await identity.authenticator.authenticate(Credentials("127.0.0.1:1", authorizations=(f"Bearer {token}",)))
    (tmp_path / broken).write_text("half a file")
    tokens.write_text("")
    revoked = asyncio.Event()
    session.watch(revoked, revoked.set)
    identity.reload()
    async with watched(identity), asyncio.timeout(SECONDS_MAX):
        await revoked.wait()
    assert broken in identity.problem


async def test_a_file_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of authorities that somebody writes in two steps is read once it is complete: nobody in the second half loses a session."""
    monkeypatch.setattr(identity_module, "WATCH_SECONDS", 0.01)
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "server.pem", "server-key.pem"))
    first, second = Authority.create("first"), Authority.create("second")
    first.issue(certificate, key, "localhost", [host_name("localhost")], for_server=True)
    second.issue(tmp_path / "worker.pem", tmp_path / "worker-key.pem", "worker")
    halves = [authority.certificate.public_bytes(Encoding.PEM) for authority in (first, second)]
    ca.write_bytes(b"".join(halves))
    identity = Identity(IdentitySettings("required", tls_cert=certificate, tls_key=key, tls_client_ca=ca))
    assert identity.authenticator is not None
    der = x509.load_pem_x509_certificate((tmp_path / "worker.pem").read_bytes()).public_bytes(Encoding.DER)
    session = await identity.authenticator.authenticate(Credentials("127.0.0.1:1", is_encrypted=True, certificates=(der,)))
    renewed = Authority.create("renewed").certificate.public_bytes(Encoding.PEM)
    sleep = asyncio.sleep

    async def write_the_rest(_: float) -> None:
        with ca.open("ab") as file:
            file.write(halves[1])
        monkeypatch.setattr(asyncio, "sleep", sleep)

    async with watched(identity), asyncio.timeout(SECONDS_MAX):
        await sleep(0.05)
        monkeypatch.setattr(asyncio, "sleep", write_the_rest)  # the pause before the second look
        ca.write_bytes(renewed)
        while identity.tls is None or "CN=renewed" not in [one.subject.rfc4514_string() for one in identity.tls.authorities]:
            await sleep(0.01)
    assert ["CN=renewed", "CN=second"] == [one.subject.rfc4514_string() for one in identity.tls.authorities]
    assert session.error() is None
