"""Attempts that began and never reported: what ends without their word, and what they say too late (seeds 002 §7.1)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reasons
from gavel_rules.commands import PublishEvent, Recorded, References
from gavel_rules.decider import handle
from gavel_rules.limits import LATE_REPORT_MS_MAX
from gavel_rules.records import AWAITING_FACTS, UNDER_REVIEW
from gavel_server.bus.idempotency import same_content

from tests.unit.core.driver import (
    ABORTED,
    EXECUTOR,
    FAILED,
    OTHER_EXECUTOR,
    PARTIAL,
    SUBJECT,
    SUCCESS,
    Core,
    copied,
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
    """A bus whose action may be tried so often."""
    return Core(document(retry={"max_attempts": attempts, "human_takeover_after_ms": TAKEOVER_MS}, **changes))


def taken_over(core: Core, subject: str = SUBJECT, **changes: Any) -> tuple[Envelope, Envelope, Envelope]:
    """Approve, start, let the lease lapse, take over; return the approval and both STARTED."""
    approval = core.approve(subject, **changes)
    first = core.start(approval, lease_ms=1_000)
    core.pass_time(1_000)
    return approval, first, core.start(approval, OTHER_EXECUTOR)


def over(core: Core) -> tuple[Envelope, Envelope]:
    """A decision that another executor has finished, facts and all; return the approval and STARTED of the attempt that it superseded."""
    approval, first, second = taken_over(core)
    core.derive(core.report(second, SUCCESS, OTHER_EXECUTOR))
    assert {} == core.state.decisions
    return approval, first


def last_call(core: Core) -> tuple[str, str]:
    """Why and about which decision a person was called, by the log's last event."""
    event = core.events[-1]
    assert REVIEW == event.decision.outcome, event
    return event.decision.reason_code, event.decision.previous_decision_id


# After the end


def test_a_report_after_the_end_is_kept_and_calls_a_person() -> None:
    """Its effect may be there twice: the report is kept whole, a person is called, and nobody else gets the key while they look."""
    core = patient()
    approval, first = over(core)
    assert {} == core.state.holds
    kept = core.report(first, SUCCESS, completed_steps=["paid"])
    late = kept.agent_diagnostic.late_execution
    assert ("LateExecutionReport", approval.event_id) == (kept.event_name, kept.causation_id)
    assert (1, SUCCESS, ["paid"], EXECUTOR.id) == (
        late.execution.attempt,
        late.execution.status,
        list(late.execution.completed_steps),
        late.executor_id,
    )
    assert (reasons.LATE_EXECUTION_REPORT, approval.event_id) == last_call(core)
    assert {SUBJECT: approval.event_id} == core.state.holds
    assert UNDER_REVIEW == core.state.decisions[approval.event_id].phase
    rival = core.decide([core.fact("order.status", "delivered")], trace_id="trace-2")
    assert (reasons.CONFLICTING_DECISION, [approval.decision.proposal_id]) == (rival.reason_code, list(rival.conflict_with_proposal_ids))
    assert reasons.UNDER_REVIEW == core.refuse_start(approval).reason_code
    core.prove()


def test_what_was_carried_out_is_not_granted_again() -> None:
    """The person cannot have it done once more; rejecting the review closes it, and it still counts as carried out."""
    core = patient()
    approval, first = over(core)
    core.report(first, SUCCESS)
    review = core.events[-1]
    fault = core.fault(core.resolving(review, APPROVE))
    assert WRONG_STATE == fault.reason
    assert "has been carried out" in fault.message
    closed = core.resolve(review, REJECT)
    assert (REVOKED, review.event_id) == (closed.decision.outcome, closed.decision.previous_decision_id)
    assert ({}, {}, {}, {}) == (core.state.decisions, core.state.holds, core.state.reviews, core.state.departed)
    assert reasons.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    core.approve(trace_id="trace-2")
    core.prove()


def test_nor_while_its_facts_are_awaited() -> None:
    """A late report beside a success whose facts are still to come leads to the same: no attempt more, and the facts are taken."""
    core = patient()
    approval, first, second = taken_over(core)
    report = core.report(second, SUCCESS, OTHER_EXECUTOR)
    core.report(first, SUCCESS)
    review = core.events[-1]
    assert WRONG_STATE == core.fault(core.resolving(review, APPROVE)).reason
    core.resolve(review, REJECT)
    assert (AWAITING_FACTS, {}) == (core.state.decisions[approval.event_id].phase, core.state.holds)
    assert reasons.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    core.derive(report)
    assert {} == core.state.decisions
    core.prove()


