"""What people decide about executions: one more attempt, or the end (seeds 002 §7.1)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel_rules import reasons
from gavel_rules.commands import Fault, Recorded, References, RenewExecution, ReportExecution
from gavel_rules.decider import handle
from gavel_rules.events import derived_event_id
from gavel_server.bus.idempotency import same_content
from gavel_server.views import pending_decision

from tests.unit.core.driver import EXECUTOR, FAILED, OTHER_EXECUTOR, PARTIAL, SUBJECT, SUCCESS, TIMEOUT, Core, copied, document

APPROVED = decision_pb2.OUTCOME_APPROVED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
REVOKED = decision_pb2.OUTCOME_REVOKED
APPROVE = fact_pb2.REVIEW_VERDICT_APPROVE
REJECT = fact_pb2.REVIEW_VERDICT_REJECT
TAKEOVER_MS = 5_000


def once(**changes: Any) -> Core:
    """A bus whose action may be tried once."""
    return Core(document(retry={"max_attempts": 1, "human_takeover_after_ms": TAKEOVER_MS}, **changes))


def failed(core: Core) -> tuple[Envelope, Envelope]:
    """An approval whose only attempt has failed, and the review that follows."""
    approval = core.approve()
    core.derive(core.report(core.start(approval), FAILED))
    return approval, review_of(core)


def review_of(core: Core) -> Envelope:
    """The decision behind the one open review."""
    (review,) = core.state.reviews.values()
    return review.decision


def test_one_more_attempt() -> None:
    """Approving grants one attempt more at the same decision, on the latest evidence, for as long as a takeover would take."""
    core = once()
    approval, review = failed(core)
    newer = core.fact("order.status", "delivered")
    grant = core.resolve(review, APPROVE)
    decision = grant.decision
    assert (APPROVED, review.event_id, approval.decision.params) == (decision.outcome, decision.previous_decision_id, decision.params)
    assert [newer.event_id] == [pin.event_id for pin in decision.pinned_facts]
    assert (2, core.now_ms + TAKEOVER_MS) == (decision.retry_policy.max_attempts, decision.valid_until.ToMilliseconds())
    assert {SUBJECT: approval.event_id} == core.state.holds
    started = core.start(grant)
    assert (approval.event_id, 2) == (started.execution.decision_id, started.execution.attempt)
    assert reasons.ALREADY_RUNNING == core.refuse_start(approval).reason_code
    core.derive(core.report(started, SUCCESS))
    assert ({}, {}, {}, {}) == (core.state.decisions, core.state.holds, core.state.reviews, core.state.grants)
    assert [reasons.ALREADY_FINISHED] * 2 == [core.refuse_start(decision).reason_code for decision in (grant, approval)]
    core.prove()


def test_the_granted_attempt_goes_by_either_id() -> None:
    """Who begins under the grant's id may go on under it; the log has the attempt under the approval's."""
    core = once()
    approval, review = failed(core)
    grant = core.resolve(review, APPROVE)
    began = core.start(grant).execution
    renewed = core.run(RenewExecution(grant.event_id, began.execution_id, EXECUTOR, 2_000))
    assert isinstance(renewed, Recorded)
    sent = Envelope(producer=EXECUTOR, execution=Execution(decision_id=grant.event_id, execution_id=began.execution_id, status=SUCCESS))
    command = ReportExecution(core.admitted(sent))
    before, mark = command.envelope.SerializeToString(), core.state.mark()
    handle(core.state, command, core.references(command), core.now_ms)
    core.state.undo(mark)
    assert grant.event_id == Envelope.FromString(before).execution.decision_id == command.envelope.execution.decision_id
    answer = core.run(copied(command))
    assert isinstance(answer, Recorded)
    assert {approval.event_id} == {answer.envelope.execution.decision_id, renewed.envelope.execution.decision_id}
    assert approval.event_id == answer.envelope.causation_id
    assert same_content(answer.envelope, command.envelope)
    core.derive(answer.envelope)
    assert {} == core.state.decisions
    core.prove()


def test_a_verdict_on_a_review_of_this_moment() -> None:
    """A verdict that comes with the timer by which its review begins, of which nothing has been looked up, records nothing."""
    core = once()
    approval = core.approve()
    core.start(approval)
    core.pass_time(1_000)
    foreseen = derived_event_id(approval.event_id, approval.sequence_number, "lease-lapsed-1")
    command = core.resolving(Envelope(event_id=foreseen), APPROVE)
    handled = handle(core.state, command, References(), core.now_ms)
    assert isinstance(handled.answer, Fault)
    assert "say so again" in handled.answer.message
    assert [foreseen] == [event.event_id for event in handled.events]


def test_reports_after_the_end_say_how_it_ended() -> None:
    """A report or renewal of what is over, or was never approved, is refused with what became of it."""
    core = once()
    finished = core.approve()
    started = core.start(finished)
    core.derive(core.report(started, SUCCESS))
    report = core.reporting(started, SUCCESS)
    assert "its execution has come to its end" in core.fault(report).message
    revoked = core.approve("order/2")
    core.revoke(revoked)
    assert "it has been revoked" in core.fault(RenewExecution(revoked.event_id, "exec_000000000000", EXECUTOR, 1_000)).message
    refused = core.propose([])
    assert "nothing to carry out: it is REJECTED" in core.fault(RenewExecution(refused.event_id, "x", EXECUTOR, 1_000)).message


@pytest.mark.parametrize("end", ["carried out", "revoked"])
def test_every_grant_names_the_decision(end: str) -> None:
    """The id of an earlier grant is answered as the approval's is, while the decision goes on and after its end."""
    core = once()
    approval, review = failed(core)
    grants = []
    for _ in range(2):
        grants.append(core.resolve(review, APPROVE))
        core.derive(core.report(core.start(grants[-1]), FAILED))
        review = review_of(core)
        assert {reasons.UNDER_REVIEW} == {core.refuse_start(one).reason_code for one in (approval, *grants)}
    grants.append(core.resolve(review, APPROVE))
    started = core.start(grants[0], OTHER_EXECUTOR)
    assert (approval.event_id, 4) == (started.execution.decision_id, started.execution.attempt)
    assert {reasons.ALREADY_RUNNING} == {core.refuse_start(one).reason_code for one in (approval, *grants)}
    core.derive(core.report(started, SUCCESS if end == "carried out" else FAILED, OTHER_EXECUTOR))
    if end == "revoked":
        core.resolve(review_of(core), REJECT)
    assert ({}, {}) == (core.state.decisions, core.state.grants)
    expected = reasons.ALREADY_FINISHED if end == "carried out" else reasons.REVOKED
    assert {expected} == {core.refuse_start(one).reason_code for one in (approval, *grants)}
    core.prove()


