"""Observations and their tool results: the tier of an observation, and how far in the future a claim may be dated.

Constitution §4.5, §4.6 and §4.8. The tier is fixed when the observation is recorded and stands in the event.
"""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import common_pb2, error_pb2
from gavel.v1.decision_pb2 import FactRequirement
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules import reason_codes
from gavel_rules.commands import PublishEvent
from gavel_rules.events.timestamps import timestamp
from gavel_rules.limits import CLOCK_AHEAD_MS_MAX, TRACE_LAPSE_MS

from tests.support.driver import AGENT, START_MS, SUBJECT, Core, document, fact_envelope, observation_envelope
from tests.support.hashes import sha256_of

TIER_2 = common_pb2.TRUST_TIER_2_TOOL_OBSERVATION
TIER_3 = common_pb2.TRUST_TIER_3_AGENT_INFERENCE
DAY_MS = 24 * 60 * 60 * 1000


def call(core: Core, trace_id: str = "trace-1", **changes: Any) -> Envelope:
    """Publish a tool call."""
    tool_call = ToolCall(**{"tool_name": "fraud-tool", "execution_id": "exec_00000000000a", **changes})
    return core.publish(Envelope(subject=SUBJECT, trace_id=trace_id, producer=AGENT, tool_call=tool_call))


def result(core: Core, trace_id: str = "trace-1", **changes: Any) -> Envelope:
    """Publish a tool result."""
    content = {"tool_name": "fraud-tool", "execution_id": "exec_00000000000a", "content_hash": sha256_of("1"), **changes}
    return core.publish(Envelope(subject=SUBJECT, trace_id=trace_id, producer=AGENT, tool_result=ToolResult(**content)))


def test_an_observation_of_matching_evidence_is_tier_2() -> None:
    """A call, a result and an observation of one trace that match in every field give tier 2; the event has the time of the evidence."""
    core = Core()
    call(core)
    evidence = result(core)
    core.pass_time(700)
    observation = core.observe("k.value", 1, evidence=evidence).observation
    assert TIER_2 == observation.trust_tier
    assert timestamp(START_MS) == observation.evidence_recorded_at
    assert timestamp(START_MS + 700) == observation.observed_at
    core.prove()


def test_evidence_may_be_about_another_subject() -> None:
    """Only the trace must match: one tool call may be evidence about many subjects."""
    core = Core()
    call(core)
    assert TIER_2 == core.observe("k.value", 1, evidence=result(core), subject="customer/7").observation.trust_tier


@pytest.mark.parametrize(
    ("of_call", "of_result", "of_observation"),
    [
        pytest.param({"execution_id": "exec_00000000000b"}, {}, {}, id="no-call-of-this-execution"),
        pytest.param({"execution_id": ""}, {"execution_id": ""}, {}, id="no-execution-id"),
        pytest.param({"trace_id": "trace-2"}, {}, {}, id="call-of-another-trace"),
        pytest.param({}, {"trace_id": "trace-2"}, {}, id="result-of-another-trace"),
        pytest.param({}, {}, {"trace_id": "trace-2"}, id="observation-of-another-trace"),
        pytest.param({}, {"is_error": True, "error_code": "E_TIMEOUT"}, {}, id="failed-call"),
        pytest.param({}, {"tool_name": "other-tool"}, {}, id="result-of-another-tool"),
        pytest.param({}, {}, {"tool": "other-tool"}, id="observation-names-another-tool"),
        pytest.param({}, {}, {"evidence_hash": sha256_of("2")}, id="another-hash"),
        pytest.param({}, {}, {"evidence_hash": ""}, id="no-hash"),
        pytest.param({}, {}, {"evidence": None}, id="no-evidence"),
    ],
)
def test_mismatched_evidence_is_inference(of_call: dict[str, Any], of_result: dict[str, Any], of_observation: dict[str, Any]) -> None:
    """On any mismatch of call, result and observation the tier is 3 and the age counts from the observation's time."""
    core = Core()
    call(core, **of_call)
    evidence = result(core, **of_result)
    observation = core.observe("k.value", 1, **{"evidence": evidence, **of_observation}).observation
    assert TIER_3 == observation.trust_tier
    assert not observation.HasField("evidence_recorded_at")
    core.prove()


def test_evidence_must_be_a_tool_result() -> None:
    """An observation whose `evidence_ref` names another kind of event is tier 3."""
    core = Core()
    envelope = observation_envelope("k.value", 1, evidence=result(core), evidence_hash=sha256_of("1"))
    envelope.observation.evidence_ref = call(core).event_id
    assert TIER_3 == core.publish(envelope).observation.trust_tier


@pytest.mark.parametrize(("silence_ms", "tier"), [(TRACE_LAPSE_MS, TIER_2), (TRACE_LAPSE_MS + 1, TIER_3)])
def test_evidence_lapses_with_its_trace(silence_ms: int, tier: int) -> None:
    """A trace's tool evidence counts until the trace has been silent for 24 hours."""
    core = Core()
    call(core)
    evidence = result(core)
    core.pass_time(silence_ms)
    assert tier == core.observe("k.value", 1, evidence=evidence).observation.trust_tier
    core.prove()


