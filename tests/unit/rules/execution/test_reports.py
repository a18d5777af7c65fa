"""Leases and reports: the holder of an attempt, its reports, and calls of a person (constitution §7.1)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2, execution_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionError
from gavel_rules import reason_codes
from gavel_rules.commands import EventAnswer, ReportExecution
from gavel_rules.events.ids import derived_event_id, execution_id_of
from gavel_rules.events.timestamps import timestamp
from gavel_rules.values import python_to_value

from tests.support.driver import (
    ABORTED,
    EXECUTOR,
    FAILED,
    OTHER_EXECUTOR,
    PARTIAL,
    START_MS,
    SUBJECT,
    SUCCESS,
    TIMEOUT,
    Core,
    document,
    event_id,
)

REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
WRONG_STATE = error_pb2.ERROR_REASON_WRONG_STATE


def last_review(core: Core) -> tuple[str, str]:
    """Return the reason code and the decision of the log's last event, which requests a human review."""
    event = core.events[-1]
    assert ("HumanReviewRequested", REVIEW) == (event.event_name, event.decision.outcome)
    return event.decision.reason_code, event.decision.previous_decision_id


# Leases


def test_a_renewal_moves_the_lease() -> None:
    """A renewal appends STARTED of the same attempt with a lease from now, and with an id of its own."""
    core = Core(document())
    approval = core.approve()
    attempt = core.start(approval, lease_ms=1_000)
    core.pass_time(900)
    answers = [core.run(core.renewal(attempt, lease_ms=2_000)) for _ in range(2)]
    renewals = [answer.envelope for answer in answers if isinstance(answer, EventAnswer)]
    assert [(1, START_MS + 2_900)] * 2 == [(event.execution.attempt, event.execution.lease_until.ToMilliseconds()) for event in renewals]
    assert 3 == len({event.event_id for event in (attempt, *renewals)})
    core.pass_time(1_999)
    assert reason_codes.ALREADY_RUNNING == core.refuse_start(approval, OTHER_EXECUTOR).reason_code
    core.prove()


def test_lapsed_lease_may_be_reported_but_not_renewed() -> None:
    """From `lease_until` on the holder may report but not renew, until another executor takes over."""
    core = Core(document())
    attempt = core.start(core.approve(), lease_ms=1_000)
    core.pass_time(1_000)
    assert WRONG_STATE == core.fault(core.renewal(attempt)).reason
    core.report(attempt, SUCCESS)
    core.prove()


def test_only_the_holder_renews_and_reports() -> None:
    """A renewal or report by another executor is PRODUCER_NOT_ALLOWED; one by another version of the holder is accepted."""
    core = Core(document())
    attempt = core.start(core.approve())
    not_allowed = error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED
    assert not_allowed == core.fault(core.renewal(attempt, producer=OTHER_EXECUTOR)).reason
    assert not_allowed == core.fault(core.report_command(attempt, SUCCESS, OTHER_EXECUTOR)).reason
    core.report(attempt, SUCCESS, Producer(type=EXECUTOR.type, id=EXECUTOR.id, version="2.0"))


@pytest.mark.parametrize("what", ["other-attempt", "reported", "finished", "unknown"])
def test_only_the_running_attempt_can_be_renewed(what: str) -> None:
    """Only the running attempt can be renewed; other renewals are refused, and nothing is recorded."""
    core = Core(document())
    approval = core.approve()
    attempt = core.start(approval)
    renewal = core.renewal(attempt)
    if what == "other-attempt":
        renewal.execution_id = execution_id_of(approval.event_id, 2)
    elif what == "reported":
        core.report(attempt, FAILED)
    elif what == "finished":
        core.derive(core.report(attempt, SUCCESS))
    else:
        renewal.decision_id = event_id(999)
    expected = error_pb2.ERROR_REASON_DECISION_NOT_FOUND if what == "unknown" else WRONG_STATE
    assert expected == core.fault(renewal).reason


def test_a_lapsed_lease_can_be_taken_over() -> None:
    """From `lease_until` on another executor may start the next attempt, which supersedes the first."""
    core = Core(document())
    approval = core.approve()
    core.start(approval, lease_ms=1_000)
    core.pass_time(1_000)
    second = core.start(approval, OTHER_EXECUTOR)
    assert (2, OTHER_EXECUTOR) == (second.execution.attempt, second.producer)
    core.derive(core.report(second, SUCCESS, OTHER_EXECUTOR))
    assert {} == core.state.decisions
    core.prove()


