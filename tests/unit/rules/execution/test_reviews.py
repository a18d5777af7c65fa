"""Decisions of people about proposals: verdicts on reviews, and revocations (constitution §4.7.2, §5.6)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.common_pb2 import EventReference
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.commands import Fault
from gavel_rules.decider import handle
from gavel_rules.limits import TRACE_LAPSE_MS
from gavel_rules.replay import DivergedError

from tests.support.driver import SUBJECT, SUCCESS, Core, document, event_id, replay_log
from tests.support.entries import rechain

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
REVOKED = decision_pb2.OUTCOME_REVOKED
APPROVE = fact_pb2.REVIEW_VERDICT_APPROVE
REJECT = fact_pb2.REVIEW_VERDICT_REJECT
WRONG_STATE = error_pb2.ERROR_REASON_WRONG_STATE
NOT_FOUND = error_pb2.ERROR_REASON_DECISION_NOT_FOUND


def under_review(core: Core, subject: str = SUBJECT, trace_id: str = "trace-1", **changes: Any) -> Envelope:
    """Return the decision of a rule that requests a human review, about an order with all facts that the rules read."""
    status = core.fact("order.status", "delivered", subject=subject)
    core.fact("order.score", 0.95, subject=subject, trace_id="facts")
    decision = core.propose([status], subject=subject, trace_id=trace_id, **changes)
    assert (REVIEW, "FRAUD_SUSPECTED") == (decision.decision.outcome, decision.decision.reason_code)
    return decision


def at_the_limit(**changes: Any) -> tuple[Core, Envelope]:
    """Return a bus with a trace at its limit of rejections, and the decision that reached the limit."""
    core = Core(document(rejection_limit=2, **changes))
    note = core.fact("k.note", 1)
    decisions = [core.propose([note]) for _ in range(2)]
    assert reason_codes.REJECTION_LIMIT == decisions[-1].decision.reason_code
    return core, decisions[-1]


def subject_and_trace(event: Envelope) -> tuple[str, str, str]:
    """Return the subject, the trace and the cause of an event."""
    return event.subject, event.trace_id, event.causation_id


def test_a_verdict_is_a_fact_and_a_decision() -> None:
    """A verdict is a human_input FACT about the subject, followed by the DECISION that it causes, which names the review."""
    core = Core(document())
    review = under_review(core)
    decision = core.resolve(review, APPROVE)
    verdict = core.events[-2]
    assert (SUBJECT, "trace-1", review.event_id) == subject_and_trace(verdict)
    assert ("ReviewResolved", "gavel.review_resolved", "SYSTEM_gavel") == (
        verdict.event_name,
        verdict.fact.key,
        f"SYSTEM_{verdict.producer.id}",
    )
    assert fact_pb2.OBSERVED_FROM_HUMAN_INPUT == verdict.fact.observed_from
    resolved = verdict.fact.review_resolved
    assert (review.event_id, APPROVE, "ada", "seen") == (resolved.decision_id, resolved.verdict, resolved.reviewer, resolved.reason)
    assert (SUBJECT, "trace-1", verdict.event_id) == subject_and_trace(decision)
    assert (review.event_id, review.decision.proposal_id) == (decision.decision.previous_decision_id, decision.decision.proposal_id)
    core.prove()


def test_approving_a_review_of_a_rule() -> None:
    """The approval of a review has action, evidence, time limit and key, and is executed under its own id."""
    core = Core(document())
    review = under_review(core)
    core.pass_time(1_000)
    approval = core.resolve(review, APPROVE)
    decision, basis = approval.decision, review.decision
    assert (APPROVED, "") == (decision.outcome, decision.reason_code)
    assert (basis.params, basis.action_type) == (decision.params, decision.action_type)
    assert (basis.policy_id, basis.rule_id, basis.rule_set_digest) == (decision.policy_id, decision.rule_id, decision.rule_set_digest)
    assert ["order.score", "order.status"] == [pin.key for pin in decision.pinned_facts]
    assert core.now_ms + 10_000 == decision.valid_until.ToMilliseconds()
    assert core.state.conflict_keys == {SUBJECT: approval.event_id}
    assert {} == core.state.reviews
    core.derive(core.report(core.start(approval), SUCCESS))
    assert {} == core.state.conflict_keys
    core.prove()


def test_approval_by_a_person_pins_the_latest_evidence() -> None:
    """The approval pins the latest evidence, even if the rules refuse it now."""
    core = Core(document())
    review = under_review(core)
    newer = core.fact("order.status", "cancelled")
    decision = core.resolve(review, APPROVE).decision
    assert (APPROVED, newer.event_id) == (decision.outcome, decision.pinned_facts[-1].event_id)
    core.prove()


@pytest.mark.parametrize(
    ("happening", "reason_code", "missing"),
    [("stale", reason_codes.STALE_FACTS, ["order.score", "order.status"]), ("retracted", reason_codes.NEED_MORE_FACTS, ["order.status"])],
)
def test_approval_by_a_person_needs_the_evidence(happening: str, reason_code: str, missing: list[str]) -> None:
    """Without the required evidence the answer names what is missing, and the review stays open."""
    core = Core(document())
    review = under_review(core)
    if happening == "stale":
        core.pass_time(60_001)
    else:
        core.fact("order.status", None)
    answer = core.resolve(review, APPROVE).decision
    assert (REVIEW, reason_code, review.event_id) == (answer.outcome, answer.reason_code, answer.previous_decision_id)
    assert missing == list(answer.retry_hint.missing_fact_keys)
    assert [review.event_id] == list(core.state.reviews)
    assert reason_codes.UNDER_REVIEW == core.decide([]).reason_code
    core.fact("order.status", "delivered")
    core.fact("order.score", 0.95, trace_id="facts")
    assert APPROVED == core.resolve(review, APPROVE).decision.outcome
    core.prove()


def test_approving_while_the_key_is_held() -> None:
    """While another decision holds the key, a review cannot be approved; the answer names the holder."""
    core = Core(document())
    review = under_review(core)
    core.fact("order.score", 0.1, trace_id="facts")
    holder = core.approve(trace_id="trace-2")
    answer = core.resolve(review, APPROVE).decision
    assert (REVIEW, reason_codes.CONFLICTING_DECISION) == (answer.outcome, answer.reason_code)
    assert [holder.decision.proposal_id] == list(answer.conflict_with_proposal_ids)
    core.revoke(holder)
    assert APPROVED == core.resolve(review, APPROVE).decision.outcome
    core.prove()


def test_releasing_a_trace_of_contradicting_readings() -> None:
    """Approving the review of contradicting readings approves no action."""
    core = Core(document())
    result = core.tool_result()
    status = core.fact("order.status", "delivered")
    review = core.propose([status, *(core.observe("order.score", score, evidence=result) for score in (0.95, 0.2))])
    assert reason_codes.CONFLICTING_EVIDENCE == review.decision.reason_code
    assert reason_codes.REVIEW_RELEASED == core.resolve(review, APPROVE).decision.reason_code
    assert reason_codes.CONFLICTING_EVIDENCE == core.decide([status]).reason_code
    core.prove()


def test_readings_that_become_contradictory_during_a_review() -> None:
    """A person does not overrule evidence that has become contradictory: the review stays open."""
    core = Core(document())
    result = core.tool_result()
    status, score = core.fact("order.status", "delivered"), core.observe("order.score", 0.95, evidence=result)
    review = core.propose([status, score])
    assert "FRAUD_SUSPECTED" == review.decision.reason_code
    core.observe("order.score", 0.2, evidence=result)
    answer = core.resolve(review, APPROVE).decision
    assert (REVIEW, reason_codes.CONFLICTING_EVIDENCE) == (answer.outcome, answer.reason_code)
    assert [reason_codes.CONFLICTING_EVIDENCE] == [warning.code for warning in answer.warnings]
    assert [review.event_id] == list(core.state.reviews)
    core.prove()


def test_review_uses_the_rule_sets_of_its_decision() -> None:
    """An approval needs the evidence that the rule sets of the decision require, whichever are active at the verdict."""
    core = Core(document())
    review = under_review(core)
    core.deactivate("refunds")
    decision = core.resolve(review, APPROVE).decision
    assert (APPROVED, review.decision.active_rule_sets) == (decision.outcome, decision.active_rule_sets)
    core.start(core.events[-1])
    core.prove()


def test_releasing_a_trace() -> None:
    """Approving a review of Gavel's own approves no action: the DECISION is an uncounted refusal, and the trace is open again."""
    core, review = at_the_limit()
    decision = core.resolve(review, APPROVE).decision
    assert (REJECTED, reason_codes.REVIEW_RELEASED, False) == (decision.outcome, decision.reason_code, decision.terminal)
    assert ("gavel", True, 0) == (decision.policy_id, decision.retry_hint.retryable, decision.consecutive_rejections)
    next_decision = core.decide([core.fact("k.note", 2)])
    assert (reason_codes.NEED_MORE_FACTS, 1) == (next_decision.reason_code, next_decision.consecutive_rejections)
    assert APPROVED == core.decide([core.fact("order.status", "delivered")]).outcome
    core.prove()