def test_every_event_of_a_trace_keeps_its_evidence() -> None:
    """Every event of the trace keeps its tool evidence alive, however old that is."""
    core = Core()
    call(core)
    evidence = result(core)
    for _ in range(3):
        core.pass_time(TRACE_LAPSE_MS)
        core.fact("k.note", "x", trace_id="trace-1")
    assert TIER_2 == core.observe("k.value", 1, evidence=evidence).observation.trust_tier


# Claims dated ahead of the clock of the bus


def _claims(ahead_ms: int) -> dict[str, Envelope]:
    at = timestamp(START_MS + ahead_ms)
    diagnostic = Envelope(subject=SUBJECT, producer=AGENT, occurred_at=at, agent_diagnostic=AgentDiagnostic(kind="NodeEntered"))
    tool_call = Envelope(subject=SUBJECT, producer=AGENT, occurred_at=at, tool_call=ToolCall(tool_name="fraud-tool"))
    return {
        "occurred_at-fact": fact_envelope("k.value", 1, occurred_at_ms=START_MS + ahead_ms),
        "observed_at": observation_envelope("k.value", 1, observed_at_ms=START_MS + ahead_ms),
        "occurred_at-diagnostic": diagnostic,
        "occurred_at-tool_call": tool_call,
    }


@pytest.mark.parametrize("name", _claims(0))
def test_a_claim_may_be_five_seconds_ahead(name: str) -> None:
    """A claim dated exactly at the limit is accepted; a millisecond later is INVALID_REQUEST with its field, and nothing is recorded."""
    core = Core()
    core.publish(_claims(CLOCK_AHEAD_MS_MAX)[name])
    fault = core.fault(PublishEvent(core.admit(_claims(CLOCK_AHEAD_MS_MAX + 1)[name])))
    assert error_pb2.ERROR_REASON_INVALID_REQUEST == fault.reason
    field = "envelope.observation.observed_at" if name == "observed_at" else "envelope.occurred_at"
    assert [field] == [violation[0] for violation in fault.violations]
    core.prove()


def test_a_proposal_may_be_five_seconds_ahead() -> None:
    """A proposal's `occurred_at` has the same limit."""
    core = Core(document())
    command = core.proposal()
    command.envelope.occurred_at.CopyFrom(timestamp(START_MS + CLOCK_AHEAD_MS_MAX + 1))
    assert error_pb2.ERROR_REASON_INVALID_REQUEST == core.fault(command).reason


def test_claim_in_the_near_future_is_fresh() -> None:
    """Evidence dated in the near future is accepted like present evidence; its age is the difference of the clocks."""
    facts = {"value": {"key": "k.value", "type": "string", "max_age_ms": 1_000}}
    rules = [{"id": "ahead", "when": "evidence.oldest_age_ms == 0 && facts.value == 'x'", "effect": "approve"}]
    core = Core(document(facts, rules))
    decision = core.decide([core.fact("k.value", "x", occurred_at_ms=START_MS + 3_000)])
    assert ("ahead", START_MS + 4_000) == (decision.rule_id, decision.pinned_facts[0].fresh_until.ToMilliseconds())


def test_empty_occurred_at_means_now() -> None:
    """Without `occurred_at` an event happened when it was recorded."""
    core = Core()
    core.pass_time(123)
    event = core.fact("k.value", 1)
    assert (event.recorded_at, timestamp(START_MS + 123)) == (event.occurred_at, event.recorded_at)


# Requests for better evidence


def test_insufficient_tier_requests_facts() -> None:
    """INSUFFICIENT_EVIDENCE_TIER also appends FactCollectionRequested with the unmet requirements (constitution §4.8)."""
    core = Core(document())
    decision = core.propose([core.observe("order.status", "delivered", tool="orders-db")])
    (request,) = core.events_named("FactCollectionRequested")
    assert reason_codes.INSUFFICIENT_EVIDENCE_TIER == decision.decision.reason_code
    assert decision.sequence_number + 1 == request.sequence_number
    assert (decision.event_id, decision.trace_id, decision.subject) == (request.causation_id, request.trace_id, request.subject)
    collection = request.agent_diagnostic.fact_collection
    assert decision.decision.decision_id == collection.decision_id
    (row,) = collection.fact_requirements
    expected = FactRequirement(
        key="order.status",
        subject=SUBJECT,
        state=row.state,
        required_trust_tier=common_pb2.TRUST_TIER_1_SYSTEM_FACT,
        max_age_ms=60_000,
        sources=["orders-copy", "orders-db"],
    )
    assert expected == row
    core.prove()


def test_other_refusals_request_no_facts() -> None:
    """Only a lack of trust requests facts from sensors and adapters; the agent itself has to get a missing fact."""
    core = Core(document())
    assert reason_codes.NEED_MORE_FACTS == core.decide([core.fact("k.note", "x")]).reason_code
    assert [] == core.events_named("FactCollectionRequested")
