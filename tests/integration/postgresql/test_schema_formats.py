"""A database whose schema an earlier build has installed: servers refuse it until the schema is installed again, which keeps its logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from gavel_rules.events.hash_chain import genesis_hash
from gavel_server.log import Entry, Head, LogUnavailableError, LossReportedError, empty_head
from gavel_server.log.postgresql.log import PostgresqlLog
from gavel_server.log.postgresql.schema import FORMAT_VERSION, schema_sql

from tests.support.entries import NOW_MS, entries_after, head_of, records_of
from tests.support.postgresql.cluster import Cluster

FORMAT_1 = Path(__file__).parents[2] / "data" / "postgresql_schema_1.sql"
DATABASE = "earlier"


@pytest.fixture
def earlier(postgresql_server: Cluster) -> Iterator[Cluster]:
    """A PostgreSQL with a database of format 1."""
    postgresql_server.execute(f"CREATE DATABASE {DATABASE}", database="postgres")
    postgresql_server.execute(FORMAT_1.read_text(encoding="utf-8"), database=DATABASE)
    yield postgresql_server
    postgresql_server.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)", database="postgres")


def append_as_earlier_build(cluster: Cluster, bus: str, entries: list[Entry]) -> None:
    """Append to an empty log as a build of format 1 does."""
    statement = "SELECT status FROM gavel.append(%s, 0, %s, 0, %s, %s, %s, %s, %s, %s, 0, %s, %s, NULL, 0, %s, 100)"
    genesis = genesis_hash(bus)
    envelopes, hashes = [entry.envelope for entry in entries], [entry.chain_hash for entry in entries]
    ids, numbers, works = [entry.event_id.encode() for entry in entries], [0 for _ in entries], ["" for _ in entries]
    day = NOW_MS // 86_400_000
    arguments = (bus, genesis, genesis, envelopes, hashes, ids, numbers, works, day, day - 7, 2**60)
    with psycopg.connect(cluster.url_of("gavel_server", DATABASE), autocommit=True) as connection:
        row = connection.execute(statement, arguments).fetchone()
    assert ("OK",) == row


async def test_an_earlier_format_is_refused_and_migrated(earlier: Cluster, bus: str) -> None:
    """A server names the command that brings the schema to its format; afterwards it goes on with the log, and losses can be reported."""
    entries = entries_after(empty_head(bus), 3)
    append_as_earlier_build(earlier, bus, entries)
    url = earlier.url_of("gavel_server", DATABASE)
    refusal = rf"has format 1, but this build needs {FORMAT_VERSION}; install it again, with this build: gavel postgresql-schema \| psql"
    with pytest.raises(LogUnavailableError, match=refusal):
        await PostgresqlLog.connect(url, bus)

    earlier.execute(schema_sql(), database=DATABASE)
    with pytest.raises(psycopg.errors.UndefinedFunction):
        append_as_earlier_build(earlier, "other", entries_after(empty_head("other"), 1))
    log = await PostgresqlLog.connect(url, bus)
    assert (head_of(entries), records_of(entries)) == (await log.head(), await log.read(1, 100))
    more = entries_after(head_of(entries), 1)
    await log.append(head_of(entries), more, NOW_MS, [])
    await log.report_loss(Head(9, b"\x09" * 32))
    with pytest.raises(LossReportedError):
        await log.append(head_of(more), entries_after(head_of(more), 1), NOW_MS, [])
    await log.close()


async def test_a_later_format_is_refused_and_kept(earlier: Cluster, bus: str) -> None:
    """A server refuses a schema of a later build, and the schema of this build does not replace it."""
    later = f"CREATE OR REPLACE FUNCTION gavel.format_version() RETURNS integer LANGUAGE sql AS 'SELECT {FORMAT_VERSION + 1}'"
    earlier.execute(later, database=DATABASE)
    with pytest.raises(LogUnavailableError, match=rf"has format {FORMAT_VERSION + 1}, .* use the build that installed it"):
        await PostgresqlLog.connect(earlier.url_of("gavel_server", DATABASE), bus)
    with pytest.raises(psycopg.errors.RaiseException, match="use the build that installed it"):
        earlier.execute(schema_sql(), database=DATABASE)
    assert [(FORMAT_VERSION + 1,)] == earlier.execute("SELECT gavel.format_version()", database=DATABASE)
