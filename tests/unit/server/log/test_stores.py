"""Stores by their URLs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from gavel_server.log.postgresql.logs import PostgresqlLogs
from gavel_server.log.redis.logs import RedisLogs
from gavel_server.log.stores import check_url, is_postgresql, open_store
from gavel_server.log.urls import mask_url

POSTGRESQL = "postgresql://server@db/logs"


@pytest.mark.parametrize(
    ("url", "kind"), [(POSTGRESQL, PostgresqlLogs), ("postgres://db/logs", PostgresqlLogs), ("redis://host", RedisLogs)]
)
async def test_the_scheme_names_the_store(url: str, kind: type) -> None:
    """The scheme of the URL selects the store; nothing is connected yet."""
    store = open_store(url)
    assert (kind, kind is PostgresqlLogs, url) == (type(store), is_postgresql(url), check_url(url))
    await store.close()


@pytest.mark.parametrize("url", ["postgresql://host:port/logs", "postgresql://host/logs?nonsense=1"])
def test_a_malformed_url(url: str) -> None:
    """A malformed URL of a PostgreSQL is refused with the form of a right one."""
    with pytest.raises(ValueError, match=r"malformed; use postgresql://user@host:5432/database"):
        check_url(url)


def test_a_secret_is_not_repeated() -> None:
    """The refusal of a malformed URL has neither its user nor its password."""
    with pytest.raises(ValueError, match="malformed") as refusal:
        check_url("postgresql://server:secret@host/logs?password=secret&nonsense=1")
    assert "secret" not in str(refusal.value)
    assert "server" not in str(refusal.value)


def test_an_unknown_scheme_names_both_stores() -> None:
    """A URL of neither store is refused with the forms of both."""
    with pytest.raises(ValueError, match=r"redis://host:6379/0.*postgresql://user@host:5432/database"):
        check_url("http://host")


WITHOUT_PSYCOPG = f"""
import asyncio, sys
sys.modules["psycopg"] = None
from gavel_server.log.stores import check_url, connect_log, open_store
for attempt in (check_url, open_store, lambda url: asyncio.run(connect_log(url, "default"))):
    try:
        attempt({POSTGRESQL!r})
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_missing_package() -> None:
    """Without psycopg, every way to a PostgreSQL says which extra to install."""
    output = subprocess.run([sys.executable, "-c", WITHOUT_PSYCOPG], capture_output=True, text=True, check=True).stdout.splitlines()
    assert ["ValueError", "LogUnavailableError", "LogUnavailableError"] == [line.partition(" ")[0] for line in output]
    assert all("install gavel-arbiter[postgresql]" in line for line in output), output


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://server:secret@db/logs", "postgresql://***@db/logs"),
        ("postgresql://db/logs?user=server&password=secret", "postgresql://db/logs?user=***&password=***"),
        ("redis://:secret@host:6379/0", "redis://***@host:6379/0"),
    ],
)
def test_passwords_are_masked(url: str, expected: str) -> None:
    """No message has the user or the password of a URL."""
    assert expected == mask_url(url)
