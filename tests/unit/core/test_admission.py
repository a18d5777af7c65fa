"""What may enter: every violation of a sent envelope, all at once, in the order shape, authority, payload; and what is filled in."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from gavel.v1 import common_pb2, error_pb2, execution_pb2, fact_pb2
from gavel.v1.common_pb2 import Producer, ProducerType
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact
from gavel.v1.proposal_pb2 import Proposal
from gavel_rules.events import derived_event_id, timestamp
from gavel_rules.limits import MESSAGE_BYTES_MAX
from gavel_rules.proposed import Header
from gavel_rules.values import python_to_value, struct_to_dict
from gavel_server.admission import GROWTH_MAX, LOCAL_PRODUCER_ID, admit, admit_proposal, producer_for_execution
from gavel_server.errors import ServiceError
from google.protobuf.struct_pb2 import Struct

from tests.unit.core.driver import AGENT, ALL_PAYLOADS, EXECUTOR, SUBJECT, Core, document, fact_envelope
from tests.unit.core.sent import (
    UUID,
    VALID,
    Change,
    fields,
    put,
    refused,
    sent_diagnostic,
    sent_execution,
    sent_fact,
    sent_proposal,
)

# Shape


SHAPE: list[tuple[str, Change, str]] = [
    ("no payload", lambda envelope: envelope.ClearField("fact"), "payload"),
    ("unknown category", put("event_category", 77), "event_category"),
    ("category of another payload", put("event_category", common_pb2.EVENT_CATEGORY_PROPOSAL_EVENT), "event_category"),
    ("another schema", put("schema_version", "gavel.v2"), "schema_version"),
    ("another bus", put("bus", "other"), "bus"),
    ("sequence number", put("sequence_number", 1), "sequence_number"),
    ("recorded_at", put("recorded_at", timestamp(1)), "recorded_at"),
    ("chain hash", put("chain_hash", b"x"), "chain_hash"),
    ("event_id that is none", put("event_id", "123"), "event_id"),
    ("reserved event_id", put("event_id", derived_event_id(UUID, 1, "decision")), "event_id"),
    ("upper case event_id", put("event_id", UUID.replace("4", "A")), "event_id"),
    ("long trace", put("trace_id", "x" * 129), "trace_id"),
    ("trace with a line break", put("trace_id", "a\nb"), "trace_id"),
    ("trace beyond ASCII", put("trace_id", "é"), "trace_id"),
    ("cause that is none", put("causation_id", "123"), "causation_id"),
    ("name in lower case", put("event_name", "orderCreated"), "event_name"),
    ("long name", put("event_name", "A" * 129), "event_name"),
    ("name with a space", put("event_name", "Order Created"), "event_name"),
    ("no subject", put("subject", ""), "subject"),
    ("subject without id", put("subject", "order"), "subject"),
    ("subject without type", put("subject", "/1"), "subject"),
    ("subject in upper case", put("subject", "Order/1"), "subject"),
    ("subject with a space", put("subject", "order/1 2"), "subject"),
    ("subject with a line break", put("subject", "order/1\n"), "subject"),
    ("long type", put("subject", "o" * 65 + "/1"), "subject"),
    ("long id", put("subject", "order/" + "1" * 257), "subject"),
    ("subject beyond ASCII", put("subject", "order/é"), "subject"),
    ("time before 1970", put("occurred_at", timestamp(-1)), "occurred_at"),
    ("time after 9999", put("occurred_at.seconds", 253_402_300_800), "occurred_at"),
    ("nanoseconds beyond a second", put("occurred_at.nanos", 1_000_000_000), "occurred_at"),
    ("binding beyond ASCII", put("version_binding.planner_version", "é"), "version_binding.planner_version"),
    ("long binding", put("version_binding.schema_version", "x" * 129), "version_binding.schema_version"),
]


@pytest.mark.parametrize(("name", "change", "field"), SHAPE, ids=[name for name, _, _ in SHAPE])
def test_shape(name: str, change: Change, field: str) -> None:
    """Each violation of an envelope's shape is named by its field, and only that."""
    envelope = sent_fact()
    change(envelope)
    assert [f"envelope.{field}"] == fields(refused(envelope))


