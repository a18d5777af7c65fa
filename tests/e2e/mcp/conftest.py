"""Fixtures of the proxy's tests: a server of Gavel, a world for each test, and the servers from npm."""

from __future__ import annotations

import fcntl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from gavel_server.log.redis.embedded import EmbeddedRedis

from tests.e2e.languages import toolchains
from tests.e2e.mcp.world import World
from tests.e2e.world import Server, run_servers
from tests.support.paths import ROOT

BUILD = ROOT / "build/mcp"


@pytest.fixture(scope="package")
def gavel(redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of Gavel for all worlds. Tests that stop a server start their own."""
    server = Server(tmp_path_factory.mktemp("gavel"), redis_url=redis_server.url, options=["--no-front"])
    with run_servers(server):
        yield server


@pytest.fixture
async def world(gavel: Server, bus: str, tmp_path: Path) -> AsyncIterator[World]:
    """A folder for a proxy, on a bus of its own."""
    async with gavel.client(bus) as client:
        yield World(tmp_path, gavel, bus, client)


@pytest.fixture(scope="session")
def npm_servers() -> Path:
    """The folder with the servers from npm, which the processes of the tests share."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in ("package.json", "package-lock.json"):
            (BUILD / name).write_bytes(Path(__file__).with_name(name).read_bytes())
        toolchains.install_npm_packages(BUILD)
    return BUILD / "node_modules/@modelcontextprotocol"
