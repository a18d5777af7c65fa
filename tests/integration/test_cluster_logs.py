"""Logs on a real Redis Cluster: buses on every master, and slots that move while logs are used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from gavel_rules.redis_keys import head_key, log_key
from gavel_server.log import LogUnavailableError, empty_head
from gavel_server.log.protocol import Growth, LogUnreachableError
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.redis.logs import RedisLogs
from redis.crc import key_slot

from tests.support.entries import NOW_MS, PATIENT_MS, entries_after, head_of, records_of
from tests.support.redis.cluster import RunningCluster, running_cluster

GROUP = "team"
SHORT_MS = 2_000


@pytest.fixture
async def logs(cluster_url: str) -> AsyncIterator[RedisLogs]:
    """All logs in the shared cluster."""
    opened = RedisLogs(cluster_url, PATIENT_MS)
    yield opened
    await opened.close()


@asynccontextmanager
async def migration(cluster: RunningCluster, bus: str, source: int, target: int) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Begin to move the slot of a bus between masters; the value moves a key of the log's head first, and the rest at the end."""
    slot = key_slot(head_key(bus).encode())
    async with redis.asyncio.Redis(port=cluster.masters[source].port) as old, redis.asyncio.Redis(port=cluster.masters[target].port) as new:
        admins: list[Any] = [old, new]
        ids = [(await admin.execute_command("CLUSTER MYID")).decode() for admin in admins]
        await admins[1].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
        await admins[0].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])

        async def move(*keys: str | bytes) -> None:
            await admins[0].execute_command("MIGRATE", "127.0.0.1", cluster.masters[target].port, "", 0, PATIENT_MS, "KEYS", *keys)

        async def move_head() -> None:
            await move(head_key(bus))

        yield move_head
        while keys := await admins[0].execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
            await move(*keys)
        for admin in (admins[1], admins[0]):
            await admin.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])


async def test_buses_on_every_master_are_found(redis_cluster: RunningCluster, logs: RedisLogs, bus: str) -> None:
    """Buses of all masters are listed, exist, and are reported when they grow."""
    buses = [redis_cluster.bus_on(index, bus) for index in range(3)]
    assert [0, 1, 2] == [redis_cluster.index_of(name) for name in buses]
    for name in buses:
        assert not await logs.exists(name)
        log = await logs.open(name)
        await log.append(empty_head(name), entries_after(empty_head(name), 3), NOW_MS, [])
        assert await logs.exists(name)
    assert set(buses) <= set(await logs.names())
    assert Growth(set(buses), {}, set()) == await logs.grown(dict.fromkeys(buses, 2))
    assert Growth({buses[1]}, {}, set()) == await logs.grown({buses[0]: 3, buses[1]: 0, buses[2]: 3})


async def test_durability_is_that_of_the_own_master(redis_cluster: RunningCluster, logs: RedisLogs, bus: str) -> None:
    """A master that may lose events is reported for its own buses alone."""
    buses = [redis_cluster.bus_on(index, bus) for index in range(3)]
    async with redis.asyncio.Redis(port=redis_cluster.masters[1].port) as admin:
        await admin.config_set("appendfsync", "everysec")
        try:
            problems = await logs.durability(buses)
        finally:
            await admin.config_set("appendfsync", "always")
    assert ["appendfsync is everysec, so a crash may lose up to 1 s of acknowledged events; set it to always"] == problems.pop(buses[1])
    assert {buses[0]: [], buses[2]: []} == problems


async def test_a_slot_moves_under_an_open_log(redis_cluster: RunningCluster, cluster_url: str, bus: str) -> None:
    """While the slot of a bus moves, nothing wrong is read and nothing is appended twice; afterwards the log goes on at the new master."""
    name = redis_cluster.bus_on(0, bus)
    log = await RedisLog.connect(cluster_url, name, timeout_ms=PATIENT_MS)
    first = entries_after(empty_head(name), 3, works=("decisions",) * 3)
    await log.append(empty_head(name), first, NOW_MS, [])
    second = entries_after(head_of(first), 2)
    async with migration(redis_cluster, name, 0, 1) as move_head:
        assert records_of(first) == await log.read(1, 9)
        await move_head()
        assert records_of(first) == await log.read(1, 9)
        with pytest.raises(LogUnreachableError, match="TRYAGAIN"):
            await log.head()
        with pytest.raises(LogUnreachableError, match="TRYAGAIN"):
            await log.append(head_of(first), second, NOW_MS, [])
    await log.append(head_of(first), second, NOW_MS, [])
    assert head_of(second) == await log.head()
    assert records_of([*first, *second]) == await log.read(1, 9)
    assert [1, 2, 3] == [entry.sequence_number for entry in await log.work.take_new("decisions", GROUP, "a", 9)]
    async with redis.asyncio.Redis(port=redis_cluster.masters[1].port) as admin:
        assert 5 == await admin.xlen(log_key(name))
    async with migration(redis_cluster, name, 1, 0):
        pass  # other tests expect the slots where they were
    await log.close()


@pytest.mark.long
async def test_a_master_without_a_replica_stops_only_its_own_buses(tmp_path: Path, bus: str) -> None:
    """While a master is silent, buses of the others go on at once; its own are reported, and go on when it is back."""
    async with running_cluster(tmp_path) as cluster:
        logs, hasty_logs = RedisLogs(cluster.url, PATIENT_MS), RedisLogs(cluster.url, SHORT_MS)
        buses = [cluster.bus_on(index, bus) for index in range(3)]
        opened = [await logs.open(name) for name in buses]
        silent = await hasty_logs.open(buses[1])
        entries = [entries_after(empty_head(name), 2) for name in buses]
        cluster.masters[1].pause()
        for index in (0, 2):
            await opened[index].append(empty_head(buses[index]), entries[index], NOW_MS, [])
        with pytest.raises(LogUnavailableError):
            await silent.head()
        # A slow machine may delay the answers of the other masters too.
        growth = Growth(())
        while growth.failures.keys() != {buses[1]} or growth.buses != {buses[0], buses[2]}:
            growth = await hasty_logs.grown(dict.fromkeys(buses, 0))
        cluster.masters[1].proceed()
        while growth.failures or growth.pending:
            growth = await hasty_logs.grown(dict.fromkeys(buses, 0))
        await opened[1].append(empty_head(buses[1]), entries[1], NOW_MS, [])
        assert [head_of(one) for one in entries] == [await log.head() for log in opened]
        await hasty_logs.close()
        await logs.close()
