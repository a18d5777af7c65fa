"""The log on a real Redis: the content of its keys, and its errors when Redis dies, hangs, refuses writes or has lost events."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio
from gavel_server.log import (
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
from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.entries import Work
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.redis.script import Script
from gavel_server.log.urls import mask_url
from gavel_server.log.work.protocol import ConsumerGroup

from tests.support.entries import DAY_MS, NOW_MS, entries_after, head_of, records_of
from tests.support.redis.tcp import replicated_redis


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def redis_server(redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedRedis]:
    """A Redis for all tests of this module; the tests run once with each Redis program of this machine."""
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
    opened = await RedisLog.connect(redis_url, bus)
    yield opened
    await opened.close()


@pytest.fixture
async def own_redis(redis_program: str, tmp_path: Path) -> AsyncIterator[EmbeddedRedis]:
    """A Redis for one test, which may kill it, pause it or change its settings."""
    async with EmbeddedRedis(tmp_path / "data") as server:
        yield server


# The appends of a log whose Redis knows the script, or gets its text.
APPEND_SCRIPT = Script("append.lua").digest.encode()


class Proxy:
    """A proxy between a log and its Redis that can hold back appends or drop their replies.

    It closes the connection of an append that it holds back, unless `keep_waiting`: then only the log itself can give up.
    """

    def __init__(self, redis_socket: str) -> None:
        self.hold_appends = False
        self.keep_waiting = False
        self.drop_replies = False
        self.held_requests: asyncio.Queue[bytes] = asyncio.Queue()
        self._redis_socket = redis_socket

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass requests and answers on, one client."""
        redis_reader, redis_writer = await asyncio.open_unix_connection(self._redis_socket)
        is_append = False

        async def pass_replies() -> None:
            """Pass on the replies, which may arrive in pieces."""
            while reply := await redis_reader.read(1 << 20):
                if is_append and self.drop_replies:
                    break
                writer.write(reply)
            writer.close()

        passing = asyncio.create_task(pass_replies())
        try:
            while request := await reader.read(1 << 20):
                is_append = APPEND_SCRIPT in request
                if is_append and self.hold_appends:
                    await self.held_requests.put(request)
                    if self.keep_waiting:
                        await reader.read()  # until the log gives up
                    return
                redis_writer.write(request)
        finally:
            redis_writer.close()
            writer.close()
            await passing

    async def deliver(self) -> bytes:
        """Deliver the append that was held back; return the reply, which no client reads."""
        reader, writer = await asyncio.open_unix_connection(self._redis_socket)
        writer.write(await self.held_requests.get())
        answer = await reader.readline()
        if answer.startswith(b"*"):  # a list, which may arrive in pieces
            answer += await reader.readline() + await reader.readline()
        writer.close()
        return answer


@asynccontextmanager
async def open_proxied_log(redis_url: str, bus: str, directory: Path) -> AsyncIterator[tuple[Proxy, RedisLog]]:
    """A log that reaches its Redis through a Proxy."""
    proxy = Proxy(redis_url.removeprefix("unix://"))
    path = directory / "proxy.sock"
    server = await asyncio.start_unix_server(proxy.serve, path)
    log = await RedisLog.connect(f"unix://{path}", bus, timeout_ms=60_000)
    try:
        yield proxy, log
    finally:
        await log.close()
        server.close()


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
    """Without Redis every call is unavailable; an append that was not sent has no unknown outcome."""
    log = await RedisLog.connect(own_redis.url, bus)
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


async def wait_until_settled(log: RedisLog) -> Head:
    """Return the head once Redis replies in time again."""
    while True:
        with suppress(LogUnavailableError):
            return await log.head()


async def test_append_to_a_hanging_redis_has_an_unknown_outcome(own_redis: EmbeddedRedis, bus: str) -> None:
    """An append to a Redis that hangs has an unknown outcome, which the head settles when Redis is back."""
    log = await RedisLog.connect(own_redis.url, bus, timeout_ms=1_000)
    entries = entries_after(empty_head(bus), 2)
    assert own_redis.process_id is not None
    os.kill(own_redis.process_id, signal.SIGSTOP)
    with pytest.raises(OutcomeUnknownError, match=r"no reply within 1 s"):
        await log.append(empty_head(bus), entries, NOW_MS, [])
    with pytest.raises(LogUnavailableError):
        await log.head()
    os.kill(own_redis.process_id, signal.SIGCONT)
    head = await wait_until_settled(log)
    assert head in (empty_head(bus), head_of(entries))
    follower = entries_after(head, 1)
    await log.append(head, follower, NOW_MS, [])
    assert head_of(follower) == await log.head()
    await log.close()


