"""Fragments about counters parse as decisions built field by field."""

from __future__ import annotations

from gavel.v1.decision_pb2 import CounterReading, Decision
from gavel_rules.codec.counter_fragments import encode_counter, encode_key, encode_reading
from gavel_rules.events.timestamps import TIME_MS_MAX, timestamp
from hypothesis import given
from hypothesis import strategies as st


@given(st.text(max_size=200), st.floats(allow_nan=False), st.integers(0, TIME_MS_MAX))
def test_reading(key: str, value: float, frees_at_ms: int) -> None:
    """A reading has its counter, its key and its value, and the time when the next entry lapses if there is one."""
    reading = CounterReading(policy_id="refunds", counter="spent", key=key, value=value)
    if frees_at_ms:
        reading.frees_at.CopyFrom(timestamp(frees_at_ms))
    expected = Decision(counters=[reading]).SerializeToString(deterministic=True)
    parsed = Decision.FromString(encode_reading(encode_counter("refunds", "spent"), encode_key(key), value, frees_at_ms))
    assert expected == parsed.SerializeToString(deterministic=True)
