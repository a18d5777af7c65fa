"""The formats of exports, against the attributes that their specifications require."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from gavel.v1 import decision_pb2, identity_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.export.formats import LINES, cloudevent, jsonl, line, ocsf
from google.protobuf.json_format import ParseDict

from tests.unit.server.export.test_targets import event

TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
# CloudEvents 1.0 §3.1 and its JSON format: required attributes, types, and names of extensions.
CLOUDEVENT = {
    "type": "object",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": TEXT,
        "source": TEXT | {"format": "uri-reference"},
        "type": TEXT,
        "subject": TEXT,
        "time": {"type": "string", "format": "date-time"},
        "datacontenttype": TEXT,
        "data": {},
    },
    "additionalProperties": {"type": ["string", "boolean", "integer"]},
    "propertyNames": {"pattern": "^[a-z0-9]{1,20}$"},
}
# OCSF 1.3: what base_event, the class API Activity and the objects that it requires require.
OCSF = {
    "type": "object",
    "required": [
        "activity_id",
        "category_uid",
        "class_uid",
        "metadata",
        "severity_id",
        "time",
        "type_uid",
        "actor",
        "api",
        "src_endpoint",
    ],
    "properties": {
        "category_uid": {"const": 6},
        "class_uid": {"const": 6003},
        "activity_id": {"enum": [0, 1, 2, 3, 4, 99]},
        "type_uid": {"const": 600399},
        "severity_id": {"enum": [0, 1, 2, 3, 4, 5, 6, 99]},
        "time": {"type": "integer", "minimum": 0},
        "metadata": {
            "type": "object",
            "required": ["product", "version"],
            "properties": {"version": {"const": "1.3.0"}, "product": {"type": "object", "required": ["name", "vendor_name"]}},
        },
        "actor": {"type": "object", "required": ["user"], "properties": {"user": {"type": "object", "required": ["name"]}}},
        "api": {"type": "object", "required": ["operation"]},
        "src_endpoint": {"type": "object", "required": ["name"]},
        "action_id": {"enum": [0, 1, 2]},
    },
}


@pytest.mark.parametrize(("name", "schema"), [("cloudevents", CLOUDEVENT), ("ocsf", OCSF)])
def test_required_attributes(name: str, schema: dict[str, Any]) -> None:
    """An event has what the specification requires, in its types."""
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    validator.validate(json.loads(line(name, event(1))))
    fact = Envelope(event_id="e", event_name="FactRecorded", bus="default", recorded_at=event(1).recorded_at)
    fact.fact.key = "order.status"
    fact.producer.id = "orders-db"
    validator.validate(json.loads(line(name, fact)))


def test_lines() -> None:
    """Each format is one line of JSON, the same at each export."""
    for name in LINES:
        content = line(name, event(1))
        assert (1, content) == (content.count(b"\n"), line(name, event(1)))


def test_lines_do_not_control_a_terminal() -> None:
    """Control and format characters that a caller has put into an event are escaped, and lose nothing."""
    hostile = Envelope(event_id="1", bus="default", subject="order/1")
    hostile.fact.key, hostile.fact.value.string_value = "order.note", "\x1b]0;title\x07\x9b2J\u202e退款"
    for name in LINES:
        content = line(name, hostile)
        assert content.decode().removesuffix("\n").isprintable()
        assert "退款" in content.decode()
    assert hostile == ParseDict(json.loads(line("jsonl", hostile)), Envelope())


def test_jsonl_is_the_envelope() -> None:
    """The line of jsonl parses to the envelope."""
    assert event(3) == ParseDict(json.loads(line("jsonl", event(3))), Envelope())


def test_cloudevent() -> None:
    """A CloudEvent names event, bus, kind and place in the log; its data is the envelope."""
    one = cloudevent(event(3))
    expected = ("event-3", "/gavel/default", "dev.gavel.v1.DecisionRejected", "order/ö", "0000000000000000003", "2023-11-14T22:13:20.005Z")
    assert expected == tuple(one[name] for name in ("id", "source", "type", "subject", "sequence", "time"))
    assert jsonl(event(3)) == one["data"]


@pytest.mark.parametrize(
    ("outcome", "control"),
    [
        (decision_pb2.OUTCOME_APPROVED, (1, 1)),
        (decision_pb2.OUTCOME_REJECTED, (2, 2)),
        (decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW, (0, 99)),
        (decision_pb2.OUTCOME_EXPIRED, (2, 2)),
        (decision_pb2.OUTCOME_REVOKED, (2, 2)),
    ],
)
def test_ocsf_of_decisions(outcome: decision_pb2.Outcome.ValueType, control: tuple[int, int]) -> None:
    """A decision is a control that allowed or denied; no other outcome counts as allowed."""
    decision = event(3)
    decision.decision.outcome = outcome
    one = ocsf(decision)
    assert control == (one["action_id"], one["disposition_id"])
    assert ["security_control"] == one["metadata"]["profiles"]


def test_ocsf_actor() -> None:
    """The actor is the authenticated caller, else the producer."""
    decision = event(3)
    assert "gavel" == ocsf(decision)["actor"]["user"]["name"]
    decision.attestation.CopyFrom(identity_pb2.Attestation(principal="spiffe://acme/orders-db"))
    assert "spiffe://acme/orders-db" == ocsf(decision)["actor"]["user"]["name"]
