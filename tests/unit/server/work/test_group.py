"""A group of consumers on one server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gavel_server.log.memory import MemoryLog
from gavel_server.process import time_slice
from gavel_server.work.group import WorkGroup
from gavel_server.work.permissions import Traits
from gavel_server.work.stream import UnsentBytes, WorkStream

from tests.support.entries import NOW_MS
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
