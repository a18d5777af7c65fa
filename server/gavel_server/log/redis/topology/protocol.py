"""The Redis servers behind one URL, as their users see them: one Redis, which Sentinels may move, or a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from gavel_server.log.protocol import LogError
from gavel_server.log.redis.connection import Channel, Connections


class BusConnections(NamedTuple):
    """The ways to the log of one bus."""

    appends: Channel
    reads: Channel
    url: str
    timeout_ms: int


class Topology(Protocol):
    """The Redis servers behind one URL."""

    is_cluster: bool
    url: str

    def of(self, bus: str) -> BusConnections:
        """Return the ways to the log of a bus. Connects to nothing."""

    async def masters(self) -> list[Connections]:
        """Return the connections to every Redis that may hold logs. Raises LogUnavailableError."""

    async def placement(self, buses: Iterable[str]) -> tuple[dict[Connections, list[str]], dict[str, LogError]]:
        """Return which buses each Redis holds now, and why it is unknown for the others."""

    def suspect(self, node: Connections) -> None:
        """Note that a Redis does not answer, so that its logs may have moved."""

    async def ping(self) -> None:
        """Check that the logs can be found. Raises LogUnreachableError."""

    async def close(self) -> None:
        """Close all connections. Later calls raise LogUnavailableError."""
