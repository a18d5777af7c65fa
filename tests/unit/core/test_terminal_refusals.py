"""NO_FEASIBLE_PROPOSAL: where the facts leave no acceptable proposal, the trace is told to stop (seeds 002 §6.4)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reasons
from gavel_rules.limits import TRACE_LAPSE_MS

from tests.unit.core.driver import RULES, SOURCE, SUBJECT, Core, document

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW


@pytest.fixture
def core() -> Core:
    """A bus on which a cancelled order gets no refund, whatever is proposed."""
    return Core(document())


def verdict(decision: Decision) -> tuple[int, str, bool]:
    """Outcome, reason, and whether the trace is to stop."""
    return decision.outcome, decision.reason_code, decision.terminal


def test_a_hopeless_refusal_is_terminal(core: Core) -> None:
    """It keeps the rule's reason, says what it rests on, counts, and is followed by a notice in its commit."""
    status = core.fact("order.status", "cancelled")
    decision = core.decide([status])
    assert (REJECTED, "ORDER_CANCELLED", True) == verdict(decision)
    assert (1, False) == (decision.consecutive_rejections, decision.retry_hint.retryable)
    assert [reasons.NO_FEASIBLE_PROPOSAL] == [warning.code for warning in decision.warnings]
    assert [("order.status", status.event_id)] == [(pin.key, pin.event_id) for pin in decision.pinned_facts]
    assert [("order.score", SUBJECT)] == [(fact.key, fact.subject) for fact in decision.absent_facts]
    (notice,) = core.named("NoFeasibleProposal")
    assert (decision.decision_id, decision.state_version + 2) == (notice.causation_id, notice.sequence_number)
    core.prove()


def test_the_trace_is_then_ended_for_this_action_and_subject(core: Core) -> None:
    """Whatever the trace proposes there is NO_FEASIBLE_PROPOSAL, terminal and uncounted; other traces and subjects go on."""
    status = core.fact("order.status", "cancelled")
    core.decide([status])
    again = [core.decide([status], amount=amount, params=params) for amount, params in ((1, None), (2, None), (1, {"junk": 1}))]
    assert {(REJECTED, reasons.NO_FEASIBLE_PROPOSAL, True)} == {verdict(decision) for decision in again}
    assert {(1, "gavel", False)} == {(one.consecutive_rejections, one.policy_id, one.retry_hint.retryable) for one in again}
    assert "ORDER_CANCELLED" == core.decide([status], trace_id="trace-2").reason_code
    assert APPROVED == core.approve("order/2", trace_id="trace-1").decision.outcome
    assert reasons.NO_FEASIBLE_PROPOSAL == core.decide([status]).reason_code
    assert 2 == len(core.named("NoFeasibleProposal"))
    core.prove()


def test_a_change_of_a_declared_fact_lifts_it(core: Core) -> None:
    """A new value, of a fact that was there or of one that was not, opens the way again; other facts do not."""
    status = core.fact("order.status", "cancelled")
    core.decide([status])
    core.fact("k.note", "x")
    core.fact("order.status", "delivered", subject="order/2")
    assert reasons.NO_FEASIBLE_PROPOSAL == core.decide([status]).reason_code
    core.observe("order.score", 0.1, evidence=core.tool_result())
    assert reasons.DUPLICATE_PROPOSAL == core.decide([status]).reason_code
    assert APPROVED == core.decide([core.fact("order.status", "delivered")]).outcome
    core.prove()


def test_other_rules_lift_it(core: Core) -> None:
    """What no rule of before could approve, another version may; without any rule set nothing changes."""
    status = core.fact("order.status", "cancelled")
    core.decide([status])
    core.deactivate("refunds")
    assert reasons.NO_FEASIBLE_PROPOSAL == core.decide([status]).reason_code
    core.activate(document(rules=[{"id": "all", "when": "true", "effect": "approve"}], version=2))
    assert APPROVED == core.decide([status, core.fact("k.note", "x")]).outcome
    core.prove()


def test_silence_of_all_rules_may_be_hopeless_too(core: Core) -> None:
    """No rule speaks of a lost order: NO_RULE_MATCHED, terminal."""
    assert (REJECTED, reasons.NO_RULE_MATCHED, True) == verdict(core.decide([core.fact("order.status", "lost")]))
    core.prove()


@pytest.mark.parametrize(
    "rules",
    [
        [{"id": "much", "when": "params.amount > 10.0", "effect": "reject", "reason_code": "NO"}, *RULES],
        [{"id": "risky", "when": "proposal.risk < 0.5", "effect": "reject", "reason_code": "NO"}, *RULES],
        [{"id": "now", "when": "trace.consecutive_rejections == 0", "effect": "reject", "reason_code": "NO"}, *RULES],
        [{"id": "broken", "when": "10 / (int(params.amount) - 50) > 1", "effect": "approve"}],
    ],
    ids=["params", "estimates", "trace", "an error"],
)
def test_what_another_proposal_could_change_is_not_terminal(rules: list[dict[str, Any]]) -> None:
    """A refusal that rests on params, estimates or the trace, or on a failing condition, may be tried otherwise."""
    core = Core(document(rules=rules))
    decision = core.decide([core.fact("order.status", "delivered")])
    assert (REJECTED, False) == (decision.outcome, decision.terminal)
    core.prove()


def test_a_fact_that_would_be_replaced_when_it_ages_is_not_certain(core: Core) -> None:
    """The older word of another source would speak once this one is stale: nothing is hopeless yet."""
    core.fact("order.status", "delivered", source="orders-copy", occurred_at_ms=core.now_ms - 100)
    status = core.fact("order.status", "cancelled", max_age_ms=1_000)
    assert (REJECTED, "ORDER_CANCELLED", False) == verdict(core.decide([status]))
    core.pass_time(2_000)
    assert APPROVED == core.decide([core.fact("k.note", "x")]).outcome
    core.prove()


