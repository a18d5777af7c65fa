"""A primary, two replicas and three Sentinels: real processes on the loopback."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import redis.asyncio
from gavel_server.log.redis.program import find_redis

from tests.support.ports import free_port
from tests.support.redis.cluster import DURABLE
from tests.support.redis.tcp import RedisOnTcp, redis_on_tcp

NAME: Final = "main"
SENTINELS: Final = 3
REPLICAS: Final = 2
# How long the primary may be silent before the Sentinels count it as down.
DOWN_AFTER_MS: Final = 1_000


class SentinelSet:
    """The servers; `nodes[0]` is the first primary."""

    def __init__(self, nodes: Sequence[RedisOnTcp], ports: Sequence[int]) -> None:
        self.nodes = nodes
        self._ports = ports
        self.url = f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{NAME}/0"

    async def primary(self) -> RedisOnTcp:
        """Return the primary that the first Sentinel names."""
        async with redis.asyncio.Redis(port=self._ports[0], protocol=2) as sentinel:
            _, port = await sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)  # type: ignore[no-untyped-call]
        return next(node for node in self.nodes if node.port == int(port))


@asynccontextmanager
async def sentinel_set(directory: Path, *settings: str, program: str = "") -> AsyncIterator[SentinelSet]:
    """Run the servers until the end of the block; it begins once every Sentinel knows all of them."""
    program = program or find_redis((6, 2), directory).path
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(redis_on_tcp(directory / "0", *DURABLE, *settings, program=program))
        nodes = [first]
        for index in range(REPLICAS):
            replica = redis_on_tcp(
                directory / str(index + 1), *DURABLE, *settings, "--replicaof", "127.0.0.1", str(first.port), program=program
            )
            nodes.append(await stack.enter_async_context(replica))
        ports = [free_port() for _ in range(SENTINELS)]
        for port in ports:
            await stack.enter_async_context(_sentinel(directory / f"sentinel-{port}", port, first.port, program))
        for port in ports:
            await _until_complete(port)
        yield SentinelSet(nodes, ports)


@asynccontextmanager
async def _sentinel(directory: Path, port: int, primary: int, program: str) -> AsyncIterator[None]:
    file = directory / "sentinel.conf"
    os.makedirs(directory)
    file.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor {NAME} 127.0.0.1 {primary} 2\n"
        f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\nsentinel failover-timeout {NAME} 4000\n"
        f"sentinel parallel-syncs {NAME} {REPLICAS}\n"
    )
    process = await asyncio.create_subprocess_exec(program, str(file), "--sentinel", stdout=asyncio.subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def _until_complete(port: int) -> None:
    async with redis.asyncio.Redis(port=port, protocol=2, decode_responses=True) as connection:
        sentinel: Any = connection
        while True:
            try:
                flat = await sentinel.execute_command("SENTINEL", "MASTER", NAME)
                state = dict(zip(flat[::2], flat[1::2], strict=True))
                if (int(state["num-slaves"]), int(state["num-other-sentinels"])) == (REPLICAS, SENTINELS - 1):
                    return
            except redis.exceptions.ConnectionError:
                pass  # it starts
            await asyncio.sleep(0.05)