def test_the_key_may_have_gone_to_another() -> None:
    """A key that somebody has got meanwhile stays his: the review is open beside him."""
    core = patient()
    approval, first = over(core)
    rival = core.approve(trace_id="trace-2")
    core.report(first, SUCCESS)
    review = core.events[-1]
    assert ({SUBJECT: rival.event_id}, [review.event_id]) == (core.state.holds, list(core.state.reviews))
    core.derive(core.report(core.start(rival), SUCCESS))
    assert {} == core.state.holds
    core.resolve(review, REJECT)
    assert {} == core.state.decisions
    assert reasons.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    core.prove()


def test_what_is_no_report_of_it_is_refused_after_the_end_too() -> None:
    """Another executor, another attempt, one that has reported, another subject: as before the end, and nothing is recorded."""
    core = patient()
    _, first = over(core)
    assert error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED == core.fault(core.reporting(first, SUCCESS, OTHER_EXECUTOR)).reason
    second = next(event for event in core.named("ExecutionStarted") if event.execution.attempt == 2)
    assert "has been reported" in core.fault(core.reporting(second, SUCCESS, OTHER_EXECUTOR)).message
    elsewhere = core.reporting(first, SUCCESS)
    elsewhere.envelope.subject = "order/2"
    assert ["envelope.subject"] == [field for field, _ in core.fault(elsewhere).violations]
    assert WRONG_STATE == core.fault(core.renewal(first)).reason


def test_a_late_report_is_heard_once() -> None:
    """An attempt that has reported too late has reported."""
    core = patient()
    _, first = over(core)
    core.report(first, FAILED)
    assert "has been reported" in core.fault(core.reporting(first, SUCCESS)).message
    core.resolve(core.events[-1], REJECT)
    assert "come to its end" in core.fault(core.reporting(first, SUCCESS)).message
    core.prove()


@pytest.mark.parametrize(("waited_ms", "heard"), [(LATE_REPORT_MS_MAX, True), (LATE_REPORT_MS_MAX + 1, False)])
@pytest.mark.parametrize("busy", [True, False])
def test_how_long_a_report_is_waited_for(waited_ms: int, heard: bool, busy: bool) -> None:
    """An attempt may report for a day after the end, to the millisecond, whether or not anything is recorded meanwhile."""
    core = patient()
    _, first = over(core)
    core.pass_time(waited_ms)
    if busy:
        core.fact("k.note", 1)
    command = core.reporting(first, SUCCESS)
    if heard:
        assert isinstance(core.run(command), Recorded)
        assert reasons.LATE_EXECUTION_REPORT == core.events[-1].decision.reason_code
    else:
        assert (WRONG_STATE, True) == ((fault := core.fault(command)).reason, "come to its end" in fault.message)
    core.prove()


def test_what_is_waited_for_too_long_is_forgotten() -> None:
    """Nothing stays behind in the state of a decision whose attempt never reports, its grants included."""
    core = patient(1)
    approval = core.approve()
    core.start(approval, lease_ms=1_000)
    core.tick(1_000)
    grant = core.resolve(core.events[-1], APPROVE)
    core.derive(core.report(core.start(grant), SUCCESS))
    assert ([approval.event_id], {grant.event_id: approval.event_id}) == (list(core.state.departed), core.state.grants)
    core.pass_time(LATE_REPORT_MS_MAX + 1)
    core.fact("k.note", 1)
    assert ({}, {}) == (core.state.departed, core.state.grants)
    core.prove()


def test_each_attempt_is_heard_after_the_end() -> None:
    """Of several that were superseded the second is heard beside the review of the first, or calls a person anew."""
    core = patient(4)
    approval = core.approve()
    silent = []
    for _ in range(3):
        silent.append(core.start(approval, lease_ms=1_000))
        core.pass_time(1_000)
    core.derive(core.report(core.start(approval, OTHER_EXECUTOR), SUCCESS, OTHER_EXECUTOR))
    core.report(silent[2], SUCCESS)
    review = core.events[-1]
    core.report(silent[0], SUCCESS)
    assert [review.event_id] == list(core.state.reviews)
    core.resolve(review, REJECT)
    assert [approval.event_id] == list(core.state.departed)
    core.report(silent[1], SUCCESS)
    assert (reasons.LATE_EXECUTION_REPORT, approval.event_id) == last_call(core)
    core.resolve(core.events[-1], REJECT)
    assert ({}, {}) == (core.state.decisions, core.state.departed)
    assert reasons.ALREADY_FINISHED == core.refuse_start(approval).reason_code
    core.prove()


