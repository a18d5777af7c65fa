"""Fields of messages written as bytes, for what is made of many of them at once: protobuf parses them all in one call.

Parsing a field costs a fraction of what setting it by its name does. Serialized messages that follow one another are one message with the
fields of them all: repeated ones together, and of others the last.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

_BYTES: Final = [bytes([number]) for number in range(256)]
_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2


def varint(number: int) -> bytes:
    """Return a number that is not negative, as messages hold it."""
    if number < 128:
        return _BYTES[number]
    return _BYTES[number & 127 | 128] + varint(number >> 7)


class Field:
    """A field of the contract, which holds texts, messages, or numbers that are not negative.

    What writes one adds it to `parts`, and returns how many bytes it has: whoever writes the message around it has to say so before it.
    """

    def __init__(self, message: type[Message], name: str) -> None:
        descriptor = message.DESCRIPTOR.fields_by_name[name]
        is_delimited = descriptor.type in (descriptor.TYPE_STRING, descriptor.TYPE_MESSAGE)
        self.tag: Final = varint(descriptor.number << 3 | (_LENGTH_DELIMITED if is_delimited else _VARINT))
        self._heads: Final = [self.tag + _BYTES[length] for length in range(128)]

    def head(self, length: int) -> bytes:
        """Return what stands before a text or a message of so many bytes."""
        return self._heads[length] if length < 128 else self.tag + varint(length)

    def text(self, parts: list[bytes], value: str) -> int:
        """Write a text."""
        content = value.encode()
        length = len(content)
        head = self.head(length)
        parts.append(head)
        parts.append(content)
        return len(head) + length

    def number(self, parts: list[bytes], value: int) -> int:
        """Write a number."""
        content = varint(value)
        parts.append(self.tag)
        parts.append(content)
        return len(self.tag) + len(content)

    def moment(self, parts: list[bytes], at_ms: int) -> int:
        """Write a Timestamp, from milliseconds since the epoch.

        Both of its fields, also where they are zero: so a Timestamp that has another time already takes this one.
        """
        whole = _seconds(at_ms // 1000)
        fraction = _FRACTIONS[at_ms % 1000]
        length = len(whole) + len(fraction)
        head = self.head(length)
        parts.append(head)
        parts.append(whole)
        parts.append(fraction)
        return len(head) + length


_SECONDS_TAG: Final = 1 << 3 | _VARINT
_NANOS_TAG: Final = 2 << 3 | _VARINT
_FRACTIONS: Final = [_BYTES[_NANOS_TAG] + varint(milliseconds * 1_000_000) for milliseconds in range(1000)]


def _seconds(seconds: int) -> bytes:
    """Return the first field of a Timestamp."""
    # Six digits of seven bits, however few would do, of which all but the last say by their first bit that more
    # follow: so they are one number, which becomes bytes at once.
    digits = seconds & 0x7F | seconds << 1 & 0x7F00 | seconds << 2 & 0x7F0000 | seconds << 3 & 0x7F000000 | 0x80808080
    return (_SECONDS_TAG | digits << 8 | (seconds >> 28 & 0x7F | 0x80) << 40 | seconds >> 35 << 48).to_bytes(7, "little")
