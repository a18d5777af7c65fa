"""The logs that the campaign mistreats, each with two servers: one Redis, a Redis Cluster of three masters with replicas, PostgreSQL."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import redis.asyncio
import redis.exceptions

from tests.campaigns.redis_process import RedisProcess
from tests.e2e.world import Server, poll
from tests.support.fronts import ANY_FRONT
from tests.support.machine.faulty_machine import FaultyMachine
from tests.support.postgresql.cluster import Cluster, directories, prepare
from tests.support.redis.cluster import RunningCluster, running_cluster
from tests.support.redis.tcp import RedisOnTcp
from tests.support.redis.tcp_proxy import TcpProxy, running_proxy
from tests.support.redis.valkey import valkey_program

SERVERS: Final = 2
# Longer than a machine with other load may let a node wait for a processor: otherwise masters that live would be replaced.
NODE_TIMEOUT_MS: Final = 5_000
# Indexes and snapshots are at work from the first events on.
_OPTIONS: Final = ("--front", ANY_FRONT, "--index-from", "100", "--snapshot-every", "300")


class World(Protocol):
    """Servers and their log. The servers reach the log through `proxy`, if there is one."""

    servers: list[Server]
    machines: list[FaultyMachine]
    """The machine of each server."""
    log_machine: FaultyMachine | None
    """The machine of the log; None: its faults are not injected."""
    proxy: TcpProxy | None
    files: Path | None
    """The folder with the files of the log; None: it has several."""

    def buses(self, name: str) -> list[str]:
        """Return the buses to use together, with names that begin with `name`."""
        ...

    async def url_of(self, bus: str) -> str:
        """Return the URL at which the log of a bus is read now."""
        ...

    async def kill_log(self) -> None:
        """Kill the log's process, or one of them."""
        ...

    async def restore_log(self) -> None:
        """Let the log serve again after `kill_log`, if it does not."""
        ...

    def signal_log(self, number: signal.Signals) -> None:
        """Send a signal to the log's processes, or to one of them: the same one until `restore_log`."""
        ...


WorldContext = Callable[[Path], AbstractAsyncContextManager[World]]


class RedisWorld:
    """One Redis behind a proxy."""

    def __init__(self, directory: Path, process: RedisProcess, proxy: TcpProxy, log_machine: FaultyMachine) -> None:
        self.process = process
        self.files: Path | None = process.directory
        self.proxy: TcpProxy | None = proxy
        self.log_machine: FaultyMachine | None = log_machine
        self.servers, self.machines = _new_servers(directory, proxy.url)

    def buses(self, name: str) -> list[str]:
        """Return one bus."""
        return [name]

    async def url_of(self, bus: str) -> str:
        """Return Redis's own URL."""
        return self.process.url

    async def kill_log(self) -> None:
        """Kill Redis."""
        self.process.kill()

    async def restore_log(self) -> None:
        """Start Redis on its files, unless it runs."""
        if not self.process.is_running:
            await self.process.start()

    def signal_log(self, number: signal.Signals) -> None:
        """Send Redis a signal."""
        self.process.send_signal(number)


@asynccontextmanager
async def redis_world(directory: Path) -> AsyncIterator[World]:
    """Run one Redis."""
    machine = FaultyMachine(directory / "redis-machine")
    process = RedisProcess(directory / "redis", machine.environment)
    await process.start()
    try:
        async with running_proxy(process.url) as proxy:
            yield RedisWorld(directory, process, proxy, machine)
    finally:
        process.kill()


class PostgresqlWorld:
    """One PostgreSQL behind a proxy."""

    def __init__(self, directory: Path, cluster: Cluster, proxy: TcpProxy, log_machine: FaultyMachine) -> None:
        self._cluster = cluster
        self.files: Path | None = cluster.data
        self.proxy: TcpProxy | None = proxy
        self.log_machine: FaultyMachine | None = log_machine
        self.servers, self.machines = _new_servers(directory, f"{proxy.url.replace('redis://', 'postgresql://gavel_server@')}/gavel")

    def buses(self, name: str) -> list[str]:
        """Return one bus."""
        return [name]

    async def url_of(self, bus: str) -> str:
        """Return PostgreSQL's own URL."""
        return self._cluster.url

    async def kill_log(self) -> None:
        """Kill all processes of PostgreSQL."""
        await asyncio.to_thread(self._cluster.kill)

    async def restore_log(self) -> None:
        """Start PostgreSQL on its files, unless it runs."""
        await asyncio.to_thread(self._cluster.start)

    def signal_log(self, number: signal.Signals) -> None:
        """Send all processes of PostgreSQL a signal."""
        self._cluster.signal(number)


