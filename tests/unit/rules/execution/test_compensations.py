"""Compensations: half-done work is compensated in the same commit, or a human review is requested (constitution §4.7.3, §7)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_REJECT
from gavel_rules import reason_codes
from gavel_rules.commands import EventAnswer, References
from gavel_rules.decider import handle
from gavel_rules.limits import COMPENSATION_PARAMS_BYTES_MAX
from gavel_rules.replay import DivergedError
from gavel_rules.state.records import APPROVED, AWAITING_FACTS, EXECUTING, UNDER_REVIEW
from gavel_rules.values import python_to_value, struct_to_dict

from tests.support.driver import (
    ABORTED,
    ACTION,
    BUS,
    EXECUTOR,
    FAILED,
    OTHER_EXECUTOR,
    PARTIAL,
    SUBJECT,
    SUCCESS,
    TIMEOUT,
    Core,
    copy_command,
    document,
    replay_log,
)
from tests.support.entries import rechain
from tests.support.histories.compensations import UNDO, bus_with_compensation, compensation_of, holder, report_partial

APPROVAL = decision_pb2.OUTCOME_APPROVED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
WRONG_STATE = error_pb2.ERROR_REASON_WRONG_STATE


# The decision


def test_partial_report_approves_the_compensation() -> None:
    """PARTIAL is followed by an approval of the compensating action, which rests on no facts, never expires, and holds the key."""
    core = Core(bus_with_compensation())
    approval = core.approve()
    attempt = core.start(approval)
    before = len(core.events)
    report = core.report(attempt, PARTIAL, result=python_to_value({"refunded": 20}).struct_value, completed_steps=["one", "two"])
    assert ["ExecutionPartiallySucceeded", "DecisionApproved"] == [event.event_name for event in core.events[before:]]
    event = core.events[-1]
    decision = event.decision
    assert (report.event_id, SUBJECT, approval.trace_id) == (event.causation_id, event.subject, event.trace_id)
    assert (APPROVAL, UNDO, {"amount": 20.0, "steps": ["one", "two"]}) == (
        decision.outcome,
        decision.action_type,
        struct_to_dict(decision.params),
    )
    assert [approval.event_id] * 2 == [decision.compensates_decision_id, decision.previous_decision_id]
    of_approval = approval.decision
    for name in ("proposal_id", "policy_id", "policy_version", "rule_set_digest", "conflict_key"):
        assert getattr(of_approval, name) == getattr(decision, name)
    assert (0, 0, False) == (len(decision.pinned_facts), len(decision.absent_facts), decision.HasField("valid_until"))
    assert event.event_id == holder(core)
    assert (AWAITING_FACTS, APPROVED) == (
        core.state.decisions[approval.event_id].phase,
        core.state.decisions[event.event_id].phase,
    )
    core.prove()


@pytest.mark.parametrize(("declared", "expected"), [(True, 3), (False, 2)])
def test_retry_policy_of_a_compensation(declared: bool, expected: int) -> None:
    """A compensation has the retry policy of its own action, or of the compensated action if its own is not declared."""
    core = Core(bus_with_compensation(declared=declared))
    assert expected == compensation_of(core, report_partial(core)).decision.retry_policy.max_attempts


def test_the_rule_set_of_the_decision_counts() -> None:
    """The compensation is that of the version that approved, whichever is active at the report."""
    core = Core(bus_with_compensation())
    attempt = core.start(core.approve())
    core.activate(document(version=2))
    core.report(attempt, PARTIAL, result=python_to_value({"refunded": 20}).struct_value)
    assert UNDO == core.events[-1].decision.action_type
    core.prove()


def test_params_are_expressions() -> None:
    """Params are computed from the report and the decision's params; nulls, lists and objects are passed unchanged."""
    params = {"all": "execution.result", "of": "params.amount * 2.0", "noted": "has(params.note)", "first": "execution.completed_steps[0]"}
    core = Core(bus_with_compensation({"action": "elsewhere.undo", "params": params}, declared=False))
    decision = compensation_of(core, report_partial(core, {"a": [1, None, {"b": True}]}, params={"amount": 30})).decision
    expected = {"all": {"refunded": {"a": [1.0, None, {"b": True}]}}, "of": 60.0, "noted": False, "first": "one"}
    assert expected == struct_to_dict(decision.params)


