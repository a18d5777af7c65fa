"""The log on a real Redis: the content of its keys, and its errors when Redis dies, refuses writes or cannot be reached."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from gavel_server.log import (
    Entry,
    Head,
    HeadMovedError,
    IdEntry,
    LogUnavailableError,
    NotReplicatedError,
    OutcomeUnknownError,
    chain,
    empty_head,
    genesis_hash,
)
from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.urls import mask_url
from gavel_server.log.work.protocol import ConsumerGroup

from tests.support.entries import DAY_MS, NOW_MS, PATIENT_MS, entries_after, head_of, records_of
from tests.support.redis.tcp import replicated_redis


async def test_keys_byte_for_byte(log: RedisLog, client: Any, bus: str) -> None:
    """Keys, types, fields and values are the documented ones, byte for byte."""
    envelopes = [b"\x00one", b"two", b"three"]
    hashes = [chain(genesis_hash(bus), b"\x00one")]
    hashes += [chain(hashes[0], b"two")]
    hashes += [chain(hashes[1], b"three")]
    await log.append(
        empty_head(bus),
        [
            Entry(1, envelopes[0], hashes[0], "id-1", "", 2),
            Entry(2, envelopes[1], hashes[1], "id-2", "decisions"),
            Entry(3, envelopes[2], hashes[2], "id-3", "executions"),
        ],
        NOW_MS,
        ["id-1"],
    )
    prefix = b"gavel:{%s}:" % bus.encode()
    rows = [(b"%d-0" % number, {b"e": envelopes[number - 1], b"h": hashes[number - 1]}) for number in (1, 2, 3)]
    assert sorted(prefix + name for name in (b"log", b"head", b"work:decisions", b"work:executions", b"ids:20000")) == sorted(
        await client.keys(f"gavel:{{{bus}}}:*")
    )
    assert rows == await client.xrange(prefix + b"log")
    assert rows[1:2] == await client.xrange(prefix + b"work:decisions")
    assert rows[2:3] == await client.xrange(prefix + b"work:executions")
    head = {b"sequence_number": b"3", b"chain_hash": hashes[2], b"count": b"3", b"format_version": b"1", b"grants": b"0"}
    assert head == await client.hgetall(prefix + b"head")
    assert {b"id-1": b"1:2", b"id-2": b"2", b"id-3": b"3"} == await client.hgetall(prefix + b"ids:20000")
    assert 8 * DAY_MS < await client.pttl(prefix + b"ids:20000") <= 9 * DAY_MS
    assert -1 == await client.pttl(prefix + b"log")


async def test_refused_append_leaves_no_key(log: RedisLog, client: Any, bus: str) -> None:
    """A refused append writes to no key."""
    ahead = Head(4, b"4" * 32)
    with pytest.raises(HeadMovedError):
        await log.append(ahead, [Entry(5, b"five", chain(ahead.chain_hash, b"five"), "id-5", "decisions")], NOW_MS, ["id-5"])
    assert [] == await client.keys(f"gavel:{{{bus}}}:*")


async def test_work_queues_and_groups(log: RedisLog, client: Any, bus: str) -> None:
    """A group reads from the queue's first entry; its lag, pending entries and members are reported."""
    assert [] == await log.work.groups()
    entries = [
        Entry(number, b"work", b"%032d" % number, f"id-{number}", "decisions" if number % 2 else "executions") for number in range(1, 6)
    ]
    await log.append(empty_head(bus), entries, NOW_MS, [])
    await log.ensure_groups()
    queue = f"gavel:{{{bus}}}:work:decisions"
    assert [ConsumerGroup("executors", "decisions", 3, 0, 0), ConsumerGroup("fdr", "executions", 2, 0, 0)] == await log.work.groups()
    delivered = await client.xreadgroup("executors", "one", {queue: ">"}, count=1)
    assert [b"1-0"] == [entry_id for _, rows in delivered for entry_id, _ in rows]
    assert [ConsumerGroup("executors", "decisions", 2, 1, 1), ConsumerGroup("fdr", "executions", 2, 0, 0)] == await log.work.groups()
    await client.xack(queue, "executors", "1-0")
    await client.xdel(queue, "1-0")
    await client.xreadgroup("executors", "two", {queue: ">"}, count=5)
    await client.xack(queue, "executors", "3-0", "5-0")
    assert ConsumerGroup("executors", "decisions", 0, 0, 2) == (await log.work.groups())[0]


