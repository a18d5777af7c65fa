"""Fixtures that many tests share: a real Redis for the whole run, and a bus of one's own on it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from gavel_server.embedded import EmbeddedRedis


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def redis_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedRedis]:
    """A Redis for all tests, with the settings of the embedded default. Tests that stop or pause one start their own."""
    async with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as redis:
        yield redis


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The URL of the Redis that all tests share; keep to a `bus` of your own on it."""
    return redis_server.url


@pytest.fixture
def bus() -> str:
    """The name of a bus that nobody else uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
