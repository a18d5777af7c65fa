"""Admission of payloads: every violation by its path, and values exactly at a limit."""

from __future__ import annotations

import math

import pytest
from gavel.v1 import common_pb2, execution_pb2
from gavel.v1.common_pb2 import EventReference, Producer
from gavel.v1.diagnostic_pb2 import LlmAttempt, LlmInvocation
from gavel.v1.tool_pb2 import ToolResult
from gavel_rules.events.timestamps import timestamp
from gavel_rules.values import python_to_value
from gavel_server.intake.admission import admit
from google.protobuf.struct_pb2 import ListValue, Struct, Value

from tests.support.driver import ALL_PAYLOADS
from tests.support.envelopes import (
    UUID,
    VALID,
    Change,
    fields,
    refusal,
    set_field,
    valid_diagnostic,
    valid_fact,
    valid_observation,
    valid_tool_result,
)


def nested(depth: int) -> object:
    """Return a value nested `depth` levels deep."""
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def references(count: int) -> list[EventReference]:
    """Return `count` valid references."""
    return [EventReference(event_id=UUID, sequence_number=1)] * count


# A struct with a list whose item has no kind.
WITHOUT_KIND = Struct(fields={"a": Value(list_value=ListValue(values=[Value()]))})

PAYLOADS: list[tuple[str, str, Change, str]] = [
    ("proposal", "item without a kind", set_field("proposal.params", WITHOUT_KIND), "params.a[0]"),
    ("fact", "item without a kind", set_field("fact.value", Value(struct_value=WITHOUT_KIND)), "value.a[0]"),
    ("agent_diagnostic", "item without a kind", set_field("agent_diagnostic.attributes", WITHOUT_KIND), "attributes.a[0]"),
    ("execution", "item without a kind", set_field("execution.result", WITHOUT_KIND), "result.a[0]"),
    ("proposal", "no action", set_field("proposal.action_type", ""), "action_type"),
    ("proposal", "action with a space", set_field("proposal.action_type", "refund create"), "action_type"),
    ("proposal", "long action", set_field("proposal.action_type", "a" * 129), "action_type"),
    ("proposal", "NUL in params", set_field("proposal.params", {"a": "\0"}), "params.a"),
    ("proposal", "NUL in a key of params", set_field("proposal.params", {"a\0": 1}), "params"),
    ("proposal", "NaN in params", set_field("proposal.params", {"a": math.nan}), "params.a"),
    ("proposal", "infinite number in params", set_field("proposal.params", {"a": [1, -math.inf]}), "params.a[1]"),
    ("proposal", "integer beyond 2^53", set_field("proposal.params", {"a": 2.0**53 + 2}), "params.a"),
    ("proposal", "long string in params", set_field("proposal.params", {"a": "x" * 65_537}), "params.a"),
    ("proposal", "long string of wide characters", set_field("proposal.params", {"a": "é" * 32_769}), "params.a"),
    ("proposal", "deep params", set_field("proposal.params", {"a": nested(16)}), "params.a" + "[0]" * 15),
    ("proposal", "NUL in expected_outcome", set_field("proposal.expected_outcome", "\0"), "expected_outcome"),
    ("proposal", "negative cost", set_field("proposal.cost", -0.5), "cost"),
    ("proposal", "infinite cost", set_field("proposal.cost", math.inf), "cost"),
    ("proposal", "cost that is no number", set_field("proposal.cost", math.nan), "cost"),
    ("proposal", "risk above 1", set_field("proposal.risk", 1.0000001), "risk"),
    ("proposal", "risk that is no number", set_field("proposal.risk", math.nan), "risk"),
    ("proposal", "negative confidence", set_field("proposal.confidence", -0.1), "confidence"),
    ("proposal", "no age", set_field("proposal.max_fact_age_ms", 0), "max_fact_age_ms"),
    ("proposal", "negative age", set_field("proposal.max_fact_age_ms", -1), "max_fact_age_ms"),
    ("proposal", "age beyond 2^53", set_field("proposal.max_fact_age_ms", 2**53 + 1), "max_fact_age_ms"),
    ("proposal", "too many required facts", set_field("proposal.required_facts", ["a"] * 65), "required_facts"),
    ("proposal", "required fact that is no key", set_field("proposal.required_facts", ["a", "B"]), "required_facts[1]"),
    ("proposal", "too many references", set_field("proposal.based_on_events", references(257)), "based_on_events"),
    (
        "proposal",
        "reference without id",
        set_field("proposal.based_on_events", [EventReference(sequence_number=1)]),
        "based_on_events[0].event_id",
    ),
    (
        "proposal",
        "reference without number",
        set_field("proposal.based_on_events", [*references(1), EventReference(event_id=UUID)]),
        "based_on_events[1].sequence_number",
    ),
    ("proposal", "negative projection version", set_field("proposal.projection_version", -1), "projection_version"),
    ("fact", "no key", set_field("fact.key", ""), "key"),
    ("fact", "key in upper case", set_field("fact.key", "Order.status"), "key"),
    ("fact", "key with an empty part", set_field("fact.key", "order..status"), "key"),
    ("fact", "key that starts with a digit", set_field("fact.key", "1order"), "key"),
    ("fact", "long key", set_field("fact.key", "k" * 257), "key"),
    ("fact", "no value", lambda envelope: envelope.fact.ClearField("value"), "value"),
    ("fact", "value without a kind", lambda envelope: envelope.fact.value.Clear(), "value"),
    ("fact", "NaN", set_field("fact.value", python_to_value(math.nan)), "value"),
    ("fact", "deep value", set_field("fact.value", python_to_value(nested(17))), "value" + "[0]" * 16),
    ("fact", "unknown channel", set_field("fact.observed_from", 77), "observed_from"),
    ("fact", "negative age", set_field("fact.max_age_ms", -1), "max_age_ms"),
    ("observation", "no tool", set_field("observation.source_tool", ""), "source_tool"),
    ("observation", "tool with a space", set_field("observation.source_tool", "a b"), "source_tool"),
    ("observation", "confidence above 1", set_field("observation.confidence", 1.5), "confidence"),
    ("observation", "nothing extracted", lambda envelope: envelope.observation.ClearField("extracted_fields"), "extracted_fields"),
    ("observation", "evidence that is no id", set_field("observation.evidence_ref", "x"), "evidence_ref"),
    ("observation", "time before 1970", set_field("observation.observed_at", timestamp(-1)), "observed_at"),
    ("observation", "a tier of its own", set_field("observation.trust_tier", 1), "trust_tier"),
    ("observation", "a time of its evidence", set_field("observation.evidence_recorded_at", timestamp(1)), "evidence_recorded_at"),
    ("observation", "NUL in query_ref", set_field("observation.query_ref", "\0"), "query_ref"),
    ("tool_call", "no tool", set_field("tool_call.tool_name", ""), "tool_name"),
    ("tool_call", "execution id that is none", set_field("tool_call.execution_id", "exec_1"), "execution_id"),
    ("tool_call", "long summary", set_field("tool_call.arguments_summary", "x" * 65_537), "arguments_summary"),
    ("tool_call", "time after 9999", set_field("tool_call.started_at.seconds", 253_402_300_800), "started_at"),
    ("tool_result", "no tool", set_field("tool_result.tool_name", ""), "tool_name"),
    ("tool_result", "execution id that is none", set_field("tool_result.execution_id", "x"), "execution_id"),
    ("tool_result", "no hash", set_field("tool_result.content_hash", ""), "content_hash"),
    ("tool_result", "negative duration", set_field("tool_result.duration_ms", -1), "duration_ms"),
    ("agent_diagnostic", "no kind", set_field("agent_diagnostic.kind", ""), "kind"),
    ("agent_diagnostic", "kind in lower case", set_field("agent_diagnostic.kind", "entered"), "kind"),
    ("agent_diagnostic", "NaN in attributes", set_field("agent_diagnostic.attributes", {"a": math.nan}), "attributes.a"),
    (
        "agent_diagnostic",
        "NUL in a detail",
        set_field("agent_diagnostic.graph_transition.graph_node", "\0"),
        "graph_transition.graph_node",
    ),
    (
        "agent_diagnostic",
        "infinite temperature",
        set_field("agent_diagnostic.llm_invocation.llm_temperature", math.inf),
        "llm_invocation.llm_temperature",
    ),
    *(
        (
            "agent_diagnostic",
            f"invocation with {what}",
            set_field(f"agent_diagnostic.llm_invocation.{field}", value),
            f"llm_invocation.{path}",
        )
        for what, field, value, path in (
            ("negative tokens", "output_token_count", -1, "output_token_count"),
            ("a hash that is none", "evidence_hash", "x", "evidence_hash"),
            ("NaN in settings", "settings", {"top_p": math.nan}, "settings.top_p"),
            ("many attempts", "attempts", [LlmAttempt()] * 65, "attempts"),
            ("NUL in an attempt", "attempts", [LlmAttempt(error_code="\0")], "attempts[0].error_code"),
            ("a negative attempt", "attempts", [LlmAttempt(), LlmAttempt(duration_ms=-1)], "attempts[1].duration_ms"),
        )
    ),
    (
        "agent_diagnostic",
        "no event_id",
        set_field("agent_diagnostic.graph_transition.input_event_ids", ["a"]),
        "graph_transition.input_event_ids[0]",
    ),
    (
        "agent_diagnostic",
        "many events",
        set_field("agent_diagnostic.graph_transition.output_event_ids", [UUID] * 257),
        "graph_transition.output_event_ids",
    ),
    ("execution", "no decision", set_field("execution.decision_id", ""), "decision_id"),
    ("execution", "no execution", set_field("execution.execution_id", ""), "execution_id"),
    ("execution", "no status", set_field("execution.status", 0), "status"),
    ("execution", "STARTED", set_field("execution.status", execution_pb2.EXECUTION_STATUS_STARTED), "status"),
    ("execution", "unknown status", set_field("execution.status", 77), "status"),
    ("execution", "negative attempt", set_field("execution.attempt", -1), "attempt"),
    ("execution", "reason in lower case", set_field("execution.reason_code", "stale"), "reason_code"),
    ("execution", "NUL in the result", set_field("execution.result", {"a": "\0"}), "result.a"),
    ("execution", "too many steps", set_field("execution.completed_steps", ["a"] * 257), "completed_steps"),
    ("execution", "NUL in a step", set_field("execution.completed_steps", ["a", "\0"]), "completed_steps"),
    ("execution", "will_retry", set_field("execution.will_retry", True), "will_retry"),
    ("execution", "warnings", lambda envelope: envelope.execution.warnings.add(code="DRIFT"), "warnings"),
    ("execution", "a lease", set_field("execution.lease_until", timestamp(1)), "lease_until"),
    ("execution", "NUL in the error", set_field("execution.error.message", "\0"), "error.message"),
    ("execution", "time before 1970", set_field("execution.finished_at", timestamp(-1)), "finished_at"),
]