async def test_settled_append_cannot_take_effect_later(redis_url: str, bus: str, tmp_path: Path) -> None:
    """An append that the head has settled as absent can no longer take effect, however late Redis reads it."""
    async with open_proxied_log(redis_url, bus, tmp_path) as (proxy, log):
        proxy.hold_appends = True
        with pytest.raises(OutcomeUnknownError):
            await log.append(empty_head(bus), entries_after(empty_head(bus), 2), NOW_MS, [])
        assert empty_head(bus) == await log.head()
        answer = await proxy.deliver()
        assert b"FENCED" in answer or b"NOSCRIPT" in answer
        assert empty_head(bus) == await log.head()


async def test_cancelled_append_is_settled(redis_url: str, bus: str, tmp_path: Path) -> None:
    """A cancelled append has an unknown outcome; once the head has settled it, it can no longer take effect."""
    async with open_proxied_log(redis_url, bus, tmp_path) as (proxy, log):
        first = entries_after(empty_head(bus), 1)
        await log.append(empty_head(bus), first, NOW_MS, [])
        proxy.hold_appends = proxy.keep_waiting = True
        appending = asyncio.create_task(log.append(head_of(first), entries_after(head_of(first), 1, "cancelled"), NOW_MS, []))
        await proxy.held_requests.put(await proxy.held_requests.get())  # it is in transit
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending
        assert head_of(first) == await log.head()
        assert b"FENCED" in await proxy.deliver()
        proxy.hold_appends = False
        second = entries_after(head_of(first), 1)
        await log.append(head_of(first), second, NOW_MS, [])
        assert records_of(first + second) == await log.read(1, 10)


async def test_lost_reply(redis_url: str, bus: str, tmp_path: Path) -> None:
    """An applied append with a lost reply has an unknown outcome, and the head shows that it is in the log."""
    async with open_proxied_log(redis_url, bus, tmp_path) as (proxy, log):
        entries = entries_after(empty_head(bus), 2)
        await log.append(empty_head(bus), entries, NOW_MS, [])
        proxy.drop_replies = True
        more = entries_after(head_of(entries), 2)
        with pytest.raises(OutcomeUnknownError):
            await log.append(head_of(entries), more, NOW_MS, [])
        assert head_of(more) == await log.head()


