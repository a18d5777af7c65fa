"""URLs of Redis, Sentinels and clusters, as settings and options give them."""

from __future__ import annotations

import pytest
from gavel_server.log import LogUnavailableError
from gavel_server.log.redis.topology.servers import open_topology
from gavel_server.log.redis.topology.urls import check_url


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:secret@h:1/2",
        "rediss://h?ssl_ca_certs=/ca.pem",
        "unix:///run/redis.sock",
        "redis+sentinel://u:secret@h1,h2:1/main/3?sentinel_username=s&sentinel_password=secret",
        "rediss+sentinel://h/main?ssl_ca_certs=/ca.pem",
        "redis+cluster://u:secret@h1,h2:1/",
        "rediss+cluster://h?ssl_ca_certs=/ca.pem",
    ],
)
def test_valid_urls(url: str) -> None:
    """Each form of URL is accepted, and nothing is connected."""
    assert url == check_url(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+sentinel://u:secret@h/", "is malformed: the name of the master is missing after the hosts; use redis://"),
        ("redis+cluster://u:secret@h:x/", "is malformed: a host is not HOST or HOST:PORT"),
        ("redis+cluster://u:secret@h/?socket_timeout=3", "the URL may not set the option socket_timeout"),
        ("redis+sentinel://u:secret@h/main?decode_responses=1", "the URL may not set the option decode_responses"),
        ("redis+sentinel://u:secret@h/main?bogus=secret", "unknown or not allowed"),
        ("redis+cluster://u:secret@h/?bogus=1", "unknown or not allowed"),
        ("redis+other://u:secret@h/", "is malformed"),
    ],
)
def test_invalid_urls(url: str, message: str) -> None:
    """Any other URL is refused with what is wrong and what to do, and without its password."""
    with pytest.raises(ValueError, match=message) as refusal:
        check_url(url)
    assert ":secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "url", ["redis+sentinel://u:secret@127.0.0.1:1/main?sentinel_password=secret", "redis+cluster://u:secret@127.0.0.1:1/"]
)
async def test_nobody_answers(url: str) -> None:
    """If no Sentinel and no node answers, the error names the URL, and holds no secret and no internals."""
    topology = open_topology(url)
    with pytest.raises(LogUnavailableError, match=r"\*\*\*@127\.0\.0\.1:1") as failure:
        await topology.of("parcels").reads.read(("PING",))
    assert not [word for word in ("secret", "object at", "encoding") if word in str(failure.value)]
    await topology.close()