@pytest.mark.parametrize("payload", VALID)
def test_what_is_valid_is_taken(payload: str) -> None:
    """The smallest valid envelope of every payload is admitted."""
    admit(VALID[payload](), "default", frozenset({payload}))


@pytest.mark.parametrize("payload", VALID)
def test_a_call_takes_its_payloads_only(payload: str) -> None:
    """A payload that belongs to another call is refused by name."""
    others = ALL_PAYLOADS - {payload}
    assert [f"envelope.{payload}"] == fields(refused(VALID[payload](), others))


def test_a_message_has_a_limit() -> None:
    """An envelope of more than a mebibyte is refused."""
    envelope = sent_fact()
    envelope.fact.value.CopyFrom(python_to_value(["x" * 60_000] * 18))
    assert ["envelope"] == fields(refused(envelope))


def test_a_message_counts_as_it_is_written() -> None:
    """An envelope that came in less than a mebibyte is refused if it takes more once it is written anew."""
    # Lists of Structs whose one entry has neither key nor value: 6 bytes each as sent here, 10 as they are written.
    item = b"\x0a\x04\x2a\x02\x0a\x00"
    envelope = sent_fact()
    envelope.fact.value.Clear()
    envelope.fact.value.list_value.MergeFromString(item * 110_000)
    sent_bytes = 120 + len(item) * 110_000
    assert sent_bytes < MESSAGE_BYTES_MAX
    with pytest.raises(ServiceError) as caught:
        admit(envelope, "default", ALL_PAYLOADS, sent_bytes)
    assert ["envelope"] == fields(caught.value)


def test_how_much_longer_a_message_can_get() -> None:
    """The part that grows most when it is written anew is a map's empty entry; what is that much shorter needs no measuring."""
    assert GROWTH_MAX * 2 == Struct.FromString(b"\x0a\x00").ByteSize()
    assert admit(sent_fact(), "default", ALL_PAYLOADS, MESSAGE_BYTES_MAX // GROWTH_MAX) is False


def test_an_execution_needs_no_subject() -> None:
    """A report's subject is its decision's; where it is sent, it must be one."""
    envelope = sent_execution()
    admit(Envelope.FromString(envelope.SerializeToString()), "default", ALL_PAYLOADS)
    envelope.subject = "nothing"
    assert ["envelope.subject"] == fields(refused(envelope))


def test_a_derived_fact_keeps_its_id() -> None:
    """Only a derived fact may carry a reserved id."""
    core = Core(document())
    report = core.report(core.start(core.approve()), execution_pb2.EXECUTION_STATUS_SUCCESS)
    (fact,) = core.derived(report)
    assert admit(fact, "default", ALL_PAYLOADS)
    fact.event_id = "nothing"
    assert ["envelope.event_id"] == fields(refused(fact))


# Producer and authority


PRODUCERS: list[tuple[str, Change, str]] = [
    ("no type", put("producer.type", 0), "producer.type"),
    ("unknown type", put("producer.type", 77), "producer.type"),
    ("no id", put("producer.id", ""), "producer.id"),
    ("id with a space", put("producer.id", "orders db"), "producer.id"),
    ("long id", put("producer.id", "x" * 129), "producer.id"),
    ("version beyond ASCII", put("producer.version", "é"), "producer.version"),
    ("long version", put("producer.version", "x" * 129), "producer.version"),
]


@pytest.mark.parametrize(("name", "change", "field"), PRODUCERS, ids=[name for name, _, _ in PRODUCERS])
def test_producer(name: str, change: Change, field: str) -> None:
    """Each violation of the producer is named by its field."""
    envelope = sent_fact()
    change(envelope)
    assert [f"envelope.{field}"] == fields(refused(envelope))


@pytest.mark.parametrize("payload", VALID)
@pytest.mark.parametrize("producer_type", ProducerType.values())
def test_the_matrix_is_kept(payload: str, producer_type: ProducerType.ValueType) -> None:
    """A producer may publish its own categories and nothing else, whatever it claims (seeds 002 §4.9)."""
    if not producer_type:
        return
    envelope = VALID[payload]()
    envelope.producer.type = producer_type
    allowed = {
        "fact": {"SENSOR", "API", "DATABASE_SNAPSHOT", "SYSTEM"},
        "execution": {"EXECUTOR"},
        "agent_diagnostic": {"AGENT", "SYSTEM"},
    }.get(payload, {"AGENT"})
    if ProducerType.Name(producer_type).removeprefix("PRODUCER_TYPE_") in allowed:
        admit(envelope, "default", ALL_PAYLOADS)
    else:
        assert error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED == refused(envelope).reason


def test_a_decision_is_nobodys() -> None:
    """A DECISION is refused to everybody, the arbitrator's own name included."""
    for producer_type in ProducerType.values():
        envelope = Envelope(subject=SUBJECT, producer=Producer(type=producer_type, id="x"))
        envelope.decision.SetInParent()
        assert error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED == refused(envelope, frozenset({"fact"})).reason


RESERVED: list[tuple[str, Callable[[], Envelope], Change]] = [
    ("system fact", sent_fact, put("fact.bus_opened.arbiter_version", 1)),
    ("activation", sent_fact, put("fact.rule_set_activated.policy_id", "x")),
    ("decision_id", sent_fact, put("fact.decision_id", UUID)),
    ("execution_id", sent_fact, put("fact.execution_id", "exec_00000000000a")),
    ("derivation rule", sent_fact, put("fact.derivation_rule_id", "x")),
    ("derivation version", sent_fact, put("fact.derivation_rule_version", 1)),
    ("executor feedback", sent_fact, put("fact.observed_from", fact_pb2.OBSERVED_FROM_EXECUTOR_FEEDBACK)),
    ("human input", sent_fact, put("fact.observed_from", fact_pb2.OBSERVED_FROM_HUMAN_INPUT)),
    ("the reactor's name", sent_fact, put("producer", Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id="fact-derivation-reactor"))),
    ("a notice of Gavel's", sent_diagnostic, put("agent_diagnostic.kind", "NeedsHumanReview")),
    ("a decision's name", sent_diagnostic, put("event_name", "DecisionApproved")),
    ("a notice's name", sent_diagnostic, put("event_name", "NeedsHumanReview")),
    ("a system fact's name", sent_fact, put("event_name", "RuleSetActivated")),
    ("a request for facts", sent_diagnostic, put("agent_diagnostic.fact_collection.decision_id", "x")),
    ("a shadow's verdict", sent_diagnostic, put("agent_diagnostic.shadow_difference.decision_id", "x")),
    ("a shadow's notice", sent_diagnostic, put("agent_diagnostic.kind", "ShadowDifference")),
    ("a late report", sent_diagnostic, put("agent_diagnostic.late_execution.executor_id", "x")),
]


