"""Counts the parts of a protobuf message in its bytes, before protobuf makes objects of them.

Two bytes on the wire can be a message of 200 bytes in memory, so a limit on bytes does not limit memory or time. A count ends as soon as it
exceeds its limit. Bytes that are not a message raise ValueError. The format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import Descriptor

# Nested messages. protobuf refuses deeper ones, too.
DEPTH_MAX: Final = 100
# Fields of a message itself that are looked at for one text. The largest batch has 500 items.
OWN_FIELDS_MAX: Final = 4_096
# Bytes of a varint, and of one that is a tag or a length.
_VARINT_BYTES_MAX: Final = 10
_SHORT_VARINT_BYTES_MAX: Final = 5

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH_DELIMITED: Final = 2
_START_GROUP: Final = 3
_END_GROUP: Final = 4
_FIXED32: Final = 5
# The bit of a varint's byte that says that another byte follows.
_CONTINUES: Final = 0x80
# Parts of a tag's first byte: the wire type, and the bit above it.
_LENGTH_DELIMITED_MASK: Final = 7 | _CONTINUES
_TOO_LONG: Final = "a field exceeds its message"


class Layout:
    """The fields of a message type whose content is counted too: messages that hold lists, or messages that do, at any depth."""

    def __init__(self) -> None:
        self.children: dict[int, Layout] = {}


def layout_of(descriptor: Descriptor) -> Layout:
    """Return the layout of a message type."""
    return _Layouts().layout(descriptor)


def count_fields(data: bytes, layout: Layout, fields_max: int) -> int:
    """Return how many fields a message has, nested ones included; `fields_max` + 1 if there are more than that. Raises ValueError."""
    counter = _Counter(data, fields_max)
    counter.count_message(len(data), layout, 0)
    return counter.fields


def count_items(data: bytes, number: int, items_max: int) -> int:
    """Return how many fields of this number a message has itself; `items_max` + 1 if there are more than that. Raises ValueError.

    Beyond OWN_FIELDS_MAX other fields it counts no further.
    """
    counter = _Counter(data, len(data))
    items = 0
    fields = 0
    while items <= items_max and fields - items <= OWN_FIELDS_MAX and counter.place < len(data):
        fields += 1
        if counter.skip_field(len(data)) == number:
            items += 1
    return items


def split_items(data: bytes, number: int) -> tuple[list[bytes], bytes]:
    """Return the contents of the fields of this number that a message has itself, and the bytes of its other fields. Raises ValueError."""
    counter = _Counter(data, len(data))
    items: list[bytes] = []
    others: list[bytes] = []
    others_begin = 0
    groups = 0  # open ones, whose fields are not those of the message
    while counter.place < len(data):
        begin = counter.place
        field_number = counter.skip_field(len(data))
        if counter.wire_type == _START_GROUP:
            groups += 1
        elif counter.wire_type == _END_GROUP:
            groups -= 1
        elif field_number == number and counter.wire_type == _LENGTH_DELIMITED and not groups:
            items.append(data[counter.content : counter.place])
            others.append(data[others_begin:begin])
            others_begin = counter.place
    return items, b"".join([*others, data[others_begin:]])


def text_field(data: bytes, number: int) -> str:
    """Return the first text of this field number of a message, or "" if there is none that can be read."""
    counter = _Counter(data, len(data))
    try:
        while counter.place < len(data):
            if counter.skip_field(len(data)) == number and counter.wire_type == _LENGTH_DELIMITED:
                return data[counter.content : counter.place].decode()
    except ValueError:  # also text that is not UTF-8
        return ""
    return ""


def last_text_field(data: bytes, number: int) -> str:
    """Return the text that protobuf reads for a field: the last one of this number that the message has itself, "" if it has none.

    Raises ValueError if the bytes are not a message, or have more than OWN_FIELDS_MAX fields of the message itself.
    """
    counter = _Counter(data, len(data))
    text = ""
    groups = 0
    fields = 0
    while counter.place < len(data):
        fields += 1
        if fields > OWN_FIELDS_MAX:
            raise ValueError(f"it has more than {OWN_FIELDS_MAX} fields")
        field_number = counter.skip_field(len(data))
        if counter.wire_type == _START_GROUP:
            groups += 1
        elif counter.wire_type == _END_GROUP:
            groups -= 1
        elif field_number == number and counter.wire_type == _LENGTH_DELIMITED and not groups:
            text = data[counter.content : counter.place].decode()
    return text


class _Layouts:
    """Makes the layout of a message type and of those it refers to, which may be recursive."""

    def __init__(self) -> None:
        self._layouts: dict[str, Layout] = {}

    def layout(self, descriptor: Descriptor) -> Layout:
        layout = self._layouts.get(descriptor.full_name)
        if layout is None:
            layout = self._layouts[descriptor.full_name] = Layout()
            for field in descriptor.fields:
                if field.message_type is not None and _holds_lists(field.message_type, set()):
                    layout.children[field.number] = self.layout(field.message_type)
        return layout


def _holds_lists(descriptor: Descriptor, visited: set[str]) -> bool:
    if descriptor.full_name in visited:
        return False
    visited.add(descriptor.full_name)
    for field in descriptor.fields:
        if field.is_repeated or (field.message_type is not None and _holds_lists(field.message_type, visited)):
            return True
    return False


class _Counter:
    """Reads the fields of `data` one after the other. Stops once more than `fields_max` are counted."""

    def __init__(self, data: bytes, fields_max: int) -> None:
        self._data: Final = data
        self._fields_max: Final = fields_max
        self.fields = 0
        self.place = 0
        # Of the field that was read last.
        self.wire_type = 0
        self.content = 0

    def count_message(self, end: int, layout: Layout, depth: int) -> None:
        """Count the fields of the message from `place` to `end`."""
        if depth > DEPTH_MAX:
            raise ValueError(f"messages are nested deeper than {DEPTH_MAX} levels")
        data = self._data
        children = layout.children
        fields_max = self._fields_max
        fields = self.fields
        place = self.place
        while place < end:
            fields += 1
            if fields > fields_max:
                break
            # The fast path: most fields have a tag and a length of one byte each.
            tag = data[place]
            if tag & _LENGTH_DELIMITED_MASK == _LENGTH_DELIMITED and place + 1 < end and data[place + 1] < _CONTINUES:
                content = place + 2
                place = content + data[place + 1]
                if place > end:
                    raise ValueError(_TOO_LONG)
                number = tag >> 3
            else:
                self.place = place
                number = self.skip_field(end)
                place = self.place
                if self.wire_type != _LENGTH_DELIMITED:
                    continue
                content = self.content
            if content < place and number in children:
                self.place = content
                self.fields = fields
                self.count_message(place, children[number], depth + 1)
                fields = self.fields
        self.fields = fields

    def skip_field(self, end: int) -> int:
        """Move behind the field that starts at `place`, in a message that ends at `end`. Return the field's number."""
        tag = self._read_short(end)
        wire_type = tag & 7
        self.wire_type = wire_type
        if wire_type == _LENGTH_DELIMITED:
            size = self._read_short(end)
            self.content = self.place
            self.place += size
        elif wire_type == _VARINT:
            self._skip_varint(end)
        elif wire_type == _FIXED64:
            self.place += 8
        elif wire_type == _FIXED32:
            self.place += 4
        elif wire_type not in (_START_GROUP, _END_GROUP):
            raise ValueError(f"wire type {wire_type} does not exist")
        if self.place > end:
            raise ValueError(_TOO_LONG)
        return tag >> 3

    def _read_short(self, end: int) -> int:
        """Return the tag or length at `place`, and move behind it."""
        data = self._data
        place = self.place
        value = 0
        shift = 0
        while place < end and shift < 7 * _SHORT_VARINT_BYTES_MAX:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if byte < _CONTINUES:
                self.place = place
                return value
            shift += 7
        raise ValueError("a tag or length does not end")

    def _skip_varint(self, end: int) -> None:
        data = self._data
        place = self.place
        last = min(end, place + _VARINT_BYTES_MAX)
        while place < last:
            place += 1
            if data[place - 1] < _CONTINUES:
                self.place = place
                return
        raise ValueError("a varint does not end")
