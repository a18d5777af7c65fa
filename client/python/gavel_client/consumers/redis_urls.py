"""The URLs of a Redis, of a Redis that Sentinel watches, and of a Redis Cluster.

    redis://user:password@host:6379/0            one Redis; rediss:// with TLS, unix:///path for a socket
    redis+sentinel://user:password@h1,h2:26379/NAME/0   the master that these Sentinels call NAME
    redis+cluster://user:password@h1,h2:6379/    the cluster that these nodes belong to

User and password are those of the Redis; `sentinel_username` and `sentinel_password` are options of the URL. `rediss+sentinel://` and
`rediss+cluster://` use TLS to all hosts. Nothing here connects.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

RedisKind = Literal["redis", "sentinel", "cluster"]

PORT_DEFAULT: Final = 6379
SENTINEL_PORT_DEFAULT: Final = 26379

# The parts of RFC 3986, appendix B. Newer releases of `urllib.parse` refuse an IPv6 address after another host.
_URL: Final = re.compile(r"(?i:(rediss?)\+(sentinel|cluster))://([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.DOTALL)
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/\s]+)(?::([0-9]{1,5}))?")


class RedisUrlError(ValueError):
    """The URL of Sentinels or of a cluster is malformed; the message quotes nothing of it."""


class RedisTarget(NamedTuple):
    """The target of a URL. `hosts` are the Sentinels, or some nodes of the cluster; () for one Redis.

    `name` is the name of the master in Sentinel. `url` is the URL of one Redis with the same credentials, database and options.
    """

    kind: RedisKind
    hosts: tuple[tuple[str, int], ...]
    name: str
    url: str

    @property
    def has_tls(self) -> bool:
        """Whether connections use TLS."""
        return self.url.startswith("rediss:")


def parse_target(url: str) -> RedisTarget:
    """Return the target of a URL. The form of a URL of one Redis is not checked. Raises RedisUrlError."""
    match = _URL.fullmatch(url.strip())
    if match is None:
        return RedisTarget("redis", (), "", url)
    scheme, kind = match[1].lower(), match[2].lower()
    credentials, at, hosts = match[3].rpartition("@")
    path = [part for part in match[4].split("/") if part]
    name = ""
    if kind == "sentinel":
        if not path:
            raise RedisUrlError("the name of the master is missing after the hosts")
        name = path.pop(0)
    if len(path) > 1 or not all(re.fullmatch(r"[0-9]+", part) for part in path):
        raise RedisUrlError("the path is not the number of a database")
    database = path[0] if path else "0"
    if kind == "cluster" and int(database):
        raise RedisUrlError("a cluster has no database but 0")
    port_default = SENTINEL_PORT_DEFAULT if kind == "sentinel" else PORT_DEFAULT
    addresses = tuple(_address(host, port_default) for host in hosts.split(","))
    host, port = addresses[0]
    query = match[5] or ""
    shown = f"[{host}]" if ":" in host else host
    plain = f"{scheme}://{credentials}{at}{shown}:{port}/{database}{query}"
    return RedisTarget("sentinel" if kind == "sentinel" else "cluster", addresses, name, plain)


def _address(host: str, port_default: int) -> tuple[str, int]:
    match = _HOST.fullmatch(host)
    if match is None or int(match[2] or port_default) > 65535:
        raise RedisUrlError("a host is not HOST or HOST:PORT; separate hosts by commas")
    return match[1].strip("[]"), int(match[2] or port_default)
