"""The `gavel` command with credentials, on both transports: options, environment, contexts, long-running commands, and failures."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from gavel_server.front.programs import FrontSetting
from gavel_server.identity.development_certificates import make_certificates

from tests.e2e.identity.world import SecureServer
from tests.e2e.runs import forker, run_gavel
from tests.e2e.world import Server, run_servers
from tests.support.fronts import TRANSPORTS


def gavel(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `gavel` to its end, with no settings but those of `environment`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_") and name != "COLUMNS"}
    return run_gavel(arguments, {**clean, **(environment or {})})


@pytest.fixture(scope="module", params=TRANSPORTS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    """A server that takes tokens over TLS."""
    front: FrontSetting = request.param
    server = SecureServer(tmp_path_factory.mktemp("secure"), front)
    server.file("token").write_text(server.token + "\n")
    server.file("strange").mkdir()
    make_certificates(server.file("strange"), ["localhost"], ["stranger"])
    with server.running():
        yield server


@pytest.fixture(scope="module", params=TRANSPORTS)
def mutual(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    """A server that takes client certificates."""
    server = SecureServer(tmp_path_factory.mktemp("mutual"), request.param, client_certificates=True)
    server.issue_client_certificate("worker")
    server.file("strange").mkdir()
    make_certificates(server.file("strange"), ["localhost"], ["stranger"])
    with server.running():
        yield server


def test_options_environment_and_contexts(server: SecureServer) -> None:
    """The caller's token is taken from the option, the environment or the context, and the answer names its principal."""
    ca, token = str(server.file("ca.pem")), str(server.file("token"))
    options = ("--server", server.server.address, "--tls-ca", ca, "--token-file", token)
    environment = {"GAVEL_SERVER": server.server.address, "GAVEL_CLIENT_TLS_CA": ca, "GAVEL_CLIENT_TOKEN_FILE": token}
    home = {"XDG_CONFIG_HOME": str(server.directory)}
    added = gavel("context", "add", "secure", *options, environment=home)
    assert (0, "") == (added.returncode, added.stderr)
    for answer in (
        gavel("whoami", *options),
        gavel("whoami", environment=environment),
        gavel("whoami", environment={"GAVEL_CONTEXT": "secure", **home}),
    ):
        assert (0, "") == (answer.returncode, answer.stderr)
        assert ["principal", "orders-agent"] == answer.stdout.split()[:2]
        assert server.token not in answer.stdout
    stranger = server.file("stranger-token")
    stranger.write_text("gvl_unknown")
    refused = gavel("whoami", "--context", "secure", "--token-file", stranger, environment=home)
    assert (1, True) == (refused.returncode, "the token is unknown or was revoked (UNAUTHENTICATED)" in refused.stderr)
    assert "gvl_unknown" not in refused.stderr


def test_certificates(mutual: SecureServer) -> None:
    """A command presents the certificate of its options."""
    files = [str(mutual.file(name)) for name in ("ca.pem", "worker.pem", "worker-key.pem")]
    answer = gavel("whoami", "--server", mutual.server.address, "--tls-ca", files[0], "--tls-cert", files[1], "--tls-key", files[2])
    assert (0, ["principal", "worker", "method", "mtls"]) == (answer.returncode, answer.stdout.split()[:4]), answer.stderr


@pytest.mark.parametrize("command", [["log", "list"], ["rules", "list"], ["bus", "list"]])
def test_commands_present_credentials(server: SecureServer, command: list[str]) -> None:
    """Commands of each kind reach a server that requires credentials, and without credentials are told to give some."""
    environment = {"GAVEL_SERVER": server.server.address, "GAVEL_CLIENT_TLS_CA": str(server.file("ca.pem"))}
    answer = gavel(*command, environment={"GAVEL_CLIENT_TOKEN_FILE": str(server.file("token")), **environment})
    assert (0, "") == (answer.returncode, answer.stderr)
    refused = gavel(*command, environment=environment)
    assert 1 == refused.returncode
    assert "the call has no credentials" in refused.stderr
    assert "show who you are with --token-file, --tls-cert and --tls-key, or a context" in refused.stderr


