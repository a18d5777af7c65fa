"""Counters that give no number or have no room: the cause that a refusal names, the groups that it affects, and when it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reason_codes
from gavel_rules.commands import ActivateRuleSet, UpgradeBus
from gavel_rules.state.counters import FAULTY_GROUPS_MAX
from gavel_rules.values import python_to_value

from tests.support.counted_plays import PARAMS
from tests.support.driver import Core
from tests.support.state.snapshots import restore
from tests.unit.rules.state.orders import (
    BUDGET,
    DAY_MS,
    OVER,
    READ_OF_CUSTOMER,
    RESERVED,
    SETTLED,
    SUCCESS,
    Orders,
    budget_rules,
    preflight,
    refund_result,
)


def unbounded_rules(counter: dict[str, Any], amount: str = "number", over: dict[str, Any] = READ_OF_CUSTOMER, **changes: Any) -> str:
    """Return a rule set whose schema bounds neither the customer's name nor the amount, which is of the JSON type `amount`."""
    data = json.loads(budget_rules(counter, over=over, **changes))
    for action in data["actions"].values():
        action["params"] = {**PARAMS, "properties": {"amount": {"type": amount}, "customer_id": {"type": "string"}}}
    return json.dumps(data)


def cause_and_delay(refusal: Decision) -> tuple[str, int]:
    """Return why the counter of a refusal gives no number or has no room, and after how many milliseconds to try again."""
    (warning,) = refusal.warnings
    assert {reason_codes.COUNTER_FULL} == {refusal.reason_code, warning.code}
    return warning.message.removeprefix("refunds/spent: "), refusal.retry_hint.retry_after_ms


def missing_decision(core: Core, decision: Decision) -> str:
    """Return the cause that a refusal names if its counter lacks a decision."""
    return f"event {core.by_id[decision.decision_id].sequence_number} could not be counted"


def missing_proposal(core: Core, decision: Decision) -> str:
    """Return the cause that a refusal names if its counter lacks the proposal of a decision."""
    return f"event {core.by_id[decision.proposal_id].sequence_number} could not be counted"


def missing_reservation(core: Core, decision: Decision) -> str:
    """Return the cause that a refusal names if its counter lacks the reservation of a decision."""
    number = core.by_id[decision.decision_id].sequence_number
    return f"the reservation of event {number} could not be counted, and its decision has not ended"


def test_a_full_counter_refuses() -> None:
    """A counter without room for one more group or entry lets no proposal pass, until an entry lapses."""
    orders = Orders(budget_rules({**BUDGET, "entries_max": 2}))
    orders.approve(1)
    orders.approve(2, "bob")
    lacked = orders.approve(3, "bob")  # finds no room, so the counter can no longer tell
    cause, retry_after_ms = cause_and_delay(orders.propose(1, "carl"))
    assert (missing_decision(orders.core, lacked), True) == (cause, 0 < retry_after_ms <= DAY_MS)
    orders.core.now_ms += DAY_MS + 60_000
    orders.approve(1, "carl")
    reserved = Orders(budget_rules({**RESERVED, "groups_max": 1}))
    reserved.approve(1)
    assert ("it has all groups that `groups_max: 1` permits", 0) == cause_and_delay(reserved.propose(1))
    reserved.core.prove()
    ungrouped = {key: value for key, value in RESERVED.items() if key != "by"}
    together = Orders(budget_rules({**ungrouped, "groups_max": 1, "entries_max": 2}, over={**OVER, "when": "history.spent() < 0.0"}))
    together.approve(1)
    together.approve(1)
    assert ("it has all entries that `entries_max: 2` permits", 0) == cause_and_delay(together.propose(1))


def test_when_a_full_counter_has_room() -> None:
    """A refusal by a full counter says when it has room for one more entry and group, if others lapse."""
    orders = Orders(budget_rules({**RESERVED, "entries_max": 3, "groups_max": 2}))
    core = orders.core
    for customer in ("ann", "ann", "bob"):
        orders.carry_out(orders.approve(1, customer), SUCCESS)
        core.tick(60_000)
    _, retry_after_ms = cause_and_delay(orders.propose(1, "carl"))
    core.tick(retry_after_ms - 1)
    assert 1 == cause_and_delay(orders.propose(1, "carl"))[1]
    core.tick(1)
    orders.approve(1, "carl")


