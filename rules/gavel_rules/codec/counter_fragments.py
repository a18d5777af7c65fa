"""Fragments of a Decision that name the counters which it read: docs/performance.md#fragments."""

from __future__ import annotations

import struct
from typing import Final

from gavel.v1.decision_pb2 import CounterReading, Decision

from gavel_rules.codec.fields import Field, varint

_COUNTERS: Final = Field(Decision, "counters")
_POLICY_ID: Final = Field(CounterReading, "policy_id")
_COUNTER: Final = Field(CounterReading, "counter")
_KEY: Final = Field(CounterReading, "key")
_FREES_AT: Final = Field(CounterReading, "frees_at")
_FIXED_64_BIT: Final = 1
_VALUE_TAG: Final = varint(CounterReading.DESCRIPTOR.fields_by_name["value"].number << 3 | _FIXED_64_BIT)
_pack_double: Final = struct.Struct("<d").pack


def encode_counter(policy_id: str, counter: str) -> bytes:
    """Encode the fields of a CounterReading that depend on the rule set alone."""
    return _POLICY_ID.text(policy_id) + _COUNTER.text(counter)


def encode_key(key: str) -> bytes:
    """Encode the field of a CounterReading with the group that is read, up to the value, which follows."""
    return _KEY.text(key) + _VALUE_TAG


def encode_reading(counter: bytes, key: bytes, value: float, frees_at_ms: int) -> bytes:
    """Encode a reading of a decision. `frees_at_ms` is 0 if no entry lapses by the passing of time.

    `counter` is from `encode_counter`, and `key` from `encode_key`: most reads of a decision have the same key.
    """
    reading = counter + key + _pack_double(value)
    return _COUNTERS.content(reading + _FREES_AT.timestamp(frees_at_ms) if frees_at_ms else reading)
