"""Fragments of an Envelope that many events share: the fields that a bus writes into all events of one recording time."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from gavel.v1.common_pb2 import EventCategory
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.codec.fields import FRAGMENT_CACHE_MAX, Field

# Merge fragments into an envelope, and parse them as a new one.
merge_header: Final = Envelope.MergeFromString
parse_header: Final = Envelope.FromString

_SCHEMA_VERSION: Final = Field(Envelope, "schema_version")
_EVENT_CATEGORY: Final = Field(Envelope, "event_category")
_BUS: Final = Field(Envelope, "bus")
_PRODUCER: Final = Field(Envelope, "producer")
_OCCURRED_AT: Final = Field(Envelope, "occurred_at")
_RECORDED_AT: Final = Field(Envelope, "recorded_at")


@lru_cache(FRAGMENT_CACHE_MAX)
def encode_header(
    schema_version: str, category: EventCategory.ValueType, bus: str, recorded_at_ms: int, occurs_now: bool, producer: bytes = b""
) -> bytes:
    """Encode the header fields that are the same for all events of one bus, category and recording time.

    `occurs_now` sets `occurred_at` to the recording time. `producer` is an encoded Producer, empty to leave the field out. Merging
    replaces the times of an earlier attempt to record the event.
    """
    header = _SCHEMA_VERSION.text(schema_version) + _EVENT_CATEGORY.number(category) + _BUS.text(bus)
    if producer:
        header = header + _PRODUCER.content(producer)
    if occurs_now:
        header = header + _OCCURRED_AT.timestamp(recorded_at_ms)
    return header + _RECORDED_AT.timestamp(recorded_at_ms)
