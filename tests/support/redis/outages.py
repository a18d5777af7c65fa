"""Outages of a real Redis: each begins and ends as it does in production, and loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

import redis.asyncio
import redis.exceptions
from gavel_server.log.redis.embedded import EmbeddedRedis

from tests.support.redis.tcp_proxy import Link, TcpProxy

# A script that Redis answers BUSY to everybody during, once it has run for the limit.
_ENDLESS: Final = "while true do end"

# An outage of the Redis behind a proxy, from the beginning to the end of a block.
Outage = Callable[[EmbeddedRedis, TcpProxy], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def _admin(server: EmbeddedRedis, **options: Any) -> AsyncIterator[Any]:
    async with redis.asyncio.Redis.from_url(server.url, protocol=2, socket_timeout=None, **options) as connection:
        yield connection


@asynccontextmanager
async def killed(server: EmbeddedRedis, _: TcpProxy) -> AsyncIterator[None]:
    """Redis is killed, and started again at the end."""
    assert server.process_id is not None
    os.kill(server.process_id, signal.SIGKILL)
    await server.wait()
    yield
    await server.ensure_running()


@asynccontextmanager
async def stopped(server: EmbeddedRedis, _: TcpProxy) -> AsyncIterator[None]:
    """Redis is stopped (SIGSTOP), and continued at the end."""
    assert server.process_id is not None
    os.kill(server.process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process_id, signal.SIGCONT)


@asynccontextmanager
async def lacking_replicas(server: EmbeddedRedis, _: TcpProxy) -> AsyncIterator[None]:
    """Redis refuses writes with NOREPLICAS."""
    async with _admin(server) as admin:
        await admin.config_set("min-replicas-to-write", 1)
        yield
        await admin.config_set("min-replicas-to-write", 0)


@asynccontextmanager
async def asking_password(server: EmbeddedRedis, proxy: TcpProxy) -> AsyncIterator[None]:
    """Redis refuses every connection with NOAUTH."""
    async with _admin(server) as admin:
        await admin.config_set("requirepass", "secret")
        proxy.set_link(Link.CUT)
        proxy.set_link(Link.PASS)
    yield
    async with _admin(server, password="secret") as admin:  # noqa: S106  # of this test's Redis
        await admin.config_set("requirepass", "")


@asynccontextmanager
async def busy(server: EmbeddedRedis, _: TcpProxy) -> AsyncIterator[None]:
    """Redis runs a script without end, and answers BUSY."""
    async with _admin(server) as admin, _admin(server) as killer:
        await admin.config_set("lua-time-limit", 1)
        script = asyncio.create_task(admin.eval(_ENDLESS, 0))
        try:
            yield
        finally:
            await killer.execute_command("SCRIPT KILL")
            with suppress(redis.exceptions.RedisError):
                await script


def _link(link: Link) -> Outage:
    @asynccontextmanager
    async def outage(_: EmbeddedRedis, proxy: TcpProxy) -> AsyncIterator[None]:
        proxy.set_link(link)
        yield
        proxy.set_link(Link.PASS)

    return outage


OUTAGES: Final[dict[str, Outage]] = {
    "killed": killed,
    "stopped": stopped,
    "NOREPLICAS": lacking_replicas,
    "NOAUTH": asking_password,
    "BUSY": busy,
    "cut link": _link(Link.CUT),
    "silent link": _link(Link.SILENT),
    "garbled link": _link(Link.GARBLE),
}
