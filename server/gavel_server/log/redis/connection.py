"""Connections to one Redis that send each command at most once.

A client library that retries may apply an append twice, or hide that its outcome is unknown. This module uses redis-py for URLs,
TLS, authentication, Sentinel and parsing (hiredis), and leaves out its command layer, which retries. Replies are what hiredis parses from
RESP 2: bytes, integers, lists and None. Errors name the URL with user and password masked. `topology` has the nodes of a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, cast

from redis.asyncio.connection import AbstractConnection
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from gavel_server.log.protocol import LogUnavailableError, LogUnreachableError, LogVolatileError, OutcomeUnknownError
from gavel_server.log.redis.durability import COMMANDS, is_replica, volatility
from gavel_server.log.redis.replies import is_read_only, reason
from gavel_server.log.redis.resp import Command, pack
from gavel_server.log.redis.topology.urls import Endpoint, endpoint

# The oldest Redis that can hold a log.
REDIS_VERSION_MIN: Final = (6, 2)
TIMEOUT_MS_DEFAULT: Final = 5000

# Of one server, shared by its buses. Appends that Redis reads at once share a sync of its file.
APPEND_CONNECTIONS_MAX: Final = 64
READ_CONNECTIONS_MAX: Final = 16

# A probe that is not answered within this time is sent again, on a new connection, and fails after PROBE_TRIES.
PROBE_SECONDS: Final = 1.5
PROBE_TRIES: Final = 3
# After a silence, how long an earlier call may go on waiting once a probe is answered: answers may arrive together.
STALE_GRACE_SECONDS: Final = 0.5

# The exceptions of a lost connection; RuntimeError is uvloop's for a transport that the other side has closed.
_CONNECTION_ERRORS: Final = (RedisError, OSError, TimeoutError, RuntimeError)


class NetworkPath:
    """The state of the network path to one Redis, shared by its connection pools.

    After a silence of the network, connections may be dead without a sign, and a call on one of them would wait for its whole timeout.
    Probes notice a silence early. Once a probe is answered again, calls that were sent before it end unless they are answered soon, and
    connections from that time are not used again.
    """

    def __init__(self) -> None:
        self.is_silent = False
        # Connections whose last call did not begin after this moment, by the loop's clock, are closed instead of used.
        self.trusted_since = 0.0
        self._waits: dict[asyncio.Timeout, float] = {}
        self._peer: object = None

    @contextmanager
    def waiting(self, scope: asyncio.Timeout) -> Iterator[None]:
        """Note that a call waits for Redis in `scope`."""
        self._waits[scope] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            del self._waits[scope]

    def note_answer(self, sent_at: float) -> None:
        """Note that a probe that was sent at `sent_at` has been answered."""
        if self.is_silent:
            self.is_silent = False
            self.trusted_since = sent_at
            asyncio.get_running_loop().call_later(STALE_GRACE_SECONDS, self._end_waits, sent_at)

    def note_peer(self, peer: object) -> None:
        """Note the address that a new connection leads to. After a failover it is another one, and connections to the old one are left."""
        if self._peer is not None and peer != self._peer:
            self.leave()
        self._peer = peer

    def leave(self) -> None:
        """End the calls that wait, and use no connection again that was open before: a failover has moved the data."""
        self.distrust()
        self._end_waits(self.trusted_since)

    def distrust(self) -> None:
        """Use no connection again that was open before. The calls that wait go on."""
        self.trusted_since = asyncio.get_running_loop().time()

    def _end_waits(self, sent_at: float) -> None:
        now = asyncio.get_running_loop().time()
        for scope, began_at in self._waits.items():
            if began_at < sent_at and not scope.expired():
                scope.reschedule(now)


class Channel(Protocol):
    """A way to a Redis that holds logs: a pool, or in a cluster the pools of whichever node holds a bus."""

    @property
    def address(self) -> str:
        """The URL for messages."""

    async def read(self, *commands: Command, extra_ms: int = 0) -> list[Any]:
        """See ConnectionPool."""

    async def write(self, *commands: Command, extra_ms: int = 0) -> list[Any]:
        """See ConnectionPool."""


class ConnectionPool:
    """Up to `connections_max` connections to the Redis at `target`, a URL or an endpoint; a call waits for a free one.

    `timeout_ms` bounds each of waiting, connecting and the call itself. `link` is shared by the pools of one Redis. `check` judges the
    replies of a new connection to `greeting`: it returns why the connection may not be used, or "". Raises ValueError for an invalid URL.
    """

    def __init__(
        self,
        target: str | Endpoint,
        timeout_ms: int,
        connections_max: int,
        link: NetworkPath | None = None,
        greeting: Sequence[Command] = (),
        check: Callable[[list[Any]], str] = lambda _: "",
    ) -> None:
        where = endpoint(target, timeout_ms / 1000) if isinstance(target, str) else target
        self.address = where.address
        self._link = link or NetworkPath()
        self._greeting = greeting
        self._check = check
        self._timeout_seconds = timeout_ms / 1000
        self._new_connection = where.new_connection
        self._connections_max = connections_max
        self._free = asyncio.Semaphore(connections_max)
        # Each with the time at which its last call began.
        self._idle: list[tuple[AbstractConnection, float]] = []
        self._closed = False

    async def read(self, *commands: Command, extra_ms: int = 0) -> list[Any]:
        """Send commands that do no harm if they run and their replies are lost; return all replies, error replies as exceptions.

        `extra_ms` extends the timeout, for a command that itself waits. Raises LogUnavailableError if Redis cannot be reached or
        does not answer in time.
        """
        replies, failure = await self._exchange(commands, self._timeout_seconds + extra_ms / 1000)
        if failure:
            raise LogUnreachableError(failure)
        return replies

    async def write(self, *commands: Command, extra_ms: int = 0) -> list[Any]:
        """Send commands of which the first changes data; return its reply and those of the other replies that arrived.

        Raises LogUnavailableError if nothing was sent, OutcomeUnknownError if no reply arrived.
        """
        replies, failure = await self._exchange(commands, self._timeout_seconds + extra_ms / 1000)
        if not replies:
            raise OutcomeUnknownError(failure)
        return replies

    async def probe(self, *commands: Command) -> list[Any]:
        """Send commands like `read`, without waiting for a silent connection: after PROBE_SECONDS they are sent on a new one.

        Raises LogUnavailableError after PROBE_TRIES, or at once while the link is silent.
        """
        failure = ""
        for _ in range(1 if self._link.is_silent else PROBE_TRIES):
            sent_at = asyncio.get_running_loop().time()
            try:
                replies, failure = await self._exchange(commands, PROBE_SECONDS)
            except LogUnavailableError:
                self._link.is_silent = True
                raise
            if not failure:
                self._link.note_answer(sent_at)
                return replies
            self._link.is_silent = True
        raise LogUnreachableError(failure)

    async def close(self) -> None:
        """Close the connections; those in use close after their call. Later calls raise LogUnavailableError."""
        self._closed = True
        while self._idle:
            await self._idle.pop()[0].disconnect(nowait=True)

    async def _exchange(self, commands: Sequence[Command], seconds: float) -> tuple[list[Any], str]:
        """Return the replies that arrived and, if some are missing, the reason."""
        replies: list[Any] = []
        await self._acquire()
        try:
            connection = await self._open_connection(min(seconds, self._timeout_seconds))
            began_at = asyncio.get_running_loop().time()
            try:
                await self._send(connection, commands, replies, seconds)
            except _CONNECTION_ERRORS as error:
                await connection.disconnect(nowait=True)
                return replies, f"no answer from Redis at {self.address}: {_describe(error, seconds)}"
            except BaseException:
                # Cancelled between request and reply: the next reply on this connection would answer the wrong call.
                await connection.disconnect(nowait=True)
                raise
            # A former primary. Its name may lead to the new one by now, but old connections do not.
            if any(map(is_read_only, replies)):
                self._link.leave()
            elif _is_of_replica(commands, replies):
                self._link.distrust()  # ends no calls: with --accept-volatile a replica is used, and checked often
            if self._closed or began_at <= self._link.trusted_since:
                await connection.disconnect(nowait=True)
            else:
                self._idle.append((connection, began_at))
            return replies, ""
        finally:
            self._free.release()

    async def _send(self, connection: AbstractConnection, commands: Sequence[Command], replies: list[Any], seconds: float) -> None:
        """Send commands and append their replies to `replies`."""
        packed = b"".join(map(pack, commands))
        async with asyncio.timeout(seconds) as scope:
            with self._link.waiting(scope):
                await connection.send_packed_command(packed, check_health=False)
                while len(replies) < len(commands):
                    replies.append(await _reply(connection))

    async def _acquire(self) -> None:
        """Take a connection's place, to be released. Raises LogUnavailableError if none becomes free in time."""
        if not self._free.locked():
            await self._free.acquire()  # at once
            return
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._free.acquire()
        except TimeoutError:
            message = f"all {self._connections_max} connections to Redis at {self.address} wait for its answers"
            raise LogUnreachableError(message) from None

    async def _open_connection(self, seconds: float) -> AbstractConnection:
        if self._closed:
            raise LogUnavailableError(f"the connection to Redis at {self.address} was closed")
        while self._idle:
            connection, began_at = self._idle.pop()
            if await _is_usable(connection) and began_at > self._link.trusted_since:
                return connection
            await connection.disconnect(nowait=True)
        connection = self._new_connection()
        replies: list[Any] = []
        try:
            async with asyncio.timeout(seconds) as scope:
                with self._link.waiting(scope):
                    await cast("Callable[[], Awaitable[None]]", connection.connect)()
            # A connection of Sentinel has learnt its address now.
            self._link.note_peer((getattr(connection, "host", ""), getattr(connection, "port", 0)))
            if self._greeting:
                await self._send(connection, self._greeting, replies, seconds)
        except _CONNECTION_ERRORS as error:
            await connection.disconnect(nowait=True)
            # redis-py wraps a refused password in an error of the connection.
            is_refused = isinstance(error, AuthenticationError) or isinstance(error.__cause__, AuthenticationError)
            kind = LogUnavailableError if is_refused else LogUnreachableError
            raise kind(f"cannot connect to Redis at {self.address}: {_describe(error, seconds)}") from None
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        problem = self._check(replies)
        if problem:
            await connection.disconnect(nowait=True)
            raise LogVolatileError(f"Redis at {self.address}: {problem}")
        return connection


