"""A Redis Cluster of real processes on the loopback, whose nodes a test may kill, stop and continue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import redis.asyncio
from gavel_rules.redis_keys import head_key
from redis.crc import key_slot

from tests.support.ports import free_cluster_port
from tests.support.redis.tcp import RedisOnTcp, redis_on_tcp

SLOTS: Final = 16_384
# How long a master may be silent before its replica takes over.
NODE_TIMEOUT_MS: Final = 1_500
DURABLE: Final = ("--appendonly", "yes", "--appendfsync", "always")


class RunningCluster:
    """Masters, each with equal shares of the slots, and the replica of each, if there are any."""

    def __init__(self, masters: Sequence[RedisOnTcp], replicas: Sequence[RedisOnTcp]) -> None:
        self.masters = masters
        self.replicas = replicas
        self.url = f"redis+cluster://{','.join(node.address for node in masters)}/"

    def index_of(self, bus: str) -> int:
        """Return which of the masters holds a bus at first."""
        slot = key_slot(head_key(bus).encode())
        return next(index for index, slots in enumerate(_shares(len(self.masters))) if slot in slots)

    def bus_on(self, index: int, name: str) -> str:
        """Return the name of a bus, beginning with `name`, that the master with this index holds."""
        return next(bus for number in range(SLOTS) if self.index_of(bus := f"{name}-{number}") == index)


@asynccontextmanager
async def running_cluster(
    directory: Path,
    masters: int = 3,
    *,
    has_replicas: bool = False,
    program: str = "",
    settings: Sequence[str] = (),
    node_timeout_ms: int = NODE_TIMEOUT_MS,
) -> AsyncIterator[RunningCluster]:
    """Run a cluster until the end of the block."""
    async with AsyncExitStack() as stack:
        nodes = []
        for index in range(masters * (2 if has_replicas else 1)):
            arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout_ms), *DURABLE, *settings]
            # Buses of other masters go on without one of them. A replica takes over however old its link is.
            arguments += ["--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0"]
            where = directory / f"node-{index}"
            nodes.append(await stack.enter_async_context(redis_on_tcp(where, *arguments, port=free_cluster_port(), program=program)))
        cluster = RunningCluster(nodes[:masters], nodes[masters:])
        await _join(cluster)
        yield cluster


def _shares(masters: int) -> list[range]:
    return [range(SLOTS * index // masters, SLOTS * (index + 1) // masters) for index in range(masters)]


async def _join(cluster: RunningCluster) -> None:
    """Let the nodes form the cluster."""
    async with AsyncExitStack() as stack:
        nodes = [*cluster.masters, *cluster.replicas]
        clients: list[Any] = [await stack.enter_async_context(redis.asyncio.Redis(port=node.port)) for node in nodes]
        for index, slots in enumerate(_shares(len(cluster.masters))):
            await clients[index].execute_command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            await clients[index].execute_command("CLUSTER", "ADDSLOTS", *slots)
        for node in nodes[1:]:
            await clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        await _until_known(clients)
        for master, replica in zip(clients, clients[len(cluster.masters) :], strict=False):
            await replica.execute_command("CLUSTER", "REPLICATE", await master.execute_command("CLUSTER", "MYID"))
        for client in clients[: len(cluster.masters)] if cluster.replicas else []:
            while (await client.info("replication")).get("slave0", {}).get("state") != "online":  # noqa: ASYNC110 - Redis sets no event
                await asyncio.sleep(0.05)
        for client in clients[len(cluster.masters) :]:
            await _until_synced(client)


async def _until_synced(replica: Any) -> None:
    """Wait until a replica has a file of its own again, which it rewrites after a full copy. Before, it confirms no WAITAOF."""
    while True:
        state = await replica.info("persistence")
        if not (state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"]):
            return
        await asyncio.sleep(0.05)


async def _until_known(clients: Sequence[Any]) -> None:
    """Wait until every node knows all others and serves."""
    for client in clients:
        while True:
            info = await client.execute_command("CLUSTER INFO")
            if info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == len(clients):
                break
            await asyncio.sleep(0.05)
