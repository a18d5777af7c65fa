"""The URLs of Sentinels and of clusters."""

from __future__ import annotations

import pytest
from gavel_client.consumers.redis_urls import RedisTarget, RedisUrlError, parse_target


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://u:p@h:1/2", RedisTarget("redis", (), "", "redis://u:p@h:1/2")),
        ("unix:///run/redis.sock", RedisTarget("redis", (), "", "unix:///run/redis.sock")),
        (
            "redis+sentinel://u:p@h1,h2:1,[::1]:2/mymaster/3?sentinel_password=s",
            RedisTarget("sentinel", (("h1", 26379), ("h2", 1), ("::1", 2)), "mymaster", "redis://u:p@h1:26379/3?sentinel_password=s"),
        ),
        ("rediss+sentinel://h/m", RedisTarget("sentinel", (("h", 26379),), "m", "rediss://h:26379/0")),
        ("rediss+cluster://h1:1,h2/", RedisTarget("cluster", (("h1", 1), ("h2", 6379)), "", "rediss://h1:1/0")),
        (" redis+cluster://h1\n", RedisTarget("cluster", (("h1", 6379),), "", "redis://h1:6379/0")),
        ("REDIS+CLUSTER://h1#part", RedisTarget("cluster", (("h1", 6379),), "", "redis://h1:6379/0")),
        ("redis+cluster://:p%40@h1", RedisTarget("cluster", (("h1", 6379),), "", "redis://:p%40@h1:6379/0")),
    ],
)
def test_targets(url: str, expected: RedisTarget) -> None:
    """A URL names its kind, hosts with default ports, the master, and the URL of one Redis with the same credentials."""
    assert expected == parse_target(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+sentinel://h1,h2/", "the name of the master is missing"),
        ("redis+sentinel://h1/m/0/1", "not the number of a database"),
        ("redis+sentinel://h1/m/x", "not the number of a database"),
        ("redis+cluster://h1/1", "no database but 0"),
        ("redis+cluster://h1,,h2/", "not HOST or HOST:PORT"),
        ("redis+cluster://h1:99999/", "not HOST or HOST:PORT"),
        ("redis+cluster://h\n1/", "not HOST or HOST:PORT"),
        ("redis+cluster:///", "not HOST or HOST:PORT"),
    ],
)
def test_malformed_urls(url: str, message: str) -> None:
    """A malformed URL is refused with what is wrong."""
    with pytest.raises(RedisUrlError, match=message):
        parse_target(url)
