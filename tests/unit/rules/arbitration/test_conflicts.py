"""Conflict keys: held from approval until expiry, or until every derived fact of the execution is in the log.

Constitution §6.1 and §10.1: of several possible actions one is carried out, and every producer can see which one is under way.
"""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reason_codes
from gavel_rules.commands import Tick
from gavel_rules.events.ids import derived_event_id

from tests.support.driver import ABORTED, FAILED, PARTIAL, RULES, START_MS, SUBJECT, SUCCESS, TIMEOUT, Core, document

APPROVED = decision_pb2.OUTCOME_APPROVED
EXPIRED = decision_pb2.OUTCOME_EXPIRED


def rival(core: Core, **changes: Any) -> Decision:
    """Submit another agent's proposal on the same order; return the decision."""
    return core.decide([core.fact("order.status", "delivered")], trace_id=f"rival-{core.state.head}", **changes)


def is_free(core: Core) -> bool:
    """Submit a rival's proposal; return whether it is approved."""
    decision = rival(core)
    assert decision.reason_code in ("", reason_codes.CONFLICTING_DECISION), decision
    return decision.outcome == APPROVED


def test_one_live_approval_per_conflict_key() -> None:
    """A second proposal on the key is refused; the decision names the holder's proposal and when to retry."""
    core = Core(document())
    winner = core.approve()
    core.pass_time(3_000)
    loser = rival(core)
    assert reason_codes.CONFLICTING_DECISION == loser.reason_code
    assert [winner.decision.proposal_id] == list(loser.conflict_with_proposal_ids)
    assert (True, 7_000) == (loser.retry_hint.retryable, loser.retry_hint.retry_after_ms)
    core.prove()


def test_other_keys_are_not_affected() -> None:
    """Another subject has another key."""
    core = Core(document())
    core.approve()
    core.approve("order/2", trace_id="other")


def test_a_key_is_shared_by_all_actions() -> None:
    """Two actions with the same conflict key exclude each other."""
    more = {"refund.check": {"params": {"type": "object"}}}
    rules = [*RULES, {"id": "check", "action": "refund.check", "priority": 1, "when": "true", "effect": "approve"}]
    core = Core(document(rules=rules, more_actions=more))
    core.approve()
    assert reason_codes.CONFLICTING_DECISION == core.decide([core.fact("k.note", "x")], action_type="refund.check").reason_code


def test_a_key_may_be_wider_than_a_subject() -> None:
    """A rule set may declare any conflict key, such as one live refund per agent."""
    core = Core(document(conflict_key="producer.id"))
    core.approve()
    assert (
        reason_codes.CONFLICTING_DECISION
        == core.decide([core.fact("order.status", "delivered", subject="order/2")], subject="order/2").reason_code
    )
    core.prove()


# Expiry


@pytest.mark.parametrize(("waited_ms", "free"), [(9_999, False), (10_000, True)])
def test_approval_expires_at_valid_until(waited_ms: int, free: bool) -> None:
    """At `valid_until`, to the millisecond, an approval expires and frees its key."""
    core = Core(document())
    approval = core.approve()
    core.pass_time(waited_ms)
    assert free == is_free(core)
    assert ([approval.event_id] if free else []) == [event.decision.previous_decision_id for event in core.events_named("DecisionExpired")]
    core.prove()


def test_an_expiry_is_a_decision() -> None:
    """The decision that ends an approval names it, repeats its proposal, action and key, and has an id derived from it."""
    core = Core(document())
    approval = core.approve()
    (event,) = core.tick(10_000)
    decision = event.decision
    assert (EXPIRED, reason_codes.APPROVAL_EXPIRED, "gavel") == (decision.outcome, decision.reason_code, decision.policy_id)
    assert (approval.event_id, approval.decision.proposal_id) == (decision.previous_decision_id, decision.proposal_id)
    assert (approval.event_id, approval.trace_id, SUBJECT) == (event.causation_id, event.trace_id, event.subject)
    assert (approval.decision.action_type, approval.decision.params, SUBJECT) == (
        decision.action_type,
        decision.params,
        decision.conflict_key,
    )
    assert derived_event_id(approval.event_id, approval.sequence_number, "expired") == event.event_id
    assert START_MS + 10_000 == event.recorded_at.ToMilliseconds() == decision.evaluated_at.ToMilliseconds()
    assert ({}, {}, {}) == (core.state.decisions, core.state.conflict_keys, core.state.decisions_by_subject)
    core.prove()


def test_timers_fire_before_the_command() -> None:
    """Due timers fire before the event of the command."""
    core = Core(document())
    core.approve()
    core.pass_time(10_000)
    core.fact("k.note", "x")
    assert ["DecisionExpired", "FactRecorded"] == [event.event_name for event in core.events[-2:]]


