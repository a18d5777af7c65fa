"""Carrying out: leases, who may report what, what a start checks again, and when a person is called (seeds 002 §4.4, §7.1)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2
from gavel_rules import reasons
from gavel_rules.commands import BeginExecution
from gavel_rules.events import derived_event_id, execution_id_of
from gavel_rules.grounds import FACTS_NAMED_MAX

from tests.unit.core.driver import (
    EXECUTOR,
    FAILED,
    OTHER_EXECUTOR,
    RULES,
    START_MS,
    STARTED,
    SUBJECT,
    SUCCESS,
    Core,
    document,
    event_id,
)

REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
WRONG_STATE = error_pb2.ERROR_REASON_WRONG_STATE


def last_review(core: Core) -> tuple[str, str]:
    """Why and about which decision a person was called, by the log's last event."""
    event = core.events[-1]
    assert ("HumanReviewRequested", REVIEW) == (event.event_name, event.decision.outcome)
    return event.decision.reason_code, event.decision.previous_decision_id


# Starting


def test_a_start_is_an_event_with_a_lease() -> None:
    """STARTED names decision, attempt and lease, comes from the executor, and carries the decision's subject and trace."""
    core = Core(document())
    approval = core.approve()
    core.pass_time(100)
    event = core.start(approval, lease_ms=2_000)
    execution = event.execution
    assert (approval.event_id, execution_id_of(approval.event_id, 1), 1, STARTED) == (
        execution.decision_id,
        execution.execution_id,
        execution.attempt,
        execution.status,
    )
    assert START_MS + 2_100 == execution.lease_until.ToMilliseconds()
    assert (EXECUTOR, approval.subject, approval.trace_id, approval.event_id) == (
        event.producer,
        event.subject,
        event.trace_id,
        event.causation_id,
    )
    assert derived_event_id(approval.event_id, approval.sequence_number, "started", 0) == event.event_id
    core.prove()


def test_an_executor_is_told_what_was_approved() -> None:
    """The answer to a start carries the decision itself: the executor carries out exactly that."""
    core = Core(document())
    approval = core.approve()
    answer = core.begin(approval)
    assert approval == answer.decision  # type: ignore[union-attr]  # Started; anything else has no decision and fails


def test_nobody_else_starts_while_a_lease_runs() -> None:
    """A running lease refuses everybody, its holder included, and says when to come back; nothing is recorded."""
    core = Core(document())
    approval = core.approve()
    core.start(approval, lease_ms=1_000)
    core.pass_time(400)
    before = core.state.head
    refusals = [core.refuse_start(approval, producer) for producer in (EXECUTOR, OTHER_EXECUTOR)]
    assert [(reasons.ALREADY_RUNNING, 600)] * 2 == [(refusal.reason_code, refusal.retry_after_ms) for refusal in refusals]
    assert before == core.state.head


@pytest.mark.parametrize("end", ["expired", "finished", "derived", "aborted"])
def test_what_has_ended_cannot_be_started(end: str) -> None:
    """A decision that expired, was carried out or given up answers a start with the reason, and nothing is recorded."""
    core = Core(document())
    approval = core.approve()
    if end == "expired":
        core.tick(10_000)
    elif end == "aborted":
        core.fact("order.status", "returned")
        core.refuse_start(approval)
    else:
        report = core.report(core.start(approval), SUCCESS)
        if end == "derived":
            core.derive(report)
    before = core.state.head
    assert (reasons.EXPIRED if end == "expired" else reasons.ALREADY_FINISHED) == core.refuse_start(approval).reason_code
    assert before == core.state.head


def test_a_start_at_the_moment_of_expiry_finds_it_expired() -> None:
    """At `valid_until` the timer has spoken before the start is looked at."""
    core = Core(document())
    approval = core.approve()
    core.pass_time(10_000)
    assert reasons.EXPIRED == core.refuse_start(approval).reason_code
    assert "DecisionExpired" == core.events[-1].event_name
    core.prove()


def test_only_approvals_can_be_started() -> None:
    """A rejection is NOT_APPROVED; an id that is no decision is DECISION_NOT_FOUND."""
    core = Core(document())
    note = core.fact("k.note", "x")
    assert reasons.NOT_APPROVED == core.refuse_start(core.propose([note])).reason_code
    for unknown in (note.event_id, event_id(999)):
        assert error_pb2.ERROR_REASON_DECISION_NOT_FOUND == core.fault(BeginExecution(unknown, EXECUTOR, 1_000)).reason


