"""Fixtures of the servicers' tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from gavel_server.compile import compiler
from gavel_server.compile import worker as compiler_worker

from tests.e2e.runs import forker
from tests.integration.services.world import World, running_world


@pytest.fixture(scope="package", autouse=True)
def forked_compilers() -> Iterator[None]:
    """Children of the compiler are forks of one that has imported its modules, which takes most of their time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compiler, "_COMMAND", forker().command(compiler_worker.__name__))
        yield


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