def test_timers_fire_by_due_time_and_sequence_number() -> None:
    """Timers fire by due time, and at equal times by the sequence number of the approval."""
    core = Core(document())
    approvals = [core.approve(f"order/{number}", trace_id=f"t{number}") for number in range(3)]
    core.pass_time(500)
    core.start(approvals[1], lease_ms=4_000)  # requests a human review at 500 + 4000 + 5000
    expiries = core.tick(20_000)
    in_order = [approvals[1].event_id, approvals[0].event_id, approvals[2].event_id]
    assert in_order == [event.decision.previous_decision_id for event in expiries]
    core.prove()


def test_a_tick_emits_at_most_its_limit() -> None:
    """A tick with a limit fires some of the timers; the next tick continues."""
    core = Core(document())
    for number in range(5):
        core.approve(f"order/{number}", trace_id=f"t{number}")
    core.pass_time(10_000)
    core.run(Tick(2))
    assert 2 == len(core.events_named("DecisionExpired"))
    assert 3 == core.state.due_count(core.now_ms)
    core.run(Tick(2))
    core.run(Tick(2))
    assert (5, None) == (len(core.events_named("DecisionExpired")), core.state.next_timer_ms())
    core.prove()


def test_a_tick_with_nothing_due_does_nothing() -> None:
    """A tick without a due timer records nothing."""
    core = Core(document())
    core.approve()
    assert [] == core.tick(9_999)


# Holding a key after the start


def test_running_attempt_holds_the_key() -> None:
    """A running attempt holds the key beyond `valid_until`, which limits only the first start."""
    core = Core(document())
    core.start(core.approve(), lease_ms=60_000)
    core.pass_time(30_000)
    refusal = rival(core)
    assert (reason_codes.CONFLICTING_DECISION, 30_000) == (refusal.reason_code, refusal.retry_hint.retry_after_ms)
    core.prove()


@pytest.mark.parametrize("status", [SUCCESS, ABORTED])
def test_the_key_is_free_once_the_derived_facts_are_in(status: Any) -> None:
    """A final report alone does not free the key: its derived facts must be recorded first (constitution §7.2)."""
    core = Core(document())
    report = core.report(core.start(core.approve()), status)
    assert not is_free(core)
    core.derive(report)
    assert is_free(core)
    core.prove()


def test_key_is_held_until_the_facts_of_all_attempts() -> None:
    """The key is held until the facts of every report are recorded, in any order."""
    core = Core(document())
    approval = core.approve()
    first_report = core.report(core.start(approval), FAILED)
    second_report = core.report(core.start(approval), SUCCESS)
    core.derive(second_report)
    assert not is_free(core)
    core.derive(first_report)
    assert is_free(core)
    core.prove()


def test_an_abort_before_any_attempt_holds_the_key_until_its_fact_is_in() -> None:
    """ABORTED with attempt 0 is final like any other report."""
    core = Core(document())
    approval = core.approve()
    core.fact("order.status", "returned")
    assert reason_codes.FACT_SUPERSEDED == core.refuse_start(approval).reason_code
    (aborted,) = core.events_named("ExecutionAborted")
    assert reason_codes.CONFLICTING_DECISION == rival(core).reason_code
    core.derive(aborted)
    assert is_free(core)
    core.prove()


@pytest.mark.parametrize("ending", ["partial", "failed", "timeout", "lapsed"])
def test_half_done_work_keeps_the_key(ending: str) -> None:
    """PARTIAL, exhausted attempts and abandoned leases keep the key until the review is resolved."""
    core = Core(document(retry={"max_attempts": 1}))
    attempt = core.start(core.approve())
    if ending == "lapsed":
        core.tick(1_000)
    else:
        status = {"partial": PARTIAL, "failed": FAILED, "timeout": TIMEOUT}[ending]
        core.derive(core.report(attempt, status))
    assert not is_free(core)
    core.pass_time(365 * 24 * 60 * 60 * 1000)
    assert not is_free(core)
    core.prove()


def test_a_deactivated_rule_set_leaves_its_approvals_alive() -> None:
    """Approvals outlive their rule set and can be started; only new proposals get NO_ACTIVE_POLICY."""
    core = Core(document())
    approval = core.approve()
    core.deactivate("refunds")
    core.derive(core.report(core.start(approval), SUCCESS))
    assert {} == core.state.conflict_keys
    core.prove()


def test_the_longest_delays_fit_the_contract() -> None:
    """The delay until a key that is held for years is free is the longest that the field holds, and pauses may be as long as theirs."""
    pause_ms = 2**31 - 1
    core = Core(document(decision_ttl_ms=10 * 365 * 24 * 3_600_000, retry={"backoff_initial_ms": pause_ms, "backoff_max_ms": pause_ms}))
    approval = core.approve()
    policy = approval.decision.retry_policy
    assert (pause_ms, pause_ms) == (policy.backoff_initial_ms, policy.backoff_max_ms)
    assert 2**31 - 1 == rival(core).retry_hint.retry_after_ms
    core.prove()
