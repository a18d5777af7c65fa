"""Builders of envelopes, and conversion of values."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, PRODUCER_TYPE_DATABASE_SNAPSHOT, EventReference, Producer, VersionBinding
from gavel.v1.diagnostic_pb2 import LlmInvocation
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import OBSERVED_FROM_DB
from gavel_client import (
    content_hash,
    diagnostic_envelope,
    fact_envelope,
    new_event_id,
    observation_envelope,
    proposal_envelope,
    reference,
    tool_call_envelope,
    tool_result_envelope,
)
from gavel_client.values import NESTING_MAX, from_struct, from_value, to_struct, to_value
from gavel_rules.values import INTEGER_MAX
from hypothesis import given
from hypothesis import strategies as st

AGENT = Producer(type=PRODUCER_TYPE_AGENT, id="agent-1", version="1")
DATABASE = Producer(type=PRODUCER_TYPE_DATABASE_SNAPSHOT, id="orders-db")

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-INTEGER_MAX, INTEGER_MAX)
    | st.floats(-INTEGER_MAX, INTEGER_MAX)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=5), children, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_values_survive_conversion(value: Any) -> None:
    """Every JSON value within the contract's limits survives conversion; whole floats become equal ints."""
    assert value == from_value(to_value(value))


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_structs_survive_conversion(mapping: dict[str, Any]) -> None:
    """Every mapping survives conversion."""
    assert mapping == from_struct(to_struct(mapping))


def test_whole_numbers_become_int() -> None:
    """Whole numbers are converted back to int, others to float."""
    back = from_struct(to_struct({"whole": 10, "whole_float": 10.0, "part": 0.5}))
    assert {"whole": int, "whole_float": int, "part": float} == {key: type(value) for key, value in back.items()}


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (INTEGER_MAX + 1, ValueError, r"params\.a\[1\]\.b is 9007199254740993, beyond"),
        (-(10**400), ValueError, r"params\.a\[1\]\.b is an integer, beyond"),
        pytest.param(10**5_000, ValueError, r"params\.a\[1\]\.b is an integer, beyond", id="unprintable"),
        (-1e300, ValueError, r"params\.a\[1\]\.b is -1e\+300, beyond"),
        (math.nan, ValueError, r"params\.a\[1\]\.b is nan; only finite"),
        (math.inf, ValueError, r"params\.a\[1\]\.b is inf; only finite"),
        (b"bytes", TypeError, r"params\.a\[1\]\.b is of type bytes; use None, bool"),
        (datetime(2026, 1, 1, tzinfo=UTC), TypeError, r"params\.a\[1\]\.b is of type datetime"),
        ({1: 2}, TypeError, r"params\.a\[1\]\.b has the key 1; keys must be strings"),
    ],
)
def test_inexact_values_are_refused(value: object, error: type[Exception], message: str) -> None:
    """A value that the contract cannot hold exactly is an error with its path."""
    with pytest.raises(error, match=message):
        to_struct({"a": [0, {"b": value}]})


def test_recursive_value_is_refused() -> None:
    """A value that contains itself is an error, not an endless loop."""
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ValueError, match=f"deeper than {NESTING_MAX} levels"):
        to_value(endless)


def test_event_ids() -> None:
    """Event ids are UUIDs of version 7, all different, in the order of their milliseconds."""
    ids = [new_event_id() for _ in range(1000)]
    assert {7} == {uuid.UUID(text).version for text in ids}
    assert {uuid.RFC_4122} == {uuid.UUID(text).variant for text in ids}
    assert 1000 == len(set(ids))
    milliseconds = [uuid.UUID(text).int >> 80 for text in ids]
    assert sorted(milliseconds) == milliseconds


