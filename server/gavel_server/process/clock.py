"""The wall clock, and the guards without which a server may not write.

Freshness, expiry and leases depend on `now`, so a wrong clock does harm. A server refuses writes, with the reason, if its clock
differs from that of Redis by more than SKEW_MS_MAX, or lags behind the last time in the log by more than LAG_MS_MAX.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SKEW_MS_MAX: Final = 1_000
LAG_MS_MAX: Final = 5_000
SKEW_CHECK_INTERVAL_SECONDS: Final = 10.0


def wall_clock_ms() -> int:
    """Return the wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class GuardedClock:
    """The wall clock and its last known difference from the store's."""

    def __init__(self, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._now_ms = now_ms
        self._skew_ms = 0

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch."""
        return self._now_ms()

    def observe(self, store_ms: int, sent_ms: int, received_ms: int) -> None:
        """Note the difference from the store's time, which was read between the two readings of this clock."""
        if store_ms < sent_ms:
            self._skew_ms = store_ms - sent_ms
        elif store_ms > received_ms:
            self._skew_ms = store_ms - received_ms
        else:
            self._skew_ms = 0

    def problem(self, head_recorded_at_ms: int) -> str:
        """Return why events may not be dated by this clock now, or ""."""
        if abs(self._skew_ms) > SKEW_MS_MAX:
            return f"this host's clock is {abs(self._skew_ms)} ms off the log store's; at most {SKEW_MS_MAX} ms are allowed: synchronise it"
        behind_ms = head_recorded_at_ms - self._now_ms()
        if behind_ms > LAG_MS_MAX:
            return f"this host's clock is {behind_ms} ms behind the log's last event; at most {LAG_MS_MAX} ms are allowed: synchronise it"
        return ""
