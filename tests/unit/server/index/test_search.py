"""Searches: the index, however far it goes, finds what a scan of the log finds."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from gavel_rules.commands import OpenBus
from gavel_rules.events.hash_chain import genesis_hash
from gavel_server.index.database import IndexDatabase, IndexReader, index_path, remove
from gavel_server.index.event_filter import EventFilter
from gavel_server.index.event_index import EventIndex
from gavel_server.index.worker import IndexWriter
from gavel_server.log import Entry, Head, LogCorruptError, Record
from gavel_server.log.memory import MemoryLog
from gavel_server.services.reads import search as searches
from gavel_server.services.reads.search import search
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.support.driver import BUS, START_MS, Core
from tests.support.histories.plays import STEPS, Step, play
from tests.support.histories.story import play_story

FILTERS: Final = st.builds(
    EventFilter,
    categories=st.frozensets(st.integers(1, 8), max_size=3),
    subject=st.sampled_from(("", "", "order/1", "order/3", "bus/bus", "order/none")),
    subject_prefix=st.sampled_from(("", "", "order/", "order/2", "%", "order_")),
    trace_id=st.sampled_from(("", "", "trace-1", "trace-2", "none")),
    action_types=st.frozensets(st.sampled_from(("refund.create", "refund.reverse", "none")), max_size=2),
    outcomes=st.frozensets(st.integers(1, 5), max_size=2),
    reason_codes=st.frozensets(st.sampled_from(("RULE_APPROVED", "EXPIRED", "NEED_MORE_FACTS", "CANCELLED")), max_size=2),
    recorded_from_ms=st.one_of(st.just(0), st.integers(START_MS - 1_000, START_MS + 200_000)),
    recorded_until_ms=st.one_of(st.just(0), st.integers(START_MS - 1_000, START_MS + 200_000)),
)


async def log_of(core: Core) -> MemoryLog:
    """Return the log of a bus."""
    log = MemoryLog(core.bus, lambda: core.now_ms)
    entries = [
        Entry(record.sequence_number, record.envelope, record.chain_hash, event.event_id, "")
        for record, event in zip(core.records, core.events, strict=True)
    ]
    await log.append(await log.head(), entries, START_MS, ())
    return log


async def found(log: MemoryLog, index: EventIndex | None, event_filter: EventFilter, first: int, last: int) -> list[int]:
    """Return the numbers of the events that a search finds."""
    numbers: list[int] = []
    reached = first - 1
    async for part in search(log, index, event_filter, first, last, "caller"):
        numbers += [event.envelope.sequence_number for event in part.events]
        assert part.reached >= reached
        reached = part.reached
    assert reached == max(last, first - 1)
    return numbers


def scan(core: Core, event_filter: EventFilter, first: int, last: int) -> list[int]:
    """Return the numbers of the events that pass, from the records themselves."""
    return [event.envelope.sequence_number for event in event_filter.select(core.records[first - 1 : last])]


def index_up_to(data: Path, core: Core, number: int) -> EventIndex:
    """Return an index of the first events of a bus."""
    database = IndexDatabase(index_path(data, core.bus), core.bus)
    if number:
        database.add(core.records[:number])
    database.close()
    index = EventIndex(data, "", 1)
    chain_hash = core.records[number - 1].chain_hash if number else genesis_hash(core.bus)
    index._take({"bus": core.bus, "indexed": number, "chain_hash": chain_hash.hex()})
    return index


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(STEPS, st.lists(FILTERS, min_size=1, max_size=8), st.tuples(*[st.integers(0, 2**32)] * 3))
async def test_the_index_finds_what_a_scan_finds(steps: Sequence[Step], filters: list[EventFilter], choices: tuple[int, ...]) -> None:
    """Any combination of filters, on any range of any log, finds the same events with and without an index, wherever the index ends."""
    core = play(steps)
    log = await log_of(core)
    count = len(core.records)
    indexed, first, last = choices[0] % (count + 1), 1 + choices[1] % count, 1 + choices[2] % count
    with TemporaryDirectory() as data:
        index = index_up_to(Path(data), core, indexed)
        for event_filter in filters:
            expected = scan(core, event_filter, first, last)
            assert expected == await found(log, index, event_filter, first, last)
            assert expected == await found(log, None, event_filter, first, last)


async def test_queries_go_on_after_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds more than one query of the index names, or one read of the log takes, goes on behind it."""
    core = play_story()
    log, index = await log_of(core), index_up_to(tmp_path, core, len(core.records) - 3)
    event_filter = EventFilter(subject_prefix="order/")
    monkeypatch.setattr(searches, "QUERY_EVENTS_MAX", 5)
    monkeypatch.setattr(searches, "READ_EVENTS_MAX", 2)
    last = len(core.records)
    assert scan(core, event_filter, 1, last) == await found(log, index, event_filter, 1, last)


