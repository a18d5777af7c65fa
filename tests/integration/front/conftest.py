"""A server that the tests script, on each transport.

Most tests make a call twice, to the server itself and through the front, and expect the same of both. Nothing may be written to
standard error meanwhile: a front's own mistakes would stand there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.front.world import World
from tests.support.fronts import TRANSPORTS


@pytest.fixture(params=TRANSPORTS)
async def world(request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> AsyncIterator[World]:
    """A server without a front yet."""
    server = World(tmp_path, request.param)
    await server.serve()
    yield server
    await server.stop()
    # gRPC may still log a connection to a front that an earlier test has killed.
    assert [] == [line for line in capfd.readouterr().err.splitlines() if "Got goaway" not in line]


@pytest.fixture
async def front(world: World) -> World:
    """A server on its transport, connected."""
    await world.start()
    return world
