"""The source of a Consumer's entries: a stream of WorkService (`work_stream`), or the queue in Redis itself (`work_queue`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from gavel.v1.envelope_pb2 import Envelope

# Names of the queues that have one form in Redis and one over gRPC, and the bus of clients that name none.
DECISIONS: Final = "decisions"
EXECUTIONS: Final = "executions"
BUS_DEFAULT: Final = "default"
# Silence of a consumer after which other consumers claim its entries.
MIN_IDLE_MS_DEFAULT: Final = 30_000
# Longest wait of one read, and thus the longest time that a stop waits for a read.
BLOCK_MS: Final = 200
# First cursor of `claim`, which it also returns at the end of the queue.
START: Final = "0-0"


class WorkEntry(Protocol):
    """An entry of a work queue."""

    @property
    def entry_id(self) -> str:
        """Its id in the queue."""

    def envelope(self) -> Envelope:
        """Return the event with its chain hash. Raises WorkQueueError if the entry is damaged."""


class WorkSource(Protocol):
    """One consumer of one work queue. Every method waits until the queue can be reached; `problem` is the reason.

    An entry of a silent consumer is delivered to another one after `silence_ms_max`.
    """

    @property
    def key(self) -> str:
        """The queue's name, for messages."""

    @property
    def problem(self) -> str:
        """The reason why no entry can be taken now, as a sentence, or ""."""

    @property
    def silence_ms_max(self) -> int:
        """Silence of a consumer after which its entries are delivered to others: it sends three heartbeats, and claims
        three times, in this time."""

    async def read(self) -> WorkEntry | None:
        """Return the next new entry, or None if there is none for a moment."""

    async def claim(self, cursor: str) -> tuple[str, WorkEntry | None]:
        """Return the next cursor and an entry that another consumer has left, if any."""

    async def heartbeat(self, entry_ids: Sequence[str]) -> None:
        """Signal that entries are still being processed."""

    async def postpone(self, entry_id: str) -> None:
        """Leave an entry for another consumer or a later delivery, because it could not be processed."""

    async def release(self, entry_id: str) -> None:
        """Give up an entry, because this consumer stops."""

    async def acknowledge(self, entry_id: str) -> None:
        """Acknowledge an entry for this group."""

    async def delete(self, entry_id: str) -> None:
        """Acknowledge an entry whose work has ended in the log."""

    async def trim(self, sequence_number: int) -> None:
        """Remove all entries before `sequence_number`, because their work has ended in the log."""

    def note_pauses(self, count: int) -> None:
        """Note that `count` entries pause without a slot, so that others can be taken meanwhile."""

    async def leave(self) -> None:
        """Take no more entries."""

    async def close(self) -> None:
        """Close the connections."""
