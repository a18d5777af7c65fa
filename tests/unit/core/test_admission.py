"""What may enter: every violation of a sent envelope, all at once, in the order shape, authority, payload; and what is filled in."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from gavel.v1 import common_pb2, error_pb2, execution_pb2, fact_pb2
from gavel.v1.common_pb2 import EventReference, Producer, ProducerType
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel.v1.fact_pb2 import Fact
from gavel.v1.observation_pb2 import Observation
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules.events import CATEGORY_OF_PAYLOAD, derived_event_id, timestamp
from gavel_rules.values import python_to_value
from gavel_server.admission import LOCAL_PRODUCER_ID, admit, producer_for_execution
from gavel_server.errors import ServiceError

from tests.unit.core.driver import AGENT, ALL_PAYLOADS, EXECUTOR, SUBJECT, Core, document, event_id, fact_envelope

Change = Callable[[Any], object]
API = Producer(type=common_pb2.PRODUCER_TYPE_API, id="orders-db")
UUID = event_id(5)


def _proposal() -> Envelope:
    proposal = Proposal(action_type="refund.create", max_fact_age_ms=1, based_on_events=[EventReference(event_id=UUID, sequence_number=1)])
    return Envelope(subject=SUBJECT, producer=AGENT, proposal=proposal)


def _fact() -> Envelope:
    return Envelope(subject=SUBJECT, producer=API, fact=Fact(key="order.status", value=python_to_value("x")))


def _observation() -> Envelope:
    observation = Observation(source_tool="fraud-tool", extracted_fields={"order.score": python_to_value(1)})
    return Envelope(subject=SUBJECT, producer=AGENT, observation=observation)


def _tool_call() -> Envelope:
    return Envelope(subject=SUBJECT, producer=AGENT, tool_call=ToolCall(tool_name="fs.read_text"))


def _tool_result() -> Envelope:
    return Envelope(subject=SUBJECT, producer=AGENT, tool_result=ToolResult(tool_name="fs.read_text", content_hash="sha256:1"))


def _diagnostic() -> Envelope:
    return Envelope(subject=SUBJECT, producer=AGENT, agent_diagnostic=AgentDiagnostic(kind="NodeEntered"))


def _execution() -> Envelope:
    execution = Execution(decision_id=UUID, execution_id="exec_00000000000a", status=execution_pb2.EXECUTION_STATUS_SUCCESS)
    return Envelope(producer=EXECUTOR, execution=execution)


VALID: dict[str, Callable[[], Envelope]] = {
    "proposal": _proposal,
    "fact": _fact,
    "observation": _observation,
    "tool_call": _tool_call,
    "tool_result": _tool_result,
    "agent_diagnostic": _diagnostic,
    "execution": _execution,
}


def put(path: str, value: object) -> Change:
    """Set a field; a message is copied, a list replaced, a dict updated."""

    def change(envelope: Envelope) -> None:
        target: Any = envelope
        *steps, last = path.split(".")
        for step in steps:
            target = getattr(target, step)
        if hasattr(value, "DESCRIPTOR"):
            getattr(target, last).CopyFrom(value)
        elif isinstance(value, list):
            del getattr(target, last)[:]
            getattr(target, last).extend(value)
        elif isinstance(value, dict):
            getattr(target, last).update(value)
        else:
            setattr(target, last, value)

    return change


def refused(envelope: Envelope, payloads: frozenset[str] = ALL_PAYLOADS, bus: str = "default") -> ServiceError:
    """Send an envelope that must be refused; nothing may have been filled in that would hide why."""
    with pytest.raises(ServiceError) as caught:
        admit(envelope, bus, payloads)
    return caught.value


def fields(error: ServiceError) -> list[str]:
    """The fields that are violated; it must be bad input."""
    assert error_pb2.ERROR_REASON_INVALID_REQUEST == error.reason, error
    return [field for field, _ in error.violations]


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
    envelope = _fact()
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
    envelope = _fact()
    envelope.fact.value.CopyFrom(python_to_value(["x" * 60_000] * 18))
    assert ["envelope"] == fields(refused(envelope))


def test_an_execution_needs_no_subject() -> None:
    """A report's subject is its decision's; where it is sent, it must be one."""
    envelope = _execution()
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
    envelope = _fact()
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
    ("system fact", _fact, put("fact.bus_opened.arbiter_version", 1)),
    ("activation", _fact, put("fact.rule_set_activated.policy_id", "x")),
    ("decision_id", _fact, put("fact.decision_id", UUID)),
    ("execution_id", _fact, put("fact.execution_id", "exec_00000000000a")),
    ("derivation rule", _fact, put("fact.derivation_rule_id", "x")),
    ("derivation version", _fact, put("fact.derivation_rule_version", 1)),
    ("executor feedback", _fact, put("fact.observed_from", fact_pb2.OBSERVED_FROM_EXECUTOR_FEEDBACK)),
    ("human input", _fact, put("fact.observed_from", fact_pb2.OBSERVED_FROM_HUMAN_INPUT)),
    ("the reactor's name", _fact, put("producer", Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id="fact-derivation-reactor"))),
    ("a notice of Gavel's", _diagnostic, put("agent_diagnostic.kind", "NeedsHumanReview")),
    ("a decision's name", _diagnostic, put("event_name", "DecisionApproved")),
    ("a notice's name", _diagnostic, put("event_name", "NeedsHumanReview")),
    ("a system fact's name", _fact, put("event_name", "RuleSetActivated")),
    ("a request for facts", _diagnostic, put("agent_diagnostic.fact_collection.decision_id", "x")),
    ("a shadow's verdict", _diagnostic, put("agent_diagnostic.shadow_difference.decision_id", "x")),
    ("a shadow's notice", _diagnostic, put("agent_diagnostic.kind", "ShadowDifference")),
    ("a late report", _diagnostic, put("agent_diagnostic.late_execution.executor_id", "x")),
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


# Payloads


def nested(depth: int) -> object:
    """A value nested so deep."""
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def references(count: int) -> list[EventReference]:
    """So many valid references."""
    return [EventReference(event_id=UUID, sequence_number=1)] * count


PAYLOADS: list[tuple[str, str, Change, str]] = [
    ("proposal", "no action", put("proposal.action_type", ""), "action_type"),
    ("proposal", "action with a space", put("proposal.action_type", "refund create"), "action_type"),
    ("proposal", "long action", put("proposal.action_type", "a" * 129), "action_type"),
    ("proposal", "NUL in params", put("proposal.params", {"a": "\0"}), "params.a"),
    ("proposal", "NUL in a key of params", put("proposal.params", {"a\0": 1}), "params"),
    ("proposal", "NaN in params", put("proposal.params", {"a": math.nan}), "params.a"),
    ("proposal", "infinite number in params", put("proposal.params", {"a": [1, -math.inf]}), "params.a[1]"),
    ("proposal", "integer beyond 2^53", put("proposal.params", {"a": 2.0**53 + 2}), "params.a"),
    ("proposal", "long string in params", put("proposal.params", {"a": "x" * 65_537}), "params.a"),
    ("proposal", "long string of wide characters", put("proposal.params", {"a": "é" * 32_769}), "params.a"),
    ("proposal", "deep params", put("proposal.params", {"a": nested(16)}), "params.a" + "[0]" * 15),
    ("proposal", "NUL in expected_outcome", put("proposal.expected_outcome", "\0"), "expected_outcome"),
    ("proposal", "negative cost", put("proposal.cost", -0.5), "cost"),
    ("proposal", "infinite cost", put("proposal.cost", math.inf), "cost"),
    ("proposal", "cost that is no number", put("proposal.cost", math.nan), "cost"),
    ("proposal", "risk above 1", put("proposal.risk", 1.0000001), "risk"),
    ("proposal", "risk that is no number", put("proposal.risk", math.nan), "risk"),
    ("proposal", "negative confidence", put("proposal.confidence", -0.1), "confidence"),
    ("proposal", "no age", put("proposal.max_fact_age_ms", 0), "max_fact_age_ms"),
    ("proposal", "negative age", put("proposal.max_fact_age_ms", -1), "max_fact_age_ms"),
    ("proposal", "age beyond 2^53", put("proposal.max_fact_age_ms", 2**53 + 1), "max_fact_age_ms"),
    ("proposal", "too many required facts", put("proposal.required_facts", ["a"] * 65), "required_facts"),
    ("proposal", "required fact that is no key", put("proposal.required_facts", ["a", "B"]), "required_facts[1]"),
    ("proposal", "too many references", put("proposal.based_on_events", references(257)), "based_on_events"),
    (
        "proposal",
        "reference without id",
        put("proposal.based_on_events", [EventReference(sequence_number=1)]),
        "based_on_events[0].event_id",
    ),
    (
        "proposal",
        "reference without number",
        put("proposal.based_on_events", [*references(1), EventReference(event_id=UUID)]),
        "based_on_events[1].sequence_number",
    ),
    ("proposal", "negative projection version", put("proposal.projection_version", -1), "projection_version"),
    ("fact", "no key", put("fact.key", ""), "key"),
    ("fact", "key in upper case", put("fact.key", "Order.status"), "key"),
    ("fact", "key with an empty part", put("fact.key", "order..status"), "key"),
    ("fact", "key that starts with a digit", put("fact.key", "1order"), "key"),
    ("fact", "long key", put("fact.key", "k" * 257), "key"),
    ("fact", "no value", lambda envelope: envelope.fact.ClearField("value"), "value"),
    ("fact", "value without a kind", lambda envelope: envelope.fact.value.Clear(), "value"),
    ("fact", "NaN", put("fact.value", python_to_value(math.nan)), "value"),
    ("fact", "deep value", put("fact.value", python_to_value(nested(17))), "value" + "[0]" * 16),
    ("fact", "unknown channel", put("fact.observed_from", 77), "observed_from"),
    ("fact", "negative age", put("fact.max_age_ms", -1), "max_age_ms"),
    ("observation", "no tool", put("observation.source_tool", ""), "source_tool"),
    ("observation", "tool with a space", put("observation.source_tool", "a b"), "source_tool"),
    ("observation", "confidence above 1", put("observation.confidence", 1.5), "confidence"),
    ("observation", "nothing extracted", lambda envelope: envelope.observation.ClearField("extracted_fields"), "extracted_fields"),
    ("observation", "evidence that is no id", put("observation.evidence_ref", "x"), "evidence_ref"),
    ("observation", "time before 1970", put("observation.observed_at", timestamp(-1)), "observed_at"),
    ("observation", "a tier of its own", put("observation.trust_tier", 1), "trust_tier"),
    ("observation", "a time of its evidence", put("observation.evidence_recorded_at", timestamp(1)), "evidence_recorded_at"),
    ("observation", "NUL in query_ref", put("observation.query_ref", "\0"), "query_ref"),
    ("tool_call", "no tool", put("tool_call.tool_name", ""), "tool_name"),
    ("tool_call", "execution id that is none", put("tool_call.execution_id", "exec_1"), "execution_id"),
    ("tool_call", "long summary", put("tool_call.arguments_summary", "x" * 65_537), "arguments_summary"),
    ("tool_call", "time after 9999", put("tool_call.started_at.seconds", 253_402_300_800), "started_at"),
    ("tool_result", "no tool", put("tool_result.tool_name", ""), "tool_name"),
    ("tool_result", "execution id that is none", put("tool_result.execution_id", "x"), "execution_id"),
    ("tool_result", "no hash", put("tool_result.content_hash", ""), "content_hash"),
    ("tool_result", "negative duration", put("tool_result.duration_ms", -1), "duration_ms"),
    ("agent_diagnostic", "no kind", put("agent_diagnostic.kind", ""), "kind"),
    ("agent_diagnostic", "kind in lower case", put("agent_diagnostic.kind", "entered"), "kind"),
    ("agent_diagnostic", "NaN in attributes", put("agent_diagnostic.attributes", {"a": math.nan}), "attributes.a"),
    (
        "agent_diagnostic",
        "NUL in a detail",
        put("agent_diagnostic.graph_transition.graph_node", "\0"),
        "graph_transition.graph_node",
    ),
    (
        "agent_diagnostic",
        "infinite temperature",
        put("agent_diagnostic.llm_invocation.llm_temperature", math.inf),
        "llm_invocation.llm_temperature",
    ),
    (
        "agent_diagnostic",
        "NUL in a list",
        put("agent_diagnostic.graph_transition.input_event_ids", ["a", "\0"]),
        "graph_transition.input_event_ids",
    ),
    ("execution", "no decision", put("execution.decision_id", ""), "decision_id"),
    ("execution", "no execution", put("execution.execution_id", ""), "execution_id"),
    ("execution", "no status", put("execution.status", 0), "status"),
    ("execution", "STARTED", put("execution.status", execution_pb2.EXECUTION_STATUS_STARTED), "status"),
    ("execution", "unknown status", put("execution.status", 77), "status"),
    ("execution", "negative attempt", put("execution.attempt", -1), "attempt"),
    ("execution", "reason in lower case", put("execution.reason_code", "stale"), "reason_code"),
    ("execution", "NUL in the result", put("execution.result", {"a": "\0"}), "result.a"),
    ("execution", "too many steps", put("execution.completed_steps", ["a"] * 257), "completed_steps"),
    ("execution", "NUL in a step", put("execution.completed_steps", ["a", "\0"]), "completed_steps"),
    ("execution", "will_retry", put("execution.will_retry", True), "will_retry"),
    ("execution", "a lease", put("execution.lease_until", timestamp(1)), "lease_until"),
    ("execution", "NUL in the error", put("execution.error.message", "\0"), "error.message"),
    ("execution", "time before 1970", put("execution.finished_at", timestamp(-1)), "finished_at"),
]


@pytest.mark.parametrize(("payload", "name", "change", "field"), PAYLOADS, ids=[f"{payload}: {name}" for payload, name, _, _ in PAYLOADS])
def test_payload(payload: str, name: str, change: Change, field: str) -> None:
    """Each violation of a payload is named by its path, and only that."""
    envelope = VALID[payload]()
    change(envelope)
    assert [f"envelope.{payload}.{field}"] == fields(refused(envelope))


AT_THE_LIMIT: list[tuple[str, Change]] = [
    ("proposal", put("proposal.params", {"a": nested(15)})),
    ("proposal", put("proposal.params", {"a": "x" * 65_536})),
    ("proposal", put("proposal.params", {"a": 2.0**53, "b": -(2.0**53), "c": 1e300 / 3, "d": None, "e": True})),
    ("proposal", put("proposal.cost", 2.0**53)),
    ("proposal", put("proposal.risk", 1)),
    ("proposal", put("proposal.max_fact_age_ms", 2**53)),
    ("proposal", put("proposal.required_facts", ["k" * 256] * 64)),
    ("proposal", put("proposal.based_on_events", references(256))),
    ("proposal", put("proposal.projection_version", 0)),
    ("proposal", put("proposal.priority", -5)),
    ("fact", put("fact.value", python_to_value(None))),
    ("fact", put("fact.value", python_to_value(nested(16)))),
    ("fact", put("subject", "o" * 64 + "/" + "!" * 256)),
    ("fact", put("trace_id", "~ " * 64)),
    ("fact", put("occurred_at.seconds", 253_402_300_799)),
    ("tool_result", put("tool_result", ToolResult(tool_name="x", is_error=True))),
    ("execution", put("execution.completed_steps", ["a"] * 256)),
    ("execution", put("execution.reason_code", "A" * 128)),
]


@pytest.mark.parametrize(("payload", "change"), AT_THE_LIMIT)
def test_what_is_exactly_at_a_limit_is_taken(payload: str, change: Change) -> None:
    """A limit itself is still allowed, and so is everything that no limit speaks of."""
    envelope = VALID[payload]()
    change(envelope)
    if payload == "proposal" and "c" in envelope.proposal.params:
        envelope.proposal.params["c"] = 0.1
    admit(envelope, "default", ALL_PAYLOADS)


def test_extracted_fields_are_bounded_and_checked() -> None:
    """An observation extracts 1 to 64 keys; each key and value is checked."""
    envelope = _observation()
    for number in range(64):
        envelope.observation.extracted_fields[f"k.{number}"].number_value = 1
    assert ["envelope.observation.extracted_fields"] == fields(refused(envelope))
    envelope = _observation()
    envelope.observation.extracted_fields["k.a"].number_value = math.nan
    envelope.observation.extracted_fields["No"].number_value = 1
    assert ["envelope.observation.extracted_fields", "envelope.observation.extracted_fields.k.a"] == fields(refused(envelope))


def test_a_reproducible_result_says_how() -> None:
    """Whoever says that a result can be had again says with which query and of which snapshot (seeds 002 §5.3)."""
    envelope = _tool_result()
    envelope.tool_result.reproducible = True
    assert ["envelope.tool_result.query_ref", "envelope.tool_result.snapshot_ref"] == fields(refused(envelope))
    envelope.tool_result.query_ref = envelope.tool_result.snapshot_ref = "x"
    admit(envelope, "default", ALL_PAYLOADS)


def test_a_derived_fact_names_where_it_comes_from() -> None:
    """A derived fact needs its execution, its rule and its id."""
    envelope = _fact()
    envelope.producer.CopyFrom(Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id="fact-derivation-reactor"))
    envelope.fact.decision_id = UUID
    expected = ["envelope.fact.execution_id", "envelope.fact.derivation_rule_id", "envelope.event_id"]
    assert expected == fields(refused(envelope))


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
    envelope = _fact()
    envelope.producer.CopyFrom(AGENT)
    envelope.subject = ""
    assert ["envelope.subject"] == fields(refused(envelope))


def test_authority_comes_before_the_payload() -> None:
    """A forged producer is refused before its payload is looked at."""
    envelope = _fact()
    envelope.producer.CopyFrom(AGENT)
    envelope.fact.ClearField("value")
    envelope.fact.key = "NO KEY"
    assert error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED == refused(envelope).reason


# What is filled in


@pytest.mark.parametrize("payload", VALID)
def test_what_the_server_fills_in(payload: str) -> None:
    """Category, name, schema, bus, id and trace are filled in where they were left empty, and nothing that was said is changed."""
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
    assert (CATEGORY_OF_PAYLOAD[payload], names[payload], "gavel.v1", "a-bus") == (
        envelope.event_category,
        envelope.event_name,
        envelope.schema_version,
        envelope.bus,
    )
    assert 7 == uuid.UUID(envelope.event_id).version
    assert ("" if payload == "execution" else envelope.event_id) == envelope.trace_id
    for field in ("event_category", "event_name", "schema_version", "bus", "event_id", "trace_id"):
        envelope.ClearField(field)
    if payload == "fact":
        envelope.fact.ClearField("observed_from")
    assert before == envelope


def test_what_was_said_stays() -> None:
    """A producer's own id, name and trace are kept; its id is an idempotency key."""
    envelope = _fact()
    envelope.event_id, envelope.event_name, envelope.trace_id = UUID, "OrderCreated", "mine"
    assert admit(envelope, "default", ALL_PAYLOADS)
    assert (UUID, "OrderCreated", "mine") == (envelope.event_id, envelope.event_name, envelope.trace_id)


def test_a_trace_may_come_from_the_cause() -> None:
    """With a cause and no trace, the trace is left for the cause to give."""
    envelope = _fact()
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
