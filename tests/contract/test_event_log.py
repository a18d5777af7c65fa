"""The contract of EventLog, run on every implementation. Users of a log rely on nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from gavel_server.archive.archive import Archive
from gavel_server.archive.archived_log import ArchivedLog
from gavel_server.archive.storage import Directory
from gavel_server.log import (
    Entry,
    EventIdTakenError,
    EventLog,
    Head,
    HeadMovedError,
    IdEntry,
    LogUnavailableError,
    LossReportedError,
    OutcomeUnknownError,
    UntimelyError,
    chain,
    empty_head,
    genesis_hash,
)
from gavel_server.log.memory import MemoryLog
from gavel_server.log.postgresql.log import PostgresqlLog
from gavel_server.log.protocol import ACCEPTED_LOSSES_MAX, CHUNK_BYTES
from gavel_server.log.redis.log import RedisLog

from tests.support.entries import DAY_MS, NOW_MS, PATIENT_MS, entries_after, head_of, records_of
from tests.support.simulation.faults import FaultRates, FaultyLog

HOUR_MS = 3_600_000

OpenLog = Callable[[], Awaitable[EventLog]]


@pytest.fixture(params=["memory", "redis", "cluster", "archived", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    """The name of an implementation."""
    return str(request.param)


@pytest.fixture
def store_url(kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of the store that holds the log."""
    return str(request.getfixturevalue({"cluster": "cluster_url", "postgresql": "postgresql_url"}.get(kind, "redis_url")))


@pytest.fixture
async def open_log(kind: str, store_url: str, bus: str, tmp_path: Path) -> AsyncIterator[OpenLog]:
    """Open the log of one bus; every call returns another handle on it, as another server would have."""
    memory = MemoryLog(bus, clock=lambda: NOW_MS)
    opened: list[EventLog] = []

    async def open_one() -> EventLog:
        log: EventLog = memory
        if kind in ("redis", "cluster"):
            log = await RedisLog.connect(store_url, bus, timeout_ms=PATIENT_MS)
        elif kind == "postgresql":
            log = await PostgresqlLog.connect(store_url, bus, timeout_ms=PATIENT_MS)
        elif kind == "archived":
            log = ArchivedLog(await RedisLog.connect(store_url, bus, timeout_ms=PATIENT_MS), Archive(Directory(tmp_path), bus))
        opened.append(log)
        return log

    yield open_one
    for log in opened:
        await log.close()


@pytest.fixture
async def log(open_log: OpenLog) -> EventLog:
    """An empty log."""
    return await open_log()


async def test_empty_log(log: EventLog, bus: str) -> None:
    """An empty log has number 0 and the genesis hash of its bus, and holds no event."""
    assert Head(0, genesis_hash(bus)) == await log.head()
    assert [] == await log.read(1, 100)
    assert {} == await log.read_many([1, 2])
    assert {} == await log.find(["event-1"], NOW_MS)


async def test_append_then_read(log: EventLog, bus: str) -> None:
    """Appended events are read back byte for byte, in order, and the head is the last event."""
    first = entries_after(empty_head(bus), 2)
    await log.append(empty_head(bus), first, NOW_MS, [])
    second = entries_after(head_of(first), 3)
    await log.append(head_of(first), second, NOW_MS + 1, [])
    assert head_of(second) == await log.head()
    assert records_of(first + second) == await log.read(1, 5)


@pytest.mark.parametrize(
    ("first", "last", "limit", "expected"),
    [
        (1, 5, 1000, [1, 2, 3, 4, 5]),
        (2, 4, 1000, [2, 3, 4]),
        (3, 3, 1000, [3]),
        (2, 5, 2, [2, 3]),
        (4, 99, 1000, [4, 5]),
        (6, 99, 1000, []),
        (0, 2, 1000, [1, 2]),
        (-5, 2, 1, [1]),
        (4, 3, 1000, []),
        (1, 5, 0, []),
    ],
)
async def test_read_ranges(log: EventLog, bus: str, first: int, last: int, limit: int, expected: list[int]) -> None:
    """A range includes both ends, stops at the end of the log, and returns at most `limit` events."""
    entries = entries_after(empty_head(bus), 5)
    await log.append(empty_head(bus), entries, NOW_MS, [])
    assert [entries[number - 1].sequence_number for number in expected] == [
        record.sequence_number for record in await log.read(first, last, limit)
    ]


