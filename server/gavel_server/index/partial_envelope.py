"""Envelopes read in part: the fields that select an event, pair tool calls with results, and show drift.

A payload of 1 MiB may hold a hundred thousand values, which take the event loop for several milliseconds to parse. The class below is
Envelope without the payloads' other fields; protobuf skips over what it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from gavel.v1.common_pb2 import Producer, VersionBinding
from gavel.v1.decision_pb2 import Decision, RuleSetReference
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, LlmInvocation
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.fact_pb2 import Fact
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules.state.versions import BOUND_FIELDS
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

_FIELDS: Final[tuple[tuple[Descriptor, tuple[str, ...]], ...]] = (
    (
        Envelope.DESCRIPTOR,
        (
            "sequence_number",
            "event_id",
            "event_category",
            "event_name",
            "recorded_at",
            "trace_id",
            "causation_id",
            "producer",
            "subject",
            "version_binding",
            "fact",
            "proposal",
            "decision",
            "execution",
            "tool_call",
            "tool_result",
            "agent_diagnostic",
        ),
    ),
    (Timestamp.DESCRIPTOR, ("seconds", "nanos")),
    (Producer.DESCRIPTOR, ("type", "id")),
    (VersionBinding.DESCRIPTOR, BOUND_FIELDS),
    (Fact.DESCRIPTOR, ("execution_id",)),
    (Proposal.DESCRIPTOR, ("action_type",)),
    (
        Decision.DESCRIPTOR,
        (
            "action_type",
            "outcome",
            "reason_code",
            "policy_id",
            "rule_id",
            "previous_decision_id",
            "compensates_decision_id",
            "active_rule_sets",
        ),
    ),
    (Execution.DESCRIPTOR, ("execution_id",)),
    (RuleSetReference.DESCRIPTOR, ("policy_id", "version")),
    (ToolCall.DESCRIPTOR, ("tool_name", "execution_id", "tool_version", "request_schema_hash")),
    (ToolResult.DESCRIPTOR, ("tool_name", "execution_id", "tool_version", "response_schema_hash")),
    (AgentDiagnostic.DESCRIPTOR, ("llm_invocation",)),
    (LlmInvocation.DESCRIPTOR, ("llm_model", "llm_provider", "prompt_hash", "output_hash", "requested_model")),
)
_PACKAGE: Final = "gavel.partial"


def _partial_class() -> type[Envelope]:
    file = FileDescriptorProto(name="gavel/partial.proto", package=_PACKAGE, syntax="proto3")
    for source, names in _FIELDS:
        _add(file, source, names)
    pool = DescriptorPool()
    pool.Add(file)
    # Its fields are fields of Envelope, so the type checker may take it for one.
    return cast("type[Envelope]", GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{Envelope.DESCRIPTOR.name}")))


def _add(file: FileDescriptorProto, source: Descriptor, names: Sequence[str]) -> None:
    """Add a message with some fields of another one: the same names, numbers, labels and wire types."""
    message = file.message_type.add(name=source.name)
    fields = [source.fields_by_name[name] for name in names]
    oneofs = list(dict.fromkeys(field.containing_oneof.name for field in fields if field.containing_oneof is not None))
    for name in oneofs:
        message.oneof_decl.add(name=name)
    for field in fields:
        label = FieldDescriptorProto.LABEL_REPEATED if field.is_repeated else FieldDescriptorProto.LABEL_OPTIONAL
        added = message.field.add(name=field.name, number=field.number, label=label)
        if field.containing_oneof is not None:
            added.oneof_index = oneofs.index(field.containing_oneof.name)
        if field.message_type is not None:
            added.type = FieldDescriptorProto.TYPE_MESSAGE
            added.type_name = f".{_PACKAGE}.{field.message_type.name}"
        else:
            added.type = FieldDescriptorProto.TYPE_STRING if field.type == field.TYPE_STRING else FieldDescriptorProto.TYPE_INT64


PartialEnvelope: Final = _partial_class()
