"""How many events the next read of a log asks for: so many that the reply has about CHUNK_BYTES.

Redis limits a read by its number of entries only, and an event has between some hundred bytes and 1 MiB. The size of the next entries is
learned from the last ones. Where small events are followed by large ones, one reply exceeds CHUNK_BYTES, by at most its number of events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gavel_server.log.entries import Record

CHUNK_BYTES: Final = 1024 * 1024
FIRST_EVENTS: Final = 16


class ChunkSize:
    """The size of the chunks of one scan, from `events` on: at most `events_max`, and at most twice the chunk before."""

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        self.events = min(FIRST_EVENTS, events_max)

    def learn(self, chunk: Sequence[Record]) -> None:
        """Learn from the chunk that was read last."""
        largest_bytes = max(len(record.envelope) for record in chunk)
        self.events = max(1, min(2 * self.events, self._events_max, CHUNK_BYTES // max(largest_bytes, 1)))