def test_a_report_under_the_id_of_a_grant() -> None:
    """Who began under a grant's id reports under it, also after the end and after other grants; the log has the approval's."""
    core = patient(1)
    approval = core.approve()
    core.start(approval, lease_ms=1_000)
    core.tick(1_000)
    grant = core.resolve(core.events[-1], APPROVE)
    written_off = core.start(grant, lease_ms=1_000)
    core.tick(1_000)
    other = core.resolve(core.events[-1], APPROVE)
    core.derive(core.report(core.start(other), SUCCESS))
    sent = core.reporting(written_off, SUCCESS)
    sent.envelope.execution.decision_id = grant.event_id
    answer = core.run(copied(sent))
    assert isinstance(answer, Recorded), answer
    assert approval.event_id == answer.envelope.agent_diagnostic.late_execution.execution.decision_id
    assert same_content(answer.envelope, sent.envelope)
    assert (reasons.LATE_EXECUTION_REPORT, approval.event_id) == last_call(core)
    core.prove()


def test_a_report_of_what_a_person_has_ended() -> None:
    """A person who gave an execution up has not known what its attempt had done: they are called again, and can only close it."""
    core = patient(1)
    approval = core.approve()
    started = core.start(approval, lease_ms=1_000)
    core.tick(1_000)
    core.resolve(core.events[-1], REJECT)
    rival = core.approve(trace_id="trace-2")
    core.report(started, SUCCESS)
    assert (reasons.LATE_EXECUTION_REPORT, approval.event_id) == last_call(core)
    review = core.events[-1]
    fault = core.fault(core.resolving(review, APPROVE))
    assert (WRONG_STATE, True) == (fault.reason, "has been revoked" in fault.message)
    closed = core.resolve(review, REJECT)
    assert (REVOKED, {SUBJECT: rival.event_id}) == (closed.decision.outcome, core.state.holds)
    assert reasons.REVOKED == core.refuse_start(approval).reason_code
    core.prove()


def test_undoing_a_late_report_leaves_no_trace() -> None:
    """A late report that is decided and taken back leaves the state as it was; decided again it makes the same events."""
    core = patient()
    _, first = over(core)
    command = core.reporting(first, SUCCESS)
    before, mark = core.state.digest(), core.state.mark()
    events = [
        event.SerializeToString(deterministic=True) for event in handle(core.state, copied(command), References(), core.now_ms).events
    ]
    assert before != core.state.digest()
    core.state.undo(mark)
    assert before == core.state.digest()
    mark = core.state.mark()
    again = handle(core.state, copied(command), References(), core.now_ms)
    assert events == [event.SerializeToString(deterministic=True) for event in again.events]
    core.state.undo(mark)
    assert before == core.state.digest()


def test_undoing_what_made_it_be_forgotten() -> None:
    """An event that lets a decision be forgotten and is taken back leaves it as it was."""
    core = patient()
    over(core)
    before, mark = core.state.digest(), core.state.mark()
    handle(core.state, PublishEvent(core.admitted(fact_envelope("k.note", 1))), References(), core.now_ms + LATE_REPORT_MS_MAX + 1)
    assert {} == core.state.departed
    core.state.undo(mark)
    assert before == core.state.digest()


def test_a_granted_attempt_waits_for_a_lease_that_still_runs() -> None:
    """A person who is called while an attempt runs may grant another one; it begins when nobody can be at work any more."""
    core = patient()
    approval, first, second = taken_over(core)
    core.report(first, SUCCESS)
    core.pass_time(400)
    grant = core.resolve(core.events[-1], APPROVE)
    refusals = [core.refuse_start(one) for one in (grant, approval)]
    assert [(reasons.ALREADY_RUNNING, 600)] * 2 == [(refusal.reason_code, refusal.retry_after_ms) for refusal in refusals]
    core.pass_time(600)
    assert 3 == core.start(grant).execution.attempt
    assert "LateExecutionReport" == core.report(second, SUCCESS, OTHER_EXECUTOR).event_name
    core.prove()


# What ends without their word


@pytest.mark.parametrize("granted", [False, True])
def test_giving_up_does_not_speak_for_an_attempt_that_never_reported(granted: bool) -> None:
    """ABORTED by one attempt, where another began and never reported, calls a person, and the key stays held."""
    core = patient(1 if granted else 2)
    if granted:
        approval = core.approve()
        core.start(approval, lease_ms=1_000)
        core.tick(1_000)
        core.resolve(core.events[-1], APPROVE)
        second = core.start(approval, OTHER_EXECUTOR)
    else:
        approval, _, second = taken_over(core)
    report = core.report(second, ABORTED, OTHER_EXECUTOR)
    assert (reasons.EXECUTION_ABANDONED, approval.event_id) == last_call(core)
    assert report.event_id == core.events[-1].causation_id
    core.derive(report)
    assert ({SUBJECT: approval.event_id}, UNDER_REVIEW) == (core.state.holds, core.state.decisions[approval.event_id].phase)
    core.prove()


