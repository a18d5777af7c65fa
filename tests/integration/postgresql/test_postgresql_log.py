"""The log in a PostgreSQL that fails: unknown outcomes, silent servers, standbys that do not confirm, promotions, and its settings."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest
from gavel_server.log import Head, LogUnavailableError, NotReplicatedError, OutcomeUnknownError, Record, empty_head
from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.postgresql.connection import Backend
from gavel_server.log.postgresql.log import PostgresqlLog
from gavel_server.log.postgresql.logs import PostgresqlLogs
from gavel_server.log.protocol import LogUnreachableError, LogVolatileError

from tests.support.entries import NOW_MS, entries_after, head_of, records_of
from tests.support.postgresql.cluster import Cluster, directories, new_cluster, prepare, running

WAIT_SECONDS_MAX = 60
SHORT_MS = 500


@pytest.fixture(scope="module")
def primary() -> Iterator[Cluster]:
    """A PostgreSQL of this module's own, which its tests stop and kill."""
    with directories() as directory, new_cluster(directory / "primary") as cluster:
        yield cluster


@pytest.fixture
def cluster(primary: Cluster) -> Iterator[Cluster]:
    """The PostgreSQL of this module, with its first settings again after the test."""
    yield primary
    primary.reset()


@contextmanager
def new_pair() -> Iterator[tuple[Cluster, Cluster]]:
    """Run a PostgreSQL that waits for one synchronous standby, and the standby."""
    with directories() as directory, new_cluster(directory / "primary") as primary:
        standby = prepare(directory / "standby")
        primary.copy_to(standby, slot="standby")
        with running(standby):
            primary.set("synchronous_standby_names", "ANY 1 (*)")
            yield primary, standby


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    """The pair of this module."""
    with new_pair() as pair:
        yield pair


@pytest.fixture
def own_pair() -> Iterator[tuple[Cluster, Cluster]]:
    """A pair of the test's own, whose standby it may promote."""
    with new_pair() as pair:
        yield pair


@pytest.fixture
async def log(cluster: Cluster, bus: str) -> AsyncIterator[PostgresqlLog]:
    """A log of two events; its calls take at most SHORT_MS and the time of a cancellation."""
    log = await connected(cluster, bus)
    await log.append(empty_head(bus), entries_after(empty_head(bus), 2), NOW_MS, [])
    yield log
    await log.close()


async def connected(cluster: Cluster, bus: str) -> PostgresqlLog:
    """Connect as soon as PostgreSQL takes a connection within SHORT_MS, which a busy machine may miss."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            try:
                return await PostgresqlLog.connect(cluster.url, bus, timeout_ms=SHORT_MS)
            except LogUnreachableError:
                await asyncio.sleep(0.05)


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not await condition():  # noqa: ASYNC110 - PostgreSQL sets no event
            await asyncio.sleep(0.02)


async def head_once_reachable(log: PostgresqlLog) -> Head:
    """Return the head as soon as PostgreSQL answers."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            try:
                return await log.head()
            except LogUnreachableError:
                await asyncio.sleep(0.05)


@pytest.mark.long
async def test_a_silent_server_leaves_the_outcome_unknown(cluster: Cluster, log: PostgresqlLog) -> None:
    """An append to a PostgreSQL that falls silent ends with an unknown outcome; the head then tells, finally, whether it is in the log."""
    head = await log.head()
    batch = entries_after(head, 3, "doubt")
    cluster.signal(signal.SIGSTOP)
    with pytest.raises(OutcomeUnknownError):
        await log.append(head, batch, NOW_MS, [])
    with pytest.raises(LogUnreachableError):
        await log.head()
    cluster.signal(signal.SIGCONT)
    settled = await head_once_reachable(log)
    assert settled in (head, head_of(batch))
    more = entries_after(settled, 1, "more")
    await log.append(settled, more, NOW_MS, [])
    expected = [] if settled == head else records_of(batch)
    assert [*expected, *records_of(more)] == await log.read(3, 100)


