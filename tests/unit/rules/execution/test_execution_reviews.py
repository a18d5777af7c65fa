"""Reviews of executions: a grant of one more attempt, or the end (constitution §7.1)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel_rules import reason_codes
from gavel_rules.commands import EventAnswer, Fault, References, RenewExecution, ReportExecution
from gavel_rules.decider import handle
from gavel_rules.events.ids import derived_event_id
from gavel_server.bus.idempotency.same_request import is_same_request
from gavel_server.services.reads.views import pending_decision

from tests.support.driver import EXECUTOR, FAILED, OTHER_EXECUTOR, PARTIAL, SUBJECT, SUCCESS, TIMEOUT, Core, copy_command, document

APPROVED = decision_pb2.OUTCOME_APPROVED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
REVOKED = decision_pb2.OUTCOME_REVOKED
APPROVE = fact_pb2.REVIEW_VERDICT_APPROVE
REJECT = fact_pb2.REVIEW_VERDICT_REJECT
TAKEOVER_MS = 5_000


def single_attempt_bus(**changes: Any) -> Core:
    """Return a bus whose action allows one attempt."""
    return Core(document(retry={"max_attempts": 1, "human_takeover_after_ms": TAKEOVER_MS}, **changes))


def fail_only_attempt(core: Core) -> tuple[Envelope, Envelope]:
    """Let the only attempt at an approval fail; return the approval and its review."""
    approval = core.approve()
    core.derive(core.report(core.start(approval), FAILED))
    return approval, review_of(core)


def review_of(core: Core) -> Envelope:
    """Return the decision of the only open review."""
    (review,) = core.state.reviews.values()
    return review.decision


def test_one_more_attempt() -> None:
    """Approving grants one more attempt at the same decision, on the latest evidence, to begin within the takeover time."""
    core = single_attempt_bus()
    approval, review = fail_only_attempt(core)
    newer = core.fact("order.status", "delivered")
    grant = core.resolve(review, APPROVE)
    decision = grant.decision
    assert (APPROVED, review.event_id, approval.decision.params) == (decision.outcome, decision.previous_decision_id, decision.params)
    assert [newer.event_id] == [pin.event_id for pin in decision.pinned_facts]
    assert (2, core.now_ms + TAKEOVER_MS) == (decision.retry_policy.max_attempts, decision.valid_until.ToMilliseconds())
    assert {SUBJECT: approval.event_id} == core.state.conflict_keys
    attempt = core.start(grant)
    assert (approval.event_id, 2) == (attempt.execution.decision_id, attempt.execution.attempt)
    assert reason_codes.ALREADY_RUNNING == core.refuse_start(approval).reason_code
    core.derive(core.report(attempt, SUCCESS))
    assert ({}, {}, {}, {}) == (core.state.decisions, core.state.conflict_keys, core.state.reviews, core.state.grants)
    assert [reason_codes.ALREADY_FINISHED] * 2 == [core.refuse_start(decision).reason_code for decision in (grant, approval)]
    core.prove()


def test_granted_attempt_has_two_ids() -> None:
    """An attempt may be begun, renewed and reported under the grant's id; the log records the approval's id."""
    core = single_attempt_bus()
    approval, review = fail_only_attempt(core)
    grant = core.resolve(review, APPROVE)
    began = core.start(grant).execution
    renewal = core.run(RenewExecution(grant.event_id, began.execution_id, EXECUTOR, 2_000))
    assert isinstance(renewal, EventAnswer)
    report = Envelope(producer=EXECUTOR, execution=Execution(decision_id=grant.event_id, execution_id=began.execution_id, status=SUCCESS))
    command = ReportExecution(core.admit(report))
    before, mark = command.envelope.SerializeToString(), core.state.mark()
    handle(core.state, command, core.references(command), core.now_ms)
    core.state.undo(mark)
    assert grant.event_id == Envelope.FromString(before).execution.decision_id == command.envelope.execution.decision_id
    answer = core.run(copy_command(command))
    assert isinstance(answer, EventAnswer)
    assert {approval.event_id} == {answer.envelope.execution.decision_id, renewal.envelope.execution.decision_id}
    assert approval.event_id == answer.envelope.causation_id
    assert is_same_request(answer.envelope, command.envelope)
    core.derive(answer.envelope)
    assert {} == core.state.decisions
    core.prove()


def test_verdict_on_a_review_opened_by_its_own_command() -> None:
    """A verdict on a review that a timer opens in the same command is refused, because its citations were not looked up."""
    core = single_attempt_bus()
    approval = core.approve()
    core.start(approval)
    core.pass_time(1_000)
    foreseen = derived_event_id(approval.event_id, approval.sequence_number, "lease-lapsed-1")
    command = core.resolution(Envelope(event_id=foreseen), APPROVE)
    handled = handle(core.state, command, References(), core.now_ms)
    assert isinstance(handled.answer, Fault)
    assert "resubmit the verdict" in handled.answer.message
    assert [foreseen] == [event.event_id for event in handled.envelopes]


def test_report_of_an_ended_decision_names_the_end() -> None:
    """A report or renewal of a decision that has ended, or was never approved, is refused with the state of the decision."""
    core = single_attempt_bus()
    success = core.approve()
    attempt = core.start(success)
    core.derive(core.report(attempt, SUCCESS))
    report = core.report_command(attempt, SUCCESS)
    assert "its execution is over" in core.fault(report).message
    revocation = core.approve("order/2")
    core.revoke(revocation)
    assert "it has been revoked" in core.fault(RenewExecution(revocation.event_id, "exec_000000000000", EXECUTOR, 1_000)).message
    superseded = core.approve("order/3")
    core.fact("order.status", "returned", subject="order/3")
    core.refuse_start(superseded)
    core.derive(core.events[-1])
    fault = core.fault(RenewExecution(superseded.event_id, "exec_000000000000", EXECUTOR, 1_000))
    assert "its evidence had changed before its first start" in fault.message
    rejection = core.propose([])
    fault = core.fault(RenewExecution(rejection.event_id, "x", EXECUTOR, 1_000))
    assert "is not an approval but REJECTED; there is nothing to carry out" in fault.message


@pytest.mark.parametrize("end", ["carried out", "revoked"])
def test_every_grant_names_the_decision(end: str) -> None:
    """The id of an earlier grant gets the same answers as the approval's id, while the decision lives and after its end."""
    core = single_attempt_bus()
    approval, review = fail_only_attempt(core)
    grants = []
    for _ in range(2):
        grants.append(core.resolve(review, APPROVE))
        core.derive(core.report(core.start(grants[-1]), FAILED))
        review = review_of(core)
        assert {reason_codes.UNDER_REVIEW} == {core.refuse_start(one).reason_code for one in (approval, *grants)}
    grants.append(core.resolve(review, APPROVE))
    attempt = core.start(grants[0], OTHER_EXECUTOR)
    assert (approval.event_id, 4) == (attempt.execution.decision_id, attempt.execution.attempt)
    assert {reason_codes.ALREADY_RUNNING} == {core.refuse_start(one).reason_code for one in (approval, *grants)}
    core.derive(core.report(attempt, SUCCESS if end == "carried out" else FAILED, OTHER_EXECUTOR))
    if end == "revoked":
        core.resolve(review_of(core), REJECT)
    assert ({}, {}) == (core.state.decisions, core.state.grants)
    expected = reason_codes.ALREADY_FINISHED if end == "carried out" else reason_codes.REVOKED
    assert {expected} == {core.refuse_start(one).reason_code for one in (approval, *grants)}
    core.prove()


