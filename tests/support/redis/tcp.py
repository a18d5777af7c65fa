"""A Redis on a TCP port of the loopback, as a primary or a replica. A test may stop, continue or kill it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import redis.asyncio
from gavel_server.log.redis.program import find_redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from tests.support.ports import free_port


class RedisOnTcp:
    """A running Redis."""

    def __init__(self, port: int, command: Sequence[str], process: asyncio.subprocess.Process) -> None:
        self.port = port
        self._command = command
        self.address = f"127.0.0.1:{port}"
        self.url = f"redis://127.0.0.1:{port}/0"
        self.process = process

    def pause(self) -> None:
        """Let it fall silent: its connections stay open."""
        self.process.send_signal(signal.SIGSTOP)

    def proceed(self) -> None:
        """Let it go on after `pause`."""
        self.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Kill it and wait until it is gone."""
        self.process.kill()
        await self.process.wait()

    async def take_contents_of(self, other: RedisOnTcp) -> None:
        """Replace its contents by those of another Redis, as a failover does to those who know its address. Both are primaries then."""
        await other.stand_alone()
        await self.follow(other)
        await self.stand_alone()

    async def stand_alone(self) -> None:
        """Follow no other Redis any more."""
        async with redis.asyncio.Redis(port=self.port) as mine:
            await mine.execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]

    async def follow(self, primary: RedisOnTcp) -> None:
        """Become a replica of another Redis, connected."""
        async with redis.asyncio.Redis(port=self.port) as mine:
            await mine.execute_command("REPLICAOF", "127.0.0.1", primary.port)  # type: ignore[no-untyped-call]
            while (await mine.info("replication"))["master_link_status"] != "up":  # noqa: ASYNC110 - Redis sets no event
                await asyncio.sleep(0.02)

    async def restart(self) -> None:
        """Start it again on its data, after `kill`."""
        self.process = await asyncio.create_subprocess_exec(*self._command, stdout=subprocess.DEVNULL)


@asynccontextmanager
async def redis_on_tcp(directory: Path, *settings: str, port: int = 0, program: str = "") -> AsyncIterator[RedisOnTcp]:
    """Run a Redis; without `port` on a free one, without `program` the one that the server would embed."""
    port = port or free_port()
    os.makedirs(directory, exist_ok=True)
    program = program or find_redis((6, 2), directory).path
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "", "--repl-diskless-sync", "yes"]
    arguments += ["--repl-diskless-sync-delay", "0", *settings]
    process = await asyncio.create_subprocess_exec(program, *arguments, stdout=subprocess.DEVNULL)
    running = RedisOnTcp(port, (program, *arguments), process)
    try:
        async with redis.asyncio.Redis(port=port, retry=Retry(ConstantBackoff(0.02), 1000)) as plain:
            await plain.ping()
        yield running
    finally:
        if running.process.returncode is None:
            running.process.kill()
        await running.process.wait()


@asynccontextmanager
async def replicated_redis(directory: Path) -> AsyncIterator[tuple[RedisOnTcp, RedisOnTcp]]:
    """Run a primary and its replica, connected."""
    async with (
        redis_on_tcp(directory / "primary") as primary,
        redis_on_tcp(directory / "replica", "--replicaof", "127.0.0.1", str(primary.port)) as replica,
        redis.asyncio.Redis(port=primary.port) as plain,
    ):
        while (await plain.info("replication")).get("slave0", {}).get("state") != "online":  # noqa: ASYNC110 - Redis sets no event
            await asyncio.sleep(0.02)
        yield primary, replica
