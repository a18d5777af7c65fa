"""Attempts without a report: decisions that end before they report, and late reports (constitution §7.1)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.commands import EventAnswer, PublishEvent, References
from gavel_rules.decider import handle
from gavel_rules.limits import LATE_REPORT_MS_MAX
from gavel_rules.state.records import AWAITING_FACTS, UNDER_REVIEW
from gavel_server.bus.idempotency.same_request import is_same_request

from tests.support.driver import (
    ABORTED,
    EXECUTOR,
    FAILED,
    OTHER_EXECUTOR,
    PARTIAL,
    SUBJECT,
    SUCCESS,
    Core,
    copy_command,
    document,
    fact_envelope,
)

REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
REVOKED = decision_pb2.OUTCOME_REVOKED
WRONG_STATE = error_pb2.ERROR_REASON_WRONG_STATE
APPROVE = fact_pb2.REVIEW_VERDICT_APPROVE
REJECT = fact_pb2.REVIEW_VERDICT_REJECT
TAKEOVER_MS = 5_000


def patient(attempts: int = 2, **changes: Any) -> Core:
    """Return a bus whose action allows `attempts` attempts."""
    return Core(document(retry={"max_attempts": attempts, "human_takeover_after_ms": TAKEOVER_MS}, **changes))


def take_over(core: Core, subject: str = SUBJECT, **changes: Any) -> tuple[Envelope, Envelope, Envelope]:
    """Approve, start, let the lease lapse, take over; return the approval and both STARTED."""
    approval = core.approve(subject, **changes)
    first = core.start(approval, lease_ms=1_000)
    core.pass_time(1_000)
    return approval, first, core.start(approval, OTHER_EXECUTOR)


def finish_decision(core: Core) -> tuple[Envelope, Envelope]:
    """Let a second executor finish a decision, facts included; return the approval and STARTED of the superseded attempt."""
    approval, first, second = take_over(core)
    core.derive(core.report(second, SUCCESS, OTHER_EXECUTOR))
    assert {} == core.state.decisions
    return approval, first


def last_request(core: Core) -> tuple[str, str]:
    """Return the reason code and the decision of the log's last event, which requests a human review."""
    event = core.events[-1]
    assert REVIEW == event.decision.outcome, event
    return event.decision.reason_code, event.decision.previous_decision_id


# After the end


def test_report_after_the_end_is_recorded_and_calls_a_person() -> None:
    """A late report is recorded whole and requests a human review, and the key is held again during the review."""
    core = patient()
    approval, first = finish_decision(core)
    assert {} == core.state.conflict_keys
    record = core.report(first, SUCCESS, completed_steps=["paid"])
    late_execution = record.agent_diagnostic.late_execution
    assert ("LateExecutionReport", approval.event_id) == (record.event_name, record.causation_id)
    assert (1, SUCCESS, ["paid"], EXECUTOR.id) == (
        late_execution.execution.attempt,
        late_execution.execution.status,
        list(late_execution.execution.completed_steps),
        late_execution.executor_id,
    )
    assert (reason_codes.LATE_EXECUTION_REPORT, approval.event_id) == last_request(core)
    assert {SUBJECT: approval.event_id} == core.state.conflict_keys
    assert UNDER_REVIEW == core.state.decisions[approval.event_id].phase
    rival = core.decide([core.fact("order.status", "delivered")], trace_id="trace-2")
    assert (reason_codes.CONFLICTING_DECISION, [approval.decision.proposal_id]) == (
        rival.reason_code,
        list(rival.conflict_with_proposal_ids),
    )
    assert reason_codes.UNDER_REVIEW == core.refuse_start(approval).reason_code
    core.prove()


def test_successful_decision_is_not_granted_again() -> None:
    """After a success a person cannot grant another attempt; rejecting the review closes it."""
    core = patient()
    approval, first = finish_decision(core)
    core.report(first, SUCCESS)
    review = core.events[-1]
    fault = core.fault(core.resolution(review, APPROVE))
    assert WRONG_STATE == fault.reason
    assert "has been carried out" in fault.message
    closed = core.resolve(review, REJECT)
    assert (REVOKED, review.event_id) == (closed.decision.outcome, closed.decision.previous_decision_id)
    assert ({}, {}, {}, {}) == (core.state.decisions, core.state.conflict_keys, core.state.reviews, core.state.ended_decisions)
    assert reason_codes.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    core.approve(trace_id="trace-2")
    core.prove()