def test_giving_up_after_attempts_that_have_reported_is_the_end() -> None:
    """An attempt that reported FAILED, or too late, has said what it did: ABORTED frees the key."""
    core = patient()
    approval = core.approve()
    core.derive(core.report(core.start(approval), FAILED))
    core.derive(core.report(core.start(approval), ABORTED))
    assert ({}, {}, {}) == (core.state.decisions, core.state.holds, core.state.departed)
    core.prove()


def test_success_speaks_for_all() -> None:
    """What was wanted is done: nobody is called for the attempt that never reported, as long as it says nothing."""
    core = patient()
    over(core)
    assert ([], {}) == (core.named("HumanReviewRequested"), core.state.holds)
    core.prove()


def test_half_done_beside_an_attempt_that_never_reported() -> None:
    """Its compensation knows nothing of the other attempt: both are wanted, the compensation and a person, and the key waits for both."""
    core = patient(compensation={"action": "refund.reverse", "params": {}})
    approval, first, second = taken_over(core)
    report = core.report(second, PARTIAL, OTHER_EXECUTOR)
    compensation = core.events[-2]
    assert approval.event_id == compensation.decision.compensates_decision_id
    assert (reasons.EXECUTION_ABANDONED, approval.event_id) == last_call(core)
    review = core.events[-1]
    core.derive(report)
    core.derive(core.report(core.start(compensation), SUCCESS))
    assert {SUBJECT: compensation.event_id} == core.state.holds
    core.report(first, SUCCESS)
    assert [review.event_id] == list(core.state.reviews)
    core.resolve(review, REJECT)
    assert ({}, {}) == (core.state.decisions, core.state.holds)
    core.prove()


def test_a_report_after_the_end_of_what_is_still_being_compensated() -> None:
    """A person ended the half-done decision, its facts are in: its silent attempt calls them again, and the compensation waits for that."""
    core = patient(compensation={"action": "refund.reverse", "params": {}})
    approval, first, second = taken_over(core)
    core.derive(core.report(second, PARTIAL, OTHER_EXECUTOR))
    review, compensation = core.state.pending_reviews()[0].decision, core.state.pending_decisions()[1].decision
    core.resolve(review, REJECT)
    assert ([compensation.event_id], [approval.event_id]) == (list(core.state.decisions), list(core.state.departed))
    core.report(first, SUCCESS)
    assert (reasons.LATE_EXECUTION_REPORT, approval.event_id) == last_call(core)
    called = core.events[-1]
    core.derive(core.report(core.start(compensation), SUCCESS))
    assert {SUBJECT: compensation.event_id} == core.state.holds
    core.resolve(called, REJECT)
    assert ({}, {}) == (core.state.decisions, core.state.holds)
    core.prove()


def test_half_done_without_a_compensation_calls_one_person() -> None:
    """Where a person is called for the half-done work itself, they are not called twice."""
    core = patient()
    _, _, second = taken_over(core)
    core.report(second, PARTIAL, OTHER_EXECUTOR)
    assert [reasons.PARTIAL_EXECUTION] == [event.decision.reason_code for event in core.named("HumanReviewRequested")]
    core.prove()


def test_a_compensation_whose_superseded_attempt_reports_after_all_is_over() -> None:
    """What was made good may have been made good twice: a person is called, and the key is held meanwhile."""
    core = patient(compensation={"action": "refund.reverse", "params": {}})
    report = core.report(core.start(core.approve()), PARTIAL)
    compensation = core.events[-1]
    first = core.start(compensation, lease_ms=1_000)
    core.pass_time(1_000)
    undone = core.report(core.start(compensation, OTHER_EXECUTOR), SUCCESS, OTHER_EXECUTOR)
    core.derive(report)
    core.derive(undone)
    assert {} == core.state.holds
    core.report(first, SUCCESS)
    assert (reasons.LATE_EXECUTION_REPORT, compensation.event_id) == last_call(core)
    assert {SUBJECT: compensation.event_id} == core.state.holds
    assert WRONG_STATE == core.fault(core.resolving(core.events[-1], APPROVE)).reason
    core.resolve(core.events[-1], REJECT)
    assert ({}, {}) == (core.state.decisions, core.state.holds)
    core.prove()
