"""Fixtures of the client's tests: a stand-in for the server, and clients of it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
from gavel_client.backoff import Backoff
from gavel_client.client import GavelClient

from tests.unit.client.fake_server import FakeExecutions, FakeServer


@pytest.fixture
def backoff() -> Backoff:
    """Pauses short enough for tests, from a fixed seed."""
    return Backoff(initial_ms=1, maximum_ms=5, random_source=random.Random(1))


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    """A server that answers as the test says."""
    async with FakeServer() as fake:
        yield fake


@pytest.fixture
def executions(server: FakeServer) -> FakeExecutions:
    """The execution service of `server`."""
    return FakeExecutions(server)


@pytest.fixture
async def client(server: FakeServer, backoff: Backoff, bus: str) -> AsyncIterator[GavelClient]:
    """A client of `server`, on the test's own bus."""
    async with GavelClient(server.target, bus=bus, backoff=backoff) as connected:
        yield connected