def test_releasing_a_trace_with_unknown_citations() -> None:
    """A trace at its limit for unknown citations is reopened like any other."""
    core = Core(document(rejection_limit=1))
    unknown = EventReference(event_id=core.new_id(), sequence_number=1)
    review = core.propose(references=[unknown])
    assert [reason_codes.UNKNOWN_EVENT] == sorted({warning.code for warning in review.decision.warnings})
    assert reason_codes.REVIEW_RELEASED == core.resolve(review, APPROVE).decision.reason_code
    core.prove()


@pytest.mark.parametrize("own", [True, False])
def test_rejecting_ends_the_trace_for_the_action_and_subject(own: bool) -> None:
    """An action that a person rejects stays closed for the trace despite newer facts; refusals of it are terminal and uncounted."""
    core, review = at_the_limit() if own else (Core(document()), None)
    review = review or under_review(core)
    decision = core.resolve(review, REJECT).decision
    assert (REJECTED, reason_codes.REVIEW_REJECTED, True) == (decision.outcome, decision.reason_code, decision.terminal)
    core.fact("order.score", 0.1, trace_id="facts")
    status = core.fact("order.status", "delivered")
    for _ in range(3):
        next_decision = core.decide([status])
        assert (REJECTED, reason_codes.NO_FEASIBLE_PROPOSAL, True) == (
            next_decision.outcome,
            next_decision.reason_code,
            next_decision.terminal,
        )
        assert (0, False) == (next_decision.consecutive_rejections, next_decision.retry_hint.retryable)
    other = core.fact("order.status", "delivered", subject="order/2")
    assert APPROVED == core.decide([other], subject="order/2").outcome
    assert APPROVED == core.decide([status], trace_id="trace-2").outcome
    assert reason_codes.NO_ACTIVE_POLICY == core.decide([status], action_type="refund.undo").reason_code
    core.prove()