async def test_groups_before_the_first_event(log: RedisLog, bus: str) -> None:
    """Groups may be created before the first event, and do not disturb its append."""
    await log.ensure_groups()
    assert [ConsumerGroup("executors", "decisions", 0, 0, 0), ConsumerGroup("fdr", "executions", 0, 0, 0)] == await log.work.groups()
    entry = Entry(1, b"one", chain(genesis_hash(bus), b"one"), "id-1", "decisions")
    await log.append(empty_head(bus), [entry], NOW_MS, [])
    assert head_of([entry]) == await log.head()


async def test_script_is_reloaded(log: RedisLog, client: Any, bus: str) -> None:
    """The script is sent again to a Redis that has lost it, as after a restart."""
    first = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), first, NOW_MS, [])
    await client.script_flush()
    second = entries_after(head_of(first), 1)
    await log.append(head_of(first), second, NOW_MS, [])
    assert head_of(second) == await log.head()


async def test_killed_redis_keeps_acknowledged_entries(own_redis: EmbeddedRedis, bus: str) -> None:
    """kill -9 of Redis between or during appends loses no acknowledged entry; the head settles unknown outcomes."""
    log = await RedisLog.connect(own_redis.url, bus, timeout_ms=PATIENT_MS)
    head, acknowledged = await log.head(), 0
    for round_number in range(3):
        killer: asyncio.TimerHandle | None = None
        while True:
            entries = entries_after(head, 3)
            try:
                await log.append(head, entries, NOW_MS, [])
            except (OutcomeUnknownError, LogUnavailableError):
                break
            head, acknowledged = head_of(entries), head_of(entries).sequence_number
            if killer is None:
                after_s = 0.02 + 0.01 * round_number
                killer = asyncio.get_running_loop().call_later(after_s, os.kill, own_redis.process_id or 0, signal.SIGKILL)
        assert killer is not None
        assert -signal.SIGKILL == await own_redis.wait()
        assert await own_redis.ensure_running()
        actual = await log.head()
        assert actual in (head, head_of(entries))
        head = actual
    assert acknowledged > 0
    records = [record for first in range(1, head.sequence_number, 1000) for record in await log.read(first, first + 999)]
    expected = entries_after(empty_head(bus), head.sequence_number)
    assert records_of(expected) == records
    assert expected[-1].event_id in await log.find([expected[-1].event_id], NOW_MS)
    await log.close()


async def test_stopped_redis_is_unavailable(own_redis: EmbeddedRedis, bus: str) -> None:
    """Without Redis every call is unavailable; an append that was not sent has no unknown outcome."""
    log = await RedisLog.connect(own_redis.url, bus, timeout_ms=PATIENT_MS)
    await own_redis.stop()
    with pytest.raises(LogUnavailableError, match=r"cannot connect to Redis at unix://"):
        await log.append(empty_head(bus), entries_after(empty_head(bus), 1), NOW_MS, [])
    with pytest.raises(LogUnavailableError):
        await log.head()
    with pytest.raises(LogUnavailableError, match=r"cannot connect"):
        await RedisLog.connect(own_redis.url, bus)