async def test_a_lost_append_does_not_arrive_later(cluster: Cluster, log: PostgresqlLog) -> None:
    """An append that waits for the lock of its bus when its connection is cut is not in the log after the head was read, nor later."""
    head = await log.head()
    lost = entries_after(head, 1, "lost")
    rows = f"SELECT FROM gavel.heads WHERE bus = '{log.bus}' FOR UPDATE"
    async with await psycopg.AsyncConnection.connect(cluster.url_of("postgres")) as blocker:
        await blocker.execute(rows)
        appending = asyncio.create_task(log.append(head, lost, NOW_MS, []))
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND usename = 'gavel_server'"
        await until(lambda: asyncio.to_thread(cluster.execute, waiting))
        appending.cancel()
        await asyncio.wait([appending])
        await blocker.rollback()
    assert head == await log.head()
    other = entries_after(head, 1, "other")
    await log.append(head, other, NOW_MS, [])
    assert (records_of(other), {}) == (await log.read(3, 100), await log.find(["lost-3"], NOW_MS))


async def test_a_lock_that_is_held_too_long(cluster: Cluster, log: PostgresqlLog) -> None:
    """An append that cannot get the lock of its bus in time is refused with nothing written, and its outcome is known."""
    head = await log.head()
    rows = f"SELECT FROM gavel.heads WHERE bus = '{log.bus}' FOR UPDATE"
    async with await psycopg.AsyncConnection.connect(cluster.url_of("postgres")) as blocker:
        await blocker.execute(rows)
        with pytest.raises(LogUnreachableError):
            await log.append(head, entries_after(head, 1), NOW_MS, [])
        await blocker.rollback()
    await log.append(head, entries_after(head, 1), NOW_MS, [])


@pytest.mark.long
async def test_a_crash_between_append_and_answer(cluster: Cluster, log: PostgresqlLog) -> None:
    """After PostgreSQL was killed under appends, each batch is in the log once or can be appended, and what was acknowledged is there."""
    acknowledged: list[str] = []
    head, count = await log.head(), 0
    for round_number in range(3):
        killing = asyncio.get_running_loop().call_later(0.2 + 0.1 * round_number, cluster.kill)
        try:
            while True:
                batch = entries_after(head, 2, f"batch-{count}")
                await log.append(head, batch, NOW_MS, [])
                head, count = head_of(batch), count + 1
                acknowledged += [entry.event_id for entry in batch]
        except (OutcomeUnknownError, LogUnavailableError):
            killing.cancel()
        await asyncio.to_thread(cluster.start)
        settled = await head_once_reachable(log)
        if settled != head:
            assert settled == head_of(batch)
            head, count = settled, count + 1
    records: list[Record] = []
    while page := await log.read(3 + len(records), head.sequence_number):
        records += page
    names = [record.envelope.rsplit(b" ", 1)[-1].decode() for record in records]
    assert len(names) == len(set(names))
    recorded = {*acknowledged}
    assert acknowledged == [name for name in names if name in recorded]


async def test_growth_is_announced(postgresql_url: str, bus: str) -> None:
    """A server learns of the events of another one by notification, and of those whose notification it missed by its checks."""
    mine, theirs = PostgresqlLogs(postgresql_url), PostgresqlLogs(postgresql_url)
    log = await theirs.open(bus)
    entries = entries_after(empty_head(bus), 2)
    assert () == tuple((await mine.grown({bus: 0})).buses)
    await log.append(empty_head(bus), entries, NOW_MS, [])

    async def is_known() -> bool:
        return bus in (await mine.grown({bus: 0})).buses

    await until(is_known)
    assert () == tuple((await mine.grown({bus: 2})).buses)
    assert (True, False, [bus]) == (
        await mine.exists(bus),
        await mine.exists("other"),
        [name for name in await mine.names() if name == bus],
    )
    assert (2, None) == (await mine.head_number(bus), await mine.head_number("other"))
    assert (0, entries[1].envelope) == (await mine.grants_number(bus), await mine.envelope(bus, 2))
    await mine.close()
    await theirs.close()


