"""Decisions for people and for frameworks: `explain` in sentences, `to_dict` as JSON values."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from gavel.v1.arbitration_service_pb2 import WaitDecisionResponse
from gavel.v1.common_pb2 import TrustTier
from gavel.v1.decision_pb2 import (
    OUTCOME_APPROVED,
    OUTCOME_EXPIRED,
    OUTCOME_NEEDS_HUMAN_REVIEW,
    OUTCOME_REJECTED,
    OUTCOME_REVOKED,
    Decision,
    FactRequirement,
    FactRequirementState,
    Outcome,
    RuleEffect,
    RuleMatch,
)
from gavel.v1.envelope_pb2 import Envelope
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from gavel_client.meanings import REASON_CODE_MEANINGS, remedy_meaning
from gavel_client.values import from_struct, from_value

_OUTCOMES: Final[Mapping[Outcome.ValueType, str]] = {
    OUTCOME_APPROVED: "approved",
    OUTCOME_REJECTED: "rejected",
    OUTCOME_NEEDS_HUMAN_REVIEW: "waits for a person",
    OUTCOME_EXPIRED: "expired: no executor started it in time",
    OUTCOME_REVOKED: "revoked by a person",
}


def explain(decision: Envelope | Decision | WaitDecisionResponse) -> str:
    """Return what was decided, why, and what can help, as a few lines for people or for a language model.

    The text names the rules that matched, with their conditions, the details that the deciding rule shows, and the evidence that is
    missing. Its wording may change; programs read the decision's fields.
    """
    match decision:
        case Envelope():
            content, subject = decision.decision, decision.subject
        case WaitDecisionResponse():
            content, subject = decision.decision.decision, decision.decision.subject
        case _:
            content, subject = decision, ""
    action = content.action_type + (f" on {subject}" if subject else "")
    reason = f" ({content.reason_code})" if content.reason_code else ""
    lines = [f"{action}: {_OUTCOMES.get(content.outcome, 'not decided')}{reason}."]
    if content.reason_code in REASON_CODE_MEANINGS:
        lines.append(f"Meaning: {REASON_CODE_MEANINGS[content.reason_code]}.")
    if content.rule_id:
        lines.append(f"Decided by rule {content.rule_id} of {content.policy_id} version {content.policy_version}.")
    lines += [_rule_line(match) for match in content.rule_matches]
    details = from_struct(content.details)
    if details:
        lines.append(
            f"Details: {', '.join(f'{name} = {json.dumps(value, ensure_ascii=False)}' for name, value in sorted(details.items()))}."
        )
    lines += [_requirement_line(row) for row in content.retry_hint.fact_requirements]
    if content.conflict_with_proposal_ids:
        lines.append(f"Conflicts with: {', '.join(content.conflict_with_proposal_ids)}.")
    lines += [f"Note: {warning.code} {warning.message}".rstrip() for warning in content.warnings]
    if content.outcome != OUTCOME_APPROVED:
        lines.append(_help_line(content))
    return "\n".join(lines)


def _rule_line(match: RuleMatch) -> str:
    effect = RuleEffect.Name(match.effect).removeprefix("RULE_EFFECT_").lower() if match.effect else match.effect_text
    condition = f": {match.condition}" if match.condition else ""
    return f"Rule {match.rule_id} of {match.policy_id} matched ({effect}){condition}"


def _requirement_line(row: FactRequirement) -> str:
    state = FactRequirementState.Name(row.state).removeprefix("FACT_REQUIREMENT_STATE_").replace("_", " ").lower()
    parts = [f"Needs {row.key} of {row.subject}: {state}"]
    if row.required_trust_tier:
        parts.append(f"tier {TrustTier.Name(row.required_trust_tier).removeprefix('TRUST_TIER_')[0]} or better")
    if row.max_age_ms:
        parts.append(f"at most {row.max_age_ms} ms old")
    if row.sources:
        parts.append(f"from {' or '.join(row.sources)}")
    return ", ".join(parts)


def _help_line(decision: Decision) -> str:
    hint = decision.retry_hint
    if decision.terminal:
        return "What helps: nothing in the present state. Do not propose it again in this trace."
    if not hint.remedy:  # arbiter_version 2
        return "What helps: another proposal." if hint.retryable else "What helps: nothing that the producer can do."
    texts = [remedy_meaning(remedy, decision) or f"remedy {remedy}" for remedy in hint.remedy]
    after = ""
    if hint.retry_after_ms and decision.conflict_with_proposal_ids:
        after = f" (it may take another {hint.retry_after_ms} ms, and may end sooner)"
    elif hint.retry_after_ms:
        after = f" (not before {hint.retry_after_ms} ms have passed)"
    return f"What helps: {'; or '.join(texts)}{after}."


def to_dict(message: Message) -> dict[str, Any]:
    """Return a message of the contract as JSON values, e.g. for the state of a graph, a log line or a prompt.

    Fields have the names of the proto files; unset fields are left out. Enum values are names, times are RFC 3339 text, durations
    are seconds, bytes are base64, whole numbers are int (proto3 JSON has them as text). A Struct is a dict.
    """
    return {field.name: _plain_field(field, value) for field, value in message.ListFields()}


def _plain_field(field: FieldDescriptor, value: Any) -> Any:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        item = entry.fields_by_name["value"]
        return {str(key): _plain(item, value[key]) for key in value}
    if _is_repeated(field):
        return [_plain(field, item) for item in value]
    return _plain(field, value)


def _is_repeated(field: FieldDescriptor) -> bool:
    # Protobuf has replaced `label` by `is_repeated`; the client works with both.
    repeated = getattr(field, "is_repeated", None)
    return bool(getattr(field, "label", 0) == FieldDescriptor.LABEL_REPEATED if repeated is None else repeated)


def _plain(field: FieldDescriptor, value: Any) -> Any:
    match value:
        case Struct():
            return from_struct(value)
        case Value():
            return from_value(value)
        case ListValue():
            return [from_value(item) for item in value.values]
        case Timestamp():
            return value.ToJsonString()
        case Duration():
            return value.seconds + value.nanos / 1e9
        case Message():
            return to_dict(value)
        case bytes():
            return base64.b64encode(value).decode()
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(cast(int, value))
        return value if named is None else named.name
    return value
