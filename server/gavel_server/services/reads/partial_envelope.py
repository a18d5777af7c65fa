"""Envelopes read in part: the fields that select an event, and those that pair tool calls with results.

A payload of 1 MiB may hold a hundred thousand values, which take the event loop for several milliseconds to parse. The class below is
Envelope without the payloads' other fields; protobuf skips over what it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_PAYLOADS: Final = ("proposal", "decision", "tool_call", "tool_result")
_ENVELOPE_FIELDS: Final = (
    "sequence_number",
    "event_id",
    "event_category",
    "trace_id",
    "subject",
    "proposal",
    "decision",
    "tool_call",
    "tool_result",
)
_PAYLOAD_FIELDS: Final = (
    (Proposal.DESCRIPTOR, ("action_type",)),
    (Decision.DESCRIPTOR, ("action_type", "outcome")),
    (ToolCall.DESCRIPTOR, ("tool_name", "execution_id")),
    (ToolResult.DESCRIPTOR, ("tool_name", "execution_id")),
)
_PACKAGE: Final = "gavel.partial"


def _partial_class() -> type[Envelope]:
    file = FileDescriptorProto(name="gavel/partial.proto", package=_PACKAGE, syntax="proto3")
    _add(file, Envelope.DESCRIPTOR, _ENVELOPE_FIELDS).oneof_decl.add(name="payload")
    for payload, names in _PAYLOAD_FIELDS:
        _add(file, payload, names)
    pool = DescriptorPool()
    pool.Add(file)
    # Its fields are fields of Envelope, so the type checker may take it for one.
    return cast("type[Envelope]", GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{Envelope.DESCRIPTOR.name}")))


def _add(file: FileDescriptorProto, source: Descriptor, names: Sequence[str]) -> DescriptorProto:
    """Add a message with some fields of another one: the same names, numbers and wire types."""
    message = file.message_type.add(name=source.name)
    for name in names:
        field = source.fields_by_name[name]
        added = message.field.add(name=name, number=field.number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        if field.message_type is not None:
            added.type = FieldDescriptorProto.TYPE_MESSAGE
            added.type_name = f".{_PACKAGE}.{field.message_type.name}"
            added.oneof_index = 0
        else:
            added.type = FieldDescriptorProto.TYPE_STRING if field.type == field.TYPE_STRING else FieldDescriptorProto.TYPE_INT64
    return message


PartialEnvelope: Final = _partial_class()