def test_replay_on_the_server(server: SecureServer) -> None:
    """`gavel replay --server` and its streams use the credentials of the environment."""
    environment = {"GAVEL_CLIENT_TLS_CA": str(server.file("ca.pem")), "GAVEL_CLIENT_TOKEN_FILE": str(server.file("token"))}
    answer = gavel("replay", "--server", server.server.address, environment=environment)
    assert (0, True) == (answer.returncode, answer.stdout.startswith("proved: ")), answer.stderr


@pytest.mark.parametrize("command", [["executor", "tests/e2e/handlers/succeeds.py"], ["fdr"]])
def test_consumers_present_credentials(server: SecureServer, command: list[str]) -> None:
    """The long-running commands open their streams of work with credentials: the server counts them as members of their group."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
    environment = {
        "GAVEL_SERVER": server.server.address,
        "GAVEL_CLIENT_TLS_CA": str(server.file("ca.pem")),
        "GAVEL_CLIENT_TOKEN_FILE": str(server.file("token")),
    }
    consumer = subprocess.Popen([*forker().command(), *command], env=clean | environment, stderr=subprocess.PIPE, text=True)
    group = "fdr" if command == ["fdr"] else "executors"
    try:
        while group not in gavel("work", "list", environment=environment).stdout:
            assert consumer.poll() is None
    finally:
        consumer.terminate()
        assert consumer.stderr is not None
        errors = consumer.stderr.read()
        consumer.wait()
    assert server.token not in errors
    assert "UNAUTHENTICATED" not in errors


def test_failures_of_tls(server: SecureServer) -> None:
    """A connection that TLS refuses is explained: which certificate, which host, and which option helps."""
    address = server.server.address
    without_tls = gavel("whoami", "--server", address)
    assert "closed the connection; if it uses TLS, name the authority of its certificate with --tls-ca" in without_tls.stderr
    stranger = gavel("whoami", "--server", address, "--tls-ca", server.file("strange") / "ca.pem")
    assert (
        f"the certificate of the server at {address} is not signed by the authorities in {server.file('strange')}/ca.pem" in stranger.stderr
    )
    for failure in (without_tls, stranger):
        assert 1 == failure.returncode


def test_certificate_for_another_host(tmp_path: Path, redis_url: str) -> None:
    """A server whose certificate is for another host, or that has no TLS, is refused with the reason."""
    make_certificates(tmp_path / "other", ["gavel.example"], ["client"])
    options = ["--tls-cert", str(tmp_path / "other/server.pem"), "--tls-key", str(tmp_path / "other/server-key.pem")]
    server = Server(tmp_path / "data", options=options, redis_url=redis_url)
    plain = Server(tmp_path / "plain", redis_url=redis_url)
    with run_servers(server, plain):
        failure = gavel("status", "--server", server.address, "--tls-ca", tmp_path / "other/ca.pem")
        assert (1, True) == (failure.returncode, "is not for 127.0.0.1; use a name that it has" in failure.stderr), failure.stderr
        failure = gavel("status", "--server", plain.address, "--tls-ca", tmp_path / "other/ca.pem")
        assert (1, True) == (failure.returncode, f"the server at {plain.address} does not use TLS" in failure.stderr), failure.stderr


def test_missing_client_certificate(mutual: SecureServer) -> None:
    """A caller without a certificate, or with one of another authority, is told so."""
    address, ca, strange = mutual.server.address, mutual.file("ca.pem"), mutual.file("strange")
    without = gavel("whoami", "--server", address, "--tls-ca", ca)
    assert (1, True) == (without.returncode, "if it requires a client certificate, give --tls-cert and --tls-key" in without.stderr), (
        without
    )
    other = gavel(
        "whoami", "--server", address, "--tls-ca", ca, "--tls-cert", strange / "stranger.pem", "--tls-key", strange / "stranger-key.pem"
    )
    assert (1, True) == (other.returncode, "has not signed --tls-cert" in other.stderr), other
    # Strangers could fill the server's log with gRPC's own lines, which no limit holds.
    assert "Handshake failed" not in mutual.server.log()
