"""Times of the core: whole milliseconds since the epoch. Protobuf Timestamps are converted here and rounded down."""

from __future__ import annotations

from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

# The last millisecond that a Timestamp can hold: 9999-12-31T23:59:59.999Z.
TIME_MS_MAX: Final = 253_402_300_799_999


def milliseconds(timestamp: Timestamp) -> int:
    """Return a Timestamp as whole milliseconds since the epoch, rounded down."""
    return timestamp.seconds * 1000 + timestamp.nanos // 1_000_000


def timestamp(at_ms: int) -> Timestamp:
    """Return milliseconds since the epoch as a Timestamp."""
    return Timestamp(seconds=at_ms // 1000, nanos=at_ms % 1000 * 1_000_000)


def set_timestamp(target: Timestamp, at_ms: int) -> None:
    """Set a Timestamp field in place from milliseconds since the epoch."""
    target.seconds = at_ms // 1000
    target.nanos = at_ms % 1000 * 1_000_000
