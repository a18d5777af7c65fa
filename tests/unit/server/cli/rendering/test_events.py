"""Descriptions of events: one line per kind, without control characters from producers."""

from __future__ import annotations

import pytest
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_REJECTED, Decision, FactRequirementState, Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.projection_service_pb2 import PendingDecision, PendingReview
from gavel_rules.text import printable
from gavel_server.cli.rendering.events import (
    category_name,
    describe,
    enum_name,
    evidence_lines,
    format_delay,
    format_duration,
    format_time,
    pending_line,
    producer_name,
    verdict_line,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

REFERENCE = {"event_id": "a", "sequence_number": 7}
DECISION = {
    "outcome": "OUTCOME_REJECTED",
    "reason_code": "NEED_MORE_FACTS",
    "retry_hint": {
        "fact_requirements": [
            {
                "key": "order.total",
                "state": "FACT_REQUIREMENT_STATE_MISSING",
                "required_trust_tier": "TRUST_TIER_1_SYSTEM_FACT",
                "max_age_ms": 60000,
                "sources": ["orders-db", "erp"],
            }
        ]
    },
}
CASES = [
    ({"fact": {"key": "order.total", "value": 5, "max_age_ms": 60000}}, "order.total = 5, good for 60 s"),
    ({"fact": {"key": "order.total", "value": None}}, "order.total retracted"),
    ({"fact": {"bus_opened": {"arbiter_version": 1}}}, "bus opened, arbiter version 1"),
    ({"fact": {"rule_set_activated": {"policy_id": "p", "version": 2, "previous_version": 1}}}, "rule set p 2 in force in place of 1"),
    (
        {"fact": {"rule_set_activated": {"policy_id": "p", "version": 2, "principal": "ada\n", "reason": "larger\x1b"}}},
        "rule set p 2 in force, by ada\\n: larger\\x1b",
    ),
    (
        {"fact": {"rule_set_deployed": {"policy_id": "p", "version": 2, "digest": f"sha256:{'a' * 64}", "principal": "ada"}}},
        f"rule set p 2 deployed, by ada, sha256:{'a' * 12}…",
    ),
    (
        {"fact": {"grants_deployed": {"name": "main", "version": 3, "digest": f"sha256:{'a' * 64}", "principal": "ada", "reason": "x"}}},
        f"grants main 3 in force, by ada: x, sha256:{'a' * 12}…",
    ),
    ({"fact": {"rule_set_deactivated": {"policy_id": "p", "version": 2}}}, "rule set p 2 out of force"),
    (
        {"fact": {"review_resolved": {"decision_id": "d", "verdict": "REVIEW_VERDICT_REJECT", "reviewer": "ada\n", "reason": "x\x1b"}}},
        "ada\\n said REJECT on d: x\\x1b",
    ),
    ({"fact": {"revocation_requested": {"decision_id": "d", "revoked_by": "ada"}}}, "ada said REVOKE d"),
    ({"fact": {"clock_accepted": {"accepted_by": "ada", "reason": "x"}}}, "ada said ACCEPT the time of the bus: x"),
    (
        {
            "fact": {
                "data_loss_accepted": {"acknowledged_sequence_number": 9, "accepted_by": "ada", "reason": "x", "head_sequence_number": 7}
            }
        },
        "ada said ACCEPT the loss of event 9 (…) by a log that ended at event 7 (…): x",
    ),
    (
        {"proposal": {"action_type": "a.b", "params": {"z": 1, "a": "x"}, "risk": 0.25, "based_on_events": [REFERENCE]}},
        'a.b {"a": "x", "z": 1}, risk 0.25, resting on #7',
    ),
    ({"proposal": {"action_type": "a.b"}}, "a.b {}, risk 0, resting on nothing"),
    (
        {
            "agent_diagnostic": {
                "kind": "AccessRefused",
                "access_refused": {
                    "principal": "eve\n",
                    "reason": "RIGHT_LACKING",
                    "rpc": "gavel.v1.EventService/PublishEvent",
                    "count": 7,
                    "producer": {"id": "erp"},
                },
            }
        },
        "AccessRefused: 7 x RIGHT_LACKING for eve\\n, first PublishEvent as erp",
    ),
    (
        {
            "agent_diagnostic": {
                "kind": "AccessRefused",
                "access_refused": {"reason": "UNAUTHENTICATED", "rpc": "gavel.v1.ArbitrationService/SubmitProposal", "count": 1},
            }
        },
        "AccessRefused: 1 x UNAUTHENTICATED for callers without valid credentials, first SubmitProposal",
    ),
    ({"decision": {"outcome": "OUTCOME_REVOKED", "reason_code": "REVOKED"}}, "REVOKED"),
    ({"decision": {"outcome": "OUTCOME_EXPIRED", "reason_code": "APPROVAL_EXPIRED"}}, "EXPIRED, APPROVAL_EXPIRED"),
    (
        {"proposal": {"action_type": "a.b", "contest": {"conflict_key": "k/1", "closes_at": "2026-01-01T00:00:01.5Z"}}},
        "a.b {}, risk 0, resting on nothing, competes for k/1 until 2026-01-01T00:00:01.500Z",
    ),
    (
        {"decision": DECISION},
        "REJECTED, NEED_MORE_FACTS, order.total missing (required: tier 1 or better, at most 60 s old, from orders-db or erp)",
    ),
    (
        {"execution": {"attempt": 2, "status": "EXECUTION_STATUS_FAILED", "error": {"code": "PSP_DOWN"}, "will_retry": True}},
        "attempt 2 FAILED, PSP_DOWN, another attempt follows",
    ),
    (
        {
            "execution": {
                "status": "EXECUTION_STATUS_ABORTED",
                "reason_code": "STALE_FACT",
                "error": {"code": "STALE_FACT", "message": "old: k of s/1"},
            }
        },
        "attempt 0 ABORTED, STALE_FACT old: k of s/1",
    ),
    ({"execution": {"status": "EXECUTION_STATUS_ABORTED", "reason_code": "STALE_FACT"}}, "attempt 0 ABORTED, STALE_FACT"),
    (
        {"observation": {"source_tool": "t", "extracted_fields": {"b": 1, "a": True}, "trust_tier": "TRUST_TIER_2_TOOL_OBSERVATION"}},
        "a = true, b = 1, read through t, trust tier 2",
    ),
    ({"tool_call": {"tool_name": "t", "execution_id": "exec_1"}}, "t (exec_1)"),
    (
        {"tool_result": {"tool_name": "t", "execution_id": "exec_1", "is_error": True, "error_code": "E_TIMEOUT"}},
        "t: failed: E_TIMEOUT (exec_1)",
    ),
    (
        {"tool_result": {"tool_name": "t", "execution_id": "exec_1", "content_hash": "sha256:" + "ab" * 32}},
        "t: sha256:abababababab… (exec_1)",
    ),
    ({"agent_diagnostic": {"kind": "NeedsHumanReview"}}, "NeedsHumanReview"),
    ({"agent_diagnostic": {"kind": "K", "attributes": {"n": 1}}}, 'K: {"n": 1}'),
    ({"agent_diagnostic": {"kind": "K", "llm_invocation": {"llm_model": "m", "token_count": 5}}}, "K: m, 5 tokens"),
    (
        {
            "agent_diagnostic": {
                "kind": "K",
                "llm_invocation": {"llm_model": "m-2", "llm_provider": "p", "requested_model": "m", "attempts": [{}, {}]},
            }
        },
        "K: p m-2 (asked for m), 0 tokens, 2 attempts",
    ),
    ({"agent_diagnostic": {"kind": "K", "llm_invocation": {"requested_model": "m"}}}, "K: no answer (asked for m), 0 tokens"),
    ({}, "(no payload)"),
]


@pytest.mark.parametrize(("event", "expected"), CASES)
def test_describe(event: dict[str, object], expected: str) -> None:
    """Each kind of event is described in one line."""
    assert expected == describe(ParseDict(event, Envelope()))


def test_approval() -> None:
    """An approval names its rule and the evidence that it rests on."""
    decision = ParseDict(
        {
            "decision": {
                "outcome": "OUTCOME_APPROVED",
                "rule_id": "small",
                "policy_id": "refunds",
                "policy_version": 3,
                "pinned_facts": [{"key": "order.total", "sequence_number": 4}],
            }
        },
        Envelope(),
    ).decision
    assert "APPROVED, by rule small of refunds 3" == verdict_line(decision)
    assert ["rests on order.total (#4)"] == evidence_lines(decision)


def test_counters_and_delay() -> None:
    """A decision names the counters that it read, what its rule shows, and when to try again."""
    decision = Decision(outcome=OUTCOME_REJECTED, reason_code="OVER")
    decision.counters.add(counter="spent", key="ann", value=90.5)
    decision.details.update({"left": 9.5})
    decision.retry_hint.retry_after_ms = 5_400_000
    assert ["spent(ann) is 90.5", '{"left": 9.5}', "retry after 90 min"] == evidence_lines(decision)


def test_compensation() -> None:
    """A compensation names its action and the decision that it compensates, as a decision and as pending work."""
    decision = Decision(outcome=OUTCOME_APPROVED, compensates_decision_id="d-1", action_type="refund.reverse")
    decision.params.update({"amount": 5})
    assert 'APPROVED, compensates d-1 with refund.reverse {"amount": 5}' == verdict_line(decision)
    for pending in (PendingDecision, PendingReview):
        line = pending_line(pending(action_type="refund.reverse", params=decision.params, compensates_decision_id="d-1"))
        assert 'refund.reverse {"amount": 5}, compensates d-1' == line


def test_late_fact() -> None:
    """A fact that was recorded late says how much earlier it happened."""
    event = ParseDict(
        {"fact": {"key": "k", "value": 1}, "occurred_at": "2026-01-01T00:00:00Z", "recorded_at": "2026-01-01T00:10:00Z"}, Envelope()
    )
    assert "k = 1, happened 10 min earlier" == describe(event)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ReviewEscalated", "d-1 was not resolved in time; lead may vote too"),
        ("Other", "ReviewEscalated: d-1 was not resolved in time; lead may vote too"),
    ],
)
def test_describe_beside_the_name(name: str, expected: str) -> None:
    """Beside the event's name the kind of a diagnostic is shown only if it differs."""
    detail = {"kind": "ReviewEscalated", "review_escalated": {"decision_id": "d-1", "groups": ["lead"]}}
    assert expected == describe(ParseDict({"event_name": name, "agent_diagnostic": detail}, Envelope()), beside_name=True)


