"""Finds the Redis that holds a key behind the URL of Sentinels or of a cluster, with redis-py's own clients.

A connection asks for the master whenever it is opened, so a failover needs nothing but a new connection.
"""

from __future__ import annotations

from typing import Any, Final

import redis.asyncio
import redis.exceptions
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import BlockingConnectionPool, Connection, ConnectionPool, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from gavel_client.consumers.redis_urls import RedisTarget, parse_target

# How long one Sentinel or one node of a cluster may take to answer; then the next one is asked.
DISCOVERY_SECONDS: Final = 0.5

_SENTINEL_PREFIX: Final = "sentinel_"
# Replies of a node that does not hold the key any more, or does not serve it now.
_MOVED_ERRORS: Final = (redis.exceptions.AskError, redis.exceptions.ClusterDownError, redis.exceptions.TryAgainError)


def url_options(target: RedisTarget) -> dict[str, Any]:
    """Return the options of a URL, as redis-py parses them. Those of Sentinels have the prefix sentinel_. Raises ValueError."""
    options: dict[str, Any] = dict(parse_url(target.url))
    if target.kind != "redis":
        options.pop("connection_class", None)
        options.pop("host", None)
        options.pop("port", None)
    if target.kind == "cluster":
        options.pop("db", None)
    return options


def sentinel_pool(
    target: RedisTarget, options: dict[str, Any], pool_class: type[SentinelConnectionPool] = SentinelConnectionPool
) -> SentinelConnectionPool:
    """Return a pool of connections to the master that the Sentinels name. `options` are those of the connections, and of the URL."""
    discovery = {name.removeprefix(_SENTINEL_PREFIX): value for name, value in options.items() if name.startswith(_SENTINEL_PREFIX)}
    discovery |= {name: value for name, value in options.items() if name.startswith("ssl_")}
    discovery.update(_discovery_options(), ssl=target.has_tls, protocol=2)
    own = {name: value for name, value in options.items() if not name.startswith(_SENTINEL_PREFIX)}
    sentinel = Sentinel(target.hosts, sentinel_kwargs=discovery)  # type: ignore[no-untyped-call]
    return pool_class(target.name, sentinel, ssl=target.has_tls, **own)


def cluster_client(target: RedisTarget, options: dict[str, Any]) -> RedisCluster:
    """Return redis-py's client of a cluster, to discover its nodes. `options` are those of the URL."""
    # Buses on the other nodes go on while the slots of one are not covered.
    return RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in target.hosts],
        require_full_coverage=False,
        ssl=target.has_tls,
        protocol=2,
        **{**options, **_discovery_options()},
    )


def open_pool(redis_url: str, key: str, options: dict[str, Any], connections_max: int | None = None) -> ConnectionPool:
    """Return connections to the Redis that holds `key`. With `connections_max`, a command waits for a free one. Raises ValueError."""
    target = parse_target(redis_url)
    if connections_max is not None:
        options = {**options, "max_connections": connections_max}
    if target.kind == "redis":
        if connections_max is None:
            return ConnectionPool.from_url(redis_url, **options)
        return BlockingConnectionPool.from_url(redis_url, timeout=None, **options)
    own = {**url_options(target), **options, "timeout": None}
    if target.kind == "sentinel":
        return sentinel_pool(target, own, _SentinelPool)
    kind = _ClusterSSLConnection if target.has_tls else _ClusterConnection
    return _ClusterPool(cluster_client(target, url_options(target)), target, key, connection_class=kind, **own)


def _discovery_options() -> dict[str, Any]:
    return {
        "socket_timeout": DISCOVERY_SECONDS,
        "socket_connect_timeout": DISCOVERY_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,
    }


class _SentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the master that Sentinels name, for which a command waits."""

    async def disconnect(self, inuse_connections: bool = True) -> None:  # redis-py's signature
        """Close the connections; with those in use, also those to the Sentinels."""
        await super().disconnect(inuse_connections)
        if inuse_connections:
            await self.sentinel_manager.aclose()


class _ClusterPool(BlockingConnectionPool):
    """Connections to the master that holds `key`."""

    def __init__(self, cluster: RedisCluster, target: RedisTarget, key: str, **options: Any) -> None:
        super().__init__(**options)
        self.connection_kwargs["find_master"] = self._find_master
        self._cluster = cluster
        self._hosts = list(target.hosts)
        self._key = key

    async def _find_master(self) -> tuple[str, int]:
        await self._cluster.nodes_manager.initialize(self._hosts)
        node = self._cluster.get_node_from_key(self._key)
        if node is None:
            raise redis.exceptions.ConnectionError(f"no node of the cluster serves {self._key}")
        return node.host, int(node.port)

    async def disconnect(self, inuse_connections: bool = True) -> None:  # redis-py's signature
        """Close the connections; with those in use, also those of the discovery."""
        await super().disconnect(inuse_connections)
        if inuse_connections:
            await self._cluster.nodes_manager.aclose()


class _ClusterConnection(Connection):
    """A connection that finds the master whenever it is opened."""

    def __init__(self, find_master: Any, **options: Any) -> None:
        self._find_master = find_master
        super().__init__(**options)

    async def connect(self) -> None:
        """Find the master and connect to it. Raises redis-py's ConnectionError."""
        if not self.is_connected:
            try:
                self.host, self.port = await self._find_master()
            except redis.exceptions.RedisClusterException as error:
                raise redis.exceptions.ConnectionError(str(error)) from error
        await super().connect()  # type: ignore[no-untyped-call]

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Read a reply. One of a node that does not serve the key ends the connection, so that the next one finds the master."""
        try:
            return await super().read_response(*arguments, **options)
        except _MOVED_ERRORS as error:
            await self.disconnect()
            raise redis.exceptions.ConnectionError(f"the node does not serve this key now: {error}") from error


class _ClusterSSLConnection(_ClusterConnection, SSLConnection):
    """A connection with TLS."""
