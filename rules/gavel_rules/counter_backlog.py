"""The past of counters: the entries of the events before a counter was opened.

Transitions count the events after a `CountersOpened`. The server feeds the events before it to a backlog, and records the entries that
have not lapsed as `CounterFilled`. A replay does the same and compares. The log alone therefore gives the state of every counter.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CounterEntry as EntryMessage
from gavel.v1.fact_pb2 import CounterFilled

from gavel_rules.events.timestamps import set_timestamp
from gavel_rules.language.counters.counter import NEVER_MS, CompiledCounter
from gavel_rules.state.counters import ALL_GROUPS, CounterEntry, CounterTable
from gavel_rules.state.state import State
from gavel_rules.state.transitions.counters import open_counters

# Entries in one event, which is decided at once: about a millisecond. An entry with a long group and text takes about 1 KB.
ENTRIES_PER_FILL_MAX: Final = 100
# Entries that one step sorts: about a millisecond.
ENTRIES_PER_SORT: Final = 500


class CounterBacklog:
    """Counts the events of a log before `opened_at`, fed in order from the first."""

    def __init__(self, bus: str, counters: Iterable[CompiledCounter], opened_at: int) -> None:
        self.state: Final = State(bus)
        self._opened_at: Final = opened_at
        counters = tuple(counters)
        open_counters(self.state.store, counters, is_pinned=True)
        self._digests: Final = sorted({counter.digest for counter in counters})

    def feed(self, envelope: Envelope) -> None:
        """Count the next event. Events from `opened_at` on are left out: the counters count them themselves."""
        if envelope.sequence_number < self._opened_at:
            self.state.apply(envelope)
            self.state.commit()

    def fills(self, now_ms: int) -> Iterator[CounterFilled]:
        """Yield the events that fill the counters, in order, without the entries that have lapsed by `now_ms`.

        The last event of each counter is `complete`.
        """
        for filled in self.fill_steps(now_ms):
            if filled is not None:
                yield filled

    def fill_steps(self, now_ms: int, digests: Iterable[str] = ()) -> Iterator[CounterFilled | None]:
        """Yield the events of `fills`, and None after each step of sorting: a caller may do something else between two steps.

        `digests` leave out the other counters.
        """
        for digest in sorted(digests or self._digests):
            table = self.state.counters[digest]
            remaining = iter(table.entries.values())
            runs: list[list[CounterEntry]] = []
            count = 0
            while read := list(islice(remaining, ENTRIES_PER_SORT)):
                run = sorted([entry for entry in read if entry.lapses_at_ms > now_ms], key=_place)
                runs.append(run)
                count += len(run)
                yield None
            entries = heapq.merge(*runs, key=_place)
            for start in range(0, max(count, 1), ENTRIES_PER_FILL_MAX):
                filled = CounterFilled(
                    digest=digest, entries=map(_message, islice(entries, ENTRIES_PER_FILL_MAX)), opened_at=self._opened_at
                )
                filled.complete = start + ENTRIES_PER_FILL_MAX >= count
                if filled.complete:
                    _add_faults(filled, table, now_ms)
                yield filled


def _place(entry: CounterEntry) -> tuple[int, str]:
    return entry.sequence_number, entry.entry_id


def _add_faults(filled: CounterFilled, table: CounterTable, now_ms: int) -> None:
    """State which event groups miss, or all groups may, and until when."""
    for group, fault in sorted(table.faults.items()):
        if fault.until_ms <= now_ms:
            continue
        if group == ALL_GROUPS:
            set_timestamp(filled.full_until, fault.until_ms)
            filled.full_sequence_number = fault.sequence_number
        else:
            set_timestamp(filled.faults.add(group=group, sequence_number=fault.sequence_number).until, fault.until_ms)


def _message(entry: CounterEntry) -> EntryMessage:
    message = EntryMessage(entry_id=entry.entry_id, group=entry.group, sequence_number=entry.sequence_number)
    if isinstance(entry.value, str):
        message.text = entry.value
    else:
        message.amount = entry.value
    if entry.lapses_at_ms != NEVER_MS:
        set_timestamp(message.lapses_at, entry.lapses_at_ms)
    return message
