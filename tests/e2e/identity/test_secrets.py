"""Secrets that are planted in everything that a server is given, and looked for in everything that it gives away."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import Certificate, GavelError, SyncGavelClient, Tls, diagnostic_envelope, fact_envelope
from gavel_server.front.programs import FrontSetting
from gavel_server.identity.tokens import PREFIX

from tests.e2e.identity.world import METHODS, SecureServer, attempt, bearer
from tests.e2e.telemetry.calls import SOON
from tests.e2e.telemetry.otlp import running_collector
from tests.e2e.world import AGENT, DEPOT, START_SECONDS_MAX, proposal, rule_set
from tests.support.fronts import TRANSPORTS
from tests.support.identity.key_server import running_key_server
from tests.support.ports import free_port
from tests.support.redis.programs import redis_programs

# In every planted secret: whatever part of one is found, it is found by this.
MARK = "planted-7c1f"
LINE_CHARACTERS = 40


@contextmanager
def redis_with_password(directory: Path, password: str) -> Iterator[str]:
    """Run a Redis that asks for a password; yield its URL."""
    directory.mkdir()
    socket = directory / "redis.sock"
    settings = {"port": "0", "unixsocket": socket, "dir": directory, "requirepass": password, "appendonly": "yes", "appendfsync": "always"}
    configuration = "".join(f"{name} {value}\n" for name, value in settings.items()) + "maxmemory-policy noeviction\n"
    process = subprocess.Popen([next(iter(redis_programs().values())), "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(configuration.encode())
    process.stdin.close()
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not socket.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield f"unix://:{password}@{socket}"
    finally:
        process.kill()
        process.wait()


def processes_of(process_id: int) -> list[Path]:
    """Return the directories in /proc of a process and its children."""
    children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    return [Path(f"/proc/{number}") for number in (process_id, *children)]


def key_lines(path: Path) -> list[str]:
    """Return the lines of a private key that tell it from others."""
    return [line for line in path.read_text().splitlines()[2:-1] if len(line) > LINE_CHARACTERS]


def payloads() -> list[Envelope]:
    """Return events, valid and not, with secrets wherever a caller may put content."""
    secret = {"note": MARK, MARK: [MARK]}
    valid = fact_envelope("parcel/1", DEPOT, key="parcel.status", value=secret)
    malformed = fact_envelope("parcel/1", DEPOT, key=f"Parcel {MARK}", value=secret)
    untraced = fact_envelope(f"{MARK}//parcel", DEPOT, key="parcel.status", value=secret)
    forged = fact_envelope("parcel/1", AGENT, key="parcel.status", value=secret)
    diagnostic = diagnostic_envelope("agent/1", AGENT, kind="TestRan", attributes=secret)
    return [valid, malformed, untraced, forged, diagnostic]


def call_with_everything(server: SecureServer, tokens: list[str]) -> None:
    """Make calls of each outcome: accepted, refused credentials, lacking rights, invalid payloads, refused proposals."""
    with server.channel((server.file("worker.pem").read_bytes(), server.file("worker-key.pem").read_bytes())) as channel:
        for token in tokens:
            for method in METHODS:
                attempt(channel, method, (*bearer(token), ("x-api-key", MARK), ("baggage", f"key={MARK}")))
    certificate = Certificate(server.file("worker.pem"), server.file("worker-key.pem"))
    with SyncGavelClient(server.server.address, tls=Tls(ca=server.file("ca.pem")), credentials=[certificate, server.token]) as client:
        client.deploy_rule_set(rule_set())
        client.activate_rule_set("parcels", 1)
        published = [attempt_publication(client, envelope) for envelope in payloads()]
        assert published[0] is not None
        offer = proposal(published[0])
        offer.proposal.params.update({"weight": 1, "comment": MARK})  # the schema allows no other key
        with suppress(GavelError):
            client.submit_proposal(offer)
        with pytest.raises(GavelError):
            client.deploy_rule_set(f"gavel: v1\nrule_set: {MARK}\nversion: 1\nrules: [{{id: {MARK}, when: '{MARK} =='}}]\n")


def attempt_publication(client: SyncGavelClient, envelope: Envelope) -> Envelope | None:
    """Publish an event; return it as recorded, or None if it is refused."""
    try:
        return client.publish_event(envelope).envelope
    except GavelError:
        return None


@pytest.mark.parametrize("front", TRANSPORTS)
def test_secrets_are_given_away_nowhere(tmp_path: Path, front: FrontSetting) -> None:
    """No token, key, password, metadata or payload is in log lines, traces, metrics, command lines, or environments of child processes."""
    metrics = f"127.0.0.1:{free_port()}"
    with redis_with_password(tmp_path / "redis", MARK) as url, running_collector() as collector, running_key_server() as web:
        web.status = 500
        environment = {
            "GAVEL_REDIS": url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc_endpoint,
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {MARK}",
            **SOON,
        }
        options = ["--metrics", metrics, "--log-level", "debug"]
        server = SecureServer(
            tmp_path,
            front,
            client_certificates=True,
            jwks_url=f"{web.url}?key={MARK}",
            options=options,
            environment=environment,
        )
        server.issue_client_certificate("worker")
        tokens = [
            server.token,
            PREFIX + MARK,
            server.issuer.token(note=MARK),
            server.issuer.token(exp=1, note=MARK),
            server.issuer.forged({"alg": "HS256", "note": MARK}),
            MARK,
        ]
        with server.running():
            call_with_everything(server, tokens)
            command_lines = [(path / "cmdline").read_text(errors="replace") for path in processes_of(server.server.running.pid)]
            environments = [(path / "environ").read_text(errors="replace") for path in processes_of(server.server.running.pid)[1:]]
            with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=20) as answer:  # loopback
                shown = answer.read().decode()
            assert 0 == server.server.terminate()
        exported = collector.received().decode(errors="replace")
    places: dict[str, Any] = {
        "log": server.server.log(),
        "metrics": shown,
        "traces and exported metrics": exported,
        "command lines": "\n".join(command_lines),
        "environments of children": "\n".join(environments),
    }
    assert "call.refused" in places["log"]
    assert "identity.keys_unavailable" in places["log"]
    assert "SubmitProposal" in exported
    assert "gavel_" in shown
    assert len(command_lines) == (2 if front == "native" else 1)
    keys = [
        line for name in ("server-key.pem", "worker-key.pem", "ca-key.pem", "client-ca-key.pem") for line in key_lines(server.file(name))
    ]
    assert len(keys) >= 4
    for place, text in places.items():
        for secret in (MARK, *tokens, *(token.rpartition(".")[2] for token in tokens), *keys, json.dumps(MARK)[1:-1]):
            assert secret not in text, (place, [line for line in text.splitlines() if secret in line][:1])
