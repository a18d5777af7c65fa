"""The streams that a server opens and ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from gavel_server.log.memory import MemoryLog
from gavel_server.log.work.protocol import WorkEntry
from gavel_server.work.groups import ConsumerSettings, WorkGroups
from gavel_server.work.limits import SILENCE_MS_MAX

from tests.support.entries import NOW_MS
from tests.unit.server.work.decisions import append_decisions

GROUP = "executors"


class Bus:
    """What groups need of a sequencer."""

    bus = "test"
    is_used = False

    def __init__(self, log: MemoryLog, replica: Any) -> None:
        self.log = log
        self.replica = replica

    async def confirm(self, _: int) -> None:
        """Confirm every event."""


@pytest.mark.parametrize("items", [0, 3])
async def test_the_last_stream_ends_while_its_group_reads(items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a group reads for a stream that ends meanwhile is given back at once, uncounted; a consumer without items leaves the group."""
    log = MemoryLog("test", clock=lambda: NOW_MS)
    await append_decisions(log, items)
    reads, is_reading, may_read, has_left = [], asyncio.Event(), asyncio.Event(), asyncio.Event()
    take_new, release = log.work.take_new, log.work.release

    async def take_late(*arguments: Any) -> list[WorkEntry]:
        async def read() -> list[WorkEntry]:
            await may_read.wait()
            return await take_new(*arguments)

        # A cancelled call is carried out by the store all the same.
        reads.append(asyncio.ensure_future(read()))
        is_reading.set()
        return await asyncio.shield(reads[-1])

    async def note_release(*arguments: Any) -> None:
        await release(*arguments)
        has_left.set()

    monkeypatch.setattr(log.work, "take_new", take_late)
    monkeypatch.setattr(log.work, "release", note_release)
    replica = SimpleNamespace(closing=False, work_listeners=set(), state=SimpleNamespace(grants_in_force=None))
    sequencer: Any = Bus(log, replica)

    async def consume() -> None:
        settings = ConsumerSettings("decisions", GROUP, [], 16, 1, 0)
        async with WorkGroups().open(sequencer, settings, "caller", lambda _: True):
            await is_reading.wait()

    consumer = asyncio.create_task(consume())
    await asyncio.wait({consumer, asyncio.ensure_future(has_left.wait())}, return_when=asyncio.FIRST_COMPLETED)
    may_read.set()
    await asyncio.gather(consumer, *reads)
    idle = await log.work.idle("decisions", GROUP, SILENCE_MS_MAX, 0, 9)
    entries = await log.work.claim("decisions", GROUP, "another", idle, SILENCE_MS_MAX)
    assert [(number, 1) for number in range(1, items + 1)] == [(entry.sequence_number, entry.deliveries) for entry in entries]
    if not items:
        assert [0] == [group.members for group in await log.work.groups()]
    assert not replica.work_listeners
    await log.close()


@pytest.mark.parametrize("is_own", [True, False])
async def test_streams_of_the_server_keep_no_bus_open(is_own: bool) -> None:
    """A stream of a caller keeps its bus in memory, one of the server's own reactor does not."""
    log = MemoryLog("test", clock=lambda: NOW_MS)
    await append_decisions(log, 1)
    replica = SimpleNamespace(closing=False, work_listeners=set(), state=SimpleNamespace(grants_in_force=None))
    sequencer: Any = Bus(log, replica)
    settings = ConsumerSettings("decisions", GROUP, (), 1, 5, SILENCE_MS_MAX)
    async with WorkGroups().open(sequencer, settings, "unix:", lambda _: True, is_own=is_own) as stream:
        assert await stream.next() is not None
    assert is_own is not sequencer.is_used
