"""Validation of payloads, one function per category. Each reports all violations; the envelope has passed its own validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gavel.v1 import execution_pb2
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus
from gavel.v1.fact_pb2 import ObservedFrom
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules import limits
from gavel_rules.derivation import is_derived
from gavel_rules.events.ids import is_uuid
from gavel_rules.events.kinds import LLM_INVOCATION_COMMITTED
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.values import INTEGER_MAX, struct_problems, text_problem, value_problems
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from gavel_server.intake.envelope_validation import SET_BY_SERVER, Violations
from gavel_server.intake.formats import EVENT_NAME, EXECUTION_ID, NAME, REASON_CODE, SCHEMA_SHA256, SHA256, is_dotted_name, is_time

_NO_HASH: Final = 'is not "sha256:" and 64 lower-case hexadecimal digits'
_REPORTABLE: Final = frozenset(ExecutionStatus.values()) - {
    execution_pb2.EXECUTION_STATUS_UNSPECIFIED,
    execution_pb2.EXECUTION_STATUS_STARTED,
}
_CHANNELS: Final = frozenset(ObservedFrom.values())


def payload_violations(envelope: Envelope, payload: str) -> Violations:
    """Return the violations of a payload other than a proposal; `payload` names it."""
    violations: Violations = []
    _CHECKS[payload](envelope, violations)
    return violations


def proposal_violations(proposal: ProposalView) -> Violations:
    """Return the violations of a proposal."""
    violations: Violations = []
    path = "envelope.proposal"
    action_type = proposal.action_type
    if len(action_type) > limits.ACTION_TYPE_LENGTH_MAX or not is_dotted_name(action_type):
        violations.append((f"{path}.action_type", 'is not a dotted name of at most 128 characters, e.g. "refund.create"'))
    violations.extend(struct_problems(proposal.struct, f"{path}.params", proposal.params))
    problem = text_problem(proposal.expected_outcome)
    if problem:
        violations.append((f"{path}.expected_outcome", problem))
    if not 0.0 <= proposal.cost <= INTEGER_MAX:
        violations.append((f"{path}.cost", "is not between 0 and 2^53"))
    if not 0.0 <= proposal.risk <= 1.0:
        violations.append((f"{path}.risk", "is not between 0 and 1"))
    if not 0.0 <= proposal.confidence <= 1.0:
        violations.append((f"{path}.confidence", "is not between 0 and 1"))
    if not 0 < proposal.max_fact_age_ms <= INTEGER_MAX:
        violations.append((f"{path}.max_fact_age_ms", "is required: milliseconds, from 1 to 2^53"))
    if proposal.required_facts:  # mostly empty, and iterating an empty repeated field still raises StopIteration
        if len(proposal.required_facts) > limits.REQUIRED_FACTS_MAX:
            violations.append((f"{path}.required_facts", f"has more than {limits.REQUIRED_FACTS_MAX} items"))
        else:
            for index, key in enumerate(proposal.required_facts):
                _check_key(key, f"{path}.required_facts[{index}]", violations)
    citations = proposal.citations
    if len(citations) > limits.BASED_ON_EVENTS_MAX:
        violations.append((f"{path}.based_on_events", f"has more than {limits.BASED_ON_EVENTS_MAX} items"))
        citations = []
    for index, (sequence_number, event_id) in enumerate(citations):
        if not is_uuid(event_id):
            violations.append((f"{path}.based_on_events[{index}].event_id", "is not a UUID in canonical form"))
        if sequence_number < 1:
            violations.append((f"{path}.based_on_events[{index}].sequence_number", "is not at least 1"))
    if proposal.projection_version is not None and proposal.projection_version < 0:
        violations.append((f"{path}.projection_version", "is negative"))
    if proposal.competes:
        violations.append((f"{path}.contest", SET_BY_SERVER))
    return violations


def _check_fact(envelope: Envelope, violations: Violations) -> None:
    fact = envelope.fact
    path = "envelope.fact"
    _check_key(fact.key, f"{path}.key", violations)
    if not fact.HasField("value") or fact.value.WhichOneof("kind") is None:
        violations.append((f"{path}.value", "is required; null retracts the key"))
    else:
        violations.extend(value_problems(fact.value, f"{path}.value"))
    if fact.observed_from not in _CHANNELS:
        violations.append((f"{path}.observed_from", f"{fact.observed_from} is unknown"))
    if not 0 <= fact.max_age_ms <= INTEGER_MAX:
        violations.append((f"{path}.max_age_ms", "is not from 0 to 2^53"))
    if not is_derived(fact):
        for field, sent in (("trust_tier", fact.trust_tier), ("aged_from", fact.HasField("aged_from"))):
            if sent:
                violations.append((f"{path}.{field}", "is only allowed for a derived fact"))
    else:
        if not is_uuid(fact.decision_id):
            violations.append((f"{path}.decision_id", "is required for a derived fact: the decision's UUID"))
        for field, value in (
            ("execution_id", fact.execution_id),
            ("derivation_rule_id", fact.derivation_rule_id),
        ):
            if not NAME.match(value):
                violations.append((f"{path}.{field}", "is required for a derived fact"))
        if not envelope.event_id:
            violations.append(("envelope.event_id", "is required for a derived fact"))


def _check_observation(envelope: Envelope, violations: Violations) -> None:
    observation = envelope.observation
    path = "envelope.observation"
    if not NAME.match(observation.source_tool):
        violations.append((f"{path}.source_tool", "is required: 1 to 128 printable ASCII characters"))
    if not 0.0 < observation.confidence <= 1.0:
        violations.append((f"{path}.confidence", "is required: above 0, at most 1"))
    if not 1 <= len(observation.extracted_fields) <= limits.EXTRACTED_FIELDS_MAX:
        violations.append((f"{path}.extracted_fields", f"does not have 1 to {limits.EXTRACTED_FIELDS_MAX} keys"))
    else:
        for key in sorted(observation.extracted_fields):
            _check_key(key, f"{path}.extracted_fields", violations)
            violations.extend(value_problems(observation.extracted_fields[key], f"{path}.extracted_fields.{key}"))
    if not is_uuid(observation.evidence_ref):
        violations.append((f"{path}.evidence_ref", "is required: the UUID of the event that the observation rests on"))
    for field, sent in (("trust_tier", observation.trust_tier), ("evidence_recorded_at", observation.HasField("evidence_recorded_at"))):
        if sent:
            violations.append((f"{path}.{field}", SET_BY_SERVER))
    _check_hashes(path, violations, evidence_hash=observation.evidence_hash)
    _check_texts(observation, path, violations, skip=("extracted_fields",))


def _check_tool_call(envelope: Envelope, violations: Violations) -> None:
    call = envelope.tool_call
    path = "envelope.tool_call"
    _check_tool(call, path, violations)
    _check_hashes(path, violations, arguments_hash=call.arguments_hash)
    _check_schema_hash(f"{path}.request_schema_hash", call.request_schema_hash, violations)
    if call.decision_id and not is_uuid(call.decision_id):
        violations.append((f"{path}.decision_id", "is not a UUID in canonical form"))
    if bool(call.decision_id) != bool(call.attempt) or call.attempt < 0:
        violations.append((f"{path}.attempt", "is required with decision_id, and only then: the number of the attempt, from 1"))
    _check_texts(call, path, violations)


def _check_tool_result(envelope: Envelope, violations: Violations) -> None:
    result = envelope.tool_result
    path = "envelope.tool_result"
    _check_tool(result, path, violations)
    if not result.is_error and not result.content_hash:
        violations.append((f"{path}.content_hash", "is required unless is_error"))
    _check_hashes(path, violations, content_hash=result.content_hash, evidence_hash=result.evidence_hash)
    _check_schema_hash(f"{path}.response_schema_hash", result.response_schema_hash, violations)
    if result.reproducible:
        for field, value in (("query_ref", result.query_ref), ("snapshot_ref", result.snapshot_ref)):
            if not value:
                violations.append((f"{path}.{field}", "is required for a reproducible result"))
    if result.duration_ms < 0:
        violations.append((f"{path}.duration_ms", "is negative"))
    _check_texts(result, path, violations)


def _check_tool(event: ToolCall | ToolResult, path: str, violations: Violations) -> None:
    """Check what a tool call and its result have in common."""
    if not NAME.match(event.tool_name):
        violations.append((f"{path}.tool_name", "is required: 1 to 128 printable ASCII characters"))
    if event.execution_id and not EXECUTION_ID.match(event.execution_id):
        violations.append((f"{path}.execution_id", 'is not "exec_" and 12 hex digits'))


def _check_diagnostic(envelope: Envelope, violations: Violations) -> None:
    diagnostic = envelope.agent_diagnostic
    path = "envelope.agent_diagnostic"
    if not EVENT_NAME.match(diagnostic.kind):
        violations.append((f"{path}.kind", "is required: PascalCase of at most 128 characters"))
    violations.extend(struct_problems(diagnostic.attributes, f"{path}.attributes"))
    detail = diagnostic.WhichOneof("detail")
    if detail is not None:
        _check_texts(getattr(diagnostic, detail), f"{path}.{detail}", violations)
    if detail == "graph_transition":
        for name in ("input_event_ids", "output_event_ids"):
            _check_event_ids(getattr(diagnostic.graph_transition, name), f"{path}.{detail}.{name}", violations)
    if detail == "llm_invocation" or diagnostic.kind == LLM_INVOCATION_COMMITTED:
        _check_invocation(diagnostic, f"{path}.llm_invocation", violations)


def _check_invocation(diagnostic: AgentDiagnostic, path: str, violations: Violations) -> None:
    """Check the metadata of a model's call; the kind LlmInvocationCommitted requires the names of models and provider."""
    invocation = diagnostic.llm_invocation
    if diagnostic.kind == LLM_INVOCATION_COMMITTED:
        required = {"requested_model": invocation.requested_model, "prompt_hash": invocation.prompt_hash}
        if not invocation.attempts or not invocation.attempts[-1].error_code:
            required |= {"llm_model": invocation.llm_model, "llm_provider": invocation.llm_provider}
        violations.extend(
            (f"{path}.{field}", f"is required for {LLM_INVOCATION_COMMITTED}") for field, value in required.items() if not value
        )
    hashes = {"prompt_hash": invocation.prompt_hash, "output_hash": invocation.output_hash, "evidence_hash": invocation.evidence_hash}
    _check_hashes(path, violations, **hashes)
    for field in ("duration_ms", "token_count", "input_token_count", "output_token_count"):
        if getattr(invocation, field) < 0:
            violations.append((f"{path}.{field}", "is negative"))
    violations.extend(struct_problems(invocation.settings, f"{path}.settings"))
    if len(invocation.attempts) > limits.LLM_ATTEMPTS_MAX:
        violations.append((f"{path}.attempts", f"has more than {limits.LLM_ATTEMPTS_MAX} items"))
        return
    for index, attempt in enumerate(invocation.attempts):
        _check_texts(attempt, f"{path}.attempts[{index}]", violations)
        if attempt.duration_ms < 0:
            violations.append((f"{path}.attempts[{index}].duration_ms", "is negative"))