@pytest.mark.parametrize(("payload", "name", "change", "field"), PAYLOADS, ids=[f"{payload}: {name}" for payload, name, _, _ in PAYLOADS])
def test_payload(payload: str, name: str, change: Change, field: str) -> None:
    """Each violation of a payload is reported with its path, and no other."""
    envelope = VALID[payload]()
    change(envelope)
    assert [f"envelope.{payload}.{field}"] == fields(refusal(envelope))


AT_THE_LIMIT: list[tuple[str, Change]] = [
    ("proposal", set_field("proposal.params", {"a": nested(15)})),
    ("proposal", set_field("proposal.params", {"a": "x" * 65_536})),
    ("proposal", set_field("proposal.params", {"a": 2.0**53, "b": -(2.0**53), "c": 1e300 / 3, "d": None, "e": True})),
    ("proposal", set_field("proposal.cost", 2.0**53)),
    ("proposal", set_field("proposal.risk", 1)),
    ("proposal", set_field("proposal.max_fact_age_ms", 2**53)),
    ("proposal", set_field("proposal.required_facts", ["k" * 256] * 64)),
    ("proposal", set_field("proposal.based_on_events", references(256))),
    ("proposal", set_field("proposal.projection_version", 0)),
    ("proposal", set_field("proposal.priority", -5)),
    ("fact", set_field("fact.value", python_to_value(None))),
    ("fact", set_field("fact.value", python_to_value(nested(16)))),
    ("fact", set_field("subject", "o" * 64 + "/" + "~" * 191)),
    ("fact", set_field("trace_id", "~ " * 64)),
    ("fact", set_field("occurred_at.seconds", 253_402_300_799)),
    ("tool_result", set_field("tool_result", ToolResult(tool_name="x", is_error=True))),
    ("execution", set_field("execution.completed_steps", ["a"] * 256)),
    ("execution", set_field("execution.reason_code", "A" * 128)),
    ("agent_diagnostic", set_field("agent_diagnostic.llm_invocation.attempts", [LlmAttempt(error_code="TIMEOUT")] * 64)),
]


