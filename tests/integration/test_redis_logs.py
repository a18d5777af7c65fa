"""All logs of a real Redis: which ones have new events, and which ones exist."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio
from gavel_server.log import Entry, LogUnavailableError, empty_head
from gavel_server.log.protocol import LogVolatileError
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.redis.logs import RedisLogs

from tests.support.entries import NOW_MS, PATIENT_MS, entries_after, head_of


@pytest.fixture
async def logs(redis_url: str) -> AsyncIterator[RedisLogs]:
    """All logs in the shared Redis."""
    opened = RedisLogs(redis_url)
    yield opened
    await opened.close()


async def test_find_logs_with_new_events(redis_url: str, bus: str, logs: RedisLogs) -> None:
    """Exactly the buses whose logs hold more events than known are returned, of more than one command's worth of buses."""
    names = [f"{bus}-{number}" for number in range(1_003)]
    assert set() == (await logs.grown(dict.fromkeys(names, 0))).buses
    for name in (names[0], names[1_002]):
        log = await RedisLog.connect(redis_url, name)
        await log.append(empty_head(name), entries_after(empty_head(name), 3), NOW_MS, [])
        await log.close()
    assert {names[0], names[1_002]} == (await logs.grown(dict.fromkeys(names, 0))).buses
    assert {names[1_002]} == (await logs.grown({**dict.fromkeys(names, 0), names[0]: 3, names[1_002]: 2})).buses
    assert set() == (await logs.grown({names[0]: 3, names[1_002]: 3})).buses
    assert set() == (await logs.grown({})).buses


async def test_a_key_that_is_not_a_stream(redis_url: str, bus: str, logs: RedisLogs) -> None:
    """If Redis refuses a command because of one key, all buses of that command are returned."""
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await client.set(f"gavel:{{{bus}-broken}}:log", "no stream")
    assert {bus, f"{bus}-broken"} == (await logs.grown({bus: 0, f"{bus}-broken": 0})).buses


async def test_bus_exists_from_its_first_event(redis_url: str, bus: str, logs: RedisLogs) -> None:
    """A bus exists once its log holds an event; asking creates no key."""
    assert not await logs.exists(bus)
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert [] == await client.keys(f"gavel:{{{bus}}}:*")
    log = await RedisLog.connect(redis_url, bus)
    assert not await logs.exists(bus)
    assert await logs.head_number(bus) is None
    await log.append(empty_head(bus), entries_after(empty_head(bus), 2), NOW_MS, [])
    await log.close()
    assert await logs.exists(bus)
    assert 2 == await logs.head_number(bus)


async def test_number_of_the_grants(redis_url: str, bus: str, logs: RedisLogs) -> None:
    """The store tells the number of the last event with grants, and the event; nothing of a log that does not exist or does not tell it."""
    assert await logs.grants_number(bus) is None
    assert await logs.envelope(bus, 1) is None
    log = await RedisLog.connect(redis_url, bus)
    first = entries_after(empty_head(bus), 2)
    await log.append(empty_head(bus), first, NOW_MS, [])
    assert 0 == await logs.grants_number(bus)
    plain = entries_after(head_of(first), 4)
    entries = [
        Entry(one.sequence_number, one.envelope, one.chain_hash, one.event_id, "", deploys_grants=one.sequence_number in (4, 5))
        for one in plain
    ]
    await log.append(head_of(first), entries, NOW_MS, [])
    await log.append(head_of(entries), entries_after(head_of(entries), 1), NOW_MS, [])
    await log.close()
    assert 5 == await logs.grants_number(bus)
    assert entries[2].envelope == await logs.envelope(bus, 5)
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await client.hdel(f"gavel:{{{bus}}}:head", "grants")
    assert await logs.grants_number(bus) is None


async def test_existence_is_unknown_without_redis() -> None:
    """A Redis that cannot be reached is an error, not a bus that does not exist."""
    unreachable = RedisLogs("redis://127.0.0.1:1/0")
    with pytest.raises(LogUnavailableError):
        await unreachable.exists("default")


async def test_new_connection_to_a_volatile_redis_appends_nothing(tmp_path: Path, bus: str) -> None:
    """On a new connection, as after a failover, nothing is appended to a Redis that may lose it, before any other check has run."""
    async with EmbeddedRedis(tmp_path) as server:
        logs = RedisLogs(server.url, PATIENT_MS, accept_volatile=False)
        log = await logs.open(bus)  # reads only: nothing has been appended over these connections
        async with redis.asyncio.Redis.from_url(server.url) as admin:
            await admin.config_set("appendfsync", "everysec")
            with pytest.raises(LogVolatileError, match="appendfsync is everysec"):
                await log.append(empty_head(bus), entries_after(empty_head(bus), 1), NOW_MS, [])
            assert empty_head(bus) == await log.head()
            await admin.config_set("appendfsync", "always")
        entries = entries_after(empty_head(bus), 1)
        await log.append(empty_head(bus), entries, NOW_MS, [])
        assert head_of(entries) == await log.head()
        await logs.close()
