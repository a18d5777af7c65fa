"""The users of `gavel redis-acl`, and consumers of work that read Redis themselves, on a real Redis Cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import redis.asyncio
from gavel_client.consumers.work_queue import WorkQueue
from gavel_client.consumers.work_source import DECISIONS, START
from gavel_server.log import LogUnavailableError, empty_head
from gavel_server.log.redis.access import USERS
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.redis.logs import RedisLogs

from tests.integration.test_cluster_logs import migration
from tests.support.entries import NOW_MS, PATIENT_MS, entries_after, head_of, records_of
from tests.support.redis.cluster import RunningCluster

PASSWORD = "of-this-test"  # noqa: S105


@pytest.fixture
async def users(redis_cluster: RunningCluster) -> AsyncIterator[dict[str, str]]:
    """The URL of the shared cluster for each user."""
    async with AsyncExitStack() as stack:
        admins: list[Any] = [await stack.enter_async_context(redis.asyncio.Redis(port=node.port)) for node in redis_cluster.masters]
        for admin in admins:
            for user, rules in USERS.items():
                await admin.execute_command("ACL", "SETUSER", user, "reset", "on", f">{PASSWORD}", *rules.split())
        yield {user: redis_cluster.url.replace("://", f"://{user}:{PASSWORD}@") for user in USERS}
        for admin in admins:
            await admin.execute_command("ACL", "DELUSER", *USERS)


async def test_rights_of_the_users(users: dict[str, str], bus: str) -> None:
    """The server's user can do all that a log needs, and a reader reads and cannot append."""
    log = await RedisLog.connect(users["gavel-server"], bus, timeout_ms=PATIENT_MS)
    entries = entries_after(empty_head(bus), 2)
    await log.append(empty_head(bus), entries, NOW_MS, ["checked"])
    assert all("does not say" not in reason for reason in await log.durability())
    logs = RedisLogs(users["gavel-server"], PATIENT_MS)
    assert bus in await logs.names()
    await logs.close()
    reader = await RedisLog.connect(users["gavel-reader"], bus, timeout_ms=PATIENT_MS)
    assert records_of(entries) == await reader.read(1, 9)
    with pytest.raises(LogUnavailableError, match=r"can't run this command|NOPERM"):
        await reader.append(head_of(entries), entries_after(head_of(entries), 1), NOW_MS, [])
    assert head_of(entries) == await log.head()
    await reader.close()
    await log.close()


async def test_a_consumer_follows_its_bus(users: dict[str, str], redis_cluster: RunningCluster, bus: str) -> None:
    """A consumer that reads Redis itself finds the master of its bus, and finds it again after the slot has moved."""
    name = redis_cluster.bus_on(2, bus)
    log = await RedisLog.connect(redis_cluster.url, name, timeout_ms=PATIENT_MS)
    first = entries_after(empty_head(name), 2, works=("decisions",))
    await log.append(empty_head(name), first, NOW_MS, [])
    consumer = WorkQueue(users["gavel-work"], queue=DECISIONS, group="g", bus=name, min_idle_ms=1)
    assert ["1-0", "2-0"] == [entry.entry_id for entry in [await consumer.read(), await consumer.read()] if entry is not None]
    async with migration(redis_cluster, name, 2, 0):
        pass
    await log.append(head_of(first), entries_after(head_of(first), 1, works=("decisions",)), NOW_MS, [])
    third = await consumer.read()
    assert third is not None
    assert "3-0" == third.entry_id
    _, claimed = await consumer.claim(START)
    assert claimed is not None
    for entry_id in ("1-0", "2-0", "3-0"):
        await consumer.acknowledge(entry_id)
    assert (START, None) == await consumer.claim(START)
    await consumer.leave()
    await consumer.close()
    async with migration(redis_cluster, name, 0, 2):
        pass  # other tests expect the slots where they were
    await log.close()
