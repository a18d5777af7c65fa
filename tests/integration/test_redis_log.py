"""The log on a real Redis: what its keys hold, and what it says when Redis dies, hangs, refuses or lies about its past."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from gavel_server.embedded import EmbeddedRedis, find_redis
from gavel_server.log import (
    ConsumerGroup,
    Entry,
    Head,
    HeadMovedError,
    IdEntry,
    LogCorruptError,
    LogUnavailableError,
    NotReplicatedError,
    OutcomeUnknownError,
    chain,
    empty_head,
    genesis_hash,
)
from gavel_server.log.redis import RedisLog
from gavel_server.log.wire import mask_url
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from tests.entries import DAY_MS, NOW_MS, entries_after, head_of, records_of
from tests.ports import free_port


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Any]:
    """A plain client of the Redis that all tests share, to look behind the log's back. Any: redis-py types its calls loosely."""
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as plain:
        yield plain


@pytest.fixture
async def log(redis_url: str, bus: str) -> AsyncIterator[RedisLog]:
    """An empty log on the shared Redis."""
    opened = await RedisLog.connect(redis_url, bus)
    yield opened
    await opened.close()


@pytest.fixture
async def own_redis(tmp_path: Path) -> AsyncIterator[EmbeddedRedis]:
    """A Redis of one's own, to be killed, paused or given other settings."""
    async with EmbeddedRedis(tmp_path / "data") as server:
        yield server


class Proxy:
    """Stands between a log and its Redis, on a socket of its own, and can hold back appends or lose their answers."""

    def __init__(self, redis_socket: str) -> None:
        self.hold_appends = False
        self.lose_answers = False
        self.held: asyncio.Queue[bytes] = asyncio.Queue()
        self._redis_socket = redis_socket

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass requests and answers on, one client."""
        redis_reader, redis_writer = await asyncio.open_unix_connection(self._redis_socket)
        try:
            while request := await reader.read(1 << 20):
                is_append = b"EVAL" in request
                if is_append and self.hold_appends:
                    await self.held.put(request)
                    await reader.read()  # until the log gives up
                    return
                redis_writer.write(request)
                answer = await redis_reader.read(1 << 20)
                if is_append and self.lose_answers:
                    return
                writer.write(answer)
        finally:
            redis_writer.close()
            writer.close()

    async def deliver(self) -> bytes:
        """Let the append that was held back arrive at last; return what Redis answers to nobody."""
        reader, writer = await asyncio.open_unix_connection(self._redis_socket)
        writer.write(await self.held.get())
        answer = await reader.read(1 << 20)
        writer.close()
        return answer


@asynccontextmanager
async def proxied(redis_url: str, bus: str, directory: Path) -> AsyncIterator[tuple[Proxy, RedisLog]]:
    """A log that reaches its Redis through a Proxy, and gives up after a fifth of a second."""
    proxy = Proxy(redis_url.removeprefix("unix://"))
    path = directory / "proxy.sock"
    server = await asyncio.start_unix_server(proxy.serve, path)
    log = await RedisLog.connect(f"unix://{path}", bus, timeout_ms=1_000)
    try:
        yield proxy, log
    finally:
        await log.close()
        server.close()


async def test_keys_byte_for_byte(log: RedisLog, client: Any, bus: str) -> None:
    """The keys, their types, fields and values are those that other programs and later versions rely on."""
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
    assert {b"sequence_number": b"3", b"chain_hash": hashes[2], b"count": b"3", b"format_version": b"1"} == await client.hgetall(
        prefix + b"head"
    )
    assert {b"id-1": b"1:2", b"id-2": b"2", b"id-3": b"3"} == await client.hgetall(prefix + b"ids:20000")
    assert 8 * DAY_MS < await client.pttl(prefix + b"ids:20000") <= 9 * DAY_MS
    assert -1 == await client.pttl(prefix + b"log")


async def test_refused_append_leaves_no_key(log: RedisLog, client: Any, bus: str) -> None:
    """A refused append writes nothing at all, to no key."""
    ahead = Head(4, b"4" * 32)
    with pytest.raises(HeadMovedError):
        await log.append(ahead, [Entry(5, b"five", chain(ahead.chain_hash, b"five"), "id-5", "decisions")], NOW_MS, ["id-5"])
    assert [] == await client.keys(f"gavel:{{{bus}}}:*")


async def test_work_queues_and_groups(log: RedisLog, client: Any, bus: str) -> None:
    """A group sees work from the queue's first entry on, and its lag, pending entries and members are told."""
    assert [] == await log.consumers()
    entries = [
        Entry(number, b"work", b"%032d" % number, f"id-{number}", "decisions" if number % 2 else "executions") for number in range(1, 6)
    ]
    await log.append(empty_head(bus), entries, NOW_MS, [])
    await log.ensure_groups()
    queue = f"gavel:{{{bus}}}:work:decisions"
    assert [ConsumerGroup("executors", "decisions", 3, 0, 0), ConsumerGroup("fdr", "executions", 2, 0, 0)] == await log.consumers()
    delivered = await client.xreadgroup("executors", "one", {queue: ">"}, count=1)
    assert [b"1-0"] == [entry_id for _, rows in delivered for entry_id, _ in rows]
    assert [ConsumerGroup("executors", "decisions", 2, 1, 1), ConsumerGroup("fdr", "executions", 2, 0, 0)] == await log.consumers()
    await client.xack(queue, "executors", "1-0")
    await client.xdel(queue, "1-0")
    await client.xreadgroup("executors", "two", {queue: ">"}, count=5)
    await client.xack(queue, "executors", "3-0", "5-0")
    assert ConsumerGroup("executors", "decisions", 0, 0, 2) == (await log.consumers())[0]