def test_a_fault_of_all_groups() -> None:
    """A reserving counter of which all groups lack an event says so, and when they will not, whichever of its limits is asked."""
    orders = Orders(budget_rules({**RESERVED, "where": "double(params.customer_id) > 0.0"}))
    core = orders.core
    lacked = orders.approve(1.0, "ann")  # `where` fails
    cause, _ = cause_and_delay(orders.propose(1.0, "bob"))
    assert missing_reservation(core, lacked) == cause
    core.tick(2 * DAY_MS)
    orders.approve(1.0, "7")


@pytest.mark.parametrize("limit", ["entries_max", "groups_max"])
def test_a_full_counter_has_room_once_an_entry_lapses(limit: str) -> None:
    """A counter has room from the very time at which an entry lapses, also if no event came since."""
    orders = Orders(budget_rules({**RESERVED, limit: 1}))
    core = orders.core
    orders.carry_out(orders.approve(1), SUCCESS)
    lapses_at_ms = core.now_ms + DAY_MS
    status = core.fact("order.status", "delivered", subject="order/late")
    reasons = []
    for now_ms in (lapses_at_ms - 1, lapses_at_ms):
        core.now_ms = now_ms
        params = {"amount": 1, "customer_id": "bob"}
        decision = preflight(core, core.proposal([status], subject="order/late", params=params, max_fact_age_ms=10 * DAY_MS))
        reasons.append(decision.reason_code)
    assert [reason_codes.COUNTER_FULL, ""] == reasons


@pytest.mark.parametrize("source", ["proposals", "rejections"])
@pytest.mark.parametrize("params", [{}, {"amount": "much", "customer_id": "ann"}, {"amount": 1.0, "customer_id": 7}])
def test_invalid_params_stop_nobody(source: str, params: dict[str, Any]) -> None:
    """A proposal that is refused because its params are invalid keeps no other proposal from being decided."""
    orders = Orders(unbounded_rules({**BUDGET, "of": source}))

    refused = orders.core.decide([], subject="order/0", trace_id="trace-0", params=python_to_value(params).struct_value)

    assert reason_codes.INVALID_PARAMS == refused.reason_code
    orders.approve(1.0)
    orders.core.prove()


def test_an_amount_that_cannot_be_counted() -> None:
    """An amount beyond what a counter holds takes the number from its own group, until it would have stopped counting."""
    orders = Orders(unbounded_rules({**BUDGET, "of": "proposals"}))
    lacked = orders.propose(2.0**53)

    assert missing_proposal(orders.core, lacked) == cause_and_delay(orders.propose(1.0))[0]
    orders.approve(1.0, "bob")
    orders.core.tick(DAY_MS)
    orders.approve(1.0)
    orders.core.prove()


def test_a_group_with_a_long_name() -> None:
    """A group whose name no counter holds gives no number, so nothing is approved in it, and the other groups go on."""
    orders = Orders(unbounded_rules(RESERVED, over=OVER))

    assert [("its key has more than 256 characters", 0)] * 2 == [cause_and_delay(orders.propose(999.0, "a" * 257)) for _ in range(2)]
    orders.approve(999.0)
    orders.core.prove()


def test_a_sum_that_no_double_holds() -> None:
    """A sum beyond 2^53 gives no number: proposals that read it are refused, and others are decided."""
    whole = {**READ_OF_CUSTOMER, "when": "history.spent(params.customer_id) < 0"}
    orders = Orders(unbounded_rules({**BUDGET, "of": "proposals"}, "integer", whole))
    orders.approve(2**53)
    orders.approve(1)

    assert ("its number is beyond 2^53 of its smallest unit", 0) == cause_and_delay(orders.propose(1))
    orders.approve(1, "bob")
    orders.core.prove()