@pytest.mark.parametrize(
    ("attempts", "waited_ms", "reason_code"), [(1, 5_000, reason_codes.EXECUTION_ABANDONED), (2, 0, reason_codes.ATTEMPTS_EXHAUSTED)]
)
def test_a_lapsed_lease_calls_a_person(attempts: int, waited_ms: int, reason_code: str) -> None:
    """A review is requested at the lapse of the last attempt's lease; with attempts left `human_takeover_after_ms` later; never earlier."""
    core = Core(document())
    approval = core.approve()
    for _ in range(attempts - 1):
        core.start(approval, lease_ms=1_000)
        core.pass_time(1_000)
    attempt = core.start(approval, lease_ms=1_000)
    assert [] == core.tick(1_000 + waited_ms - 1)
    (review,) = core.tick(1)
    assert (reason_code, approval.event_id) == last_review(core)
    assert derived_event_id(approval.event_id, approval.sequence_number, f"lease-lapsed-{attempts}") == review.event_id
    assert reason_codes.UNDER_REVIEW == core.refuse_start(approval).reason_code
    assert WRONG_STATE == core.fault(core.renewal(attempt)).reason
    assert [review.event_id] == [item.decision_id for item in core.state.pending_reviews()]
    core.prove()


def test_the_review_of_an_execution_does_not_close_its_trace() -> None:
    """The trace of an abandoned execution may still propose about other subjects."""
    core = Core(document(retry={"max_attempts": 1}))
    core.start(core.approve(), lease_ms=1_000)
    core.tick(1_000)
    core.approve("order/2")
    core.prove()


# Reporting


def test_a_report_is_completed_by_the_server() -> None:
    """The server fills in attempt, subject, trace, cause and end; the rest of a report stays as the executor sent it."""
    core = Core(document())
    approval = core.approve()
    attempt = core.start(approval)
    core.pass_time(250)
    result = python_to_value({"amount": 50}).struct_value
    report = core.report(attempt, SUCCESS, result=result, completed_steps=["a", "b"], started_at=timestamp(START_MS))
    execution = report.execution
    assert ("ExecutionSucceeded", SUBJECT, approval.trace_id, approval.event_id) == (
        report.event_name,
        report.subject,
        report.trace_id,
        report.causation_id,
    )
    assert (1, False, timestamp(START_MS + 250), timestamp(START_MS)) == (
        execution.attempt,
        execution.will_retry,
        execution.finished_at,
        execution.started_at,
    )
    assert (result, ["a", "b"]) == (execution.result, list(execution.completed_steps))
    core.prove()


@pytest.mark.parametrize("status", [FAILED, TIMEOUT])
def test_will_retry_while_attempts_are_left(status: Any) -> None:
    """FAILED and TIMEOUT are retried while attempts are left; the last one is final and requests a human review with ATTEMPTS_EXHAUSTED."""
    core = Core(document())
    approval = core.approve()
    first = core.report(core.start(approval), status, error=ExecutionError(code="PSP_DOWN", message="no answer"))
    assert first.execution.will_retry
    last = core.report(core.start(approval, OTHER_EXECUTOR), status, OTHER_EXECUTOR)
    assert not last.execution.will_retry
    assert (reason_codes.ATTEMPTS_EXHAUSTED, approval.event_id) == last_review(core)
    assert last.event_id == core.events[-1].causation_id
    core.prove()


@pytest.mark.parametrize("status", [SUCCESS, PARTIAL, ABORTED])
def test_other_reports_are_final(status: Any) -> None:
    """SUCCESS, PARTIAL and ABORTED end the decision however many attempts are left; PARTIAL requests a human review (constitution §7.1)."""
    core = Core(document())
    approval = core.approve()
    report = core.report(core.start(approval), status)
    assert not report.execution.will_retry
    if status == PARTIAL:
        assert (reason_codes.PARTIAL_EXECUTION, approval.event_id) == last_review(core)
        assert reason_codes.UNDER_REVIEW == core.refuse_start(approval).reason_code
    else:
        assert report == core.events[-1]
        assert reason_codes.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    core.prove()


def test_a_failed_attempt_that_nobody_retries_calls_a_person() -> None:
    """Between two attempts the takeover timer keeps running, and requests a human review if no attempt follows."""
    core = Core(document())
    approval = core.approve()
    core.report(core.start(approval, lease_ms=1_000), FAILED)
    core.tick(6_000)
    assert (reason_codes.EXECUTION_ABANDONED, approval.event_id) == last_review(core)
    core.prove()


def test_an_attempt_is_reported_once() -> None:
    """A second report of the same attempt is WRONG_STATE."""
    core = Core(document())
    attempt = core.start(core.approve())
    core.report(attempt, FAILED)
    assert WRONG_STATE == core.fault(core.report_command(attempt, SUCCESS)).reason


