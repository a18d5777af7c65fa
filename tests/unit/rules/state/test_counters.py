"""Counters: reservations, settlements, releases, windows, and their past, on the real core."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1 import decision_pb2, execution_pb2, fact_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reason_codes
from gavel_rules.commands import ActivateRuleSet, Fault, FillCounter, RuleSetPosition, SubmitProposal
from gavel_rules.preflight import preflight as dry_run
from gavel_rules.state.counters import FAULTY_GROUPS_MAX
from gavel_rules.state.snapshot.encoding import state_sha256
from gavel_rules.values import python_to_value

from tests.support.counted_plays import FACTS, OK, PARAMS, WITH, WITHOUT, Step, compare, play
from tests.support.driver import ACTION, Core, compile_cached, document, fact_envelope, observation_envelope
from tests.support.histories.compensations import bus_with_compensation, compensation_of, report_partial
from tests.support.state.snapshots import restore, tables

DAY_MS = 86_400_000
SUCCESS = execution_pb2.EXECUTION_STATUS_SUCCESS
FAILED = execution_pb2.EXECUTION_STATUS_FAILED
PARTIAL = execution_pb2.EXECUTION_STATUS_PARTIAL

BUDGET: dict[str, Any] = {
    "of": "approvals",
    "action": "refund.create",
    "by": "params.customer_id",
    "sum": "params.amount",
    "window_ms": DAY_MS,
}
RESERVED: dict[str, Any] = {**BUDGET, "keep": "reserved"}
OVER = {
    "id": "over-budget",
    "when": "history.spent(params.customer_id) + params.amount > 1000.0",
    "effect": "reject",
    "reason_code": "DAILY_BUDGET",
}
NO_MORE = {**OVER, "when": "history.spent(params.customer_id) < 0.0"}
NEVER = {**OVER, "when": "history.spent() > 1000"}


def counted(counter: dict[str, Any] = RESERVED, *, over: dict[str, Any] = OVER, version: int = 1, **changes: Any) -> str:
    """Return a rule set of the second version with the counter `spent`."""
    text = document(FACTS, [over, OK], params=PARAMS, version=version, conflict_key='"order/" + string(now)', **changes)
    data = json.loads(text)
    for action in data["actions"].values():
        action["conflict_key"] = "subject"
    return json.dumps({**data, "gavel": "v2", "counters": {"spent": counter}})


class Orders:
    """A bus with the budget in force, on which each proposal is about an order of its own."""

    def __init__(self, text: str | None = None) -> None:
        self.core = Core(text if text is not None else counted())
        self._orders = 0

    def propose(self, amount: float, customer_id: str = "ann") -> Decision:
        """Propose a refund of a delivered order, and return the decision."""
        self._orders += 1
        subject = f"order/{self._orders}"
        status = self.core.fact("order.status", "delivered", subject=subject)
        params = python_to_value({"amount": amount, "customer_id": customer_id}).struct_value
        trace_id = f"trace-{self._orders}"
        return self.core.decide([status], subject=subject, trace_id=trace_id, params=params, max_fact_age_ms=10 * DAY_MS)

    def approve(self, amount: float, customer_id: str = "ann") -> Decision:
        """Propose a refund that must be approved."""
        decision = self.propose(amount, customer_id)
        assert "" == decision.reason_code
        return decision

    def spent(self, customer_id: str = "ann") -> float:
        """Return what the counter gives now."""
        (table,) = self.core.state.counters.values()
        reading = table.read(customer_id, self.core.now_ms)
        assert reading is not None
        return reading.value


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
    orders = Orders(counted(BUDGET))
    orders.approve(600)
    approved_at_ms = orders.core.now_ms
    orders.core.now_ms = approved_at_ms + DAY_MS - 1
    assert 600.0 == orders.spent()
    orders.core.now_ms += 1
    assert 0.0 == orders.spent()
    orders.approve(1000)
    assert 1000.0 == orders.spent()
    orders.core.prove()


def carried_out(orders: Orders, decision: Decision, status: execution_pb2.ExecutionStatus.ValueType, **changes: Any) -> None:
    """Begin and report the work of an approval."""
    core = orders.core
    started = core.start(core.by_id[decision.decision_id])
    core.report(started, status, **changes)


def test_reservations_last_until_the_work_ends() -> None:
    """A reserved approval counts beyond its window while its work may happen, then for the window after its report."""
    orders = Orders(counted(RESERVED, decision_ttl_ms=2 * DAY_MS))
    decision = orders.approve(600)
    orders.core.now_ms += DAY_MS + 1
    assert 600.0 == orders.spent()
    carried_out(orders, decision, SUCCESS)
    orders.core.now_ms += DAY_MS - 1
    assert 600.0 == orders.spent()
    orders.core.now_ms += 1
    assert 0.0 == orders.spent()
    orders.core.prove()


def test_what_comes_to_nothing_is_released() -> None:
    """An approval that expires, is revoked, or whose last attempt fails and is given up no longer counts."""
    orders = Orders(counted(RESERVED, retry={"max_attempts": 1}))
    orders.approve(100)
    orders.core.tick(20_000)
    assert 0.0 == orders.spent()
    revoked = orders.approve(200)
    orders.core.revoke(orders.core.by_id[revoked.decision_id])
    assert 0.0 == orders.spent()
    failing = orders.approve(300)
    carried_out(orders, failing, FAILED)
    assert 300.0 == orders.spent()  # a person may still let it be tried again
    (review,) = orders.core.events_named("HumanReviewRequested")
    orders.core.resolve(review, fact_pb2.REVIEW_VERDICT_REJECT)
    assert 0.0 == orders.spent()
    orders.core.prove()


def test_compensated_work_is_released() -> None:
    """Partly done work counts until its compensation has succeeded."""
    data = json.loads(bus_with_compensation())
    counter = {key: value for key, value in RESERVED.items() if key != "by"}
    rules = [{**NO_MORE, "action": ACTION, "priority": 900, "when": "history.spent() < 0.0"}, *data["rules"]]
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
    orders = Orders(counted({**RESERVED, "settle": "double(execution.result.refunded)"}))
    decision = orders.approve(600)
    started = orders.core.start(orders.core.by_id[decision.decision_id])
    orders.core.report(started, SUCCESS, result=python_to_value({"refunded": 12.341}).struct_value)
    assert 12.35 == orders.spent()
    orders.core.prove()


def test_sums_are_exact() -> None:
    """A hundred amounts of a tenth add up to ten, as no sum of floats does."""
    orders = Orders(counted(BUDGET))
    for _ in range(100):
        orders.approve(0.1)
    assert 10.0 == orders.spent()
    assert 10.0 != sum([0.1] * 100)


def test_a_counter_gets_its_past() -> None:
    """A counter that comes into force on a bus with a history gives what it would have given from the beginning."""
    orders = Orders(counted(BUDGET))
    decisions = [orders.approve(amount, customer) for amount, customer in ((100, "ann"), (200, "bob"), (300, "ann"))]
    carried_out(orders, decisions[0], SUCCESS)
    orders.core.activate(counted(RESERVED, version=2))
    assert (400.0, 200.0) == (orders.spent(), orders.spent("bob"))
    carried_out(orders, decisions[1], FAILED)
    orders.core.tick(60_000)
    assert 100.0 == orders.spent()  # the other approval has expired
    orders.core.prove()


def test_ends_while_a_counter_is_filled() -> None:
    """Decisions that end between the opening of a counter and its fill count as they ended, whatever the fill says of them."""
    orders = Orders(counted(BUDGET))
    settled, expiring, _ = orders.approve(100), orders.approve(200, "bob"), orders.approve(400, "carl")
    core = orders.core
    text = counted({**RESERVED, "settle": "double(execution.result.refunded)"}, version=2)
    backlog = core.open_counters(core.deploy(text))
    started = core.start(core.by_id[settled.decision_id])
    core.report(started, SUCCESS, result=python_to_value({"refunded": 30}).struct_value)
    core.revoke(core.by_id[expiring.decision_id])
    orders.approve(50, "dora")
    core.fill_counters(backlog)
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None)), RuleSetPosition)
    assert [30.0, 0.0, 400.0, 50.0] == [orders.spent(customer) for customer in ("ann", "bob", "carl", "dora")]
    core.prove()


def test_counters_of_an_overtaken_version_are_dropped() -> None:
    """Counters opened for a version that never comes into force are dropped when a later one does; their fill ends with a fault."""
    orders = Orders(counted(BUDGET))
    core = orders.core
    backlogs = []
    for version, counter in ((2, RESERVED), (4, {**BUDGET, "window_ms": 2 * DAY_MS})):
        text = counted(counter, version=version)
        backlogs.append(core.open_counters(core.deploy(text)))
    core.activate(counted(BUDGET, over={**OVER, "priority": 70}, version=3))
    assert [1, 4] == sorted(table.version for table in core.state.counters.values())
    for backlog, fault in zip(backlogs, (True, False), strict=True):
        answers = [core.run(FillCounter(core.new_id(), filled)) for filled in backlog.fills(core.now_ms)]
        assert [fault] == [isinstance(answer, Fault) for answer in answers]
    core.activate(counted(RESERVED, version=2))
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
    orders = Orders(counted({"of": "proposals", "action": "refund.*", "window_ms": 4_000 - 1, **counter}, over=NEVER))
    totals = []
    for amount, customer in ((5, "ann"), (7, "bob"), (2, "bob"), (9, "carl")):
        orders.propose(amount, customer)
        orders.core.now_ms += 1_000
        totals.append(orders.spent(""))
    orders.core.now_ms += 3_000
    assert expected == [*totals, orders.spent("")]
    orders.core.prove()


def test_a_full_counter_refuses() -> None:
    """A counter without room for one more group or entry lets no proposal pass, until an entry lapses."""
    orders = Orders(counted({**BUDGET, "entries_max": 2}))
    orders.approve(1)
    orders.approve(2, "bob")
    lacked = orders.approve(3, "bob")  # finds no room, so the counter can no longer tell
    cause, retry_after_ms = absence(orders.propose(1, "carl"))
    assert (lack_of(orders.core, lacked), True) == (cause, 0 < retry_after_ms <= DAY_MS)
    orders.core.now_ms += DAY_MS + 60_000
    orders.approve(1, "carl")
    reserved = Orders(counted({**RESERVED, "groups_max": 1}))
    reserved.approve(1)
    assert ("it has all groups that `groups_max: 1` permits", 0) == absence(reserved.propose(1))
    reserved.core.prove()
    ungrouped = {key: value for key, value in RESERVED.items() if key != "by"}
    together = Orders(counted({**ungrouped, "groups_max": 1, "entries_max": 2}, over={**OVER, "when": "history.spent() < 0.0"}))
    together.approve(1)
    together.approve(1)
    assert ("it has all entries that `entries_max: 2` permits", 0) == absence(together.propose(1))


def test_when_a_full_counter_has_room() -> None:
    """A refusal by a full counter says when it has room for one more entry and group, if others lapse."""
    orders = Orders(counted({**RESERVED, "entries_max": 3, "groups_max": 2}))
    core = orders.core
    for customer in ("ann", "ann", "bob"):
        carried_out(orders, orders.approve(1, customer), SUCCESS)
        core.tick(60_000)
    _, retry_after_ms = absence(orders.propose(1, "carl"))
    core.tick(retry_after_ms - 1)
    assert 1 == absence(orders.propose(1, "carl"))[1]
    core.tick(1)
    orders.approve(1, "carl")


def test_a_fault_of_all_groups() -> None:
    """A reserving counter of which all groups lack an event says so, and when they will not, whichever of its limits is asked."""
    orders = Orders(counted({**RESERVED, "where": "double(params.customer_id) > 0.0"}))
    core = orders.core
    lacked = orders.approve(1.0, "ann")  # `where` fails
    cause, _ = absence(orders.propose(1.0, "bob"))
    assert lack_of_reservation(core, lacked) == cause
    core.tick(2 * DAY_MS)
    orders.approve(1.0, "7")


def lack_of(core: Core, decision: Decision) -> str:
    """Return what a counter says that could not count a decision."""
    return f"event {core.by_id[decision.decision_id].sequence_number} could not be counted"


def lack_of_reservation(core: Core, decision: Decision) -> str:
    """Return what a counter says that could not count a reservation."""
    number = core.by_id[decision.decision_id].sequence_number
    return f"the reservation of event {number} could not be counted, and its decision has not ended"


def absence(refusal: Decision) -> tuple[str, int]:
    """Return why the counter of a refusal gives no number or has no room, and after how many milliseconds to try again."""
    (warning,) = refusal.warnings
    assert {reason_codes.COUNTER_FULL} == {refusal.reason_code, warning.code}
    return warning.message.removeprefix("refunds/spent: "), refusal.retry_hint.retry_after_ms


@pytest.mark.parametrize("limit", ["entries_max", "groups_max"])
def test_a_full_counter_has_room_once_an_entry_lapses(limit: str) -> None:
    """A counter has room from the very time at which an entry lapses, also if no event came since."""
    orders = Orders(counted({**RESERVED, limit: 1}))
    core = orders.core
    carried_out(orders, orders.approve(1), SUCCESS)
    lapses_at_ms = core.now_ms + DAY_MS
    status = core.fact("order.status", "delivered", subject="order/late")
    reasons = []
    for now_ms in (lapses_at_ms - 1, lapses_at_ms):
        core.now_ms = now_ms
        params = {"amount": 1, "customer_id": "bob"}
        decision = preflight(core, core.proposal([status], subject="order/late", params=params, max_fact_age_ms=10 * DAY_MS))
        reasons.append(decision.reason_code)
    assert [reason_codes.COUNTER_FULL, ""] == reasons


def preflight(core: Core, command: SubmitProposal) -> Decision:
    """Return the decision that a proposal would get now."""
    decision = dry_run(core.state, command.proposal, core.references(command).cited_events, core.now_ms)
    assert isinstance(decision, Decision)
    return decision


def test_a_snapshot_holds_counters() -> None:
    """From a snapshot, counters that are filled, and those that wait for their fill, go on with the same numbers."""
    orders = Orders(counted(RESERVED, decision_ttl_ms=2 * DAY_MS))
    core = orders.core
    settled, revoked = orders.approve(100), orders.approve(200, "bob")
    carried_out(orders, settled, SUCCESS)
    text = counted({"of": "proposals", "action": "*", "distinct": "params.customer_id", "window_ms": DAY_MS}, over=NEVER, version=2)
    backlog = core.open_counters(core.deploy(text))
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
    orders = Orders(counted(BUDGET, over=over))
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
    reserved = Orders(counted(RESERVED, over=over))
    reserved.approve(900)
    hints = [reserved.propose(amount).retry_hint for amount in (500, 1_001)]
    revise, wait = decision_pb2.REMEDY_REVISE_PARAMS, decision_pb2.REMEDY_WAIT
    assert [(0, [revise, wait]), (0, [revise])] == [(hint.retry_after_ms, [*hint.remedy]) for hint in hints]


def test_a_hint_after_a_lapse() -> None:
    """A hint leaves out what has lapsed since the last event, and rounds the room once."""
    over = {**OVER, "when": "history.spent(params.customer_id) + params.amount > 10.5"}
    over["retry_after"] = "history.spent.frees(params.customer_id, params.amount, 10.5)"
    orders = Orders(counted({**BUDGET, "scale": 0}, over=over))
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
    never = {**NEVER, "when": "history.spent() > 1"}
    for window_ms in (0, 1_000):
        orders = Orders(counted(counter, over=never, contest_window_ms=window_ms))
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
    orders = Orders(counted({"of": source, "window_ms": 30 * DAY_MS, **names}, over={**NEVER, "when": "history.spent() > 2"}))
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
    orders = Orders(counted(counter, over={**NEVER, "when": "history.spent() > 0"}))
    core = orders.core
    chargeback = core.fact("card.chargeback", "yes", subject="card/1")
    core.tick(8 * DAY_MS)
    status = core.fact("order.status", "delivered", subject="order/1")
    params = {"amount": 1.0, "customer_id": "ann"}
    decision = core.decide([status], subject="order/1", trace_id="trace-1", event_id=chargeback.event_id, params=params)
    assert "DAILY_BUDGET" == decision.reason_code


def loose(counter: dict[str, Any], amount: str = "number", over: dict[str, Any] = NO_MORE, **changes: Any) -> str:
    """Return a rule set whose schema bounds neither the customer's name nor the amount, which is of the JSON type `amount`."""
    data = json.loads(counted(counter, over=over, **changes))
    for action in data["actions"].values():
        action["params"] = {**PARAMS, "properties": {"amount": {"type": amount}, "customer_id": {"type": "string"}}}
    return json.dumps(data)