async def test_closed_log(redis_url: str, bus: str) -> None:
    """Every call of a closed log is an error."""
    log = await RedisLog.connect(redis_url, bus)
    await log.close()
    with pytest.raises(LogUnavailableError, match="was closed"):
        await log.append(empty_head(bus), entries_after(empty_head(bus), 1), NOW_MS, [])


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [("maxmemory", "used + 256 KiB", "OOM"), ("min-replicas-to-write", "1", "NOREPLICAS"), ("replicaof", "127.0.0.1 1", "READONLY")],
)
async def test_refused_append_applies_nothing(own_redis: EmbeddedRedis, bus: str, setting: str, value: str, message: str) -> None:
    """A Redis that is full, lacks replicas or is a replica refuses the whole append with the reason, and still serves all reads."""
    log = await RedisLog.connect(own_redis.url, bus, timeout_ms=PATIENT_MS)
    await log.ensure_groups()
    first = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), first, NOW_MS, [])
    async with redis.asyncio.Redis.from_url(own_redis.url) as plain:
        if setting == "maxmemory":  # no room for the append
            value = str((await plain.info("memory"))["used_memory"] + 256 * 1024)
        await (plain.replicaof(*value.split()) if setting == "replicaof" else plain.config_set(setting, value))
        second = entries_after(head_of(first), 5_000, works=["decisions"])
        with pytest.raises(LogUnavailableError, match=message):
            await log.append(head_of(first), second, NOW_MS, [])
    assert records_of(first) == await log.read(1, 10)
    assert records_of(first)[:1] == [*(await log.read_many([1])).values()]
    assert head_of(first) == await log.head()
    await log.ensure_groups()
    await log.close()


async def test_durability(own_redis: EmbeddedRedis, bus: str) -> None:
    """The embedded settings are durable; each weaker setting is reported with advice."""
    log = await RedisLog.connect(own_redis.url, bus, timeout_ms=PATIENT_MS)
    assert [] == await log.durability()
    async with redis.asyncio.Redis.from_url(own_redis.url) as plain:
        await plain.config_set("appendfsync", "everysec")
        assert ["appendfsync is everysec, so a crash may lose up to 1 s of acknowledged events; set it to always"] == await log.durability()
        await plain.config_set("appendfsync", "no")
        assert ["appendfsync is no, so a crash may lose acknowledged events; set it to always"] == await log.durability()
        await plain.config_set("appendfsync", "always")
        await plain.config_set("no-appendfsync-on-rewrite", "yes")
        assert [
            "no-appendfsync-on-rewrite is yes, so a crash while Redis rewrites its file may lose acknowledged events; set it to no"
        ] == await log.durability()
        await plain.config_set("maxmemory-policy", "allkeys-lru")
        await plain.config_set("appendonly", "no")
        assert [
            "maxmemory-policy is allkeys-lru, so Redis may evict the log; set it to noeviction",
            "appendonly is off, so a restart of Redis loses acknowledged events; set it to yes",
        ] == await log.durability()
        await plain.acl_setuser("default", commands=["-config"])
        assert "it answers NOPERM" in (await log.durability())[0]
    await log.close()


@pytest.mark.usefixtures("redis_program")
async def test_replicas(tmp_path: Path, bus: str) -> None:
    """An append without enough replicas is an error although it is in the log; a replica refuses appends."""
    async with replicated_redis(tmp_path) as (primary, copy):
        url = primary.url
        safe = await RedisLog.connect(url, bus, acknowledgement=Acknowledgement(1), timeout_ms=PATIENT_MS)
        first = entries_after(empty_head(bus), 2)
        await safe.append(empty_head(bus), first, NOW_MS, [])
        assert (
            "1 replica(s) and min-replicas-to-write 0, so a failover may lose acknowledged events; set it to at least 1"
            in await safe.durability()
        )

        replica = await RedisLog.connect(copy.url, bus)
        assert records_of(first) == await replica.read(1, 10)
        assert (
            f"it is a replica of 127.0.0.1:{primary.port}, whose next copy undoes what is written here; name the primary"
            in await replica.durability()
        )
        with pytest.raises(LogUnavailableError, match="READONLY"):
            await replica.append(head_of(first), entries_after(head_of(first), 1), NOW_MS, [])

        safer = await RedisLog.connect(url, bus, acknowledgement=Acknowledgement(2), timeout_ms=1_000)
        second = entries_after(head_of(first), 1)
        with pytest.raises(
            NotReplicatedError, match=r"events up to 3 are in the log, but only [01] of 2 replicas confirmed within 1000 ms"
        ):
            await safer.append(head_of(first), second, NOW_MS, [])
        assert head_of(second) == await safe.head()
        assert {"event-3": IdEntry(3, 0)} == await safe.find(["event-3"], NOW_MS)
        for log in (safe, replica, safer):
            await log.close()


