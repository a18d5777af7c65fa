"""Triggers: the events that wake an agent, their windows and their priority (constitution §9.1).

A Trigger selects events by category, name and subject. The first matching event opens a window. Matching events join it until it
closes; then the trigger fires once for all of them. `TriggerWindows` implements this as a pure state machine over events and
times; `trigger_subscription` feeds it from the log. Every trigger has its own position, the first event that it has not handled,
so that a restart does not repeat the firings of other triggers.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from gavel.v1.common_pb2 import EventCategory
from gavel.v1.envelope_pb2 import Envelope

FIRED: Final = "TriggerFired"
# A window with this many events closes at once.
WINDOW_EVENTS_MAX: Final = 1_000
WINDOW_MS_MAX: Final = 24 * 60 * 60 * 1000
PRIORITY_MAX: Final = 1_000_000

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")


def find_problems(name: str, window_ms: int = 0, priority: int = 0) -> dict[str, str]:
    """Return the problems of a trigger's arguments, by argument."""
    problems: dict[str, str] = {}
    if not _NAME.match(name):
        problems["name"] = f"the trigger's name {name!r} must be a lower-case letter and up to 63 characters of a-z, 0-9, _ and -"
    if not 0 <= window_ms <= WINDOW_MS_MAX:
        problems["window_ms"] = f"window_ms of {name} is {window_ms}; it must be between 0 and {WINDOW_MS_MAX}"
    if abs(priority) > PRIORITY_MAX:
        problems["priority"] = f"priority of {name} is {priority}; it must be between -{PRIORITY_MAX} and {PRIORITY_MAX}"
    return problems


@dataclass(frozen=True)
class Trigger:
    """A selection of events that wake an agent. An empty filter passes all events; a filter passes if any of its entries matches.

    `categories`: e.g. EVENT_CATEGORY_FACT_EVENT. `event_names` and `subjects`: case-sensitive shell patterns over the whole text,
    e.g. "Order*", "order/*". `window_ms`: duration of a window after its first event; 0: one firing for each event. `priority`:
    of several triggers that are due, the one with the highest priority fires first.
    """

    name: str
    categories: frozenset[EventCategory.ValueType] = frozenset()
    event_names: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    window_ms: int = 0
    priority: int = 0

    def __post_init__(self) -> None:
        """Check the arguments. Raises ValueError with all problems."""
        problems = find_problems(self.name, self.window_ms, self.priority)
        if problems:
            raise ValueError("; ".join(problems.values()))

    def matches(self, event: Envelope) -> bool:
        """Report whether an event passes all filters."""
        return (
            (not self.categories or event.event_category in self.categories)
            and (not self.event_names or any(fnmatchcase(event.event_name, pattern) for pattern in self.event_names))
            and (not self.subjects or any(fnmatchcase(event.subject, pattern) for pattern in self.subjects))
        )


@dataclass(frozen=True)
class Firing:
    """One wake-up of an agent: the trigger and its events, oldest first."""

    trigger: Trigger
    events: Sequence[Envelope]


@dataclass
class _Window:
    closes_at_ms: float
    events: list[Envelope] = field(default_factory=list)


class TriggerWindows:
    """Collects events into firings. Times are milliseconds on one monotonic clock.

    `positions` holds the first sequence number that each trigger has not handled; the default is `start`.
    """

    def __init__(self, triggers: Sequence[Trigger], positions: Mapping[str, int], start: int) -> None:
        names = [trigger.name for trigger in triggers]
        if not triggers:
            raise ValueError("triggers is empty; a subscription needs at least one trigger")
        if len(set(names)) != len(names):
            raise ValueError(f"two triggers are called {next(name for name in names if names.count(name) > 1)}; names must differ")
        self._triggers = sorted(triggers, key=lambda trigger: (-trigger.priority, trigger.name))
        self._from = {trigger.name: positions.get(trigger.name, start) for trigger in triggers}
        # Windows of each trigger, oldest first; only the last one takes events.
        self._windows: dict[str, deque[_Window]] = {trigger.name: deque() for trigger in triggers}
        self._next = min(self._from.values())
        self._event_count = 0

    @property
    def next_sequence_number(self) -> int:
        """The first sequence number that has not been offered."""
        return self._next

    @property
    def event_count(self) -> int:
        """The number of events in windows; an event counts once for each window that it is in."""
        return self._event_count

    def positions(self) -> dict[str, int]:
        """Return the first sequence number that each trigger has not handled, by the trigger's name."""
        return {
            name: windows[0].events[0].sequence_number if windows else max(self._from[name], self._next)
            for name, windows in self._windows.items()
        }

    def skip(self, sequence_number: int) -> None:
        """Advance past a checkpoint: no event up to `sequence_number` matches a trigger."""
        self._next = max(self._next, sequence_number + 1)

    def offer(self, event: Envelope, now_ms: float) -> None:
        """Offer an event to all triggers. Call this once for each event, in order."""
        for trigger in self._triggers:
            if event.sequence_number >= self._from[trigger.name] and trigger.matches(event):
                windows = self._windows[trigger.name]
                if not windows or windows[-1].closes_at_ms <= now_ms or len(windows[-1].events) >= WINDOW_EVENTS_MAX:
                    windows.append(_Window(now_ms + trigger.window_ms))
                windows[-1].events.append(event)
                self._event_count += 1
                if len(windows[-1].events) == WINDOW_EVENTS_MAX:
                    windows[-1].closes_at_ms = now_ms
        self.skip(event.sequence_number)

    def due(self, now_ms: float) -> Firing | None:
        """Return the due firing of highest priority, or None. It stays due until `complete`."""
        for trigger in self._triggers:
            windows = self._windows[trigger.name]
            if windows and windows[0].closes_at_ms <= now_ms:
                return Firing(trigger, tuple(windows[0].events))
        return None

    def next_due_ms(self) -> float | None:
        """Return the time at which the next window closes, or None."""
        return min((windows[0].closes_at_ms for windows in self._windows.values() if windows), default=None)

    def complete(self, firing: Firing) -> None:
        """Remove a due firing that has been handled."""
        self._event_count -= len(self._windows[firing.trigger.name].popleft().events)