@pytest.mark.parametrize("source", ["proposals", "rejections"])
@pytest.mark.parametrize("params", [{}, {"amount": "much", "customer_id": "ann"}, {"amount": 1.0, "customer_id": 7}])
def test_invalid_params_stop_nobody(source: str, params: dict[str, Any]) -> None:
    """A proposal that is refused because its params are invalid keeps no other proposal from being decided."""
    orders = Orders(loose({**BUDGET, "of": source}))

    refused = orders.core.decide([], subject="order/0", trace_id="trace-0", params=python_to_value(params).struct_value)

    assert reason_codes.INVALID_PARAMS == refused.reason_code
    orders.approve(1.0)
    orders.core.prove()


def test_an_amount_that_cannot_be_counted() -> None:
    """An amount beyond what a counter holds takes the number from its own group, until it would have stopped counting."""
    orders = Orders(loose({**BUDGET, "of": "proposals"}))
    lacked = orders.propose(2.0**53)

    assert lack_of_proposal(orders.core, lacked) == absence(orders.propose(1.0))[0]
    orders.approve(1.0, "bob")
    orders.core.tick(DAY_MS)
    orders.approve(1.0)
    orders.core.prove()


def test_a_group_with_a_long_name() -> None:
    """A group whose name no counter holds gives no number, so nothing is approved in it, and the other groups go on."""
    orders = Orders(loose(RESERVED, over=OVER))

    assert [("its key has more than 256 characters", 0)] * 2 == [absence(orders.propose(999.0, "a" * 257)) for _ in range(2)]
    orders.approve(999.0)
    orders.core.prove()


