"""Asking a real Redis about the ends of many logs at once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis.asyncio
from gavel_server.log import empty_head
from gavel_server.log.redis import RedisLog, RedisTails

from tests.entries import NOW_MS, entries_after


@pytest.fixture
async def tails(redis_url: str) -> AsyncIterator[RedisTails]:
    """The ends of all logs in the shared Redis."""
    opened = RedisTails(redis_url)
    yield opened
    await opened.close()


async def test_who_has_grown_is_named(redis_url: str, bus: str, tails: RedisTails) -> None:
    """Of many buses those are named that hold more than is known; an empty log, and one that is as known, are not."""
    names = [f"{bus}-{number}" for number in range(1_003)]
    assert set() == await tails.moved(dict.fromkeys(names, 0))
    for name in (names[0], names[1_002]):
        log = await RedisLog.connect(redis_url, name)
        await log.append(empty_head(name), entries_after(empty_head(name), 3), NOW_MS, [])
        await log.close()
    assert {names[0], names[1_002]} == await tails.moved(dict.fromkeys(names, 0))
    assert {names[1_002]} == await tails.moved({**dict.fromkeys(names, 0), names[0]: 3, names[1_002]: 2})
    assert set() == await tails.moved({names[0]: 3, names[1_002]: 3})
    assert set() == await tails.moved({})


async def test_a_key_that_is_no_stream_is_everybodys_business(redis_url: str, bus: str, tails: RedisTails) -> None:
    """Where Redis refuses to say because of one log, each has to look at itself."""
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await client.set(f"gavel:{{{bus}-broken}}:log", "no stream")
    assert {bus, f"{bus}-broken"} == await tails.moved({bus: 0, f"{bus}-broken": 0})