def test_until_when_a_grant_may_be_begun() -> None:
    """The projection shows the time of the grant, not that of the approval, which is long over."""
    core = once()
    approval, review = failed(core)
    assert approval.decision.valid_until == pending_decision(core.state.decisions[approval.event_id]).valid_until
    grant = core.resolve(review, APPROVE)
    assert approval.decision.valid_until != grant.decision.valid_until
    assert grant.decision.valid_until == pending_decision(core.state.decisions[approval.event_id]).valid_until


def test_the_granted_attempt_is_the_last() -> None:
    """When the granted attempt fails too, a person is called again, and may grant another one."""
    core = once()
    approval, review = failed(core)
    for attempt in (2, 3):
        grant = core.resolve(review, APPROVE)
        report = core.report(core.start(approval), TIMEOUT)
        assert (attempt, False) == (report.execution.attempt, report.execution.will_retry)
        review = review_of(core)
        assert reasons.ATTEMPTS_EXHAUSTED == review.decision.reason_code
        assert reasons.UNDER_REVIEW == core.refuse_start(grant).reason_code
    core.prove()


def test_one_attempt_whatever_the_policy_has_left() -> None:
    """Where attempts are left, a grant still means one: then a person looks again."""
    core = Core(document(retry={"max_attempts": 5, "human_takeover_after_ms": TAKEOVER_MS}))
    approval = core.approve()
    core.start(approval)
    core.tick(1_000 + TAKEOVER_MS)
    assert reasons.EXECUTION_ABANDONED == review_of(core).decision.reason_code
    core.resolve(review_of(core), APPROVE)
    assert not core.report(core.start(approval), FAILED).execution.will_retry
    assert reasons.ATTEMPTS_EXHAUSTED == review_of(core).decision.reason_code
    core.prove()


def test_a_granted_attempt_that_nobody_begins() -> None:
    """A grant does not hold the key for ever: when the takeover time is over, a person is called again; each call is its own event."""
    core = once()
    approval = core.approve()
    core.start(approval)
    core.tick(1_000)
    for _ in range(2):
        core.resolve(review_of(core), APPROVE)
        assert [] == core.tick(TAKEOVER_MS - 1)
        (called,) = core.tick(1)
        assert (REVIEW, reasons.EXECUTION_ABANDONED) == (called.decision.outcome, called.decision.reason_code)
    core.resolve(review_of(core), APPROVE)
    core.start(approval)
    (called,) = core.tick(1_000)
    assert reasons.ATTEMPTS_EXHAUSTED == called.decision.reason_code
    core.prove()