def test_projection_shows_the_time_of_a_grant() -> None:
    """The projection shows the grant's `valid_until`, not that of the approval, which has passed."""
    core = single_attempt_bus()
    approval, review = fail_only_attempt(core)
    assert approval.decision.valid_until == pending_decision(core.state.decisions[approval.event_id]).valid_until
    grant = core.resolve(review, APPROVE)
    assert approval.decision.valid_until != grant.decision.valid_until
    assert grant.decision.valid_until == pending_decision(core.state.decisions[approval.event_id]).valid_until


def test_the_granted_attempt_is_the_last() -> None:
    """If the granted attempt fails too, a human review is requested again and may grant another one."""
    core = single_attempt_bus()
    approval, review = fail_only_attempt(core)
    for attempt in (2, 3):
        grant = core.resolve(review, APPROVE)
        report = core.report(core.start(approval), TIMEOUT)
        assert (attempt, False) == (report.execution.attempt, report.execution.will_retry)
        review = review_of(core)
        assert reason_codes.ATTEMPTS_EXHAUSTED == review.decision.reason_code
        assert reason_codes.UNDER_REVIEW == core.refuse_start(grant).reason_code
    core.prove()


def test_grant_allows_one_attempt() -> None:
    """A grant is for one attempt even if the policy has attempts left; after it a human review is requested again."""
    core = Core(document(retry={"max_attempts": 5, "human_takeover_after_ms": TAKEOVER_MS}))
    approval = core.approve()
    core.start(approval)
    core.tick(1_000 + TAKEOVER_MS)
    assert reason_codes.EXECUTION_ABANDONED == review_of(core).decision.reason_code
    core.resolve(review_of(core), APPROVE)
    assert not core.report(core.start(approval), FAILED).execution.will_retry
    assert reason_codes.ATTEMPTS_EXHAUSTED == review_of(core).decision.reason_code
    core.prove()


