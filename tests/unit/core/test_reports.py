"""Leases and reports: who holds an attempt, what he may say of it, and when a person is called (seeds 002 §7.1)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2, execution_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionError
from gavel_rules import reasons
from gavel_rules.commands import Recorded, ReportExecution
from gavel_rules.events import derived_event_id, execution_id_of, timestamp
from gavel_rules.values import python_to_value

from tests.unit.core.driver import (
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
    """Why and about which decision a person was called, by the log's last event."""
    event = core.events[-1]
    assert ("HumanReviewRequested", REVIEW) == (event.event_name, event.decision.outcome)
    return event.decision.reason_code, event.decision.previous_decision_id


# Leases


def test_a_renewal_moves_the_lease() -> None:
    """Renewing appends STARTED of the same attempt with a later lease, counted from now, and each has an id of its own."""
    core = Core(document())
    approval = core.approve()
    started = core.start(approval, lease_ms=1_000)
    core.pass_time(900)
    answers = [core.run(core.renewal(started, lease_ms=2_000)) for _ in range(2)]
    renewals = [answer.envelope for answer in answers if isinstance(answer, Recorded)]
    assert [(1, START_MS + 2_900)] * 2 == [(event.execution.attempt, event.execution.lease_until.ToMilliseconds()) for event in renewals]
    assert 3 == len({event.event_id for event in (started, *renewals)})
    core.pass_time(1_999)
    assert reasons.ALREADY_RUNNING == core.refuse_start(approval, OTHER_EXECUTOR).reason_code
    core.prove()


def test_a_lapsed_lease_cannot_be_renewed_but_reported() -> None:
    """From `lease_until` on the holder may only report, as long as nobody has taken over."""
    core = Core(document())
    started = core.start(core.approve(), lease_ms=1_000)
    core.pass_time(1_000)
    assert WRONG_STATE == core.fault(core.renewal(started)).reason
    core.report(started, SUCCESS)
    core.prove()


def test_only_the_holder_renews_and_reports() -> None:
    """Another executor's renewal or report of the running attempt is PRODUCER_NOT_ALLOWED; another version of the holder is not."""
    core = Core(document())
    started = core.start(core.approve())
    not_allowed = error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED
    assert not_allowed == core.fault(core.renewal(started, producer=OTHER_EXECUTOR)).reason
    assert not_allowed == core.fault(core.reporting(started, SUCCESS, OTHER_EXECUTOR)).reason
    core.report(started, SUCCESS, Producer(type=EXECUTOR.type, id=EXECUTOR.id, version="2.0"))


@pytest.mark.parametrize("what", ["other-attempt", "reported", "finished", "unknown"])
def test_only_the_running_attempt_can_be_renewed(what: str) -> None:
    """A renewal of anything but the running attempt is refused, and nothing is recorded."""
    core = Core(document())
    approval = core.approve()
    started = core.start(approval)
    renewal = core.renewal(started)
    if what == "other-attempt":
        renewal.execution_id = execution_id_of(approval.event_id, 2)
    elif what == "reported":
        core.report(started, FAILED)
    elif what == "finished":
        core.derive(core.report(started, SUCCESS))
    else:
        renewal.decision_id = event_id(999)
    expected = error_pb2.ERROR_REASON_DECISION_NOT_FOUND if what == "unknown" else WRONG_STATE
    assert expected == core.fault(renewal).reason


def test_a_lapsed_lease_can_be_taken_over() -> None:
    """From `lease_until` on another executor may start the next attempt; the first one is superseded."""
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
    ("attempts", "waited_ms", "reason_code"), [(1, 5_000, reasons.EXECUTION_ABANDONED), (2, 0, reasons.ATTEMPTS_EXHAUSTED)]
)
def test_a_lapsed_lease_calls_a_person(attempts: int, waited_ms: int, reason_code: str) -> None:
    """With attempts left a person is called `human_takeover_after_ms` after the lapse; without, at the lapse; not a millisecond before."""
    core = Core(document())
    approval = core.approve()
    for _ in range(attempts - 1):
        core.start(approval, lease_ms=1_000)
        core.pass_time(1_000)
    started = core.start(approval, lease_ms=1_000)
    assert [] == core.tick(1_000 + waited_ms - 1)
    (review,) = core.tick(1)
    assert (reason_code, approval.event_id) == last_review(core)
    assert derived_event_id(approval.event_id, approval.sequence_number, f"lease-lapsed-{attempts}") == review.event_id
    assert reasons.UNDER_REVIEW == core.refuse_start(approval).reason_code
    assert WRONG_STATE == core.fault(core.renewal(started)).reason
    assert [review.event_id] == [item.decision_id for item in core.state.pending_reviews()]
    core.prove()


