"""Admission of envelopes: violations in the order shape, producer, permission, payload; and completion."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

import pytest
from gavel.v1 import common_pb2, error_pb2, execution_pb2, fact_pb2
from gavel.v1.common_pb2 import Producer, ProducerType
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact
from gavel.v1.proposal_pb2 import Proposal
from gavel_rules.events.ids import derived_event_id
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.timestamps import timestamp
from gavel_rules.limits import MESSAGE_BYTES_MAX
from gavel_rules.values import python_to_value, struct_to_dict
from gavel_server.errors import ServiceError
from gavel_server.intake.admission import LOCAL_PRODUCER_ID, admit, admit_proposal, producer_for_execution
from gavel_server.intake.envelope_validation import GROWTH_MAX
from gavel_server.intake.permissions import RESERVED_DIAGNOSTIC_KINDS
from google.protobuf.struct_pb2 import Struct

from tests.support.driver import AGENT, ALL_PAYLOADS, EXECUTOR, SUBJECT, Core, document, fact_envelope
from tests.support.envelopes import (
    UUID,
    VALID,
    Change,
    fields,
    refusal,
    set_field,
    valid_diagnostic,
    valid_execution,
    valid_fact,
    valid_proposal,
)
from tests.support.paths import ROOT

# Shape


SHAPE: list[tuple[str, Change, str]] = [
    ("no payload", lambda envelope: envelope.ClearField("fact"), "payload"),
    ("unknown category", set_field("event_category", 77), "event_category"),
    ("category of another payload", set_field("event_category", common_pb2.EVENT_CATEGORY_PROPOSAL_EVENT), "event_category"),
    ("another schema", set_field("schema_version", "gavel.v2"), "schema_version"),
    ("another bus", set_field("bus", "other"), "bus"),
    ("sequence number", set_field("sequence_number", 1), "sequence_number"),
    ("recorded_at", set_field("recorded_at", timestamp(1)), "recorded_at"),
    ("chain hash", set_field("chain_hash", b"x"), "chain_hash"),
    ("trace context", set_field("traceparent", "00-1"), "traceparent"),
    ("event_id that is none", set_field("event_id", "123"), "event_id"),
    ("reserved event_id", set_field("event_id", derived_event_id(UUID, 1, "decision")), "event_id"),
    ("upper case event_id", set_field("event_id", UUID.replace("4", "A")), "event_id"),
    ("long trace", set_field("trace_id", "x" * 129), "trace_id"),
    ("trace with a line break", set_field("trace_id", "a\nb"), "trace_id"),
    ("trace beyond ASCII", set_field("trace_id", "é"), "trace_id"),
    ("cause that is none", set_field("causation_id", "123"), "causation_id"),
    ("name in lower case", set_field("event_name", "orderCreated"), "event_name"),
    ("long name", set_field("event_name", "A" * 129), "event_name"),
    ("name with a space", set_field("event_name", "Order Created"), "event_name"),
    ("no subject", set_field("subject", ""), "subject"),
    ("subject without id", set_field("subject", "order"), "subject"),
    ("subject without type", set_field("subject", "/1"), "subject"),
    ("subject in upper case", set_field("subject", "Order/1"), "subject"),
    ("subject with another character", set_field("subject", "order/1#2"), "subject"),
    ("subject with an empty part", set_field("subject", "order/1//2"), "subject"),
    ("subject with a line break", set_field("subject", "order/1\n"), "subject"),
    ("long type", set_field("subject", "o" * 65 + "/1"), "subject"),
    ("long subject", set_field("subject", "order/" + "1" * 251), "subject"),
    ("subject of too many bytes", set_field("subject", "order/" + "\u00e9" * 126), "subject"),
    ("subject with a symbol", set_field("subject", "order/\u20ac"), "subject"),
    ("subject with a space beyond ASCII", set_field("subject", "order/1\u00a02"), "subject"),
    ("type beyond ASCII", set_field("subject", "\u00e9/1"), "subject"),
    ("time before 1970", set_field("occurred_at", timestamp(-1)), "occurred_at"),
    ("time after 9999", set_field("occurred_at.seconds", 253_402_300_800), "occurred_at"),
    ("nanoseconds beyond a second", set_field("occurred_at.nanos", 1_000_000_000), "occurred_at"),
    ("binding beyond ASCII", set_field("version_binding.planner_version", "é"), "version_binding.planner_version"),
    ("long binding", set_field("version_binding.schema_version", "x" * 129), "version_binding.schema_version"),
]


@pytest.mark.parametrize(("name", "change", "field"), SHAPE, ids=[name for name, _, _ in SHAPE])
def test_shape(name: str, change: Change, field: str) -> None:
    """Each violation of an envelope's shape is reported with its field, and no other."""
    envelope = valid_fact()
    change(envelope)
    assert [f"envelope.{field}"] == fields(refusal(envelope))


