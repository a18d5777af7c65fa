"""What wakes an agent: which events, gathered for how long, and what goes first (seeds 002 §9.1).

A Trigger names events by category, name and subject. The first event that matches opens its window; what else matches until the
window closes joins, and then the trigger fires once for all of them. `TriggerWindows` does that from events and moments
alone: it reads no clock and calls nobody; `trigger_subscription` feeds it from the log. Every trigger has a position of
its own, the first event that it has still to answer for, so that a restart repeats nothing that another trigger has answered.
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
# A window with so many events closes at once.
WINDOW_EVENTS_MAX: Final = 1_000
WINDOW_MS_MAX: Final = 24 * 60 * 60 * 1000
PRIORITY_MAX: Final = 1_000_000

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")


def mistakes_of(name: str, window_ms: int = 0, priority: int = 0) -> dict[str, str]:
    """Return what cannot be meant of a trigger: the argument, and what is wrong with it."""
    found: dict[str, str] = {}
    if not _NAME.match(name):
        found["name"] = f"the trigger's name {name!r} is not a lower-case letter and up to 63 of a-z, 0-9, _ and -"
    if not 0 <= window_ms <= WINDOW_MS_MAX:
        found["window_ms"] = f"window_ms of {name} is {window_ms}; it is between 0 and {WINDOW_MS_MAX}"
    if abs(priority) > PRIORITY_MAX:
        found["priority"] = f"priority of {name} is {priority}; it is between -{PRIORITY_MAX} and {PRIORITY_MAX}"
    return found


@dataclass(frozen=True)
class Trigger:
    """What an agent wants to be woken for. An empty filter passes all; of a filter's entries any one has to match.

    `categories`: e.g. EVENT_CATEGORY_FACT_EVENT. `event_names` and `subjects`: shell patterns over the whole text, case counts:
    "Order*", "order/*". `window_ms`: how long to gather after the first match, 0 for each event by itself. `priority`: of
    triggers that are due together the one with the highest goes first.
    """

    name: str
    categories: frozenset[EventCategory.ValueType] = frozenset()
    event_names: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    window_ms: int = 0
    priority: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be meant. Raises ValueError with every mistake."""
        mistakes = mistakes_of(self.name, self.window_ms, self.priority)
        if mistakes:
            raise ValueError("; ".join(mistakes.values()))

    def matches(self, event: Envelope) -> bool:
        """Whether this event is one to be woken for."""
        return (
            (not self.categories or event.event_category in self.categories)
            and (not self.event_names or any(fnmatchcase(event.event_name, pattern) for pattern in self.event_names))
            and (not self.subjects or any(fnmatchcase(event.subject, pattern) for pattern in self.subjects))
        )


@dataclass(frozen=True)
class Firing:
    """One waking: a trigger, and the events that it is for, oldest first."""

    trigger: Trigger
    events: Sequence[Envelope]


@dataclass
class _Window:
    closes_at_ms: float
    events: list[Envelope] = field(default_factory=list)


class TriggerWindows:
    """Gathers events into firings. Moments are milliseconds on any one monotonic clock.

    `positions` says from where on each trigger has to answer for events; a trigger without one answers from `start` on.
    """

    def __init__(self, triggers: Sequence[Trigger], positions: Mapping[str, int], start: int) -> None:
        names = [trigger.name for trigger in triggers]
        if not triggers:
            raise ValueError("there is no trigger; an agent needs at least one to be woken")
        if len(set(names)) != len(names):
            raise ValueError(f"two triggers are called {next(name for name in names if names.count(name) > 1)}; names must differ")
        self._triggers = sorted(triggers, key=lambda trigger: (-trigger.priority, trigger.name))
        self._from = {trigger.name: positions.get(trigger.name, start) for trigger in triggers}
        # Windows of each trigger, oldest first; only the last one still gathers.
        self._windows: dict[str, deque[_Window]] = {trigger.name: deque() for trigger in triggers}
        self._next = min(self._from.values())

    @property
    def next_sequence_number(self) -> int:
        """The first event that has not been offered."""
        return self._next

    @property
    def waiting(self) -> int:
        """How many events wait in windows."""
        return sum(len(window.events) for windows in self._windows.values() for window in windows)

    def positions(self) -> dict[str, int]:
        """Return from where on each trigger has still to answer; what is due and not answered counts."""
        return {
            name: windows[0].events[0].sequence_number if windows else max(self._from[name], self._next)
            for name, windows in self._windows.items()
        }

    def skipped(self, sequence_number: int) -> None:
        """Nothing up to here is for any trigger (a checkpoint)."""
        self._next = max(self._next, sequence_number + 1)

    def offer(self, event: Envelope, now_ms: float) -> None:
        """Let every trigger see an event, once and in order."""
        for trigger in self._triggers:
            if event.sequence_number >= self._from[trigger.name] and trigger.matches(event):
                windows = self._windows[trigger.name]
                if not windows or windows[-1].closes_at_ms <= now_ms or len(windows[-1].events) >= WINDOW_EVENTS_MAX:
                    windows.append(_Window(now_ms + trigger.window_ms))
                windows[-1].events.append(event)
                if len(windows[-1].events) == WINDOW_EVENTS_MAX:
                    windows[-1].closes_at_ms = now_ms
        self.skipped(event.sequence_number)

    def due(self, now_ms: float) -> Firing | None:
        """Return what is to be answered first of all that is due; it stays until `answered`."""
        for trigger in self._triggers:
            windows = self._windows[trigger.name]
            if windows and windows[0].closes_at_ms <= now_ms:
                return Firing(trigger, tuple(windows[0].events))
        return None

    def next_due_ms(self) -> float | None:
        """Return when the next window closes, if one is open."""
        return min((windows[0].closes_at_ms for windows in self._windows.values() if windows), default=None)

    def answered(self, firing: Firing) -> None:
        """The firing that was due has been answered."""
        self._windows[firing.trigger.name].popleft()