@pytest.mark.parametrize(
    ("params", "refunded", "warning"),
    [
        ({"amount": "execution.result.paid"}, 20, ("COMPENSATION_PARAMS", "amount: its expression gives no value for this report")),
        ({"amount": "execution.result.refunded"}, "much", ("SCHEMA_VIOLATION", "/amount: type")),
        ({"amount": "execution.result.refunded"}, -1, ("SCHEMA_VIOLATION", "/amount: exclusiveMinimum")),
        ({"amount": "1.0 / (params.amount - 50.0)"}, 20, ("COMPENSATION_PARAMS", "amount is not a finite number")),
        ({"amount": "1.0", "steps": "[{1: 2}]"}, 20, ("COMPENSATION_PARAMS", "steps: its expression gives no value for this report")),
    ],
)
def test_invalid_params_call_a_person(params: dict[str, str], refunded: object, warning: tuple[str, str]) -> None:
    """If an expression has no value, or the params do not fit the declared schema, a human review is requested, with the problem."""
    core = Core(bus_with_compensation({"action": UNDO, "params": params}))
    report = report_partial(core, refunded)
    decision = core.events[-1].decision
    assert (REVIEW, reason_codes.COMPENSATION_INVALID) == (decision.outcome, decision.reason_code)
    assert [warning] == [(one.code, one.message) for one in decision.warnings]
    assert report.execution.decision_id == holder(core)
    assert UNDER_REVIEW == core.state.decisions[holder(core)].phase
    core.prove()


def test_params_that_are_too_large_call_a_person() -> None:
    """The size of params has a limit of its own, because an expression may repeat parts of a report."""
    core = Core(
        bus_with_compensation({"action": "elsewhere.undo", "params": dict.fromkeys("abcdefghij", "execution.result")}, declared=False)
    )
    report_partial(core, ["x" * 60_000])
    decision = core.events[-1].decision
    assert reason_codes.COMPENSATION_INVALID == decision.reason_code
    assert str(COMPENSATION_PARAMS_BYTES_MAX) in decision.warnings[0].message


@pytest.mark.parametrize("names", [["alpha", "beta", "gamma", "delta"], ["delta", "gamma", "beta", "alpha"]])
def test_of_several_invalid_values_the_first_is_named(names: list[str]) -> None:
    """A warning names the first of several values that are nested too deep, by their names: a replay reads them in another order."""
    core = Core(bus_with_compensation({"action": "elsewhere.undo", "params": {"all": "execution.result"}}, declared=False))
    deep: object = 1.0
    for _ in range(15):
        deep = {"k": deep}
    attempt = core.start(core.approve())
    core.report(attempt, PARTIAL, result=python_to_value(dict.fromkeys(names, deep)).struct_value)
    decision = core.events[-1].decision
    assert reason_codes.COMPENSATION_INVALID == decision.reason_code
    assert decision.warnings[0].message.startswith("all.alpha.k")
    core.prove()


def test_without_a_compensation_a_person_is_called() -> None:
    """Without a declared compensation, PARTIAL requests a human review with PARTIAL_EXECUTION."""
    core = Core(document())
    report_partial(core)
    assert (REVIEW, reason_codes.PARTIAL_EXECUTION) == (core.events[-1].decision.outcome, core.events[-1].decision.reason_code)


# The life of a compensation


def test_success_frees_the_key_when_all_facts_are_in() -> None:
    """The key is free once the facts of both executions are recorded, in either order."""
    for compensated_first in (True, False):
        core = Core(bus_with_compensation())
        report = report_partial(core)
        compensation_report = core.report(core.start(compensation_of(core, report)), SUCCESS)
        first, last = (report, compensation_report) if compensated_first else (compensation_report, report)
        core.derive(first)
        assert holder(core)
        decision = core.decide([core.fact("order.status", "delivered")], trace_id="t2")
        assert reason_codes.CONFLICTING_DECISION == decision.reason_code
        core.derive(last)
        assert ("", {}) == (holder(core), core.state.decisions)
        core.prove()


def test_facts_of_the_compensated_decision_do_not_free_the_key() -> None:
    """Derived facts of the compensated decision may arrive while the compensation waits or runs; the key stays held throughout."""
    core = Core(bus_with_compensation())
    report = report_partial(core)
    compensation = compensation_of(core, report)
    core.derive(report)
    assert [compensation.event_id] == list(core.state.decisions)
    attempt = core.start(compensation)
    assert EXECUTING == core.state.decisions[compensation.event_id].phase
    assert compensation.event_id == holder(core)
    core.derive(core.report(attempt, SUCCESS))
    assert ("", {}, ()) == (holder(core), core.state.decisions, tuple(core.state.decisions_by_subject))
    core.prove()