@pytest.mark.parametrize("payload", VALID)
def test_smallest_valid_envelopes_are_admitted(payload: str) -> None:
    """The smallest valid envelope of every payload is admitted."""
    admit(VALID[payload](), "default", frozenset({payload}))


@pytest.mark.parametrize("payload", VALID)
def test_payload_of_another_call_is_refused(payload: str) -> None:
    """A payload that belongs to another call is refused by name."""
    others = ALL_PAYLOADS - {payload}
    assert [f"envelope.{payload}"] == fields(refusal(VALID[payload](), others))


def test_oversized_envelope_is_refused() -> None:
    """An envelope of more than a mebibyte is refused."""
    envelope = valid_fact()
    envelope.fact.value.CopyFrom(python_to_value(["x" * 60_000] * 18))
    assert ["envelope"] == fields(refusal(envelope))


def test_size_is_that_of_the_serialized_envelope() -> None:
    """An envelope sent in less than a mebibyte is refused if it takes more when serialized again."""
    # Lists of Structs whose one entry has neither key nor value: 6 bytes each as sent here, 10 as they are written.
    item = b"\x0a\x04\x2a\x02\x0a\x00"
    envelope = valid_fact()
    envelope.fact.value.Clear()
    envelope.fact.value.list_value.MergeFromString(item * 110_000)
    sent_bytes = 120 + len(item) * 110_000
    assert sent_bytes < MESSAGE_BYTES_MAX
    with pytest.raises(ServiceError) as error_info:
        admit(envelope, "default", ALL_PAYLOADS, sent_bytes)
    assert ["envelope"] == fields(error_info.value)