@pytest.mark.parametrize(("payload", "change"), AT_THE_LIMIT)
def test_values_at_their_limits_are_admitted(payload: str, change: Change) -> None:
    """A value exactly at its limit is admitted, and so is everything without a limit."""
    envelope = VALID[payload]()
    change(envelope)
    if payload == "proposal" and "c" in envelope.proposal.params:
        envelope.proposal.params["c"] = 0.1
    admit(envelope, "default", ALL_PAYLOADS)


def test_extracted_fields_are_bounded_and_checked() -> None:
    """An observation extracts 1 to 64 keys; each key and value is checked."""
    envelope = valid_observation()
    for number in range(64):
        envelope.observation.extracted_fields[f"k.{number}"].number_value = 1
    assert ["envelope.observation.extracted_fields"] == fields(refusal(envelope))
    envelope = valid_observation()
    envelope.observation.extracted_fields["k.a"].number_value = math.nan
    envelope.observation.extracted_fields["No"].number_value = 1
    assert ["envelope.observation.extracted_fields", "envelope.observation.extracted_fields.k.a"] == fields(refusal(envelope))
    envelope = valid_observation()
    envelope.observation.extracted_fields["k.a"].SetInParent()  # a value without a kind
    assert ["envelope.observation.extracted_fields.k.a"] == fields(refusal(envelope))


