"""Fixtures of the end-to-end tests: two servers that share one Redis, and clients of both on a bus of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from gavel_client import GavelClient
from gavel_server.log.redis.embedded import EmbeddedRedis

from tests.e2e.world import Server, open_bus, run_servers
from tests.support.fronts import ANY_FRONT


@pytest.fixture(scope="session")
def pair(redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Two servers on the shared Redis, the first with a front. Tests that stop a server start their own."""
    data = tmp_path_factory.mktemp("pair")
    servers = (
        Server(data / "first", redis_url=redis_server.url, options=["--front", ANY_FRONT]),
        # The two have different hash seeds, which reveals results that depend on them.
        Server(data / "second", redis_url=redis_server.url, options=["--no-front"], installed=True),
    )
    with run_servers(*servers):
        yield servers


@pytest.fixture
async def new_bus_clients(pair: tuple[Server, Server], bus: str) -> AsyncIterator[tuple[GavelClient, GavelClient]]:
    """A client of each server, on a new bus. Fails if a server has logged an error."""
    logged = [len(server.log()) for server in pair]
    async with pair[0].client(bus) as first, pair[1].client(bus) as second:
        yield first, second
    for server, start in zip(pair, logged, strict=True):
        assert "[error" not in server.log()[start:], server.log()[start:]


@pytest.fixture
async def clients(new_bus_clients: tuple[GavelClient, GavelClient]) -> tuple[GavelClient, GavelClient]:
    """A client of each server, on a bus with the tests' rule set."""
    await open_bus(new_bus_clients[0])
    return new_bus_clients


@pytest.fixture(params=["grpc", "redis"])
def queue_url(request: pytest.FixtureRequest, redis_url: str) -> str:
    """Where an executor takes its work from: "" for the server's streams, and the URL of the Redis."""
    return redis_url if request.param == "redis" else ""
