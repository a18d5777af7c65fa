"""A group of consumers on one server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gavel_server.log import NotReplicatedError, empty_head
from gavel_server.log.memory import MemoryLog
from gavel_server.process import time_slice
from gavel_server.work.group import WorkGroup
from gavel_server.work.permissions import Traits
from gavel_server.work.stream import UnsentBytes, WorkStream

from tests.support.entries import NOW_MS, entries_after
from tests.support.turns import other_turns

ITEMS = 30


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
