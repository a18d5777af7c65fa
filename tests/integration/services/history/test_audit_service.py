"""AuditService over real gRPC: people and executors, old decisions, decisions that do not come out again, and rights."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import pytest
from gavel.v1 import execution_pb2, fact_pb2, replay_service_pb2
from gavel.v1.administration_service_pb2 import DeployGrantsRequest
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest
from gavel.v1.audit_service_pb2 import Audit, AuditDecisionRequest, AuditTraceRequest
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, LlmInvocation
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import BatchPublishEventsRequest, PublishEventRequest
from gavel.v1.rule_set_service_pb2 import ActivateRuleSetRequest
from gavel_rules.identity.principal import Principal
from gavel_server.history.audit import findings
from gavel_server.history.audit.findings import MODELS_MAX
from gavel_server.history.audit.trace_record import TraceRecord
from gavel_server.log import Record

from tests.integration.services.identity.callers import ADMIN, KnowingInterceptor, by
from tests.integration.services.world import (
    AGENT,
    EXECUTOR,
    RULE_SET,
    World,
    fact,
    observation,
    proposal,
    refusal,
    report,
    running_world,
    tool_call,
)
from tests.support.hashes import sha256_of

DAY_MS = 24 * 60 * 60 * 1000
WITH_BUDGET = RULE_SET.replace("gavel: v1", "gavel: v2").replace(
    "rules:\n",
    """counters:
  of_day: {of: approvals, action: refund.create, sum: params.amount, window_ms: 86400000}
rules:
  - {id: budget, action: refund.create, priority: 8, when: history.of_day() + params.amount > 100.0, effect: reject, reason_code: BUDGET}
""",
)
# Rules of another rule set, with a fact of their own.
FREEZE = """
gavel: v1
rule_set: security
version: 1
actions:
  refund.create:
    params: {type: object, required: [amount], properties: {amount: {type: number}}}
    facts:
      frozen: {key: order.frozen, type: boolean, max_age_ms: 60000, sources: [orders-db]}
    decision_ttl_ms: 60000
    rejection_limit: 3
    retry: {max_attempts: 2}
rules:
  - {id: frozen, action: refund.create, priority: 1, when: "facts.frozen && params.amount > 1.0", effect: reject, reason_code: FROZEN}
