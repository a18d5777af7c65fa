"""Acknowledgement by the disks of a primary and its replica (WAITAOF), on real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from gavel_server.log import Head, LogUnavailableError, empty_head
from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.protocol import NotReplicatedError
from gavel_server.log.redis.log import RedisLog

from tests.support.entries import NOW_MS, PATIENT_MS, entries_after, head_of
from tests.support.redis.cluster import DURABLE
from tests.support.redis.programs import redis_programs
from tests.support.redis.tcp import RedisOnTcp, redis_on_tcp
from tests.support.redis.valkey import valkey_program

DISKS = Acknowledgement(1, is_synced=True)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[tuple[RedisOnTcp, RedisOnTcp]]:
    """A primary that writes its file, and a replica that does not."""
    program = valkey_program()
    async with (
        redis_on_tcp(tmp_path / "primary", *DURABLE, program=program) as primary,
        redis_on_tcp(tmp_path / "replica", "--replicaof", "127.0.0.1", str(primary.port), program=program) as replica,
    ):
        yield primary, replica


async def refusal(log: RedisLog, head: Head) -> str:
    """Confirm an event once; return why it is not confirmed, or ""."""
    try:
        await log.confirm(head)
    except NotReplicatedError as error:
        return str(error)
    return ""


@pytest.mark.long
async def test_an_event_is_acknowledged_once_it_is_on_both_disks(servers: tuple[RedisOnTcp, RedisOnTcp], bus: str) -> None:
    """A replica that keeps no file confirms nothing, although the event is in the log; once it keeps one, the event is confirmed."""
    primary, replica = servers
    log = await RedisLog.connect(primary.url, bus, acknowledgement=DISKS, timeout_ms=1_000)
    entries = entries_after(empty_head(bus), 2)
    with pytest.raises(NotReplicatedError):
        await log.append(empty_head(bus), entries, NOW_MS, [])
    assert head_of(entries) == await log.head()
    assert not log.is_confirmed(2)
    while "did not write them to its disk" in (problem := await refusal(log, head_of(entries))):
        pass  # the primary's disk is slow
    assert "only 0 of 1 replicas wrote them to their disks, for which they need appendonly yes" in problem
    async with redis.asyncio.Redis(port=replica.port) as connection:
        admin: Any = connection
        await admin.config_set("appendonly", "yes")
    while not log.is_confirmed(2):
        await refusal(log, head_of(entries))  # the replica writes its first file
    further = entries_after(head_of(entries), 1)
    patient = await RedisLog.connect(primary.url, bus, acknowledgement=DISKS, timeout_ms=PATIENT_MS)
    await patient.append(head_of(entries), further, NOW_MS, [])
    assert patient.is_confirmed(3)
    # After a failover, the log may have another event with the number of one that was lost.
    survivor = await RedisLog.connect(primary.url, bus, acknowledgement=DISKS, timeout_ms=PATIENT_MS)
    with pytest.raises(LogUnavailableError, match="does not hold event 3"):
        await survivor.confirm(Head(3, b"\x03" * 32))
    assert not survivor.is_confirmed(3)
    await survivor.confirm(head_of(further))
    await survivor.close()
    await patient.close()
    await log.close()


async def test_an_old_redis_is_refused(tmp_path: Path, bus: str) -> None:
    """A Redis without WAITAOF is refused before anything is written, with what to do."""
    old = next(path for name, path in redis_programs().items() if name.startswith("redis-6."))
    async with redis_on_tcp(tmp_path, program=old) as server:
        with pytest.raises(LogUnavailableError, match=r"is version 6\..*--ack aof:N needs Redis 7\.2 or later, or Valkey"):
            await RedisLog.connect(server.url, bus, acknowledgement=DISKS)