class Connections:
    """The connections that the logs in one Redis share. Appends have their own, so that they never wait for reads, and so has the watch.

    Unless `accept_volatile`, a connection is used for appends only if the Redis at its end keeps acknowledged events: after a failover it
    may be another one, with other settings. Raises ValueError for an invalid URL.
    """

    def __init__(self, target: str | Endpoint, timeout_ms: int = TIMEOUT_MS_DEFAULT, *, accept_volatile: bool = True) -> None:
        self._endpoint = endpoint(target, timeout_ms / 1000) if isinstance(target, str) else target
        self.timeout_ms = timeout_ms
        self._link = NetworkPath()
        checks: tuple[Sequence[Command], Callable[[list[Any]], str]] = ((), lambda _: "") if accept_volatile else (COMMANDS, volatility)
        self.appends = ConnectionPool(self._endpoint, timeout_ms, APPEND_CONNECTIONS_MAX, self._link, *checks)
        self.reads = ConnectionPool(self._endpoint, timeout_ms, READ_CONNECTIONS_MAX, self._link)
        self.watch = ConnectionPool(self._endpoint, timeout_ms, 1, self._link)

    async def leave(self) -> None:
        """Close the connections and end the calls that wait: the data is elsewhere now."""
        self._link.leave()
        await self.close()

    async def close(self) -> None:
        """Close the connections. Later calls raise LogUnavailableError."""
        await self.watch.close()
        await self.appends.close()
        await self.reads.close()
        await self._endpoint.close()


async def _is_usable(connection: AbstractConnection) -> bool:
    """Return whether an idle connection is still open and carries no reply to another call: both make it readable."""
    try:
        return not await cast("Callable[[], Awaitable[bool]]", connection.can_read)()
    except _CONNECTION_ERRORS:
        return False


def _is_of_replica(commands: Sequence[Command], replies: Sequence[Any]) -> bool:
    """Return whether the replies to COMMANDS are those of a replica. The server then sends no write that could tell it."""
    return commands == COMMANDS and is_replica(replies)


async def _reply(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response(disconnect_on_error=False)
    except ResponseError as error:
        return error
    except RedisConnectionError as error:
        # redis-py raises some error replies (LOADING, NOAUTH, too many clients) as lost connections; only a reply has a code.
        if getattr(error, "status_code", None):
            return error
        raise


def _describe(error: Exception, seconds: float) -> str:
    if isinstance(error, MasterNotFoundError):
        # redis-py's message lists all options of its connections.
        return "no Sentinel answers with a primary of this name that is up"
    if isinstance(error, TimeoutError):
        return f"no reply within {seconds:g} s"
    return reason(error) if str(error) else type(error).__name__