def test_growth_by_serialization_is_bounded() -> None:
    """An empty map entry grows most when serialized again; an envelope smaller by that factor needs no measuring."""
    assert GROWTH_MAX * 2 == Struct.FromString(b"\x0a\x00").ByteSize()
    assert admit(valid_fact(), "default", ALL_PAYLOADS, MESSAGE_BYTES_MAX // GROWTH_MAX) == ""


def test_an_execution_needs_no_subject() -> None:
    """A report without a subject has that of its decision; a sent subject must be valid."""
    envelope = valid_execution()
    admit(Envelope.FromString(envelope.SerializeToString()), "default", ALL_PAYLOADS)
    envelope.subject = "nothing"
    assert ["envelope.subject"] == fields(refusal(envelope))


def test_a_derived_fact_keeps_its_id() -> None:
    """Only a derived fact may carry a reserved id."""
    core = Core(document())
    report = core.report(core.start(core.approve()), execution_pb2.EXECUTION_STATUS_SUCCESS)
    (fact,) = core.derived_facts(report)
    assert admit(fact, "default", ALL_PAYLOADS)
    fact.event_id = "nothing"
    assert ["envelope.event_id"] == fields(refusal(fact))


# Producer and authority


PRODUCERS: list[tuple[str, Change, str]] = [
    ("no type", set_field("producer.type", 0), "producer.type"),
    ("unknown type", set_field("producer.type", 77), "producer.type"),
    ("no id", set_field("producer.id", ""), "producer.id"),
    ("id with a space", set_field("producer.id", "orders db"), "producer.id"),
    ("long id", set_field("producer.id", "x" * 129), "producer.id"),
    ("version beyond ASCII", set_field("producer.version", "é"), "producer.version"),
    ("long version", set_field("producer.version", "x" * 129), "producer.version"),
]


@pytest.mark.parametrize(("name", "change", "field"), PRODUCERS, ids=[name for name, _, _ in PRODUCERS])
def test_producer(name: str, change: Change, field: str) -> None:
    """Each violation of the producer is reported with its field."""
    envelope = valid_fact()
    change(envelope)
    assert [f"envelope.{field}"] == fields(refusal(envelope))


@pytest.mark.parametrize("payload", VALID)
@pytest.mark.parametrize("producer_type", ProducerType.values())
def test_producers_publish_their_own_categories(payload: str, producer_type: ProducerType.ValueType) -> None:
    """A producer may publish its own categories and no others (constitution §4.9)."""
    if not producer_type:
        return
    envelope = VALID[payload]()
    envelope.producer.type = producer_type
    allowed = {
        "fact": {"SENSOR", "API", "DATABASE_SNAPSHOT", "SYSTEM"},
        "execution": {"EXECUTOR"},
        "agent_diagnostic": {"AGENT", "SYSTEM"},
        "tool_call": {"AGENT", "TOOL_RUNTIME"},
        "tool_result": {"AGENT", "TOOL_RUNTIME"},
    }.get(payload, {"AGENT"})
    if ProducerType.Name(producer_type).removeprefix("PRODUCER_TYPE_") in allowed:
        admit(envelope, "default", ALL_PAYLOADS)
    else:
        assert error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED == refusal(envelope).reason


def test_decisions_cannot_be_published() -> None:
    """A DECISION is refused from every producer, also under the arbitrator's name."""
    for producer_type in ProducerType.values():
        envelope = Envelope(subject=SUBJECT, producer=Producer(type=producer_type, id="x"))
        envelope.decision.SetInParent()
        assert error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED == refusal(envelope, frozenset({"fact"})).reason


RESERVED: list[tuple[str, Callable[[], Envelope], Change]] = [
    ("system fact", valid_fact, set_field("fact.bus_opened.arbiter_version", 1)),
    ("activation", valid_fact, set_field("fact.rule_set_activated.policy_id", "x")),
    ("decision_id", valid_fact, set_field("fact.decision_id", UUID)),
    ("execution_id", valid_fact, set_field("fact.execution_id", "exec_00000000000a")),
    ("derivation rule", valid_fact, set_field("fact.derivation_rule_id", "x")),
    ("derivation version", valid_fact, set_field("fact.derivation_rule_version", 1)),
    ("executor feedback", valid_fact, set_field("fact.observed_from", fact_pb2.OBSERVED_FROM_EXECUTOR_FEEDBACK)),
    ("human input", valid_fact, set_field("fact.observed_from", fact_pb2.OBSERVED_FROM_HUMAN_INPUT)),
    ("the reactor's name", valid_fact, set_field("producer", Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id="fact-derivation-reactor"))),
    ("the reactor's name as another producer", valid_fact, set_field("producer.id", "fact-derivation-reactor")),
    ("a notice of Gavel's", valid_diagnostic, set_field("agent_diagnostic.kind", "NeedsHumanReview")),
    ("a decision's name", valid_diagnostic, set_field("event_name", "DecisionApproved")),
    ("a notice's name", valid_diagnostic, set_field("event_name", "NeedsHumanReview")),
    ("a system fact's name", valid_fact, set_field("event_name", "RuleSetActivated")),
    ("a request for facts", valid_diagnostic, set_field("agent_diagnostic.fact_collection.decision_id", "x")),
    ("a shadow's verdict", valid_diagnostic, set_field("agent_diagnostic.shadow_difference.decision_id", "x")),
    ("a shadow's notice", valid_diagnostic, set_field("agent_diagnostic.kind", "ShadowDifference")),
    ("an escalation", valid_diagnostic, set_field("agent_diagnostic.review_escalated.decision_id", "x")),
    ("an escalation's notice", valid_diagnostic, set_field("agent_diagnostic.kind", "ReviewEscalated")),
    ("a vote's name", valid_fact, set_field("event_name", "ReviewVoted")),
    ("a late report", valid_diagnostic, set_field("agent_diagnostic.late_execution.executor_id", "x")),
]