def test_grant_that_is_not_begun_calls_again() -> None:
    """A grant does not hold the key for ever: after the takeover time a human review is requested again, each time by its own event."""
    core = single_attempt_bus()
    approval = core.approve()
    core.start(approval)
    core.tick(1_000)
    for _ in range(2):
        core.resolve(review_of(core), APPROVE)
        assert [] == core.tick(TAKEOVER_MS - 1)
        (call,) = core.tick(1)
        assert (REVIEW, reason_codes.EXECUTION_ABANDONED) == (call.decision.outcome, call.decision.reason_code)
    core.resolve(review_of(core), APPROVE)
    core.start(approval)
    (call,) = core.tick(1_000)
    assert reason_codes.ATTEMPTS_EXHAUSTED == call.decision.reason_code
    core.prove()


def test_a_grant_needs_the_evidence() -> None:
    """A person cannot overrule stale or retracted evidence: the review stays open under its first decision, and the key stays held."""
    core = single_attempt_bus()
    approval, review = fail_only_attempt(core)
    core.pass_time(60_001)
    answer = core.resolve(review, APPROVE).decision
    assert (REVIEW, reason_codes.STALE_FACTS, review.event_id) == (answer.outcome, answer.reason_code, answer.previous_decision_id)
    assert ([review.event_id], {SUBJECT: approval.event_id}) == (list(core.state.reviews), core.state.conflict_keys)
    assert reason_codes.UNDER_REVIEW == core.refuse_start(approval).reason_code
    core.fact("order.status", "delivered")
    assert APPROVED == core.resolve(review, APPROVE).decision.outcome
    core.prove()


def test_facts_that_change_after_a_grant() -> None:
    """The granted attempt rests on the evidence of the grant: if that changes before it begins, a human review is requested again."""
    core = single_attempt_bus()
    approval, review = fail_only_attempt(core)
    for _ in range(2):
        core.resolve(review, APPROVE)
        core.fact("order.status", "delivered")
        assert reason_codes.RETRY_FACTS_CHANGED == core.refuse_start(approval).reason_code
        review = review_of(core)
    core.resolve(review, APPROVE)
    core.start(approval)
    core.prove()


