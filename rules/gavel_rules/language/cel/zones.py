"""Time zones as data: the offsets of a zone from UTC, as the document declares them.

An author's `zones.ny` stands for a text that holds the whole zone, and a call such as `now.getHours(zones.ny)` is evaluated with the offset
that holds at that time (`expansion`). No file of the host is read, so a replay on another machine gives the same hours.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

ZONE_PREFIX: Final = "zone:"
# Methods of a time that take a zone.
TIME_FIELDS: Final = frozenset(
    [
        "getFullYear",
        "getMonth",
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
    ]
)
ZONED_FUNCTIONS: Final = TIME_FIELDS | {"toDate"}  # the second version adds `toDate`
_ENCODED: Final = re.compile(r"zone:(?:[0-9]{1,9}[+-][0-9]{2}:[0-9]{2} )+[0-9]{1,9}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Zone(NamedTuple):
    """A zone: each offset holds from its start to the next one's, the last one until `until`. Times are minutes since the epoch."""

    starts: tuple[int, ...]
    offsets: tuple[str, ...]  # "+02:00"
    until: int

    def offset_minutes(self, at_ms: int) -> int | None:
        """Return the offset from UTC, in minutes, that holds at a time; None outside of the zone's data."""
        minute = at_ms // 60_000
        index = bisect_right(self.starts, minute) - 1
        return parse_offset(self.offsets[index]) if index >= 0 and minute < self.until else None


def parse_offset(text: str) -> int:
    """Return an offset such as "+02:00" in minutes."""
    minutes = int(text[1:3]) * 60 + int(text[4:6])
    return -minutes if text[0] == "-" else minutes


def encode_zone(offsets: Sequence[str], until: str) -> str:
    """Return the text that stands for a zone; "" if its times do not exist or do not ascend.

    `offsets` are like "2026-03-08T07:00:00Z -04:00": a time, to the minute, and the offset that holds from then on.
    """
    pairs = [text.split(" ") for text in offsets]
    try:
        times = [_minute(start) for start, _ in pairs] + [_minute(until)]
    except ValueError:
        return ""
    if times != sorted(set(times)) or times[0] < 0:
        return ""
    parts = [f"{time}{offset}" for time, (_, offset) in zip(times, pairs, strict=False)]
    return f"{ZONE_PREFIX}{' '.join(parts)} {times[-1]}"


def decode_zone(text: str) -> Zone | None:
    """Return the zone that a text stands for; None for any other text."""
    if _ENCODED.fullmatch(text) is None:
        return None
    *parts, until = text.removeprefix(ZONE_PREFIX).split(" ")
    return Zone(tuple(int(part[:-6]) for part in parts), tuple(part[-6:] for part in parts), int(until))


def time_text(minute: int) -> str:
    """Return a time, in minutes since the epoch, as RFC 3339."""
    return datetime.fromtimestamp(minute * 60, UTC).isoformat().replace("+00:00", "Z")


def _minute(text: str) -> int:
    return int((datetime.fromisoformat(text.replace("Z", "+00:00")) - _EPOCH).total_seconds() // 60)
