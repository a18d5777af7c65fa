"""NO_FEASIBLE_PROPOSAL: if the facts allow no acceptable proposal, the refusal is terminal (constitution §6.4)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reason_codes
from gavel_rules.limits import TRACE_LAPSE_MS

from tests.support.driver import RULES, SOURCE, SUBJECT, Core, document

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW


@pytest.fixture
def core() -> Core:
    """Return a bus on which a cancelled order gets no refund, whatever is proposed."""
    return Core(document())


def verdict(decision: Decision) -> tuple[int, str, bool]:
    """Return the outcome, the reason code, and whether the refusal is terminal."""
    return decision.outcome, decision.reason_code, decision.terminal


def test_certain_refusal_is_terminal(core: Core) -> None:
    """A terminal refusal keeps the rule's reason code, names its facts, counts, and is followed by a notice in its commit."""
    status = core.fact("order.status", "cancelled")
    decision = core.decide([status])
    assert (REJECTED, "ORDER_CANCELLED", True) == verdict(decision)
    assert (1, False) == (decision.consecutive_rejections, decision.retry_hint.retryable)
    assert [reason_codes.NO_FEASIBLE_PROPOSAL] == [warning.code for warning in decision.warnings]
    assert [("order.status", status.event_id)] == [(pin.key, pin.event_id) for pin in decision.pinned_facts]
    assert [("order.score", SUBJECT)] == [(fact.key, fact.subject) for fact in decision.absent_facts]
    (notice,) = core.events_named("NoFeasibleProposal")
    assert (decision.decision_id, decision.state_version + 2) == (notice.causation_id, notice.sequence_number)
    core.prove()


def test_sources_that_state_an_equal_object() -> None:
    """Two sources that state one object, its names in another order, agree: the refusal is as terminal as the replay finds it."""
    names = ["amount", "currency", "customer", "items", "note", "created", "updated"]
    schema = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string", "maxLength": 32}}}
    declared = {"order": {"key": "order.snapshot", "max_age_ms": 60_000, "value": schema}}
    rules = [
        {"id": "closed", "when": 'facts.order.status == "closed"', "effect": "reject", "reason_code": "CLOSED"},
        {"id": "open", "when": 'facts.order.status == "open"', "effect": "approve"},
    ]
    core = Core(document(declared, rules, gavel="v2"))
    core.fact("order.snapshot", {"status": "closed", **dict.fromkeys(names, 1)}, source="db-a")
    cited = core.fact("order.snapshot", {**dict.fromkeys(reversed(names), 1), "status": "closed"}, source="db-b")
    assert (REJECTED, "CLOSED", True) == verdict(core.decide([cited]))
    core.prove()


def test_terminal_refusal_closes_action_and_subject(core: Core) -> None:
    """Further proposals of the trace for that action and subject are NO_FEASIBLE_PROPOSAL, terminal and uncounted; others are decided."""
    status = core.fact("order.status", "cancelled")
    core.decide([status])
    repetitions = [core.decide([status], amount=amount, params=params) for amount, params in ((1, None), (2, None), (1, {"junk": 1}))]
    assert {(REJECTED, reason_codes.NO_FEASIBLE_PROPOSAL, True)} == {verdict(decision) for decision in repetitions}
    assert {(1, "gavel", False)} == {(one.consecutive_rejections, one.policy_id, one.retry_hint.retryable) for one in repetitions}
    assert "ORDER_CANCELLED" == core.decide([status], trace_id="trace-2").reason_code
    assert APPROVED == core.approve("order/2", trace_id="trace-1").decision.outcome
    assert reason_codes.NO_FEASIBLE_PROPOSAL == core.decide([status]).reason_code
    assert 2 == len(core.events_named("NoFeasibleProposal"))
    core.prove()


def test_change_of_a_declared_fact_reopens(core: Core) -> None:
    """A new value of a fact that was present or absent opens the action again; other facts do not."""
    status = core.fact("order.status", "cancelled")
    core.decide([status])
    core.fact("k.note", "x")
    core.fact("order.status", "delivered", subject="order/2")
    assert reason_codes.NO_FEASIBLE_PROPOSAL == core.decide([status]).reason_code
    core.observe("order.score", 0.1, evidence=core.tool_result())
    assert reason_codes.DUPLICATE_PROPOSAL == core.decide([status]).reason_code
    assert APPROVED == core.decide([core.fact("order.status", "delivered")]).outcome
    core.prove()


def test_other_rules_reopen(core: Core) -> None:
    """Another version that could approve opens the action again; deactivating the only rule set does not."""
    status = core.fact("order.status", "cancelled")
    core.decide([status])
    core.deactivate("refunds")
    assert reason_codes.NO_FEASIBLE_PROPOSAL == core.decide([status]).reason_code
    core.activate(document(rules=[{"id": "all", "when": "true", "effect": "approve"}], version=2))
    assert APPROVED == core.decide([status, core.fact("k.note", "x")]).outcome
    core.prove()