async def test_groups_before_the_first_event(log: RedisLog, bus: str) -> None:
    """Groups may be made before there is work; the empty queues do not disturb the first append."""
    await log.ensure_groups()
    assert [ConsumerGroup("executors", "decisions", 0, 0, 0), ConsumerGroup("fdr", "executions", 0, 0, 0)] == await log.consumers()
    entry = Entry(1, b"one", chain(genesis_hash(bus), b"one"), "id-1", "decisions")
    await log.append(empty_head(bus), [entry], NOW_MS, [])
    assert head_of([entry]) == await log.head()


async def test_script_unknown_to_redis(log: RedisLog, client: Any, bus: str) -> None:
    """A Redis that has forgotten the script, as after a restart, is given it again."""
    first = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), first, NOW_MS, [])
    await client.script_flush()
    second = entries_after(head_of(first), 1)
    await log.append(head_of(first), second, NOW_MS, [])
    assert head_of(second) == await log.head()


async def test_killed_redis_keeps_what_it_acknowledged(own_redis: EmbeddedRedis, bus: str) -> None:
    """kill -9 of Redis at any moment between or during appends loses no acknowledged entry, and the head settles the rest."""
    log = await RedisLog.connect(own_redis.url, bus)
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
    """With Redis gone every call says so, and what could not even be sent is not called unknown."""
    log = await RedisLog.connect(own_redis.url, bus)
    await own_redis.stop()
    with pytest.raises(LogUnavailableError, match=r"cannot connect to Redis at unix://"):
        await log.append(empty_head(bus), entries_after(empty_head(bus), 1), NOW_MS, [])
    with pytest.raises(LogUnavailableError):
        await log.head()
    with pytest.raises(LogUnavailableError, match=r"cannot connect"):
        await RedisLog.connect(own_redis.url, bus)


async def test_closed_log(redis_url: str, bus: str) -> None:
    """A closed log answers nothing more."""
    log = await RedisLog.connect(redis_url, bus)
    await log.close()
    with pytest.raises(LogUnavailableError, match="was closed"):
        await log.append(empty_head(bus), entries_after(empty_head(bus), 1), NOW_MS, [])


async def settled(log: RedisLog) -> Head:
    """The head, once Redis answers in time again."""
    while True:
        with suppress(LogUnavailableError):
            return await log.head()


async def test_paused_redis_leaves_the_outcome_unknown(own_redis: EmbeddedRedis, bus: str) -> None:
    """An append to a Redis that hangs has an unknown outcome; when Redis is back the head tells, for good."""
    log = await RedisLog.connect(own_redis.url, bus, timeout_ms=1_000)
    entries = entries_after(empty_head(bus), 2)
    assert own_redis.process_id is not None
    os.kill(own_redis.process_id, signal.SIGSTOP)
    with pytest.raises(OutcomeUnknownError, match=r"nothing came within 1 s"):
        await log.append(empty_head(bus), entries, NOW_MS, [])
    with pytest.raises(LogUnavailableError):
        await log.head()
    os.kill(own_redis.process_id, signal.SIGCONT)
    head = await settled(log)
    assert head in (empty_head(bus), head_of(entries))
    follower = entries_after(head, 1)
    await log.append(head, follower, NOW_MS, [])
    assert head_of(follower) == await log.head()
    await log.close()