# What a start checks again


def _retract(core: Core) -> None:
    core.fact("order.status", None)


def _change(core: Core) -> None:
    core.fact("order.status", "returned")


def _repeat(core: Core) -> None:
    core.fact("order.status", "delivered")


def _change_elsewhere(core: Core) -> None:
    core.fact("order.status", "returned", source="orders-copy")


def _retract_elsewhere(core: Core) -> None:
    core.pass_time(1)
    core.fact("order.status", None, source="orders-copy")


def _bring_optional(core: Core) -> None:
    core.observe("order.score", 0.1, evidence=core.tool_result())


def _bring_poor_optional(core: Core) -> None:
    core.observe("order.score", 0.1)


def _grow_old(core: Core) -> None:
    core.pass_time(60_001)


def _grow_old_and_change(core: Core) -> None:
    core.pass_time(60_001)
    core.fact("order.status", "returned")


CHANGES = [
    (_retract, reasons.FACT_SUPERSEDED, "order.status of order/1"),
    (_change, reasons.FACT_SUPERSEDED, "order.status of order/1"),
    (_repeat, reasons.FACT_SUPERSEDED, "order.status of order/1"),
    (_change_elsewhere, reasons.FACT_SUPERSEDED, "order.status of order/1"),
    (_retract_elsewhere, reasons.FACT_SUPERSEDED, "order.status of order/1"),
    (_bring_optional, reasons.FACT_SUPERSEDED, "order.score of order/1"),
    (_bring_poor_optional, reasons.FACT_SUPERSEDED, "order.score of order/1"),
    (_grow_old, reasons.STALE_FACT, "order.status of order/1"),
    (_grow_old_and_change, reasons.FACT_SUPERSEDED, "order.status of order/1"),
]
LASTING = document(decision_ttl_ms=600_000, retry={"max_attempts": 3, "human_takeover_after_ms": 600_000})


@pytest.mark.parametrize(("change", "reason_code", "named"), CHANGES)
def test_a_first_start_is_refused_when_the_facts_no_longer_hold(change: Any, reason_code: str, named: str) -> None:
    """Each pinned key must yield the same version, still fresh, and no absent optional may have appeared; else ABORTED, attempt 0.

    Refusal and event name the facts.
    """
    core = Core(LASTING)
    approval = core.approve()
    change(core)
    refusal = core.refuse_start(approval)
    assert (reason_code, named) == (refusal.reason_code, refusal.message.partition(": ")[2])
    assert (reason_code, refusal.message) == (core.events[-1].execution.error.code, core.events[-1].execution.error.message)
    aborted = core.events[-1]
    assert ("ExecutionAborted", 0, reason_code) == (aborted.event_name, aborted.execution.attempt, aborted.execution.reason_code)
    assert (execution_id_of(approval.event_id, 0), EXECUTOR) == (aborted.execution.execution_id, aborted.producer)
    assert derived_event_id(approval.event_id, approval.sequence_number, "aborted") == aborted.event_id
    assert reasons.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    core.prove()


@pytest.mark.parametrize(("change", "reason_code", "named"), CHANGES)
@pytest.mark.parametrize("first", ["failed", "lapsed"])
def test_a_retry_after_a_change_calls_a_person(change: Any, reason_code: str, named: str, first: str) -> None:
    """Once an attempt has started, work may be half done: changed facts call a person with RETRY_FACTS_CHANGED, and the key stays.

    A warning tells the person which facts they are.
    """
    core = Core(LASTING)
    approval = core.approve()
    started = core.start(approval, lease_ms=1_000)
    if first == "failed":
        core.report(started, FAILED)
    else:
        core.pass_time(1_000)
    change(core)
    assert reasons.RETRY_FACTS_CHANGED == core.refuse_start(approval).reason_code
    assert (reasons.RETRY_FACTS_CHANGED, approval.event_id) == last_review(core)
    (warning,) = core.events[-2 if core.events[-1].HasField("agent_diagnostic") else -1].decision.warnings
    assert (reason_code, named) == (warning.code, warning.message.partition(": ")[2])
    assert reasons.UNDER_REVIEW == core.refuse_start(approval).reason_code
    assert {SUBJECT: approval.event_id} == core.state.holds
    core.prove()


