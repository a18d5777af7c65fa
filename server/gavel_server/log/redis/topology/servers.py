"""One Redis, or the master that Sentinels name; and the choice between it and a cluster."""

from __future__ import annotations

from collections.abc import Iterable

from gavel_server.log.protocol import LogError
from gavel_server.log.redis.connection import TIMEOUT_MS_DEFAULT, Connections
from gavel_server.log.redis.topology.cluster import Cluster
from gavel_server.log.redis.topology.protocol import BusConnections, Topology
from gavel_server.log.redis.topology.urls import parse


def open_topology(url: str, timeout_ms: int = TIMEOUT_MS_DEFAULT, *, accept_volatile: bool = True) -> Topology:
    """Return the Redis servers behind a URL. Connects to nothing. Raises ValueError for an invalid URL.

    `accept_volatile`: see Connections.
    """
    if parse(url).kind == "cluster":
        return Cluster(url, timeout_ms, accept_volatile=accept_volatile)
    return OneRedis(url, timeout_ms, accept_volatile=accept_volatile)


class OneRedis:
    """One Redis, or the master that Sentinels name."""

    is_cluster = False

    def __init__(self, url: str, timeout_ms: int, *, accept_volatile: bool) -> None:
        self.url = url
        self._connections = Connections(url, timeout_ms, accept_volatile=accept_volatile)

    def of(self, bus: str) -> BusConnections:  # one Redis holds all buses
        """See Topology."""
        return BusConnections(self._connections.appends, self._connections.reads, self.url, self._connections.timeout_ms)

    async def masters(self) -> list[Connections]:
        """See Topology."""
        return [self._connections]

    async def placement(self, buses: Iterable[str]) -> tuple[dict[Connections, list[str]], dict[str, LogError]]:
        """See Topology."""
        return {self._connections: list(buses)}, {}

    def suspect(self, node: Connections) -> None:
        """See Topology. Every new connection of Sentinels asks for the master anyway."""

    async def ping(self) -> None:
        """See Topology."""
        await self._connections.watch.probe(("PING",))

    async def close(self) -> None:
        """See Topology."""
        await self._connections.close()
