"""Fixtures of the servicers' tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.services.world import World, running_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server on a log in memory, with nothing on it but the opened bus."""
    async with running_world() as running:
        await running.buses.open("")
        yield running


@pytest.fixture
async def world_with_rules(world: World) -> World:
    """The same with the rule set of `world.RULE_SET` in force."""
    await world.activate()
    return world