def test_decision_that_awaits_facts_is_not_granted_again() -> None:
    """The same holds if the facts of the success are not recorded yet: no further attempt, and the facts are accepted."""
    core = patient()
    approval, first, second = take_over(core)
    report = core.report(second, SUCCESS, OTHER_EXECUTOR)
    core.report(first, SUCCESS)
    review = core.events[-1]
    assert WRONG_STATE == core.fault(core.resolution(review, APPROVE)).reason
    core.resolve(review, REJECT)
    assert (AWAITING_FACTS, {}) == (core.state.decisions[approval.event_id].phase, core.state.conflict_keys)
    assert reason_codes.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    core.derive(report)
    assert {} == core.state.decisions
    core.prove()


def test_late_report_leaves_the_key_of_another_decision() -> None:
    """If another decision holds the key by then, it keeps the key; the review is open beside it."""
    core = patient()
    approval, first = finish_decision(core)
    rival = core.approve(trace_id="trace-2")
    core.report(first, SUCCESS)
    review = core.events[-1]
    assert ({SUBJECT: rival.event_id}, [review.event_id]) == (core.state.conflict_keys, list(core.state.reviews))
    core.derive(core.report(core.start(rival), SUCCESS))
    assert {} == core.state.conflict_keys
    core.resolve(review, REJECT)
    assert {} == core.state.decisions
    assert reason_codes.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    core.prove()


def test_mismatched_report_after_the_end_is_refused() -> None:
    """A report by another executor, of an unknown or reported attempt, or of another subject is refused as before the end."""
    core = patient()
    _, first = finish_decision(core)
    assert error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED == core.fault(core.report_command(first, SUCCESS, OTHER_EXECUTOR)).reason
    second = next(event for event in core.events_named("ExecutionStarted") if event.execution.attempt == 2)
    assert "has been reported" in core.fault(core.report_command(second, SUCCESS, OTHER_EXECUTOR)).message
    command = core.report_command(first, SUCCESS)
    command.envelope.subject = "order/2"
    assert ["envelope.subject"] == [field for field, _ in core.fault(command).violations]
    assert WRONG_STATE == core.fault(core.renewal(first)).reason


def test_second_late_report_is_refused() -> None:
    """A second late report of an attempt is refused."""
    core = patient()
    _, first = finish_decision(core)
    core.report(first, FAILED)
    assert "has been reported" in core.fault(core.report_command(first, SUCCESS)).message
    core.resolve(core.events[-1], REJECT)
    assert "its execution is over" in core.fault(core.report_command(first, SUCCESS)).message
    core.prove()


@pytest.mark.parametrize(("waited_ms", "heard"), [(LATE_REPORT_MS_MAX, True), (LATE_REPORT_MS_MAX + 1, False)])
@pytest.mark.parametrize("busy", [True, False])
def test_late_report_is_accepted_for_a_day(waited_ms: int, heard: bool, busy: bool) -> None:
    """A late report is accepted for a day after the end, to the millisecond, whatever is recorded meanwhile."""
    core = patient()
    _, first = finish_decision(core)
    core.pass_time(waited_ms)
    if busy:
        core.fact("k.note", 1)
    command = core.report_command(first, SUCCESS)
    if heard:
        assert isinstance(core.run(command), EventAnswer)
        assert reason_codes.LATE_EXECUTION_REPORT == core.events[-1].decision.reason_code
    else:
        assert (WRONG_STATE, True) == ((fault := core.fault(command)).reason, "its execution is over" in fault.message)
    core.prove()


def test_ended_decision_is_forgotten_after_a_day() -> None:
    """A decision whose attempt never reports is removed from the state after a day, with its grants."""
    core = patient(1)
    approval = core.approve()
    core.start(approval, lease_ms=1_000)
    core.tick(1_000)
    grant = core.resolve(core.events[-1], APPROVE)
    core.derive(core.report(core.start(grant), SUCCESS))
    assert ([approval.event_id], {grant.event_id: approval.event_id}) == (list(core.state.ended_decisions), core.state.grants)
    core.pass_time(LATE_REPORT_MS_MAX + 1)
    core.fact("k.note", 1)
    assert ({}, {}) == (core.state.ended_decisions, core.state.grants)
    core.prove()


def test_every_attempt_may_report_late() -> None:
    """Of several superseded attempts, the second to report is recorded during the review of the first, or requests a human review again."""
    core = patient(4)
    approval = core.approve()
    attempts = []
    for _ in range(3):
        attempts.append(core.start(approval, lease_ms=1_000))
        core.pass_time(1_000)
    core.derive(core.report(core.start(approval, OTHER_EXECUTOR), SUCCESS, OTHER_EXECUTOR))
    core.report(attempts[2], SUCCESS)
    review = core.events[-1]
    core.report(attempts[0], SUCCESS)
    assert [review.event_id] == list(core.state.reviews)
    core.resolve(review, REJECT)
    assert [approval.event_id] == list(core.state.ended_decisions)
    core.report(attempts[1], SUCCESS)
    assert (reason_codes.LATE_EXECUTION_REPORT, approval.event_id) == last_request(core)
    core.resolve(core.events[-1], REJECT)
    assert ({}, {}) == (core.state.decisions, core.state.ended_decisions)
    assert reason_codes.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    core.prove()


