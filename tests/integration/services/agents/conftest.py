"""A server on which proposal loops run."""

from __future__ import annotations

import pytest
from gavel_client import GavelClient

from tests.integration.services.agents.loops import RULES
from tests.integration.services.world import World


@pytest.fixture
async def refund_world(world: World) -> World:
    """A server with `loops.RULES` in force."""
    await world.activate(RULES)
    return world


@pytest.fixture
def client(refund_world: World) -> GavelClient:
    """A client of that server."""
    return GavelClient(refund_world.channel)