def _check_event_ids(event_ids: Sequence[str], path: str, violations: Violations) -> None:
    if len(event_ids) > limits.TRANSITION_EVENTS_MAX:
        violations.append((path, f"has more than {limits.TRANSITION_EVENTS_MAX} items"))
        return
    for index, event_id in enumerate(event_ids):
        if not is_uuid(event_id):
            violations.append((f"{path}[{index}]", "is not a UUID in canonical form"))


def _check_execution(envelope: Envelope, violations: Violations) -> None:
    execution = envelope.execution
    path = "envelope.execution"
    if not is_uuid(execution.decision_id):
        violations.append((f"{path}.decision_id", "is required: the approved decision's UUID"))
    if not EXECUTION_ID.match(execution.execution_id):
        violations.append((f"{path}.execution_id", 'is required: "exec_" and 12 hex digits, from BeginExecution'))
    if execution.status not in _REPORTABLE:
        violations.append((f"{path}.status", "is not SUCCESS, FAILED, PARTIAL, TIMEOUT or ABORTED"))
    if execution.attempt < 0:
        violations.append((f"{path}.attempt", "is negative"))
    if not REASON_CODE.match(execution.reason_code):
        violations.append((f"{path}.reason_code", "is not UPPER_SNAKE_CASE of at most 128 characters"))
    violations.extend(struct_problems(execution.result, f"{path}.result"))
    if len(execution.completed_steps) > limits.COMPLETED_STEPS_MAX:
        violations.append((f"{path}.completed_steps", f"has more than {limits.COMPLETED_STEPS_MAX} items"))
        skip: tuple[str, ...] = ("result", "completed_steps")
    else:
        skip = ("result",)
    for field, sent in (
        ("will_retry", execution.will_retry),
        ("lease_until", execution.HasField("lease_until")),
        ("request_id", execution.request_id),
        ("counters", execution.counters),
        ("warnings", execution.warnings),
    ):
        if sent:
            violations.append((f"{path}.{field}", SET_BY_SERVER))
    _check_texts(execution, path, violations, skip=skip)
    _check_texts(execution.error, f"{path}.error", violations)


