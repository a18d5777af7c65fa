"""Decisions as text for people, and messages as JSON values."""

from __future__ import annotations

import json

import pytest
from gavel.v1.arbitration_service_pb2 import DECISION_PHASE_DECIDED, WaitDecisionResponse
from gavel.v1.common_pb2 import TRUST_TIER_1_SYSTEM_FACT
from gavel.v1.decision_pb2 import (
    FACT_REQUIREMENT_STATE_STALE,
    OUTCOME_APPROVED,
    OUTCOME_REJECTED,
    REMEDY_REFRESH_EVIDENCE,
    REMEDY_WAIT,
    RULE_EFFECT_REJECT,
    Decision,
    FactRequirement,
    RetryHint,
    RuleMatch,
)
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.observation_pb2 import Observation
from gavel_client import explain, to_dict
from gavel_client.values import to_struct, to_value
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp


def rejection() -> Envelope:
    """Return a rejection with a rule, a requirement and remedies."""
    row = FactRequirement(
        key="order.status",
        subject="order/1",
        state=FACT_REQUIREMENT_STATE_STALE,
        required_trust_tier=TRUST_TIER_1_SYSTEM_FACT,
        max_age_ms=60_000,
        sources=["orders-db", "shop"],
    )
    decision = Decision(
        outcome=OUTCOME_REJECTED,
        reason_code="STALE_FACTS",
        action_type="refund.create",
        policy_id="refunds",
        policy_version=2,
        rule_id="late",
        params=to_struct({"amount": 40, "share": 0.5}),
        rule_matches=[RuleMatch(policy_id="refunds", rule_id="late", effect=RULE_EFFECT_REJECT, condition="params.amount > 10")],
        retry_hint=RetryHint(retryable=True, retry_after_ms=500, fact_requirements=[row], remedy=[REMEDY_REFRESH_EVIDENCE, REMEDY_WAIT]),
    )
    return Envelope(subject="order/1", sequence_number=7, decision=decision)


def test_explanation_shows_details() -> None:
    """The details that the deciding rule shows are in the text, sorted by name."""
    decision = rejection()
    decision.decision.details.CopyFrom(to_struct({"left": 12.5, "currency": "EUR", "first": True}))
    assert 'Details: currency = "EUR", first = true, left = 12.5.' in explain(decision).splitlines()


def test_explanation_of_a_rejection() -> None:
    """It names outcome, reason and its meaning, the rule with its condition, the missing evidence, and what helps."""
    expected = """refund.create on order/1: rejected (STALE_FACTS).
Meaning: evidence is too old; the required facts are listed below.
Decided by rule late of refunds version 2.
Rule late of refunds matched (reject): params.amount > 10
Needs order.status of order/1: stale, tier 1 or better, at most 60000 ms old, from orders-db or shop
What helps: get newer or more trusted evidence; or propose the same again later (not before 500 ms have passed)."""
    assert expected == explain(rejection())
    assert expected == explain(WaitDecisionResponse(decision=rejection(), phase=DECISION_PHASE_DECIDED))


@pytest.mark.parametrize("reason_code", ["CONFLICTING_DECISION", "OUTRANKED"])
def test_explanation_of_a_conflict(reason_code: str) -> None:
    """The delay of a conflict is the longest wait that is known; the other work may end sooner."""
    conflict = Decision(outcome=OUTCOME_REJECTED, reason_code=reason_code, conflict_with_proposal_ids=["p-1"])
    conflict.retry_hint.CopyFrom(RetryHint(retryable=True, retry_after_ms=500, remedy=[REMEDY_WAIT]))
    assert "(it may take another 500 ms, and may end sooner)." in explain(conflict)


@pytest.mark.parametrize(
    ("reason_code", "text"),
    [("COUNTER_FULL", "when the counter gives a number and has room"), ("BUDGET", "when an approval that a counter")],
)
def test_explanation_of_a_counter(reason_code: str, text: str) -> None:
    """A refusal that waits for a counter names no conflicting work."""
    refusal = Decision(outcome=OUTCOME_REJECTED, reason_code=reason_code, retry_hint=RetryHint(retryable=True, remedy=[REMEDY_WAIT]))
    assert f"What helps: propose again {text}" in explain(refusal)


def test_explanations_of_other_decisions() -> None:
    """An approval needs no help; a terminal refusal, one of before remedies, and an undecided proposal are told apart."""
    assert "refund.create: approved." == explain(Decision(outcome=OUTCOME_APPROVED, action_type="refund.create"))
    terminal = Decision(outcome=OUTCOME_REJECTED, reason_code="FRAUD", terminal=True)
    assert explain(terminal).endswith("What helps: nothing in the present state. Do not propose it again in this trace.")
    earlier = Decision(outcome=OUTCOME_REJECTED, rule_matches=[RuleMatch(rule_id="large", policy_id="p", effect_text="reject")])
    assert "Rule large of p matched (reject)" in explain(earlier)
    assert explain(earlier).endswith("What helps: nothing that the producer can do.")
    assert "not decided" in explain(WaitDecisionResponse())


def test_messages_as_json_values() -> None:
    """Names of fields and enum values, integers, times, structs, maps and bytes become JSON values; unset fields are left out."""
    envelope = rejection()
    envelope.recorded_at.CopyFrom(Timestamp(seconds=1_700_000_000))
    envelope.chain_hash = b"\x00\xff"
    plain = to_dict(envelope)
    assert plain == json.loads(json.dumps(plain))
    assert ("order/1", 7, "2023-11-14T22:13:20Z", "AP8=") == tuple(
        plain[name] for name in ("subject", "sequence_number", "recorded_at", "chain_hash")
    )
    decision = plain["decision"]
    assert ("OUTCOME_REJECTED", {"amount": 40, "share": 0.5}) == (decision["outcome"], decision["params"])
    assert ["REMEDY_REFRESH_EVIDENCE", "REMEDY_WAIT"] == decision["retry_hint"]["remedy"]
    assert 60_000 == decision["retry_hint"]["fact_requirements"][0]["max_age_ms"]
    assert "terminal" not in decision
    observation = Observation(extracted_fields={"a": to_value(1), "b": to_value({"c": [True, None]})})
    assert {"extracted_fields": {"a": 1, "b": {"c": [True, None]}}} == to_dict(observation)
    assert {"seconds": 1, "nanos": 500_000_000} == to_dict(Duration(seconds=1, nanos=500_000_000))
    assert {"outcome": 99} == to_dict(Decision(outcome=99))  # type: ignore[arg-type]  # of a later contract
