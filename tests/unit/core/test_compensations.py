"""Compensations: what was half done is made good in the same commit, or a person is called (seeds 002 §4.7.3, §7)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_REJECT
from gavel_rules import reasons
from gavel_rules.commands import Recorded, References
from gavel_rules.decider import handle
from gavel_rules.limits import COMPENSATION_PARAMS_BYTES_MAX
from gavel_rules.records import APPROVED, AWAITING_FACTS, EXECUTING, UNDER_REVIEW
from gavel_rules.replay import DivergedError
from gavel_rules.values import python_to_value, struct_to_dict

from tests.unit.core.driver import (
    ABORTED,
    ACTION,
    BUS,
    EXECUTOR,
    FAILED,
    OTHER_EXECUTOR,
    PARTIAL,
    RULES,
    SUBJECT,
    SUCCESS,
    TIMEOUT,
    Core,
    copied,
    document,
    rechained,
    replayed,
)

APPROVAL = decision_pb2.OUTCOME_APPROVED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
WRONG_STATE = error_pb2.ERROR_REASON_WRONG_STATE
UNDO = "refund.reverse"
COMPENSATION = {"action": UNDO, "params": {"amount": "execution.result.refunded", "steps": "execution.completed_steps"}}
TAKEOVER_MS = 7_000
UNDO_PART: dict[str, Any] = {
    "params": {
        "type": "object",
        "required": ["amount"],
        "additionalProperties": False,
        "properties": {"amount": {"type": "number", "exclusiveMinimum": 0}, "steps": {"type": "array"}},
    },
    "retry": {"max_attempts": 3},
}
UNDO_RULE = {"id": "undo", "action": UNDO, "when": "true", "effect": "approve"}


def sagas(compensation: dict[str, Any] | None = None, *, declared: bool = True, takeover_ms: int = TAKEOVER_MS, **changes: Any) -> str:
    """The default rule set with a compensation, whose action it declares as well unless said otherwise."""
    undo = {**UNDO_PART, "retry": {**UNDO_PART["retry"], "human_takeover_after_ms": takeover_ms}}
    more: dict[str, Any] = {"more_actions": {UNDO: undo}, "rules": [*RULES, UNDO_RULE]} if declared else {}
    return document(compensation=compensation or COMPENSATION, **more, **changes)


def half_done(core: Core, refunded: object = 20, producer: Producer = EXECUTOR, **changes: Any) -> Envelope:
    """Approve a refund and report that it was half done; return the report."""
    result = python_to_value({"refunded": refunded}).struct_value
    return core.report(core.start(core.approve(**changes), producer), PARTIAL, producer, result=result, completed_steps=["one"])


def compensation_of(core: Core, report: Envelope) -> Envelope:
    """The compensation that was decided right behind a report."""
    event = core.by_id[report.event_id]
    decision = core.events[event.sequence_number]
    assert report.execution.decision_id == decision.decision.compensates_decision_id, decision
    return decision


def holder(core: Core) -> str:
    """Whose the conflict key of the default subject is."""
    return core.state.holds.get(SUBJECT, "")


# The decision


def test_the_decision() -> None:
    """PARTIAL is followed by an approval of the compensating action, which rests on no facts, never expires, and has the key."""
    core = Core(sagas())
    approval = core.approve()
    started = core.start(approval)
    before = len(core.events)
    report = core.report(started, PARTIAL, result=python_to_value({"refunded": 20}).struct_value, completed_steps=["one", "two"])
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
def test_whose_retry_policy(declared: bool, expected: int) -> None:
    """A compensation is retried as its own action is, where the rule set declares that, else as the action it makes good."""
    core = Core(sagas(declared=declared))
    assert expected == compensation_of(core, half_done(core)).decision.retry_policy.max_attempts


def test_the_rule_set_of_the_decision_counts() -> None:
    """Which compensation, is what the rule set said that approved, whatever is in force when the report comes."""
    core = Core(sagas())
    started = core.start(core.approve())
    core.activate(document(version=2))
    core.report(started, PARTIAL, result=python_to_value({"refunded": 20}).struct_value)
    assert UNDO == core.events[-1].decision.action_type
    core.prove()


def test_params_are_expressions() -> None:
    """Params come from the report and the compensated decision's params; nulls, lists and objects pass as they are."""
    params = {"all": "execution.result", "of": "params.amount * 2.0", "noted": "has(params.note)", "first": "execution.completed_steps[0]"}
    core = Core(sagas({"action": "elsewhere.undo", "params": params}, declared=False))
    decision = compensation_of(core, half_done(core, {"a": [1, None, {"b": True}]}, params={"amount": 30})).decision
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
def test_params_that_cannot_be_made_call_a_person(params: dict[str, str], refunded: object, warning: tuple[str, str]) -> None:
    """Where an expression has no value, or the params do not fit the declared schema, a person is called, with what is wrong."""
    core = Core(sagas({"action": UNDO, "params": params}))
    report = half_done(core, refunded)
    decision = core.events[-1].decision
    assert (REVIEW, reasons.COMPENSATION_INVALID) == (decision.outcome, decision.reason_code)
    assert [warning] == [(one.code, one.message) for one in decision.warnings]
    assert report.execution.decision_id == holder(core)
    assert UNDER_REVIEW == core.state.decisions[holder(core)].phase
    core.prove()


