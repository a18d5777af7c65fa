"""Connections to Redis that are lost at awkward moments, on the event loop that the server uses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop
from gavel_server.log import LogUnavailableError
from gavel_server.log.redis.connection import ConnectionPool, NetworkPath
from gavel_server.log.redis.durability import COMMANDS
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.log.redis.replies import is_read_only
from gavel_server.log.redis.resp import Command
from redis.asyncio.connection import UnixDomainSocketConnection
from redis.exceptions import ReadOnlyError, ResponseError

TIMEOUT_MS = 5_000


class UnreliableConnection(UnixDomainSocketConnection):
    """A connection that is lost while it is idle, or right after it was found usable."""

    def __init__(self, path: str, *, idle: bool) -> None:
        super().__init__(path=path, protocol=2)
        self._idle = idle

    async def can_read(self) -> bool:
        """Lose the connection before or after the check, and let the event loop close it."""
        if self._idle:
            await self._lose()
        readable: bool = await super().can_read()
        if not self._idle:
            await self._lose()
        return readable

    async def _lose(self) -> None:
        assert self._writer is not None
        self._writer.transport.abort()
        await asyncio.sleep(0.01)


def read_twice(redis: EmbeddedRedis, *, idle: bool) -> list[object]:
    """Read twice on uvloop; the connection of the first read is lost before the second. Return the replies or errors."""

    async def main() -> list[object]:
        pool = ConnectionPool(redis.url, TIMEOUT_MS, 1)
        pool._new_connection = lambda: UnreliableConnection(redis.url.removeprefix("unix://"), idle=idle)  # to lose it there
        results: list[object] = []
        for _ in range(2):
            results += await asyncio.gather(pool.read(("PING",)), return_exceptions=True)
        await pool.close()
        return results

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


async def test_connection_lost_while_idle_is_replaced(redis_server: EmbeddedRedis) -> None:
    """A call whose idle connection was lost uses another one."""
    assert [[b"PONG"], [b"PONG"]] == await asyncio.to_thread(read_twice, redis_server, idle=True)


async def test_connection_lost_before_a_command_means_that_the_log_is_unavailable(redis_server: EmbeddedRedis) -> None:
    """A call whose connection is lost between the check and the command hears that the log is unavailable."""
    first, second = await asyncio.to_thread(read_twice, redis_server, idle=False)
    assert first == [b"PONG"]
    with pytest.raises(LogUnavailableError, match="no answer from Redis"):
        raise second  # type: ignore[misc]


WRITING_SCRIPT = ("EVAL", "return redis.call('SET', KEYS[1], 'value')", "1", "key")


@pytest.mark.parametrize("commands", [(("SET", "key", "value"),), (WRITING_SCRIPT,), COMMANDS])
async def test_connections_to_a_former_primary_are_left(tmp_path: Path, commands: tuple[Command, ...]) -> None:
    """Once a Redis has said that it is a replica, every call opens a new connection: the URL may lead to the new primary."""
    async with EmbeddedRedis(tmp_path) as redis:
        link = NetworkPath()
        pool, other = (ConnectionPool(redis.url, TIMEOUT_MS, 1, link) for _ in range(2))
        client = ("CLIENT", "ID")
        before = [*await pool.read(client), *await other.read(client)]
        await pool.read(*commands)
        assert before == [*await pool.read(client), *await other.read(client)]
        await pool.read(("REPLICAOF", "127.0.0.1", "1"))
        await pool.read(*commands)
        await pool.read(("REPLICAOF", "NO", "ONE"))
        after = [*await pool.read(client), *await other.read(client)]
        assert not {*before} & {*after}
        await pool.close()
        await other.close()


async def test_calls_go_on_when_a_replica_is_checked(tmp_path: Path) -> None:
    """A check that finds a replica ends no call: the replica may be accepted. A connection that was open before is not used again."""
    async with EmbeddedRedis(tmp_path) as redis:
        link = NetworkPath()
        pool, other = (ConnectionPool(redis.url, TIMEOUT_MS, 1, link) for _ in range(2))
        await pool.read(("REPLICAOF", "127.0.0.1", "1"))
        (client,) = await other.read(("CLIENT", "ID"))
        reading = asyncio.create_task(other.read(("XREAD", "BLOCK", "0", "STREAMS", "none", "$")))
        while b"cmd=xread" not in (await pool.read(("CLIENT", "LIST")))[0]:  # noqa: ASYNC110  # Redis has no other way to tell
            await asyncio.sleep(0.01)
        await pool.read(*COMMANDS)
        await pool.read(("CLIENT", "UNBLOCK", str(client)))
        assert [None] == await reading
        assert [client] != await other.read(("CLIENT", "ID"))
        await pool.close()
        await other.close()


def test_refusals_of_replicas() -> None:
    """Redis 6 wraps what a replica answers to a script that writes; other errors of scripts are no such refusal."""
    of_redis_6 = (
        "Error running script (call to f_1): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica."
    )
    assert all(map(is_read_only, (ReadOnlyError("You can't write against a read only replica."), ResponseError(of_redis_6))))
    assert not any(map(is_read_only, (ResponseError("Error running script: -OOM"), b"-READONLY", None, 1)))
