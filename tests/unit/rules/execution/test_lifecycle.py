"""Executions: leases, permitted reports, the recheck at a start, and calls of a person (constitution §4.4, §7.1)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2
from gavel_rules import reason_codes
from gavel_rules.commands import BeginExecution
from gavel_rules.events.ids import derived_event_id, execution_id_of
from gavel_rules.execution.evidence_recheck import FACTS_NAMED_MAX

from tests.support.driver import EXECUTOR, FAILED, OTHER_EXECUTOR, RULES, START_MS, STARTED, SUBJECT, SUCCESS, Core, document, event_id

REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
WRONG_STATE = error_pb2.ERROR_REASON_WRONG_STATE


def last_review(core: Core) -> tuple[str, str]:
    """Return the reason code and the decision of the log's last event, which requests a human review."""
    event = core.events[-1]
    assert ("HumanReviewRequested", REVIEW) == (event.event_name, event.decision.outcome)
    return event.decision.reason_code, event.decision.previous_decision_id


# Starting


def test_a_start_is_an_event_with_a_lease() -> None:
    """STARTED has decision, attempt, lease and executor, and the subject and trace of the decision."""
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


def test_start_returns_the_decision() -> None:
    """The answer to a start contains the decision itself, which the executor carries out."""
    core = Core(document())
    approval = core.approve()
    answer = core.begin(approval)
    assert approval == answer.decision  # type: ignore[union-attr]  # Started; anything else has no decision and fails


def test_running_lease_refuses_other_starts() -> None:
    """While a lease runs every start is refused with a retry delay, the holder's included, and nothing is recorded."""
    core = Core(document())
    approval = core.approve()
    core.start(approval, lease_ms=1_000)
    core.pass_time(400)
    before = core.state.head
    refusals = [core.refuse_start(approval, producer) for producer in (EXECUTOR, OTHER_EXECUTOR)]
    assert [(reason_codes.ALREADY_RUNNING, 600)] * 2 == [(refusal.reason_code, refusal.retry_after_ms) for refusal in refusals]
    assert before == core.state.head


@pytest.mark.parametrize("end", ["expired", "finished", "derived", "aborted"])
def test_ended_decision_cannot_be_started(end: str) -> None:
    """A start of a decision that expired, was carried out or was given up is refused with the reason; nothing is recorded."""
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
    expected = {"expired": reason_codes.EXPIRED, "aborted": reason_codes.FACT_SUPERSEDED}.get(end, reason_codes.ALREADY_FINISHED)
    assert expected == core.refuse_start(approval).reason_code
    assert before == core.state.head


def test_start_at_the_moment_of_expiry_is_expired() -> None:
    """At `valid_until` the approval expires before the start is handled."""
    core = Core(document())
    approval = core.approve()
    core.pass_time(10_000)
    assert reason_codes.EXPIRED == core.refuse_start(approval).reason_code
    assert "DecisionExpired" == core.events[-1].event_name
    core.prove()


def test_only_approvals_can_be_started() -> None:
    """A start of a rejection is refused with NOT_APPROVED, of an unknown decision with DECISION_NOT_FOUND."""
    core = Core(document())
    note = core.fact("k.note", "x")
    assert reason_codes.NOT_APPROVED == core.refuse_start(core.propose([note])).reason_code
    for unknown in (note.event_id, event_id(999)):
        assert error_pb2.ERROR_REASON_DECISION_NOT_FOUND == core.fault(BeginExecution(unknown, EXECUTOR, 1_000)).reason


# The recheck of evidence at a start


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


def _age_facts(core: Core) -> None:
    core.pass_time(60_001)


def _age_and_change_facts(core: Core) -> None:
    core.pass_time(60_001)
    core.fact("order.status", "returned")


CHANGES = [
    (_retract, reason_codes.FACT_SUPERSEDED, "order.status of order/1"),
    (_change, reason_codes.FACT_SUPERSEDED, "order.status of order/1"),
    (_repeat, reason_codes.FACT_SUPERSEDED, "order.status of order/1"),
    (_change_elsewhere, reason_codes.FACT_SUPERSEDED, "order.status of order/1"),
    (_retract_elsewhere, reason_codes.FACT_SUPERSEDED, "order.status of order/1"),
    (_bring_optional, reason_codes.FACT_SUPERSEDED, "order.score of order/1"),
    (_bring_poor_optional, reason_codes.FACT_SUPERSEDED, "order.score of order/1"),
    (_age_facts, reason_codes.STALE_FACT, "order.status of order/1"),
    (_age_and_change_facts, reason_codes.FACT_SUPERSEDED, "order.status of order/1"),
]
LASTING = document(decision_ttl_ms=600_000, retry={"max_attempts": 3, "human_takeover_after_ms": 600_000})


