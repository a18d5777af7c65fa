"""A Redis Cluster: the master that holds each bus, and the way to it.

All keys of a bus share a hash slot, so a bus is on one master at a time. redis-py's cluster client finds the masters and their slots; the
commands go over Gavel's own connections, which send each at most once. A redirection (MOVED, ASK) means that the node has not run the
command, so it is sent to the other node. After a failure of a node the next call to it asks the cluster again; calls to other nodes do not
wait for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from gavel_rules.redis_keys import head_key
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisClusterException, RedisError

from gavel_server.log.protocol import LogError, LogUnreachableError, OutcomeUnknownError
from gavel_server.log.redis.connection import Connections
from gavel_server.log.redis.resp import Command
from gavel_server.log.redis.topology.protocol import BusConnections
from gavel_server.log.redis.topology.urls import discovery_client, node_endpoint, parse
from gavel_server.log.urls import mask_url

# How often one call follows a redirection.
REDIRECTIONS_MAX: Final = 5
# Between two questions to the cluster. During a failover many calls fail at once.
REFRESH_PAUSE_SECONDS: Final = 0.1

_ASKING: Final[Command] = ("ASKING",)
# The exceptions of redis-py if the cluster cannot be asked, or does not serve a slot.
_UNKNOWN: Final = (RedisClusterException, RedisError, OSError, TimeoutError)


class Cluster:
    """The masters of a Redis Cluster, each with connections that its buses share."""

    is_cluster = True

    def __init__(self, url: str, timeout_ms: int, *, accept_volatile: bool) -> None:
        self.url = url
        self.address = mask_url(url)
        self._timeout_ms = timeout_ms
        self._accept_volatile = accept_volatile
        self._hosts = list(parse(url).hosts)
        self._client = discovery_client(url)
        self._nodes: dict[tuple[str, int], Connections] = {}
        self._is_known = False
        self._suspects: set[tuple[str, int]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at = 0.0
        self._leaving: set[asyncio.Task[None]] = set()

    def of(self, bus: str) -> BusConnections:
        """See Topology."""
        return BusConnections(ClusterChannel(self, bus, "appends"), ClusterChannel(self, bus, "reads"), self.url, self._timeout_ms)

    async def node_of(self, bus: str) -> Connections:
        """Return the connections to the master that holds a bus. Raises LogUnreachableError."""
        if not self._is_known:
            await self._refresh()
        if self._address_of(bus) in self._suspects:
            await self._refresh()
        return self.node(*self._address_of(bus))

    def node(self, host: str, port: int) -> Connections:
        """Return the connections to one node."""
        node = self._nodes.get((host, port))
        if node is None:
            where = node_endpoint(self.url, host, port, self._timeout_ms / 1000)
            node = self._nodes[host, port] = Connections(where, self._timeout_ms, accept_volatile=self._accept_volatile)
        return node

    async def masters(self) -> list[Connections]:
        """See Topology."""
        if not self._is_known or self._suspects:
            await self._refresh()
        return [self.node(node.host, int(node.port)) for node in self._client.get_primaries()]

    async def placement(self, buses: Iterable[str]) -> tuple[dict[Connections, list[str]], dict[str, LogError]]:
        """See Topology."""
        placed: dict[Connections, list[str]] = {}
        failures: dict[str, LogError] = {}
        for bus in buses:
            try:
                placed.setdefault(await self.node_of(bus), []).append(bus)
            except LogError as error:
                failures[bus] = error
        return placed, failures

    def suspect(self, node: Connections) -> None:
        """See Topology."""
        self._suspects.update(address for address, known in self._nodes.items() if known is node)

    async def follow(self, redirection: MovedError) -> None:
        """Note that a slot has moved to another master, as a node says."""
        await self._client.nodes_manager.move_slot(redirection)

    async def ping(self) -> None:
        """See Topology."""
        await self._refresh()

    async def close(self) -> None:
        """See Topology."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await asyncio.gather(*self._leaving, *(node.close() for node in self._nodes.values()))
        await self._client.aclose()

    def _address_of(self, bus: str) -> tuple[str, int]:
        try:
            node = self._client.get_node_from_key(head_key(bus))
        except _UNKNOWN:
            node = None
        if node is None:
            self._is_known = False
            raise LogUnreachableError(f"no node of the Redis Cluster at {self.address} serves the hash slot of bus {bus}")
        return node.host, int(node.port)

    async def _refresh(self) -> None:
        """Ask the cluster for its masters and their slots. Callers share one question. Raises LogUnreachableError."""
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._ask())
            self._refreshing.add_done_callback(self._end_refresh)
        await asyncio.shield(self._refreshing)

    def _end_refresh(self, ended: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not ended.cancelled():
            ended.exception()  # its callers have it, unless all of them have gone

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._refreshed_at + REFRESH_PAUSE_SECONDS - loop.time()))
        suspects = set(self._suspects)
        suspect = next((f"{host}:{port}" for host, port in suspects), None)
        try:
            if self._is_known:
                await self._client.nodes_manager.initialize(self._hosts, suspect)
            else:
                await self._client.initialize(self._hosts, suspect)
        except _UNKNOWN as error:
            raise LogUnreachableError(f"cannot discover the Redis Cluster at {self.address}: {error}") from None
        finally:
            self._refreshed_at = loop.time()
        self._is_known = True
        self._suspects -= suspects
        masters = {(node.host, int(node.port)) for node in self._client.get_primaries()}
        for address in self._nodes.keys() - masters:
            # Calls that wait for it end now: their outcome is found at the new master.
            leaving = asyncio.create_task(self._nodes.pop(address).leave())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)


