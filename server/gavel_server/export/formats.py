"""Events as JSON objects of other systems: Gavel's own JSON, CloudEvents 1.0, and OCSF 1.3 (docs/operating.md, "Exporting a log").

Each is a function of the envelope alone, so that a repeated export has the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from gavel.v1.common_pb2 import ProducerType
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_EXPIRED, OUTCOME_REJECTED, OUTCOME_REVOKED, Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.text import printable_json
from google.protobuf.json_format import MessageToDict

CLOUDEVENTS_VERSION: Final = "1.0"
OCSF_VERSION: Final = "1.3.0"
# The class API Activity of OCSF, with the activity Other: its name is that of the event.
_OCSF_CATEGORY, _OCSF_CLASS, _OCSF_ACTIVITY = 6, 6003, 99
_OCSF_INFORMATIONAL: Final = 1
# The attributes action_id and disposition_id of OCSF's profile security_control, by outcome.
_OCSF_ALLOWED, _OCSF_DENIED = (1, 1), (2, 2)
_OCSF_UNDECIDED: Final = (0, 99)
_OCSF_CONTROL: Final[Mapping[int, tuple[int, int]]] = {
    OUTCOME_APPROVED: _OCSF_ALLOWED,
    OUTCOME_REJECTED: _OCSF_DENIED,
    OUTCOME_EXPIRED: _OCSF_DENIED,
    OUTCOME_REVOKED: _OCSF_DENIED,
}

Fields = dict[str, Any]


def jsonl(envelope: Envelope) -> Fields:
    """Return the envelope as protobuf JSON with the contract's names."""
    return MessageToDict(envelope, preserving_proto_field_name=True)


def cloudevent(envelope: Envelope) -> Fields:
    """Return a CloudEvent; `sequence` is the extension of that name, wide enough to sort as text."""
    extensions = {"traceparent": envelope.traceparent, "gaveltrace": envelope.trace_id, "causation": envelope.causation_id}
    return {
        "specversion": CLOUDEVENTS_VERSION,
        "id": envelope.event_id,
        "source": f"/gavel/{envelope.bus}",
        "type": f"dev.gavel.v1.{envelope.event_name}",
        "subject": envelope.subject or envelope.bus,
        "time": envelope.recorded_at.ToJsonString(),
        "sequence": f"{envelope.sequence_number:019}",
        **{name: value for name, value in extensions.items() if value},
        "datacontenttype": "application/json",
        "data": jsonl(envelope),
    }


def ocsf(envelope: Envelope) -> Fields:
    """Return an event of OCSF's class API Activity; decisions have the profile security_control."""
    producer, caller = envelope.producer, envelope.attestation.principal
    payload = envelope.WhichOneof("payload") or ""
    operation = envelope.proposal.action_type or envelope.decision.action_type or envelope.event_name
    return {
        "category_uid": _OCSF_CATEGORY,
        "class_uid": _OCSF_CLASS,
        "activity_id": _OCSF_ACTIVITY,
        "activity_name": envelope.event_name,
        "type_uid": _OCSF_CLASS * 100 + _OCSF_ACTIVITY,
        "severity_id": _OCSF_INFORMATIONAL,
        "time": milliseconds(envelope.recorded_at),
        "metadata": {
            "version": OCSF_VERSION,
            "product": {"name": "Gavel", "vendor_name": "Gavel"},
            "uid": envelope.event_id,
            "sequence": envelope.sequence_number,
            "log_name": envelope.bus,
            "event_code": envelope.event_name,
            "original_time": envelope.occurred_at.ToJsonString(),
            "correlation_uid": envelope.trace_id,
            "profiles": ["security_control"] if payload == "decision" else [],
        },
        "actor": {"user": {"name": caller or producer.id}, "app_name": ProducerType.Name(producer.type)},
        "api": {"operation": operation, "service": {"name": "gavel"}},
        "src_endpoint": {"name": producer.id},
        "resources": [{"name": envelope.subject or envelope.bus, "type": "subject"}],
        **(_ocsf_control(envelope) if payload == "decision" else {}),
        "unmapped": {payload: jsonl(envelope).get(payload, {})},
    }


def _ocsf_control(envelope: Envelope) -> Fields:
    decision = envelope.decision
    action_id, disposition_id = _OCSF_CONTROL.get(decision.outcome, _OCSF_UNDECIDED)
    return {
        "action_id": action_id,
        "disposition_id": disposition_id,
        "disposition": Outcome.Name(decision.outcome).removeprefix("OUTCOME_"),
        "status_detail": decision.reason_code,
        "policy": {"uid": decision.policy_id, "version": str(decision.policy_version), "name": decision.rule_id},
    }


LINES: Final[Mapping[str, Callable[[Envelope], Fields]]] = {"jsonl": jsonl, "cloudevents": cloudevent, "ocsf": ocsf}


def line(name: str, envelope: Envelope) -> bytes:
    """Return an event as a line of a format of LINES."""
    # A line may go to a terminal.
    return printable_json(json.dumps(LINES[name](envelope), ensure_ascii=False, separators=(",", ":"))).encode() + b"\n"