def test_the_review_of_an_execution_does_not_close_its_trace() -> None:
    """The trace of an abandoned execution may go on proposing about other subjects."""
    core = Core(document(retry={"max_attempts": 1}))
    core.start(core.approve(), lease_ms=1_000)
    core.tick(1_000)
    core.approve("order/2")
    core.prove()


# Reporting


def test_a_report_is_completed_by_the_server() -> None:
    """Attempt, subject, trace, cause and end are filled in; the rest stays as the executor said it."""
    core = Core(document())
    approval = core.approve()
    started = core.start(approval)
    core.pass_time(250)
    result = python_to_value({"amount": 50}).struct_value
    report = core.report(started, SUCCESS, result=result, completed_steps=["a", "b"], started_at=timestamp(START_MS))
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
    """FAILED and TIMEOUT are retried while attempts are left; the last one is final and calls a person with ATTEMPTS_EXHAUSTED."""
    core = Core(document())
    approval = core.approve()
    first = core.report(core.start(approval), status, error=ExecutionError(code="PSP_DOWN", message="no answer"))
    assert first.execution.will_retry
    last = core.report(core.start(approval, OTHER_EXECUTOR), status, OTHER_EXECUTOR)
    assert not last.execution.will_retry
    assert (reasons.ATTEMPTS_EXHAUSTED, approval.event_id) == last_review(core)
    assert last.event_id == core.events[-1].causation_id
    core.prove()


@pytest.mark.parametrize("status", [SUCCESS, PARTIAL, ABORTED])
def test_other_reports_are_final(status: Any) -> None:
    """SUCCESS, PARTIAL and ABORTED end the decision however many attempts are left; PARTIAL calls a person (seeds 002 §7.1)."""
    core = Core(document())
    approval = core.approve()
    report = core.report(core.start(approval), status)
    assert not report.execution.will_retry
    if status == PARTIAL:
        assert (reasons.PARTIAL_EXECUTION, approval.event_id) == last_review(core)
        assert reasons.UNDER_REVIEW == core.refuse_start(approval).reason_code
    else:
        assert report == core.events[-1]
        assert reasons.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    core.prove()


def test_a_failed_attempt_that_nobody_retries_calls_a_person() -> None:
    """Between two attempts the lease's patience goes on: nobody forgets a decision that was to be retried."""
    core = Core(document())
    approval = core.approve()
    core.report(core.start(approval, lease_ms=1_000), FAILED)
    core.tick(6_000)
    assert (reasons.EXECUTION_ABANDONED, approval.event_id) == last_review(core)
    core.prove()


def test_an_attempt_is_reported_once() -> None:
    """A second report of the same attempt is WRONG_STATE."""
    core = Core(document())
    started = core.start(core.approve())
    core.report(started, FAILED)
    assert WRONG_STATE == core.fault(core.reporting(started, SUCCESS)).reason


def test_a_report_must_fit_its_decision() -> None:
    """Another subject, trace or attempt number than the decision's, or an attempt that never was, is refused field by field."""
    core = Core(document())
    approval = core.approve()
    started = core.start(approval)

    def altered(**changes: Any) -> ReportExecution:
        command = core.reporting(started, SUCCESS)
        for name, value in changes.items():
            setattr(command.envelope.execution if name in ("attempt", "execution_id") else command.envelope, name, value)
        return command

    assert {"envelope.subject", "envelope.trace_id"} == {
        field for field, _ in core.fault(altered(subject="order/2", trace_id="elsewhere")).violations
    }
    assert ["envelope.execution.attempt"] == [field for field, _ in core.fault(altered(attempt=2)).violations]
    assert WRONG_STATE == core.fault(altered(execution_id=execution_id_of(approval.event_id, 2))).reason
    assert WRONG_STATE == core.fault(altered(execution_id=execution_id_of(approval.event_id, 0))).reason
    assert isinstance(core.run(altered(subject=SUBJECT, trace_id=approval.trace_id, attempt=1)), Recorded)
    core.prove()


