"""Reads the events of a bus for a stream that follows it: the newest from memory, earlier ones from the log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from gavel_server.bus.sequencer import Sequencer
from gavel_server.fairness.byte_budget import ByteBudget
from gavel_server.fairness.turns import take_turn
from gavel_server.index.event_filter import EventFilter, SelectedEvent
from gavel_server.log import Record
from gavel_server.log.protocol import CHUNK_BYTES
from gavel_server.rpc.call_context import CallContext
from gavel_server.services.reads.log_reader import read_chunk

# Events in memory that a stream looks at in one turn: that takes less than a millisecond, more if their envelopes are large.
FOLLOW_EVENTS_MAX: Final = 512


class Scan(NamedTuple):
    """Events that pass a filter, and the last event that was looked at."""

    events: list[SelectedEvent]
    last: Record


class Follower:
    """One stream that follows a bus. What it holds of events that are not sent counts against `budget`."""

    def __init__(self, sequencer: Sequencer, event_filter: EventFilter, budget: ByteBudget, context: CallContext) -> None:
        self._sequencer: Final = sequencer
        self._filter: Final = event_filter
        self._budget: Final = budget
        self._caller: Final = context.caller
        self._address: Final = context.address

    async def scan(self, first: int, last: int) -> AsyncGenerator[Scan, None]:
        """Yield the events from `first` to `last` that pass, in parts, each a turn of the caller. Raises the errors of `read_chunk`."""
        number = first
        while number <= last:
            async with self._budget.reserve(self._address, 2 * CHUNK_BYTES) as reservation:
                await take_turn(self._caller)
                part = self._select_recent(number, last) or await self._select_earlier(number, last)
                reservation.shrink(sum([len(event.content) for event in part.events]))
                number = part.last.sequence_number + 1
                yield part
                del part  # its bytes are no longer reserved

    def _select_recent(self, first: int, last: int) -> Scan | None:
        """Return what passes of the events in memory, up to the event that reaches CHUNK_BYTES; None if the first is not in memory."""
        records = self._sequencer.tail.read(first, last, FOLLOW_EVENTS_MAX)
        if not records:
            return None
        events: list[SelectedEvent] = []
        size_bytes = 0
        for event in self._filter.select(records):
            events.append(event)
            size_bytes += len(event.content)
            if size_bytes >= CHUNK_BYTES:
                return Scan(events, records[event.envelope.sequence_number - records[0].sequence_number])
        return Scan(events, records[-1])

    async def _select_earlier(self, first: int, last: int) -> Scan:
        """Return what passes of one read of the log."""
        records = await read_chunk(self._sequencer.log, first, last)
        return Scan(list(self._filter.select(records)), records[-1])
