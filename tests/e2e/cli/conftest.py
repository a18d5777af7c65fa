"""Fixtures of the command line's tests: a server with a log to read, and the data directory of one that has stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope

from tests.e2e.cli.programs import copy_of, play
from tests.e2e.world import Server, serving


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running server with three parcels on its default bus. Tests that write use other subjects or buses."""
    server = Server(tmp_path_factory.mktemp("shop") / "data")
    with serving(server):
        play(server.address)
        yield server


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Envelope]]:
    """The data directory of a server that has stopped, and the decisions in it. Copy it; do not change it."""
    server = Server(tmp_path_factory.mktemp("played") / "data")
    with serving(server):
        decisions = play(server.address)
        assert 0 == server.terminate()
    return server.data, decisions


@pytest.fixture
def log_copy(played: tuple[Path, dict[str, Envelope]], tmp_path: Path) -> Path:
    """A copy of that directory, to do to it what one likes."""
    return copy_of(played[0], tmp_path / "copy")
