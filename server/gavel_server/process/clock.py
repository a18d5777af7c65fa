"""The clock that dates events, and the guards without which a server may not write.

Freshness, expiry and leases depend on `now`, so a wrong clock does harm. `now` is the wall clock at an anchor plus the time elapsed since,
which no setting of the wall clock changes. The anchor follows the wall clock only if the log store's clock agrees with it. A step of more
than STEP_MS_MAX may be an error that host and store share, as on one machine. The anchor follows it only after STEP_SECONDS of agreement,
and writes are refused until then (docs/decisions/0034-time-by-an-anchor.md).

A server also refuses writes while `now` differs from the store's time by more than SKEW_MS_MAX, or lags behind the last time in the log
by more than LAG_MS_MAX. The log itself refuses an append whose date does not agree with the store's time (`is_timely`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from gavel_rules.events.timestamps import TIME_MS_MAX
from mypy_extensions import mypyc_attr

SKEW_MS_MAX: Final = 1_000
LAG_MS_MAX: Final = 5_000
# How long a batch may be on its way into the log: until then, a late append cannot be told from a clock that is behind.
DELAY_MS_MAX: Final = 5_000
STEP_MS_MAX: Final = 5_000
STEP_SECONDS: Final = 60

# Where the system has it, the clock that also counts the time in which the machine is suspended.
_ELAPSED: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_clock_ms() -> int:
    """Return the wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def elapsed_ms() -> int:
    """Return the milliseconds since an arbitrary moment. Nobody can set this clock."""
    return time.clock_gettime_ns(_ELAPSED) // 1_000_000


def is_timely(date_ms: int, store_ms: int) -> bool:
    """Return whether a batch that a server dated by its clock may be appended at the store's time."""
    earliest_ms, latest_ms = timely_range_ms(date_ms)
    return earliest_ms <= store_ms <= latest_ms


def timely_range_ms(date_ms: int | None) -> tuple[int, int]:
    """Return the earliest and the latest time of the store at which a batch with this date may be appended; None: at any time."""
    if date_ms is None:
        return 0, TIME_MS_MAX
    return date_ms - SKEW_MS_MAX, date_ms + SKEW_MS_MAX + DELAY_MS_MAX


def lag_problem(now_ms: int, head_recorded_at_ms: int) -> str:
    """Return why the date of a log's last event forbids writes now, or ""."""
    behind_ms = head_recorded_at_ms - now_ms
    if behind_ms <= LAG_MS_MAX:
        return ""
    return (
        f"this host's clock is {behind_ms} ms behind the log's last event; at most {LAG_MS_MAX} ms are allowed. Synchronize it, "
        "or, if the event is dated wrongly, accept its time with gavel accept-clock"
    )


@mypyc_attr(allow_interpreted_subclasses=True)  # tests make clocks that notice nothing
class GuardedClock:
    """The wall clock at the anchor plus the time elapsed since, and its last known difference from the store's clock."""

    def __init__(self, wall_ms: Callable[[], int] = wall_clock_ms, elapsed_ms: Callable[[], int] = elapsed_ms) -> None:
        self._wall_ms = wall_ms
        self._elapsed_ms = elapsed_ms
        self._anchor_ms = wall_ms() - elapsed_ms()  # the wall clock when `elapsed_ms` was 0
        self._skew_ms = 0
        self._has_agreed = False  # whether the anchor has ever agreed with the store
        self._step_since_ms: int | None = None

    def now_ms(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return self._anchor_ms + self._elapsed_ms()

    def observe(self, store_ms: int, sent_ms: int, received_ms: int) -> None:
        """Compare with the store's time, which was read between two readings of this clock. The second reading was made just now."""
        step_ms = self._wall_ms() - self.now_ms()
        if max(abs(store_ms - sent_ms - step_ms), abs(store_ms - received_ms - step_ms)) > SKEW_MS_MAX:
            self._step_since_ms = None
        elif self._is_believed(step_ms):
            self._step_since_ms = None
            self._anchor_ms += step_ms
            sent_ms += step_ms
            received_ms += step_ms
        self._skew_ms = min(store_ms - sent_ms, 0) or max(store_ms - received_ms, 0)
        self._has_agreed = self._has_agreed or abs(self._skew_ms) <= SKEW_MS_MAX

    def _is_believed(self, step_ms: int) -> bool:
        """Return whether the anchor may follow a wall clock that agrees with the store's clock."""
        if abs(step_ms) <= STEP_MS_MAX or not self._has_agreed:
            return True
        elapsed_ms = self._elapsed_ms()
        if self._step_since_ms is None:
            self._step_since_ms = elapsed_ms
        return elapsed_ms - self._step_since_ms >= STEP_SECONDS * 1_000

    def problem(self) -> str:
        """Return why events may not be dated by this clock now, or ""."""
        if abs(self._skew_ms) <= SKEW_MS_MAX:
            return ""
        both = f"; if both were set, writes are accepted after {STEP_SECONDS} s" if self._step_since_ms is not None else ""
        off_ms = abs(self._skew_ms)
        return f"this host's clock is {off_ms} ms off the log store's; at most {SKEW_MS_MAX} ms are allowed. Synchronize both{both}"