@pytest.mark.parametrize("arbiter_version", [2, 3])
def test_many_groups_that_cannot_be_counted(arbiter_version: int) -> None:
    """However many groups lack an event, the others give their numbers; in version 2 only up to 100 groups."""
    orders = Orders(unbounded_rules({**BUDGET, "of": "proposals"}), arbiter_version=arbiter_version)
    for number in range(FAULTY_GROUPS_MAX):
        orders.propose(2.0**53, f"customer {number}")
    orders.approve(1.0, "eve")
    lacked = orders.propose(2.0**53, "joe")
    orders.core.state = restore(orders.core.state)

    assert (reason_codes.COUNTER_FULL if arbiter_version == 2 else "") == orders.propose(1.0, "eve").reason_code
    assert missing_proposal(orders.core, lacked) == cause_and_delay(orders.propose(1.0, "joe"))[0]
    orders.core.tick(DAY_MS)
    orders.approve(1.0, "joe")
    orders.core.prove()


def test_groups_that_cannot_be_counted_leave_room() -> None:
    """Groups that lack an event leave the others their room; no group gives a number once 100 more than `groups_max` and another one do."""
    orders = Orders(unbounded_rules({**BUDGET, "of": "proposals", "groups_max": 2}))
    for customer_id in ("ann", "bob"):
        orders.propose(2.0**53, customer_id)
    for number in range(FAULTY_GROUPS_MAX):
        orders.propose(2.0**53, f"invented-{number}")
    for customer_id in ("carl", "dora", "carl"):
        orders.approve(1.0, customer_id)
    lacked = orders.propose(2.0**53, "eve")

    assert missing_proposal(orders.core, lacked) == cause_and_delay(orders.propose(1.0, "carl"))[0]
    orders.core.tick(DAY_MS)
    orders.approve(1.0, "eve")
    orders.core.prove()


def test_a_reservation_finds_room_beside_groups_that_lack_an_event() -> None:
    """A group that lacks the settlement of a report leaves the room of its group to a reservation, and takes that of the entry it had."""
    orders = Orders(budget_rules({**SETTLED, "entries_max": 2, "groups_max": 2}))
    core = orders.core
    decision = orders.approve(1)
    orders.approve(2, "bob")
    orders.carry_out(decision, SUCCESS, result=refund_result("much"))

    assert 2.0 == orders.spent("bob")
    assert ("it has all entries that `entries_max: 2` permits", DAY_MS) == cause_and_delay(orders.propose(1, "bob"))
    core.tick(DAY_MS)
    orders.approve(1, "bob")
    core.prove()


@pytest.mark.parametrize("arbiter_version", [2, 3])
def test_a_late_report_that_cannot_be_settled_costs_its_group_alone(arbiter_version: int) -> None:
    """A full counter gives other groups their number although a second report of a decision cannot be settled."""
    retry = {"max_attempts": 3, "human_takeover_after_ms": 600_000}
    orders = Orders(budget_rules({**SETTLED, "entries_max": 2}, retry=retry), arbiter_version=arbiter_version)
    core = orders.core
    decision = core.by_id[orders.approve(1).decision_id]
    orders.approve(2, "bob")
    first = core.start(decision)
    core.pass_time(1_001)
    core.report(core.start(decision), SUCCESS, result=refund_result(1))
    core.report(first, SUCCESS, result=refund_result("much"))
    (table,) = core.state.counters.values()
    assert (True, False) == (table.has_fault("ann", core.now_ms), table.has_fault("bob", core.now_ms))
    assert 2.0 == orders.spent("bob")
    core.prove()


def test_faults_end_after_a_change_of_version() -> None:
    """A group that lacked an event in version 2 gives no number in version 3 either, until that event would have stopped counting."""
    orders = Orders(unbounded_rules({**BUDGET, "of": "proposals"}), arbiter_version=2)
    core = orders.core
    lacked = [orders.propose(2.0**53)]
    core.run(UpgradeBus(core.new_id(), 2, 3, "ada", "to test it"))
    causes = [cause_and_delay(orders.propose(1.0))[0]]
    lacked.append(orders.propose(2.0**53))
    causes.append(cause_and_delay(orders.propose(1.0))[0])

    assert [missing_proposal(core, decision) for decision in lacked] == causes
    core.tick(DAY_MS)
    orders.approve(1.0)
    core.prove()