def test_a_report_under_the_id_of_a_grant() -> None:
    """An attempt begun under a grant's id may report under it, even after the end and later grants; the log has the approval's id."""
    core = patient(1)
    approval = core.approve()
    core.start(approval, lease_ms=1_000)
    core.tick(1_000)
    grant = core.resolve(core.events[-1], APPROVE)
    superseded_attempt = core.start(grant, lease_ms=1_000)
    core.tick(1_000)
    other = core.resolve(core.events[-1], APPROVE)
    core.derive(core.report(core.start(other), SUCCESS))
    command = core.report_command(superseded_attempt, SUCCESS)
    command.envelope.execution.decision_id = grant.event_id
    answer = core.run(copy_command(command))
    assert isinstance(answer, EventAnswer), answer
    assert approval.event_id == answer.envelope.agent_diagnostic.late_execution.execution.decision_id
    assert is_same_request(answer.envelope, command.envelope)
    assert (reason_codes.LATE_EXECUTION_REPORT, approval.event_id) == last_request(core)
    core.prove()


def test_a_report_of_what_a_person_has_ended() -> None:
    """A late report of an execution that a person ended calls them again; they can only close the review."""
    core = patient(1)
    approval = core.approve()
    attempt = core.start(approval, lease_ms=1_000)
    core.tick(1_000)
    core.resolve(core.events[-1], REJECT)
    rival = core.approve(trace_id="trace-2")
    core.report(attempt, SUCCESS)
    assert (reason_codes.LATE_EXECUTION_REPORT, approval.event_id) == last_request(core)
    review = core.events[-1]
    fault = core.fault(core.resolution(review, APPROVE))
    assert (WRONG_STATE, True) == (fault.reason, "has been revoked" in fault.message)
    closed = core.resolve(review, REJECT)
    assert (REVOKED, {SUBJECT: rival.event_id}) == (closed.decision.outcome, core.state.conflict_keys)
    assert reason_codes.REVOKED == core.refuse_start(approval).reason_code
    core.prove()


def test_late_report_is_undone() -> None:
    """Undoing a late report restores the state, and handling it again records the same events."""
    core = patient()
    _, first = finish_decision(core)
    command = core.report_command(first, SUCCESS)
    before, mark = core.state.digest(), core.state.mark()
    events = [
        event.SerializeToString(deterministic=True)
        for event in handle(core.state, copy_command(command), References(), core.now_ms).envelopes
    ]
    assert before != core.state.digest()
    core.state.undo(mark)
    assert before == core.state.digest()
    mark = core.state.mark()
    second = handle(core.state, copy_command(command), References(), core.now_ms)
    assert events == [event.SerializeToString(deterministic=True) for event in second.envelopes]
    core.state.undo(mark)
    assert before == core.state.digest()


def test_removal_of_an_ended_decision_is_undone() -> None:
    """The removal of an ended decision is undone with the event that causes it."""
    core = patient()
    finish_decision(core)
    before, mark = core.state.digest(), core.state.mark()
    handle(core.state, PublishEvent(core.admit(fact_envelope("k.note", 1))), References(), core.now_ms + LATE_REPORT_MS_MAX + 1)
    assert {} == core.state.ended_decisions
    core.state.undo(mark)
    assert before == core.state.digest()


def test_granted_attempt_waits_for_a_running_lease() -> None:
    """An attempt granted while a lease runs can begin once the lease has lapsed."""
    core = patient()
    approval, first, second = take_over(core)
    core.report(first, SUCCESS)
    core.pass_time(400)
    grant = core.resolve(core.events[-1], APPROVE)
    refusals = [core.refuse_start(one) for one in (grant, approval)]
    assert [(reason_codes.ALREADY_RUNNING, 600)] * 2 == [(refusal.reason_code, refusal.retry_after_ms) for refusal in refusals]
    core.pass_time(600)
    assert 3 == core.start(grant).execution.attempt
    assert "LateExecutionReport" == core.report(second, SUCCESS, OTHER_EXECUTOR).event_name
    core.prove()


# Decisions that end without a report of every attempt


@pytest.mark.parametrize("granted", [False, True])
def test_aborted_beside_a_silent_attempt_calls_a_person(granted: bool) -> None:
    """ABORTED while another attempt has begun and never reported requests a human review, and the key stays held."""
    core = patient(1 if granted else 2)
    if granted:
        approval = core.approve()
        core.start(approval, lease_ms=1_000)
        core.tick(1_000)
        core.resolve(core.events[-1], APPROVE)
        second = core.start(approval, OTHER_EXECUTOR)
    else:
        approval, _, second = take_over(core)
    report = core.report(second, ABORTED, OTHER_EXECUTOR)
    assert (reason_codes.EXECUTION_ABANDONED, approval.event_id) == last_request(core)
    assert report.event_id == core.events[-1].causation_id
    core.derive(report)
    assert ({SUBJECT: approval.event_id}, UNDER_REVIEW) == (core.state.conflict_keys, core.state.decisions[approval.event_id].phase)
    core.prove()