async def test_reads_are_bounded_in_bytes(log: EventLog, bus: str) -> None:
    """A read ends with the event that reaches CHUNK_BYTES, also where large events follow small ones."""
    sizes = [100] * 20 + [CHUNK_BYTES // 2] * 5 + [CHUNK_BYTES] * 2
    entries: list[Entry] = []
    for size in sizes:
        entries += entries_after(head_of(entries) if entries else empty_head(bus), 1, "x" * size)
    await log.append(empty_head(bus), entries, NOW_MS, [])
    read: list[list[int]] = []
    while not read or read[-1][-1] < len(sizes):
        read.append([record.sequence_number for record in await log.read(read[-1][-1] + 1 if read else 1, 99)])
    assert [[*range(1, 23)], [23, 24], [25, 26], [27]] == read


async def test_read_many(log: EventLog, bus: str) -> None:
    """Events are found by number in any order; numbers that the log does not hold are absent."""
    entries = entries_after(empty_head(bus), 5)
    await log.append(empty_head(bus), entries, NOW_MS, [])
    records = records_of(entries)
    assert {5: records[4], 1: records[0], 3: records[2]} == await log.read_many([5, 1, 3, 6, 0, -1, 3])
    assert {} == await log.read_many([])


async def test_stale_head_is_refused(log: EventLog, bus: str) -> None:
    """An append that expects an older head changes nothing; the error has the actual head."""
    entries = entries_after(empty_head(bus), 2)
    await log.append(empty_head(bus), entries, NOW_MS, [])
    with pytest.raises(HeadMovedError) as error_info:
        await log.append(empty_head(bus), entries_after(empty_head(bus), 1, "late"), NOW_MS, [])
    assert head_of(entries) == error_info.value.actual
    assert records_of(entries) == await log.read(1, 10)
    assert {} == await log.find(["late-1"], NOW_MS)


@pytest.mark.parametrize("off_ms", [HOUR_MS, 10_000, 1_500, -10_000, -HOUR_MS])
async def test_append_that_is_not_dated_by_the_stores_clock(log: EventLog, bus: str, off_ms: int) -> None:
    """A batch whose writer's clock is off the store's is refused and leaves nothing behind."""
    entries = entries_after(empty_head(bus), 2)
    with pytest.raises(UntimelyError, match="after" if off_ms > 0 else "before"):
        await log.append(empty_head(bus), entries, NOW_MS, ["event-1"], await log.time_ms() + off_ms)
    assert empty_head(bus) == await log.head()
    await log.append(empty_head(bus), entries, NOW_MS, ["event-1"], await log.time_ms())
    assert head_of(entries) == await log.head()


async def test_another_head_precedes_the_date(log: EventLog, bus: str) -> None:
    """A writer that is behind and whose clock is off hears that the head has moved."""
    await log.append(empty_head(bus), entries_after(empty_head(bus), 1), NOW_MS, [])
    with pytest.raises(HeadMovedError):
        await log.append(empty_head(bus), entries_after(empty_head(bus), 1, "late"), NOW_MS, [], await log.time_ms() + HOUR_MS)


async def test_head_of_other_history_is_refused(log: EventLog, bus: str) -> None:
    """An expected head with the right number and another chain hash is refused: nothing is appended."""
    entries = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), entries, NOW_MS, [])
    other = Head(1, chain(genesis_hash(bus), b"something else"))
    with pytest.raises(HeadMovedError) as error_info:
        await log.append(other, entries_after(other, 1), NOW_MS, [])
    assert head_of(entries) == error_info.value.actual


async def test_head_of_other_bus_is_refused(log: EventLog, bus: str) -> None:
    """An empty log of one bus is not the empty log of another."""
    other = empty_head("another")
    with pytest.raises(HeadMovedError) as error_info:
        await log.append(other, entries_after(other, 1), NOW_MS, [])
    assert empty_head(bus) == error_info.value.actual


async def test_head_ahead_of_log_is_refused(log: EventLog, bus: str) -> None:
    """An append that expects a head ahead of the log, which lost events, changes nothing."""
    ahead = Head(7, b"7" * 32)
    with pytest.raises(HeadMovedError) as error_info:
        await log.append(ahead, entries_after(ahead, 1), NOW_MS, [])
    assert empty_head(bus) == error_info.value.actual


@pytest.mark.parametrize("numbers", [[], [2], [1, 3], [2, 1], [1, 1]])
async def test_gaps_are_refused(log: EventLog, bus: str, numbers: list[int]) -> None:
    """Entries must follow the expected head without gaps, or nothing is appended."""
    entries = [Entry(number, b"envelope", b"h" * 32, f"event-{number}", "") for number in numbers]
    with pytest.raises(ValueError, match=r"entry"):
        await log.append(empty_head(bus), entries, NOW_MS, [])
    assert empty_head(bus) == await log.head()