def test_proposal() -> None:
    """A proposal holds the arguments and a new event_id."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)
    envelope = proposal_envelope(
        "order/123",
        AGENT,
        action_type="refund.create",
        params={"amount": 12.5, "items": ["a"]},
        max_fact_age_ms=60_000,
        based_on_events=[EventReference(event_id="e", sequence_number=4)],
        required_facts=["order.status"],
        expected_outcome="refunded",
        cost=1.0,
        risk=0.25,
        confidence=0.75,
        priority=3,
        projection_version=0,
        trace_id="trace-1",
        causation_id="cause",
        occurred_at=moment,
        event_name="RefundProposed",
        version_binding=VersionBinding(planner_version="p1"),
    )
    assert ("order/123", "trace-1", "cause", "RefundProposed") == (
        envelope.subject,
        envelope.trace_id,
        envelope.causation_id,
        envelope.event_name,
    )
    assert 7 == uuid.UUID(envelope.event_id).version
    assert moment == envelope.occurred_at.ToDatetime(UTC)
    assert "p1" == envelope.version_binding.planner_version
    proposal = envelope.proposal
    assert {"amount": 12.5, "items": ["a"]} == from_struct(proposal.params)
    assert (60_000, 0.25, 0.75, 1.0, 3) == (
        proposal.max_fact_age_ms,
        proposal.risk,
        proposal.confidence,
        proposal.cost,
        proposal.priority,
    )
    assert (["order.status"], "refunded") == (list(proposal.required_facts), proposal.expected_outcome)
    assert proposal.HasField("projection_version")
    assert [EventReference(event_id="e", sequence_number=4)] == list(proposal.based_on_events)


def test_optional_fields_stay_empty() -> None:
    """Optional fields without an argument stay empty."""
    envelope = proposal_envelope("order/1", AGENT, action_type="a", params={}, max_fact_age_ms=1)
    named = {descriptor.name for descriptor, _ in envelope.ListFields()}
    assert {"event_id", "subject", "producer", "proposal"} == named
    assert not envelope.proposal.HasField("projection_version")


def test_fact() -> None:
    """A fact holds its key and value; None is an explicit null, which retracts it."""
    fact = fact_envelope("order/1", DATABASE, key="order.status", value="paid", observed_from=OBSERVED_FROM_DB, max_age_ms=5).fact
    assert ("order.status", "paid", OBSERVED_FROM_DB, 5) == (fact.key, from_value(fact.value), fact.observed_from, fact.max_age_ms)
    retraction = fact_envelope("order/1", DATABASE, key="order.status", value=None).fact
    assert "null_value" == retraction.value.WhichOneof("kind")


def test_event_id_argument() -> None:
    """The caller's event_id is used."""
    chosen = str(uuid.uuid4())
    assert chosen == fact_envelope("order/1", DATABASE, key="k", value=1, event_id=chosen).event_id


def test_tool_call_result_and_observation_are_linked() -> None:
    """A result repeats its call's execution_id, tool, subject and trace; an observation holds its result's id and hash."""
    call = tool_call_envelope(
        "order/1", AGENT, tool_name="orders.lookup", arguments={"id": 1}, call_id="c1", provider_id="shop", trace_id="t1"
    )
    result = tool_result_envelope(call, result={"status": "paid"}, duration_ms=12)
    observation = observation_envelope(
        "order/1", AGENT, source_tool="orders.lookup", evidence=result, extracted_fields={"order.status": "paid"}, confidence=0.9
    )
    assert content_hash({"id": 1}) == call.tool_call.arguments_hash
    assert call.tool_call.execution_id.startswith("exec_")
    assert len("exec_") + 12 == len(call.tool_call.execution_id)
    for name in ("execution_id", "call_id", "tool_name", "requested_tool", "provider_id"):
        assert getattr(call.tool_call, name) == getattr(result.tool_result, name)
    assert ("order/1", "t1", call.event_id, AGENT) == (result.subject, result.trace_id, result.causation_id, result.producer)
    assert (result.event_id, content_hash({"status": "paid"})) == (
        observation.observation.evidence_ref,
        observation.observation.evidence_hash,
    )
    assert "paid" == observation.observation.extracted_fields["order.status"].string_value


def test_failed_tool_has_no_content_hash() -> None:
    """A result with an error code is an error without content hash."""
    call = tool_call_envelope("order/1", AGENT, tool_name="orders.lookup", arguments={})
    result = tool_result_envelope(call, error_code="E_TIMEOUT").tool_result
    assert (True, "E_TIMEOUT", "") == (result.is_error, result.error_code, result.content_hash)


def test_content_hash_ignores_key_order() -> None:
    """Equal values have equal hashes, whatever the order of their keys."""
    assert content_hash({"a": 1, "b": [True, None]}) == content_hash({"b": [True, None], "a": 1})
    assert content_hash({"a": 1}) != content_hash({"a": 2})


def test_diagnostic() -> None:
    """A diagnostic holds its kind, free attributes and one typed note."""
    invocation = LlmInvocation(llm_model="m")
    diagnostic = diagnostic_envelope(
        "order/1", AGENT, kind="LlmInvocationCommitted", attributes={"n": 1}, llm_invocation=invocation
    ).agent_diagnostic
    assert "llm_invocation" == diagnostic.WhichOneof("detail")
    assert ({"n": 1}, invocation) == (from_struct(diagnostic.attributes), diagnostic.llm_invocation)


def test_time_without_zone_is_refused() -> None:
    """A time without a zone is an error, because it is ambiguous."""
    with pytest.raises(ValueError, match="has no time zone"):
        fact_envelope("order/1", DATABASE, key="k", value=1, occurred_at=datetime(2026, 1, 1))  # noqa: DTZ001  that is the point


def test_reference() -> None:
    """A reference holds the event_id and the sequence number of a recorded event."""
    assert EventReference(event_id="e", sequence_number=3) == reference(Envelope(event_id="e", sequence_number=3))


@pytest.mark.parametrize("number", [2**53, -(2**53)])
def test_the_hash_of_the_largest_integers(number: int) -> None:
    """The largest integers that a double holds have the hash of the double that the wire carries, at any depth; larger ones have none."""
    assert content_hash([{"n": float(number)}]) == content_hash([{"n": number}])
    with pytest.raises(ValueError, match="domain"):
        content_hash([{"n": 2 * number}])