def test_closure_by_a_person_does_not_lapse() -> None:
    """A closure by a person survives a day of silence."""
    core = Core(document())
    core.resolve(under_review(core), REJECT)
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.fact("k.note", 1)
    assert reason_codes.NO_FEASIBLE_PROPOSAL == core.decide([core.fact("order.status", "delivered")]).reason_code
    core.prove()


def test_a_trace_under_review_keeps_its_tool_evidence() -> None:
    """Once a review is resolved, observations of its trace have the same tier as before: its tool results are still known."""
    core = Core(document())
    result = core.tool_result()
    review = under_review(core)
    core.resolve(review, REJECT)
    assert 2 == core.observe("order.note", "x", evidence=result).observation.trust_tier
    core.prove()


def test_a_second_verdict() -> None:
    """A review is resolved once; a second verdict, and a verdict on any other decision, is refused with the reason."""
    core = Core(document())
    review = under_review(core)
    core.pass_time(60_001)
    left_open = core.resolve(review, APPROVE)
    messages = [core.fault(core.resolution(left_open, APPROVE)).message]
    core.resolve(review, REJECT)
    approval = core.approve("order/2", trace_id="trace-2")
    for decision in (review, approval):
        fault = core.fault(core.resolution(decision, APPROVE))
        assert WRONG_STATE == fault.reason
        messages.append(fault.message)
    expected = [
        f"left a review open, which is {review.event_id}",
        "has no open review: it has been resolved",
        "has no open review: it did not ask",
    ]
    assert [True] * 3 == [part in message for part, message in zip(expected, messages, strict=True)], messages
    assert NOT_FOUND == core.fault(core.resolution(review, APPROVE, decision_id=event_id(999_999))).reason
    core.prove()


def test_revoking_an_approval() -> None:
    """Revoking an approval without an attempt records a FACT and a DECISION REVOKED, and frees the key."""
    core = Core(document())
    approval = core.approve()
    decision = core.revoke(approval).decision
    verdict = core.events[-2]
    assert ("RevocationRequested", SUBJECT, approval.event_id) == (verdict.event_name, verdict.subject, verdict.causation_id)
    request = verdict.fact.revocation_requested
    assert (approval.event_id, "ada", "mistake") == (request.decision_id, request.revoked_by, request.reason)
    assert (REVOKED, reason_codes.REVOKED, approval.event_id) == (decision.outcome, decision.reason_code, decision.previous_decision_id)
    assert ({}, {}) == (core.state.conflict_keys, core.state.decisions)
    assert reason_codes.REVOKED == core.refuse_start(approval).reason_code
    assert [] == core.tick(20_000)
    assert reason_codes.REVOKED == core.refuse_start(approval).reason_code
    core.approve(trace_id="trace-2")
    core.prove()


def test_an_executor_that_comes_with_the_revocation() -> None:
    """A begin resolved before a revocation and handled after it is refused with REVOKED, not EXPIRED."""
    core = Core(document())
    approval = core.approve()
    looked_up = core.references(core.renewal(core.start(core.approve("order/2"))))
    assert "" == looked_up.end_reason
    before = core.references(core.revocation(approval))
    assert reason_codes.EXPIRED == before.end_reason
    core.revoke(approval)
    core.references = lambda command: before  # type: ignore[method-assign]
    assert reason_codes.REVOKED == core.refuse_start(approval).reason_code