async def test_find(log: EventLog, bus: str) -> None:
    """An event_id leads to its event and, if there is one, to its first decision."""
    plain = entries_after(empty_head(bus), 1, "plain")
    proposal = entries_after(head_of(plain), 1, "proposal", decision_sequence_number=3)
    await log.append(empty_head(bus), plain + proposal, NOW_MS, [])
    actual = await log.find(["proposal-2", "unknown", "plain-1"], NOW_MS)
    assert {"plain-1": IdEntry(1, 0), "proposal-2": IdEntry(2, 3)} == actual


async def test_known_event_id_refuses_the_whole_batch(log: EventLog, bus: str) -> None:
    """If one idempotency key is known, nothing of the batch is appended; the error has the entries of the known ones."""
    first = entries_after(empty_head(bus), 2, "first", decision_sequence_number=2)
    await log.append(empty_head(bus), first, NOW_MS, ["first-1", "first-2"])
    second = entries_after(head_of(first), 3, "second")
    with pytest.raises(EventIdTakenError) as error_info:
        await log.append(head_of(first), second, NOW_MS, ["second-3", "first-2", "second-4", "first-1"])
    assert {"first-1": IdEntry(1, 2), "first-2": IdEntry(2, 2)} == error_info.value.entries
    assert head_of(first) == await log.head()
    assert {} == await log.find(["second-3", "second-4"], NOW_MS)
    await log.append(head_of(first), second, NOW_MS, ["second-3", "second-4"])
    assert head_of(second) == await log.head()


async def test_stale_head_takes_precedence_over_known_ids(log: EventLog, bus: str) -> None:
    """A writer that is behind gets HeadMovedError first, because a known event_id may be its own event, already in the log."""
    first = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), first, NOW_MS, ["event-1"])
    with pytest.raises(HeadMovedError):
        await log.append(empty_head(bus), first, NOW_MS, ["event-1"])


async def test_ids_are_known_for_the_window(log: EventLog, bus: str) -> None:
    """An event_id is known for at least seven days, and forgotten when its day leaves the window."""
    first = entries_after(empty_head(bus), 1, "old")
    await log.append(empty_head(bus), first, NOW_MS, ["old-1"])
    second = entries_after(head_of(first), 1, "new")
    within, beyond = NOW_MS + 7 * DAY_MS, NOW_MS + 8 * DAY_MS
    assert {"old-1": IdEntry(1, 0)} == await log.find(["old-1"], within)
    with pytest.raises(EventIdTakenError):
        await log.append(head_of(first), second, within, ["old-1"])
    assert {} == await log.find(["old-1"], beyond)
    await log.append(head_of(first), second, beyond, ["old-1"])


async def test_large_batch(log: EventLog, bus: str) -> None:
    """A batch of 2,000 entries with 2,000 idempotency keys is appended whole; with one known key it is not appended at all."""
    first = entries_after(empty_head(bus), 2000)
    await log.append(empty_head(bus), first, NOW_MS, [entry.event_id for entry in first])
    assert head_of(first) == await log.head()
    records = records_of(first)
    assert records == [*await log.read(1, 1000), *await log.read(1001, 2000)]
    assert {record.sequence_number: record for record in records} == await log.read_many(range(1, 2001))
    actual = await log.find([entry.event_id for entry in first], NOW_MS)
    assert {entry.event_id: IdEntry(entry.sequence_number, 0) for entry in first} == actual
    second = entries_after(head_of(first), 2000, "second")
    with pytest.raises(EventIdTakenError) as error_info:
        await log.append(head_of(first), second, NOW_MS, [*(entry.event_id for entry in second), "event-2000"])
    assert {"event-2000": IdEntry(2000, 0)} == error_info.value.entries
    assert head_of(first) == await log.head()


async def test_large_envelope(log: EventLog, bus: str) -> None:
    """An envelope of the contract's largest size is read back whole."""
    envelope = random.Random(1).randbytes(1024 * 1024)
    entry = Entry(1, envelope, chain(genesis_hash(bus), envelope), "large", "")
    await log.append(empty_head(bus), [entry], NOW_MS, [])
    assert records_of([entry]) == await log.read(1, 1)


