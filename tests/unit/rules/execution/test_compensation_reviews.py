"""Reviews of compensations that nobody began in time, or that failed: what a person may decide, and what follows."""

from __future__ import annotations

from gavel.v1 import decision_pb2, error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_REJECT
from gavel_rules import reason_codes
from gavel_rules.state.records import UNDER_REVIEW

from tests.support.driver import FAILED, PARTIAL, SUCCESS, Core
from tests.support.histories.compensations import TAKEOVER_MS, UNDO, bus_with_compensation, compensation_of, holder, report_partial

APPROVAL = decision_pb2.OUTCOME_APPROVED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
WRONG_STATE = error_pb2.ERROR_REASON_WRONG_STATE


# Not begun in time


def abandoned_compensation(core: Core) -> tuple[Envelope, Envelope, Envelope]:
    """Leave a compensation until nobody has begun it in time; return the report, the compensation and its review."""
    report = report_partial(core)
    core.derive(report)
    (review,) = core.tick(TAKEOVER_MS)
    return report, compensation_of(core, report), review


def test_compensation_that_is_not_begun_calls_a_person() -> None:
    """A compensation that nobody began in time requests a human review once; the key stays held and no attempt may begin."""
    core = Core(bus_with_compensation())
    report = report_partial(core)
    core.derive(report)
    compensation = compensation_of(core, report)
    assert [] == core.tick(TAKEOVER_MS - 1)
    (review,) = core.tick(1)
    assert (REVIEW, reason_codes.EXECUTION_ABANDONED, compensation.event_id, compensation.event_id) == (
        review.decision.outcome,
        review.decision.reason_code,
        review.decision.previous_decision_id,
        review.causation_id,
    )
    assert [] == core.tick(10 * 24 * 3_600_000)
    assert (compensation.event_id, UNDER_REVIEW) == (holder(core), core.state.decisions[compensation.event_id].phase)
    assert reason_codes.UNDER_REVIEW == core.refuse_start(compensation).reason_code
    core.prove()


def test_compensation_begun_in_time_continues() -> None:
    """A compensation may begin in the last millisecond; from then on its leases and retries have the times of any execution."""
    core = Core(bus_with_compensation())
    compensation = compensation_of(core, report_partial(core))
    assert [] == core.tick(TAKEOVER_MS - 1)
    attempt = core.start(compensation, lease_ms=1_000)
    assert [] == core.tick(999)
    core.report(attempt, FAILED)
    assert [] == core.tick(TAKEOVER_MS)
    assert [reason_codes.EXECUTION_ABANDONED] == [event.decision.reason_code for event in core.tick(1)]
    core.prove()


def test_compensation_under_review_cannot_be_revoked() -> None:
    """A compensation under review cannot be revoked; the refusal names its review."""
    core = Core(bus_with_compensation())
    _, compensation, review = abandoned_compensation(core)
    fault = core.fault(core.revocation(compensation))
    assert (WRONG_STATE, True) == (fault.reason, f"reject review {review.event_id}" in fault.message)


def test_approving_the_review_grants_a_first_attempt() -> None:
    """Approving the review of a compensation that nobody began allows one attempt, its first; success frees the key."""
    core = Core(bus_with_compensation())
    _, compensation, review = abandoned_compensation(core)
    attempt = core.start(core.resolve(review, REVIEW_VERDICT_APPROVE))
    assert (compensation.event_id, 1) == (attempt.execution.decision_id, attempt.execution.attempt)
    core.derive(core.report(attempt, SUCCESS))
    assert ("", {}) == (holder(core), core.state.decisions)
    core.prove()


def test_rejecting_the_review_of_a_compensation_that_was_not_begun() -> None:
    """Rejecting the review of a compensation that nobody began ends the compensation and frees the key."""
    core = Core(bus_with_compensation())
    _, compensation, review = abandoned_compensation(core)
    end = core.resolve(review, REVIEW_VERDICT_REJECT)
    assert (decision_pb2.OUTCOME_REVOKED, "", {}) == (end.decision.outcome, holder(core), core.state.decisions)
    assert reason_codes.REVOKED == core.refuse_start(compensation).reason_code
    core.prove()


# Failed


def failed_compensation(core: Core) -> tuple[Envelope, Envelope, Envelope]:
    """Report a refund and then its compensation as half done; return the first report, the compensation and its review."""
    report = report_partial(core)
    compensation = compensation_of(core, report)
    core.report(core.start(compensation), PARTIAL)
    return report, compensation, core.events[-1]


def test_approving_the_review_grants_one_more_attempt() -> None:
    """Approving the review of a compensation allows one more attempt whatever the facts are; its success frees the key."""
    core = Core(bus_with_compensation())
    report, compensation, review = failed_compensation(core)
    core.derive(report)
    core.fact("order.status", "cancelled")
    grant = core.resolve(review, REVIEW_VERDICT_APPROVE)
    assert (APPROVAL, UNDO, "") == (grant.decision.outcome, grant.decision.action_type, grant.decision.compensates_decision_id)
    assert compensation.event_id == holder(core)
    attempt = core.start(grant)
    assert (compensation.event_id, 2) == (attempt.execution.decision_id, attempt.execution.attempt)
    core.derive(core.report(attempt, SUCCESS))
    for fact in [event for event in core.events if event.event_name == "ExecutionPartiallySucceeded"][1:]:
        core.derive(fact)
    assert ("", {}) == (holder(core), core.state.decisions)
    core.prove()


def test_a_granted_attempt_that_fails_calls_again() -> None:
    """A granted attempt of a compensation that fails opens another review, without a retry or a compensation."""
    core = Core(bus_with_compensation())
    _, _, review = failed_compensation(core)
    attempt = core.start(core.resolve(review, REVIEW_VERDICT_APPROVE))
    core.report(attempt, FAILED)
    assert 2 == len(
        [one for one in core.events_named("HumanReviewRequested") if one.decision.reason_code == reason_codes.COMPENSATION_FAILED]
    )
    core.prove()


def test_granted_attempt_that_is_not_begun_calls_again() -> None:
    """If nobody begins a granted attempt in time, a human review is requested again, as for any execution."""
    core = Core(bus_with_compensation())
    _, _, review = failed_compensation(core)
    core.resolve(review, REVIEW_VERDICT_APPROVE)
    assert [reason_codes.EXECUTION_ABANDONED] == [event.decision.reason_code for event in core.tick(7_000)]
    core.prove()


def test_rejecting_the_review_of_a_compensation() -> None:
    """Rejecting the review of a compensation ends it and frees the key; derived facts that arrive later are accepted."""
    core = Core(bus_with_compensation())
    report, compensation, review = failed_compensation(core)
    core.resolve(review, REVIEW_VERDICT_REJECT)
    assert "" == holder(core)
    other = core.approve(trace_id="t2")
    core.derive(report)
    assert other.event_id == holder(core)
    core.derive([event for event in core.events if event.event_name == "ExecutionPartiallySucceeded"][1])
    assert [other.event_id] == list(core.state.decisions)
    assert reason_codes.REVOKED == core.refuse_start(compensation).reason_code
    core.prove()
