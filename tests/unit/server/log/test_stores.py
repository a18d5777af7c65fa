"""Stores by their URLs."""

from __future__ import annotations

import sys

import pytest
from gavel_server.log.postgresql.logs import PostgresqlLogs
from gavel_server.log.protocol import LogUnavailableError
from gavel_server.log.redis.logs import RedisLogs
from gavel_server.log.stores import check_url, connect_log, is_postgresql, open_store
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


async def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg, every way to a PostgreSQL says which extra to install."""
    for name in [name for name in sys.modules if name.startswith("gavel_server.log.postgresql")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ValueError, match=r"install gavel-arbiter\[postgresql\]"):
        check_url(POSTGRESQL)
    with pytest.raises(LogUnavailableError, match=r"install gavel-arbiter\[postgresql\]"):
        open_store(POSTGRESQL)
    with pytest.raises(LogUnavailableError, match=r"install gavel-arbiter\[postgresql\]"):
        await connect_log(POSTGRESQL, "default")


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