class ClusterChannel:
    """The way to one bus for one purpose: the pool of the master that holds the bus now."""

    def __init__(self, cluster: Cluster, bus: str, purpose: Literal["appends", "reads"]) -> None:
        self._cluster = cluster
        self._bus = bus
        self._purpose: Literal["appends", "reads"] = purpose

    @property
    def address(self) -> str:
        """See Channel."""
        return self._cluster.address

    async def read(self, *commands: Command, extra_ms: int = 0) -> list[Any]:
        """See Channel. Each command that a node redirects is sent to the other node; a transaction as a whole."""
        node = await self._cluster.node_of(self._bus)
        is_transaction = commands[0][0] == "MULTI"
        replies = await self._send(node, commands, extra_ms)
        for _ in range(REDIRECTIONS_MAX):
            redirected = [index for index, reply in enumerate(replies) if isinstance(reply, AskError)]
            if not redirected:
                break
            node, asking = await self._follow(replies[redirected[0]])
            if is_transaction:
                replies = await self._send(node, (*asking, *commands), extra_ms)
                replies = replies[len(asking) :]
                continue
            again = [part for index in redirected for part in (*asking, commands[index])]
            answered = (await self._send(node, again, extra_ms))[len(asking) :: len(asking) + 1]
            for index, reply in zip(redirected, answered, strict=True):
                replies[index] = reply
        return replies

    async def write(self, *commands: Command, extra_ms: int = 0) -> list[Any]:
        """See Channel. A node that redirects the first command has run none."""
        node = await self._cluster.node_of(self._bus)
        replies = await self._send(node, commands, extra_ms, is_write=True)
        for _ in range(REDIRECTIONS_MAX):
            if not isinstance(replies[0], AskError):
                break
            node, asking = await self._follow(replies[0])
            replies = (await self._send(node, (*asking, *commands), extra_ms, is_write=True))[len(asking) :]
            if not replies:
                raise OutcomeUnknownError(f"no answer from Redis at {self.address}: the connection was lost after a redirection")
        return replies

    async def _follow(self, redirection: AskError) -> tuple[Connections, tuple[Command, ...]]:
        """Return the node to which a command is redirected, and the command that has to precede it."""
        if isinstance(redirection, MovedError):
            await self._cluster.follow(redirection)
            return self._cluster.node(redirection.host, redirection.port), ()
        return self._cluster.node(redirection.host, redirection.port), (_ASKING,)

    async def _send(self, node: Connections, commands: Sequence[Command], extra_ms: int, *, is_write: bool = False) -> list[Any]:
        pool = node.appends if self._purpose == "appends" else node.reads
        try:
            replies = await (pool.write if is_write else pool.read)(*commands, extra_ms=extra_ms)
        except (LogUnreachableError, OutcomeUnknownError):
            self._cluster.suspect(node)
            raise
        if any(isinstance(reply, ClusterDownError) for reply in replies):
            self._cluster.suspect(node)
        return replies