def test_reports_of_what_has_ended_or_never_was() -> None:
    """A report for a decision that is over is WRONG_STATE, for one that is none DECISION_NOT_FOUND."""
    core = Core(document())
    started = core.start(core.approve())
    late = core.reporting(started, SUCCESS)
    core.derive(core.report(started, SUCCESS))
    assert WRONG_STATE == core.fault(late).reason
    late.envelope.execution.decision_id = event_id(999)
    assert error_pb2.ERROR_REASON_DECISION_NOT_FOUND == core.fault(late).reason


# Late reports


def taken_over(core: Core) -> tuple[Envelope, Envelope, Envelope]:
    """Approve, start, let the lease lapse, take over; return the approval and both STARTED."""
    approval = core.approve()
    first = core.start(approval, lease_ms=1_000)
    core.pass_time(1_000)
    return approval, first, core.start(approval, OTHER_EXECUTOR)


def test_a_late_report_is_kept_whole_and_calls_a_person() -> None:
    """The report of a superseded attempt changes nothing by itself, is kept with all it said, and a person is called."""
    core = Core(document())
    approval, first, _ = taken_over(core)
    command = core.reporting(first, SUCCESS, result=python_to_value({"amount": 50}).struct_value, completed_steps=["paid"])
    answer = core.run(command)
    assert isinstance(answer, Recorded)
    kept = answer.envelope
    late = kept.agent_diagnostic.late_execution
    assert ("LateExecutionReport", command.envelope.event_id, approval.event_id) == (kept.event_name, kept.event_id, kept.causation_id)
    assert (EXECUTOR.id, EXECUTOR.version) == (late.executor_id, late.executor_version)
    assert (1, SUCCESS, ["paid"], 50.0, False) == (
        late.execution.attempt,
        late.execution.status,
        list(late.execution.completed_steps),
        late.execution.result["amount"],
        late.execution.will_retry,
    )
    assert (reasons.LATE_EXECUTION_REPORT, approval.event_id) == last_review(core)
    assert kept.event_id == core.events[-1].causation_id
    core.prove()


def test_nobody_speaks_for_another_executor_too_late_either() -> None:
    """A late report counts only from him who held that attempt."""
    core = Core(document())
    _, first, second = taken_over(core)
    for started, liar in ((first, OTHER_EXECUTOR), (second, EXECUTOR)):
        assert error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED == core.fault(core.reporting(started, SUCCESS, liar)).reason
    core.report(first, FAILED)
    assert error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED == core.fault(core.reporting(second, SUCCESS, EXECUTOR)).reason
    core.prove()


def test_after_a_late_report_the_running_attempt_is_late_too() -> None:
    """Once a person has been called, every further report is kept and calls nobody again."""
    core = Core(document())
    _, first, second = taken_over(core)
    core.report(first, FAILED)
    reviews = len(core.named("HumanReviewRequested"))
    kept = core.report(second, SUCCESS, OTHER_EXECUTOR)
    assert ("LateExecutionReport", reviews) == (kept.event_name, len(core.named("HumanReviewRequested")))
    assert SUCCESS == kept.agent_diagnostic.late_execution.execution.status
    core.prove()


def test_a_report_after_abandonment_is_late() -> None:
    """Who reports after a person was called for the lapsed lease is heard and kept."""
    core = Core(document(retry={"max_attempts": 1}))
    started = core.start(core.approve(), lease_ms=1_000)
    core.tick(1_000)
    kept = core.report(started, SUCCESS)
    assert "LateExecutionReport" == kept.event_name
    assert execution_pb2.EXECUTION_STATUS_SUCCESS == kept.agent_diagnostic.late_execution.execution.status
    core.prove()


def test_a_late_report_derives_no_fact() -> None:
    """What a superseded attempt claims does not become a fact by itself."""
    core = Core(document())
    _, first, _ = taken_over(core)
    core.report(first, SUCCESS)
    (live,) = core.state.decisions.values()
    assert () == live.awaited_facts
