"""The versions that the events of a trace name: bound versions, schemas of tools, answers of models (constitution 000).

The first event of a trace that names a version binds the trace to it. Later events that name none inherit it; those that name another
one are noted. The records are immutable; `transitions.versions` replaces those of the store, and an audit collects those of a whole trace.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.limits import TRACE_VERSIONS_MAX

# Payloads that may name versions beside their envelope's.
PAYLOADS_WITH_VERSIONS: Final = frozenset({"tool_call", "tool_result", "agent_diagnostic"})
# The fields of VersionBinding that bind a trace. `schema_version` is that of each producer's own state.
BOUND_FIELDS: Final = ("execution_version", "planner_version", "tool_registry_version")


class BoundVersion(NamedTuple):
    """A version that a trace is bound to, and the event that named it."""

    field: str  # one of BOUND_FIELDS
    version: str
    sequence_number: int


class VersionMismatch(NamedTuple):
    """An event that names another version than its trace is bound to."""

    bound: BoundVersion
    version: str
    sequence_number: int


class ToolSchemas(NamedTuple):
    """The schemas that a tool call, or a result, followed. "": not named."""

    tool_name: str
    tool_version: str
    request_schema_hash: str
    response_schema_hash: str
    sequence_number: int


class ModelAnswer(NamedTuple):
    """An answer of a language model to a prompt."""

    prompt_hash: str
    requested_model: str
    llm_provider: str
    llm_model: str
    output_hash: str
    sequence_number: int


class TraceVersions:
    """The versions that the events of a trace name. `sequence_number` is that of the first event that names anything."""

    def __init__(
        self,
        sequence_number: int,
        bound: tuple[BoundVersion, ...] = (),
        mismatches: tuple[VersionMismatch, ...] = (),
        tools: tuple[ToolSchemas, ...] = (),
        answers: tuple[ModelAnswer, ...] = (),
    ) -> None:
        self.sequence_number: Final = sequence_number
        self.bound: Final = bound
        self.mismatches: Final = mismatches
        self.tools: Final = tools
        self.answers: Final = answers

    def version(self, field: str) -> str:
        """Return the version that the trace is bound to in a field, or ""."""
        for bound in self.bound:
            if bound.field == field:
                return bound.version
        return ""

    def find_mismatches(self, binding: VersionBinding, sequence_number: int) -> list[VersionMismatch]:
        """Return the versions of a binding that differ from those of the trace. `sequence_number` is that of its event."""
        mismatches = []
        for bound in self.bound:
            version = getattr(binding, bound.field)
            if version and version != bound.version:
                mismatches.append(VersionMismatch(bound, version, sequence_number))
        return mismatches

    def with_event(self, envelope: Envelope, payload: str, items_max: int = TRACE_VERSIONS_MAX) -> TraceVersions:
        """Add the versions that an event names to earlier ones; return the last `items_max` different ones of each kind."""
        number = envelope.sequence_number
        bound, mismatches, tools, answers = self.bound, self.mismatches, self.tools, self.answers
        if payload != "decision" and envelope.HasField("version_binding"):
            binding = envelope.version_binding
            if not bound:
                named = [(field, getattr(binding, field)) for field in BOUND_FIELDS]
                bound = tuple([BoundVersion(field, version, number) for field, version in named if version])
            else:
                for mismatch in self.find_mismatches(binding, number):
                    if not any(one[:2] == mismatch[:2] for one in mismatches):
                        mismatches = (*mismatches, mismatch)[-items_max:]
        if payload not in PAYLOADS_WITH_VERSIONS:
            if bound is self.bound and mismatches is self.mismatches:
                return self
            return TraceVersions(self.sequence_number, bound, mismatches, tools, answers)
        schemas = schemas_of(envelope, payload)
        if schemas is not None and not any(one[:4] == schemas[:4] for one in tools):
            tools = (*tools, schemas)[-items_max:]
        answer = answer_of(envelope, payload)
        if answer is not None and not any(one[:5] == answer[:5] for one in answers):
            answers = (*answers, answer)[-items_max:]
        if bound is self.bound and mismatches is self.mismatches and tools is self.tools and answers is self.answers:
            return self
        return TraceVersions(self.sequence_number, bound, mismatches, tools, answers)

    def plain(self) -> list[object]:
        """Return all fields as JSON values."""
        return [self.sequence_number, self.bound, self.mismatches, self.tools, self.answers]


def answer_of(envelope: Envelope, payload: str) -> ModelAnswer | None:
    """Return the answer that a diagnostic records; None for other events, and if no model answered."""
    if payload != "agent_diagnostic" or not envelope.agent_diagnostic.HasField("llm_invocation"):
        return None
    call = envelope.agent_diagnostic.llm_invocation
    if not call.llm_model:
        return None
    return ModelAnswer(
        call.prompt_hash, call.requested_model, call.llm_provider, call.llm_model, call.output_hash, envelope.sequence_number
    )


def schemas_of(envelope: Envelope, payload: str) -> ToolSchemas | None:
    """Return the schemas that a tool event names, or None."""
    if payload == "tool_call":
        call = envelope.tool_call
        if call.request_schema_hash:
            return ToolSchemas(call.tool_name, call.tool_version, call.request_schema_hash, "", envelope.sequence_number)
    elif payload == "tool_result":
        result = envelope.tool_result
        if result.response_schema_hash:
            return ToolSchemas(result.tool_name, result.tool_version, "", result.response_schema_hash, envelope.sequence_number)
    return None
