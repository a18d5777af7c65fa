"""Counters on a whole server: what an operator is told of events that cannot be counted."""

from __future__ import annotations

from gavel.v1 import execution_pb2
from gavel.v1.rule_set_service_pb2 import ActivateRuleSetRequest
from prometheus_client import REGISTRY

from tests.integration.services.world import RULE_SET, World, fact, proposal, report

WITH_BUDGET = RULE_SET.replace("gavel: v1", "gavel: v2").replace("rule_set: refunds", "rule_set: budgets") + (
    "  - {id: budget, action: refund.create, priority: 8, when: history.spent() > 100.0, effect: reject, reason_code: BUDGET}\n"
    "counters:\n"
    "  spent: {of: approvals, action: refund.create, sum: params.amount, window_ms: 86400000, keep: reserved, "
    "settle: double(execution.result.refunded)}\n"
)


async def test_a_report_that_cannot_be_settled(world: World) -> None:
    """A report without the amount that settles it is counted at once, and later refusals name it."""
    await world.deploy(WITH_BUDGET)
    await world.rule_sets.ActivateRuleSet(ActivateRuleSetRequest(policy_id="budgets", version=1))
    approval = await world.approve()
    started = await world.begin(approval)
    settled = (await world.report(report(approval, started, execution_pb2.EXECUTION_STATUS_SUCCESS))).sequence_number

    labels = {"bus": "default", "policy_id": "budgets", "counter": "spent"}
    assert 1.0 == REGISTRY.get_sample_value("gavel_events_not_counted_total", labels)
    status = await world.publish(fact("order/2", "order.status", "delivered"))
    refusal = (await world.propose(proposal("order/2", cites=[status], trace_id="later"))).decision
    assert [f"budgets/spent: event {settled} could not be counted"] == [warning.message for warning in refusal.warnings]