def test_facts_of_a_compensation_are_derived() -> None:
    """A compensation's report derives its own status fact and the derivations of its action."""
    derivations = [
        {"id": "undone", "version": 4, "on": {"action": UNDO, "status": "SUCCESS"}, "key": "order.reversed", "value": "params.amount"},
    ]
    text = json.dumps({**json.loads(bus_with_compensation()), "derivations": derivations})
    core = Core(text)
    report = report_partial(core)
    compensation_report = core.report(core.start(compensation_of(core, report)), SUCCESS)
    facts = [(fact.fact.key, fact.fact.value) for fact in core.derive(compensation_report)]
    assert [(f"execution.{UNDO}.status", python_to_value("SUCCESS")), ("order.reversed", python_to_value(20))] == facts
    core.prove()


def test_changed_facts_do_not_stop_a_compensation() -> None:
    """A compensation pins nothing: stale, changed or retracted facts prevent no attempt at it."""
    core = Core(bus_with_compensation(takeover_ms=3_600_001))
    compensation = compensation_of(core, report_partial(core))
    core.fact("order.status", "cancelled")
    core.pass_time(3_600_000)
    core.report(core.start(compensation), FAILED)
    core.fact("order.status", None)
    core.derive(core.report(core.start(compensation), SUCCESS))
    core.prove()


def test_conflict_with_a_compensation_has_no_retry_delay() -> None:
    """A conflict with a compensation has no retry delay, because its timer does not free the key."""
    core = Core(bus_with_compensation())
    report_partial(core)
    decision = core.decide([core.fact("order.status", "delivered")], trace_id="t2")
    assert (reason_codes.CONFLICTING_DECISION, 0) == (decision.reason_code, decision.retry_hint.retry_after_ms)


@pytest.mark.parametrize(
    ("reports", "reason_code"),
    [
        ([PARTIAL], reason_codes.COMPENSATION_FAILED),
        ([ABORTED], reason_codes.COMPENSATION_FAILED),
        ([FAILED, TIMEOUT, FAILED], reason_codes.COMPENSATION_FAILED),
    ],
)
def test_failed_compensation_calls_a_person(reports: list[Any], reason_code: str) -> None:
    """A compensation with a final status other than SUCCESS requests a human review, and the key stays held."""
    core = Core(bus_with_compensation())
    report = report_partial(core)
    core.derive(report)
    compensation = compensation_of(core, report)
    for status in reports:
        core.derive(core.report(core.start(compensation), status, result=python_to_value({"refunded": 1}).struct_value))
    reviews = core.events_named("HumanReviewRequested")
    assert [(reason_code, compensation.event_id)] == [(one.decision.reason_code, one.decision.previous_decision_id) for one in reviews]
    assert compensation.event_id == holder(core)
    assert 2 == len(core.events_named("DecisionApproved"))
    core.prove()


@pytest.mark.parametrize(("attempts", "waited_ms", "reason_code"), [(1, 7_000, "EXECUTION_ABANDONED"), (3, 0, "ATTEMPTS_EXHAUSTED")])
def test_a_lapsed_lease_calls_a_person(attempts: int, waited_ms: int, reason_code: str) -> None:
    """A lapsed lease of a compensation opens a review as for any execution."""
    core = Core(bus_with_compensation())
    compensation = compensation_of(core, report_partial(core))
    for number in range(attempts):
        core.start(compensation, (EXECUTOR, OTHER_EXECUTOR)[number % 2], lease_ms=1_000)
        core.pass_time(1_000)
    if waited_ms:
        assert [] == core.tick(waited_ms - 1)
    assert [reason_code] == [event.decision.reason_code for event in core.tick(1 if waited_ms else 0)]
    core.prove()


def test_compensation_cannot_be_revoked() -> None:
    """Revoking a compensation is refused with the reason."""
    core = Core(bus_with_compensation())
    report = report_partial(core)
    fault = core.fault(core.revocation(compensation_of(core, report)))
    assert (WRONG_STATE, True) == (fault.reason, report.execution.decision_id in fault.message)