@pytest.mark.parametrize(("name", "make", "change"), RESERVED, ids=[name for name, _, _ in RESERVED])
def test_reserved_fields(name: str, make: Callable[[], Envelope], change: Change) -> None:
    """Fields reserved for the server and the reactor are FIELD_RESERVED."""
    envelope = make()
    change(envelope)
    assert error_pb2.ERROR_REASON_FIELD_RESERVED == refusal(envelope).reason


def test_every_notice_of_gavel_is_reserved() -> None:
    """No producer can write a diagnostic of a kind that the core writes."""
    written = {
        kind
        for path in (ROOT / "rules/gavel_rules").rglob("*.py")
        for kind in re.findall(r'(?:\bkind=|\bkind = |KIND: Final = )"([A-Z]\w+)"', path.read_text(encoding="utf-8"))
    }
    assert written == RESERVED_DIAGNOSTIC_KINDS


def test_reserved_producer_id() -> None:
    """The producer id "gavel" is reserved for the server, whatever the type."""
    for make in VALID.values():
        envelope = make()
        envelope.producer.id = "gavel"
        assert error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED == refusal(envelope).reason


@pytest.mark.parametrize(
    ("producer_type", "channel"),
    [
        (common_pb2.PRODUCER_TYPE_SENSOR, fact_pb2.OBSERVED_FROM_SENSOR),
        (common_pb2.PRODUCER_TYPE_API, fact_pb2.OBSERVED_FROM_API),
        (common_pb2.PRODUCER_TYPE_DATABASE_SNAPSHOT, fact_pb2.OBSERVED_FROM_DB),
        (common_pb2.PRODUCER_TYPE_SYSTEM, fact_pb2.OBSERVED_FROM_HUMAN_INPUT),
    ],
)
def test_a_fact_s_channel_follows_from_its_producer(
    producer_type: ProducerType.ValueType, channel: fact_pb2.ObservedFrom.ValueType
) -> None:
    """Without `observed_from` the producer's type implies the channel; people use the gateway only."""
    envelope = fact_envelope("k.value", 1, producer_type=producer_type)
    admit(envelope, "default", ALL_PAYLOADS)
    assert channel == envelope.fact.observed_from
    webhook = fact_envelope("k.value", 1, producer_type=producer_type)
    webhook.fact.observed_from = fact_pb2.OBSERVED_FROM_WEBHOOK
    if producer_type == common_pb2.PRODUCER_TYPE_SYSTEM:
        assert error_pb2.ERROR_REASON_FIELD_RESERVED == refusal(webhook).reason
    else:
        admit(webhook, "default", ALL_PAYLOADS)


# Order


def test_all_violations_at_once() -> None:
    """All violations of a step are reported, and the message counts them."""
    envelope = Envelope(subject="x", trace_id="\n", sequence_number=1, event_id="x", fact=Fact())
    error = refusal(envelope)
    expected = ["envelope.sequence_number", "envelope.event_id", "envelope.trace_id", "envelope.subject"]
    assert expected == fields(error)
    assert error.message.endswith("(and 3 more)")
    proposal = Envelope(subject=SUBJECT, proposal=Proposal(risk=2, confidence=-1, cost=-1))
    assert ["action_type", "cost", "risk", "confidence", "max_fact_age_ms"] == [
        field.removeprefix("envelope.proposal.") for field in fields(refusal(proposal))
    ]


def test_shape_comes_before_authority() -> None:
    """A malformed envelope is refused for its shape, whoever sends it."""
    envelope = valid_fact()
    envelope.producer.CopyFrom(AGENT)
    envelope.subject = ""
    assert ["envelope.subject"] == fields(refusal(envelope))


def test_authority_comes_before_the_payload() -> None:
    """A forged producer is refused before its payload is checked."""
    envelope = valid_fact()
    envelope.producer.CopyFrom(AGENT)
    envelope.fact.ClearField("value")
    envelope.fact.key = "NO KEY"
    assert error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED == refusal(envelope).reason


# Completion


