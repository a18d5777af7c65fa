"""The third pass of a replay, for logs with counters: it counts their past again, from the beginning of the log.

`Recomputation` takes the entries of `CounterFilled` from the log, as the server does. This pass proves that they are those of the events
before the counters were opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CounterEntry, CounterFilled
from gavel.v1.replay_service_pb2 import Divergence

from gavel_rules.counter_backlog import CounterBacklog
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.language.counters.counter import CompiledCounter
from gavel_rules.replay.errors import DivergedError
from gavel_rules.replay.integrity import decode


class RecordedFill:
    """One opening of counters, and the events that filled them."""

    def __init__(self, opened_at: int, counters: Iterable[CompiledCounter]) -> None:
        self.opened_at: Final = opened_at
        self.counters: Final = tuple(counters)
        self.events: Final[list[Envelope]] = []

    def awaits(self, filled: CounterFilled) -> bool:
        """Return whether an event fills one of these counters."""
        return filled.opened_at == self.opened_at and any(counter.digest == filled.digest for counter in self.counters)


class FillProof:
    """Compares recorded fills with the past. Feed every record from number 1 in order, up to `last`."""

    def __init__(self, bus: str, fills: Iterable[RecordedFill]) -> None:
        self._open: Final = [(fill, CounterBacklog(bus, fill.counters, fill.opened_at)) for fill in fills if fill.events]

    @property
    def last(self) -> int:
        """The last sequence number that is needed; 0 if nothing was filled."""
        return max((fill.opened_at - 1 for fill, _ in self._open), default=0)

    @property
    def backlogs(self) -> list[CounterBacklog]:
        """The backlogs that are still fed."""
        return [backlog for _, backlog in self._open]

    def feed(self, sequence_number: int, envelope_bytes: bytes) -> None:
        """Count one event, and compare the fills whose past it completes. Raises DivergedError if one differs."""
        envelope = decode(sequence_number, envelope_bytes)
        for fill, backlog in list(self._open):
            backlog.feed(envelope)
            if backlog.is_complete:
                _compare(fill, backlog)
                self._open.remove((fill, backlog))


def _compare(fill: RecordedFill, backlog: CounterBacklog) -> None:
    for counter in fill.counters:
        events = [event for event in fill.events if event.fact.counter_filled.digest == counter.digest]
        if not events:
            continue
        now_ms = milliseconds(events[-1].recorded_at)
        recorded = _entries((event.fact.counter_filled for event in events), now_ms)
        counted = _entries((filled for filled in backlog.fills(now_ms) if filled.digest == counter.digest), now_ms)
        is_complete = events[-1].fact.counter_filled.complete
        wrong = [entry_id for entry_id, entry in recorded.items() if counted.get(entry_id) != entry]
        missing = [entry_id for entry_id in counted if entry_id not in recorded] if is_complete else []
        if wrong or missing:
            raise _divergence(events[-1], counter, sorted([*wrong, *missing])[0])


def _entries(fills: Iterable[CounterFilled], now_ms: int) -> dict[str, CounterEntry]:
    """Return the entries that have not lapsed, by id."""
    return {
        entry.entry_id: entry
        for filled in fills
        for entry in filled.entries
        if not entry.HasField("lapses_at") or milliseconds(entry.lapses_at) > now_ms
    }


def _divergence(event: Envelope, counter: CompiledCounter, entry_id: str) -> DivergedError:
    message = f"event {event.sequence_number} fills counter {counter.name} with another past than the log has: see entry {entry_id}"
    return DivergedError(
        Divergence(sequence_number=event.sequence_number, event_id=event.event_id, kind="counter-mismatch", message=message)
    )
