"""A Redis for all tests of a module, one for a single test, and a log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.log.redis.log import RedisLog

from tests.support.entries import PATIENT_MS


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def redis_server(redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedRedis]:
    """A Redis for all tests of a module; the tests run once with each Redis program of this machine."""
    async with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Any]:
    """A plain client of the shared Redis. Its type is Any because redis-py types its calls loosely."""
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as plain:
        yield plain


@pytest.fixture
async def log(redis_url: str, bus: str) -> AsyncIterator[RedisLog]:
    """An empty log on the shared Redis."""
    opened = await RedisLog.connect(redis_url, bus, timeout_ms=PATIENT_MS)
    yield opened
    await opened.close()


@pytest.fixture
async def own_redis(redis_program: str, tmp_path: Path) -> AsyncIterator[EmbeddedRedis]:
    """A Redis for one test, which may kill it, pause it or change its settings."""
    async with EmbeddedRedis(tmp_path / "data") as server:
        yield server