async def test_settling_an_outcome_does_not_affect_other_servers(log: RedisLog, redis_url: str, bus: str, tmp_path: Path) -> None:
    """A server that settles an unknown outcome does not make another server's append fail."""
    async with open_proxied_log(redis_url, bus, tmp_path) as (proxy, faulty_log):
        proxy.hold_appends = True
        with pytest.raises(OutcomeUnknownError):
            await faulty_log.append(empty_head(bus), entries_after(empty_head(bus), 1), NOW_MS, [])
        assert empty_head(bus) == await faulty_log.head()
    entries = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), entries, NOW_MS, [])
    assert head_of(entries) == await log.head()


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [("maxmemory", "used + 256 KiB", "OOM"), ("min-replicas-to-write", "1", "NOREPLICAS"), ("replicaof", "127.0.0.1 1", "READONLY")],
)
async def test_refused_append_applies_nothing(own_redis: EmbeddedRedis, bus: str, setting: str, value: str, message: str) -> None:
    """A Redis that is full, lacks replicas or is a replica refuses the whole append with the reason, and still serves all reads."""
    log = await RedisLog.connect(own_redis.url, bus)
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


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (["XADD {log} 3-0 e foreign h hash"], "the last id of the stream is 3-0"),
        (["XDEL {log} 1-0"], "event 1 is missing"),
        (["XDEL {log} 2-0"], "event 2 is missing"),
        (["HSET {head} count 1"], "the head counts 1 entries, the stream holds 2"),
        (["DEL {log}"], "the last id of the stream is 0-0"),
        (["DEL {head}"], "is 0 .* the last id of the stream is 2-0"),
        (["HSET {head} sequence_number 10"], "is 10 .* the last id of the stream is 2-0"),
        (["HSET {head} chain_hash 01234567890123456789012345678901"], "the last entry of the stream has chain hash"),
        (["DEL {log}", "SET {log} text"], "WRONGTYPE"),
        (["DEL {head}", "SET {head} text"], "is not a hash"),
        (["HSET {head} sequence_number two"], "sequence_number is b'two', not a number"),
        (["HSET {head} count two"], "count is b'two', not a number"),
        (["HSET {head} fence two"], "fence is b'two', not a number"),
        (["HSET {head} sequence_number -2"], "sequence_number is b'-2', not a number"),
    ],
)
async def test_inconsistent_head_and_stream_are_an_error(
    log: RedisLog, client: Any, redis_url: str, bus: str, damage: list[str], message: str
) -> None:
    """Opening a log whose head and stream disagree is an error that names both, or the first event that is missing."""
    await log.append(empty_head(bus), entries_after(empty_head(bus), 2), NOW_MS, [])
    prefix = f"gavel:{{{bus}}}:"
    for command in damage:
        await client.execute_command(*command.format(log=f"{prefix}log", head=f"{prefix}head").split())
    with pytest.raises(LogCorruptError, match=message):
        await RedisLog.connect(redis_url, bus)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("XDEL {prefix}log 1-0", "counts 2 entries, the stream holds 1"),
        ("DEL {prefix}log", "counts 2 entries, the stream holds 0"),
        ("HSET {prefix}head sequence_number two", "sequence_number is b'two', not a number"),
        ("HSET {prefix}head count two", "the count in the head is not a number"),
        ("HSET {prefix}head fence two", "fence is b'two', not a number"),
        ("XADD {prefix}log 9-0 e foreign h hash", "counts 2 entries, the stream holds 3"),
        ("SET {prefix}ids:20000 text", "ids:20000 is a string, not a hash"),
    ],
)
async def test_append_to_damaged_log_writes_nothing(log: RedisLog, client: Any, bus: str, damage: str, message: str) -> None:
    """An append to a damaged log writes nothing."""
    prefix = f"gavel:{{{bus}}}:"
    first = entries_after(empty_head(bus), 2)
    await log.append(empty_head(bus), first, NOW_MS - DAY_MS, [])
    await client.execute_command(*damage.format(prefix=prefix).split())

    async def everything() -> list[bytes]:
        return [await client.dump(key) for key in sorted(await client.keys(f"{prefix}*"))]

    before = await everything()
    second = entries_after(head_of(first), 2, works=["decisions", "executions"])
    with pytest.raises(LogCorruptError, match=message):
        await log.append(head_of(first), second, NOW_MS, [])
    assert before == await everything()


@pytest.mark.parametrize(
    "damage",
    ["XADD {queue} 9-0 e foreign h hash", "XADD {queue} 18446744073709551615-18446744073709551615 e x h y", "SET {queue} text"],
)
@pytest.mark.parametrize("work", ["decisions", "executions"])
async def test_damaged_work_queue_does_not_stop_appends(log: RedisLog, client: Any, bus: str, work: Work, damage: str) -> None:
    """A work queue that refuses entries is begun anew by the next append, which is not lost, and consumers find all later entries."""
    queue = f"gavel:{{{bus}}}:work:{work}"
    first = entries_after(empty_head(bus), 1, works=[work])
    await log.append(empty_head(bus), first, NOW_MS, [])
    await client.delete(queue)
    await client.execute_command(*damage.format(queue=queue).split())
    await log.work.groups()
    second = entries_after(head_of(first), 2, works=[work])
    await log.append(head_of(first), second, NOW_MS, [])
    assert head_of(second) == await log.head()
    assert records_of(first + second) == await log.read(1, 10)
    assert [b"2-0", b"3-0"] == [entry_id for entry_id, _ in await client.xrange(queue)]
    await log.ensure_groups()
    assert {(work, 2)} <= {(group.queue, group.lag) for group in await log.work.groups()}