def test_params_that_are_too_large_call_a_person() -> None:
    """Params have a limit of their own: an expression may repeat what a report holds."""
    core = Core(sagas({"action": "elsewhere.undo", "params": dict.fromkeys("abcdefghij", "execution.result")}, declared=False))
    half_done(core, ["x" * 60_000])
    decision = core.events[-1].decision
    assert reasons.COMPENSATION_INVALID == decision.reason_code
    assert str(COMPENSATION_PARAMS_BYTES_MAX) in decision.warnings[0].message


def test_without_a_compensation_a_person_is_called() -> None:
    """Nothing declared: PARTIAL_EXECUTION, as ever."""
    core = Core(document())
    half_done(core)
    assert (REVIEW, reasons.PARTIAL_EXECUTION) == (core.events[-1].decision.outcome, core.events[-1].decision.reason_code)


# Its life


def test_success_frees_the_key_when_all_facts_are_in() -> None:
    """The key is free once the derived facts of both executions are in the log, in whichever order they come."""
    for compensated_first in (True, False):
        core = Core(sagas())
        report = half_done(core)
        undone = core.report(core.start(compensation_of(core, report)), SUCCESS)
        first, last = (report, undone) if compensated_first else (undone, report)
        core.derive(first)
        assert holder(core)
        decision = core.decide([core.fact("order.status", "delivered")], trace_id="t2")
        assert reasons.CONFLICTING_DECISION == decision.reason_code
        core.derive(last)
        assert ("", {}) == (holder(core), core.state.decisions)
        core.prove()


def test_facts_of_the_compensated_do_not_free_the_key() -> None:
    """While the compensation waits or runs, the facts of what it makes good come in and change nothing: there is no gap."""
    core = Core(sagas())
    report = half_done(core)
    compensation = compensation_of(core, report)
    core.derive(report)
    assert [compensation.event_id] == list(core.state.decisions)
    started = core.start(compensation)
    assert EXECUTING == core.state.decisions[compensation.event_id].phase
    assert compensation.event_id == holder(core)
    core.derive(core.report(started, SUCCESS))
    assert ("", {}, ()) == (holder(core), core.state.decisions, tuple(core.state.decisions_of_subject))
    core.prove()


def test_its_facts_are_derived() -> None:
    """The execution of a compensation has its own status fact, and the derivations of its action."""
    derivations = [
        {"id": "undone", "version": 4, "on": {"action": UNDO, "status": "SUCCESS"}, "key": "order.reversed", "value": "params.amount"},
    ]
    text = json.dumps({**json.loads(sagas()), "derivations": derivations})
    core = Core(text)
    report = half_done(core)
    undone = core.report(core.start(compensation_of(core, report)), SUCCESS)
    facts = [(fact.fact.key, fact.fact.value) for fact in core.derive(undone)]
    assert [(f"execution.{UNDO}.status", python_to_value("SUCCESS")), ("order.reversed", python_to_value(20))] == facts
    core.prove()


def test_changed_facts_do_not_stop_it() -> None:
    """A compensation pins nothing: facts that are too old, changed or gone do not keep it from being begun, again and again."""
    core = Core(sagas(takeover_ms=3_600_001))
    compensation = compensation_of(core, half_done(core))
    core.fact("order.status", "cancelled")
    core.pass_time(3_600_000)
    core.report(core.start(compensation), FAILED)
    core.fact("order.status", None)
    core.derive(core.report(core.start(compensation), SUCCESS))
    core.prove()


