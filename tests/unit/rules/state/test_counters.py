"""Counters on the real core: windows, aggregates, their past, and the delay of a refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel_rules.commands import ActivateRuleSet, Fault, FillCounter, RuleSetPosition
from gavel_rules.state.snapshot.encoding import state_sha256

from tests.support.counted_plays import OK
from tests.support.driver import ACTION, Core, compile_cached, document, fact_envelope, observation_envelope
from tests.support.histories.compensations import bus_with_compensation, compensation_of, report_partial
from tests.support.state.snapshots import restore, tables
from tests.unit.rules.state.orders import (
    BUDGET,
    DAY_MS,
    FAILED,
    OVER,
    READ_OF_ALL,
    READ_OF_CUSTOMER,
    RESERVED,
    SUCCESS,
    Orders,
    budget_rules,
    preflight,
)


def test_a_budget_holds() -> None:
    """Approvals add up within their group, and a decision names the counters that it read."""
    orders = Orders()
    orders.approve(600)
    refusal = orders.propose(400.01)
    assert ("DAILY_BUDGET", [("refunds", "spent", "ann", 600.0)]) == (
        refusal.reason_code,
        [(row.policy_id, row.counter, row.key, row.value) for row in refusal.counters],
    )
    orders.approve(400)
    orders.approve(1000, "bob")
    assert (1000.0, 1000.0, 0.0) == (orders.spent(), orders.spent("bob"), orders.spent("carl"))
    orders.core.prove()


def test_entries_lapse_with_their_window() -> None:
    """An approval no longer counts once its window has passed, at the very millisecond, whether or not another event came."""
    orders = Orders(budget_rules(BUDGET))
    orders.approve(600)
    approved_at_ms = orders.core.now_ms
    orders.core.now_ms = approved_at_ms + DAY_MS - 1
    assert 600.0 == orders.spent()
    orders.core.now_ms += 1
    assert 0.0 == orders.spent()
    orders.approve(1000)
    assert 1000.0 == orders.spent()
    orders.core.prove()


def test_sums_are_exact() -> None:
    """A hundred amounts of a tenth add up to ten, as no sum of floats does."""
    orders = Orders(budget_rules(BUDGET))
    for _ in range(100):
        orders.approve(0.1)
    assert 10.0 == orders.spent()
    assert 10.0 != sum([0.1] * 100)


def test_a_counter_gets_its_past() -> None:
    """A counter that comes into force on a bus with a history gives what it would have given from the beginning."""
    orders = Orders(budget_rules(BUDGET))
    decisions = [orders.approve(amount, customer) for amount, customer in ((100, "ann"), (200, "bob"), (300, "ann"))]
    orders.carry_out(decisions[0], SUCCESS)
    orders.core.activate(budget_rules(RESERVED, version=2))
    assert (400.0, 200.0) == (orders.spent(), orders.spent("bob"))
    orders.carry_out(decisions[1], FAILED)
    orders.core.tick(60_000)
    assert 100.0 == orders.spent()  # the other approval has expired
    orders.core.prove()


def test_counters_of_an_overtaken_version_are_dropped() -> None:
    """Counters opened for a version that never comes into force are dropped when a later one does; their fill ends with a fault."""
    orders = Orders(budget_rules(BUDGET))
    core = orders.core
    backlogs = []
    for version, counter in ((2, RESERVED), (4, {**BUDGET, "window_ms": 2 * DAY_MS})):
        text = budget_rules(counter, version=version)
        backlogs.append(core.open_counters(core.deploy(text)))
    core.activate(budget_rules(BUDGET, over={**OVER, "priority": 70}, version=3))
    assert [1, 4] == sorted(table.version for table in core.state.counters.values())
    for backlog, fault in zip(backlogs, (True, False), strict=True):
        answers = [core.run(FillCounter(core.new_id(), filled)) for filled in backlog.fills(core.now_ms)]
        assert [fault] == [isinstance(answer, Fault) for answer in answers]
    core.activate(budget_rules(RESERVED, version=2))
    orders.approve(100)
    core.prove()


@pytest.mark.parametrize(
    ("counter", "expected"),
    [
        ({"distinct": "params.customer_id"}, [1, 2, 2, 2, 0]),
        ({"min": "params.amount"}, [5.0, 5.0, 2.0, 2.0, 0.0]),
        ({"max": "params.amount"}, [5.0, 7.0, 7.0, 9.0, 0.0]),
        ({"last": "params.amount"}, [5.0, 7.0, 2.0, 9.0, 0.0]),
        ({}, [1, 2, 3, 3, 0]),
    ],
)
def test_aggregates(counter: dict[str, Any], expected: list[float]) -> None:
    """Each aggregate gives what a look at the list of events gives, also after the first of them has lapsed."""
    orders = Orders(budget_rules({"of": "proposals", "action": "refund.*", "window_ms": 4_000 - 1, **counter}, over=READ_OF_ALL))
    totals = []
    for amount, customer in ((5, "ann"), (7, "bob"), (2, "bob"), (9, "carl")):
        orders.propose(amount, customer)
        orders.core.now_ms += 1_000
        totals.append(orders.spent(""))
    orders.core.now_ms += 3_000
    assert expected == [*totals, orders.spent("")]
    orders.core.prove()


def test_a_snapshot_holds_counters() -> None:
    """From a snapshot, counters that are filled, and those that wait for their fill, go on with the same numbers."""
    orders = Orders(budget_rules(RESERVED, decision_ttl_ms=2 * DAY_MS))
    core = orders.core
    settled, revoked = orders.approve(100), orders.approve(200, "bob")
    orders.carry_out(settled, SUCCESS)
    customers = {"of": "proposals", "action": "*", "distinct": "params.customer_id", "window_ms": DAY_MS}
    backlog = core.open_counters(core.deploy(budget_rules(customers, over=READ_OF_ALL, version=2)))
    orders.approve(1, "carl")
    core.revoke(core.by_id[revoked.decision_id])
    restored = restore(core.state)
    assert tables(core.state) == tables(restored)
    assert (core.state.digest(), state_sha256(core.state.store)) == (restored.digest(), state_sha256(restored.store))
    core.state = restored
    core.fill_counters(backlog)
    readings = [table.read(group, core.now_ms) for table in core.state.counters.values() for group in ("ann", "bob", "")]
    assert [0, 0, 0, 0, 3, 100] == sorted(reading.value for reading in readings if reading is not None)
    core.prove()


def test_a_refusal_tells_when_there_will_be_room() -> None:
    """`retry_after` gives the time until enough has stopped counting, at which the proposal is approved. With reservations the hint is to
    wait, unless no waiting helps.
    """
    over = {**OVER, "retry_after": "history.spent.frees(params.customer_id, params.amount, 1000.0)"}
    orders = Orders(budget_rules(BUDGET, over=over))
    for _ in range(3):
        orders.approve(300)
        orders.core.now_ms += 60_000
    refusal = orders.propose(500)
    # The first two have to go, the second of which came a minute after the first.
    assert (DAY_MS - 120_000, [decision_pb2.REMEDY_WAIT]) == (refusal.retry_hint.retry_after_ms, [*refusal.retry_hint.remedy])
    orders.core.now_ms += refusal.retry_hint.retry_after_ms - 1
    assert "DAILY_BUDGET" == orders.propose(500).reason_code
    orders.core.now_ms += 1
    orders.approve(500)
    orders.core.prove()
    reserved = Orders(budget_rules(RESERVED, over=over))
    reserved.approve(900)
    hints = [reserved.propose(amount).retry_hint for amount in (500, 1_001)]
    revise, wait = decision_pb2.REMEDY_REVISE_PARAMS, decision_pb2.REMEDY_WAIT
    assert [(0, [revise, wait]), (0, [revise])] == [(hint.retry_after_ms, [*hint.remedy]) for hint in hints]


def test_a_hint_after_a_lapse() -> None:
    """A hint leaves out what has lapsed since the last event, and rounds the room once."""
    over = {**OVER, "when": "history.spent(params.customer_id) + params.amount > 10.5"}
    over["retry_after"] = "history.spent.frees(params.customer_id, params.amount, 10.5)"
    orders = Orders(budget_rules({**BUDGET, "scale": 0}, over=over))
    core = orders.core
    status = core.fact("order.status", "delivered", subject="order/late")
    for amount in (-5, 6, 9):
        orders.approve(amount)
        core.now_ms += 60_000
    core.now_ms += DAY_MS - 180_000  # -5 lapses now
    params = {"amount": 1.4, "customer_id": "ann"}
    decision = preflight(core, core.proposal([status], subject="order/late", params=params, max_fact_age_ms=10 * DAY_MS))
    assert ([15.0], 60_000) == ([reading.value for reading in decision.counters], decision.retry_hint.retry_after_ms)


def test_a_proposal_does_not_count_for_itself() -> None:
    """A counter of proposals gives the same for a proposal decided at once as for one that waits for its contest and is counted by then."""
    counter = {"of": "proposals", "action": "*", "window_ms": DAY_MS}
    never = {**READ_OF_ALL, "when": "history.spent() > 1"}
    for window_ms in (0, 1_000):
        orders = Orders(budget_rules(counter, over=never, contest_window_ms=window_ms))
        core = orders.core
        outcomes = []
        for number in range(3):
            subject = f"order/{number}"
            status = core.fact("order.status", "delivered", subject=subject)
            changes: dict[str, Any] = {"subject": subject, "trace_id": subject, "params": {"amount": 1, "customer_id": "ann"}}
            core.run(core.proposal([status], **changes))
            core.tick(window_ms)
            (decision,) = [event.decision for event in core.events if event.HasField("decision") and event.subject == subject]
            outcomes.append(decision.reason_code)
        assert ["", "", "DAILY_BUDGET"] == outcomes
        core.prove()


@pytest.mark.parametrize("source", ["facts", "observations", "proposals"])
def test_an_event_id_that_comes_again(source: str) -> None:
    """An event_id may come again after the idempotency window: both events count, each until it lapses, also from a snapshot."""
    names: dict[str, Any] = {"action": ACTION} if source == "proposals" else {"fact": "card.chargeback"}
    orders = Orders(budget_rules({"of": source, "window_ms": 30 * DAY_MS, **names}, over={**READ_OF_ALL, "when": "history.spent() > 2"}))
    core = orders.core
    event_id = core.new_id()

    def record(number: int) -> None:
        subject = f"order/{number}"
        if source == "proposals":
            status = core.fact("order.status", "delivered", subject=subject)
            params = {"amount": 1.0, "customer_id": "ann"}
            core.decide([status], subject=subject, trace_id=f"trace-{number}", event_id=event_id, params=params)
            return
        write = fact_envelope if source == "facts" else observation_envelope
        envelope = write("card.chargeback", "yes", subject=subject)
        envelope.event_id = event_id
        core.publish(envelope)

    numbers = []
    for number in (1, 2):
        record(number)
        core.tick(8 * DAY_MS)
        core.state = restore(core.state)
        numbers.append(orders.spent(""))
    for days in (15, 8):
        core.tick(days * DAY_MS)
        core.fact("order.status", "delivered", subject="order/9")
        numbers.append(orders.spent(""))
    assert [1, 2, 1, 0] == numbers


def test_a_proposal_with_the_event_id_of_a_counted_fact() -> None:
    """An agent that gives its proposal the event_id of a fact that counts does not take the fact out of the number."""
    counter = {"of": "facts", "fact": "card.chargeback", "window_ms": 30 * DAY_MS}
    orders = Orders(budget_rules(counter, over={**READ_OF_ALL, "when": "history.spent() > 0"}))
    core = orders.core
    chargeback = core.fact("card.chargeback", "yes", subject="card/1")
    core.tick(8 * DAY_MS)
    status = core.fact("order.status", "delivered", subject="order/1")
    params = {"amount": 1.0, "customer_id": "ann"}
    decision = core.decide([status], subject="order/1", trace_id="trace-1", event_id=chargeback.event_id, params=params)
    assert "DAILY_BUDGET" == decision.reason_code


def test_counted_facts_of_type_integer() -> None:
    """The value of a counted fact that an action declares as an integer is one, in a sum and in a condition."""
    counter = {"of": "facts", "fact": "card.points", "where": "value % 2 == 1", "sum": "value", "window_ms": 30 * DAY_MS}
    document = json.loads(budget_rules(counter, over={**READ_OF_ALL, "when": "history.spent() > 8"}))
    document["actions"][ACTION]["facts"]["points"] = {"key": "card.points", "type": "integer", "max_age_ms": 60_000, "optional": True}
    orders = Orders(json.dumps(document))
    for value in (5, 4, 3):
        orders.core.fact("card.points", value, subject="card/1")
    assert 8.0 == orders.spent("")
    orders.core.prove()


@pytest.mark.parametrize("where", [{}, {"where": "value == true"}])
def test_a_retraction_does_not_count(where: dict[str, str]) -> None:
    """A fact with the value null counts nothing, and keeps no counter from giving a number."""
    counter = {"of": "facts", "fact": "deploy.failed", "window_ms": 30 * DAY_MS, **where}
    document = json.loads(budget_rules(counter, over={**READ_OF_ALL, "when": "history.spent() > 2"}))
    document["actions"][ACTION]["facts"]["failed"] = {"key": "deploy.failed", "type": "boolean", "max_age_ms": 60_000, "optional": True}
    orders = Orders(json.dumps(document))
    for value in (True, None, True):
        orders.core.fact("deploy.failed", value, subject="service/1")
    assert 2.0 == orders.spent("")
    orders.core.prove()


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize("amounts", [(900, -950), (-950, 900)])
def test_entries_that_lapse_together(amounts: tuple[int, int], is_restored: bool) -> None:
    """When there will be room does not depend on the order of entries that lapse together, which a snapshot does not keep."""
    over = {**OVER, "retry_after": "history.spent.frees(params.customer_id, params.amount, 1000.0)"}
    orders = Orders(budget_rules(BUDGET, over=over))
    for amount in amounts:
        orders.approve(amount)
    orders.core.now_ms += 60_000
    orders.approve(1_000)
    if is_restored:
        orders.core.state = restore(orders.core.state)
    refusal = orders.propose(100)
    assert DAY_MS == refusal.retry_hint.retry_after_ms
    orders.core.prove()


@pytest.mark.parametrize("source", ["approvals", "executions"])
def test_a_compensation_counts_with_its_own_params(source: str) -> None:
    """A compensation counts with its params, and not with those of the action that it compensates."""
    data = json.loads(bus_with_compensation())
    counter = {"of": source, "action": "refund.reverse", "sum": "params.amount", "window_ms": DAY_MS}
    rules = [{**READ_OF_CUSTOMER, "action": ACTION, "priority": 900, "when": "history.undone() < 0.0"}, *data["rules"]]
    core = Core(json.dumps({**data, "gavel": "v2", "counters": {"undone": counter}, "rules": rules}))
    core.report(core.start(compensation_of(core, report_partial(core, refunded=20))), SUCCESS)
    (table,) = core.state.counters.values()
    reading = table.read("", core.now_ms)
    assert reading is not None
    assert 20.0 == reading.value
    core.prove()


def test_an_amount_that_fits_frees_at_once() -> None:
    """A refusal for another reason has no delay if the amount fits under the limit."""
    retry = "history.spent.frees(params.customer_id, params.amount, 1000.0)"
    orders = Orders(budget_rules(BUDGET, over={**OVER, "when": "params.amount > 500.0", "retry_after": retry}))
    orders.approve(10)
    refusal = orders.propose(501)
    assert ("DAILY_BUDGET", 0) == (refusal.reason_code, refusal.retry_hint.retry_after_ms)


def test_a_rollback_keeps_its_counters() -> None:
    """Counters that are filled for an earlier version than the one in force stay, whatever other rule sets come into force."""
    orders = Orders(budget_rules(RESERVED))
    core = orders.core
    core.activate(budget_rules(BUDGET, version=2))
    rule_set = compile_cached(budget_rules(RESERVED))
    backlog = core.open_counters(rule_set)
    core.activate(document({}, [{**OK, "when": "true"}], rule_set="others", action_type="mail.send"))
    core.fill_counters(backlog)
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "refunds", 1, None)), RuleSetPosition)
    core.prove()