async def test_connections_that_are_not_trusted_do_not_listen(cluster: Cluster, log: PostgresqlLog) -> None:
    """After a failover or a silence the connection that listens is replaced, and processes with an unknown outcome are ended."""
    logs = PostgresqlLogs(cluster.url, timeout_ms=SHORT_MS)
    listening = "SELECT pid FROM pg_stat_activity WHERE query = 'LISTEN gavel'"
    await logs.grown({log.bus: 1})
    await until(lambda: asyncio.to_thread(cluster.execute, listening))
    before = cluster.execute(listening)
    logs._connections.server.distrust()

    async def is_alone() -> bool:
        return len(await asyncio.to_thread(cluster.execute, listening)) == 1

    async def is_replaced() -> bool:
        return not {*before} & {*(after := await asyncio.to_thread(cluster.execute, listening))} and bool(after)

    await until(is_replaced)
    await until(is_alone)
    ((pid, started),) = cluster.execute("SELECT pid, backend_start FROM pg_stat_activity WHERE query = 'LISTEN gavel'")
    log._connections.server.abandoned.append(Backend(pid, started))
    await log.head()
    assert [] == log._connections.server.abandoned
    assert (pid,) not in cluster.execute(listening)
    await logs.close()


async def test_a_role_with_another_style_of_dates(cluster: Cluster, bus: str) -> None:
    """A role whose sessions print dates in another style may hold a log, and its lost appends are ended by their start."""
    cluster.execute("ALTER ROLE gavel_server SET datestyle = 'SQL, DMY'")
    try:
        log, other = await PostgresqlLog.connect(cluster.url, bus), await PostgresqlLog.connect(cluster.url, bus)
        backend = other._connections.reads._idle[0].backend
        log._connections.server.abandoned.append(backend)
        assert empty_head(bus) == await log.head()
        assert (backend.pid,) not in cluster.execute("SELECT pid FROM pg_stat_activity")
        await log.close()
        await other.close()
    finally:
        cluster.execute("ALTER ROLE gavel_server RESET datestyle")


async def test_growth_while_the_server_is_away(cluster: Cluster, log: PostgresqlLog) -> None:
    """While PostgreSQL is away the failure is reported for each bus, and after its return the growth."""
    logs = PostgresqlLogs(cluster.url, timeout_ms=SHORT_MS)
    assert {log.bus} == set((await logs.grown({log.bus: 1})).buses)
    cluster.kill()

    async def has_failed() -> bool:
        return log.bus in (await logs.grown({log.bus: 1})).failures

    async def has_grown() -> bool:
        return log.bus in (await logs.grown({log.bus: 1})).buses

    await until(has_failed)
    await asyncio.to_thread(cluster.start)
    await until(has_grown)
    await logs.close()


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("fsync", "off", "fsync is off"),
        ("full_page_writes", "off", "full_page_writes is off"),
        ("synchronous_commit", "off", "synchronous_commit is off"),
    ],
)
async def test_settings_that_lose_events(cluster: Cluster, log: PostgresqlLog, setting: str, value: str, reason: str) -> None:
    """A setting with which a crash may lose events is reported, also if it changes later, and a new server appends nothing."""
    assert [] == await log.durability()
    cluster.set(setting, value)

    async def is_reported() -> bool:
        return any(reason in text for text in await log.durability())

    await until(is_reported)
    strict = PostgresqlLogs(cluster.url, accept_volatile=False)
    opened = await strict.open(log.bus)
    with pytest.raises(LogVolatileError, match=reason):
        await opened.append(await opened.head(), entries_after(await opened.head(), 1), NOW_MS, [])
    assert [True] == [reason in text for text in (await strict.durability([log.bus]))[log.bus]]
    await strict.close()


async def test_unlogged_tables_and_asynchronous_standbys(cluster: Cluster, log: PostgresqlLog) -> None:
    """Tables that a crash empties, and standbys that commits do not wait for, are reported."""
    cluster.execute("ALTER TABLE gavel.event_ids SET UNLOGGED", "SELECT pg_create_physical_replication_slot('standby')")
    unlogged, asynchronous = await log.durability()
    assert "the tables event_ids are unlogged" in unlogged
    assert "1 standby(s) or physical replication slot(s), and commits wait for none" in asynchronous
    assert 1 == await log.asynchronous_replicas()
    cluster.execute("ALTER TABLE gavel.event_ids SET LOGGED", "SELECT pg_drop_replication_slot('standby')")
    assert ([], 0) == (await log.durability(), await log.asynchronous_replicas())


