"""The five gates of the constitution (§11), each on real servers, Redis and processes."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path

from gavel.v1 import decision_pb2, execution_pb2, fact_pb2, projection_service_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, fact_envelope, proposal_envelope

from tests.e2e.cli.programs import gavel
from tests.e2e.couriers import run_executor, wait_until_idle
from tests.e2e.ledger import Ledger
from tests.e2e.world import (
    ACTION,
    AGENT,
    COURIER,
    DAY_MS,
    DEPOT,
    Server,
    approve,
    proposal,
    prove,
    publish_status,
    replay,
    rule_set,
    wait_for_events,
)

Clients = tuple[GavelClient, GavelClient]

SUBJECT = "parcel/gate"
STATUS_KEY = "parcel.status"
# A derivation of the rule set, at version 2, besides the built-in one.
WITH_DERIVATION = (
    rule_set()
    + f"""
derivations:
  - {{id: weighed, version: 2, on: {{action: {ACTION}, status: SUCCESS}}, key: parcel.sent_weight, value: execution.result.weight}}
"""
)


def the(event: Envelope) -> tuple[str, int]:
    """Return the fields of a reference to an event."""
    return event.event_id, event.sequence_number


async def test_gate_1_fact_versioning(clients: Clients, redis_url: str, bus: str) -> None:
    """Proposals and executions cite versions of facts with an age limit; both stop at a superseded or stale one."""
    first, second = clients
    approval = await approve(first, SUBJECT)
    (pin,) = approval.decision.pinned_facts
    (fact,) = [event for event in (await Ledger.read(redis_url, bus)).of("fact") if event.fact.key == STATUS_KEY]
    assert (STATUS_KEY, *the(fact)) == (pin.key, pin.event_id, pin.sequence_number)
    later = (await publish_status(second, [SUBJECT]))[SUBJECT]
    start = await second.begin_execution(approval.event_id, producer=COURIER)
    assert "refusal" == start.WhichOneof("result")
    (aborted,) = await wait_for_events(first, lambda event: event.execution.decision_id == approval.event_id)
    assert (execution_pb2.EXECUTION_STATUS_ABORTED, "FACT_SUPERSEDED", 0) == (
        aborted.execution.status,
        aborted.execution.reason_code,
        aborted.execution.attempt,
    )
    rejection = (await first.submit_proposal(proposal(fact))).decision.decision
    assert (decision_pb2.OUTCOME_REJECTED, "FACT_SUPERSEDED") == (rejection.outcome, rejection.reason_code)
    brief = fact_envelope("parcel/brief", DEPOT, key=STATUS_KEY, value="ready", max_age_ms=1)
    brief = (await first.publish_event(brief)).envelope
    await asyncio.sleep(0.01)
    stale = (await first.submit_proposal(proposal(brief))).decision.decision
    assert (decision_pb2.OUTCOME_REJECTED, "STALE_FACTS") == (stale.outcome, stale.reason_code)
    assert later.sequence_number < aborted.sequence_number
    await prove(second)


async def test_gate_2_arbitration_feedback(clients: Clients) -> None:
    """A rejection names every missing fact with source and freshness; supplying exactly those leads to approval."""
    first, second = clients
    rumour = (await first.publish_event(fact_envelope(SUBJECT, DEPOT, key="parcel.note", value="left side"))).envelope
    rejection = (await first.submit_proposal(proposal(rumour))).decision
    assert (decision_pb2.OUTCOME_REJECTED, "NEED_MORE_FACTS", False) == (
        rejection.decision.outcome,
        rejection.decision.reason_code,
        rejection.decision.terminal,
    )
    assert rejection.decision.retry_hint.retryable
    (missing,) = rejection.decision.retry_hint.fact_requirements
    assert (STATUS_KEY, SUBJECT, decision_pb2.FACT_REQUIREMENT_STATE_MISSING, [DEPOT.id], 1, DAY_MS) == (
        missing.key,
        missing.subject,
        missing.state,
        [*missing.sources],
        missing.required_trust_tier,
        missing.max_age_ms,
    )
    new_fact = fact_envelope(missing.subject, DEPOT, key=missing.key, value="ready", trace_id=rejection.trace_id)
    fact = (await second.publish_event(new_fact)).envelope
    repetition = proposal(fact)
    repetition.trace_id, repetition.causation_id = rejection.trace_id, rejection.event_id
    assert decision_pb2.OUTCOME_APPROVED == (await second.submit_proposal(repetition)).decision.decision.outcome


async def test_gate_3_entrypoint_triggering(pair: tuple[Server, Server], clients: Clients, bus: str) -> None:
    """A request from outside becomes one FACT, which a proposal of the same trace cites."""
    event_id = str(uuid.uuid4())
    arguments = ["signal", SUBJECT, STATUS_KEY, "ready", "--user", "--source", DEPOT.id, "--trace", "t-gate", "--event-id", event_id]
    for server in pair:
        done = gavel(*arguments, "--bus", bus, "--json=snake", server=server)
        assert 0 == done.returncode, done.stderr
        assert event_id == json.loads(done.stdout)["envelope"]["event_id"]
    first, _ = clients
    (intent,) = (await first.get_trace("t-gate")).envelopes
    assert ("UserIntentDetected", event_id, fact_pb2.OBSERVED_FROM_HUMAN_INPUT) == (
        intent.event_name,
        intent.event_id,
        intent.fact.observed_from,
    )
    proposed = proposal(intent)
    proposed.trace_id = intent.trace_id
    decision = (await first.submit_proposal(proposed)).decision
    assert (decision_pb2.OUTCOME_APPROVED, "t-gate", event_id) == (
        decision.decision.outcome,
        decision.trace_id,
        decision.decision.pinned_facts[0].event_id,
    )


async def test_gate_4_state_projection(clients: Clients) -> None:
    """Every replica shows an agent the same facts, with their origin, and the same pending decisions."""
    first, second = clients
    approval = await approve(first, SUBJECT)
    fact_pin = approval.decision.pinned_facts[0]
    here = (await first.get_projection(SUBJECT, min_sequence_number=approval.sequence_number)).projection
    there = (await second.get_projection(SUBJECT, min_sequence_number=approval.sequence_number)).projection
    assert here == there
    (fact,) = here.facts
    assert (STATUS_KEY, "ready", fact_pin.event_id, DEPOT) == (fact.key, fact.value.string_value, fact.source_event.event_id, fact.producer)
    (pending,) = here.pending_decisions
    assert (approval.event_id, projection_service_pb2.PENDING_PHASE_APPROVED) == (pending.decision_id, pending.phase)
    assert approval.sequence_number == here.projection_version
    # The agent's next proposal cites the projection_version that it has read.
    bound = proposal_envelope(
        SUBJECT,
        AGENT,
        action_type=ACTION,
        params={"weight": 1},
        max_fact_age_ms=DAY_MS,
        based_on_events=[fact.source_event],
        projection_version=fact.source_event.sequence_number,
    )
    assert "PROJECTION_CHANGED" == (await second.submit_proposal(bound)).decision.decision.reason_code


async def test_gate_5_execution_to_fact_derivation(
    pair: tuple[Server, Server], new_bus_clients: Clients, redis_url: str, bus: str, tmp_path: Path
) -> None:
    """Versioned rules derive facts from a report, once; the projection has them, and replay derives them again."""
    first, second = new_bus_clients
    await first.deploy_rule_set(WITH_DERIVATION)
    await first.activate_rule_set("parcels", 1)
    with run_executor("succeeds", pair[0], "", bus, "courier-gate", tmp_path / "courier.log"):
        approval = await approve(second, SUBJECT)
        await wait_for_events(first, lambda event: event.fact.decision_id == approval.event_id, count=2)
        await wait_until_idle(second)
    ledger = await Ledger.read(redis_url, bus)
    (report,) = [event for event in ledger.of("execution") if event.execution.status == execution_pb2.EXECUTION_STATUS_SUCCESS]
    facts = {event.fact.key: event for event in ledger.of("fact") if event.fact.decision_id}
    assert {f"execution.{ACTION}.status", "parcel.sent_weight"} == {*facts}
    assert {report.event_id} == {event.causation_id for event in facts.values()}
    projection = {fact.key: fact for fact in (await second.get_projection(SUBJECT)).projection.facts}
    for key, event in facts.items():
        assert (*the(event), event.fact.derivation_rule_id, event.fact.derivation_rule_version) == (
            projection[key].source_event.event_id,
            projection[key].source_event.sequence_number,
            projection[key].derivation_rule_id,
            projection[key].derivation_rule_version,
        )
    assert (2, 1.0) == (projection["parcel.sent_weight"].derivation_rule_version, projection["parcel.sent_weight"].value.number_value)
    verdict = replay(redis_url, bus)
    assert (0, "") == (verdict.returncode, verdict.stderr)