@given(text=st.text())
def test_no_control_characters(text: str) -> None:
    """No control character of a producer's text reaches the terminal."""
    event = Envelope(subject=text.encode("utf-8", "replace").decode())
    event.agent_diagnostic.kind = event.subject
    assert describe(event).isprintable()
    assert printable(event.subject).isprintable()


def test_escape_sequence() -> None:
    """An escape sequence is printed as text."""
    assert r"\x1b[2Jgone\n" == printable("\x1b[2Jgone\n")


def test_names() -> None:
    """Categories, producers and enum values have short names; an unknown enum value is shown as its number."""
    event = ParseDict({"event_category": "EVENT_CATEGORY_TOOL_CALL_EVENT"}, Envelope())
    event.producer.CopyFrom(ParseDict({"type": "PRODUCER_TYPE_DATABASE_SNAPSHOT", "id": "orders-db"}, Producer()))
    assert ("TOOL_CALL", "database-snapshot orders-db") == (category_name(event), producer_name(event))
    assert ("NEEDS_HUMAN_REVIEW", "TIER_TOO_LOW", "99") == (
        enum_name(Outcome, 3),
        enum_name(FactRequirementState, 3),
        enum_name(Outcome, 99),
    )


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1500, "1500 ms"),
        (60_000, "60 s"),
        (300_000, "5 min"),
        (86_398_000, "23 h 59 min 58 s"),
        (86_400_000, "24 h"),
        (172_800_000, "2 d"),
        (180_000_000, "2 d 2 h"),
    ],
)
def test_duration(milliseconds: int, expected: str) -> None:
    """A duration is shown in days, hours, minutes and seconds, beginning with the largest unit of which it has two."""
    assert expected == format_duration(milliseconds)


def test_time() -> None:
    """A time is RFC 3339 in UTC; an unset time is a dash."""
    time = Timestamp(seconds=1_767_323_045, nanos=678_901_000)
    assert ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05Z") == (format_time(time), format_time(time, "seconds"))
    assert "-" == format_time(Timestamp())


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (999, "999 ms"),
        (1500, "2 s"),
        (59_330, "60 s"),
        (60_000, "60 s"),
        (61_001, "62 s"),
        (121_001, "2 min 2 s"),
        (3_598_000, "59 min 58 s"),
        (86_040_000, "23 h 54 min"),
        (86_398_000, "24 h"),
        (86_400_000, "24 h"),
        (3_599_999, "60 min"),
        (86_399_999, "24 h"),
        (2**31 - 1, "24 d 21 h"),
    ],
)
def test_delay(milliseconds: int, expected: str) -> None:
    """A delay is exact in one unit, or rounded up."""
    assert expected == format_delay(milliseconds)