async def test_late_append_never_arrives(redis_url: str, bus: str, tmp_path: Path) -> None:
    """Once the head has settled that an append in doubt is not in, it cannot arrive any more, however late Redis reads it."""
    async with proxied(redis_url, bus, tmp_path) as (proxy, log):
        proxy.hold_appends = True
        with pytest.raises(OutcomeUnknownError):
            await log.append(empty_head(bus), entries_after(empty_head(bus), 2), NOW_MS, [])
        assert empty_head(bus) == await log.head()
        answer = await proxy.deliver()
        assert b"FENCED" in answer or b"NOSCRIPT" in answer
        assert empty_head(bus) == await log.head()


async def test_cancelled_append_is_settled_too(redis_url: str, bus: str, tmp_path: Path) -> None:
    """An append whose caller was cancelled is in doubt like any other: after a look at the head it cannot arrive."""
    async with proxied(redis_url, bus, tmp_path) as (proxy, log):
        first = entries_after(empty_head(bus), 1)
        await log.append(empty_head(bus), first, NOW_MS, [])
        proxy.hold_appends = True
        appending = asyncio.create_task(log.append(head_of(first), entries_after(head_of(first), 1, "cancelled"), NOW_MS, []))
        await proxy.held.put(await proxy.held.get())  # it is on its way
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending
        assert head_of(first) == await log.head()
        assert b"FENCED" in await proxy.deliver()
        proxy.hold_appends = False
        second = entries_after(head_of(first), 1)
        await log.append(head_of(first), second, NOW_MS, [])
        assert records_of(first + second) == await log.read(1, 10)


async def test_lost_answer(redis_url: str, bus: str, tmp_path: Path) -> None:
    """An append that was applied and whose answer was lost has an unknown outcome, and the head says that it is in."""
    async with proxied(redis_url, bus, tmp_path) as (proxy, log):
        entries = entries_after(empty_head(bus), 2)
        await log.append(empty_head(bus), entries, NOW_MS, [])
        proxy.lose_answers = True
        more = entries_after(head_of(entries), 2)
        with pytest.raises(OutcomeUnknownError):
            await log.append(head_of(entries), more, NOW_MS, [])
        assert head_of(more) == await log.head()