async def test_acknowledgements_need_standbys(cluster: Cluster, log: PostgresqlLog) -> None:
    """--ack replicas:N is refused while commits wait for fewer standbys, and --ack aof:N always."""
    with pytest.raises(LogUnavailableError, match=r"needs commits that wait for 2 standby\(s\), but they wait for 0"):
        await PostgresqlLog.connect(cluster.url, log.bus, acknowledgement=Acknowledgement(2))
    with pytest.raises(LogUnavailableError, match="use replicas:1"):
        await PostgresqlLog.connect(cluster.url, log.bus, acknowledgement=Acknowledgement(1, is_synced=True))


async def _refuses_another_event(log: PostgresqlLog, primary: Cluster, lost_head: Head, replicas: int) -> None:
    """Assert that an event that a failover has lost is not confirmed although the log has another one with its number."""
    survivor = await PostgresqlLog.connect(primary.url, log.bus, acknowledgement=Acknowledgement(replicas))
    with pytest.raises(LogUnavailableError, match="does not hold event 3"):
        await survivor.confirm(lost_head)
    assert not survivor.is_confirmed(3)
    await survivor.close()


@pytest.mark.long
@pytest.mark.parametrize("replicas", [0, 1])
async def test_a_standby_that_does_not_confirm(pair: tuple[Cluster, Cluster], bus: str, replicas: int) -> None:
    """Events that the synchronous standby did not confirm in time are in the log, known as such, and confirmed once it is back."""
    primary, standby = pair
    log = await PostgresqlLog.connect(primary.url, bus, timeout_ms=SHORT_MS, acknowledgement=Acknowledgement(replicas))
    first = entries_after(empty_head(bus), 2)
    await log.append(empty_head(bus), first, NOW_MS, [])
    assert ([], True) == (await log.durability(), log.is_confirmed(2))
    standby.signal(signal.SIGSTOP)
    second = entries_after(head_of(first), 1)
    with pytest.raises(NotReplicatedError, match="events up to 3 are in the log, but 1 standbys"):
        await log.append(head_of(first), second, NOW_MS, [])
    assert (head_of(second), False) == (await log.head(), log.is_confirmed(3))
    with pytest.raises(NotReplicatedError):
        await log.confirm(head_of(second))
    other = await PostgresqlLog.connect(primary.url, bus, timeout_ms=SHORT_MS, acknowledgement=Acknowledgement(replicas))
    assert not other.is_confirmed(3)
    await other.close()
    standby.signal(signal.SIGCONT)
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not log.is_confirmed(3):
            try:
                await log.confirm(head_of(second))
            except NotReplicatedError:
                await asyncio.sleep(0.05)
    await _refuses_another_event(log, primary, Head(3, b"\x03" * 32), replicas)
    copy = await PostgresqlLog.connect(standby.url, bus)
    assert records_of(first + second) == await copy.read(1, 9)
    await copy.close()
    await log.close()


@pytest.mark.long
async def test_a_lost_confirmation_is_no_confirmation_of_other_events(pair: tuple[Cluster, Cluster], bus: str) -> None:
    """After confirmed events were lost, the events in their place count as unconfirmed until the standby has them."""
    primary, standby = pair
    log = await PostgresqlLog.connect(primary.url, bus, acknowledgement=Acknowledgement(1))
    first = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), first, NOW_MS, [])
    await log.append(head_of(first), entries_after(head_of(first), 2), NOW_MS, [])
    assert log.is_confirmed(3)
    primary.execute(
        "ALTER TABLE gavel.events DISABLE TRIGGER ALL",
        "ALTER TABLE gavel.heads DISABLE TRIGGER ALL",
        f"DELETE FROM gavel.events WHERE bus = '{bus}' AND sequence_number > 1",  # noqa: S608  # the bus of this test
        f"UPDATE gavel.heads SET sequence_number = 1, chain_hash = '\\x{head_of(first).chain_hash.hex()}' WHERE bus = '{bus}'",  # noqa: S608
        *(f"ALTER TABLE gavel.events ENABLE ALWAYS TRIGGER {name}" for name in ("append_only", "trimmed_only")),
        *(f"ALTER TABLE gavel.heads ENABLE ALWAYS TRIGGER {name}" for name in ("heads_stay", "heads_advance")),
    )
    assert head_of(first) == await log.head()
    other = await PostgresqlLog.connect(primary.url, bus)
    standby.signal(signal.SIGSTOP)
    entries = entries_after(head_of(first), 2, "other")
    with pytest.raises(NotReplicatedError):
        await other.append(head_of(first), entries, NOW_MS, [])
    assert (head_of(entries), False, False) == (await log.head(), log.is_confirmed(2), log.is_confirmed(3))
    standby.signal(signal.SIGCONT)

    async def is_confirmed() -> bool:
        with suppress(NotReplicatedError):
            await log.confirm(head_of(entries))
        return log.is_confirmed(3)

    await until(is_confirmed)
    await other.close()
    await log.close()