def test_a_report_must_fit_its_decision() -> None:
    """A report with another subject, trace or attempt number than the decision's, or of an unknown attempt, is refused by field."""
    core = Core(document())
    approval = core.approve()
    attempt = core.start(approval)

    def change(**changes: Any) -> ReportExecution:
        command = core.report_command(attempt, SUCCESS)
        for name, value in changes.items():
            setattr(command.envelope.execution if name in ("attempt", "execution_id") else command.envelope, name, value)
        return command

    assert {"envelope.subject", "envelope.trace_id"} == {
        field for field, _ in core.fault(change(subject="order/2", trace_id="elsewhere")).violations
    }
    assert ["envelope.execution.attempt"] == [field for field, _ in core.fault(change(attempt=2)).violations]
    assert WRONG_STATE == core.fault(change(execution_id=execution_id_of(approval.event_id, 2))).reason
    assert WRONG_STATE == core.fault(change(execution_id=execution_id_of(approval.event_id, 0))).reason
    assert isinstance(core.run(change(subject=SUBJECT, trace_id=approval.trace_id, attempt=1)), EventAnswer)
    core.prove()


def test_reports_of_ended_and_unknown_decisions() -> None:
    """A report of an ended decision is WRONG_STATE, of an unknown one DECISION_NOT_FOUND."""
    core = Core(document())
    attempt = core.start(core.approve())
    late_execution = core.report_command(attempt, SUCCESS)
    core.derive(core.report(attempt, SUCCESS))
    assert WRONG_STATE == core.fault(late_execution).reason
    late_execution.envelope.execution.decision_id = event_id(999)
    assert error_pb2.ERROR_REASON_DECISION_NOT_FOUND == core.fault(late_execution).reason


# Late reports


def take_over(core: Core) -> tuple[Envelope, Envelope, Envelope]:
    """Approve, start, let the lease lapse, take over; return the approval and both STARTED."""
    approval = core.approve()
    first = core.start(approval, lease_ms=1_000)
    core.pass_time(1_000)
    return approval, first, core.start(approval, OTHER_EXECUTOR)


def test_late_report_is_recorded_whole_and_calls_a_person() -> None:
    """The report of a superseded attempt is recorded whole as a diagnostic, changes no execution, and requests a human review."""
    core = Core(document())
    approval, first, _ = take_over(core)
    command = core.report_command(first, SUCCESS, result=python_to_value({"amount": 50}).struct_value, completed_steps=["paid"])
    answer = core.run(command)
    assert isinstance(answer, EventAnswer)
    record = answer.envelope
    late_execution = record.agent_diagnostic.late_execution
    assert ("LateExecutionReport", command.envelope.event_id, approval.event_id) == (
        record.event_name,
        record.event_id,
        record.causation_id,
    )
    assert (EXECUTOR.id, EXECUTOR.version) == (late_execution.executor_id, late_execution.executor_version)
    assert (1, SUCCESS, ["paid"], 50.0, False) == (
        late_execution.execution.attempt,
        late_execution.execution.status,
        list(late_execution.execution.completed_steps),
        late_execution.execution.result["amount"],
        late_execution.execution.will_retry,
    )
    assert (reason_codes.LATE_EXECUTION_REPORT, approval.event_id) == last_review(core)
    assert record.event_id == core.events[-1].causation_id
    core.prove()


def test_late_report_of_another_executor_is_refused() -> None:
    """A late report is accepted only from the holder of its attempt."""
    core = Core(document())
    _, first, second = take_over(core)
    for attempt, executor in ((first, OTHER_EXECUTOR), (second, EXECUTOR)):
        assert error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED == core.fault(core.report_command(attempt, SUCCESS, executor)).reason
    core.report(first, FAILED)
    assert error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED == core.fault(core.report_command(second, SUCCESS, EXECUTOR)).reason
    core.prove()


def test_reports_after_a_late_report_are_late() -> None:
    """Once a human review has been requested, further reports are recorded and request no other."""
    core = Core(document())
    _, first, second = take_over(core)
    core.report(first, FAILED)
    reviews = len(core.events_named("HumanReviewRequested"))
    record = core.report(second, SUCCESS, OTHER_EXECUTOR)
    assert ("LateExecutionReport", reviews) == (record.event_name, len(core.events_named("HumanReviewRequested")))
    assert SUCCESS == record.agent_diagnostic.late_execution.execution.status
    core.prove()


def test_a_report_after_abandonment_is_late() -> None:
    """A report after the review of a lapsed lease has opened is recorded as late."""
    core = Core(document(retry={"max_attempts": 1}))
    attempt = core.start(core.approve(), lease_ms=1_000)
    core.tick(1_000)
    record = core.report(attempt, SUCCESS)
    assert "LateExecutionReport" == record.event_name
    assert execution_pb2.EXECUTION_STATUS_SUCCESS == record.agent_diagnostic.late_execution.execution.status
    core.prove()


def test_a_late_report_derives_no_fact() -> None:
    """A late report derives no fact."""
    core = Core(document())
    _, first, _ = take_over(core)
    core.report(first, SUCCESS)
    (live,) = core.state.decisions.values()
    assert () == live.awaited_facts