def test_aborted_after_reported_attempts_frees_the_key() -> None:
    """ABORTED frees the key if all other attempts have reported, in time or late."""
    core = patient()
    approval = core.approve()
    core.derive(core.report(core.start(approval), FAILED))
    core.derive(core.report(core.start(approval), ABORTED))
    assert ({}, {}, {}) == (core.state.decisions, core.state.conflict_keys, core.state.ended_decisions)
    core.prove()


def test_success_ends_the_decision_despite_silent_attempts() -> None:
    """A success ends the decision without a review, even if an attempt has not reported."""
    core = patient()
    finish_decision(core)
    assert ([], {}) == (core.events_named("HumanReviewRequested"), core.state.conflict_keys)
    core.prove()


def test_partial_report_beside_a_silent_attempt() -> None:
    """PARTIAL beside a silent attempt leads to a compensation and requests a human review; the key is held until both are done."""
    core = patient(compensation={"action": "refund.reverse", "params": {}})
    approval, first, second = take_over(core)
    report = core.report(second, PARTIAL, OTHER_EXECUTOR)
    compensation = core.events[-2]
    assert approval.event_id == compensation.decision.compensates_decision_id
    assert (reason_codes.EXECUTION_ABANDONED, approval.event_id) == last_request(core)
    review = core.events[-1]
    core.derive(report)
    core.derive(core.report(core.start(compensation), SUCCESS))
    assert {SUBJECT: compensation.event_id} == core.state.conflict_keys
    core.report(first, SUCCESS)
    assert [review.event_id] == list(core.state.reviews)
    core.resolve(review, REJECT)
    assert ({}, {}) == (core.state.decisions, core.state.conflict_keys)
    core.prove()


def test_late_report_of_an_ended_decision_during_its_compensation() -> None:
    """A late report on a decision that a person ended calls them again; the key of its compensation is held until that review ends."""
    core = patient(compensation={"action": "refund.reverse", "params": {}})
    approval, first, second = take_over(core)
    core.derive(core.report(second, PARTIAL, OTHER_EXECUTOR))
    review, compensation = core.state.pending_reviews()[0].decision, core.state.pending_decisions()[1].decision
    core.resolve(review, REJECT)
    assert ([compensation.event_id], [approval.event_id]) == (list(core.state.decisions), list(core.state.ended_decisions))
    core.report(first, SUCCESS)
    assert (reason_codes.LATE_EXECUTION_REPORT, approval.event_id) == last_request(core)
    call = core.events[-1]
    core.derive(core.report(core.start(compensation), SUCCESS))
    assert {SUBJECT: compensation.event_id} == core.state.conflict_keys
    core.resolve(call, REJECT)
    assert ({}, {}) == (core.state.decisions, core.state.conflict_keys)
    core.prove()


def test_partial_report_without_a_compensation_calls_once() -> None:
    """If PARTIAL has requested a human review already, the silent attempt does not request another."""
    core = patient()
    _, _, second = take_over(core)
    core.report(second, PARTIAL, OTHER_EXECUTOR)
    assert [reason_codes.PARTIAL_EXECUTION] == [event.decision.reason_code for event in core.events_named("HumanReviewRequested")]
    core.prove()


def test_late_report_of_an_ended_compensation() -> None:
    """A late report of an ended compensation requests a human review, because it may have been carried out twice; the key is held."""
    core = patient(compensation={"action": "refund.reverse", "params": {}})
    report = core.report(core.start(core.approve()), PARTIAL)
    compensation = core.events[-1]
    first = core.start(compensation, lease_ms=1_000)
    core.pass_time(1_000)
    compensation_report = core.report(core.start(compensation, OTHER_EXECUTOR), SUCCESS, OTHER_EXECUTOR)
    core.derive(report)
    core.derive(compensation_report)
    assert {} == core.state.conflict_keys
    core.report(first, SUCCESS)
    assert (reason_codes.LATE_EXECUTION_REPORT, compensation.event_id) == last_request(core)
    assert {SUBJECT: compensation.event_id} == core.state.conflict_keys
    assert WRONG_STATE == core.fault(core.resolution(core.events[-1], APPROVE)).reason
    core.resolve(core.events[-1], REJECT)
    assert ({}, {}) == (core.state.decisions, core.state.conflict_keys)
    core.prove()
