"""Connections to Redis over a network that falls silent: no call waits for its timeout once Redis answers again."""

from __future__ import annotations

import asyncio

import pytest
from gavel_server.log import LogUnavailableError, OutcomeUnknownError
from gavel_server.log.redis.connection import Connections
from gavel_server.log.redis.logs import RedisLogs

from tests.support.redis.tcp_proxy import Link, running_proxy

# No test reaches this timeout: a call that waits for it fails the test by pytest's own.
TIMEOUT_MS = 600_000
PING = ("PING",)


@pytest.mark.long
async def test_waiting_calls_end_when_a_probe_is_answered(redis_url: str) -> None:
    """Calls that a silence has swallowed end as soon as a probe is answered again, not after their timeout."""
    async with running_proxy(redis_url) as proxy:
        connections = Connections(proxy.url, TIMEOUT_MS)
        for pool in (connections.appends, connections.reads):
            assert [b"PONG"] == await pool.read(PING)
        proxy.set_link(Link.SILENT)
        read = asyncio.create_task(connections.reads.read(PING))
        write = asyncio.create_task(connections.appends.write(PING))
        with pytest.raises(LogUnavailableError):
            await connections.watch.probe(PING)
        assert not read.done()
        proxy.set_link(Link.PASS)
        assert [b"PONG"] == await connections.watch.probe(PING)
        with pytest.raises(LogUnavailableError):
            await read
        with pytest.raises(OutcomeUnknownError):
            await write
        await connections.close()


@pytest.mark.long
async def test_a_start_does_not_wait_for_its_timeout(redis_url: str, bus: str) -> None:
    """The opening of a bus that a silence interrupts ends as soon as the link is back, although nothing watches the bus yet."""
    async with running_proxy(redis_url) as proxy:
        logs = RedisLogs(proxy.url, TIMEOUT_MS)
        proxy.set_link(Link.SILENT)
        async with logs.probe_link():
            opening = asyncio.create_task(logs.open(bus))
            with pytest.raises(LogUnavailableError):
                await logs.ping()
            assert not opening.done()
            proxy.set_link(Link.PASS)
            with pytest.raises(LogUnavailableError):
                await opening
            log = await logs.open(bus)
        assert 0 == (await log.head()).sequence_number
        await logs.close()


@pytest.mark.long
async def test_connections_of_before_a_silence_are_not_used(redis_url: str) -> None:
    """A connection that was idle during a silence may be dead, and is replaced."""
    async with running_proxy(redis_url) as proxy:
        connections = Connections(proxy.url, TIMEOUT_MS)
        await connections.reads.read(PING)
        before = proxy.accepted
        proxy.set_link(Link.SILENT)
        with pytest.raises(LogUnavailableError):
            await connections.watch.probe(PING)
        proxy.set_link(Link.PASS)
        await connections.watch.probe(PING)
        after = proxy.accepted
        assert after > before
        assert [b"PONG"] == await connections.reads.read(PING)
        assert after + 1 == proxy.accepted
        await connections.close()


async def test_probe_leaves_a_silent_connection(redis_url: str) -> None:
    """A probe on a connection that has died without a sign is answered on a new one."""
    async with running_proxy(redis_url) as proxy:
        connections = Connections(proxy.url, TIMEOUT_MS)
        await connections.watch.probe(PING)
        proxy.silence_open_connections()
        assert [b"PONG"] == await connections.watch.probe(PING)
        await connections.close()