def test_ending_an_execution() -> None:
    """Rejecting ends the decision with REVOKED and frees the key; no attempt can begin."""
    core = single_attempt_bus()
    approval, review = fail_only_attempt(core)
    decision = core.resolve(review, REJECT).decision
    assert (REVOKED, reason_codes.REVOKED, review.event_id) == (decision.outcome, decision.reason_code, decision.previous_decision_id)
    assert ({}, {}, {}) == (core.state.decisions, core.state.conflict_keys, core.state.reviews)
    assert reason_codes.REVOKED == core.refuse_start(approval).reason_code
    core.approve(trace_id="trace-2")
    core.prove()


def test_ending_an_execution_that_awaits_facts() -> None:
    """The key is free at once; derived facts are still accepted, so that no report is left without its facts."""
    core = single_attempt_bus()
    approval = core.approve()
    report = core.report(core.start(approval), PARTIAL)
    core.resolve(review_of(core), REJECT)
    assert {} == core.state.conflict_keys
    assert reason_codes.REVOKED == core.refuse_start(approval).reason_code
    fault = core.fault(core.revocation(approval))
    assert "it has been revoked" in fault.message
    successor = core.approve(trace_id="trace-2")
    core.derive(report)
    assert ({SUBJECT: successor.event_id}, [successor.event_id]) == (core.state.conflict_keys, list(core.state.decisions))
    core.prove()


def test_a_report_after_the_grant() -> None:
    """An attempt may report after a person has granted another one: the report is recorded as late and requests a human review."""
    core = single_attempt_bus()
    approval = core.approve()
    attempt = core.start(approval)
    core.tick(1_000)
    core.resolve(review_of(core), APPROVE)
    record = core.report(attempt, SUCCESS)
    assert "LateExecutionReport" == record.event_name
    assert reason_codes.LATE_EXECUTION_REPORT == review_of(core).decision.reason_code
    core.resolve(review_of(core), REJECT)
    core.prove()


def test_a_report_after_the_end() -> None:
    """A late report on a decision that a person ended is recorded and calls them again; derived facts are still accepted."""
    core = Core(document(retry={"max_attempts": 2, "human_takeover_after_ms": TAKEOVER_MS}))
    approval = core.approve()
    first = core.start(approval)
    core.pass_time(1_000)
    report = core.report(core.start(approval, OTHER_EXECUTOR), PARTIAL, OTHER_EXECUTOR)
    core.resolve(review_of(core), REJECT)
    assert "LateExecutionReport" == core.report(first, SUCCESS).event_name
    assert reason_codes.LATE_EXECUTION_REPORT == review_of(core).decision.reason_code
    assert {SUBJECT: approval.event_id} == core.state.conflict_keys
    core.derive(report)
    core.resolve(review_of(core), REJECT)
    assert ({}, {}) == (core.state.decisions, core.state.conflict_keys)
    core.prove()


def test_a_review_of_an_execution_does_not_close_its_trace() -> None:
    """The review of an execution does not close its trace; the verdict resets the count of rejections."""
    core = single_attempt_bus()
    _, review = fail_only_attempt(core)
    before = core.decide([core.fact("order.status", "delivered", subject="order/2")], subject="order/3")
    assert (reason_codes.NO_FACT_INPUT, 1) == (before.reason_code, before.consecutive_rejections)
    core.resolve(review, APPROVE)
    assert 1 == core.decide([], subject="order/3").consecutive_rejections
    core.prove()


def test_where_to_resolve() -> None:
    """A verdict on the approval, or its revocation, is refused with the id of the open review."""
    core = single_attempt_bus()
    approval, review = fail_only_attempt(core)
    for command in (core.resolution(approval, REJECT), core.revocation(approval)):
        fault = core.fault(command)
        assert error_pb2.ERROR_REASON_WRONG_STATE == fault.reason
        assert review.event_id in fault.message
    grant = core.resolve(review, APPROVE)
    answer = core.run(core.resolution(grant, APPROVE))
    assert isinstance(answer, Fault)
    assert "did not ask for a person" in answer.message
    core.prove()