def test_of_the_reports_that_a_group_lacks_the_longest_is_named() -> None:
    """Of decisions whose settled values a group lacks, the one that was reported last is named, although another was approved later."""
    counter = {key: value for key, value in RESERVED.items() if key != "sum"}
    distinct = {**counter, "distinct": "string(params.amount)", "distinct_max": 1, "settle": 'string(execution.result.refunded) + "!"'}
    never = {**READ_OF_CUSTOMER, "when": "history.spent(params.customer_id) < 0"}
    orders = Orders(budget_rules(distinct, over=never, decision_ttl_ms=DAY_MS))
    core = orders.core
    decisions = [orders.approve(1.0) for _ in range(3)]
    for number in (2, 1, 0):
        core.tick(1_000)
        orders.carry_out(decisions[number], SUCCESS, result=refund_result(f"{number}"))
    core.state = restore(core.state)

    # The last value is counted: no reservation is left beside it.
    assert missing_decision(core, decisions[1]) == cause_and_delay(orders.propose(1.0))[0]
    core.prove()


def test_one_group_with_too_many_values() -> None:
    """A group with more different values than a counter holds gives no number, whatever follows in it, and the other groups go on."""
    whole = {**READ_OF_CUSTOMER, "when": "history.spent(params.customer_id) < 0"}
    counter = {**BUDGET, "of": "proposals", "distinct": "string(params.amount)", "distinct_max": 1}
    orders = Orders(budget_rules({key: value for key, value in counter.items() if key != "sum"}, over=whole))
    orders.approve(1.0)
    orders.approve(2.0)

    assert [reason_codes.COUNTER_FULL] * 2 == [orders.propose(amount).reason_code for amount in (3.0, 1.0)]
    orders.approve(1.0, "bob")
    orders.core.prove()


