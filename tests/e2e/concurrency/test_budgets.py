"""Budgets over the history of a bus, on two servers: they hold under concurrency, and a new one knows the past."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from pathlib import Path

import pytest
from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel_client import GavelClient

from tests.campaigns.budget import run_campaign
from tests.e2e.ledger import Ledger
from tests.e2e.world import ACTION, POLICY, approve, proposal, prove, publish_status, replay, rule_set, wait_for_same_head
from tests.support.conservation import BudgetAudit, BudgetError

LIMIT = 20
# At most LIMIT kilograms a day, over all approvals.
BUDGETED = (
    rule_set(version=2)
    .replace("gavel: v1", "gavel: v2")
    .replace(
        "rules:\n",
        "counters:\n  sent: {of: approvals, action: parcel.send, sum: params.weight, window_ms: 86400000, keep: reserved}\nrules:\n"
        f"  - {{id: budget, action: parcel.send, priority: 900, when: history.sent() + params.weight > {LIMIT}.0, effect: reject,"
        " reason_code: DAILY_WEIGHT}\n",
        1,
    )
)


def reserved(events: list[Envelope]) -> Fraction:
    """Return the weight that the approvals reserve at the end of a log in which nothing was carried out."""
    approved = [event.decision for event in events if event.decision.outcome == decision_pb2.OUTCOME_APPROVED]
    return sum((Fraction(str(decision.params["weight"])) for decision in approved), Fraction(0))


@pytest.mark.long
async def test_a_budget_is_never_overrun(clients: tuple[GavelClient, GavelClient], redis_url: str, bus: str) -> None:
    """Of proposals that come at once at both servers, exactly as many are approved as fit into what the past left of the budget."""
    first, second = clients
    await approve(first, "parcel/before")  # a kilogram that the counter has to find in the log
    await first.deploy_rule_set(BUDGETED)
    await second.activate_rule_set(POLICY, 2)
    facts = await publish_status(first, [f"parcel/{number}" for number in range(60)])
    answers = await asyncio.gather(
        *(clients[number % 2].submit_proposal(proposal(fact, 0.5)) for number, fact in enumerate(facts.values()))
    )
    decisions = [answer.decision.decision for answer in answers]
    approved = [decision for decision in decisions if decision.outcome == decision_pb2.OUTCOME_APPROVED]
    assert 2 * (LIMIT - 1) == len(approved)
    assert {"", "DAILY_WEIGHT"} == {decision.reason_code for decision in decisions}
    assert {float(LIMIT)} == {decision.counters[0].value for decision in decisions if decision.reason_code}
    statuses = await wait_for_same_head(clients)
    assert len({status.projection_digest for status in statuses}) == 1
    ledger = await Ledger.read(redis_url, bus)
    assert reserved(ledger.events) == LIMIT
    await prove(second)
    assert 0 == replay(redis_url, bus).returncode


@pytest.mark.long
async def test_a_budget_under_fire(tmp_path: Path) -> None:
    """Under concurrent proposals, reports, revocations, expiries and kills, a budget is never overrun, and nearly all of it can be used."""
    findings = await run_campaign(tmp_path, proposals=600, clients=16, kills=3, seed=1)
    assert 3 == findings.kills
    assert findings.audit.approvals + findings.audit.refusals > 600
    assert min(findings.audit.refusals, findings.audit.releases, findings.audit.settled) > 0


def test_the_audit_of_a_budget_finds_what_is_too_much() -> None:
    """The audit counts an approval until it ends, and fails at the event after which more is in use than there is."""

    def approval(event_id: str, weight: float) -> Envelope:
        event = Envelope(event_id=event_id, decision=Decision(action_type=ACTION, outcome=decision_pb2.OUTCOME_APPROVED))
        event.decision.params["weight"] = weight
        return event

    expiry = Decision(action_type=ACTION, outcome=decision_pb2.OUTCOME_EXPIRED, previous_decision_id="one")
    aborted = Execution(decision_id="two", status=execution_pb2.EXECUTION_STATUS_ABORTED)
    events = [
        approval("one", 0.1),
        approval("two", 0.2),
        Envelope(decision=expiry),
        approval("three", 0.1),
        Envelope(execution=aborted),
        approval("four", 0.2),
        approval("five", 0.01),
    ]
    audit = BudgetAudit(Fraction("0.3"), ACTION, "weight").read(events[:-1])
    assert (Fraction("0.3"), Fraction("0.3"), 2) == (audit.used, audit.used_max, audit.releases)
    with pytest.raises(BudgetError, match=r"after event 0, 0\.31 of 0\.3 is in use"):
        audit.read(events[-1:])