def test_a_sum_that_no_double_holds() -> None:
    """A sum beyond 2^53 gives no number: proposals that read it are refused, and others are decided."""
    whole = {**NO_MORE, "when": "history.spent(params.customer_id) < 0"}
    orders = Orders(loose({**BUDGET, "of": "proposals"}, "integer", whole))
    orders.approve(2**53)
    orders.approve(1)

    assert ("its number is beyond 2^53 of its smallest unit", 0) == absence(orders.propose(1))
    orders.approve(1, "bob")
    orders.core.prove()


def test_many_groups_that_cannot_be_counted() -> None:
    """When more groups lack an event than are remembered, all groups give no number."""
    orders = Orders(loose({**BUDGET, "of": "proposals"}))
    for number in range(FAULTY_GROUPS_MAX):
        orders.propose(2.0**53, f"customer {number}")
    orders.approve(1.0, "eve")
    orders.propose(2.0**53, "joe")

    assert reason_codes.COUNTER_FULL == orders.propose(1.0, "eve").reason_code


def test_one_group_with_too_many_values() -> None:
    """A group with more different values than a counter holds gives no number, whatever follows in it, and the other groups go on."""
    whole = {**NO_MORE, "when": "history.spent(params.customer_id) < 0"}
    counter = {**BUDGET, "of": "proposals", "distinct": "string(params.amount)", "distinct_max": 1}
    orders = Orders(counted({key: value for key, value in counter.items() if key != "sum"}, over=whole))
    orders.approve(1.0)
    orders.approve(2.0)

    assert [reason_codes.COUNTER_FULL] * 2 == [orders.propose(amount).reason_code for amount in (3.0, 1.0)]
    orders.approve(1.0, "bob")
    orders.core.prove()


