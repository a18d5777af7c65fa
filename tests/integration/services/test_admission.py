"""What may not reach the log of events does not: malformed, oversized, NaN, NUL, forged, unknown (the error table)."""

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


def changed(envelope: Envelope, **fields: Any) -> Envelope:
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


def sent(**fields: Any) -> Proposal:
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
        (changed(FACT, event_id="nonsense"), ["envelope.event_id"]),
        (changed(FACT, event_id="0189DEAD-0000-7000-8000-000000000000"), ["envelope.event_id"]),
        (changed(FACT, event_id="00000000-0000-8000-8000-000000000000"), ["envelope.event_id"]),
        (changed(FACT, event_id="00000000-0000-0000-0000-000000000000"), ["envelope.event_id"]),
        (changed(FACT, event_category=99), ["envelope.event_category"]),
        (changed(FACT, event_category=common_pb2.EVENT_CATEGORY_PROPOSAL_EVENT), ["envelope.event_category"]),
        (changed(FACT, schema_version="gavel.v2"), ["envelope.schema_version"]),
        (changed(FACT, bus="other"), ["envelope.bus"]),
        (changed(FACT, sequence_number=7), ["envelope.sequence_number"]),
        (changed(FACT, recorded_at=Timestamp(seconds=1)), ["envelope.recorded_at"]),
        (changed(FACT, chain_hash=b"x"), ["envelope.chain_hash"]),
        (changed(FACT, trace_id="x" * 129), ["envelope.trace_id"]),
        (changed(FACT, trace_id="line\nbreak"), ["envelope.trace_id"]),
        (changed(FACT, causation_id="nonsense"), ["envelope.causation_id"]),
        (changed(FACT, event_name="notPascal"), ["envelope.event_name"]),
        (changed(FACT, subject=""), ["envelope.subject"]),
        (changed(FACT, subject="order"), ["envelope.subject"]),
        (changed(FACT, subject="Order/1"), ["envelope.subject"]),
        (changed(FACT, subject="order/\x00"), ["envelope.subject"]),
        (changed(FACT, subject="order/" + "x" * 257), ["envelope.subject"]),
        (changed(FACT, occurred_at=Timestamp(seconds=-1)), ["envelope.occurred_at"]),
        (changed(FACT, occurred_at=Timestamp(seconds=1, nanos=-1)), ["envelope.occurred_at"]),
        (changed(FACT, occurred_at=Timestamp(seconds=START_MS // 1000 + 6)), ["envelope.occurred_at"]),
        (changed(FACT, version_binding__planner_version="x" * 129), ["envelope.version_binding.planner_version"]),
        (changed(FACT, subject="order", trace_id="\n", event_id="x"), ["envelope.event_id", "envelope.trace_id", "envelope.subject"]),
        # payloads with RPCs of their own
        (proposal("order/1"), ["envelope.proposal"]),
        (raw(subject="order/1", producer=EXECUTOR, execution={}), ["envelope.execution"]),
        # the producer
        (changed(FACT, producer__type=99), ["envelope.producer.type"]),
        (changed(FACT, producer__id=""), ["envelope.producer.id"]),
        (changed(FACT, producer__id="white space"), ["envelope.producer.id"]),
        (changed(FACT, producer__version="\n"), ["envelope.producer.version"]),
        # facts
        (changed(FACT, fact__key=""), ["envelope.fact.key"]),
        (changed(FACT, fact__key="Order Status"), ["envelope.fact.key"]),
        (changed(FACT, fact__max_age_ms=-1), ["envelope.fact.max_age_ms"]),
        (fact("order/1", "a", math.nan), ["envelope.fact.value"]),
        (fact("order/1", "a", math.inf), ["envelope.fact.value"]),
        (fact("order/1", "a", {"b": [1, -math.inf]}), ["envelope.fact.value.b[1]"]),
        (fact("order/1", "a", 2.0**53 + 2), ["envelope.fact.value"]),
        (fact("order/1", "a", "nul\0"), ["envelope.fact.value"]),
        (fact("order/1", "a", {"nul\0": 1}), ["envelope.fact.value"]),
        (fact("order/1", "a", "x" * (64 * 1024 + 1)), ["envelope.fact.value"]),
        # observations
        (changed(OBSERVATION, observation__confidence=1.5), ["envelope.observation.confidence"]),
        (changed(OBSERVATION, observation__confidence=math.nan), ["envelope.observation.confidence"]),
        (changed(OBSERVATION, observation__source_tool=""), ["envelope.observation.source_tool"]),
        (changed(OBSERVATION, observation__evidence_ref="x"), ["envelope.observation.evidence_ref"]),
        (changed(OBSERVATION, observation__trust_tier=1), ["envelope.observation.trust_tier"]),
        (changed(OBSERVATION, observation__observed_at=Timestamp(seconds=START_MS // 1000 + 6)), ["envelope.observation.observed_at"]),
        (observation("order/1", "order.status", math.nan), ["envelope.observation.extracted_fields.order.status"]),
        (raw(subject="order/1", observation={"source_tool": "x"}), ["envelope.observation.extracted_fields"]),
        # tool events
        (changed(CALL, tool_call__tool_name=""), ["envelope.tool_call.tool_name"]),
        (changed(CALL, tool_call__execution_id="exec_1"), ["envelope.tool_call.execution_id"]),
        (changed(CALL, tool_call__arguments_summary="\0"), ["envelope.tool_call.arguments_summary"]),
        (changed(RESULT, tool_result__content_hash=""), ["envelope.tool_result.content_hash"]),
        (changed(RESULT, tool_result__reproducible=True), ["envelope.tool_result.query_ref", "envelope.tool_result.snapshot_ref"]),
        (changed(RESULT, tool_result__duration_ms=-1), ["envelope.tool_result.duration_ms"]),
        # diagnostics
        (changed(NOTE, agent_diagnostic__kind="noted"), ["envelope.agent_diagnostic.kind"]),
        (
            raw(subject="order/1", producer=AGENT, agent_diagnostic={"kind": "Noted", "attributes": {"a": math.nan}}),
            ["envelope.agent_diagnostic.attributes.a"],
        ),
    ],
)
async def test_malformed_publications(world: World, envelope: Envelope, fields: list[str]) -> None:
    """A malformed event is INVALID_ARGUMENT with every violation named at once, and nothing is appended."""
    heard = await refusal(world.publish(envelope))

    assert ((heard.code, heard.reason), list(dict.fromkeys(heard.fields))) == (INVALID, fields)
    assert all(heard.descriptions)
    assert await world.head() == 1


PROPOSAL = proposal("order/1")


@pytest.mark.parametrize(
    ("envelope", "fields"),
    [
        (FACT, ["envelope.fact"]),
        (changed(PROPOSAL, proposal__action_type=""), ["envelope.proposal.action_type"]),
        (changed(PROPOSAL, proposal__risk=1.5), ["envelope.proposal.risk"]),
        (changed(PROPOSAL, proposal__risk=math.nan), ["envelope.proposal.risk"]),
        (changed(PROPOSAL, proposal__cost=-1.0), ["envelope.proposal.cost"]),
        (changed(PROPOSAL, proposal__cost=math.inf), ["envelope.proposal.cost"]),
        (changed(PROPOSAL, proposal__confidence=-0.1), ["envelope.proposal.confidence"]),
        (changed(PROPOSAL, proposal__max_fact_age_ms=0), ["envelope.proposal.max_fact_age_ms"]),
        (changed(PROPOSAL, proposal__expected_outcome="\0"), ["envelope.proposal.expected_outcome"]),
        (changed(PROPOSAL, proposal__projection_version=-1), ["envelope.proposal.projection_version"]),
        (changed(PROPOSAL, proposal__projection_version=99), ["envelope.proposal.projection_version"]),
        (changed(PROPOSAL, proposal=sent(params=DEEP)), ["envelope.proposal.params" + ".a" * 16]),
        (changed(PROPOSAL, proposal=sent(params={"amount": 2.0**60})), ["envelope.proposal.params.amount"]),
        (changed(PROPOSAL, proposal=sent(required_facts=["a"] * 65)), ["envelope.proposal.required_facts"]),
        (changed(PROPOSAL, proposal=sent(required_facts=["A b"])), ["envelope.proposal.required_facts[0]"]),
        (
            changed(PROPOSAL, proposal=sent(based_on_events=[EventReference()])),
            ["envelope.proposal.based_on_events[0].event_id", "envelope.proposal.based_on_events[0].sequence_number"],
        ),
        (
            changed(
                PROPOSAL,
                proposal=sent(based_on_events=[EventReference(event_id="00000000-0000-4000-8000-000000000001", sequence_number=1)] * 257),
            ),
            ["envelope.proposal.based_on_events"],
        ),
        (changed(PROPOSAL, proposal__risk=2.0, proposal__cost=-1.0), ["envelope.proposal.cost", "envelope.proposal.risk"]),
    ],
)
async def test_malformed_proposals(governed: World, envelope: Envelope, fields: list[str]) -> None:
    """A malformed proposal is INVALID_ARGUMENT with every violation named at once, and nothing is appended."""
    before = await governed.head()

    heard = await refusal(governed.propose(envelope))

    assert ((heard.code, heard.reason), heard.fields) == (INVALID, fields)
    assert await governed.head() == before


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        # a decision is nobody's to publish, whoever claims to be whom
        (raw(subject="order/1", producer=AGENT, decision={}), "CATEGORY_NOT_ALLOWED"),
        (
            raw(subject="order/1", producer={"type": common_pb2.PRODUCER_TYPE_ARBITRATOR, "id": "x"}, decision={}),
            "CATEGORY_NOT_ALLOWED",
        ),
        # the matrix
        (changed(FACT, producer__type=common_pb2.PRODUCER_TYPE_AGENT), "CATEGORY_NOT_ALLOWED"),
        (changed(FACT, producer__type=common_pb2.PRODUCER_TYPE_EXECUTOR), "CATEGORY_NOT_ALLOWED"),
        (changed(FACT, producer__type=common_pb2.PRODUCER_TYPE_ARBITRATOR), "CATEGORY_NOT_ALLOWED"),
        (changed(OBSERVATION, producer=ORDERS), "CATEGORY_NOT_ALLOWED"),
        (changed(CALL, producer=SYSTEM), "CATEGORY_NOT_ALLOWED"),
        (changed(RESULT, producer=EXECUTOR), "CATEGORY_NOT_ALLOWED"),
        (raw(subject="order/1", producer=ORDERS, agent_diagnostic={"kind": "Noted"}), "CATEGORY_NOT_ALLOWED"),
        # the server's own name, notices and fields
        (changed(FACT, producer__type=common_pb2.PRODUCER_TYPE_SYSTEM, producer__id="gavel"), "PRODUCER_NOT_ALLOWED"),
        (raw(subject="order/1", producer=SYSTEM, fact={"key": "a", "bus_opened": {"arbiter_version": 2}}), "FIELD_RESERVED"),
        (raw(subject="order/1", producer=ORDERS, fact={"key": "a", "rule_set_deactivated": {"policy_id": "x"}}), "FIELD_RESERVED"),
        (changed(FACT, fact__decision_id="00000000-0000-8000-8000-000000000001"), "FIELD_RESERVED"),
        (changed(FACT, fact__derivation_rule_id="gavel.execution-status"), "FIELD_RESERVED"),
        (changed(FACT, fact__observed_from=fact_pb2.OBSERVED_FROM_EXECUTOR_FEEDBACK), "FIELD_RESERVED"),
        (changed(FACT, fact__observed_from=fact_pb2.OBSERVED_FROM_HUMAN_INPUT), "FIELD_RESERVED"),
        (raw(subject="order/1", producer=AGENT, agent_diagnostic={"kind": "NeedsHumanReview"}), "FIELD_RESERVED"),
        (raw(subject="order/1", producer=AGENT, agent_diagnostic={"kind": "X", "late_execution": {}}), "FIELD_RESERVED"),
    ],
)
async def test_forged_publications(world: World, envelope: Envelope, reason: str) -> None:
    """What a producer may not say is PERMISSION_DENIED with the rule that refused, and nothing is appended."""
    heard = await refusal(world.publish(envelope))

    assert (heard.code, heard.reason) == (grpc.StatusCode.PERMISSION_DENIED, reason)
    assert heard.message
    assert await world.head() == 1


async def test_proposals_are_agents_alone(governed: World) -> None:
    """A proposal by anybody but an agent is PERMISSION_DENIED, and nothing is appended."""
    before = await governed.head()
    for producer in (ORDERS, EXECUTOR, SYSTEM):
        forged = proposal("order/1")
        forged.producer.CopyFrom(producer)
        heard = await refusal(governed.propose(forged))
        assert (heard.code, heard.reason) == (grpc.StatusCode.PERMISSION_DENIED, "CATEGORY_NOT_ALLOWED")
    assert await governed.head() == before


async def test_authority_is_checked_before_the_payload(world: World) -> None:
    """A forged producer hears that it is one, not what is wrong with its payload; a malformed envelope comes first of all."""
    forged = changed(FACT, producer__type=common_pb2.PRODUCER_TYPE_AGENT, fact__key="Not A Key")
    assert (await refusal(world.publish(forged))).reason == "CATEGORY_NOT_ALLOWED"

    forged.subject = "nobody"
    assert (await refusal(world.publish(forged))).fields == ["envelope.subject"]


async def test_oversized_messages(world: World) -> None:
    """An envelope of more than 1 MiB is INVALID_ARGUMENT, by publication or proposal, and not appended; others of its batch are decided."""
    large = ["x" * 60_000] * 18
    heard = await refusal(world.publish(fact("order/1", "order.notes", large)))
    assert ((heard.code, heard.reason), heard.fields) == (INVALID, ["envelope"])

    ask = proposal("order/1")
    ask.proposal.params.update({"notes": large})
    heard = await refusal(world.propose(ask))
    assert (heard.code, heard.reason) == INVALID
    assert await world.head() == 1

    batch = BatchSubmitProposalsRequest(envelopes=[*(proposal("order/1") for _ in range(3)), ask])
    refused = (await world.arbitration.BatchSubmitProposals(batch)).results
    assert [False, False, False, True] == [one.HasField("error") for one in refused]
    assert "envelope is larger than" in refused[3].error.message


async def test_largest_message_is_taken(world: World) -> None:
    """An envelope just under 1 MiB is recorded and read back whole."""
    largest = fact("order/1", "order.notes", ["x" * 60_000] * 17)

    recorded = await world.publish(largest)

    assert recorded.fact.value == largest.fact.value
    assert await world.head() == 2


async def test_unknown_reference_is_a_decision(governed: World) -> None:
    """A proposal that cites an event which the bus does not have is decided, REJECTED / UNKNOWN_EVENT: no error."""
    known = await governed.publish(fact("order/1", "order.status", "delivered"))
    unknown = Envelope(event_id="00000000-0000-4000-8000-000000000001", sequence_number=999)

    decision = (await governed.propose(proposal("order/1", cites=[known, unknown]))).decision

    assert decision.reason_code == "UNKNOWN_EVENT"
