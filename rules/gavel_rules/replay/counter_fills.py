"""The third pass of a replay, for logs with counters: it counts their past again, from the beginning of the log.

`Recomputation` takes the entries of `CounterFilled` from the log, as the server does. This pass proves that they are those of the events
before the counters were opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CounterEntry, CounterFilled
from gavel.v1.replay_service_pb2 import Divergence

from gavel_rules.counter_backlog import CounterBacklog
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.language.counters.counter import CompiledCounter
from gavel_rules.replay.errors import DivergedError
from gavel_rules.replay.integrity import decode
from gavel_rules.state.counters import ALL_GROUPS, CounterFault
from gavel_rules.state.records import DeployedRuleSet
from gavel_rules.state.state import State


class RecordedFill:
    """One opening of counters of a deployed rule set, and the events that filled them."""

    def __init__(self, opened_at: int, rule_set: DeployedRuleSet, digests: Iterable[str]) -> None:
        """`opened_at` is the sequence number of the opening, `digests` are those of the counters."""
        self.opened_at: Final = opened_at
        self.rule_set: Final = rule_set
        self.digests: Final = frozenset(digests)
        self.events: Final[list[Envelope]] = []

    @property
    def counters(self) -> list[CompiledCounter]:
        """The counters."""
        return [counter for counter in self.rule_set.rule_set.counters.values() if counter.digest in self.digests]

    def awaits(self, filled: CounterFilled) -> bool:
        """Return whether an event fills one of these counters."""
        return filled.opened_at == self.opened_at and filled.digest in self.digests


class FillProof:
    """Compares recorded fills with the past. Feed every record from number 1 in order, up to `last`, then compare."""

    def __init__(self, bus: str, fills: Iterable[RecordedFill]) -> None:
        self._backlogs: Final = [(fill, CounterBacklog(bus, fill.counters, fill.opened_at)) for fill in fills if fill.events]

    @property
    def last(self) -> int:
        """The last sequence number that is needed; 0 if nothing was filled."""
        return max((fill.opened_at - 1 for fill, _ in self._backlogs), default=0)

    @property
    def states(self) -> list[State]:
        """The states that count the past."""
        return [backlog.state for _, backlog in self._backlogs]

    def feed(self, sequence_number: int, envelope_bytes: bytes) -> None:
        """Count one event. Raises DamagedError if the bytes are not an envelope."""
        envelope = decode(sequence_number, envelope_bytes)
        for _, backlog in self._backlogs:
            backlog.feed(envelope)

    def compare(self) -> Iterator[None]:
        """Compare the fills with the past in steps, after which a caller may do something else. Raises DivergedError if one differs."""
        for fill, backlog in self._backlogs:
            for counter in fill.counters:
                events = [event for event in fill.events if event.fact.counter_filled.digest == counter.digest]
                if events:
                    yield from _compare(events, counter, backlog)


def _compare(events: list[Envelope], counter: CompiledCounter, backlog: CounterBacklog) -> Iterator[None]:
    """Compare the events that fill a counter with its past."""
    now_ms = milliseconds(events[-1].recorded_at)
    recorded: dict[str, CounterEntry] = {}
    last = events[-1].fact.counter_filled
    differences: list[str] = []
    for event in events:
        page = event.fact.counter_filled
        for entry in page.entries:
            if entry.entry_id in recorded:
                differences.append(entry.entry_id)
            recorded[entry.entry_id] = entry
        if not page.complete and _faults(page, now_ms):
            raise _divergence(event, counter, "only its last event says which groups give no number")
        yield None
    recorded = {entry_id: entry for entry_id, entry in recorded.items() if _counts(entry, now_ms)}
    for filled in backlog.fill_steps(now_ms, [counter.digest]):
        counted = _entries(filled, now_ms) if filled is not None else {}
        for entry_id, entry in counted.items():
            if entry_id in recorded:
                if recorded.pop(entry_id) != entry:
                    differences.append(entry_id)
            elif last.complete:
                differences.append(entry_id)
        if filled is not None and filled.complete and last.complete and _faults(filled, now_ms) != _faults(last, now_ms):
            raise _divergence(events[-1], counter, "see what it says of groups without a number")
        yield None
    differences.extend(recorded)
    if differences:
        raise _divergence(events[-1], counter, f"see entry {min(differences)}")


def _entries(filled: CounterFilled, now_ms: int) -> dict[str, CounterEntry]:
    """Return the entries that have not lapsed, by id."""
    return {entry.entry_id: entry for entry in filled.entries if _counts(entry, now_ms)}


def _counts(entry: CounterEntry, now_ms: int) -> bool:
    return not entry.HasField("lapses_at") or milliseconds(entry.lapses_at) > now_ms


def _faults(filled: CounterFilled, now_ms: int) -> list[tuple[str, CounterFault]]:
    """Return why groups give no number, and until when, without what has ended."""
    full = (ALL_GROUPS, CounterFault(milliseconds(filled.full_until), filled.full_sequence_number))
    others = [(fault.group, CounterFault(milliseconds(fault.until), fault.sequence_number)) for fault in filled.faults]
    return [(group, fault) for group, fault in (full, *others) if fault.until_ms > now_ms]


def _divergence(event: Envelope, counter: CompiledCounter, hint: str) -> DivergedError:
    message = f"event {event.sequence_number} fills counter {counter.name} with another past than the log has: {hint}"
    return DivergedError(
        Divergence(sequence_number=event.sequence_number, event_id=event.event_id, kind="counter-mismatch", message=message)
    )
