"""Trimming of the work queues."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gavel_server.log.work.protocol import QUEUES, QueueName
from gavel_server.work.trimming import ROUND_ENTRIES_MAX, STEP_ENTRIES, trim

ENTRIES = ROUND_ENTRIES_MAX // STEP_ENTRIES + 10


class ShortPages:
    """Work queues whose pages have one number each, as those of large envelopes."""

    def __init__(self) -> None:
        self.entries = {queue: list(range(1, ENTRIES + 1)) for queue in QUEUES}

    async def numbers(self, queue: QueueName, after: int, count: int) -> list[int]:
        """See WorkQueues."""
        return [number for number in self.entries[queue] if number > after][: min(count, 1)]

    async def remove(self, queue: QueueName, numbers: list[int]) -> None:
        """See WorkQueues."""
        self.entries[queue] = [number for number in self.entries[queue] if number not in numbers]


async def test_short_pages_do_not_shorten_a_round() -> None:
    """A round examines as many entries as it may, however few each page has."""
    work = ShortPages()

    async def confirmed_state() -> Any:
        return SimpleNamespace(head=ENTRIES, decisions={})

    async def read_many(_: list[int]) -> dict[int, Any]:
        return {}

    sequencer: Any = SimpleNamespace(log=SimpleNamespace(work=work, read_many=read_many), confirmed_state=confirmed_state)
    await trim(sequencer)
    assert ([], []) == (work.entries["decisions"], work.entries["executions"])
