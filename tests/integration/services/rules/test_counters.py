"""Counters on a whole server: what an operator is told of events that cannot be counted."""

from __future__ import annotations

import pytest
from gavel.v1 import execution_pb2
from gavel.v1.rule_set_service_pb2 import ActivateRuleSetRequest
from gavel_server.bus.counter_filling import CounterFilling
from gavel_server.errors import RETRY_AFTER_MS_DEFAULT
from prometheus_client import REGISTRY

from tests.integration.services.world import RULE_SET, World, fact, proposal, refusal, report

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


async def test_an_activation_that_another_one_delays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An activation whose counters are not filled, because another one has dropped them, is refused with the advice to repeat it."""

    async def fill(*_: object) -> None:
        """Leave the counters as they are."""

    monkeypatch.setattr(CounterFilling, "fill", fill)
    await world.deploy(WITH_BUDGET)
    problem = await refusal(world.rule_sets.ActivateRuleSet(ActivateRuleSetRequest(policy_id="budgets", version=1)))
    assert ("WRONG_STATE", RETRY_AFTER_MS_DEFAULT) == (problem.reason, problem.retry_after_ms)