def abandoned_compensation(core: Core) -> tuple[Envelope, Envelope, Envelope]:
    """A refund half done whose compensation nobody begins: the report, the compensation, its review."""
    report = half_done(core)
    core.derive(report)
    (review,) = core.tick(TAKEOVER_MS)
    return report, compensation_of(core, report), review


def test_a_person_is_called_if_nobody_begins_it() -> None:
    """So long after it was decided a compensation that nobody began calls a person, once; the key stays held and nobody may begin it."""
    core = Core(sagas())
    report = half_done(core)
    core.derive(report)
    compensation = compensation_of(core, report)
    assert [] == core.tick(TAKEOVER_MS - 1)
    (review,) = core.tick(1)
    assert (REVIEW, reasons.EXECUTION_ABANDONED, compensation.event_id, compensation.event_id) == (
        review.decision.outcome,
        review.decision.reason_code,
        review.decision.previous_decision_id,
        review.causation_id,
    )
    assert [] == core.tick(10 * 24 * 3_600_000)
    assert (compensation.event_id, UNDER_REVIEW) == (holder(core), core.state.decisions[compensation.event_id].phase)
    assert reasons.UNDER_REVIEW == core.refuse_start(compensation).reason_code
    core.prove()


def test_who_begins_it_in_time_is_not_interrupted() -> None:
    """The last millisecond is in time; from then on leases count, and what is retried has the time that any execution has."""
    core = Core(sagas())
    compensation = compensation_of(core, half_done(core))
    assert [] == core.tick(TAKEOVER_MS - 1)
    started = core.start(compensation, lease_ms=1_000)
    assert [] == core.tick(999)
    core.report(started, FAILED)
    assert [] == core.tick(TAKEOVER_MS)
    assert [reasons.EXECUTION_ABANDONED] == [event.decision.reason_code for event in core.tick(1)]
    core.prove()


def test_how_long_a_key_is_held_by_it_is_not_known() -> None:
    """Nobody is told to come back when a person will be called: the key is not free then."""
    core = Core(sagas())
    half_done(core)
    decision = core.decide([core.fact("order.status", "delivered")], trace_id="t2")
    assert (reasons.CONFLICTING_DECISION, 0) == (decision.reason_code, decision.retry_hint.retry_after_ms)


def test_it_cannot_be_revoked_while_a_person_looks() -> None:
    """The refusal names the way to give it up, which is its review."""
    core = Core(sagas())
    _, compensation, review = abandoned_compensation(core)
    fault = core.fault(core.revoking(compensation))
    assert (WRONG_STATE, True) == (fault.reason, f"reject review {review.event_id}" in fault.message)


def test_a_person_grants_what_nobody_began() -> None:
    """Approving that review allows one attempt, the first; its success frees the key."""
    core = Core(sagas())
    _, compensation, review = abandoned_compensation(core)
    started = core.start(core.resolve(review, REVIEW_VERDICT_APPROVE))
    assert (compensation.event_id, 1) == (started.execution.decision_id, started.execution.attempt)
    core.derive(core.report(started, SUCCESS))
    assert ("", {}) == (holder(core), core.state.decisions)
    core.prove()


def test_a_person_gives_up_what_nobody_began() -> None:
    """Rejecting that review ends the compensation and frees the key."""
    core = Core(sagas())
    _, compensation, review = abandoned_compensation(core)
    ended = core.resolve(review, REVIEW_VERDICT_REJECT)
    assert (decision_pb2.OUTCOME_REVOKED, "", {}) == (ended.decision.outcome, holder(core), core.state.decisions)
    assert reasons.REVOKED == core.refuse_start(compensation).reason_code
    core.prove()


@pytest.mark.parametrize(
    ("reports", "reason_code"),
    [
        ([PARTIAL], reasons.COMPENSATION_FAILED),
        ([ABORTED], reasons.COMPENSATION_FAILED),
        ([FAILED, TIMEOUT, FAILED], reasons.COMPENSATION_FAILED),
    ],
)
def test_its_failure_calls_a_person(reports: list[Any], reason_code: str) -> None:
    """Whatever is final and no success calls a person, with the key held: it is never compensated itself, nor given up in silence."""
    core = Core(sagas())
    report = half_done(core)
    core.derive(report)
    compensation = compensation_of(core, report)
    for status in reports:
        core.derive(core.report(core.start(compensation), status, result=python_to_value({"refunded": 1}).struct_value))
    reviews = core.named("HumanReviewRequested")
    assert [(reason_code, compensation.event_id)] == [(one.decision.reason_code, one.decision.previous_decision_id) for one in reviews]
    assert compensation.event_id == holder(core)
    assert 2 == len(core.named("DecisionApproved"))
    core.prove()