def test_a_grant_needs_the_evidence() -> None:
    """Stale or retracted evidence is not overruled: the review stays open under its first decision, the key held."""
    core = once()
    approval, review = failed(core)
    core.pass_time(60_001)
    answer = core.resolve(review, APPROVE).decision
    assert (REVIEW, reasons.STALE_FACTS, review.event_id) == (answer.outcome, answer.reason_code, answer.previous_decision_id)
    assert ([review.event_id], {SUBJECT: approval.event_id}) == (list(core.state.reviews), core.state.holds)
    assert reasons.UNDER_REVIEW == core.refuse_start(approval).reason_code
    core.fact("order.status", "delivered")
    assert APPROVED == core.resolve(review, APPROVE).decision.outcome
    core.prove()


def test_facts_that_change_after_a_grant() -> None:
    """The granted attempt rests on what the person saw: if that changes before it begins, a person is called again."""
    core = once()
    approval, review = failed(core)
    for _ in range(2):
        core.resolve(review, APPROVE)
        core.fact("order.status", "delivered")
        assert reasons.RETRY_FACTS_CHANGED == core.refuse_start(approval).reason_code
        review = review_of(core)
    core.resolve(review, APPROVE)
    core.start(approval)
    core.prove()


def test_ending_an_execution() -> None:
    """Rejecting ends the decision: REVOKED, the key is free, and there is no more attempt."""
    core = once()
    approval, review = failed(core)
    decision = core.resolve(review, REJECT).decision
    assert (REVOKED, reasons.REVOKED, review.event_id) == (decision.outcome, decision.reason_code, decision.previous_decision_id)
    assert ({}, {}, {}) == (core.state.decisions, core.state.holds, core.state.reviews)
    assert reasons.REVOKED == core.refuse_start(approval).reason_code
    core.approve(trace_id="trace-2")
    core.prove()


def test_ending_an_execution_whose_facts_are_still_to_come() -> None:
    """The key is free at once; what the reports derive is still taken, so that no report is left without its facts."""
    core = once()
    approval = core.approve()
    report = core.report(core.start(approval), PARTIAL)
    core.resolve(review_of(core), REJECT)
    assert {} == core.state.holds
    assert reasons.REVOKED == core.refuse_start(approval).reason_code
    fault = core.fault(core.revoking(approval))
    assert "it has been revoked" in fault.message
    successor = core.approve(trace_id="trace-2")
    core.derive(report)
    assert ({SUBJECT: successor.event_id}, [successor.event_id]) == (core.state.holds, list(core.state.decisions))
    core.prove()


def test_a_report_after_the_grant() -> None:
    """An attempt that a person wrote off by granting another one may still say what it did: that is kept, and a person is called."""
    core = once()
    approval = core.approve()
    started = core.start(approval)
    core.tick(1_000)
    core.resolve(review_of(core), APPROVE)
    kept = core.report(started, SUCCESS)
    assert "LateExecutionReport" == kept.event_name
    assert reasons.LATE_EXECUTION_REPORT == review_of(core).decision.reason_code
    core.resolve(review_of(core), REJECT)
    core.prove()


def test_a_report_after_the_end() -> None:
    """A late report of what a person has ended is kept and calls them again: they have not known what it says; its facts still come."""
    core = Core(document(retry={"max_attempts": 2, "human_takeover_after_ms": TAKEOVER_MS}))
    approval = core.approve()
    first = core.start(approval)
    core.pass_time(1_000)
    report = core.report(core.start(approval, OTHER_EXECUTOR), PARTIAL, OTHER_EXECUTOR)
    core.resolve(review_of(core), REJECT)
    assert "LateExecutionReport" == core.report(first, SUCCESS).event_name
    assert reasons.LATE_EXECUTION_REPORT == review_of(core).decision.reason_code
    assert {SUBJECT: approval.event_id} == core.state.holds
    core.derive(report)
    core.resolve(review_of(core), REJECT)
    assert ({}, {}) == (core.state.decisions, core.state.holds)
    core.prove()


def test_a_review_of_an_execution_does_not_close_its_trace() -> None:
    """Work goes on in the trace; its count of rejections begins anew with the verdict."""
    core = once()
    _, review = failed(core)
    before = core.decide([core.fact("order.status", "delivered", subject="order/2")], subject="order/3")
    assert (reasons.NO_FACT_INPUT, 1) == (before.reason_code, before.consecutive_rejections)
    core.resolve(review, APPROVE)
    assert 1 == core.decide([], subject="order/3").consecutive_rejections
    core.prove()


def test_where_to_resolve() -> None:
    """Whoever names the approved decision, or wants to revoke it, is told the review of its execution."""
    core = once()
    approval, review = failed(core)
    for command in (core.resolving(approval, REJECT), core.revoking(approval)):
        fault = core.fault(command)
        assert error_pb2.ERROR_REASON_WRONG_STATE == fault.reason
        assert review.event_id in fault.message
    grant = core.resolve(review, APPROVE)
    again = core.run(core.resolving(grant, APPROVE))
    assert isinstance(again, Fault)
    assert "did not ask for a person" in again.message
    core.prove()
