"""Trimming of the work queues."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from gavel.v1.projection_service_pb2 import PENDING_PHASE_APPROVED
from gavel_server.log import LogUnavailableError
from gavel_server.log.work.protocol import QUEUES, QueueName
from gavel_server.work import trimming
from gavel_server.work.trimming import READ_EVENTS_MAX, ROUND_ENTRIES_MAX, STEP_ENTRIES, QueueTrimmer
from structlog.testing import capture_logs

ENTRIES = ROUND_ENTRIES_MAX // STEP_ENTRIES + 10


class Queues:
    """Work queues that each hold the events 1 to `entries`. A page has at most `page` numbers."""

    def __init__(self, entries: int, page: int = STEP_ENTRIES) -> None:
        self.entries = {queue: list(range(1, entries + 1)) for queue in QUEUES}
        self._page = page

    async def numbers(self, queue: QueueName, after: int, count: int) -> list[int]:
        """See WorkQueues."""
        return [number for number in self.entries[queue] if number > after][: min(count, self._page)]

    async def remove(self, queue: QueueName, numbers: list[int]) -> None:
        """See WorkQueues."""
        self.entries[queue] = [number for number in self.entries[queue] if number not in numbers]


class Log:
    """A log that holds no events, and cannot read the event `unreadable`. `reads` counts the events of each read."""

    def __init__(self, work: Queues, unreadable: int = 0) -> None:
        self.work = work
        self.reads: list[int] = []
        self.unreadable = unreadable

    async def read_many(self, numbers: Sequence[int]) -> dict[int, Any]:
        """See EventLog."""
        self.reads.append(len(numbers))
        if self.unreadable in numbers:
            raise LogUnavailableError("no answer")
        return {}


def trimmer_of(log: Log, live: Sequence[int] = ()) -> QueueTrimmer:
    """Return the trimmer of a bus with approved decisions of these numbers."""
    decisions = {f"id-{number}": SimpleNamespace(phase=PENDING_PHASE_APPROVED, sequence_number=number, grant=None) for number in live}

    async def confirmed_state() -> Any:
        return SimpleNamespace(head=1_000_000, decisions=decisions)

    sequencer: Any = SimpleNamespace(bus="b", log=log, confirmed_state=confirmed_state)
    return QueueTrimmer(sequencer)


async def test_short_pages_do_not_shorten_a_round() -> None:
    """A round examines as many entries as it may, however few each page has."""
    work = Queues(ENTRIES, page=1)
    await trimmer_of(Log(work)).trim()
    assert ([], []) == (work.entries["decisions"], work.entries["executions"])


async def test_few_events_are_read_at_once() -> None:
    """Executions are read a few at a time, as each may have 1 MiB, and ended ones leave the queue before the next ones are read."""
    log = Log(Queues(10 * READ_EVENTS_MAX), unreadable=3 * READ_EVENTS_MAX)
    with pytest.raises(LogUnavailableError):
        await trimmer_of(log).trim()
    assert [READ_EVENTS_MAX] * 3 == log.reads
    assert 2 * READ_EVENTS_MAX + 1 == log.work.entries["executions"][0]


async def test_live_entries_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round goes on where the last one ended, so ended entries behind a round of live ones are removed; new ends at the start are too."""
    monkeypatch.setattr(trimming, "ROUND_ENTRIES_MAX", STEP_ENTRIES)
    work = Queues(2 * STEP_ENTRIES + 1)
    trimmer = trimmer_of(Log(work), live=range(1, STEP_ENTRIES + 1))
    for _ in range(3):
        await trimmer.trim()
    assert list(range(1, STEP_ENTRIES + 1)) == work.entries["decisions"]
    work.entries["decisions"] = [1, STEP_ENTRIES + 1]
    for _ in range(2):
        await trimmer.trim()
    assert [1] == work.entries["decisions"]


async def test_an_unreadable_event_hides_nothing() -> None:
    """Entries behind an event that cannot be read are removed in the next round. The failure is a warning each time that it is repeated."""
    log = Log(Queues(2 * READ_EVENTS_MAX), unreadable=1)
    trimmer = trimmer_of(log)
    with capture_logs() as lines:
        for _ in range(5):
            await trimmer.run_round()
        assert list(range(1, READ_EVENTS_MAX + 1)) == log.work.entries["executions"]
        log.unreadable = 0
        for _ in range(2):
            await trimmer.run_round()
    assert [] == log.work.entries["executions"]
    assert ["info", "warning", "warning"] == [line["log_level"] for line in lines if line["event"] == "work.not_trimmed"]