def test_a_fault_ends_although_events_go_on() -> None:
    """A counter gives numbers again once the event that it lacks would have stopped counting, however many events come meanwhile."""
    orders = Orders(loose({**BUDGET, "of": "proposals"}))
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
    never = {**NO_MORE, "when": f"history.spent(params.customer_id) < {'0' if 'distinct' in lacked else '0.0'}"}
    orders = Orders(loose({**counter, **lacked}, over=never, decision_ttl_ms=3 * DAY_MS))
    core = orders.core
    orders.approve(1.0, customer_id)
    lacking = orders.approve(2.0**53, customer_id)
    core.tick(2 * DAY_MS)

    core.state = restore(core.state)
    assert (lack_of_reservation(core, lacking), 0) == absence(orders.propose(1.0, customer_id))
    orders.approve(1.0, "bob")
    core.revoke(core.by_id[lacking.decision_id])
    orders.approve(1.0, customer_id)
    core.prove()


def test_a_settlement_that_fails() -> None:
    """A report whose settlement cannot be evaluated takes the number from its own group alone, for the window."""
    orders = Orders(counted({**RESERVED, "settle": "double(execution.result.refunded)"}))
    core = orders.core
    decision = orders.approve(600)
    report = core.report(core.start(core.by_id[decision.decision_id]), SUCCESS, result=python_to_value({"refunded": "much"}).struct_value)

    cause, retry_after_ms = absence(orders.propose(1.0))
    orders.approve(1.0, "bob")
    core.tick(retry_after_ms)
    assert f"event {report.sequence_number} could not be counted" == cause
    orders.approve(1.0)
    assert 1.0 == orders.spent()
    core.prove()