"""
CONTESTED = RULE_SET.replace("decision_ttl_ms", "contest_window_ms: 1000\n    decision_ttl_ms")


async def audit_decision(world: World, decision: Envelope) -> Audit:
    """Audit a decision."""
    return (await world.audits.AuditDecision(AuditDecisionRequest(decision_id=decision.event_id))).audit


async def test_people_and_executors(world_with_rules: World) -> None:
    """An audit shows who resolved a review and why, who proposed and who carried out, and makes later decisions again too."""
    world = world_with_rules
    event = await world.publish(fact("order/1", "order.status", "delivered"))
    review = await world.propose(proposal("order/1", amount=5_000, cites=[event]))
    request = ResolveReviewRequest(
        decision_id=review.event_id, verdict=fact_pb2.REVIEW_VERDICT_APPROVE, reviewer="ruth", reason="customer is known"
    )
    approval = (await world.arbitration.ResolveReview(request)).decision
    started = await world.begin(approval)
    await world.report(report(approval, started, execution_pb2.EXECUTION_STATUS_SUCCESS))

    audit = await audit_decision(world, approval)

    first, second = audit.decisions
    (act,) = first.people
    assert ("ruth", "customer is known", fact_pb2.REVIEW_VERDICT_APPROVE) == (act.name, act.reason, act.verdict)
    assert (AGENT, EXECUTOR) == (first.proposer, second.executor)
    assert (review.event_id, approval.event_id) == (first.decision_id, second.decision_id)
    assert [True, False] == [one.HasField("today") for one in audit.decisions]
    assert [replay_service_pb2.REPLAY_STATUS_PROVED] * 2 == [one.recomputation.status for one in audit.decisions]
    assert ["order.status"] == [use.key for use in second.facts]


async def test_a_rejection_shows_what_its_proposal_cited(world_with_rules: World) -> None:
    """A decision that rests on nothing shows the facts that its proposal cites, with their age."""
    world = world_with_rules
    event = await world.publish(fact("order/1", "order.status", "cancelled"))
    world.clock.now_ms += 1_500
    audit = await audit_decision(world, await world.propose(proposal("order/1", cites=[event])))
    (use,) = audit.decisions[0].facts
    assert ("cancelled", 1_500, event.event_id) == (use.value.string_value, use.age_ms, use.event_id)


@pytest.mark.parametrize(("frozen", "amount", "window_ms"), [(True, 10, 0), (True, 5_000, 0), (False, 5_000, 0), (True, 10, 1_000)])
async def test_a_refusal_shows_what_its_rules_read(world: World, frozen: bool, amount: int, window_ms: int) -> None:
    """A rejection or review shows the evidence of every rule set, cited or not: that of the rules that decided, and of the others."""
    window = f"contest_window_ms: {window_ms}\n    decision_ttl_ms" if window_ms else "decision_ttl_ms"
    await world.activate(RULE_SET.replace("decision_ttl_ms", window))
    await world.activate(FREEZE.replace("decision_ttl_ms", window))
    status = await world.publish(fact("order/1", "order.status", "delivered"))
    freeze = await world.publish(fact("order/1", "order.frozen", frozen and not window_ms))
    unread = await world.publish(fact("order/1", "order.note", "late"))
    world.clock.now_ms += 1_500
    waiting = asyncio.ensure_future(world.propose(proposal("order/1", amount=amount, cites=[status, unread])))
    if window_ms:
        while await world.head() == unread.sequence_number:  # noqa: ASYNC110  # the log has no notification of new events
            await asyncio.sleep(0.001)
        freeze = await world.publish(fact("order/1", "order.frozen", frozen))
        world.clock.now_ms += 2_000
        await world.publish(fact("order/2", "order.status", "paid"))  # a command lets the contest close
    decision = await waiting

    assert ("FROZEN" if frozen else "LARGE_REFUND") == decision.decision.reason_code
    uses = {use.key: use for use in (await audit_decision(world, decision)).decisions[0].facts}
    stated = {"order.status": status, "order.frozen": freeze, "order.note": unread}
    assert {key: event.event_id for key, event in stated.items()} == {key: use.event_id for key, use in uses.items()}
    age_ms = decision.recorded_at.ToMilliseconds() - freeze.occurred_at.ToMilliseconds()
    expected = ("order/1", 1, freeze.sequence_number, age_ms, freeze.producer, frozen)
    use = uses["order.frozen"]
    assert expected == (use.subject, use.trust_tier, use.sequence_number, use.age_ms, use.producer, use.value.bool_value)
    short = await world.audits.AuditDecision(AuditDecisionRequest(decision_id=decision.event_id, without_recomputation=True))
    assert ["order.status", "order.note"] == [use.key for use in short.audit.decisions[0].facts]


async def test_a_refusal_before_evidence_shows_what_its_proposal_cites(world: World) -> None:
    """A decision without evidence, because its params are invalid or its producer waits for a person, shows only what is cited."""
    await world.activate()
    await world.activate(FREEZE)
    status = await world.publish(fact("order/1", "order.status", "delivered"))
    await world.publish(fact("order/1", "order.frozen", False))
    decisions = []
    for changes in ({"amount": "much"}, {"amount": "much"}, {"amount": "much"}, {}):
        envelope = proposal("order/1", amount=5_000, cites=[status], trace_id="looping")
        envelope.proposal.params.update(changes)
        decisions.append(await world.propose(envelope))
    assert ["INVALID_PARAMS", "INVALID_PARAMS", "REJECTION_LIMIT", "UNDER_REVIEW"] == [one.decision.reason_code for one in decisions]
    keys = [[use.key for use in (await audit_decision(world, one)).decisions[0].facts] for one in decisions]
    assert [["order.status"]] * 4 == keys


async def test_counters(world: World) -> None:
    """A decision shows the counters that its rules read, with their values at the time."""
    await world.deploy(WITH_BUDGET)
    await world.rule_sets.ActivateRuleSet(ActivateRuleSetRequest(policy_id="refunds", version=1))
    decisions = []
    for order in ("order/1", "order/2"):
        event = await world.publish(fact(order, "order.status", "delivered"))
        decisions.append(await world.propose(proposal(order, amount=60, cites=[event], trace_id=order)))
    assert ["", "BUDGET"] == [one.decision.reason_code for one in decisions]
    for decision, value in zip(decisions, (0.0, 60.0), strict=True):
        ((reading,),) = [one.counters for one in (await audit_decision(world, decision)).decisions]
        assert ("refunds", "of_day", "", value) == (reading.policy_id, reading.counter, reading.key, reading.value)


async def test_a_decision_whose_id_is_forgotten(world_with_rules: World) -> None:
    """A decision older than the idempotency window is found in the log."""
    world = world_with_rules
    decision = await world.approve()
    world.clock.now_ms += 9 * DAY_MS
    await world.publish(fact("order/2", "order.status", "paid"))
    audit = await audit_decision(world, decision)
    assert [decision.event_id, decision.event_id] == [audit.decisions[0].decision_id, audit.decisions[1].previous_decision_id]


async def test_a_decision_that_does_not_come_out_again(world_with_rules: World) -> None:
    """If the log holds another decision than the rules make, its recomputation diverges, and names the fields."""
    world = world_with_rules
    decision = await world.approve()
    records: list[Record] = (await world.buses.open("")).log._records  # type: ignore[attr-defined]  # what an attacker would do
    stored = records[decision.sequence_number - 1]
    forged = Envelope.FromString(stored.envelope)
    forged.decision.rule_id = "large"
    records[decision.sequence_number - 1] = Record(decision.sequence_number, forged.SerializeToString(), stored.chain_hash)
    recomputation = (await audit_decision(world, decision)).decisions[0].recomputation
    assert replay_service_pb2.REPLAY_STATUS_DIVERGED == recomputation.status
    assert "decision.rule_id" in recomputation.message


async def test_a_decision_of_a_contest(world: World) -> None:
    """The decision that a candidate of a contest would get is known as long as the same rule sets are active."""
    await world.activate(CONTESTED)
    event = await world.publish(fact("order/1", "order.status", "delivered"))
    waiting = asyncio.ensure_future(world.propose(proposal("order/1", cites=[event])))
    while await world.head() == event.sequence_number:  # noqa: ASYNC110  # the log has no notification of new events
        await asyncio.sleep(0.001)
    world.clock.now_ms += 2_000
    await world.publish(fact("order/2", "order.status", "paid"))  # a command lets the contest close
    decision = await waiting
    today = (await audit_decision(world, decision)).decisions[0].today
    assert (False, decision.decision.outcome) == (today.differs, today.outcome)
    await world.activate(CONTESTED.replace("version: 1", "version: 2"))
    today = (await audit_decision(world, decision)).decisions[0].today
    assert (True, 0, True) == (today.differs, today.outcome, "contest" in today.message)


async def test_an_audit_is_cut_at_its_limits(world_with_rules: World) -> None:
    """A trace with more model calls than an audit has is cut, and the audit says so."""
    world = world_with_rules
    invocation = LlmInvocation(requested_model="m", llm_model="m", llm_provider="p", prompt_hash=sha256_of("prompt"))
    diagnostic = AgentDiagnostic(kind="LlmInvocationCommitted", llm_invocation=invocation)
    envelope = Envelope(subject="order/1", trace_id="long", producer=AGENT, agent_diagnostic=diagnostic)
    await world.events.BatchPublishEvents(BatchPublishEventsRequest(envelopes=[envelope] * (MODELS_MAX + 1)))
    audit = (await world.audits.AuditTrace(AuditTraceRequest(trace_id="long"))).audit
    assert (MODELS_MAX, True) == (len(audit.models), audit.truncated)


async def test_facts_are_cut_at_their_limit(world_with_rules: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit has at most so many facts, although one cited observation states many, and says that it is cut."""
    monkeypatch.setattr(findings, "FACTS_MAX", 5)
    world = world_with_rules
    for count, expected in ((5, (5, False)), (6, (5, True))):
        seen = observation(f"order/{count}", "order.n0", 0)
        for number in range(1, count):
            seen.observation.extracted_fields[f"order.n{number}"].number_value = number
        cited = await world.publish(seen)
        audit = await audit_decision(world, await world.propose(proposal(seen.subject, cites=[cited], trace_id=f"t{count}")))
        assert expected == (len(audit.decisions[0].facts), audit.truncated)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_of_a_trace() -> None:
    """Of large events an audit keeps what it shows: the memory of their contents is free again."""
    proposed = Envelope(event_id="p", proposal={"params": {"text": "x" * 900_000}})  # type: ignore[arg-type]  # a dict will do
    content = proposed.SerializeToString()
    record = TraceRecord("t")
    record.add([content] * 3)
    before = resident_bytes()
    record.add([content] * 100)
    assert resident_bytes() - before < 30_000_000
    assert 103 == len(record.events)