def _check_key(key: str, field: str, violations: Violations) -> None:
    if len(key) > limits.FACT_KEY_LENGTH_MAX or not is_dotted_name(key):
        violations.append((field, 'is not a dotted fact key of at most 256 characters, e.g. "order.status"'))


def _check_hashes(path: str, violations: Violations, **hashes: str) -> None:
    """Check hashes by field name; each may be empty."""
    for field, value in hashes.items():
        if value and not SHA256.match(value):
            violations.append((f"{path}.{field}", _NO_HASH))


def _check_schema_hash(field: str, value: str, violations: Violations) -> None:
    """Check the hash of a schema, which may be empty, or have half its digits (constitution 000)."""
    if value and not SCHEMA_SHA256.match(value):
        violations.append((field, f"{_NO_HASH}; half of the digits are accepted too"))


def _check_texts(message: Message, path: str, violations: Violations, skip: Sequence[str] = ()) -> None:
    """Check a message's own strings, floats and times, except those of the fields `skip`, until there are VIOLATIONS_MAX violations."""
    for field, value in message.ListFields():
        if field.name in skip:
            continue
        items = [value] if isinstance(value, str | float | Timestamp) else [item for item in _items(value) if isinstance(item, str)]
        for item in items:
            if len(violations) >= limits.VIOLATIONS_MAX:
                return
            if isinstance(item, Timestamp):
                if not is_time(item):
                    violations.append((f"{path}.{field.name}", "is not a time between 1970 and 9999"))
            elif isinstance(item, float):
                if not -INTEGER_MAX <= item <= INTEGER_MAX:
                    violations.append((f"{path}.{field.name}", "is not a finite number within 2^53"))
            else:
                problem = text_problem(item)
                if problem:
                    violations.append((f"{path}.{field.name}", problem))


def _items(value: Any) -> list[Any]:
    """Return the items of a repeated field, else []. Not every container of protobuf has __iter__."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, bytes) else []


_CHECKS: Final[Mapping[str, Callable[[Envelope, Violations], None]]] = {
    "fact": _check_fact,
    "observation": _check_observation,
    "tool_call": _check_tool_call,
    "tool_result": _check_tool_result,
    "agent_diagnostic": _check_diagnostic,
    "execution": _check_execution,
}
