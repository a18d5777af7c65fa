"""A front, and a server behind it that the tests play.

Most tests make a call twice, to the server itself and through the front, and want the same of both. Nothing may be written to
standard error meanwhile, which is where a front's own mistakes would stand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gavel_server.transport import bind, make_server

from tests.fronts import FRONTS
from tests.integration.front.world import World


@pytest.fixture(params=FRONTS)
async def world(request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> AsyncIterator[World]:
    """A server without a front yet."""
    server = make_server()
    made = World(tmp_path, request.param)
    server.add_generic_rpc_handlers((made.scripted,))
    bind(server, made.inner)
    await server.start()
    yield made
    for channel in made.channels:
        await channel.close()
    await made.keeper.stop()
    await server.stop(None)
    # gRPC may still speak of a connection to a front that an earlier test has killed.
    assert [] == [line for line in capfd.readouterr().err.splitlines() if "Got goaway" not in line]


@pytest.fixture
async def front(world: World) -> World:
    """A server and its front."""
    await world.start()
    return world