@pytest.mark.parametrize(("change", "reason_code", "named"), CHANGES)
def test_a_first_start_is_refused_when_the_facts_no_longer_hold(change: Any, reason_code: str, named: str) -> None:
    """A first start needs every pinned version, still fresh, and every absence; else it is ABORTED with attempt 0.

    Refusal and event name the facts. Later starts are refused with the same reason, before and after the decision ends.
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
    assert refusal == core.refuse_start(approval)
    core.derive(aborted)
    assert (None, reason_code) == (core.state.live_decision(approval.event_id), core.refuse_start(approval).reason_code)
    core.prove()


@pytest.mark.parametrize(("change", "reason_code", "named"), CHANGES)
@pytest.mark.parametrize("first", ["failed", "lapsed"])
def test_a_retry_after_a_change_calls_a_person(change: Any, reason_code: str, named: str, first: str) -> None:
    """After a first attempt, work may be half done: changed facts request a human review with RETRY_FACTS_CHANGED, and the key stays held.

    A warning names the changed facts.
    """
    core = Core(LASTING)
    approval = core.approve()
    attempt = core.start(approval, lease_ms=1_000)
    if first == "failed":
        core.report(attempt, FAILED)
    else:
        core.pass_time(1_000)
    change(core)
    assert reason_codes.RETRY_FACTS_CHANGED == core.refuse_start(approval).reason_code
    assert (reason_codes.RETRY_FACTS_CHANGED, approval.event_id) == last_review(core)
    (warning,) = core.events[-2 if core.events[-1].HasField("agent_diagnostic") else -1].decision.warnings
    assert (reason_code, named) == (warning.code, warning.message.partition(": ")[2])
    assert reason_codes.UNDER_REVIEW == core.refuse_start(approval).reason_code
    assert {SUBJECT: approval.event_id} == core.state.conflict_keys
    core.prove()


def test_a_refused_start_names_the_first_facts_and_counts_the_rest() -> None:
    """The message of a refusal names the first 20 changed facts and the number of the others."""
    core = Core(LASTING)
    keys = [f"k.required{number:02}" for number in range(FACTS_NAMED_MAX + 3)]
    for key in keys:
        core.fact(key, 1)
    approval = core.approve(required_facts=keys)
    for key in keys:
        core.fact(key, 2)
    names = [f"{key} of {SUBJECT}" for key in keys[:FACTS_NAMED_MAX]]
    assert [*names, "and 3 more"] == core.refuse_start(approval).message.partition(": ")[2].split(", ")


def test_unrelated_changes_do_not_matter() -> None:
    """Facts that the approval does not rest on, facts of other subjects and late old claims do not affect the start."""
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
    """A pinned fact whose age equals its limit is fresh."""
    core = Core(LASTING)
    approval = core.approve()
    core.pass_time(60_000)
    core.start(approval)


def test_the_proposal_s_own_limit_holds_at_the_start_too() -> None:
    """A fact that is older than the proposal's limit is stale at the start, even if the rule set allows that age."""
    core = Core(LASTING)
    approval = core.approve(max_fact_age_ms=5_000)
    core.pass_time(5_001)
    assert reason_codes.STALE_FACT == core.refuse_start(approval).reason_code


def test_required_facts_are_checked_at_the_start() -> None:
    """A fact that only the proposal requires is pinned and checked like the others."""
    core = Core(LASTING)
    core.fact("k.extra", 1)
    approval = core.approve(required_facts=["k.extra"])
    core.fact("k.extra", 2)
    assert reason_codes.FACT_SUPERSEDED == core.refuse_start(approval).reason_code


def test_a_pinned_optional_that_is_retracted_is_superseded() -> None:
    """The retraction of a pinned optional fact aborts the approval."""
    core = Core(LASTING)
    core.fact("order.score", 0.1)
    approval = core.approve()
    core.fact("order.score", None)
    assert reason_codes.FACT_SUPERSEDED == core.refuse_start(approval).reason_code


def test_start_uses_the_rule_set_of_the_decision() -> None:
    """A newer rule set with tighter limits does not affect approvals of the older one."""
    core = Core(LASTING)
    approval = core.approve()
    facts = {"status": {"key": "order.status", "type": "string", "max_age_ms": 1}}
    core.activate(document(facts, [RULES[0], RULES[2]], version=2))
    core.pass_time(1_000)
    core.start(approval)
    core.prove()


def test_an_optional_fact_that_the_proposal_requires_is_required_as_declared() -> None:
    """A fact that the proposal requires must come from a source that the rule set accepts; it is then pinned."""
    score = {"key": "order.score", "type": "number", "max_age_ms": 60_000, "sources": ["fraud-tool"], "optional": True}
    core = Core(document({"status": {"key": "order.status", "type": "string", "max_age_ms": 60_000}, "score": score}))
    status = core.fact("order.status", "delivered")
    core.fact("order.score", 0.1, source="elsewhere")
    rejection = core.decide([status], required_facts=["order.score"])
    (row,) = rejection.retry_hint.fact_requirements
    assert (decision_pb2.FACT_REQUIREMENT_STATE_SOURCE_NOT_ACCEPTED, ["fraud-tool"]) == (row.state, list(row.sources))
    approval = core.propose([status, core.fact("order.score", 0.1, source="fraud-tool")], required_facts=["order.score"])
    assert ["order.score", "order.status"] == sorted(pin.key for pin in approval.decision.pinned_facts)
    core.start(approval)
    core.prove()


def test_a_start_beside_the_last_fact_of_a_refused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start in one batch with the fact that ends the decision has the reason of the first one, looked up while the decision is live."""
    core = Core(document())
    approval = core.approve()
    core.fact("order.status", "returned")
    assert "FACT_SUPERSEDED" == core.refuse_start(approval).reason_code
    references = core.references(BeginExecution(approval.event_id, EXECUTOR, 1_000))
    core.derive(core.events_named("ExecutionAborted")[-1])
    monkeypatch.setattr(core, "references", lambda command: references)
    assert "FACT_SUPERSEDED" == core.refuse_start(approval).reason_code
