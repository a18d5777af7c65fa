"""Limits repeated log lines: callers can cause thousands a second, and a log must not grow faster than their calls arrive.

Two lines are of one kind if their event and the fields in `_KIND_FIELDS` are equal. The first line of a kind is written at once; then,
each second, the latest one with a `count`. Of one event, such as `call.refused`, at most EVENT_LINES_MAX are written a second, all kinds
together; a line `log.limited` counts the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

INTERVAL_SECONDS: Final = 1.0
EVENT_LINES_MAX: Final = 10
# Kinds of lines that are told apart within a second. Method and reason are the contract's; names of buses are the callers'.
KINDS_MAX: Final = 1_000

_KIND_FIELDS: Final = ("level", "method", "reason", "reason_code", "bus", "where", "template")
# Fields that a summary leaves out: the first line has the stack, and an exception keeps the objects of its frames alive.
_OWN_FIELDS: Final = frozenset({"event", "exc_info", "template"})

Kind = tuple[str, ...]


def kind_of(event: str, fields: Mapping[str, Any]) -> Kind:
    """Return the kind of a line."""
    return (event, *[str(fields.get(name, "")) for name in _KIND_FIELDS])


class _RepeatedLines:
    """Lines of one kind since the last one that was written: their number, and the latest of them."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.count = 0
        self.fields: Mapping[str, Any] = {}


class LogLimit:
    """Decides which lines are written. Safe for threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # Reentrant: while it is held, a garbage collection may run a finalizer that logs.
        self._lock = threading.RLock()
        self._repeated: dict[Kind, _RepeatedLines] = {}
        self._event_lines: dict[str, int] = {}  # in this interval
        self._limited: dict[str, int] = {}  # lines of an event beyond its limit
        self._interval_end = 0.0

    def admits(self, event: str, fields: Mapping[str, Any]) -> bool:
        """Return whether to write a line now. If not, `summaries` counts it."""
        kind = kind_of(event, fields)
        with self._lock:
            now = self._now()
            self._begin_interval(now)
            repeated = self._repeated.get(kind)
            if repeated is not None and now < repeated.until:
                repeated.count += 1
                repeated.fields = {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
                return False
            lines = self._event_lines.get(event, 0)
            if lines >= EVENT_LINES_MAX or (repeated is None and len(self._repeated) >= KINDS_MAX):
                self._limited[event] = self._limited.get(event, 0) + 1
                return False
            self._event_lines[event] = lines + 1
            if repeated is None:
                self._repeated[kind] = _RepeatedLines(now + INTERVAL_SECONDS)
            else:
                repeated.until = now + INTERVAL_SECONDS
            return True

    def counts(self, kind: Kind, fields: Mapping[str, Any]) -> bool:
        """Return whether a line repeats one that was written within the interval, and is counted. If not, ask `admits`.

        `fields` are those of the line, with its level and without its event.
        """
        with self._lock:
            repeated = self._repeated.get(kind)
            if repeated is None or self._now() >= repeated.until:
                return False
            repeated.count += 1
            repeated.fields = fields
            return True

    def summaries(self, *, final: bool = False) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the lines (event, fields) that sum up the lines that were not written. Call it about once a second.

        `final` sums up all of them, at the end of the log.
        """
        lines: list[tuple[str, Mapping[str, Any]]] = []
        with self._lock:
            now = self._now()
            self._begin_interval(now)
            for kind, repeated in list(self._repeated.items()):
                if now < repeated.until and not final:
                    continue
                if not repeated.count:
                    del self._repeated[kind]
                    continue
                event = kind[0]
                if final or self._event_lines.get(event, 0) < EVENT_LINES_MAX:
                    self._event_lines[event] = self._event_lines.get(event, 0) + 1
                    lines.append((event, {**repeated.fields, "count": repeated.count}))
                else:
                    self._limited[event] = self._limited.get(event, 0) + repeated.count
                self._repeated[kind] = _RepeatedLines(now + INTERVAL_SECONDS)
            limited, self._limited = self._limited, {}
        lines += [("log.limited", {"limited": event, "count": count}) for event, count in limited.items()]
        return lines

    def _begin_interval(self, now: float) -> None:
        if now >= self._interval_end:
            self._event_lines.clear()
            self._interval_end = now + INTERVAL_SECONDS
