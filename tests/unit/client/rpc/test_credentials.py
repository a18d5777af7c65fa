"""Credentials of clients: what is sent to whom, and which files are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from gavel.v1.projection_service_pb2 import GetStatusResponse
from gavel_client import Certificate, GavelClient, GavelError, SyncGavelClient, Tls, TokenFile
from gavel_client.rpc.backoff import Backoff, is_transient, retry
from gavel_client.rpc.connection import Connection
from gavel_client.rpc.credentials import Credential
from gavel_client.rpc.errors import describe_error
from gavel_server.identity.development_certificates import make_certificates

from tests.unit.client.fake_server import FakeServer

CLIENTS: list[type[Connection[grpc.Channel]] | type[Connection[grpc.aio.Channel]]] = [GavelClient, SyncGavelClient]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of an authority, a server and two clients."""
    path = tmp_path_factory.mktemp("certificates")
    make_certificates(path, ["localhost"], ["one", "two"])
    return path


@pytest.mark.parametrize(
    "target", ["gavel.example:9090", "192.0.2.1:9090", "[2001:db8::1]:9090", "dns:///gavel.example:9090", "localhost.example:1"]
)
@pytest.mark.parametrize("client", CLIENTS)
def test_tokens_are_not_sent_in_the_clear(client: type[Connection[grpc.Channel]], target: str) -> None:
    """A token for another machine is refused without TLS, and the error does not show it."""
    with pytest.raises(ValueError, match="could be read on the way to") as raised:
        client(target, credentials="planted")
    assert "planted" not in str(raised.value)
    client(target, credentials="planted", tls=True)


@pytest.mark.parametrize("target", ["127.0.0.1:9090", "[::1]:9090", "localhost:9090", "unix:/run/gavel.sock"])
@pytest.mark.parametrize("client", CLIENTS)
def test_tokens_on_this_machine(client: type[Connection[grpc.Channel]], target: str) -> None:
    """A token is sent without TLS where only this machine can read it."""
    client(target, credentials="planted").check_credentials()


def test_credentials_that_contradict_each_other(directory: Path) -> None:
    """Two tokens, two certificates, and a certificate without TLS are refused."""
    one = Certificate(directory / "one.pem", directory / "one-key.pem")
    two: list[list[Credential]] = [["a", "b"], [one, one]]
    for credentials in two:
        with pytest.raises(ValueError, match="several tokens or several certificates"):
            SyncGavelClient("localhost:1", credentials=credentials)
    with pytest.raises(ValueError, match="a certificate is presented over TLS"):
        SyncGavelClient("localhost:1", tls=False, credentials=one)
    SyncGavelClient("localhost:1", credentials=[one, "token"]).check_credentials()


def test_files_that_cannot_be_used(directory: Path, tmp_path: Path) -> None:
    """A file without a certificate or with another key is refused with its name, before a call is made."""
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nplanted\n-----END CERTIFICATE-----\n")
    with pytest.raises(ValueError, match=r"garbage\.pem holds no certificate in PEM"):
        SyncGavelClient("localhost:1", tls=Tls(ca=garbage)).check_credentials()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        SyncGavelClient("localhost:1", tls=Tls(ca=tmp_path / "nowhere")).check_credentials()
    with pytest.raises(ValueError, match=r"two-key\.pem is not the key of the certificate"):
        SyncGavelClient("localhost:1", credentials=Certificate(directory / "one.pem", directory / "two-key.pem")).check_credentials()
    with pytest.raises(ValueError, match=r"garbage\.pem is not an unencrypted private key in PEM") as raised:
        SyncGavelClient("localhost:1", credentials=Certificate(directory / "one.pem", garbage)).check_credentials()
    assert "planted" not in str(raised.value)


def test_token_file(tmp_path: Path) -> None:
    """A token file is read again when it changes; while it cannot be read, the token of before serves."""
    path = tmp_path / "token"
    token = TokenFile(path)
    with pytest.raises(FileNotFoundError):
        token()
    path.write_text("first\n")
    assert "first" == token()
    for content, expected in (("second", "second"), ("", "second"), ("two tokens", "second"), ("third\n\n", "third")):
        path.write_text(content)
        assert expected == token()
    path.unlink()
    assert "third" == token()
    assert "third" not in repr(token)


@pytest.mark.parametrize("content", ["", " \n", "two tokens", "a\nb", "tök"])
def test_file_without_a_token(tmp_path: Path, content: str) -> None:
    """A file that does not hold exactly one token is refused, and the error does not show its content."""
    path = tmp_path / "credential"
    path.write_text(content)
    with pytest.raises(ValueError, match="holds") as raised:
        TokenFile(path)()
    assert not content.strip() or content.strip() not in str(raised.value)


async def test_token_of_each_call(server: FakeServer) -> None:
    """The provider of a token is asked before each call, so that a token that has changed is sent."""
    tokens = iter(["first", "second", "third", "fourth"])
    server.script("GetStatus", *[GetStatusResponse(bus_incarnation="x") for _ in range(3)])
    async with GavelClient(server.target, credentials=lambda: next(tokens)) as client:
        for _ in range(2):
            await client.get_status()
    assert "fourth" == next(tokens)


def failing_once() -> Callable[[], str]:
    """Return a provider of a token that raises at its second call."""
    answers: list[str | OSError] = ["token", OSError("the token 4711 cannot be read")]

    def token() -> str:
        answer = answers.pop(0) if answers else "token"
        if isinstance(answer, OSError):
            raise answer
        return answer

    return token


async def test_a_provider_that_raises(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """The failure of a provider of tokens that has worked is a transient error of the call, in words, and its text is in no log."""

    def blocking() -> GavelError:
        with SyncGavelClient(server.target, credentials=failing_once()) as client:
            client.check_credentials()
            with pytest.raises(GavelError) as raised:
                client.get_status()
        return raised.value

    async with GavelClient(server.target, credentials=failing_once()) as client:
        client.check_credentials()
        with pytest.raises(GavelError) as raised:
            await client.get_status()
        await client.get_status()
    for error in (raised.value, await asyncio.to_thread(blocking)):
        assert is_transient(error)
        assert isinstance(error.__cause__, OSError)
        assert "UNAVAILABLE NO_TOKEN: the provider of the token failed: OSError at test_credentials.py:" in describe_error(error)
    assert 2 == caplog.text.count("the provider of the token failed: OSError at test_credentials.py:")
    assert "4711" not in caplog.text


@pytest.mark.parametrize("is_empty", [True, False])
async def test_a_token_that_was_never_there(server: FakeServer, backoff: Backoff, tmp_path: Path, is_empty: bool) -> None:
    """A file that has never held a token is no outage: a caller that retries for ever gets the error of the file."""
    path = tmp_path / "token"
    if is_empty:
        path.write_text("")
    async with GavelClient(server.target, credentials=TokenFile(path)) as client:
        with pytest.raises(ValueError if is_empty else FileNotFoundError):
            await retry(client.get_status, backoff)
    assert [] == server.requests["GetStatus"]


async def test_a_call_that_is_retried_outlasts_its_provider(server: FakeServer, backoff: Backoff) -> None:
    """A caller that retries until the server answers, as for the report of an attempt, also outlasts a provider of tokens that fails."""
    async with GavelClient(server.target, credentials=failing_once()) as client:
        client.check_credentials()
        await retry(client.get_status, backoff)
    assert 1 == len(server.requests["GetStatus"])
