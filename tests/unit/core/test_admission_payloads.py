"""What may enter, of each payload: every violation by its path, and what is exactly at a limit."""

from __future__ import annotations

import math

import pytest
from gavel.v1 import common_pb2, execution_pb2
from gavel.v1.common_pb2 import EventReference, Producer
from gavel.v1.tool_pb2 import ToolResult
from gavel_rules.events import timestamp
from gavel_rules.values import python_to_value
from gavel_server.admission import admit

from tests.unit.core.driver import ALL_PAYLOADS
from tests.unit.core.sent import (
    UUID,
    VALID,
    Change,
    fields,
    put,
    refused,
    sent_fact,
    sent_observation,
    sent_tool_result,
)


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
    envelope = sent_observation()
    for number in range(64):
        envelope.observation.extracted_fields[f"k.{number}"].number_value = 1
    assert ["envelope.observation.extracted_fields"] == fields(refused(envelope))
    envelope = sent_observation()
    envelope.observation.extracted_fields["k.a"].number_value = math.nan
    envelope.observation.extracted_fields["No"].number_value = 1
    assert ["envelope.observation.extracted_fields", "envelope.observation.extracted_fields.k.a"] == fields(refused(envelope))


def test_a_reproducible_result_says_how() -> None:
    """Whoever says that a result can be had again says with which query and of which snapshot (seeds 002 §5.3)."""
    envelope = sent_tool_result()
    envelope.tool_result.reproducible = True
    assert ["envelope.tool_result.query_ref", "envelope.tool_result.snapshot_ref"] == fields(refused(envelope))
    envelope.tool_result.query_ref = envelope.tool_result.snapshot_ref = "x"
    admit(envelope, "default", ALL_PAYLOADS)


def test_a_derived_fact_names_where_it_comes_from() -> None:
    """A derived fact needs its execution, its rule and its id."""
    envelope = sent_fact()
    envelope.producer.CopyFrom(Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id="fact-derivation-reactor"))
    envelope.fact.decision_id = UUID
    expected = ["envelope.fact.execution_id", "envelope.fact.derivation_rule_id", "envelope.event_id"]
    assert expected == fields(refused(envelope))
