"""Event headers parse as envelopes built field by field."""

from __future__ import annotations

from gavel.v1.common_pb2 import EventCategory, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.codec.event_headers import encode_header, merge_header, parse_header
from gavel_rules.events.arbiter_versions import LATEST
from gavel_rules.events.kinds import DECISION
from gavel_rules.events.timestamps import TIME_MS_MAX, timestamp
from hypothesis import given
from hypothesis import strategies as st

TIMES_MS = st.integers(0, TIME_MS_MAX)


@given(st.sampled_from(EventCategory.values()), TIMES_MS, st.booleans())
def test_header(category: EventCategory.ValueType, at_ms: int, occurs_now: bool) -> None:
    """A header sets schema version, category, bus and times, and no producer unless one is passed."""
    header = parse_header(encode_header("gavel.v1", category, "orders", at_ms, occurs_now))
    expected = Envelope(schema_version="gavel.v1", event_category=category, bus="orders", recorded_at=timestamp(at_ms))
    if occurs_now:
        expected.occurred_at.CopyFrom(timestamp(at_ms))
    assert expected == header


def test_producer() -> None:
    """A header sets the producer that is passed."""
    header = parse_header(encode_header("gavel.v1", DECISION, "orders", 1_000, True, LATEST.system.SerializeToString()))
    assert LATEST.system == header.producer


@given(TIMES_MS, TIMES_MS)
def test_second_attempt(before_ms: int, at_ms: int) -> None:
    """Recording an event again replaces the times of the first attempt and leaves the producer's own fields."""
    envelope = Envelope(event_id="e", producer=Producer(id="orders-db"), recorded_at=timestamp(before_ms), occurred_at=timestamp(before_ms))
    merge_header(envelope, encode_header("gavel.v1", DECISION, "orders", at_ms, True))
    assert (timestamp(at_ms), timestamp(at_ms)) == (envelope.recorded_at, envelope.occurred_at)
    assert ("e", "orders-db") == (envelope.event_id, envelope.producer.id)