def lack_of_proposal(core: Core, decision: Decision) -> str:
    """Return what a counter says that could not count the proposal of a decision."""
    return f"event {core.by_id[decision.proposal_id].sequence_number} could not be counted"


def test_the_latest_event_that_a_group_lacks_is_named() -> None:
    """Of the events that a group lacks the one whose absence lasts longest is named, its own or one of all groups, also from a snapshot."""
    orders = Orders(loose({**BUDGET, "of": "proposals", "entries_max": 1}))
    core = orders.core
    own = [orders.propose(2.0**53) for _ in range(2)]
    core.state = restore(core.state)
    causes = [absence(orders.propose(1.0))[0]]
    without_room = orders.approve(1.0, "bob")
    core.state = restore(core.state)
    causes.append(absence(orders.propose(1.0))[0])

    assert [lack_of_proposal(core, own[1]), lack_of_proposal(core, without_room)] == causes
    core.prove()


@pytest.mark.parametrize("amounts", [[], [2.0**53]])
def test_a_fill_brings_the_event_that_a_group_lacks(amounts: list[float]) -> None:
    """After a fill a group names the event that it lacks from before the opening, unless it has lacked a later one since."""
    counter = {**BUDGET, "of": "proposals"}
    orders = Orders(loose(counter))
    core = orders.core
    lacked = [orders.propose(2.0**53)]
    backlog = core.open_counters(core.deploy(loose({**counter, "window_ms": 2 * DAY_MS}, version=2)))
    lacked.extend([orders.propose(amount) for amount in amounts])
    core.fill_counters(backlog)
    core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None))

    assert lack_of_proposal(core, lacked[-1]) == absence(orders.propose(1.0))[0]
    core.prove()


