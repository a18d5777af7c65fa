"""Protobuf fields, encoded by hand.

A message is the concatenation of its encoded fields. Where encoded messages follow one another, parsers concatenate repeated fields,
merge message fields, and keep the last value of every other field. A decision is therefore assembled from fragments and parsed in one
call, which costs a fraction of setting each field by name: docs/performance.md#fragments.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

# Size of the LRU caches of fragments that depend on a bus and a time. All events of a batch have one time.
FRAGMENT_CACHE_MAX: Final = 16

_BYTES: Final = [bytes([number]) for number in range(256)]
_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2


def varint(number: int) -> bytes:
    """Encode an integer of up to 64 bits as a varint; a negative one as its two's complement."""
    if 0 <= number < 128:
        return _BYTES[number]
    if number < 0:
        number += 1 << 64
    return _BYTES[number & 127 | 128] + varint(number >> 7)


def length_prefixed(content: bytes) -> bytes:
    """Return bytes with their length, a varint, in front."""
    return varint(len(content)) + content


class Field:
    """A string, bytes, message or integer field of a message type.

    Floats, fixed-width and zigzag integers have other wire types and are not supported.
    """

    def __init__(self, message: type[Message], name: str) -> None:
        descriptor = message.DESCRIPTOR.fields_by_name[name]
        is_delimited = descriptor.type in (descriptor.TYPE_STRING, descriptor.TYPE_BYTES, descriptor.TYPE_MESSAGE)
        self._tag: Final = varint(descriptor.number << 3 | (_LENGTH_DELIMITED if is_delimited else _VARINT))
        self._with_number: Final = [self._tag + _BYTES[number] for number in range(128)]

    def number(self, value: int) -> bytes:
        """Encode the field with an integer value, zero included."""
        return self._with_number[value] if 0 <= value < 128 else self._tag + varint(value)

    def text(self, value: str) -> bytes:
        """Encode the field with a string value, the empty one included."""
        return self.content(value.encode())

    def content(self, content: bytes) -> bytes:
        """Encode the field with an encoded message, or with bytes."""
        return self.prefix(len(content)) + content

    def prefix(self, length: int) -> bytes:
        """Encode the field up to its content, which has `length` bytes."""
        return self._with_number[length] if length < 128 else self._tag + varint(length)

    def timestamp(self, at_ms: int) -> bytes:
        """Encode the field with a Timestamp, from milliseconds since the epoch.

        `seconds` and `nanos` are written even if they are zero, so that merging replaces a Timestamp that the field already has.
        """
        return self.content(_SECONDS_TAG + varint(at_ms // 1000) + _FRACTIONS[at_ms % 1000])


_SECONDS_TAG: Final = _BYTES[1 << 3 | _VARINT]
_NANOS_TAG: Final = _BYTES[2 << 3 | _VARINT]
_FRACTIONS: Final = [_NANOS_TAG + varint(milliseconds * 1_000_000) for milliseconds in range(1000)]
