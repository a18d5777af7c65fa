"""Fixtures of the end-to-end tests: two servers that share one Redis, and clients of both on a bus of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from gavel_client import GavelClient, backoff
from gavel_server.embedded import EmbeddedRedis

from tests.e2e.world import Server, open_bus, serving
from tests.fronts import ANY_FRONT


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients try no call again: what a test wants to hear is the first refusal, whatever pause the server advises."""
    monkeypatch.setattr(backoff, "TRIES_MAX", 1)


@pytest.fixture(scope="session")
def pair(redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Two servers on the Redis that all tests share, the first with a front. Tests that end a server start their own."""
    data = tmp_path_factory.mktemp("pair")
    servers = (
        Server(data / "first", redis_url=redis_server.url, options=["--front", ANY_FRONT]),
        # Python's hashes differ between the two: what depended on them would not come out alike.
        Server(data / "second", redis_url=redis_server.url, options=["--no-front"], installed=True),
    )
    with serving(*servers):
        yield servers


@pytest.fixture
async def unopened(pair: tuple[Server, Server], bus: str) -> AsyncIterator[tuple[GavelClient, GavelClient]]:
    """A client of each server, on a bus that nobody has used yet. Neither server may have met an error in the end."""
    logged = [len(server.log()) for server in pair]
    async with pair[0].client(bus) as first, pair[1].client(bus) as second:
        yield first, second
    for server, start in zip(pair, logged, strict=True):
        assert "[error" not in server.log()[start:], server.log()[start:]


@pytest.fixture
async def clients(unopened: tuple[GavelClient, GavelClient]) -> tuple[GavelClient, GavelClient]:
    """A client of each server, on a bus with the tests' rule set."""
    await open_bus(unopened[0])
    return unopened