async def test_a_standby_is_read_and_not_written(pair: tuple[Cluster, Cluster], bus: str) -> None:
    """A log is read from a standby; an append there is refused, and nothing is written."""
    primary, standby = pair
    log, copy = await PostgresqlLog.connect(primary.url, bus), await PostgresqlLog.connect(standby.url, bus)
    entries = entries_after(empty_head(bus), 2)
    await log.append(empty_head(bus), entries, NOW_MS, [])

    async def is_copied() -> bool:
        return await copy.head() == head_of(entries)

    await until(is_copied)
    assert ["it is a standby"] == [text[: len("it is a standby")] for text in await copy.durability()]
    with pytest.raises(LogUnreachableError, match="read-only transaction"):
        await copy.append(head_of(entries), entries_after(head_of(entries), 1), NOW_MS, [])
    await log.close()
    await copy.close()


@pytest.mark.long
async def test_a_former_primary_is_not_used(own_pair: tuple[Cluster, Cluster], bus: str) -> None:
    """Once a server has seen the timeline of a promoted standby, it uses no connection to the former primary, though that still answers."""
    primary, standby = own_pair
    primary.set("synchronous_standby_names", "")
    url = f"postgresql://gavel_server@/gavel?host={standby.directory},{primary.directory}&port=5432,5432&target_session_attrs=read-write"
    log = await PostgresqlLog.connect(url, bus, timeout_ms=SHORT_MS)
    first = entries_after(empty_head(bus), 2)
    await log.append(empty_head(bus), first, NOW_MS, [])
    own_head = f"SELECT 1 FROM gavel.heads WHERE bus = '{bus}'"  # noqa: S608 - the name of the test's bus
    await until(lambda: asyncio.to_thread(standby.execute, own_head))
    standby.promote()
    # The idle connections lead to the former primary; a new one leads to the promoted standby.
    fresh = await PostgresqlLog.connect(url, bus, timeout_ms=SHORT_MS)
    await fresh.close()
    log._connections.server.distrust()
    assert head_of(first) == await log.head()
    standby.kill()
    problems: list[str] = []

    async def is_refused() -> bool:
        with pytest.raises(LogUnreachableError) as refusal:
            await log.head()
        problems.append(str(refusal.value))
        return "is a former primary on timeline 1: a standby was promoted to timeline 2" in problems[-1]

    await until(is_refused)
    await log.close()


@pytest.mark.long
async def test_a_server_reads_no_standby(own_pair: tuple[Cluster, Cluster], bus: str) -> None:
    """A standby may lack acknowledged events: no server reads one, and no process does once it has seen the primary."""
    primary, standby = own_pair
    logs = PostgresqlLogs(standby.url, timeout_ms=SHORT_MS)
    with pytest.raises(LogUnreachableError, match="is a standby, which may lack the last events; name the primary"):
        await logs.exists(bus)
    with pytest.raises(LogUnreachableError, match="is a standby"):
        await logs.ping()
    await logs.close()
    url = f"postgresql://gavel_server@/gavel?host={primary.directory},{standby.directory}&port=5432,5432"
    log = await PostgresqlLog.connect(url, bus, timeout_ms=SHORT_MS)
    await log.append(empty_head(bus), entries_after(empty_head(bus), 2), NOW_MS, [])
    primary.kill()

    async def is_refused() -> bool:
        with pytest.raises(LogUnreachableError) as refusal:
            await log.head()
        return "is a standby" in str(refusal.value)

    await until(is_refused)
    await log.close()
