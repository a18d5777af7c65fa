"""Reservations of counters: what they count while the work may happen, and how reports, ends and compensations change it."""

from __future__ import annotations

import json

import pytest
from gavel.v1 import fact_pb2
from gavel_rules.commands import ActivateRuleSet, RuleSetPosition

from tests.support.counted_plays import WITH, WITHOUT, Step, compare, play
from tests.support.driver import ACTION, Core
from tests.support.histories.compensations import bus_with_compensation, compensation_of, report_partial
from tests.unit.rules.state.orders import (
    BUDGET,
    DAY_MS,
    FAILED,
    PARTIAL,
    READ_OF_CUSTOMER,
    RESERVED,
    SETTLED,
    SUCCESS,
    Orders,
    budget_rules,
    refund_result,
)


def test_reservations_last_until_the_work_ends() -> None:
    """A reserved approval counts beyond its window while its work may happen, then for the window after its report."""
    orders = Orders(budget_rules(RESERVED, decision_ttl_ms=2 * DAY_MS))
    decision = orders.approve(600)
    orders.core.now_ms += DAY_MS + 1
    assert 600.0 == orders.spent()
    orders.carry_out(decision, SUCCESS)
    orders.core.now_ms += DAY_MS - 1
    assert 600.0 == orders.spent()
    orders.core.now_ms += 1
    assert 0.0 == orders.spent()
    orders.core.prove()


def test_what_comes_to_nothing_is_released() -> None:
    """An approval that expires, is revoked, or whose last attempt fails and is given up no longer counts."""
    orders = Orders(budget_rules(RESERVED, retry={"max_attempts": 1}))
    orders.approve(100)
    orders.core.tick(20_000)
    assert 0.0 == orders.spent()
    revoked = orders.approve(200)
    orders.core.revoke(orders.core.by_id[revoked.decision_id])
    assert 0.0 == orders.spent()
    failing = orders.approve(300)
    orders.carry_out(failing, FAILED)
    assert 300.0 == orders.spent()  # a person may still let it be tried again
    (review,) = orders.core.events_named("HumanReviewRequested")
    orders.core.resolve(review, fact_pb2.REVIEW_VERDICT_REJECT)
    assert 0.0 == orders.spent()
    orders.core.prove()


def test_compensated_work_is_released() -> None:
    """Partly done work counts until its compensation has succeeded."""
    data = json.loads(bus_with_compensation())
    counter = {key: value for key, value in RESERVED.items() if key != "by"}
    rules = [{**READ_OF_CUSTOMER, "action": ACTION, "priority": 900, "when": "history.spent() < 0.0"}, *data["rules"]]
    core = Core(json.dumps({**data, "gavel": "v2", "counters": {"spent": counter}, "rules": rules}))
    compensation = compensation_of(core, report_partial(core))
    (table,) = core.state.counters.values()
    values = []
    for attempt in (None, core.start(compensation)):
        if attempt is not None:
            core.report(attempt, SUCCESS)
        reading = table.read("", core.now_ms)
        assert reading is not None
        values.append(reading.value)
    assert (True, 0.0) == (values[0] > 0.0, values[1])
    core.prove()


def test_settlement() -> None:
    """The report may say a smaller amount than was approved; it counts from then on, rounded up to the counter's scale."""
    orders = Orders(budget_rules(SETTLED))
    decision = orders.approve(600)
    started = orders.core.start(orders.core.by_id[decision.decision_id])
    orders.core.report(started, SUCCESS, result=refund_result(12.341))
    assert 12.35 == orders.spent()
    orders.core.prove()


def test_ends_while_a_counter_is_filled() -> None:
    """Decisions that end between the opening of a counter and its fill count as they ended, whatever the fill says of them."""
    orders = Orders(budget_rules(BUDGET))
    settled, expiring, _ = orders.approve(100), orders.approve(200, "bob"), orders.approve(400, "carl")
    core = orders.core
    text = budget_rules(SETTLED, version=2)
    backlog = core.open_counters(core.deploy(text))
    started = core.start(core.by_id[settled.decision_id])
    core.report(started, SUCCESS, result=refund_result(30))
    core.revoke(core.by_id[expiring.decision_id])
    orders.approve(50, "dora")
    core.fill_counters(backlog)
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None)), RuleSetPosition)
    assert [30.0, 0.0, 400.0, 50.0] == [orders.spent(customer) for customer in ("ann", "bob", "carl", "dora")]
    core.prove()


@pytest.mark.parametrize(("where", "expected"), [('reason_code == "SPECIAL"', 0.0), ('outcome == "APPROVED"', 600.0)])
def test_reports_read_the_decision(where: str, expected: float) -> None:
    """A report is counted or left out as the approval was, by what the decision says."""
    orders = Orders(budget_rules({**RESERVED, "where": where}))
    decision = orders.approve(600)
    assert expected == orders.spent()
    orders.carry_out(decision, SUCCESS)
    assert expected == orders.spent()
    orders.approve(1.0, "bob")
    orders.core.prove()


@pytest.mark.parametrize("opened_at", range(4))
@pytest.mark.parametrize("filled_at", range(4))
def test_a_compensation_while_a_counter_is_filled(opened_at: int, filled_at: int) -> None:
    """Compensated work is released whenever the counter was opened and filled."""
    core = Core(WITHOUT)
    rule_set = core.deploy(WITH[0])
    steps: list[Step] = [("propose", "ann", 7.25), ("report", 0, PARTIAL), ("undo", 0, SUCCESS), ("pass", 5, None)]
    backlogs = []
    for number, step in enumerate(steps):
        if number == opened_at:
            backlogs.append(core.open_counters(rule_set))
        play(core, step, number)
        if number == max(opened_at, filled_at):
            core.fill_counters(backlogs[0])
    compare(core)
    core.prove()


def test_a_granted_attempt_reserves_again() -> None:
    """If a person grants another attempt after an effect, the approval reserves its amount once more, beside what was settled."""
    orders = Orders(budget_rules(SETTLED, retry={"max_attempts": 1}, decision_ttl_ms=2 * DAY_MS))
    core = orders.core
    decision = orders.approve(1000)
    core.derive(core.report(core.start(core.by_id[decision.decision_id]), PARTIAL, result=refund_result(1)))
    assert 1.0 == orders.spent()
    core.resolve(core.events_named("HumanReviewRequested")[-1], fact_pb2.REVIEW_VERDICT_APPROVE)
    started = core.start(core.by_id[decision.decision_id])
    assert (1001.0, "DAILY_BUDGET") == (orders.spent(), orders.propose(999).reason_code)
    core.derive(core.report(started, SUCCESS, result=refund_result(999)))
    assert 1000.0 == orders.spent()
    core.prove()


def test_a_late_report_lowers_nothing() -> None:
    """While another attempt has not reported, and when it reports an effect too, the largest of what was approved and reported counts."""
    orders = Orders(budget_rules(SETTLED, retry={"max_attempts": 2, "human_takeover_after_ms": 60_000}, decision_ttl_ms=2 * DAY_MS))
    core = orders.core
    decision = orders.approve(500)
    first = core.start(core.by_id[decision.decision_id], lease_ms=1_000)
    core.tick(2_000)
    core.derive(core.report(core.start(core.by_id[decision.decision_id]), SUCCESS, result=refund_result(400)))
    assert 500.0 == orders.spent()
    core.run(core.report_command(first, SUCCESS, result=refund_result(600)))
    assert 600.0 == orders.spent()
    core.prove()