def test_an_entry_of_a_fill_without_room_is_named() -> None:
    """If a fill brings an event for which there is no room any more, that event is named, not the fill."""
    counter = {**BUDGET, "of": "proposals"}
    orders = Orders(loose(counter))
    core = orders.core
    lacked = orders.approve(1.0)
    backlog = core.open_counters(core.deploy(loose({**counter, "entries_max": 1}, version=2)))
    orders.approve(1.0, "bob")
    core.fill_counters(backlog)
    core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None))

    assert lack_of_proposal(core, lacked) == absence(orders.propose(1.0))[0]
    core.prove()


def test_a_settlement_that_fails_while_a_counter_is_filled() -> None:
    """The reservation that the fill brings does not count for ever if its report could not be settled before."""
    orders = Orders(counted(BUDGET))
    decision = orders.approve(600)
    core = orders.core
    text = counted({**RESERVED, "settle": "double(execution.result.refunded)"}, version=2)
    backlog = core.open_counters(core.deploy(text))
    core.report(core.start(core.by_id[decision.decision_id]), SUCCESS, result=python_to_value({"refunded": "much"}).struct_value)
    core.fill_counters(backlog)
    core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None))
    assert reason_codes.COUNTER_FULL == orders.propose(1.0).reason_code
    core.tick(DAY_MS)
    assert 0.0 == orders.spent()
    core.prove()


@pytest.mark.parametrize(("where", "expected"), [('reason_code == "SPECIAL"', 0.0), ('outcome == "APPROVED"', 600.0)])
def test_reports_read_the_decision(where: str, expected: float) -> None:
    """A report is counted or left out as the approval was, by what the decision says."""
    orders = Orders(counted({**RESERVED, "where": where}))
    decision = orders.approve(600)
    assert expected == orders.spent()
    carried_out(orders, decision, SUCCESS)
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


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize("amounts", [(900, -950), (-950, 900)])
def test_entries_that_lapse_together(amounts: tuple[int, int], is_restored: bool) -> None:
    """When there will be room does not depend on the order of entries that lapse together, which a snapshot does not keep."""
    over = {**OVER, "retry_after": "history.spent.frees(params.customer_id, params.amount, 1000.0)"}
    orders = Orders(counted(BUDGET, over=over))
    for amount in amounts:
        orders.approve(amount)
    orders.core.now_ms += 60_000
    orders.approve(1_000)
    if is_restored:
        orders.core.state = restore(orders.core.state)
    refusal = orders.propose(100)
    assert DAY_MS == refusal.retry_hint.retry_after_ms
    orders.core.prove()