@pytest.mark.parametrize(("name", "make", "change"), RESERVED, ids=[name for name, _, _ in RESERVED])
def test_what_belongs_to_gavel(name: str, make: Callable[[], Envelope], change: Change) -> None:
    """Fields of the server and of the reactor are FIELD_RESERVED."""
    envelope = make()
    change(envelope)
    assert error_pb2.ERROR_REASON_FIELD_RESERVED == refused(envelope).reason


def test_nobody_is_gavel() -> None:
    """The producer id "gavel" is the server's own, whatever the type."""
    for make in VALID.values():
        envelope = make()
        envelope.producer.id = "gavel"
        assert error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED == refused(envelope).reason


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
    """Without `observed_from` the producer's type implies it; a person's word comes through the gateway only."""
    envelope = fact_envelope("k.value", 1, producer_type=producer_type)
    admit(envelope, "default", ALL_PAYLOADS)
    assert channel == envelope.fact.observed_from
    webhook = fact_envelope("k.value", 1, producer_type=producer_type)
    webhook.fact.observed_from = fact_pb2.OBSERVED_FROM_WEBHOOK
    if producer_type == common_pb2.PRODUCER_TYPE_SYSTEM:
        assert error_pb2.ERROR_REASON_FIELD_RESERVED == refused(webhook).reason
    else:
        admit(webhook, "default", ALL_PAYLOADS)


# Order