async def test_concurrent_appends(open_log: OpenLog, bus: str) -> None:
    """Of writers that expect the same head exactly one wins; the others get the winner's head."""
    logs = [await open_log() for _ in range(8)]
    batches = [entries_after(empty_head(bus), 3, f"writer-{index}") for index in range(len(logs))]
    attempts = [log.append(empty_head(bus), batch, NOW_MS, []) for log, batch in zip(logs, batches, strict=True)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    winners = [batch for batch, outcome in zip(batches, outcomes, strict=True) if outcome is None]
    assert 1 == len(winners)
    assert [head_of(winners[0])] * 7 == [outcome.actual for outcome in outcomes if isinstance(outcome, HeadMovedError)]
    assert records_of(winners[0]) == await logs[0].read(1, 10)


async def test_competing_writers_leave_no_gap(open_log: OpenLog, bus: str) -> None:
    """Writers that retry on the head of their error build one gapless, chained log with every batch."""

    async def write(log: EventLog, name: str) -> None:
        head = await log.head()
        count = 0
        while count < 10:
            try:
                entries = entries_after(head, 2, f"{name}-{count}")
                await log.append(head, entries, NOW_MS, [])
                head, count = head_of(entries), count + 1
            except HeadMovedError as moved:
                head = moved.actual

    logs = [await open_log() for _ in range(3)]
    await asyncio.gather(*(write(log, f"writer-{index}") for index, log in enumerate(logs)))
    records = await logs[0].read(1, 1000)
    assert list(range(1, 61)) == [record.sequence_number for record in records]
    chain_hash = genesis_hash(bus)
    for record in records:
        chain_hash = chain(chain_hash, record.envelope)
        assert chain_hash == record.chain_hash
    ids = [f"{record.envelope.split(b' ')[-1].decode()}" for record in records]
    assert set(ids) == set(await logs[0].find(ids, NOW_MS))


async def test_cancelled_call_leaves_the_log_usable(log: EventLog, bus: str) -> None:
    """A call that is cancelled leaves the log usable."""
    asking = asyncio.create_task(log.head())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert empty_head(bus) == await log.head()


async def test_clock_and_groups(log: EventLog) -> None:
    """The log returns the time in milliseconds, and creating the groups is idempotent."""
    assert await log.time_ms() > 1_700_000_000_000
    await log.ensure_groups()
    await log.ensure_groups()


# Not of an archived log: what is trimmed there must be in the archive (tests/unit/server/archive).
@pytest.mark.parametrize("kind", ["memory", "redis", "cluster", "postgresql"])
async def test_trimmed(open_log: OpenLog, bus: str) -> None:
    """Trimming removes events from the start for every server; the rest is read and appended to as before, and the newest event stays."""
    one, other = await open_log(), await open_log()
    entries = entries_after(empty_head(bus), 10)
    await one.append(empty_head(bus), entries, NOW_MS, [])
    await one.trim(4)
    await one.trim(4)
    await other.trim(2)
    assert records_of(entries)[3:] == await other.read(1, 10)
    assert records_of(entries)[4:6] == await other.read(5, 6)
    assert records_of(entries)[3:5] == await other.read(2, 10, 2)
    assert [] == await other.read(1, 3)
    assert {4: records_of(entries)[3]} == await other.read_many([1, 3, 4])
    assert head_of(entries) == await other.head()
    more = entries_after(head_of(entries), 2)
    await other.append(head_of(entries), more, NOW_MS, [])
    await one.trim(1000)
    assert (records_of(more)[1:], head_of(more)) == (await one.read(1, 1000), await one.head())


async def test_trimming_an_empty_log(log: EventLog, bus: str) -> None:
    """Trimming an empty log changes nothing."""
    await log.trim(5)
    assert empty_head(bus) == await log.head()


async def test_published_checkpoint(open_log: OpenLog, bus: str) -> None:
    """The newest published checkpoint is returned byte for byte to every server, and is no event. Only who has seen it replaces it."""
    one, other = await open_log(), await open_log()
    assert await one.published_checkpoint() is None
    first, second = b"gavel/bus\n1\n", "gavel/bus\n2\n\n\u2014 name c2ln\n".encode()
    assert not await one.publish_checkpoint(second, first)
    assert await one.publish_checkpoint(first, None)
    assert first == await other.published_checkpoint()
    assert await other.publish_checkpoint(second, first)
    for previous in (None, first):
        assert not await one.publish_checkpoint(first, previous)
    assert second == await one.published_checkpoint()
    assert empty_head(bus) == await one.head()


async def test_the_head_settles_unknown_outcomes(open_log: OpenLog, bus: str) -> None:
    """Despite lost requests, lost replies, refusals and rivals, a writer that reads the head appends each batch exactly once."""

    async def rival(log: EventLog) -> None:
        head = await log.head()
        await log.append(head, entries_after(head, 1, "rival"), NOW_MS, [])

    rates = FaultRates(applied_but_unknown=0.15, lost_and_unknown=0.15, unavailable=0.1, head_moved=0.15)
    faulty = FaultyLog(await open_log(), random.Random(7), rates, rival)
    head, count = await faulty.head(), 0
    while count < 60:
        entries = entries_after(head, 2, f"batch-{count}")
        try:
            await faulty.append(head, entries, NOW_MS, [])
            head, count = head_of(entries), count + 1
        except HeadMovedError as moved:
            head = moved.actual
        except OutcomeUnknownError:
            actual = await faulty.head()
            count += actual == head_of(entries)
            head = actual
        except LogUnavailableError:
            pass
    assert faulty.faults > 20
    names = [record.envelope.split(b" ")[-1].rsplit(b"-", 1)[0].decode() for record in await faulty.read(1, 1000)]
    assert [f"batch-{index}" for index in range(60) for _ in range(2)] == [name for name in names if name != "rival"]


def accepting(entry: Entry) -> Entry:
    """Return an entry as one that accepts a loss."""
    return Entry(entry.sequence_number, entry.envelope, entry.chain_hash, entry.event_id, entry.work, accepts_loss=True)


async def test_a_reported_loss_refuses_appends(open_log: OpenLog, bus: str) -> None:
    """After a report of a lost event, every handle refuses appends, and `head` names the last lost event, until one accepts the loss."""
    log, other = await open_log(), await open_log()
    first = entries_after(empty_head(bus), 3)
    await log.append(empty_head(bus), first, NOW_MS, [])
    lost = [Head(5, b"\x05" * 32), Head(4, b"\x04" * 32)]
    for head in (*lost, *lost):
        await log.report_loss(head)
    with pytest.raises(LossReportedError):
        await other.append(head_of(first), entries_after(head_of(first), 1), NOW_MS, [])
    assert head_of(first) == await other.head()
    assert lost[0] == other.lost_head
    (entry,) = entries_after(head_of(first), 1)
    await other.append(head_of(first), [accepting(entry)], NOW_MS, [])
    await log.report_loss(lost[1])  # accepted already, as a server that was away does not know
    assert head_of([entry]) == await log.head()
    assert log.lost_head is None
    await log.append(head_of([entry]), entries_after(head_of([entry]), 1), NOW_MS, [])


async def test_an_empty_log_takes_no_report(log: EventLog, bus: str) -> None:
    """A loss that is reported of a log without events changes nothing: its next event is the first one of another bus."""
    await log.report_loss(Head(5, b"\x05" * 32))
    assert empty_head(bus) == await log.head()
    assert log.lost_head is None
    await log.append(empty_head(bus), entries_after(empty_head(bus), 1), NOW_MS, [])


async def test_the_accepted_losses_are_bounded(log: EventLog, bus: str) -> None:
    """A log remembers the accepted losses of the highest numbers; no report of an accepted loss stops it again, and a new one does."""
    (entry,) = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), [entry], NOW_MS, [])
    head = head_of([entry])
    # A server reports them in any order.
    lost = [Head(1000 + number, bytes([number]) * 32) for number in range(2 * ACCEPTED_LOSSES_MAX)]
    reported = random.Random(3).sample(lost, len(lost))
    for accepted in reported[:3], reported[3:-1], reported[-1:]:
        for one in accepted:
            await log.report_loss(one)
        (entry,) = entries_after(head, 1)
        await log.append(head, [accepting(entry)], NOW_MS, [])
        head = head_of([entry])
        for one in accepted:
            await log.report_loss(one)
        assert (head, None) == (await log.head(), log.lost_head)
    for one in lost:
        await log.report_loss(one)
    assert (head, None) == (await log.head(), log.lost_head)
    other = Head(lost[-1].sequence_number, b"\xff" * 32)
    await log.report_loss(other)
    assert (head, other) == (await log.head(), log.lost_head)


async def test_reports_of_other_events_count_until_accepted(log: EventLog, bus: str) -> None:
    """While a log remembers all losses that were accepted, a report of any other event stops it, also of an earlier one."""
    (entry,) = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), [entry], NOW_MS, [])
    head = head_of([entry])
    await log.report_loss(Head(9, b"\x09" * 32))
    (entry,) = entries_after(head, 1)
    await log.append(head, [accepting(entry)], NOW_MS, [])
    earlier = Head(5, b"\x05" * 32)
    await log.report_loss(earlier)
    assert (head_of([entry]), earlier) == (await log.head(), log.lost_head)