SETTLED = {**RESERVED, "settle": "double(execution.result.refunded)"}


def refunded(amount: float) -> Any:
    """Return the result of an execution."""
    return python_to_value({"refunded": amount}).struct_value


def test_a_granted_attempt_reserves_again() -> None:
    """If a person grants another attempt after an effect, the approval reserves its amount once more, beside what was settled."""
    orders = Orders(counted(SETTLED, retry={"max_attempts": 1}, decision_ttl_ms=2 * DAY_MS))
    core = orders.core
    decision = orders.approve(1000)
    core.derive(core.report(core.start(core.by_id[decision.decision_id]), PARTIAL, result=refunded(1)))
    assert 1.0 == orders.spent()
    core.resolve(core.events_named("HumanReviewRequested")[-1], fact_pb2.REVIEW_VERDICT_APPROVE)
    started = core.start(core.by_id[decision.decision_id])
    assert (1001.0, "DAILY_BUDGET") == (orders.spent(), orders.propose(999).reason_code)
    core.derive(core.report(started, SUCCESS, result=refunded(999)))
    assert 1000.0 == orders.spent()
    core.prove()


def test_a_late_report_lowers_nothing() -> None:
    """While another attempt has not reported, and when it reports an effect too, the largest of what was approved and reported counts."""
    orders = Orders(counted(SETTLED, retry={"max_attempts": 2, "human_takeover_after_ms": 60_000}, decision_ttl_ms=2 * DAY_MS))
    core = orders.core
    decision = orders.approve(500)
    first = core.start(core.by_id[decision.decision_id], lease_ms=1_000)
    core.tick(2_000)
    core.derive(core.report(core.start(core.by_id[decision.decision_id]), SUCCESS, result=refunded(400)))
    assert 500.0 == orders.spent()
    core.run(core.report_command(first, SUCCESS, result=refunded(600)))
    assert 600.0 == orders.spent()
    core.prove()


@pytest.mark.parametrize("source", ["approvals", "executions"])
def test_a_compensation_counts_with_its_own_params(source: str) -> None:
    """A compensation counts with its params, and not with those of the action that it compensates."""
    data = json.loads(bus_with_compensation())
    counter = {"of": source, "action": "refund.reverse", "sum": "params.amount", "window_ms": DAY_MS}
    rules = [{**NO_MORE, "action": ACTION, "priority": 900, "when": "history.undone() < 0.0"}, *data["rules"]]
    core = Core(json.dumps({**data, "gavel": "v2", "counters": {"undone": counter}, "rules": rules}))
    core.report(core.start(compensation_of(core, report_partial(core, refunded=20))), SUCCESS)
    (table,) = core.state.counters.values()
    reading = table.read("", core.now_ms)
    assert reading is not None
    assert 20.0 == reading.value
    core.prove()


def test_a_fill_keeps_the_faults_of_groups() -> None:
    """A group that gives no number does so after a fill too, and the other groups give theirs; a replay proves both."""
    orders = Orders(counted(RESERVED, over=NO_MORE))
    orders.approve(1)
    orders.approve(2.0**53, "bob")
    orders.core.activate(counted(BUDGET, version=2))
    (table,) = orders.core.state.counters.values()
    assert (1.0, None) == (orders.spent(), table.read("bob", orders.core.now_ms))
    orders.core.prove()


def test_an_amount_that_fits_frees_at_once() -> None:
    """A refusal for another reason has no delay if the amount fits under the limit."""
    retry = "history.spent.frees(params.customer_id, params.amount, 1000.0)"
    orders = Orders(counted(BUDGET, over={**OVER, "when": "params.amount > 500.0", "retry_after": retry}))
    orders.approve(10)
    refusal = orders.propose(501)
    assert ("DAILY_BUDGET", 0) == (refusal.reason_code, refusal.retry_hint.retry_after_ms)


def test_a_rollback_keeps_its_counters() -> None:
    """Counters that are filled for an earlier version than the one in force stay, whatever other rule sets come into force."""
    orders = Orders(counted(RESERVED))
    core = orders.core
    core.activate(counted(BUDGET, version=2))
    rule_set = compile_cached(counted(RESERVED))
    backlog = core.open_counters(rule_set)
    core.activate(document({}, [{**OK, "when": "true"}], rule_set="others", action_type="mail.send"))
    core.fill_counters(backlog)
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "refunds", 1, None)), RuleSetPosition)
    core.prove()