def test_all_violations_at_once() -> None:
    """Every violation of a step is reported, and the message says how many there are."""
    envelope = Envelope(subject="x", trace_id="\n", sequence_number=1, event_id="x", fact=Fact())
    error = refused(envelope)
    expected = ["envelope.sequence_number", "envelope.event_id", "envelope.trace_id", "envelope.subject"]
    assert expected == fields(error)
    assert error.message.endswith("(and 3 more)")
    proposal = Envelope(subject=SUBJECT, proposal=Proposal(risk=2, confidence=-1, cost=-1))
    assert ["action_type", "cost", "risk", "confidence", "max_fact_age_ms"] == [
        field.removeprefix("envelope.proposal.") for field in fields(refused(proposal))
    ]


def test_shape_comes_before_authority() -> None:
    """A misshapen envelope is refused for its shape, whoever sends it."""
    envelope = sent_fact()
    envelope.producer.CopyFrom(AGENT)
    envelope.subject = ""
    assert ["envelope.subject"] == fields(refused(envelope))


def test_authority_comes_before_the_payload() -> None:
    """A forged producer is refused before its payload is looked at."""
    envelope = sent_fact()
    envelope.producer.CopyFrom(AGENT)
    envelope.fact.ClearField("value")
    envelope.fact.key = "NO KEY"
    assert error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED == refused(envelope).reason


# What is filled in


@pytest.mark.parametrize("payload", VALID)
def test_what_the_server_fills_in(payload: str) -> None:
    """Name, id and trace are filled in where they were left empty, and nothing that was said is changed."""
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


@pytest.mark.parametrize("said", [True, False], ids=["said", "left to the server"])
def test_a_proposal_is_read_as_it_is_taken(said: bool) -> None:
    """What admission hands on of a proposal is what its envelope says once it is filled in."""
    envelope = sent_proposal()
    if said:
        envelope.event_id, envelope.trace_id = UUID, "mine"
    else:
        envelope.ClearField("producer")
    asked, chosen = admit_proposal(envelope, "default")
    assert said == chosen
    names = ("event_id", "trace_id", "causation_id", "subject", "producer_type", "producer_id", "producer_version")
    assert [getattr(Header(envelope), name) for name in names] == [getattr(asked.header, name) for name in names]
    assert (envelope.trace_id, struct_to_dict(envelope.proposal.params)) == (asked.trace_id, asked.params)


def test_what_was_said_stays() -> None:
    """A producer's own id, name and trace are kept; its id is an idempotency key."""
    envelope = sent_fact()
    envelope.event_id, envelope.event_name, envelope.trace_id = UUID, "OrderCreated", "mine"
    assert admit(envelope, "default", ALL_PAYLOADS)
    assert (UUID, "OrderCreated", "mine") == (envelope.event_id, envelope.event_name, envelope.trace_id)


def test_a_trace_may_come_from_the_cause() -> None:
    """With a cause and no trace, the trace is left for the cause to give."""
    envelope = sent_fact()
    envelope.causation_id = UUID
    admit(envelope, "default", ALL_PAYLOADS)
    assert "" == envelope.trace_id


@pytest.mark.parametrize("payload", VALID)
def test_a_producer_may_be_implied(payload: str) -> None:
    """Where only one type may speak, a request without a producer means the local one; facts and diagnostics must say who speaks."""
    envelope = VALID[payload]()
    envelope.ClearField("producer")
    if payload in ("fact", "agent_diagnostic"):
        assert ["envelope.producer.type", "envelope.producer.id"] == fields(refused(envelope))
    else:
        admit(envelope, "default", ALL_PAYLOADS)
        implied = common_pb2.PRODUCER_TYPE_EXECUTOR if payload == "execution" else common_pb2.PRODUCER_TYPE_AGENT
        assert Producer(type=implied, id=LOCAL_PRODUCER_ID) == envelope.producer


def test_the_executor_of_a_call_without_an_envelope() -> None:
    """BeginExecution's producer is checked like an envelope's: implied where empty, refused where it may not execute."""
    assert Producer(type=common_pb2.PRODUCER_TYPE_EXECUTOR, id=LOCAL_PRODUCER_ID) == producer_for_execution(Producer())
    assert EXECUTOR == producer_for_execution(EXECUTOR)
    with pytest.raises(ServiceError) as caught:
        producer_for_execution(AGENT)
    assert error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED == caught.value.reason
    with pytest.raises(ServiceError) as caught:
        producer_for_execution(Producer(id="a b"))
    assert ["producer.id"] == fields(caught.value)