async def test_a_damaged_index_is_left_out(tmp_path: Path) -> None:
    """A search whose index cannot be read scans the log, and the index is no longer asked."""
    core = play_story()
    log, index = await log_of(core), index_up_to(tmp_path, core, len(core.records))
    path = index_path(tmp_path, BUS)
    path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
    path.write_bytes(b"not a database" * 100)
    event_filter = EventFilter(trace_id="trace-2")
    index._order = lambda **_: None  # type: ignore[method-assign]  # there is no worker to tell
    with capture_logs() as lines:
        assert scan(core, event_filter, 1, core.state.head) == await found(log, index, event_filter, 1, core.state.head)
    assert ["event_index.damaged"] == [line["event"] for line in lines]
    assert 0 == index.head(BUS)


async def test_an_index_of_lost_events_is_left_out(tmp_path: Path) -> None:
    """After a failover the log may have other events than the index: the search scans the log, and the index is no longer asked."""
    core = play_story()
    lost = core.records[-1]
    index = index_up_to(tmp_path, core, len(core.records))
    core.records[-1] = Record(lost.sequence_number, lost.envelope, b"\x01" * 32)
    log = await log_of(core)
    with sqlite3.connect(index_path(tmp_path, BUS)) as connection:
        connection.execute("UPDATE events SET trace_id = 'lost'")
    event_filter = EventFilter(trace_id="trace-2")
    with capture_logs() as lines:
        assert scan(core, event_filter, 1, core.state.head) == await found(log, index, event_filter, 1, core.state.head)
    assert (["event_index.refused"], 0) == ([line["event"] for line in lines], index.head(BUS))


async def test_a_row_of_another_event_is_not_believed(tmp_path: Path) -> None:
    """An event that the index names although it does not pass is not in the answer."""
    core = play_story()
    log, index = await log_of(core), index_up_to(tmp_path, core, len(core.records))
    with sqlite3.connect(index_path(tmp_path, BUS)) as connection:
        connection.execute("UPDATE events SET trace_id = 'trace-2'")
    event_filter = EventFilter(trace_id="trace-2")
    assert scan(core, event_filter, 1, core.state.head) == await found(log, index, event_filter, 1, core.state.head)


# Writing


async def write(writer: IndexWriter) -> None:
    """Bring an index up to its log."""
    while await writer.step():
        pass


async def test_an_index_goes_on_where_it_ended(tmp_path: Path) -> None:
    """A writer that is started again adds the events that its index lacks."""
    core = play_story()
    path = index_path(tmp_path, BUS)
    half = len(core.records) // 2
    index_up_to(tmp_path, core, half)
    writer = IndexWriter(await log_of(core), path)
    assert "" == await writer.open()
    assert half == writer.head.sequence_number
    await write(writer)
    assert len(core.records) == writer.head.sequence_number
    writer.close()
    reader = IndexReader(path)
    assert list(range(1, len(core.records) + 1)) == reader.select(EventFilter(), 1, 1_000, 1_000)
    reader.close()


@pytest.mark.parametrize("damage", ["bytes", "format", "bus", "other log", "longer"])
async def test_an_unusable_index_is_written_anew(tmp_path: Path, damage: str) -> None:
    """An index that is damaged, of another format, bus or log, or ahead of the log is removed with a reason, and is complete afterwards."""
    core = play_story()
    path = index_path(tmp_path, BUS)
    other = Core()
    other.pass_time(1)
    for _ in range(len(core.records) + 5):
        other.fact("order.status", "delivered")
    source, count = (other, {"other log": 5, "longer": len(core.records) + 3}.get(damage, 0)) if "l" in damage[-6:] else (core, 7)
    if damage == "bus":
        other_bus = Core(bus="other")
        database = IndexDatabase(path, "other")
        database.add(other_bus.records)
        database.close()
    else:
        index_up_to(tmp_path, source, count or 7)
    if damage == "format":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 2")
    if damage == "bytes":
        path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
        path.write_bytes(b"\0" * 10_000)
    writer = IndexWriter(await log_of(core), path)
    assert await writer.open()
    await write(writer)
    writer.close()
    reader = IndexReader(path)
    for event_filter in (EventFilter(), EventFilter(trace_id="trace-2"), EventFilter(outcomes=frozenset({1}))):
        assert scan(core, event_filter, 1, core.state.head) == reader.select(event_filter, 1, 1_000, 1_000)
    reader.close()


async def test_a_log_that_is_replaced_stops_the_writer(tmp_path: Path) -> None:
    """Events that do not follow those of the index, and a log that got shorter, are never added to it."""
    core = play_story()
    writer = IndexWriter(await log_of(core), index_path(tmp_path, BUS))
    await writer.open()
    await write(writer)
    for records in (core.records[:5], [*core.records, core.records[-1]]):
        broken = MemoryLog(BUS, lambda: START_MS)
        broken._records = list(records)
        broken._head = Head(len(records), records[-1].chain_hash)
        writer.log.__dict__.update(broken.__dict__)
        with pytest.raises(LogCorruptError):
            await writer.step()
    assert len(core.records) == writer.head.sequence_number
    writer.remove()
    assert [] == list((tmp_path / "index").iterdir())


def test_an_index_is_private(tmp_path: Path) -> None:
    """Only its owner may read an index."""
    core = Core()
    index_up_to(tmp_path, core, 1)
    assert {0o600} == {path.stat().st_mode & 0o777 for path in (tmp_path / "index").iterdir()}
    remove(index_path(tmp_path, BUS))
    assert isinstance(core.commands[0][0], OpenBus)
