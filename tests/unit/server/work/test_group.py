"""A group of consumers on one server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gavel_server.log import LogUnavailableError, NotReplicatedError, Record, empty_head
from gavel_server.log.memory import MemoryLog
from gavel_server.process import time_slice
from gavel_server.work.group import WorkGroup
from gavel_server.work.limits import SILENCE_MS_MAX
from gavel_server.work.permissions import Traits
from gavel_server.work.stream import Item, UnsentBytes, WorkStream

from tests.support.entries import NOW_MS, entries_after
from tests.support.turns import other_turns
from tests.unit.server.work.decisions import append_decisions

ITEMS = 30


async def accept(_: int) -> None:
    """Confirm every event."""


async def group_of_two() -> tuple[WorkGroup, WorkStream, WorkStream]:
    """Return a group of a queue with three decisions, a stream of it that takes none of them, and one that takes all."""
    log = MemoryLog("test", clock=lambda: NOW_MS)
    await append_decisions(log, 3)
    replica = SimpleNamespace(state=SimpleNamespace(grants_in_force=None))
    sequencer: Any = SimpleNamespace(bus="test", log=log, confirm=accept, replica=replica)
    group = WorkGroup(sequencer, "decisions", "executors")
    reader, taker = (WorkStream("caller", labels, 16, 16, UnsentBytes(), log.work, lambda _: True) for labels in (["none"], []))
    group.join(reader)
    group.join(taker)
    return group, reader, taker


async def given_back(stream: WorkStream) -> dict[int, int]:
    """Take the items that others can take at once; return their deliveries."""
    numbers = await stream.work.idle("decisions", "executors", SILENCE_MS_MAX, 0, 9)
    entries = await stream.work.claim("decisions", "executors", "another", numbers, SILENCE_MS_MAX)
    return {entry.sequence_number: entry.deliveries for entry in entries}


async def test_other_tasks_run_while_a_new_stream_is_asked_for_many_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """If grants make each question whether a stream takes an item take a slice's time, other tasks run after each one."""
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", -1.0)
    log = MemoryLog("test", clock=lambda: NOW_MS)
    sequencer: Any = SimpleNamespace(bus="test", log=log)
    group = WorkGroup(sequencer, "decisions", "executors")
    group._unwanted.update({number: Traits(f"kind-{number % 2}", "", "order/1") for number in range(ITEMS)})
    async with other_turns() as turns:
        group.join(WorkStream("caller", ["kind-1"], 16, 16, UnsentBytes(), log.work, lambda _: True))
        assert 0 == turns.count
        await group._look_again()
    assert turns.count >= ITEMS
    assert list(range(0, ITEMS, 2)) == list(group._unwanted)
    await log.close()


async def test_items_go_back_if_one_cannot_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the log fails while an item is given to another stream, this item goes back like those after it, uncounted."""
    group, reader, taker = await group_of_two()

    async def fail(*_: Any) -> bool:
        raise LogUnavailableError("no reply")

    monkeypatch.setattr(reader.work, "transfer", fail)
    with pytest.raises(LogUnavailableError):
        await group._deliver(reader, await reader.work.take_new("decisions", "executors", reader.consumer, 9))
    assert ({1: 1, 2: 1, 3: 1}, []) == (await given_back(reader), taker.numbers)


async def test_an_item_goes_back_if_its_stream_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that is given to another stream, which ends before it gets the item, is given back at once, uncounted."""
    group, reader, taker = await group_of_two()
    transfer = reader.work.transfer

    async def transfer_and_end(*arguments: Any) -> bool:
        is_held = await transfer(*arguments)
        group.remove(taker)
        return is_held

    monkeypatch.setattr(reader.work, "transfer", transfer_and_end)
    await group._deliver(reader, await reader.work.take_new("decisions", "executors", reader.consumer, 1))
    assert {1: 1} == await given_back(reader)


@pytest.mark.parametrize("is_reachable", [True, False])
async def test_items_of_trimmed_events(is_reachable: bool) -> None:
    """An item whose event was trimmed is delivered with it from the archive; one that cannot be read delays no other one."""
    log = MemoryLog("test", clock=lambda: NOW_MS)
    await append_decisions(log, 3)
    stored = await log.read_many([1, 2, 3])

    async def read_many(numbers: list[int]) -> dict[int, Record]:
        assert [1, 2] == numbers
        if not is_reachable:
            raise LogUnavailableError("no archive")
        return {1: stored[1]}

    sequencer: Any = SimpleNamespace(bus="test", log=SimpleNamespace(work=log.work, read_many=read_many), confirm=accept)
    group = WorkGroup(sequencer, "decisions", "executors")
    stream = WorkStream("caller", [], 16, 16, UnsentBytes(), log.work, lambda _: True)
    group.join(stream)
    entries = await log.work.take_new("decisions", "executors", stream.consumer, 9)
    trimmed = [entry._replace(envelope=b"", chain_hash=b"") for entry in entries[:2]]
    await group._deliver(stream, [*trimmed, *entries[2:]])
    delivered = [1, 3] if is_reachable else [3]
    assert delivered == stream.numbers
    for number in delivered:
        item = await stream.next()
        assert isinstance(item, Item)
        assert (stored[number], 1) == (Record(*item.entry[:3]), item.entry.deliveries)
    assert {} == await given_back(stream)
    unread = [2] if is_reachable else [1, 2]
    back = await log.work.claim("decisions", "executors", "another", unread, 0)
    assert [(number, 1) for number in unread] == [(entry.sequence_number, entry.deliveries) for entry in back]
    await log.close()


async def test_items_that_nobody_got_are_not_counted_as_delivered() -> None:
    """If a group cannot confirm what it has taken, the items go back, and their deliveries do not count."""
    log = MemoryLog("test", clock=lambda: NOW_MS)
    await log.work.join("decisions", "executors", "one")
    await log.append(empty_head("test"), entries_after(empty_head("test"), 3, works=("decisions",)), NOW_MS, [])

    async def refuse(_: int) -> None:
        raise NotReplicatedError("no replica")

    sequencer: Any = SimpleNamespace(bus="test", log=log, confirm=refuse)
    group = WorkGroup(sequencer, "decisions", "executors")
    stream = WorkStream("caller", [], 16, 16, UnsentBytes(), log.work, lambda _: True)
    group.join(stream)
    for _ in range(3):
        taken = await log.work.take_new("decisions", "executors", stream.consumer, 9)
        entries = taken or await log.work.claim("decisions", "executors", stream.consumer, [1, 2, 3], 0)
        assert [1, 1, 1] == [entry.deliveries for entry in entries]
        with pytest.raises(NotReplicatedError):
            await group._deliver(stream, entries)
    await log.close()