async def test_settled_doubt_does_not_disturb_other_servers(log: RedisLog, redis_url: str, bus: str, tmp_path: Path) -> None:
    """A server that settles a doubt of its own makes no other server's append fail."""
    async with proxied(redis_url, bus, tmp_path) as (proxy, doubtful):
        proxy.hold_appends = True
        with pytest.raises(OutcomeUnknownError):
            await doubtful.append(empty_head(bus), entries_after(empty_head(bus), 1), NOW_MS, [])
        assert empty_head(bus) == await doubtful.head()
    entries = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), entries, NOW_MS, [])
    assert head_of(entries) == await log.head()


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [("maxmemory", "1mb", "OOM"), ("min-replicas-to-write", "1", "NOREPLICAS"), ("replicaof", "127.0.0.1 1", "READONLY")],
)
async def test_refusals_apply_nothing(own_redis: EmbeddedRedis, bus: str, setting: str, value: str, said: str) -> None:
    """A Redis that is full, lacks replicas or is a replica refuses the whole append, and the reason is passed on."""
    log = await RedisLog.connect(own_redis.url, bus)
    first = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), first, NOW_MS, [])
    async with redis.asyncio.Redis.from_url(own_redis.url) as plain:
        await (plain.replicaof(*value.split()) if setting == "replicaof" else plain.config_set(setting, value))
    second = entries_after(head_of(first), 500, works=["decisions"])
    with pytest.raises(LogUnavailableError, match=said):
        await log.append(head_of(first), second, NOW_MS, [])
    assert records_of(first) == await log.read(1, 10)
    assert head_of(first) == await log.head()
    await log.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (["XADD {log} 3-0 e foreign h hash"], "the last id of the stream is 3-0"),
        (["XDEL {log} 1-0"], "the head counts 2 entries, the stream holds 1"),
        (["XDEL {log} 2-0"], "the head counts 2 entries, the stream holds 1"),
        (["DEL {log}"], "the last id of the stream is 0-0"),
        (["DEL {head}"], "says 0 .* the last id of the stream is 2-0"),
        (["HSET {head} sequence_number 10"], "says 10 .* the last id of the stream is 2-0"),
        (["HSET {head} chain_hash 01234567890123456789012345678901"], "the last entry of the stream has chain hash"),
        (["DEL {log}", "SET {log} text"], "WRONGTYPE"),
        (["DEL {head}", "SET {head} text"], "is no hash"),
    ],
)
async def test_contradiction_is_found(log: RedisLog, client: Any, redis_url: str, bus: str, damage: list[str], said: str) -> None:
    """A head and a stream that do not belong together are found when the log is opened, and both are named."""
    await log.append(empty_head(bus), entries_after(empty_head(bus), 2), NOW_MS, [])
    prefix = f"gavel:{{{bus}}}:"
    for command in damage:
        await client.execute_command(*command.format(log=f"{prefix}log", head=f"{prefix}head").split())
    with pytest.raises(LogCorruptError, match=said):
        await RedisLog.connect(redis_url, bus)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("XDEL {prefix}log 1-0", "counts 2 entries, the stream holds 1"),
        ("DEL {prefix}log", "counts 2 entries, the stream holds 0"),
        ("XADD {prefix}log 9-0 e foreign h hash", "counts 2 entries, the stream holds 3"),
        ("XADD {prefix}work:decisions 9-0 e foreign h hash", "work:decisions has entry 9-0, the head of the log is 2"),
        ("SET {prefix}work:executions text", "work:executions is a string, not a stream"),
        ("SET {prefix}ids:20000 text", "ids:20000 is a string, not a hash"),
    ],
)
async def test_append_to_damaged_log_writes_nothing(log: RedisLog, client: Any, bus: str, damage: str, said: str) -> None:
    """An append that meets damage stops before its first write: nothing is half done."""
    prefix = f"gavel:{{{bus}}}:"
    first = entries_after(empty_head(bus), 2)
    await log.append(empty_head(bus), first, NOW_MS - DAY_MS, [])
    await client.execute_command(*damage.format(prefix=prefix).split())

    async def everything() -> list[bytes]:
        return [await client.dump(key) for key in sorted(await client.keys(f"{prefix}*"))]

    before = await everything()
    second = entries_after(head_of(first), 2, works=["decisions", "executions"])
    with pytest.raises(LogCorruptError, match=said):
        await log.append(head_of(first), second, NOW_MS, [])
    assert before == await everything()


async def test_hole_is_not_read_over(log: RedisLog, client: Any, bus: str) -> None:
    """Reading across a missing event is an error that names it; a log trimmed at its start is not."""
    entries = entries_after(empty_head(bus), 6)
    await log.append(empty_head(bus), entries, NOW_MS, [])
    await client.xtrim(f"gavel:{{{bus}}}:log", minid="3-0", approximate=False)
    assert records_of(entries[2:]) == await log.read(1, 10)
    await client.xdel(f"gavel:{{{bus}}}:log", "5-0")
    with pytest.raises(LogCorruptError, match=r"event 5 is missing"):
        await log.read(1, 10)


async def test_strange_entry_is_not_read(log: RedisLog, client: Any, bus: str) -> None:
    """An entry that no append wrote is an error that names it."""
    await client.xadd(f"gavel:{{{bus}}}:log", {"e": "envelope"}, id="1-0")
    with pytest.raises(LogCorruptError, match=r"entry b'1-0' .* is not <number>-0 with fields e and h"):
        await log.read(1, 10)


async def test_other_format_is_left_alone(log: RedisLog, client: Any, redis_url: str, bus: str) -> None:
    """A log of another format version is neither read nor written."""
    first = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), first, NOW_MS, [])
    await client.hset(f"gavel:{{{bus}}}:head", "format_version", "2")
    with pytest.raises(LogUnavailableError, match=r"has format 2, this build knows 1"):
        await log.append(head_of(first), entries_after(head_of(first), 1), NOW_MS, [])
    with pytest.raises(LogUnavailableError, match=r"has format 2"):
        await RedisLog.connect(redis_url, bus)


