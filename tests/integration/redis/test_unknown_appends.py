"""Appends to Redis with an unknown outcome: the head settles them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from gavel_server.log import (
    Head,
    LogCorruptError,
    LogUnavailableError,
    OutcomeUnknownError,
    empty_head,
)
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.redis.script import Script
from redis.asyncio import Redis

from tests.support.entries import NOW_MS, entries_after, head_of, records_of

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


async def test_a_full_redis_settles_an_outcome(own_redis: EmbeddedRedis, bus: str, tmp_path: Path) -> None:
    """The outcome of an append is settled although Redis is full."""
    async with open_proxied_log(own_redis.url, bus, tmp_path) as (proxy, log), Redis.from_url(own_redis.url) as plain:
        proxy.hold_appends = True
        with pytest.raises(OutcomeUnknownError):
            await log.append(empty_head(bus), entries_after(empty_head(bus), 1), NOW_MS, [])
        await plain.config_set("maxmemory", 1)
        assert empty_head(bus) == await log.head()
        answer = await proxy.deliver()
        assert b"FENCED" in answer or b"NOSCRIPT" in answer


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


async def test_fence_that_is_no_number_is_damage_also_in_doubt(redis_url: str, bus: str, client: Any, tmp_path: Path) -> None:
    """The outcome of an append cannot be settled behind a fence that is not a number: the log is damaged."""
    async with open_proxied_log(redis_url, bus, tmp_path) as (proxy, log):
        proxy.drop_replies = True
        with pytest.raises(OutcomeUnknownError):
            await log.append(empty_head(bus), entries_after(empty_head(bus), 1), NOW_MS, [])
        await client.hset(f"gavel:{{{bus}}}:head", "fence", "two")
        with pytest.raises(LogCorruptError, match="hash value is not an integer"):
            await log.head()
