"""Connections to one Redis that send commands as they are and never repeat one.

A client library that retries may apply an append twice or hide that its outcome is unknown, so this uses redis-py for what it
does well (URLs, TLS, authentication, hiredis parsing) and leaves its retrying command layer out. Replies come back as hiredis
parses them from RESP 2: bytes, integers, lists, None. Passwords stay inside: every error names the URL with them masked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast
from urllib.parse import urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from gavel_server.log.packing import Command, pack
from gavel_server.log.protocol import LogUnavailableError, OutcomeUnknownError

# The oldest Redis that a log is kept in.
REDIS_VERSION_MIN: Final = (6, 2)

# Enough to take in a batch's reply, or a page of history, in few reads.
SOCKET_READ_BYTES: Final = 256 * 1024
# Options of the URL that would change what replies look like or how long calls last.
_FIXED_OPTIONS: Final = ("protocol", "decode_responses", "socket_timeout", "timeout", "retry_on_timeout", "health_check_interval")


class Wire:
    """Up to `connections_max` connections to the Redis at `url`; a call waits for a free one.

    `timeout_ms` bounds connecting and each call. Raises ValueError for a URL that cannot be used.
    """

    def __init__(self, url: str, timeout_ms: int, connections_max: int) -> None:
        self.address = mask_url(url)
        self._timeout_seconds = timeout_ms / 1000
        self._new_connection = _connection_factory(url, self.address, self._timeout_seconds)
        self._free = asyncio.Semaphore(connections_max)
        self._idle: list[AbstractConnection] = []
        self._closed = False

    async def ask(self, *commands: Command, extra_ms: int = 0) -> list[Any]:
        """Send commands that do no harm should they run unnoticed; return all replies, error replies as exceptions.

        `extra_ms` adds to the timeout, for a command that itself waits. Raises LogUnavailableError when Redis cannot be
        reached or does not answer in time.
        """
        replies, lost = await self._exchange(commands, extra_ms)
        if lost:
            raise LogUnavailableError(lost)
        return replies

    async def tell(self, *commands: Command, extra_ms: int = 0) -> list[Any]:
        """Send commands of which the first changes something; return at least its reply, and the others' as far as they came.

        Raises LogUnavailableError if nothing was sent, OutcomeUnknownError if no reply came.
        """
        replies, lost = await self._exchange(commands, extra_ms)
        if not replies:
            raise OutcomeUnknownError(lost)
        return replies

    async def close(self) -> None:
        """Close the connections, those in use when their call is over. Later calls raise LogUnavailableError."""
        self._closed = True
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    async def _exchange(self, commands: Sequence[Command], extra_ms: int) -> tuple[list[Any], str]:
        """The replies that came, and if some are missing, why."""
        packed = b"".join(map(pack, commands))
        seconds = self._timeout_seconds + extra_ms / 1000
        replies: list[Any] = []
        async with self._free:
            connection = await self._connected()
            try:
                async with asyncio.timeout(seconds):
                    await connection.send_packed_command(packed, check_health=False)
                    while len(replies) < len(commands):
                        replies.append(await _reply(connection))
            except (RedisError, OSError, TimeoutError) as error:
                await connection.disconnect(nowait=True)
                return replies, f"no answer from Redis at {self.address}: {_sentence(error, seconds)}"
            except BaseException:
                # Cancelled between request and reply: what comes next on this connection would answer the wrong call.
                await connection.disconnect(nowait=True)
                raise
            if self._closed:
                await connection.disconnect(nowait=True)
            else:
                self._idle.append(connection)
            return replies, ""

    async def _connected(self) -> AbstractConnection:
        if self._closed:
            raise LogUnavailableError(f"the connection to Redis at {self.address} was closed")
        while self._idle:
            connection = self._idle.pop()
            # Readable without having been asked: Redis has closed it, or it carries something that is not ours.
            if not await cast("Callable[[], Awaitable[bool]]", connection.can_read)():
                return connection
            await connection.disconnect(nowait=True)
        connection = self._new_connection()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await cast("Callable[[], Awaitable[None]]", connection.connect)()
        except (RedisError, OSError, TimeoutError) as error:
            await connection.disconnect(nowait=True)
            raise LogUnavailableError(f"cannot connect to Redis at {self.address}: {_sentence(error, self._timeout_seconds)}") from None
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection


def check_url(url: str) -> str:
    """Return the URL of a Redis if it can be one. Raises ValueError, which says what is wrong, without passwords."""
    _connection_factory(url, mask_url(url), 0.0)
    return url


def mask_url(url: str) -> str:
    """The URL without user and password, fit for logs and messages."""
    without_user = re.sub(r"://.*@", "://***@", url, flags=re.DOTALL)
    return re.sub(r"([?&][^=&]*(?:password|username)=)[^&]*", r"\1***", without_user)


def reason(reply: Exception) -> str:
    """An error reply as Redis sent it, its code in front."""
    code = getattr(reply, "status_code", None)
    return f"{code} {reply}" if code else str(reply)


def _connection_factory(url: str, address: str, timeout_seconds: float) -> Callable[[], AbstractConnection]:
    example = "use redis://host:6379/0, rediss://… or unix:///path/redis.sock"
    try:
        where = urlsplit(url)
        if where.scheme != "unix" and not re.fullmatch(r"/?[0-9]*/?", where.path):
            raise ValueError(url)  # the library would take database 0
        options: dict[str, Any] = dict(parse_url(url))
        unusable = sorted(name for name in options if name in _FIXED_OPTIONS)
        if unusable:
            raise TypeError(f"the option {unusable[0]} is not the URL's to set")
        kind = cast("Callable[..., AbstractConnection]", options.pop("connection_class", Connection))
        options.update(
            protocol=2, socket_timeout=None, socket_connect_timeout=timeout_seconds, socket_read_size=SOCKET_READ_BYTES, driver_info=None
        )
        kind(**options)  # an unknown option fails here rather than at the first call
    except TypeError as error:
        raise ValueError(f"the Redis URL {address} has an option that is unknown or not allowed: {error}; {example}") from None
    except (ValueError, RedisError):
        # The library's message may quote a piece of the password.
        raise ValueError(f"the Redis URL {address} is malformed; {example}, and percent-encode special characters") from None
    return lambda: kind(**options)


async def _reply(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response(disconnect_on_error=False)
    except ResponseError as error:
        return error
    except RedisConnectionError as error:
        # redis-py files some error replies (LOADING, NOAUTH, too many clients) under lost connections; a reply has a code.
        if getattr(error, "status_code", None):
            return error
        raise


def _sentence(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came within {seconds:g} s"
    return reason(error) if str(error) else type(error).__name__