@pytest.mark.parametrize("payload", VALID)
def test_admission_completes_empty_fields(payload: str) -> None:
    """Admission completes name, id and trace where they are empty, and changes nothing else."""
    names = {
        "proposal": "ProposalSubmitted",
        "fact": "FactRecorded",
        "observation": "ObservationRecorded",
        "tool_call": "ToolCalled",
        "tool_result": "ToolReturned",
        "agent_diagnostic": "DiagnosticRecorded",
        "execution": "ExecutionSucceeded",
    }
    envelope = VALID[payload]()
    before = Envelope.FromString(envelope.SerializeToString())
    assert not admit(envelope, "a-bus", ALL_PAYLOADS)
    assert names[payload] == envelope.event_name
    assert 7 == uuid.UUID(envelope.event_id).version
    assert ("" if payload == "execution" else envelope.event_id) == envelope.trace_id
    for field in ("event_name", "event_id", "trace_id"):
        envelope.ClearField(field)
    if payload == "fact":
        envelope.fact.ClearField("observed_from")
    assert before == envelope


@pytest.mark.parametrize("filled", [True, False], ids=["said", "left to the server"])
def test_proposal_view_has_the_values_of_the_envelope(filled: bool) -> None:
    """The view of an admitted proposal has the values of its completed envelope."""
    envelope = valid_proposal()
    if filled:
        envelope.event_id, envelope.trace_id = UUID, "mine"
    else:
        envelope.ClearField("producer")
    command, idempotency_key = admit_proposal(envelope, "default")
    proposal = command.proposal
    assert (UUID if filled else "") == idempotency_key
    names = ("event_id", "trace_id", "causation_id", "subject", "producer_type", "producer_id", "producer_version")
    assert [getattr(ProposalView(envelope), name) for name in names] == [getattr(proposal, name) for name in names]
    assert (envelope.trace_id, struct_to_dict(envelope.proposal.params)) == (proposal.trace_id, proposal.params)


def test_fields_of_the_producer_are_unchanged() -> None:
    """A producer's own id, name and trace are kept; the id is the idempotency key."""
    envelope = valid_fact()
    envelope.event_id, envelope.event_name, envelope.trace_id = UUID, "OrderCreated", "mine"
    assert admit(envelope, "default", ALL_PAYLOADS)
    assert (UUID, "OrderCreated", "mine") == (envelope.event_id, envelope.event_name, envelope.trace_id)


def test_trace_stays_empty_until_the_cause_is_resolved() -> None:
    """An event with a cause and without a trace keeps the trace empty until its cause is resolved."""
    envelope = valid_fact()
    envelope.causation_id = UUID
    admit(envelope, "default", ALL_PAYLOADS)
    assert "" == envelope.trace_id


@pytest.mark.parametrize("payload", VALID)
def test_a_producer_may_be_implied(payload: str) -> None:
    """A payload of one producer type implies the local producer; facts and diagnostics must name theirs."""
    envelope = VALID[payload]()
    envelope.ClearField("producer")
    if payload in ("fact", "agent_diagnostic"):
        assert ["envelope.producer.type", "envelope.producer.id"] == fields(refusal(envelope))
    else:
        admit(envelope, "default", ALL_PAYLOADS)
        implied = common_pb2.PRODUCER_TYPE_EXECUTOR if payload == "execution" else common_pb2.PRODUCER_TYPE_AGENT
        assert Producer(type=implied, id=LOCAL_PRODUCER_ID) == envelope.producer


def test_the_executor_of_a_call_without_an_envelope() -> None:
    """The producer of BeginExecution is checked like an envelope's: completed if empty, refused if it may not execute."""
    assert Producer(type=common_pb2.PRODUCER_TYPE_EXECUTOR, id=LOCAL_PRODUCER_ID) == producer_for_execution(Producer())
    assert EXECUTOR == producer_for_execution(EXECUTOR)
    with pytest.raises(ServiceError) as error_info:
        producer_for_execution(AGENT)
    assert error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED == error_info.value.reason
    with pytest.raises(ServiceError) as error_info:
        producer_for_execution(Producer(id="a b"))
    assert ["producer.id"] == fields(error_info.value)
