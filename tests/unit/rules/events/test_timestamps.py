"""Conversion between milliseconds and protobuf Timestamps."""

from __future__ import annotations

import pytest
from gavel_rules.events.timestamps import TIME_MS_MAX, milliseconds, set_timestamp, timestamp
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, TIME_MS_MAX))
def test_timestamps_round_trip(at_ms: int) -> None:
    """Milliseconds survive the way to a Timestamp and back."""
    assert at_ms == milliseconds(timestamp(at_ms))
    target = Timestamp(seconds=9, nanos=9)
    set_timestamp(target, at_ms)
    assert timestamp(at_ms) == target


@pytest.mark.parametrize("nanos", [0, 1, 999_999])
def test_times_are_rounded_down(nanos: int) -> None:
    """Fractions of a millisecond are cut off."""
    assert 5_001 == milliseconds(Timestamp(seconds=5, nanos=1_000_000 + nanos))