async def test_counters_are_cut_at_their_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the counters of all decisions an audit has the first ones up to its limit, and says that there are more."""
    counted = RULE_SET.replace("gavel: v1", "gavel: v2") + (
        "  - {id: often, action: refund.create, priority: 900, when: 'history.times() > 99', effect: reject, reason_code: OFTEN}\n"
        "counters:\n  times: {of: proposals, action: refund.create, window_ms: 60000}\n"
    )
    await world.deploy(counted)
    await world.rule_sets.ActivateRuleSet(ActivateRuleSetRequest(policy_id="refunds", version=1))  # it gives the counter its past
    for subject in ("order/1", "order/2"):
        event = await world.publish(fact(subject, "order.status", "delivered"))
        await world.propose(proposal(subject, cites=[event], trace_id="counted"))

    async def audited() -> tuple[list[int], bool]:
        audit = (await world.audits.AuditTrace(AuditTraceRequest(trace_id="counted"))).audit
        return [len(one.counters) for one in audit.decisions], audit.truncated

    assert ([1, 1], False) == await audited()
    monkeypatch.setattr(findings, "COUNTERS_MAX", 1)
    assert ([1, 0], True) == await audited()


async def test_tools_by_what_they_recorded(world_with_rules: World) -> None:
    """Calls of a tool are counted by version, provider and schemas; open calls are counted too."""
    world = world_with_rules
    for version in ("1", "1", "2"):
        call = tool_call("t", tool="scan")
        call.tool_call.tool_version = version
        await world.publish(call)
    audit = (await world.audits.AuditTrace(AuditTraceRequest(trace_id="t"))).audit
    assert [("1", 2, 2), ("2", 1, 1)] == [(use.tool_version, use.calls, use.open) for use in audit.tools]


@pytest.mark.parametrize(
    ("method", "request_", "reason"),
    [
        ("AuditTrace", AuditTraceRequest(trace_id=""), "INVALID_REQUEST"),
        ("AuditTrace", AuditTraceRequest(trace_id="nobody"), "EVENT_NOT_FOUND"),
        ("AuditDecision", AuditDecisionRequest(decision_id="x"), "INVALID_REQUEST"),
        ("AuditDecision", AuditDecisionRequest(decision_id="00000000-0000-4000-8000-000000000000"), "DECISION_NOT_FOUND"),
    ],
)
async def test_requests_that_name_nothing(world_with_rules: World, method: str, request_: object, reason: str) -> None:
    """A malformed name is INVALID_REQUEST, a trace or decision that does not exist is NOT_FOUND."""
    assert reason == (await refusal(getattr(world_with_rules.audits, method)(request_))).reason


async def test_a_fact_is_no_decision(world_with_rules: World) -> None:
    """An event that is not a decision has no audit of a decision."""
    event = await world_with_rules.publish(fact("order/1", "order.status", "delivered"))
    problem = await refusal(world_with_rules.audits.AuditDecision(AuditDecisionRequest(decision_id=event.event_id)))
    assert (grpc.StatusCode.NOT_FOUND, "DECISION_NOT_FOUND") == (problem.code, problem.reason)


async def test_rights() -> None:
    """An audit needs `read`; making decisions again also needs `replay`."""
    grants = """
gavel: v1
name: main
version: 1
grants:
  - {to: [ada], may: [grant, publish], produce: {types: [database_snapshot], ids: [orders-db]}}
  - {to: [rita], may: [read]}
  - {to: [aude], may: [read, replay]}
  - {to: [rex], may: [replay]}
"""
    async with running_world(interceptor=KnowingInterceptor(), admins=["ada"]) as world:
        await world.deploy()  # opens the bus
        await world.administration.DeployGrants(DeployGrantsRequest(document=grants, reason="first"), metadata=by(ADMIN))
        envelope = fact("order/1", "order.status", "delivered", trace_id="t")
        await world.events.PublishEvent(PublishEventRequest(envelope=envelope), metadata=by(ADMIN))

        async def outcome(name: str, *, short: bool) -> str:
            request = AuditTraceRequest(trace_id="t", without_recomputation=short)
            try:
                await world.audits.AuditTrace(request, metadata=by(Principal(name, "token", credential_id=name)))
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
            return "OK"

        denied = "PERMISSION_DENIED"
        expected = {"rita": (denied, "OK"), "aude": ("OK", "OK"), "rex": (denied, denied)}
        assert expected == {name: (await outcome(name, short=False), await outcome(name, short=True)) for name in expected}