def test_reproducible_result_needs_query_and_snapshot() -> None:
    """A reproducible result must name its query and its snapshot (constitution §5.3)."""
    envelope = valid_tool_result()
    envelope.tool_result.reproducible = True
    assert ["envelope.tool_result.query_ref", "envelope.tool_result.snapshot_ref"] == fields(refusal(envelope))
    envelope.tool_result.query_ref = envelope.tool_result.snapshot_ref = "x"
    admit(envelope, "default", ALL_PAYLOADS)


def test_derived_fact_needs_its_source() -> None:
    """A derived fact must name its execution, its rule and its id."""
    envelope = valid_fact()
    envelope.producer.CopyFrom(Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id="fact-derivation-reactor"))
    envelope.fact.decision_id = UUID
    expected = ["envelope.fact.execution_id", "envelope.fact.derivation_rule_id", "envelope.event_id"]
    assert expected == fields(refusal(envelope))


def test_committed_invocation_names_what_was_asked_and_what_answered() -> None:
    """LlmInvocationCommitted needs the model asked for and the prompt, and the model that answered unless every attempt failed."""
    envelope = valid_diagnostic()
    envelope.agent_diagnostic.kind = "LlmInvocationCommitted"
    names = ("requested_model", "prompt_hash", "llm_model", "llm_provider")
    expected = [f"envelope.agent_diagnostic.llm_invocation.{name}" for name in names]
    assert expected == fields(refusal(envelope))
    failed = LlmInvocation(requested_model="m", prompt_hash="sha256:" + "a" * 64, attempts=[LlmAttempt(error_code="TIMEOUT")])
    envelope.agent_diagnostic.llm_invocation.CopyFrom(failed)
    admit(envelope, "default", ALL_PAYLOADS)
    envelope.agent_diagnostic.llm_invocation.attempts.add(llm_provider="p")
    assert expected[2:] == fields(refusal(envelope))
    envelope.agent_diagnostic.llm_invocation.MergeFrom(LlmInvocation(llm_model="m", llm_provider="p"))
    admit(envelope, "default", ALL_PAYLOADS)