@asynccontextmanager
async def postgresql_world(directory: Path) -> AsyncIterator[World]:
    """Run one PostgreSQL."""
    with directories() as home:
        machine = FaultyMachine(home / "machine")
        cluster = prepare(home / "primary")
        cluster.initialize()
        cluster.environment = machine.environment
        await asyncio.to_thread(cluster.start)
        try:
            await asyncio.to_thread(cluster.install)
            async with running_proxy(f"unix://{cluster.socket}") as proxy:
                yield PostgresqlWorld(directory, cluster, proxy, machine)
        finally:
            cluster.kill()


class ClusterWorld:
    """Three masters, each with a replica, which takes over. One bus lives on each master. What is answered is on two disks."""

    log_machine: FaultyMachine | None = None
    proxy: TcpProxy | None = None
    files: Path | None = None

    def __init__(self, directory: Path, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._nodes = [*cluster.masters, *cluster.replicas]
        self._victim: RedisOnTcp | None = None
        self.shard = 0
        """The shard whose master was killed last."""
        self.servers, self.machines = _new_servers(directory, cluster.url, "--ack", "aof:1")

    def buses(self, name: str) -> list[str]:
        """Return a bus on each shard."""
        return [self._cluster.bus_on(index, name) for index in range(len(self._cluster.masters))]

    async def url_of(self, bus: str) -> str:
        """Return the URL of the master that holds a bus."""
        shard = self._cluster.index_of(bus)
        return (await self._master(shard)).url

    def shard_of(self, bus: str) -> int:
        """Return the shard that holds a bus."""
        return self._cluster.index_of(bus)

    async def kill_log(self) -> None:
        """Kill the master of the next shard."""
        await self._choose_victim()
        assert self._victim is not None
        await self._victim.kill()

    async def restore_log(self) -> None:
        """Wait until the shard has a master, and let the victim become its replica."""
        if self._victim is not None:
            if self._victim.process.returncode is not None:
                await self._master(self.shard, other_than=self._victim)
                await self._victim.restart()
            self._victim = None
        for shard in range(len(self._cluster.masters)):
            await self._until_replicated(shard)

    def signal_log(self, number: signal.Signals) -> None:
        """Send a signal to the victim, or to the first node if none is chosen."""
        (self._victim or self._nodes[self.shard]).process.send_signal(number)

    async def _choose_victim(self) -> None:
        self.shard = (self.shard + 1) % len(self._cluster.masters)
        self._victim = await self._master(self.shard)

    async def _master(self, shard: int, other_than: RedisOnTcp | None = None) -> RedisOnTcp:
        """Wait for the master of a shard and return it."""
        masters = len(self._cluster.masters)

        async def find() -> RedisOnTcp | None:
            for node in (self._nodes[shard], self._nodes[masters + shard]):
                info = await _replication(node) if node is not other_than else {}
                if info.get("role") == "master":
                    return node
            return None

        return await poll(find, lambda: f"shard {shard} of the cluster has no master")

    async def _until_replicated(self, shard: int) -> None:
        async def is_replicated() -> bool | None:
            return (await _replication(await self._master(shard))).get("slave0", {}).get("state") == "online" or None

        await poll(is_replicated, lambda: f"shard {shard} of the cluster has no replica")


@asynccontextmanager
async def cluster_world(directory: Path) -> AsyncIterator[ClusterWorld]:
    """Run a cluster."""
    settings = ("--min-replicas-to-write", "1")
    program = valkey_program()
    async with running_cluster(
        directory / "redis", has_replicas=True, program=program, settings=settings, node_timeout_ms=NODE_TIMEOUT_MS
    ) as cluster:
        yield ClusterWorld(directory, cluster)


WORLDS: Final[dict[str, WorldContext]] = {"redis": redis_world, "cluster": cluster_world, "postgresql": postgresql_world}


async def _replication(node: RedisOnTcp) -> dict[str, Any]:
    try:
        async with redis.asyncio.Redis(port=node.port, socket_timeout=1) as client:
            return dict(await client.info("replication"))
    except redis.exceptions.RedisError:
        return {}


def new_server(world: World, data: Path) -> Server:
    """Return a server of the same log that is not started and has no checkpoint."""
    return Server(data, redis_url=world.servers[0].redis_url, options=_OPTIONS, installed=True)


def _new_servers(directory: Path, url: str, *options: str) -> tuple[list[Server], list[FaultyMachine]]:
    """Return servers that are not started, on fixed addresses, and their machines."""
    machines = [FaultyMachine(directory / f"machine-{number}") for number in range(SERVERS)]
    servers = [
        Server(
            directory / f"server-{number}",
            redis_url=url,
            listen=f"unix:{directory}/{number}.sock",
            options=(*_OPTIONS, *options),
            installed=True,
            environment=machine.environment,
        )
        for number, machine in enumerate(machines)
    ]
    return servers, machines
