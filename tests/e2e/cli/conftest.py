"""Fixtures of the command line's tests: a running server with a log, and the data directory of a stopped one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope

from tests.e2e.cli.programs import copy_of, play
from tests.e2e.world import Server, run_servers


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running server with three parcels on its default bus. Tests that write use other subjects or buses."""
    server = Server(tmp_path_factory.mktemp("shop") / "data")
    with run_servers(server):
        play(server.address)
        yield server


@pytest.fixture(scope="session")
def sample_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Envelope]]:
    """The data directory of a stopped server, and its decisions. Use a copy to change it."""
    server = Server(tmp_path_factory.mktemp("played") / "data")
    with run_servers(server):
        decisions = play(server.address)
        assert 0 == server.terminate()
    return server.data, decisions


@pytest.fixture
def log_copy(sample_log: tuple[Path, dict[str, Envelope]], tmp_path: Path) -> Path:
    """A copy of that directory, for tests that change it."""
    return copy_of(sample_log[0], tmp_path / "copy")