def test_revoking_too_late() -> None:
    """A decision that has begun, ended, expired or was never approved cannot be revoked; the fault names the reason."""
    core = Core(document())
    executing, success, expiry, revocation = (core.approve(f"order/{number}", trace_id=f"trace-{number}") for number in range(4))
    attempt = core.start(executing, lease_ms=60_000)
    core.derive(core.report(core.start(success), SUCCESS))
    core.revoke(revocation)
    core.tick(10_000)
    rejection = core.propose([], trace_id="trace-9")
    expected = {
        executing.event_id: "its execution has begun",
        success.event_id: "its execution is over",
        expiry.event_id: "it has expired",
        revocation.event_id: "it has been revoked",
        rejection.event_id: "is not an approval but REJECTED",
    }
    for decision_id, part in expected.items():
        fault = core.fault(core.revocation(executing, decision_id=decision_id))
        assert (WRONG_STATE, True) == (fault.reason, part in fault.message), fault.message
    assert NOT_FOUND == core.fault(core.revocation(executing, decision_id=event_id(999_999))).reason
    core.report(attempt, SUCCESS)
    core.prove()


def test_a_verdict_that_comes_with_the_expiry() -> None:
    """An approval that is due to expire expires before its revocation is handled."""
    core = Core(document())
    approval = core.approve()
    core.pass_time(10_000)
    answer = core.run(core.revocation(approval))
    assert isinstance(answer, Fault)
    assert "it has expired" in answer.message
    assert "DecisionExpired" == core.events[-1].event_name
    core.prove()


def test_verdicts_are_undone_with_their_batch() -> None:
    """Undoing a verdict restores the state."""
    core = Core(document())
    for number, verdict in enumerate((APPROVE, REJECT)):
        review = under_review(core, f"order/{number}", f"trace-{number}")
        before, mark = core.state.digest(), core.state.mark()
        command = core.resolution(review, verdict)
        assert 2 == len(handle(core.state, command, core.references(command), core.now_ms).envelopes)
        core.state.undo(mark)
        assert before == core.state.digest()


def test_replay_from_between_verdict_and_decision() -> None:
    """A replay may begin between the FACT and the DECISION of a verdict; it does not compare that DECISION."""
    core = Core(document())
    core.resolve(under_review(core), REJECT)
    core.fact("k.note", 1)
    assert 1 == replay_log(core.bus, core.records, compare_from=len(core.events) - 1).events


def test_forged_verdict_decision_is_found() -> None:
    """A replay diverges at a DECISION that does not follow from its verdict."""
    core = Core(document())
    core.resolve(under_review(core), REJECT)
    core.events[-1].decision.outcome = APPROVED
    with pytest.raises(DivergedError) as failure:
        replay_log(core.bus, rechain(core.bus, core.events))
    assert len(core.events) == failure.value.divergence.sequence_number


@pytest.mark.parametrize(("field", "forged"), [("key", "order.status"), ("max_age_ms", 5), ("observed_from", fact_pb2.OBSERVED_FROM_API)])
@pytest.mark.parametrize("revoked", [True, False])
def test_forged_verdict_fact_is_found(field: str, forged: object, revoked: bool) -> None:
    """A replay takes only the verdict from its FACT, and recomputes the other fields."""
    core = Core(document())
    _ = core.revoke(core.approve()) if revoked else core.resolve(under_review(core), REJECT)
    word = core.events[-2]
    assert word.event_name in ("RevocationRequested", "ReviewResolved")
    setattr(word.fact, field, forged)
    with pytest.raises(DivergedError) as failure:
        replay_log(core.bus, rechain(core.bus, core.events))
    assert word.sequence_number == failure.value.divergence.sequence_number
    assert [f"fact.{field}"] == [difference.path for difference in failure.value.divergence.differences]


def test_approval_with_insufficient_tier_requests_facts() -> None:
    """If the evidence for a person's approval has an insufficient tier, its facts are requested as after a refusal."""
    core = Core(document())
    review = under_review(core)
    core.fact("order.status", 7)
    core.observe("order.status", "delivered", tool="orders-db")
    answer = core.resolve(review, APPROVE)
    assert (REVIEW, reason_codes.INSUFFICIENT_EVIDENCE_TIER) == (answer.decision.outcome, answer.decision.reason_code)
    (request,) = core.events_named("FactCollectionRequested")
    assert (answer.event_id, answer.sequence_number + 1) == (request.causation_id, request.sequence_number)
    assert answer.decision.retry_hint.fact_requirements == request.agent_diagnostic.fact_collection.fact_requirements
    assert subject_and_trace(answer)[:2] == subject_and_trace(request)[:2]
    core.prove()