async def test_durability(own_redis: EmbeddedRedis, bus: str) -> None:
    """The embedded settings are durable; each weaker setting is named with what to do about it."""
    log = await RedisLog.connect(own_redis.url, bus)
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
        assert "CONFIG GET answers NOPERM" in (await log.durability())[0]
    await log.close()


@asynccontextmanager
async def redis_on_tcp(directory: Path, *settings: str) -> AsyncIterator[int]:
    """A Redis on the loopback, for what needs TCP; yields its port."""
    port = free_port()
    program = find_redis((6, 2), directory).path
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "", "--repl-diskless-sync", "yes"]
    arguments += ["--repl-diskless-sync-delay", "0", *settings]
    process = await asyncio.create_subprocess_exec(program, *arguments, stdout=subprocess.DEVNULL)
    try:
        async with redis.asyncio.Redis(port=port, retry=Retry(ConstantBackoff(0.02), 1000)) as plain:
            await plain.ping()
        yield port
    finally:
        process.kill()
        await process.wait()


async def test_replicas(tmp_path: Path, bus: str) -> None:
    """Replicas confirm an append or it is said that they did not, with the events in the log; a replica itself takes no append."""
    async with (
        redis_on_tcp(tmp_path) as port,
        redis_on_tcp(tmp_path, "--replicaof", "127.0.0.1", str(port)) as replica_port,
        redis.asyncio.Redis(port=port) as plain,
    ):
        while (await plain.info("replication")).get("slave0", {}).get("state") != "online":  # noqa: ASYNC110 - Redis sets no event
            await asyncio.sleep(0.02)
        url = f"redis://127.0.0.1:{port}/0"
        safe = await RedisLog.connect(url, bus, acknowledge_replicas=1)
        first = entries_after(empty_head(bus), 2)
        await safe.append(empty_head(bus), first, NOW_MS, [])
        assert (
            "1 replica(s) and min-replicas-to-write 0, so a failover may lose acknowledged events; set it to at least 1"
            in await safe.durability()
        )

        replica = await RedisLog.connect(f"redis://127.0.0.1:{replica_port}/0", bus)
        assert records_of(first) == await replica.read(1, 10)
        assert (
            f"it is a replica of 127.0.0.1:{port}, whose next copy undoes what is written here; name the primary"
            in await replica.durability()
        )
        with pytest.raises(LogUnavailableError, match="READONLY"):
            await replica.append(head_of(first), entries_after(head_of(first), 1), NOW_MS, [])

        safer = await RedisLog.connect(url, bus, acknowledge_replicas=2, timeout_ms=1_000)
        second = entries_after(head_of(first), 1)
        with pytest.raises(
            NotReplicatedError, match=r"events up to 3 are in the log, but only [01] of 2 replicas confirmed within 1000 ms"
        ):
            await safer.append(head_of(first), second, NOW_MS, [])
        assert head_of(second) == await safe.head()
        assert {"event-3": IdEntry(3, 0)} == await safe.find(["event-3"], NOW_MS)
        for log in (safe, replica, safer):
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
    """A URL is shown without its user and password, also one that was put together wrongly."""
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
    """A URL that cannot be used is refused before anything is connected, with an example and without the password."""
    with pytest.raises(ValueError, match=r"redis://host:6379/0") as refused:
        await RedisLog.connect(url, bus)
    assert "s3cret" not in str(refused.value).replace("s3cret is malformed", "")


async def test_wrong_password_is_not_told(redis_url: str, bus: str) -> None:
    """A refused login is said, with the URL masked."""
    with pytest.raises(LogUnavailableError) as refused:
        await RedisLog.connect(f"{redis_url}?username=gavel&password=s3cret", bus)
    assert "invalid username-password pair" in str(refused.value)
    assert "s3cret" not in str(refused.value)


async def test_impossible_bus_name(redis_url: str) -> None:
    """A name that is no bus's would make keys that clash or split over a cluster, and is refused."""
    with pytest.raises(ValueError, match=r"bus 'no}bus'"):
        await RedisLog.connect(redis_url, "no}bus")