def test_compensated_decision_has_ended() -> None:
    """A compensated decision can neither be begun nor revoked."""
    core = Core(bus_with_compensation())
    report = report_partial(core)
    approval = core.by_id[report.execution.decision_id]
    assert reason_codes.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    assert WRONG_STATE == core.fault(core.revocation(approval)).reason
    core.derive(report)
    assert reason_codes.ALREADY_FINISHED == core.refuse_start(approval).reason_code


# Late reports


def late_and_compensated(core: Core) -> tuple[Envelope, Envelope, Envelope]:
    """Let an attempt lapse, report the next one as half done, then the first; return compensation, second report and review."""
    approval = core.approve()
    first = core.start(approval, lease_ms=1_000)
    core.pass_time(1_000)
    report = core.report(
        core.start(approval, OTHER_EXECUTOR), PARTIAL, OTHER_EXECUTOR, result=python_to_value({"refunded": 20}).struct_value
    )
    compensation = compensation_of(core, report)
    review = core.events[-1]
    assert (reason_codes.EXECUTION_ABANDONED, REVIEW) == (review.decision.reason_code, review.decision.outcome)
    core.report(first, SUCCESS)
    assert [review.event_id] == list(core.state.reviews)
    return compensation, report, review


def test_late_report_during_a_compensation() -> None:
    """A late report on the compensated decision requests a human review; the compensation goes on and holds the key until both are done."""
    core = Core(bus_with_compensation())
    compensation, report, review = late_and_compensated(core)
    core.derive(report)
    core.derive(core.report(core.start(compensation), SUCCESS))
    assert compensation.event_id == holder(core)
    record = core.resolve(review, REVIEW_VERDICT_APPROVE)
    assert (REVIEW, reason_codes.CONFLICTING_DECISION) == (record.decision.outcome, record.decision.reason_code)
    core.resolve(review, REVIEW_VERDICT_REJECT)
    assert ("", {}) == (holder(core), core.state.decisions)
    core.prove()


def test_rejecting_a_late_report_leaves_the_key_with_the_compensation() -> None:
    """Resolving the review of the compensated decision does not free the key that the compensation holds."""
    core = Core(bus_with_compensation())
    compensation, report, review = late_and_compensated(core)
    core.resolve(review, REVIEW_VERDICT_REJECT)
    assert compensation.event_id == holder(core)
    core.derive(report)
    core.derive(core.report(core.start(compensation), SUCCESS))
    assert ("", {}) == (holder(core), core.state.decisions)
    core.prove()


def test_a_late_report_of_a_compensation() -> None:
    """A late report of a superseded attempt at the compensation requests a human review, as for any execution."""
    core = Core(bus_with_compensation())
    compensation = compensation_of(core, report_partial(core))
    first = core.start(compensation, lease_ms=1_000)
    core.pass_time(1_000)
    core.start(compensation, OTHER_EXECUTOR)
    core.report(first, PARTIAL)
    assert (reason_codes.LATE_EXECUTION_REPORT, UNDO) == (core.events[-1].decision.reason_code, core.events[-1].decision.action_type)
    assert 1 == len(core.events_named("LateExecutionReport"))
    core.prove()


# Undoing and repeating


def test_report_is_undone() -> None:
    """Undoing a PARTIAL report restores the state, and handling it again records the same events."""
    core = Core(bus_with_compensation())
    attempt = core.start(core.approve())
    command = core.report_command(attempt, PARTIAL, result=python_to_value({"refunded": 20}).struct_value)
    before, mark = core.state.digest(), core.state.mark()
    first = handle(core.state, copy_command(command), References(), core.now_ms)
    events = [event.SerializeToString(deterministic=True) for event in first.envelopes]
    core.state.undo(mark)
    assert before == core.state.digest()
    second = handle(core.state, copy_command(command), References(), core.now_ms)
    assert events == [event.SerializeToString(deterministic=True) for event in second.envelopes]
    assert isinstance(second.answer, EventAnswer)
    assert "ExecutionPartiallySucceeded" == second.answer.envelope.event_name


def test_replay_finds_a_forged_compensation() -> None:
    """A replay finds a compensation whose params differ from those that the rule set's expressions give."""
    core = Core(bus_with_compensation())
    report_partial(core)
    core.events[-1].decision.params.fields["amount"].number_value = 21
    with pytest.raises(DivergedError) as failure:
        replay_log(BUS, rechain(BUS, core.events))
    assert ["decision.params.amount"] == [difference.path for difference in failure.value.divergence.differences]
    assert ACTION != core.events[-1].decision.action_type
