"""Admission refuses malformed, oversized, forged and unknown input with the codes of the error table, and appends none of it."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest
from gavel.v1 import common_pb2, fact_pb2
from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsRequest
from gavel.v1.common_pb2 import EventReference, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal
from gavel_rules.limits import MESSAGE_BYTES_MAX
from gavel_rules.values import python_to_value
from google.protobuf.timestamp_pb2 import Timestamp

from tests.integration.services.world import (
    AGENT,
    EXECUTOR,
    ORDERS,
    START_MS,
    World,
    fact,
    observation,
    proposal,
    raw,
    refusal,
    tool_call,
    tool_result,
)

INVALID = (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
SYSTEM = Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id="gateway")
DEEP: Any = {"a": {}}
for _ in range(20):
    DEEP = {"a": DEEP}


def change(envelope: Envelope, **fields: Any) -> Envelope:
    """Return the envelope with other fields, paths joined by "__"."""
    copy = Envelope()
    copy.CopyFrom(envelope)
    for path, value in fields.items():
        *steps, last = path.split("__")
        target: Any = copy
        for step in steps:
            target = getattr(target, step)
        if isinstance(value, str | bytes | int | float | bool):
            setattr(target, last, value)
        else:
            getattr(target, last).MergeFrom(value)
    return copy


def proposal_with(**fields: Any) -> Proposal:
    """Return a proposal with exactly these fields."""
    return Proposal(**fields)


FACT = fact("order/1", "order.status", "paid")
OBSERVATION = observation("order/1", "order.status", "paid")
CALL = tool_call("t")
RESULT = tool_result("t")
NOTE = raw(subject="order/1", producer=AGENT, agent_diagnostic={"kind": "Noted"})


@pytest.mark.parametrize(
    ("envelope", "fields"),
    [
        # the envelope's shape
        (Envelope(), ["envelope.payload", "envelope.subject"]),
        (change(FACT, event_id="nonsense"), ["envelope.event_id"]),
        (change(FACT, event_id="00000000-0000-8000-8000-000000000000"), ["envelope.event_id"]),
        (change(FACT, event_id="00000000-0000-0000-0000-000000000000"), ["envelope.event_id"]),
        (change(FACT, event_category=99), ["envelope.event_category"]),
        (change(FACT, event_category=common_pb2.EVENT_CATEGORY_PROPOSAL_EVENT), ["envelope.event_category"]),
        (change(FACT, schema_version="gavel.v2"), ["envelope.schema_version"]),
        (change(FACT, bus="other"), ["envelope.bus"]),
        (change(FACT, sequence_number=7), ["envelope.sequence_number"]),
        (change(FACT, recorded_at=Timestamp(seconds=1)), ["envelope.recorded_at"]),
        (change(FACT, chain_hash=b"x"), ["envelope.chain_hash"]),
        (change(FACT, trace_id="x" * 129), ["envelope.trace_id"]),
        (change(FACT, trace_id="line\nbreak"), ["envelope.trace_id"]),
        (change(FACT, causation_id="nonsense"), ["envelope.causation_id"]),
        (change(FACT, event_name="notPascal"), ["envelope.event_name"]),
        (change(FACT, subject=""), ["envelope.subject"]),
        (change(FACT, subject="order"), ["envelope.subject"]),
        (change(FACT, subject="Order/1"), ["envelope.subject"]),
        (change(FACT, subject="order/\x00"), ["envelope.subject"]),
        (change(FACT, subject="order/" + "x" * 257), ["envelope.subject"]),
        (change(FACT, occurred_at=Timestamp(seconds=-1)), ["envelope.occurred_at"]),
        (change(FACT, occurred_at=Timestamp(seconds=1, nanos=-1)), ["envelope.occurred_at"]),
        (change(FACT, occurred_at=Timestamp(seconds=START_MS // 1000 + 6)), ["envelope.occurred_at"]),
        (change(FACT, version_binding__planner_version="x" * 129), ["envelope.version_binding.planner_version"]),
        (change(FACT, subject="order", trace_id="\n", event_id="x"), ["envelope.event_id", "envelope.trace_id", "envelope.subject"]),
        # payloads with RPCs of their own
        (proposal("order/1"), ["envelope.proposal"]),
        (raw(subject="order/1", producer=EXECUTOR, execution={}), ["envelope.execution"]),
        # the producer
        (change(FACT, producer__type=99), ["envelope.producer.type"]),
        (change(FACT, producer__id=""), ["envelope.producer.id"]),
        (change(FACT, producer__id="white space"), ["envelope.producer.id"]),
        (change(FACT, producer__version="\n"), ["envelope.producer.version"]),
        # facts
        (change(FACT, fact__key=""), ["envelope.fact.key"]),
        (change(FACT, fact__key="Order Status"), ["envelope.fact.key"]),
        (change(FACT, fact__max_age_ms=-1), ["envelope.fact.max_age_ms"]),
        (fact("order/1", "a", math.nan), ["envelope.fact.value"]),
        (fact("order/1", "a", math.inf), ["envelope.fact.value"]),
        (fact("order/1", "a", {"b": [1, -math.inf]}), ["envelope.fact.value.b[1]"]),
        (fact("order/1", "a", 2.0**53 + 2), ["envelope.fact.value"]),
        (fact("order/1", "a", "nul\0"), ["envelope.fact.value"]),
        (fact("order/1", "a", {"nul\0": 1}), ["envelope.fact.value"]),
        (fact("order/1", "a", "x" * (64 * 1024 + 1)), ["envelope.fact.value"]),
        # observations
        (change(OBSERVATION, observation__confidence=1.5), ["envelope.observation.confidence"]),
        (change(OBSERVATION, observation__confidence=math.nan), ["envelope.observation.confidence"]),
        (change(OBSERVATION, observation__source_tool=""), ["envelope.observation.source_tool"]),
        (change(OBSERVATION, observation__evidence_ref="x"), ["envelope.observation.evidence_ref"]),
        (change(OBSERVATION, observation__trust_tier=1), ["envelope.observation.trust_tier"]),
        (change(OBSERVATION, observation__observed_at=Timestamp(seconds=START_MS // 1000 + 6)), ["envelope.observation.observed_at"]),
        (observation("order/1", "order.status", math.nan), ["envelope.observation.extracted_fields.order.status"]),
        (
            raw(subject="order/1", observation={"source_tool": "x"}),
            [f"envelope.observation.{name}" for name in ("confidence", "extracted_fields", "evidence_ref")],
        ),
        # tool events
        (change(CALL, tool_call__tool_name=""), ["envelope.tool_call.tool_name"]),
        (change(CALL, tool_call__execution_id="exec_1"), ["envelope.tool_call.execution_id"]),
        (change(CALL, tool_call__arguments_summary="\0"), ["envelope.tool_call.arguments_summary"]),
        (change(RESULT, tool_result__content_hash=""), ["envelope.tool_result.content_hash"]),
        *(
            (change(envelope, **{f"{payload}__{field}": text}), [f"envelope.{payload}.{field}"])
            for envelope, payload, field in (
                (RESULT, "tool_result", "content_hash"),
                (RESULT, "tool_result", "response_schema_hash"),
                (CALL, "tool_call", "arguments_hash"),
                (CALL, "tool_call", "request_schema_hash"),
                (OBSERVATION, "observation", "evidence_hash"),
            )
            for text in ("sha256:1", "sha256:" + "A" * 64, "a" * 64, "sha256:" + "a" * 65, "sha512:" + "a" * 64)
        ),
        # only the hash of a schema may have half of the digits
        (change(CALL, tool_call__arguments_hash="sha256:" + "a" * 32), ["envelope.tool_call.arguments_hash"]),
        (
            raw(
                subject="order/1",
                producer=AGENT,
                agent_diagnostic={"kind": "Noted", "llm_invocation": {"prompt_hash": "x", "output_hash": "sha256:y", "duration_ms": -1}},
            ),
            [f"envelope.agent_diagnostic.llm_invocation.{field}" for field in ("prompt_hash", "output_hash", "duration_ms")],
        ),
        (change(RESULT, tool_result__reproducible=True), ["envelope.tool_result.query_ref", "envelope.tool_result.snapshot_ref"]),
        (change(RESULT, tool_result__duration_ms=-1), ["envelope.tool_result.duration_ms"]),
        # diagnostics
        (change(NOTE, agent_diagnostic__kind="noted"), ["envelope.agent_diagnostic.kind"]),
        (
            raw(subject="order/1", producer=AGENT, agent_diagnostic={"kind": "Noted", "attributes": {"a": math.nan}}),
            ["envelope.agent_diagnostic.attributes.a"],
        ),
    ],
)
async def test_malformed_publications(world: World, envelope: Envelope, fields: list[str]) -> None:
    """A malformed event is INVALID_ARGUMENT with every violation named at once, and nothing is appended."""
    problem = await refusal(world.publish(envelope))

    assert ((problem.code, problem.reason), list(dict.fromkeys(problem.fields))) == (INVALID, fields)
    assert all(problem.descriptions)
    assert await world.head() == 1


PROPOSAL = proposal("order/1")


@pytest.mark.parametrize(
    ("envelope", "fields"),
    [
        (FACT, ["envelope.fact"]),
        (change(PROPOSAL, proposal__action_type=""), ["envelope.proposal.action_type"]),
        (change(PROPOSAL, proposal__risk=1.5), ["envelope.proposal.risk"]),
        (change(PROPOSAL, proposal__risk=math.nan), ["envelope.proposal.risk"]),
        (change(PROPOSAL, proposal__cost=-1.0), ["envelope.proposal.cost"]),
        (change(PROPOSAL, proposal__cost=math.inf), ["envelope.proposal.cost"]),
        (change(PROPOSAL, proposal__confidence=-0.1), ["envelope.proposal.confidence"]),
        (change(PROPOSAL, proposal__max_fact_age_ms=0), ["envelope.proposal.max_fact_age_ms"]),
        (change(PROPOSAL, proposal__expected_outcome="\0"), ["envelope.proposal.expected_outcome"]),
        (change(PROPOSAL, proposal__projection_version=-1), ["envelope.proposal.projection_version"]),
        (change(PROPOSAL, proposal__projection_version=99), ["envelope.proposal.projection_version"]),
        (change(PROPOSAL, proposal=proposal_with(params=DEEP)), ["envelope.proposal.params" + ".a" * 16]),
        (change(PROPOSAL, proposal=proposal_with(params={"amount": 2.0**60})), ["envelope.proposal.params.amount"]),
        (change(PROPOSAL, proposal=proposal_with(required_facts=["a"] * 65)), ["envelope.proposal.required_facts"]),
        (change(PROPOSAL, proposal=proposal_with(required_facts=["A b"])), ["envelope.proposal.required_facts[0]"]),
        (
            change(PROPOSAL, proposal=proposal_with(based_on_events=[EventReference()])),
            ["envelope.proposal.based_on_events[0].event_id", "envelope.proposal.based_on_events[0].sequence_number"],
        ),
        (
            change(
                PROPOSAL,
                proposal=proposal_with(
                    based_on_events=[EventReference(event_id="00000000-0000-4000-8000-000000000001", sequence_number=1)] * 257
                ),
            ),
            ["envelope.proposal.based_on_events"],
        ),
        (change(PROPOSAL, proposal__risk=2.0, proposal__cost=-1.0), ["envelope.proposal.cost", "envelope.proposal.risk"]),
    ],
)
async def test_malformed_proposals(world_with_rules: World, envelope: Envelope, fields: list[str]) -> None:
    """A malformed proposal is INVALID_ARGUMENT with every violation named at once, and nothing is appended."""
    before = await world_with_rules.head()

    problem = await refusal(world_with_rules.propose(envelope))

    assert ((problem.code, problem.reason), problem.fields) == (INVALID, fields)
    assert await world_with_rules.head() == before


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        # a DECISION cannot be published by any producer
        (raw(subject="order/1", producer=AGENT, decision={}), "CATEGORY_NOT_ALLOWED"),
        (
            raw(subject="order/1", producer={"type": common_pb2.PRODUCER_TYPE_ARBITRATOR, "id": "x"}, decision={}),
            "CATEGORY_NOT_ALLOWED",
        ),
        # the matrix
        (change(FACT, producer__type=common_pb2.PRODUCER_TYPE_AGENT), "CATEGORY_NOT_ALLOWED"),
        (change(FACT, producer__type=common_pb2.PRODUCER_TYPE_EXECUTOR), "CATEGORY_NOT_ALLOWED"),
        (change(FACT, producer__type=common_pb2.PRODUCER_TYPE_ARBITRATOR), "CATEGORY_NOT_ALLOWED"),
        (change(OBSERVATION, producer=ORDERS), "CATEGORY_NOT_ALLOWED"),
        (change(CALL, producer=SYSTEM), "CATEGORY_NOT_ALLOWED"),
        (change(RESULT, producer=EXECUTOR), "CATEGORY_NOT_ALLOWED"),
        (raw(subject="order/1", producer=ORDERS, agent_diagnostic={"kind": "Noted"}), "CATEGORY_NOT_ALLOWED"),
        # the server's own name, notices and fields
        (change(FACT, producer__type=common_pb2.PRODUCER_TYPE_SYSTEM, producer__id="gavel"), "PRODUCER_NOT_ALLOWED"),
        (raw(subject="order/1", producer=SYSTEM, fact={"key": "a", "bus_opened": {"arbiter_version": 2}}), "FIELD_RESERVED"),
        (raw(subject="order/1", producer=ORDERS, fact={"key": "a", "rule_set_deactivated": {"policy_id": "x"}}), "FIELD_RESERVED"),
        (change(FACT, fact__decision_id="00000000-0000-8000-8000-000000000001"), "FIELD_RESERVED"),
        (change(FACT, fact__derivation_rule_id="gavel.execution-status"), "FIELD_RESERVED"),
        (change(FACT, fact__observed_from=fact_pb2.OBSERVED_FROM_EXECUTOR_FEEDBACK), "FIELD_RESERVED"),
        (change(FACT, fact__observed_from=fact_pb2.OBSERVED_FROM_HUMAN_INPUT), "FIELD_RESERVED"),
        (raw(subject="order/1", producer=AGENT, agent_diagnostic={"kind": "NeedsHumanReview"}), "FIELD_RESERVED"),
        (raw(subject="order/1", producer=AGENT, agent_diagnostic={"kind": "X", "late_execution": {}}), "FIELD_RESERVED"),
    ],
)
async def test_forged_publications(world: World, envelope: Envelope, reason: str) -> None:
    """An event that its producer may not publish is PERMISSION_DENIED with the rule that refused, and nothing is appended."""
    problem = await refusal(world.publish(envelope))

    assert (problem.code, problem.reason) == (grpc.StatusCode.PERMISSION_DENIED, reason)
    assert problem.message
    assert await world.head() == 1


async def test_only_agents_propose(world_with_rules: World) -> None:
    """A proposal by a producer other than an agent is PERMISSION_DENIED, and nothing is appended."""
    before = await world_with_rules.head()
    for producer in (ORDERS, EXECUTOR, SYSTEM):
        forged = proposal("order/1")
        forged.producer.CopyFrom(producer)
        problem = await refusal(world_with_rules.propose(forged))
        assert (problem.code, problem.reason) == (grpc.StatusCode.PERMISSION_DENIED, "CATEGORY_NOT_ALLOWED")
        assert problem.message.endswith(" may not publish a PROPOSAL_EVENT; those of type AGENT may")
    assert await world_with_rules.head() == before


async def test_authority_is_checked_before_the_payload(world: World) -> None:
    """A malformed envelope is reported first, then a forged producer, then a malformed payload."""
    forged = change(FACT, producer__type=common_pb2.PRODUCER_TYPE_AGENT, fact__key="Not A Key")
    assert (await refusal(world.publish(forged))).reason == "CATEGORY_NOT_ALLOWED"

    forged.subject = "nobody"
    assert (await refusal(world.publish(forged))).fields == ["envelope.subject"]


async def test_oversized_messages(world: World) -> None:
    """An envelope of more than 1 MiB is INVALID_ARGUMENT, by publication or proposal, and not appended; others of its batch are decided."""
    large = ["x" * 60_000] * 18
    problem = await refusal(world.publish(fact("order/1", "order.notes", large)))
    assert ((problem.code, problem.reason), problem.fields) == (INVALID, ["request"])
    slightly = fact("order/1", "order.notes", "")
    slightly.fact.value.CopyFrom(python_to_value(["x" * 60_000] * 17 + ["y" * (MESSAGE_BYTES_MAX - 17 * 60_010)]))
    assert MESSAGE_BYTES_MAX < slightly.ByteSize() < MESSAGE_BYTES_MAX + 1_000
    assert (await refusal(world.publish(slightly))).fields == ["envelope"]

    ask = proposal("order/1")
    ask.proposal.params.update({"notes": large})
    problem = await refusal(world.propose(ask))
    assert (problem.code, problem.reason) == INVALID
    assert await world.head() == 1

    batch = BatchSubmitProposalsRequest(envelopes=[*(proposal("order/1") for _ in range(3)), ask])
    results = (await world.arbitration.BatchSubmitProposals(batch)).results
    assert [False, False, False, True] == [one.HasField("error") for one in results]
    assert "envelope is larger than" in results[3].error.message


async def test_largest_message_is_accepted(world: World) -> None:
    """An envelope just under 1 MiB is recorded and read back whole."""
    largest = fact("order/1", "order.notes", ["x" * 60_000] * 17)

    event = await world.publish(largest)

    assert event.fact.value == largest.fact.value
    assert await world.head() == 2


async def test_unknown_reference_is_rejected_by_a_decision(world_with_rules: World) -> None:
    """A proposal that cites an unknown event is decided as REJECTED / UNKNOWN_EVENT; the call does not fail."""
    event = await world_with_rules.publish(fact("order/1", "order.status", "delivered"))
    unknown = Envelope(event_id="00000000-0000-4000-8000-000000000001", sequence_number=999)

    decision = (await world_with_rules.propose(proposal("order/1", cites=[event, unknown]))).decision

    assert decision.reason_code == "UNKNOWN_EVENT"


async def test_hashes_of_schemas_may_be_short(world: World) -> None:
    """Hashes of 64 digits are recorded as sent, and hashes of schemas of 32 digits too (constitution 000)."""
    full, short = "sha256:" + "0a" * 32, "sha256:" + "0a" * 16
    for digest in (full, short):
        event = await world.publish(change(CALL, tool_call__request_schema_hash=digest, tool_call__arguments_hash=full))
        assert (digest, full) == (event.tool_call.request_schema_hash, event.tool_call.arguments_hash)