@pytest.mark.usefixtures("redis_program")
async def test_a_full_redis_confirms(tmp_path: Path, bus: str) -> None:
    """A log that is opened while Redis is full confirms its events, so that they can be read, archived and trimmed, and reports a loss."""
    async with replicated_redis(tmp_path) as (primary, _), redis.asyncio.Redis.from_url(primary.url) as plain:
        log = await RedisLog.connect(primary.url, bus, timeout_ms=PATIENT_MS)
        entries = entries_after(empty_head(bus), 2)
        await log.append(empty_head(bus), entries, NOW_MS, [])
        await log.close()
        await plain.config_set("maxmemory", 1)
        log = await RedisLog.connect(primary.url, bus, acknowledgement=Acknowledgement(1), timeout_ms=PATIENT_MS)
        head = head_of(entries)
        with pytest.raises(LogUnavailableError, match="OOM"):
            await log.append(head, entries_after(head, 1), NOW_MS, [])
        assert not log.is_confirmed(head.sequence_number)
        await log.confirm(head)
        assert log.is_confirmed(head.sequence_number)
        lost = Head(3, bytes(32))
        await log.report_loss(lost)
        await log.head()
        assert lost == log.lost_head
        await log.close()


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://gavel:s3cret@host:6379/0", "redis://***@host:6379/0"),
        ("rediss://:s3cret@host/1?ssl_password=s3cret&db=2", "rediss://***@host/1?ssl_password=***&db=2"),
        ("unix:///run/redis.sock?password=s3cret", "unix:///run/redis.sock?password=***"),
        ("redis://:s3c/r@e#t@host:6379", "redis://***@host:6379"),
        ("redis://host:6379/0", "redis://host:6379/0"),
    ],
)
def test_masked_url(url: str, masked: str) -> None:
    """A masked URL holds neither user nor password, even if it is malformed."""
    assert masked == mask_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret/with/slashes@host:6379",
        "http://:s3cret@host",
        "redis://:s3cret@host?protocol=3",
        "redis://:s3cret@host?socket_timeout=1",
        "redis://:s3cret@host?colour=red",
        "redis://:s3cret@host?db=many",
        "s3cret",
    ],
)
async def test_unusable_url(url: str, bus: str) -> None:
    """An unusable URL is an error before any connection, with an example and without the password."""
    with pytest.raises(ValueError, match=r"redis://host:6379/0") as error_info:
        await RedisLog.connect(url, bus)
    assert "s3cret" not in str(error_info.value).replace("s3cret is malformed", "")


async def test_wrong_password_is_masked(redis_url: str, bus: str) -> None:
    """A refused login is an error with the masked URL."""
    with pytest.raises(LogUnavailableError) as error_info:
        await RedisLog.connect(f"{redis_url}?username=gavel&password=s3cret", bus)
    assert "invalid username-password pair" in str(error_info.value)
    assert "s3cret" not in str(error_info.value)


async def test_invalid_bus_name_is_an_error(redis_url: str) -> None:
    """An invalid bus name is an error, because its keys could clash or spread over a cluster."""
    with pytest.raises(ValueError, match=r"bus 'no}bus'"):
        await RedisLog.connect(redis_url, "no}bus")