def test_certain_silence_of_all_rules_is_terminal(core: Core) -> None:
    """If no rule can match a lost order, NO_RULE_MATCHED is terminal."""
    assert (REJECTED, reason_codes.NO_RULE_MATCHED, True) == verdict(core.decide([core.fact("order.status", "lost")]))
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
def test_refusal_that_another_proposal_could_avoid_is_not_terminal(rules: list[dict[str, Any]]) -> None:
    """A refusal that depends on params, estimates or the trace, or on a condition that fails, is not terminal."""
    core = Core(document(rules=rules))
    decision = core.decide([core.fact("order.status", "delivered")])
    assert (REJECTED, False) == (decision.outcome, decision.terminal)
    core.prove()


def test_a_fact_that_would_be_replaced_when_it_ages_is_not_certain(core: Core) -> None:
    """If another source's older value would be selected once this one is stale, the refusal is not terminal."""
    core.fact("order.status", "delivered", source="orders-copy", occurred_at_ms=core.now_ms - 100)
    status = core.fact("order.status", "cancelled", max_age_ms=1_000)
    assert (REJECTED, "ORDER_CANCELLED", False) == verdict(core.decide([status]))
    core.pass_time(2_000)
    assert APPROVED == core.decide([core.fact("k.note", "x")]).outcome
    core.prove()


def test_a_fact_that_params_choose_is_not_certain() -> None:
    """If params determine the subject of the fact, another proposal may succeed; if a known fact determines it, none can."""
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
    """A terminal refusal that reaches the rejection limit requests a human review and is terminal too; both notices are in its commit."""
    core = Core(document(rejection_limit=1))
    assert (REVIEW, reason_codes.REJECTION_LIMIT, True) == verdict(core.decide([core.fact("order.status", "cancelled")]))
    assert ["NeedsHumanReview", "NoFeasibleProposal"] == [event.event_name for event in core.events[-2:]]
    core.prove()


def test_closure_lapses_with_the_trace(core: Core) -> None:
    """After a day of silence the trace may propose again, and the closure is removed from the state."""
    status = core.fact("order.status", "cancelled")
    core.decide([status])
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.fact("order.status", "cancelled")
    assert ({}, {}) == (core.state.closed_actions, core.state.traces)
    core.prove()


@pytest.mark.parametrize("status", ["cancelled", "lost", "delivered", None])
@pytest.mark.parametrize("varied", [False, True])
def test_immediate_retries_end(status: str | None, varied: bool) -> None:
    """At most `rejection_limit` rejections count; later refusals are UNDER_REVIEW or NO_FEASIBLE_PROPOSAL."""
    rules = [{"id": "much", "when": "params.amount > 10.0", "effect": "reject", "reason_code": "TOO_MUCH"}, *RULES]
    core = Core(document(rules=rules, rejection_limit=3))
    basis = [core.fact("order.status", status) if status else core.fact("k.note", "x")]
    decisions = [core.decide(basis, amount=50 + number * varied) for number in range(12)]
    assert 3 >= max(decision.consecutive_rejections for decision in decisions)
    assert {decision.reason_code for decision in decisions[3:]} <= {reason_codes.UNDER_REVIEW, reason_codes.NO_FEASIBLE_PROPOSAL}
    core.prove()


# Precedence: the action is closed for the trace, and the next proposal meets one more obstacle.
OTHER = {"params": {"type": "object"}}
OTHER_RULES = [
    {"id": "hold", "action": "other.hold", "priority": 1, "when": "true", "effect": "approve"},
    {"id": "ask", "action": "other.ask", "priority": 1, "when": "true", "effect": "review", "reason_code": "PLEASE_LOOK"},
]
LATER = ["ungoverned", "params", "unknown", "no-input", "missing", "tier", "stale", "superseded", "contradicted", "conflict"]


@pytest.mark.parametrize("obstacle", ["under-review", *LATER])
def test_stage_of_no_feasible_proposal(obstacle: str) -> None:
    """Only an open review precedes NO_FEASIBLE_PROPOSAL, which is decided at constant cost."""
    more = {"other.hold": OTHER, "other.ask": OTHER}
    core = Core(document(rules=[*RULES, *OTHER_RULES], more_actions=more))
    old = core.fact("order.status", "delivered")
    status = core.fact("order.status", "cancelled")
    evidence = core.tool_result("tools")
    readings = [core.observe("k.read", value, evidence=evidence, trace_id="tools") for value in (1, 2)]
    inference = core.observe("k.weak", 1)
    other_fact = core.fact("k.note", "x", subject="order/9", source=SOURCE)
    assert core.decide([status]).terminal
    changes: dict[str, Any] = {"amount": 60}
    cited = {"superseded": [old], "contradicted": readings, "tier": [inference], "no-input": [other_fact]}.get(obstacle, [status])
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
    expected = reason_codes.UNDER_REVIEW if obstacle == "under-review" else reason_codes.NO_FEASIBLE_PROPOSAL
    assert expected == core.decide(cited, **changes).reason_code
    core.prove()