@pytest.mark.parametrize(("attempts", "waited_ms", "reason_code"), [(1, 7_000, "EXECUTION_ABANDONED"), (3, 0, "ATTEMPTS_EXHAUSTED")])
def test_a_lapsed_lease_calls_a_person(attempts: int, waited_ms: int, reason_code: str) -> None:
    """Leases, takeovers and their limits are those of any execution."""
    core = Core(sagas())
    compensation = compensation_of(core, half_done(core))
    for number in range(attempts):
        core.start(compensation, (EXECUTOR, OTHER_EXECUTOR)[number % 2], lease_ms=1_000)
        core.pass_time(1_000)
    if waited_ms:
        assert [] == core.tick(waited_ms - 1)
    assert [reason_code] == [event.decision.reason_code for event in core.tick(1 if waited_ms else 0)]
    core.prove()


def test_it_cannot_be_revoked() -> None:
    """A compensation ends only by its execution: revoking it is refused with the reason."""
    core = Core(sagas())
    report = half_done(core)
    fault = core.fault(core.revoking(compensation_of(core, report)))
    assert (WRONG_STATE, True) == (fault.reason, report.execution.decision_id in fault.message)


def test_the_compensated_is_finished() -> None:
    """What was half done is not begun again, nor revoked."""
    core = Core(sagas())
    report = half_done(core)
    approval = core.by_id[report.execution.decision_id]
    assert reasons.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    assert WRONG_STATE == core.fault(core.revoking(approval)).reason
    core.derive(report)
    assert reasons.ALREADY_FINISHED == core.refuse_start(approval).reason_code


# People


def failed_compensation(core: Core) -> tuple[Envelope, Envelope, Envelope]:
    """A refund half done whose compensation was half done as well: the first report, the compensation, its review."""
    report = half_done(core)
    compensation = compensation_of(core, report)
    core.report(core.start(compensation), PARTIAL)
    return report, compensation, core.events[-1]


def test_a_person_grants_one_more_attempt() -> None:
    """Approving the review of a compensation allows one more attempt of it, whatever the facts say; it frees the key in the end."""
    core = Core(sagas())
    report, compensation, review = failed_compensation(core)
    core.derive(report)
    core.fact("order.status", "cancelled")
    grant = core.resolve(review, REVIEW_VERDICT_APPROVE)
    assert (APPROVAL, UNDO, "") == (grant.decision.outcome, grant.decision.action_type, grant.decision.compensates_decision_id)
    assert compensation.event_id == holder(core)
    started = core.start(grant)
    assert (compensation.event_id, 2) == (started.execution.decision_id, started.execution.attempt)
    core.derive(core.report(started, SUCCESS))
    for fact in [event for event in core.events if event.event_name == "ExecutionPartiallySucceeded"][1:]:
        core.derive(fact)
    assert ("", {}) == (holder(core), core.state.decisions)
    core.prove()


def test_a_granted_attempt_that_fails_calls_again() -> None:
    """One attempt more is one: it is not retried, and not compensated."""
    core = Core(sagas())
    _, _, review = failed_compensation(core)
    started = core.start(core.resolve(review, REVIEW_VERDICT_APPROVE))
    core.report(started, FAILED)
    assert 2 == len([one for one in core.named("HumanReviewRequested") if one.decision.reason_code == reasons.COMPENSATION_FAILED])
    core.prove()


def test_a_grant_that_nobody_takes_calls_again() -> None:
    """A granted attempt that is not begun in time goes back to a person, as any."""
    core = Core(sagas())
    _, _, review = failed_compensation(core)
    core.resolve(review, REVIEW_VERDICT_APPROVE)
    assert [reasons.EXECUTION_ABANDONED] == [event.decision.reason_code for event in core.tick(7_000)]
    core.prove()


