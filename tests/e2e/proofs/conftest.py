"""A server whose log a notary has signed, a proof of one of its decisions, and the Go programs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from gavel.v1.envelope_pb2 import Envelope

from tests.e2e.cli.programs import copy_of, gavel, play
from tests.e2e.languages.toolchains import build_go_module
from tests.e2e.world import Server, run_servers


class Notarized(NamedTuple):
    """A server, its decisions by name, and a notary of its default bus."""

    server: Server
    decisions: dict[str, Envelope]
    key: Path
    vkey: str
    state: Path

    def sign(self, *options: str | Path, state: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Sign and publish a checkpoint."""
        log = ("--redis", self.server.redis_url)
        arguments = ("--once", "--key", self.key, "--state", state or self.state, *log, *options)
        return gavel("notary", *arguments, server=self.server)

    def proof(self, name: str = "light") -> str:
        """Return the proof file of a decision."""
        result = gavel("proof", self.decisions[name].event_id, server=self.server)
        assert (0, "") == (result.returncode, result.stderr)
        return result.stdout


def make_key(folder: Path) -> tuple[Path, str]:
    """Return the file of a new notary's key, and the public key."""
    result = gavel("notary", "keygen", "--key", folder / "notary.key")
    assert (0, "") == (result.returncode, result.stderr)
    return folder / "notary.key", result.stdout.strip()


@pytest.fixture(scope="session")
def notarized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notarized]:
    """A running server with three parcels, signed. Tests append nothing to its default bus."""
    folder = tmp_path_factory.mktemp("notarized")
    server = Server(folder / "data")
    with run_servers(server):
        decisions = play(server.address)
        one = Notarized(server, decisions, *make_key(folder), folder / "notary")
        signed = one.sign()
        assert (0, "signed and published 13 events of gavel/default\n", "") == (signed.returncode, signed.stdout, signed.stderr)
        yield one


@pytest.fixture(scope="session")
def proof_file(notarized: Notarized, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A proof of an approval."""
    path = tmp_path_factory.mktemp("proof") / "parcel.proof"
    path.write_text(notarized.proof(), encoding="utf-8")
    return path


@pytest.fixture
def own_notarized(notarized: Notarized, tmp_path: Path) -> Iterator[Notarized]:
    """A copy of the notarized log with a server of its own, for tests that change it, and a copy of the notary's state."""
    assert 0 == gavel("status", server=notarized.server).returncode
    with_redis = copy_of(notarized.server.data, tmp_path / "data")
    state = copy_of(notarized.state, tmp_path / "notary")
    server = Server(with_redis)
    with run_servers(server):
        yield notarized._replace(server=server, state=state)


@pytest.fixture(scope="session")
def go_programs() -> Path:
    """The folder with `check` and `witness`, of public libraries."""
    return build_go_module(Path(__file__).parent / "go")
