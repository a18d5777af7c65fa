"""The connections that the URL of a Redis, of Sentinels or of a cluster describes, through redis-py's own discovery.

A new connection of a Sentinel URL asks the Sentinels for the master, so a failover needs no further care. Errors name the URL with user and
password masked.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from gavel_client.consumers.redis_discovery import cluster_client, sentinel_pool, url_options
from gavel_client.consumers.redis_urls import RedisTarget, RedisUrlError, parse_target
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import RedisError

from gavel_server.log.urls import mask_url

# Large enough to read a batch's reply, or a page of history, in few system calls.
SOCKET_READ_BYTES: Final = 256 * 1024

# Options of the URL that would change the form of replies or the timeout of calls.
_FIXED_OPTIONS: Final = ("protocol", "decode_responses", "socket_timeout", "timeout", "retry_on_timeout", "health_check_interval")
_EXAMPLE: Final = (
    "use redis://host:6379/0, rediss://…, unix:///path/redis.sock, redis+sentinel://host1,host2/NAME/0 or redis+cluster://host1,host2/"
)

Result = TypeVar("Result")


async def _close_nothing() -> None:
    """Close what one Redis has beside its connections."""


class Endpoint(NamedTuple):
    """The target of connections. `address` is the URL for messages; `new_connection` opens nothing yet; `close` ends the discovery."""

    address: str
    new_connection: Callable[[], AbstractConnection]
    close: Callable[[], Awaitable[None]] = _close_nothing


def check_url(url: str) -> str:
    """Return the URL if it is a valid URL of a Redis, of Sentinels or of a cluster. Raises ValueError, with the password masked."""
    if parse(url).kind == "cluster":
        discovery_client(url)
        node_endpoint(url, "", 0, 0.0)
    else:
        endpoint(url, 0.0)
    return url


def parse(url: str) -> RedisTarget:
    """Return what the URL names. Raises ValueError, with the password masked."""
    try:
        return parse_target(url)
    except RedisUrlError as error:
        raise ValueError(
            f"the Redis URL {mask_url(url)} is malformed: {error}; {_EXAMPLE}, and percent-encode special characters"
        ) from None


def endpoint(url: str, timeout_seconds: float) -> Endpoint:
    """Return the target of a URL of one Redis, or of a master that Sentinels name. Raises ValueError for an invalid URL."""
    address = mask_url(url)
    target = parse(url)
    if target.kind == "cluster":
        raise ValueError(f"{address} is the URL of a cluster, which has several nodes")

    def build() -> Endpoint:
        options = _options(target, timeout_seconds)
        if target.kind == "sentinel":
            # Only what redis-py's connections ask for the master; Gavel's own pools open and reuse them.
            pool = sentinel_pool(target, options)
            pool.make_connection()  # type: ignore[no-untyped-call]
            return Endpoint(address, pool.make_connection, pool.sentinel_manager.aclose)
        kind = cast("Callable[..., AbstractConnection]", options.pop("connection_class", Connection))
        kind(**options)  # fails here for an unknown option, not at the first call
        return Endpoint(address, lambda: kind(**options))

    return _checked(address, build)


def node_endpoint(cluster_url: str, host: str, port: int, timeout_seconds: float) -> Endpoint:
    """Return the endpoint of one node of a cluster, with the options of the cluster's URL. Raises ValueError for an invalid URL."""
    target = parse(cluster_url)
    address = mask_url(cluster_url)
    options = _checked(address, lambda: _options(target, timeout_seconds))
    kind = SSLConnection if target.has_tls else Connection
    return Endpoint(f"{address} (node {host}:{port})", lambda: kind(host=host, port=port, **options))


def discovery_client(url: str) -> RedisCluster:
    """Return redis-py's client of a cluster, which is used to discover its nodes. Raises ValueError for an invalid URL."""
    target = parse(url)
    return _checked(mask_url(url), lambda: cluster_client(target, url_options(target)))


def _options(target: RedisTarget, timeout_seconds: float) -> dict[str, Any]:
    """Return the options of connections. Raises TypeError, ValueError."""
    where = urlsplit(target.url)
    if where.scheme != "unix" and not re.fullmatch(r"/?[0-9]*/?", where.path):
        raise ValueError(target.url)  # redis-py would take database 0
    options = url_options(target)
    unusable = sorted(name for name in options if name in _FIXED_OPTIONS)
    if unusable:
        raise TypeError(f"the URL may not set the option {unusable[0]}")
    options.update(
        protocol=2, socket_timeout=None, socket_connect_timeout=timeout_seconds, socket_read_size=SOCKET_READ_BYTES, driver_info=None
    )
    return options


def _checked(address: str, build: Callable[[], Result]) -> Result:
    """Return the result of `build`. Raises ValueError, without secrets, if it cannot use the options of the URL at `address`."""
    try:
        return build()
    except TypeError as error:
        raise ValueError(f"the Redis URL {address} has an option that is unknown or not allowed: {error}; {_EXAMPLE}") from None
    except (ValueError, RedisError):
        # The library's message may quote part of the password.
        raise ValueError(f"the Redis URL {address} is malformed; {_EXAMPLE}, and percent-encode special characters") from None