def test_a_person_gives_it_up() -> None:
    """Rejecting the review of a compensation ends it and frees the key; facts that still come are taken."""
    core = Core(sagas())
    report, compensation, review = failed_compensation(core)
    core.resolve(review, REVIEW_VERDICT_REJECT)
    assert "" == holder(core)
    other = core.approve(trace_id="t2")
    core.derive(report)
    assert other.event_id == holder(core)
    core.derive([event for event in core.events if event.event_name == "ExecutionPartiallySucceeded"][1])
    assert [other.event_id] == list(core.state.decisions)
    assert reasons.REVOKED == core.refuse_start(compensation).reason_code
    core.prove()


# Late reports


def late_and_compensated(core: Core) -> tuple[Envelope, Envelope, Envelope]:
    """A first attempt lapses, a second one is half done, then the first reports: the compensation, the report, the review of the first."""
    approval = core.approve()
    first = core.start(approval, lease_ms=1_000)
    core.pass_time(1_000)
    report = core.report(
        core.start(approval, OTHER_EXECUTOR), PARTIAL, OTHER_EXECUTOR, result=python_to_value({"refunded": 20}).struct_value
    )
    compensation = compensation_of(core, report)
    review = core.events[-1]
    assert (reasons.EXECUTION_ABANDONED, REVIEW) == (review.decision.reason_code, review.decision.outcome)
    core.report(first, SUCCESS)
    assert [review.event_id] == list(core.state.reviews)
    return compensation, report, review


def test_a_late_report_beside_a_compensation() -> None:
    """A superseded attempt of what is being compensated calls a person; the compensation goes on, and has the key until both are done."""
    core = Core(sagas())
    compensation, report, review = late_and_compensated(core)
    core.derive(report)
    core.derive(core.report(core.start(compensation), SUCCESS))
    assert compensation.event_id == holder(core)
    kept = core.resolve(review, REVIEW_VERDICT_APPROVE)
    assert (REVIEW, reasons.CONFLICTING_DECISION) == (kept.decision.outcome, kept.decision.reason_code)
    core.resolve(review, REVIEW_VERDICT_REJECT)
    assert ("", {}) == (holder(core), core.state.decisions)
    core.prove()


def test_rejecting_a_late_report_leaves_the_key_with_the_compensation() -> None:
    """The review of what is being compensated does not free the key that the compensation has."""
    core = Core(sagas())
    compensation, report, review = late_and_compensated(core)
    core.resolve(review, REVIEW_VERDICT_REJECT)
    assert compensation.event_id == holder(core)
    core.derive(report)
    core.derive(core.report(core.start(compensation), SUCCESS))
    assert ("", {}) == (holder(core), core.state.decisions)
    core.prove()


def test_a_late_report_of_a_compensation() -> None:
    """A superseded attempt of the compensation that reports after all calls a person like any other."""
    core = Core(sagas())
    compensation = compensation_of(core, half_done(core))
    first = core.start(compensation, lease_ms=1_000)
    core.pass_time(1_000)
    core.start(compensation, OTHER_EXECUTOR)
    core.report(first, PARTIAL)
    assert (reasons.LATE_EXECUTION_REPORT, UNDO) == (core.events[-1].decision.reason_code, core.events[-1].decision.action_type)
    assert 1 == len(core.named("LateExecutionReport"))
    core.prove()


# Undoing and repeating


def test_undoing_leaves_no_trace() -> None:
    """A report that is decided and taken back leaves the state as it was; decided again it makes the same events."""
    core = Core(sagas())
    started = core.start(core.approve())
    command = core.reporting(started, PARTIAL, result=python_to_value({"refunded": 20}).struct_value)
    before, mark = core.state.digest(), core.state.mark()
    first = handle(core.state, copied(command), References(), core.now_ms)
    events = [event.SerializeToString(deterministic=True) for event in first.events]
    core.state.undo(mark)
    assert before == core.state.digest()
    again = handle(core.state, copied(command), References(), core.now_ms)
    assert events == [event.SerializeToString(deterministic=True) for event in again.events]
    assert isinstance(again.answer, Recorded)
    assert "ExecutionPartiallySucceeded" == again.answer.envelope.event_name


def test_replay_tells_a_forged_compensation() -> None:
    """A compensation with other params than the rule set's expressions give does not follow from the log."""
    core = Core(sagas())
    half_done(core)
    core.events[-1].decision.params.fields["amount"].number_value = 21
    with pytest.raises(DivergedError) as caught:
        replayed(BUS, rechained(BUS, core.events))
    assert ["decision.params.amount"] == [difference.path for difference in caught.value.divergence.differences]
    assert ACTION != core.events[-1].decision.action_type
