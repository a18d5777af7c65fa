"""The stores of logs, by their URLs: Redis, and PostgreSQL if its package is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, runtime_checkable

from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.protocol import EventLog, Growth, LogUnavailableError

_POSTGRESQL: Final = ("postgresql://", "postgres://")
_EXTRA: Final = "a log in PostgreSQL needs the package psycopg; install gavel-arbiter[postgresql]"


@runtime_checkable
class StoredLog(EventLog, Protocol):
    """A log in a store. `idempotency_window_ms` is that of a new bus until it is set to the recorded one."""

    url: str
    idempotency_window_ms: int

    async def asynchronous_replicas(self) -> int:
        """Return how many replicas of the store no commit waits for, unless `acknowledgement` says so: a failover may lose events.

        Raises LogError.
        """


class LogStore(Protocol):
    """All logs in one store, over shared connections. Its methods raise LogUnavailableError."""

    async def grown(self, known: Mapping[str, int]) -> Growth:
        """Return the buses whose logs may hold events beyond the given sequence numbers. Raises nothing."""

    async def durability(self, buses: Sequence[str]) -> Mapping[str, list[str]]:
        """Return `EventLog.durability` of each bus; those whose log cannot be reached are absent."""

    async def ping(self) -> None:
        """Return if the store answers. Raises LogUnreachableError."""

    def probe_link(self) -> AbstractAsyncContextManager[None]:
        """Make sure during a block that no call waits for its timeout once the store answers again."""

    async def exists(self, bus: str) -> bool:
        """Return whether the store holds a log of this bus. Creates nothing."""

    async def head_number(self, bus: str) -> int | None:
        """Return the number of the newest event, without opening the log; None: there is no such log, or the store does not tell."""

    async def grants_number(self, bus: str) -> int | None:
        """Return the number of the event with the grants in force, without opening the log; 0: there are none.

        None: there is no such log, or the store does not tell.
        """

    async def envelope(self, bus: str, sequence_number: int) -> bytes | None:
        """Return one event of a log, without opening the log; None: the log does not hold it."""

    async def names(self) -> list[str]:
        """Return the names of the buses that have a log."""

    async def open(self, bus: str, *, idempotency_window_ms: int = ..., acknowledgement: Acknowledgement = ...) -> StoredLog:
        """Return the log of a bus, over the shared connections. Raises LogCorruptError too."""

    async def close(self) -> None:
        """Close the connections of all logs."""


def is_postgresql(url: str) -> bool:
    """Return whether a URL names a PostgreSQL."""
    return url.startswith(_POSTGRESQL)


def check_url(url: str) -> str:
    """Return the URL if it is a valid URL of a store. Raises ValueError, with the password masked, also if a package is missing."""
    if is_postgresql(url):
        try:
            from gavel_server.log.postgresql.connection import check_url as check_postgresql_url
        except ImportError:
            raise ValueError(_EXTRA) from None
        return check_postgresql_url(url)
    from gavel_server.log.redis.topology.urls import check_url as check_redis_url

    try:
        return check_redis_url(url)
    except ValueError as error:
        raise ValueError(f"{error}; a PostgreSQL is named postgresql://user@host:5432/database") from None


def open_store(url: str, *, accept_volatile: bool = True) -> LogStore:
    """Return the store at a URL; nothing is connected yet.

    Unless `accept_volatile`, nothing is appended to a store that may lose acknowledged events. Raises ValueError, LogUnavailableError.
    """
    if is_postgresql(url):
        try:
            from gavel_server.log.postgresql.logs import PostgresqlLogs
        except ImportError:
            raise LogUnavailableError(_EXTRA) from None
        return PostgresqlLogs(url, accept_volatile=accept_volatile)
    from gavel_server.log.redis.logs import RedisLogs

    return RedisLogs(url, accept_volatile=accept_volatile)


async def connect_log(
    url: str,
    bus: str,
    acknowledgement: Acknowledgement = Acknowledgement(),  # noqa: B008  # immutable
) -> StoredLog:
    """Connect to the log of a bus in the store at a URL; closing the log ends the connections.

    The log confirms events as `acknowledgement` says.

    Raises ValueError for an invalid URL or bus name, LogUnavailableError, LogCorruptError.
    """
    if is_postgresql(url):
        try:
            from gavel_server.log.postgresql.log import PostgresqlLog
        except ImportError:
            raise LogUnavailableError(_EXTRA) from None
        return await PostgresqlLog.connect(url, bus, acknowledgement=acknowledgement)
    from gavel_server.log.redis.log import RedisLog

    return await RedisLog.connect(url, bus, acknowledgement=acknowledgement)