def test_a_refused_start_names_the_first_facts_and_counts_the_rest() -> None:
    """However many facts have changed, the refusal's message stays readable: the first 20 by name, and how many more."""
    core = Core(LASTING)
    keys = [f"k.required{number:02}" for number in range(FACTS_NAMED_MAX + 3)]
    for key in keys:
        core.fact(key, 1)
    approval = core.approve(required_facts=keys)
    for key in keys:
        core.fact(key, 2)
    named = [f"{key} of {SUBJECT}" for key in keys[:FACTS_NAMED_MAX]]
    assert [*named, "and 3 more"] == core.refuse_start(approval).message.partition(": ")[2].split(", ")


def test_unrelated_changes_do_not_matter() -> None:
    """Facts that the approval does not rest on, other subjects' facts and late arrivals leave the start alone."""
    core = Core(LASTING)
    approval = core.approve()
    core.fact("order.note", "x")
    core.fact("order.status", "returned", subject="order/2")
    core.fact("order.status", "returned", source="hearsay")
    core.fact("order.status", "returned", occurred_at_ms=START_MS - 1)
    core.observe("order.status", "returned", tool="orders-db")
    core.start(approval)
    core.prove()


def test_facts_that_are_exactly_as_old_as_allowed_still_hold() -> None:
    """At the limit of its age a pinned fact is fresh."""
    core = Core(LASTING)
    approval = core.approve()
    core.pass_time(60_000)
    core.start(approval)


def test_the_proposal_s_own_limit_holds_at_the_start_too() -> None:
    """A fact too old for the proposal is stale for the start, however long the rule set would take it."""
    core = Core(LASTING)
    approval = core.approve(max_fact_age_ms=5_000)
    core.pass_time(5_001)
    assert reasons.STALE_FACT == core.refuse_start(approval).reason_code


def test_what_the_proposal_required_is_checked_at_the_start() -> None:
    """A fact that only the proposal asked for is pinned and checked like the others."""
    core = Core(LASTING)
    core.fact("k.extra", 1)
    approval = core.approve(required_facts=["k.extra"])
    core.fact("k.extra", 2)
    assert reasons.FACT_SUPERSEDED == core.refuse_start(approval).reason_code


def test_a_pinned_optional_that_is_retracted_is_superseded() -> None:
    """An optional fact that spoke and was taken back changes what the approval rests on."""
    core = Core(LASTING)
    core.fact("order.score", 0.1)
    approval = core.approve()
    core.fact("order.score", None)
    assert reasons.FACT_SUPERSEDED == core.refuse_start(approval).reason_code


def test_the_rule_set_that_decided_is_the_one_that_counts() -> None:
    """A newer rule set with tighter limits changes nothing for what an older one has approved."""
    core = Core(LASTING)
    approval = core.approve()
    tight = {"status": {"key": "order.status", "type": "string", "max_age_ms": 1}}
    core.activate(document(tight, [RULES[0], RULES[2]], version=2))
    core.pass_time(1_000)
    core.start(approval)
    core.prove()


def test_an_optional_fact_that_the_proposal_requires_is_required_as_declared() -> None:
    """A source whose word the rule set does not take will not do for the proposal either; one that it takes is pinned."""
    score = {"key": "order.score", "type": "number", "max_age_ms": 60_000, "sources": ["fraud-tool"], "optional": True}
    core = Core(document({"status": {"key": "order.status", "type": "string", "max_age_ms": 60_000}, "score": score}))
    status = core.fact("order.status", "delivered")
    core.fact("order.score", 0.1, source="elsewhere")
    refused = core.decide([status], required_facts=["order.score"])
    (row,) = refused.retry_hint.fact_requirements
    assert (decision_pb2.FACT_REQUIREMENT_STATE_SOURCE_NOT_ACCEPTED, ["fraud-tool"]) == (row.state, list(row.sources))
    approval = core.propose([status, core.fact("order.score", 0.1, source="fraud-tool")], required_facts=["order.score"])
    assert ["order.score", "order.status"] == sorted(pin.key for pin in approval.decision.pinned_facts)
    core.start(approval)
    core.prove()