async def test_missing_event_is_an_error_although_the_count_fits(log: RedisLog, client: Any, redis_url: str, bus: str) -> None:
    """An event that was removed from the middle is noticed at the head, also if the count was changed to fit."""
    await log.append(empty_head(bus), entries_after(empty_head(bus), 4), NOW_MS, [])
    await client.xdel(f"gavel:{{{bus}}}:log", "3-0")
    await client.hset(f"gavel:{{{bus}}}:head", "count", "3")
    with pytest.raises(LogCorruptError, match=r"holds 3 entries from 1 to 4: some are missing"):
        await log.head()
    with pytest.raises(LogCorruptError, match="event 3 is missing from"):
        await RedisLog.connect(redis_url, bus)


async def test_fence_that_is_no_number_is_damage_also_in_doubt(redis_url: str, bus: str, client: Any, tmp_path: Path) -> None:
    """The outcome of an append cannot be settled behind a fence that is not a number: the log is damaged."""
    async with open_proxied_log(redis_url, bus, tmp_path) as (proxy, log):
        proxy.drop_replies = True
        with pytest.raises(OutcomeUnknownError):
            await log.append(empty_head(bus), entries_after(empty_head(bus), 1), NOW_MS, [])
        await client.hset(f"gavel:{{{bus}}}:head", "fence", "two")
        with pytest.raises(LogCorruptError, match="hash value is not an integer"):
            await log.head()


async def test_index_entry_that_is_no_number(log: RedisLog, client: Any, bus: str) -> None:
    """An entry of the index that the server cannot have written names no event."""
    await client.hset(f"gavel:{{{bus}}}:ids:{NOW_MS // DAY_MS}", "event-1", "one")
    assert {"event-1": IdEntry(0, 0)} == await log.find(["event-1"], NOW_MS)


async def test_reading_across_a_missing_event_is_an_error(log: RedisLog, client: Any, bus: str) -> None:
    """Reading across a missing event is an error that names it; a log trimmed at its start is valid."""
    entries = entries_after(empty_head(bus), 6)
    await log.append(empty_head(bus), entries, NOW_MS, [])
    await client.xtrim(f"gavel:{{{bus}}}:log", minid="3-0", approximate=False)
    assert records_of(entries[2:]) == await log.read(1, 10)
    await client.xdel(f"gavel:{{{bus}}}:log", "5-0")
    with pytest.raises(LogCorruptError, match=r"event 5 is missing"):
        await log.read(1, 10)


async def test_foreign_entry_is_an_error(log: RedisLog, client: Any, bus: str) -> None:
    """An entry that no append wrote is an error that names it."""
    await client.xadd(f"gavel:{{{bus}}}:log", {"e": "envelope"}, id="1-0")
    with pytest.raises(LogCorruptError, match=r"entry b'1-0' .* is not <number>-0 with fields e and h"):
        await log.read(1, 10)


async def test_log_of_another_format_is_refused(log: RedisLog, client: Any, redis_url: str, bus: str) -> None:
    """A log of another format version is neither read nor written."""
    first = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), first, NOW_MS, [])
    await client.hset(f"gavel:{{{bus}}}:head", "format_version", "2")
    with pytest.raises(LogUnavailableError, match=r"has format 2, but this build knows 1"):
        await log.append(head_of(first), entries_after(head_of(first), 1), NOW_MS, [])
    with pytest.raises(LogUnavailableError, match=r"has format 2"):
        await RedisLog.connect(redis_url, bus)


async def test_durability(own_redis: EmbeddedRedis, bus: str) -> None:
    """The embedded settings are durable; each weaker setting is reported with advice."""
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
        assert "it answers NOPERM" in (await log.durability())[0]
    await log.close()


@pytest.mark.usefixtures("redis_program")
async def test_replicas(tmp_path: Path, bus: str) -> None:
    """An append without enough replicas is an error although it is in the log; a replica refuses appends."""
    async with replicated_redis(tmp_path) as (primary, copy):
        url = primary.url
        safe = await RedisLog.connect(url, bus, acknowledgement=Acknowledgement(1))
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
