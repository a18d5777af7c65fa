"""Duplicate fields in recorded bytes.

Where a singular field, a member of a oneof, or a key of a map occurs twice, protobuf merges the occurrences or keeps the last one. A
simpler reader, such as an auditor's, may take the first. Events are recorded as serialized messages, which have no duplicates. Bytes with
a duplicate were made by hand, to be read in two ways.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet


def find_duplicate_field(content: bytes, message_type: Descriptor) -> str:
    """Return the path of a field, e.g. "decision.outcome", that contradicts an earlier one in the bytes of a message; "" if none does.

    The bytes must be a valid message of this type.
    """
    seen: set[tuple[str, object]] = set()
    # To an empty message every field is unknown, and kept as it stands in the bytes.
    wire_fields = UnknownFieldSet(Empty.FromString(content))
    for index in range(len(wire_fields)):
        wire_field = wire_fields[index]
        field = message_type.fields_by_number.get(wire_field.field_number)
        if field is None:
            continue
        slot: tuple[str, object] | None = None
        if not field.is_repeated:
            slot = (field.containing_oneof or field).full_name, None
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            slot = field.full_name, _key_of(wire_field.data)
        if slot is not None:
            if slot in seen:
                return field.name
            seen.add(slot)
        if field.message_type is not None and isinstance(wire_field.data, bytes):
            inner = find_duplicate_field(wire_field.data, field.message_type)
            if inner:
                return f"{field.name}.{inner}"
    return ""


def _key_of(entry: bytes) -> object:
    """Return the key in the bytes of an entry of a map, or None if it is the default."""
    wire_fields = UnknownFieldSet(Empty.FromString(entry))
    return next((one.data for one in (wire_fields[index] for index in range(len(wire_fields))) if one.field_number == 1), None)