def test_a_fact_that_params_choose_is_not_certain() -> None:
    """Where params say whose fact it is, another proposal may speak of another one; where a known fact says, not."""
    by_params = {"banned": {"key": "customer.banned", "type": "boolean", "max_age_ms": 60_000, "subject": "'customer/' + params.note"}}
    order = {"customer": {"key": "order.customer", "type": "string", "max_age_ms": 60_000}}
    by_fact = {**order, "banned": {**by_params["banned"], "subject": "'customer/' + facts.customer"}}
    params = {"type": "object", "required": ["note"], "properties": {"note": {"type": "string"}}}
    rules = [
        {"id": "banned", "when": "facts.banned", "effect": "reject", "reason_code": "BANNED"},
        {"id": "fine", "when": "true", "effect": "approve"},
    ]
    for facts, terminal in ((by_params, False), (by_fact, True)):
        core = Core(document(facts, rules, params=params))
        basis = [core.fact("order.customer", "7"), core.fact("customer.banned", True, subject="customer/7")]
        assert (REJECTED, "BANNED", terminal) == verdict(core.decide(basis, params={"note": "7"}))
        core.prove()


def test_at_the_limit_it_is_a_review_and_still_terminal() -> None:
    """The rejection that calls a person says that the action is hopeless as well; both notices stand in its commit."""
    core = Core(document(rejection_limit=1))
    assert (REVIEW, reasons.REJECTION_LIMIT, True) == verdict(core.decide([core.fact("order.status", "cancelled")]))
    assert ["NeedsHumanReview", "NoFeasibleProposal"] == [event.event_name for event in core.events[-2:]]
    core.prove()


def test_it_is_forgotten_with_the_trace(core: Core) -> None:
    """After a day of silence the trace starts over, and nothing is left in the state."""
    status = core.fact("order.status", "cancelled")
    core.decide([status])
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.fact("order.status", "cancelled")
    assert ({}, {}) == (core.state.ended, core.state.traces)
    core.prove()


@pytest.mark.parametrize("status", ["cancelled", "lost", "delivered", None])
@pytest.mark.parametrize("varied", [False, True])
def test_a_client_that_retries_at_once_comes_to_an_end(status: str | None, varied: bool) -> None:
    """At most `rejection_limit` rejections count; what follows is UNDER_REVIEW or NO_FEASIBLE_PROPOSAL, if it is refused."""
    rules = [{"id": "much", "when": "params.amount > 10.0", "effect": "reject", "reason_code": "TOO_MUCH"}, *RULES]
    core = Core(document(rules=rules, rejection_limit=3))
    basis = [core.fact("order.status", status) if status else core.fact("k.note", "x")]
    decisions = [core.decide(basis, amount=50 + number * varied) for number in range(12)]
    assert 3 >= max(decision.consecutive_rejections for decision in decisions)
    assert {decision.reason_code for decision in decisions[3:]} <= {reasons.UNDER_REVIEW, reasons.NO_FEASIBLE_PROPOSAL}
    core.prove()


# Precedence: the trace was ended, and the next proposal meets one more obstacle.
OTHER = {"params": {"type": "object"}}
OTHER_RULES = [
    {"id": "hold", "action": "other.hold", "priority": 1, "when": "true", "effect": "approve"},
    {"id": "ask", "action": "other.ask", "priority": 1, "when": "true", "effect": "review", "reason_code": "PLEASE_LOOK"},
]
LATER = ["ungoverned", "params", "unknown", "no-input", "missing", "tier", "stale", "superseded", "contradicted", "conflict"]


@pytest.mark.parametrize("obstacle", ["under-review", *LATER])
def test_its_place_among_the_stages(obstacle: str) -> None:
    """Only an open review is named before it: the trace is answered at constant cost, whatever else is wrong."""
    more = {"other.hold": OTHER, "other.ask": OTHER}
    core = Core(document(rules=[*RULES, *OTHER_RULES], more_actions=more))
    old = core.fact("order.status", "delivered")
    status = core.fact("order.status", "cancelled")
    evidence = core.tool_result("tools")
    readings = [core.observe("k.read", value, evidence=evidence, trace_id="tools") for value in (1, 2)]
    inference = core.observe("k.weak", 1)
    elsewhere = core.fact("k.note", "x", subject="order/9", source=SOURCE)
    assert core.decide([status]).terminal
    changes: dict[str, Any] = {"amount": 60}
    cited = {"superseded": [old], "contradicted": readings, "tier": [inference], "no-input": [elsewhere]}.get(obstacle, [status])
    if obstacle == "under-review":
        assert REVIEW == core.decide([status], action_type="other.ask").outcome
    elif obstacle == "ungoverned":
        core.deactivate("refunds")
    elif obstacle == "params":
        changes["amount"] = -1
    elif obstacle == "unknown":
        cited = [core.events[0]]
    elif obstacle in ("missing", "tier"):
        changes["required_facts"] = ["k.absent" if obstacle == "missing" else "k.weak"]
    elif obstacle == "stale":
        core.pass_time(61_000)
    elif obstacle == "conflict":
        assert APPROVED == core.decide([status], action_type="other.hold", trace_id="rival").outcome
    expected = reasons.UNDER_REVIEW if obstacle == "under-review" else reasons.NO_FEASIBLE_PROPOSAL
    assert expected == core.decide(cited, **changes).reason_code
    core.prove()