def test_a_fault_ends_although_events_go_on() -> None:
    """A counter gives numbers again once the event that it lacks would have stopped counting, however many events come meanwhile."""
    orders = Orders(unbounded_rules({**BUDGET, "of": "proposals"}))
    orders.propose(2.0**53)
    for _ in range(3):
        orders.core.tick(DAY_MS // 4)
        assert reason_codes.COUNTER_FULL == orders.propose(1.0).reason_code
    orders.core.tick(DAY_MS // 4)

    assert 3.0 == orders.spent()
    orders.core.prove()


@pytest.mark.parametrize("customer_id", ["ann", ""])
@pytest.mark.parametrize("lacked", [{"distinct": "string(params.amount)", "distinct_max": 1}, {"sum": "params.amount"}])
def test_a_reservation_that_cannot_be_entered(lacked: dict[str, Any], customer_id: str) -> None:
    """A group that lacks a reservation gives no number until the decision ends, even beyond the window; the other groups go on."""
    counter = {key: value for key, value in RESERVED.items() if key != "sum"}
    never = {**READ_OF_CUSTOMER, "when": f"history.spent(params.customer_id) < {'0' if 'distinct' in lacked else '0.0'}"}
    orders = Orders(unbounded_rules({**counter, **lacked}, over=never, decision_ttl_ms=3 * DAY_MS))
    core = orders.core
    orders.approve(1.0, customer_id)
    lacking = orders.approve(2.0**53, customer_id)
    core.tick(2 * DAY_MS)

    core.state = restore(core.state)
    assert (missing_reservation(core, lacking), 0) == cause_and_delay(orders.propose(1.0, customer_id))
    orders.approve(1.0, "bob")
    core.revoke(core.by_id[lacking.decision_id])
    orders.approve(1.0, customer_id)
    core.prove()


def test_a_settlement_that_fails() -> None:
    """A report whose settlement cannot be evaluated takes the number from its own group alone, for the window."""
    orders = Orders(budget_rules(SETTLED))
    core = orders.core
    decision = orders.approve(600)
    report = core.report(core.start(core.by_id[decision.decision_id]), SUCCESS, result=refund_result("much"))

    cause, retry_after_ms = cause_and_delay(orders.propose(1.0))
    orders.approve(1.0, "bob")
    core.tick(retry_after_ms)
    assert f"event {report.sequence_number} could not be counted" == cause
    orders.approve(1.0)
    assert 1.0 == orders.spent()
    core.prove()


def test_the_latest_event_that_a_group_lacks_is_named() -> None:
    """Of the events that a group lacks the one whose absence lasts longest is named, its own or one of all groups, also from a snapshot."""
    orders = Orders(unbounded_rules({**BUDGET, "of": "proposals", "entries_max": 3}))
    core = orders.core
    own = [orders.propose(2.0**53) for _ in range(2)]
    core.state = restore(core.state)
    causes = [cause_and_delay(orders.propose(1.0))[0]]
    without_room = orders.approve(1.0, "bob")
    core.state = restore(core.state)
    causes.append(cause_and_delay(orders.propose(1.0))[0])

    assert [missing_proposal(core, own[1]), missing_proposal(core, without_room)] == causes
    core.prove()


@pytest.mark.parametrize("amounts", [[], [2.0**53]])
def test_a_fill_brings_the_event_that_a_group_lacks(amounts: list[float]) -> None:
    """After a fill a group names the event that it lacks from before the opening, unless it has lacked a later one since."""
    counter = {**BUDGET, "of": "proposals"}
    orders = Orders(unbounded_rules(counter))
    core = orders.core
    lacked = [orders.propose(2.0**53)]
    backlog = core.open_counters(core.deploy(unbounded_rules({**counter, "window_ms": 2 * DAY_MS}, version=2)))
    lacked.extend([orders.propose(amount) for amount in amounts])
    core.fill_counters(backlog)
    core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None))

    assert missing_proposal(core, lacked[-1]) == cause_and_delay(orders.propose(1.0))[0]
    core.prove()


def test_an_entry_of_a_fill_without_room_is_named() -> None:
    """If a fill brings an event for which there is no room any more, that event is named, not the fill."""
    counter = {**BUDGET, "of": "proposals"}
    orders = Orders(unbounded_rules(counter))
    core = orders.core
    lacked = orders.approve(1.0)
    backlog = core.open_counters(core.deploy(unbounded_rules({**counter, "entries_max": 1}, version=2)))
    orders.approve(1.0, "bob")
    core.fill_counters(backlog)
    core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None))

    assert missing_proposal(core, lacked) == cause_and_delay(orders.propose(1.0))[0]
    core.prove()


def test_a_settlement_that_fails_while_a_counter_is_filled() -> None:
    """The reservation that the fill brings does not count for ever if its report could not be settled before."""
    orders = Orders(budget_rules(BUDGET))
    decision = orders.approve(600)
    core = orders.core
    text = budget_rules(SETTLED, version=2)
    backlog = core.open_counters(core.deploy(text))
    core.report(core.start(core.by_id[decision.decision_id]), SUCCESS, result=refund_result("much"))
    core.fill_counters(backlog)
    core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None))
    assert reason_codes.COUNTER_FULL == orders.propose(1.0).reason_code
    core.tick(DAY_MS)
    assert 0.0 == orders.spent()
    core.prove()


def test_a_fill_keeps_the_faults_of_groups() -> None:
    """A group that gives no number does so after a fill too, and the other groups give theirs; a replay proves both."""
    orders = Orders(budget_rules(RESERVED, over=READ_OF_CUSTOMER))
    orders.approve(1)
    orders.approve(2.0**53, "bob")
    orders.core.activate(budget_rules(BUDGET, version=2))
    (table,) = orders.core.state.counters.values()
    assert (1.0, None) == (orders.spent(), table.read("bob", orders.core.now_ms))
    orders.core.prove()
