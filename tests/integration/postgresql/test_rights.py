"""The rights of each role on a log in PostgreSQL, and the changes that no role may make."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest
from gavel_server.log import Head, LogCorruptError, LogUnavailableError, empty_head
from gavel_server.log.postgresql.log import PostgresqlLog

from tests.support.entries import NOW_MS, entries_after, head_of, records_of
from tests.support.postgresql.cluster import Cluster

REFUSED = psycopg.errors.InsufficientPrivilege


@pytest.fixture
async def log(postgresql_url: str, bus: str) -> AsyncIterator[PostgresqlLog]:
    """A log of ten events, of which the first three are trimmed."""
    log = await PostgresqlLog.connect(postgresql_url, bus)
    await log.append(empty_head(bus), entries_after(empty_head(bus), 10), NOW_MS, [])
    await log.trim(4)
    yield log
    await log.close()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO gavel.events VALUES (%(bus)s, 11, 'forged', 'forged')",
        "INSERT INTO gavel.events VALUES (%(bus)s, 1, 'forged', 'forged')",
        "UPDATE gavel.events SET envelope = 'forged' WHERE bus = %(bus)s",
        "DELETE FROM gavel.events WHERE bus = %(bus)s",
        "TRUNCATE gavel.events",
        "UPDATE gavel.heads SET sequence_number = 5 WHERE bus = %(bus)s",
        "DELETE FROM gavel.heads WHERE bus = %(bus)s",
        "INSERT INTO gavel.event_ids VALUES (%(bus)s, 'forged', 1, 1, 0)",
        "DELETE FROM gavel.event_ids WHERE bus = %(bus)s",
        "ALTER TABLE gavel.events DISABLE TRIGGER ALL",
        "DROP TABLE gavel.events",
        "CREATE TABLE gavel.other (a int)",
    ],
)
@pytest.mark.parametrize("user", ["gavel_server", "gavel_reader"])
async def test_nobody_but_append_writes_events(postgresql_server: Cluster, log: PostgresqlLog, user: str, statement: str) -> None:
    """Neither the role of servers nor that of readers can insert, change or remove events, heads or event_ids by itself."""
    before = await log.read(1, 100)
    async with await psycopg.AsyncConnection.connect(postgresql_server.url_of(user), autocommit=True) as connection:
        with pytest.raises(REFUSED):
            await connection.execute(statement, {"bus": log.bus})
    assert before == await log.read(1, 100)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE gavel.events SET envelope = 'forged' WHERE bus = %(bus)s AND sequence_number = 5",
        "UPDATE gavel.events SET envelope = envelope WHERE false",
        "DELETE FROM gavel.events WHERE bus = %(bus)s AND sequence_number = 10",
        "DELETE FROM gavel.events WHERE bus = %(bus)s AND sequence_number = 4",
        "TRUNCATE gavel.events",
        "UPDATE gavel.heads SET sequence_number = 9 WHERE bus = %(bus)s",
        "UPDATE gavel.heads SET chain_hash = 'forged' WHERE bus = %(bus)s",
        "UPDATE gavel.heads SET first_sequence_number = 3 WHERE bus = %(bus)s",
        "UPDATE gavel.heads SET first_sequence_number = 11 WHERE bus = %(bus)s",
        "UPDATE gavel.heads SET fence = -1 WHERE bus = %(bus)s",
        "DELETE FROM gavel.heads WHERE bus = %(bus)s",
        "TRUNCATE gavel.heads",
    ],
)
@pytest.mark.parametrize("session", ["origin", "replica"])
async def test_triggers_refuse_to_rewrite_history(postgresql_server: Cluster, log: PostgresqlLog, session: str, statement: str) -> None:
    """Not even a superuser changes or removes an event that was not trimmed, or moves a head back, also in a session that replicates."""
    async with await psycopg.AsyncConnection.connect(postgresql_server.url_of("postgres"), autocommit=True) as connection:
        await connection.execute("SELECT set_config('session_replication_role', %s, false)", (session,))
        with pytest.raises(REFUSED, match=r"never rewritten|was not trimmed|does not go back"):
            await connection.execute(statement, {"bus": log.bus})
    assert (7, 10) == (len(await log.read(1, 100)), (await log.head()).sequence_number)


async def test_only_archivers_trim(postgresql_server: Cluster, log: PostgresqlLog) -> None:
    """A role without the right to trim gets a refusal that names it, and nothing is trimmed."""
    reader = await PostgresqlLog.connect(postgresql_server.url_of("gavel_reader"), log.bus)
    with pytest.raises(LogUnavailableError, match=r"permission denied for function trim"):
        await reader.trim(8)
    with pytest.raises(LogUnavailableError, match=r"permission denied for function append"):
        await reader.append(await reader.head(), entries_after(await reader.head(), 1), NOW_MS, [])
    assert 7 == len(await reader.read(1, 100))
    await reader.close()


async def test_a_reader_reads(postgresql_server: Cluster, log: PostgresqlLog) -> None:
    """The role of readers reads events, heads and checkpoints."""
    await log.publish_checkpoint(b"note", None)
    reader = await PostgresqlLog.connect(postgresql_server.url_of("gavel_reader"), log.bus)
    assert (await log.read(1, 100), await log.head(), b"note") == (
        await reader.read(1, 100),
        await reader.head(),
        await reader.published_checkpoint(),
    )
    await reader.close()


async def test_a_database_without_schema(postgresql_server: Cluster, bus: str) -> None:
    """A database without the schema is refused with the command that installs it."""
    with pytest.raises(LogUnavailableError, match=r"has no schema for logs .*; install it: gavel postgresql-schema"):
        await PostgresqlLog.connect(postgresql_server.url_of("postgres", "postgres"), bus)


async def test_damage_is_reported(postgresql_server: Cluster, log: PostgresqlLog) -> None:
    """Events that vanish although nothing may remove them make the log corrupt: it is neither read over the gap nor appended to."""
    head = await log.head()
    disabled = "SET session_replication_role = origin", "ALTER TABLE gavel.events DISABLE TRIGGER trimmed_only"
    enabled = "ALTER TABLE gavel.events ENABLE ALWAYS TRIGGER trimmed_only"
    remove = f"DELETE FROM gavel.events WHERE bus = '{log.bus}' AND sequence_number"  # noqa: S608 - the name of the test's bus
    postgresql_server.execute(*disabled, f"{remove} = 6", enabled)
    with pytest.raises(LogCorruptError, match=r"event 6 of bus .* is missing"):
        await log.read(1, 100)
    postgresql_server.execute(*disabled, f"{remove} = 10", enabled)
    with pytest.raises(LogCorruptError, match=r"the last event is 9"):
        await log.head()
    with pytest.raises(LogCorruptError, match=r"lacks the event of the head"):
        await log.append(head, entries_after(head, 1), NOW_MS, [])


async def test_a_forged_event_beyond_the_head(postgresql_server: Cluster, log: PostgresqlLog) -> None:
    """An event that the owner inserted beyond the head makes the log corrupt."""
    head = await log.head()
    forged = f"INSERT INTO gavel.events VALUES ('{log.bus}', 11, 'forged', 'forged')"  # noqa: S608 - the name of the test's bus
    postgresql_server.execute(forged)
    with pytest.raises(LogCorruptError, match=r"the last event is 11"):
        await log.head()
    with pytest.raises(LogCorruptError, match=r"contradicts the log"):
        await log.append(head, entries_after(head, 1), NOW_MS, [])


async def test_the_schema_is_installed_again(postgresql_server: Cluster, log: PostgresqlLog, postgresql_url: str) -> None:
    """Installing the schema again keeps the logs, and servers go on."""
    from gavel_server.log.postgresql.schema import schema_sql

    before: tuple[Head, int] = await log.head(), len(await log.read(1, 100))
    postgresql_server.execute(schema_sql())
    assert before == (await log.head(), len(await log.read(1, 100)))
    more = entries_after(before[0], 1)
    await log.append(before[0], more, NOW_MS, [])
    assert (head_of(more), records_of(more)) == (await log.head(), await log.read(11, 11))
