"""The contract of WorkQueues, run on every implementation. The server's streams of work rely on nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from gavel_server.log import EventLog, Record, empty_head
from gavel_server.log.entries import Work
from gavel_server.log.memory import MemoryLog
from gavel_server.log.postgresql.log import PostgresqlLog
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.work.protocol import (
    CALLER_GROUPS_MAX,
    GROUPS_MAX,
    PARKED_MAX,
    TAKE_BYTES_MAX,
    ConsumerGroup,
    GroupsFullError,
    ParkedEntry,
    WorkEntry,
    WorkQueues,
)

from tests.support.entries import NOW_MS, PATIENT_MS, entries_after

DECISIONS: tuple[Work, ...] = ("decisions",) * 9
LONG_MS = 3_600_000
GROUP = "team/payments@eu:1"


@pytest.fixture(params=["memory", "redis", "cluster", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    """The name of an implementation."""
    return str(request.param)


@pytest.fixture
def store_url(kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of the store that holds the queues."""
    return str(request.getfixturevalue({"cluster": "cluster_url", "postgresql": "postgresql_url"}.get(kind, "redis_url")))


@pytest.fixture
async def log(kind: str, store_url: str, bus: str) -> AsyncIterator[EventLog]:
    """The log of one bus, by real time."""
    log: EventLog = MemoryLog(bus, clock=lambda: time.time_ns() // 1_000_000)
    if kind == "postgresql":
        log = await PostgresqlLog.connect(store_url, bus, timeout_ms=PATIENT_MS)
    elif kind != "memory":
        log = await RedisLog.connect(store_url, bus, timeout_ms=PATIENT_MS)
    yield log
    await log.close()


@pytest.fixture
def work(log: EventLog) -> WorkQueues:
    """The work queues of the log."""
    return log.work


async def fill(log: EventLog, *works: Work, name: str = "event") -> None:
    """Append one event for each of `works` to an empty log."""
    await log.append(empty_head(log.bus), entries_after(empty_head(log.bus), len(works), name, works=works), NOW_MS, [])


def numbers(entries: list[WorkEntry]) -> list[tuple[int, int]]:
    """Return the number of each entry and how often it has been delivered."""
    return [(entry.sequence_number, entry.deliveries) for entry in entries]


def read_parked(number: int, reason: str = "poison", deliveries: int = 1) -> ParkedEntry:
    """Return an entry to park."""
    return ParkedEntry(number, f"id-{number}", deliveries, reason, 0)


async def test_each_group_takes_each_entry_once(log: EventLog, work: WorkQueues) -> None:
    """Every group takes every entry of its queue in order, byte for byte, and each entry goes to one consumer of the group."""
    await fill(log, "decisions", "executions", "", "decisions", "requests", "decisions")
    stored = {record.sequence_number: record for record in await log.read(1, 9)}
    first = await work.take_new("decisions", GROUP, "a", 2)
    assert [WorkEntry(n, stored[n].envelope, stored[n].chain_hash, 1) for n in (1, 4)] == first
    assert [(6, 1)] == numbers(await work.take_new("decisions", GROUP, "b", 9))
    assert [] == await work.take_new("decisions", GROUP, "a", 9)
    assert [(1, 1), (4, 1), (6, 1)] == numbers(await work.take_new("decisions", "other", "a", 9))
    assert [(2, 1)] == numbers(await work.take_new("executions", GROUP, "a", 9))
    assert [(5, 1)] == numbers(await work.take_new("requests", GROUP, "a", 9))


async def test_idle_entries_are_claimed_and_counted(log: EventLog, work: WorkQueues) -> None:
    """An entry of a silent consumer is claimed by another one with one more delivery; one that is held or acknowledged is not."""
    await fill(log, "decisions", "decisions", "decisions")
    await work.take_new("decisions", GROUP, "a", 3)
    await work.acknowledge("decisions", GROUP, [1, 99])
    assert [] == await work.idle("decisions", GROUP, LONG_MS, 0, 9)
    assert [] == await work.claim("decisions", GROUP, "b", [2, 3], LONG_MS)
    assert [2, 3] == await work.idle("decisions", GROUP, 0, 0, 9)
    assert [3] == await work.idle("decisions", GROUP, 0, 2, 9)
    assert [2] == await work.idle("decisions", GROUP, 0, 0, 1)
    assert [(2, 2)] == numbers(await work.claim("decisions", GROUP, "b", [1, 2], 0))
    assert [3] == await work.renew("decisions", GROUP, "a", [1, 2, 3])
    assert [2] == await work.renew("decisions", GROUP, "b", [1, 2, 3])


async def test_released_entries_can_be_claimed_at_once(log: EventLog, work: WorkQueues) -> None:
    """A released entry is idle for the time named, with the deliveries named; an entry of another consumer cannot be released."""
    await fill(log, "decisions", "decisions")
    await work.take_new("decisions", GROUP, "a", 2)
    await work.release("decisions", GROUP, "b", {1: 5}, LONG_MS)
    assert [] == await work.idle("decisions", GROUP, LONG_MS, 0, 9)
    await work.release("decisions", GROUP, "a", {1: 0, 2: 1}, LONG_MS)
    assert [(1, 1), (2, 2)] == numbers(await work.claim("decisions", GROUP, "b", [1, 2], LONG_MS))


async def test_transfer(log: EventLog, work: WorkQueues) -> None:
    """A consumer gives an entry that it holds to another one, without a delivery."""
    await fill(log, "decisions")
    await work.take_new("decisions", GROUP, "a", 1)
    assert not await work.transfer("decisions", GROUP, "b", 1, "c")
    assert await work.transfer("decisions", GROUP, "a", 1, "b")
    assert [] == await work.renew("decisions", GROUP, "a", [1])
    assert [(1, 2)] == numbers(await work.claim("decisions", GROUP, "c", [1], 0))


async def test_rejected_entries_are_due_later(log: EventLog, work: WorkQueues) -> None:
    """A rejected entry is neither idle nor taken before it is due, keeps its deliveries, and only its holder can reject it."""
    await fill(log, "decisions", "decisions")
    await work.take_new("decisions", GROUP, "a", 2)
    assert not await work.reject("decisions", GROUP, "b", 1, 1, 0)
    assert await work.reject("decisions", GROUP, "a", 1, 1, 0)
    assert await work.reject("decisions", GROUP, "a", 2, 7, LONG_MS)
    assert not await work.reject("decisions", GROUP, "a", 1, 1, 0)
    assert [] == await work.idle("decisions", GROUP, 0, 0, 9)
    assert [(1, 2)] == numbers(await work.take_due("decisions", GROUP, "b", 9))
    assert [] == await work.take_due("decisions", GROUP, "b", 9)
    assert await work.reject("decisions", GROUP, "b", 1, 2, 0)
    assert [(1, 3)] == numbers(await work.take_due("decisions", GROUP, "a", 9))
    assert [ConsumerGroup(GROUP, "decisions", 0, 2, 2)] == await work.groups()


async def test_parked_entries_wait_for_an_operator(log: EventLog, work: WorkQueues) -> None:
    """A parked entry is delivered to nobody until it is retried, with no deliveries counted; a discarded one never is."""
    await fill(log, *DECISIONS[:4])
    await work.take_new("decisions", GROUP, "a", 4)
    before_ms = await log.time_ms()
    for number in (3, 1, 2):
        assert await work.park("decisions", GROUP, "a", read_parked(number, f"reason of {number}: ü  x", number))
    items = await work.read_parked("decisions", GROUP, 0, 9)
    assert [read_parked(n, f"reason of {n}: ü  x", n) for n in (1, 2, 3)] == [one._replace(parked_at_ms=0) for one in items]
    assert all(before_ms <= one.parked_at_ms <= before_ms + LONG_MS for one in items)
    assert [2] == [one.sequence_number for one in await work.read_parked("decisions", GROUP, 1, 1)]
    assert [] == await work.read_parked("decisions", "other", 0, 9)
    assert ([4], []) == (await work.idle("decisions", GROUP, 0, 0, 9), await work.take_due("decisions", GROUP, "a", 9))
    assert [ConsumerGroup(GROUP, "decisions", 0, 1, 1, 3)] == await work.groups()
    assert 1 == await work.discard_parked("decisions", GROUP, [1, 4, 77])
    assert 1 == await work.retry_parked("decisions", GROUP, [2, 2, 77])
    assert [(2, 1)] == numbers(await work.take_due("decisions", GROUP, "b", 9))
    assert 0 == await work.retry_parked("decisions", GROUP, [])
    assert 1 == await work.retry_parked("decisions", GROUP, None)
    assert [(3, 1)] == numbers(await work.take_due("decisions", GROUP, "b", 9))
    assert 0 == await work.retry_parked("decisions", "other", None)


async def test_only_the_holder_parks(log: EventLog, work: WorkQueues) -> None:
    """A consumer that has lost an entry to another one cannot park it."""
    await fill(log, "decisions")
    await work.take_new("decisions", GROUP, "a", 1)
    await work.claim("decisions", GROUP, "b", [1], 0)
    assert await work.park("decisions", GROUP, "a", read_parked(1))
    assert ([], [1]) == (await work.read_parked("decisions", GROUP, 0, 9), await work.renew("decisions", GROUP, "b", [1]))


async def test_parked_entries_are_bounded(log: EventLog, work: WorkQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that has its limit of parked entries refuses another one, which stays with its consumer."""
    assert PARKED_MAX > 2
    monkeypatch.setattr("gavel_server.log.work.memory.PARKED_MAX", 2)
    monkeypatch.setattr("gavel_server.log.work.redis.PARKED_MAX", 2)
    monkeypatch.setattr("gavel_server.log.work.postgresql.PARKED_MAX", 2)
    await fill(log, *DECISIONS[:3])
    await work.take_new("decisions", GROUP, "a", 3)
    assert [True, True, False] == [await work.park("decisions", GROUP, "a", read_parked(number)) for number in (1, 2, 3)]
    assert [3] == await work.renew("decisions", GROUP, "a", [1, 2, 3])


async def test_requests_are_bounded(log: EventLog, work: WorkQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of requests keeps about its limit, the newest entries; other queues lose nothing by number."""
    monkeypatch.setattr("gavel_server.log.work.memory.REQUESTS_MAX", 100)
    monkeypatch.setattr("gavel_server.log.redis.log.REQUESTS_MAX", 100)
    monkeypatch.setattr("gavel_server.log.postgresql.log.REQUESTS_MAX", 100)
    requests: tuple[Work, ...] = ("requests",) * 400
    await fill(log, *requests, *("decisions",) * 400)
    numbers = await work.numbers("requests", 0, 1_000)
    # Redis trims whole nodes of a stream.
    assert 100 <= len(numbers) <= 200
    assert list(range(401 - len(numbers), 401)) == numbers
    assert 400 == len(await work.numbers("decisions", 0, 1_000))


@pytest.fixture
async def lost_requests(log: EventLog, work: WorkQueues, monkeypatch: pytest.MonkeyPatch) -> int:
    """Park three requests that their queue then loses, and take a later one; return its number."""
    monkeypatch.setattr("gavel_server.log.work.memory.REQUESTS_MAX", 100)
    monkeypatch.setattr("gavel_server.log.redis.log.REQUESTS_MAX", 100)
    monkeypatch.setattr("gavel_server.log.postgresql.log.REQUESTS_MAX", 100)
    await fill(log, "requests", "requests", "requests")
    await work.take_new("requests", GROUP, "a", 3)
    for number in (1, 2, 3):
        assert await work.park("requests", GROUP, "a", read_parked(number))
    head = await log.head()
    await log.append(head, entries_after(head, 400, works=("requests",)), NOW_MS, [])
    (entry,) = await work.take_new("requests", GROUP, "a", 1)
    assert entry.sequence_number > 3
    return entry.sequence_number


async def test_lost_entries_are_not_listed(work: WorkQueues, lost_requests: int) -> None:
    """A parked entry that its queue has lost is neither listed nor counted any more."""
    await work.park("requests", GROUP, "a", read_parked(lost_requests))
    assert [lost_requests] == [one.sequence_number for one in await work.read_parked("requests", GROUP, 0, 9)]
    assert [1] == [group.parked for group in await work.groups() if group.group == GROUP]


async def test_lost_entries_are_not_retried(work: WorkQueues, lost_requests: int) -> None:
    """A parked entry that its queue has lost does not count as retried, named or not, and is dropped."""
    await work.park("requests", GROUP, "a", read_parked(lost_requests))
    assert 0 == await work.retry_parked("requests", GROUP, [1, 2])
    assert 1 == await work.retry_parked("requests", GROUP, None)
    assert [(lost_requests, 1)] == numbers(await work.take_due("requests", GROUP, "a", 9))
    assert [(0, 1)] == [(group.parked, group.pending) for group in await work.groups() if group.group == GROUP]


async def test_lost_entries_leave_room(work: WorkQueues, lost_requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parked entries that their queue has lost do not count to the limit of a group."""
    for module in ("memory", "redis", "postgresql"):
        monkeypatch.setattr(f"gavel_server.log.work.{module}.PARKED_MAX", 3)
    assert await work.park("requests", GROUP, "a", read_parked(lost_requests))
    assert [lost_requests] == [one.sequence_number for one in await work.read_parked("requests", GROUP, 0, 9)]


async def test_entries_of_trimmed_events(kind: str, log: EventLog, work: WorkQueues) -> None:
    """An entry whose event was trimmed is taken, due, claimed and retried as before: with its event, or without one if the log had it."""
    await fill(log, *DECISIONS[:5])
    stored = {record.sequence_number: record for record in await log.read(1, 9)}
    await work.take_new("decisions", GROUP, "a", 3)
    await work.reject("decisions", GROUP, "a", 1, 1, 0)
    await work.park("decisions", GROUP, "a", read_parked(2))
    await log.trim(5)
    assert [1, 2, 3, 4, 5] == await work.numbers("decisions", 0, 9)
    entries = await work.take_due("decisions", GROUP, "b", 9)
    assert 1 == await work.retry_parked("decisions", GROUP, [2])
    entries += await work.take_due("decisions", GROUP, "b", 9)
    entries += await work.claim("decisions", GROUP, "b", [3], 0)
    entries += await work.take_new("decisions", GROUP, "b", 9)
    assert [(1, 2), (2, 1), (3, 2), (4, 1), (5, 1)] == numbers(entries)
    for number, envelope, chain_hash, _ in entries:
        if kind == "postgresql" and number < 5:
            assert (b"", b"") == (envelope, chain_hash)
        else:
            assert stored[number] == Record(number, envelope, chain_hash)


async def test_pages_of_numbers_are_bounded_in_bytes(kind: str, log: EventLog, work: WorkQueues) -> None:
    """A page of numbers may be short, for Redis reads the envelopes too; the pages after it hold the others."""
    await fill(log, *DECISIONS, *DECISIONS, *DECISIONS, name="x" * (TAKE_BYTES_MAX // 16))
    pages = [await work.numbers("decisions", 0, 99)]
    while pages[-1]:
        pages.append(await work.numbers("decisions", pages[-1][-1], 99))
    assert list(range(1, 28)) == [number for page in pages for number in page]
    assert (kind in ("redis", "cluster")) == (len(pages[0]) < 27)
    assert [2, 3, 4] == await work.numbers("decisions", 1, 3)


async def test_removed_entries_are_gone_for_all_groups(log: EventLog, work: WorkQueues) -> None:
    """Entries whose work has ended are neither taken, claimed, due nor parked any more, in any group."""
    await fill(log, *DECISIONS[:5])
    await work.take_new("decisions", GROUP, "a", 4)
    await work.park("decisions", GROUP, "a", read_parked(1))
    await work.reject("decisions", GROUP, "a", 2, 1, 0)
    assert [1, 2, 3, 4, 5] == await work.numbers("decisions", 0, 9)
    assert [3, 4] == await work.numbers("decisions", 2, 2)
    await work.remove("decisions", [1, 2, 3, 5])
    assert [4] == await work.numbers("decisions", 0, 9)
    assert [] == await work.read_parked("decisions", GROUP, 0, 9)
    assert [] == await work.take_due("decisions", GROUP, "b", 9)
    assert [4] == await work.renew("decisions", GROUP, "a", [3, 4])
    assert [(4, 2)] == numbers(await work.claim("decisions", GROUP, "b", [3, 4], 0))
    assert [(4, 1)] == numbers(await work.take_new("decisions", "other", "a", 9))
    assert [] == await work.idle("decisions", GROUP, LONG_MS, 0, 9)


async def test_a_take_is_bounded_in_bytes(log: EventLog, work: WorkQueues) -> None:
    """One call takes at most TAKE_BYTES_MAX and the entry that reaches it; the others are taken by the next calls."""
    await fill(log, *DECISIONS[:3], name="x" * (TAKE_BYTES_MAX // 2))
    assert [(1, 1), (2, 1)] == numbers(await work.take_new("decisions", GROUP, "a", 9))
    assert [(3, 1)] == numbers(await work.take_new("decisions", GROUP, "a", 9))
    await work.release("decisions", GROUP, "a", {1: 1, 2: 1, 3: 1}, LONG_MS)
    assert [(1, 2), (2, 2)] == numbers(await work.claim("decisions", GROUP, "a", [1, 2, 3], LONG_MS))
    for number, deliveries in ((1, 2), (2, 2), (3, 1)):
        await work.claim("decisions", GROUP, "a", [number], 0)
        assert await work.reject("decisions", GROUP, "a", number, deliveries, 0)
    assert 2 == len(await work.take_due("decisions", GROUP, "b", 9))
    assert 1 == len(await work.take_due("decisions", GROUP, "b", 9))


async def test_groups_are_bounded(work: WorkQueues) -> None:
    """At the limit, a new group takes the place of one that nobody uses; if all are in use, it is refused."""
    for number in range(GROUPS_MAX):
        await work.join("requests", f"group-{number:02}", "a")
    await work.leave("requests", "group-40", "a")
    await work.join("requests", "group-00", "b")
    await work.join("requests", "new", "a")
    names = {group.group for group in await work.groups()}
    assert GROUPS_MAX == len(names)
    assert ("new" in names, "group-40" in names) == (True, False)
    with pytest.raises(GroupsFullError):
        await work.join("requests", "another", "a")


async def test_a_caller_creates_few_groups(log: EventLog, work: WorkQueues) -> None:
    """A caller creates CALLER_GROUPS_MAX groups, also if it leaves them and opens them at once; those of others do not count."""
    await fill(log, "decisions")
    joins = (work.join("decisions", f"group-{number:02}", "a", "mallory") for number in range(CALLER_GROUPS_MAX + 4))
    outcomes = await asyncio.gather(*joins, return_exceptions=True)
    assert ["CALLER_GROUPS_MAX"] * 4 == [one.limit for one in outcomes if isinstance(one, GroupsFullError)]
    own = [group.group for group in await work.groups() if group.owner == "mallory"]
    assert CALLER_GROUPS_MAX == len(own)
    await work.take_new("decisions", own[0], "a", 1)
    for name in own:
        await work.leave("decisions", name, "a")
    await work.join("decisions", "other", "b", "alice")
    await work.join("decisions", "other", "a", "mallory")
    await work.join("decisions", own[0], "b", "alice")
    await work.join("decisions", "again", "a", "mallory")
    groups = {group.group: group.owner for group in await work.groups() if group.queue == "decisions"}
    assert (CALLER_GROUPS_MAX, "alice", "mallory", "mallory") == (
        sum(owner == "mallory" for owner in groups.values()),
        groups["other"],
        groups["again"],
        groups[own[0]],
    )


async def test_a_reused_name_belongs_to_its_new_owner(work: WorkQueues) -> None:
    """A group that is removed and created again belongs to the caller that has created it last."""
    await work.join("requests", "name", "a", "mallory")
    await work.leave("requests", "name", "a")
    for number in range(GROUPS_MAX):
        await work.join("requests", f"group-{number:02}", "a")
    assert "name" not in {group.group for group in await work.groups()}
    await work.leave("requests", "group-00", "a")
    await work.join("requests", "name", "b", "alice")
    assert ["alice"] == [group.owner for group in await work.groups() if group.group == "name"]


async def test_consumers_leave(log: EventLog, work: WorkQueues) -> None:
    """A consumer without entries leaves its group, at once or when it has been silent; one that holds an entry stays a member."""
    await fill(log, "decisions")
    await work.take_new("decisions", GROUP, "a", 1)
    for consumer in ("b", "c"):
        await work.take_new("decisions", GROUP, consumer, 1)
        await work.claim("decisions", GROUP, consumer, [1], 0)
        await work.claim("decisions", GROUP, "a", [1], 0)
    await work.leave("decisions", GROUP, "a")
    await work.leave("decisions", GROUP, "b")
    await work.remove_silent("decisions", GROUP, LONG_MS)
    assert [2] == [group.members for group in await work.groups()]
    await work.remove_silent("decisions", GROUP, 0)
    assert [1] == [group.members for group in await work.groups()]
