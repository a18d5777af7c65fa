"""What people decide about proposals: verdicts on reviews, and approvals taken back (seeds 002 §4.7.2, §5.6)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.common_pb2 import EventReference
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reasons
from gavel_rules.commands import Fault
from gavel_rules.decider import handle
from gavel_rules.limits import TRACE_LAPSE_MS
from gavel_rules.replay import DivergedError

from tests.unit.core.driver import SUBJECT, SUCCESS, Core, document, event_id, rechained, replayed

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
REVOKED = decision_pb2.OUTCOME_REVOKED
APPROVE = fact_pb2.REVIEW_VERDICT_APPROVE
REJECT = fact_pb2.REVIEW_VERDICT_REJECT
WRONG_STATE = error_pb2.ERROR_REASON_WRONG_STATE
NOT_FOUND = error_pb2.ERROR_REASON_DECISION_NOT_FOUND


def under_review(core: Core, subject: str = SUBJECT, trace_id: str = "trace-1", **changes: Any) -> Envelope:
    """The decision of a rule that calls a person, about an order with everything that the rules read."""
    status = core.fact("order.status", "delivered", subject=subject)
    core.fact("order.score", 0.95, subject=subject, trace_id="facts")
    decision = core.propose([status], subject=subject, trace_id=trace_id, **changes)
    assert (REVIEW, "FRAUD_SUSPECTED") == (decision.decision.outcome, decision.decision.reason_code)
    return decision


def at_the_limit(**changes: Any) -> tuple[Core, Envelope]:
    """A bus with a trace that has come to its limit of rejections, and the decision that says so."""
    core = Core(document(rejection_limit=2, **changes))
    note = core.fact("k.note", 1)
    decisions = [core.propose([note]) for _ in range(2)]
    assert reasons.REJECTION_LIMIT == decisions[-1].decision.reason_code
    return core, decisions[-1]


def about(event: Envelope) -> tuple[str, str, str]:
    """Where an event belongs."""
    return event.subject, event.trace_id, event.causation_id


def test_a_verdict_is_a_fact_and_a_decision() -> None:
    """Who said what and why is a human_input FACT about the subject; the DECISION follows it, caused by it, and names the review."""
    core = Core(document())
    review = under_review(core)
    decision = core.resolve(review, APPROVE)
    said = core.events[-2]
    assert (SUBJECT, "trace-1", review.event_id) == about(said)
    assert ("ReviewResolved", "gavel.review_resolved", "SYSTEM_gavel") == (said.event_name, said.fact.key, f"SYSTEM_{said.producer.id}")
    assert fact_pb2.OBSERVED_FROM_HUMAN_INPUT == said.fact.observed_from
    resolved = said.fact.review_resolved
    assert (review.event_id, APPROVE, "ada", "seen") == (resolved.decision_id, resolved.verdict, resolved.reviewer, resolved.reason)
    assert (SUBJECT, "trace-1", said.event_id) == about(decision)
    assert (review.event_id, review.decision.proposal_id) == (decision.decision.previous_decision_id, decision.decision.proposal_id)
    core.prove()


def test_approving_what_a_rule_sent_to_a_person() -> None:
    """It is an approval like any other: bound to action, evidence, time and key, and carried out under its own id."""
    core = Core(document())
    review = under_review(core)
    core.pass_time(1_000)
    approval = core.resolve(review, APPROVE)
    decision, asked = approval.decision, review.decision
    assert (APPROVED, "") == (decision.outcome, decision.reason_code)
    assert (asked.params, asked.action_type) == (decision.params, decision.action_type)
    assert (asked.policy_id, asked.rule_id, asked.rule_set_digest) == (decision.policy_id, decision.rule_id, decision.rule_set_digest)
    assert ["order.score", "order.status"] == [pin.key for pin in decision.pinned_facts]
    assert core.now_ms + 10_000 == decision.valid_until.ToMilliseconds()
    assert core.state.holds == {SUBJECT: approval.event_id}
    assert {} == core.state.reviews
    core.derive(core.report(core.start(approval), SUCCESS))
    assert {} == core.state.holds
    core.prove()


def test_an_approval_by_a_person_rests_on_the_latest_evidence() -> None:
    """What changed while the person looked is what is pinned, also where the rules would say otherwise now."""
    core = Core(document())
    review = under_review(core)
    newer = core.fact("order.status", "cancelled")
    decision = core.resolve(review, APPROVE).decision
    assert (APPROVED, newer.event_id) == (decision.outcome, decision.pinned_facts[-1].event_id)
    core.prove()


@pytest.mark.parametrize(
    ("happening", "reason_code", "missing"),
    [("stale", reasons.STALE_FACTS, ["order.score", "order.status"]), ("retracted", reasons.NEED_MORE_FACTS, ["order.status"])],
)
def test_a_person_overrules_rules_and_not_facts(happening: str, reason_code: str, missing: list[str]) -> None:
    """Where the evidence is not as required any more, the answer says what is missing, and the review stays open as it was."""
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
    assert reasons.UNDER_REVIEW == core.decide([]).reason_code
    core.fact("order.status", "delivered")
    core.fact("order.score", 0.95, trace_id="facts")
    assert APPROVED == core.resolve(review, APPROVE).decision.outcome
    core.prove()


def test_approving_while_the_key_is_held() -> None:
    """A person cannot approve past a live decision on the same conflict key; the answer names it."""
    core = Core(document())
    review = under_review(core)
    core.fact("order.score", 0.1, trace_id="facts")
    holder = core.approve(trace_id="trace-2")
    answer = core.resolve(review, APPROVE).decision
    assert (REVIEW, reasons.CONFLICTING_DECISION) == (answer.outcome, answer.reason_code)
    assert [holder.decision.proposal_id] == list(answer.conflict_with_proposal_ids)
    core.revoke(holder)
    assert APPROVED == core.resolve(review, APPROVE).decision.outcome
    core.prove()


def test_releasing_a_trace_of_contradicting_readings() -> None:
    """Approving the review of contradicting readings approves no action either."""
    core = Core(document())
    result = core.tool_result()
    status = core.fact("order.status", "delivered")
    review = core.propose([status, *(core.observe("order.score", score, evidence=result) for score in (0.95, 0.2))])
    assert reasons.CONFLICTING_EVIDENCE == review.decision.reason_code
    assert reasons.REVIEW_RELEASED == core.resolve(review, APPROVE).decision.reason_code
    assert reasons.CONFLICTING_EVIDENCE == core.decide([status]).reason_code
    core.prove()


def test_readings_that_contradict_each_other_while_a_person_looks() -> None:
    """Evidence that has been read in two ways since is not overruled: the review stays open."""
    core = Core(document())
    result = core.tool_result()
    status, score = core.fact("order.status", "delivered"), core.observe("order.score", 0.95, evidence=result)
    review = core.propose([status, score])
    assert "FRAUD_SUSPECTED" == review.decision.reason_code
    core.observe("order.score", 0.2, evidence=result)
    answer = core.resolve(review, APPROVE).decision
    assert (REVIEW, reasons.CONFLICTING_EVIDENCE) == (answer.outcome, answer.reason_code)
    assert [reasons.CONFLICTING_EVIDENCE] == [warning.code for warning in answer.warnings]
    assert [review.event_id] == list(core.state.reviews)
    core.prove()


def test_the_rule_sets_that_were_asked_count() -> None:
    """A review is judged by the evidence that its own rule sets require, whatever is in force when the person speaks."""
    core = Core(document())
    review = under_review(core)
    core.deactivate("refunds")
    decision = core.resolve(review, APPROVE).decision
    assert (APPROVED, review.decision.active_rule_sets) == (decision.outcome, decision.active_rule_sets)
    core.start(core.events[-1])
    core.prove()


def test_releasing_a_trace() -> None:
    """Approving Gavel's own review approves no action: it is a refusal that does not count, and the trace is open again."""
    core, review = at_the_limit()
    decision = core.resolve(review, APPROVE).decision
    assert (REJECTED, reasons.REVIEW_RELEASED, False) == (decision.outcome, decision.reason_code, decision.terminal)
    assert ("gavel", True, 0) == (decision.policy_id, decision.retry_hint.retryable, decision.consecutive_rejections)
    again = core.decide([core.fact("k.note", 2)])
    assert (reasons.NEED_MORE_FACTS, 1) == (again.reason_code, again.consecutive_rejections)
    assert APPROVED == core.decide([core.fact("order.status", "delivered")]).outcome
    core.prove()


def test_releasing_a_trace_that_cited_what_is_not_there() -> None:
    """A trace that came to its limit by citing events that the log does not have is released like any other."""
    core = Core(document(rejection_limit=1))
    made_up = EventReference(event_id=core.new_id(), sequence_number=1)
    review = core.propose(references=[made_up])
    assert [reasons.UNKNOWN_EVENT] == sorted({warning.code for warning in review.decision.warnings})
    assert reasons.REVIEW_RELEASED == core.resolve(review, APPROVE).decision.reason_code
    core.prove()


@pytest.mark.parametrize("own", [True, False])
def test_rejecting_ends_the_trace_for_the_action_and_subject(own: bool) -> None:
    """What a person rejected stays rejected in that trace, newer facts or not; its refusals are terminal and do not count."""
    core, review = at_the_limit() if own else (Core(document()), None)
    review = review or under_review(core)
    decision = core.resolve(review, REJECT).decision
    assert (REJECTED, reasons.REVIEW_REJECTED, True) == (decision.outcome, decision.reason_code, decision.terminal)
    core.fact("order.score", 0.1, trace_id="facts")
    status = core.fact("order.status", "delivered")
    for _ in range(3):
        again = core.decide([status])
        assert (REJECTED, reasons.NO_FEASIBLE_PROPOSAL, True) == (again.outcome, again.reason_code, again.terminal)
        assert (0, False) == (again.consecutive_rejections, again.retry_hint.retryable)
    other = core.fact("order.status", "delivered", subject="order/2")
    assert APPROVED == core.decide([other], subject="order/2").outcome
    assert APPROVED == core.decide([status], trace_id="trace-2").outcome
    assert reasons.NO_ACTIVE_POLICY == core.decide([status], action_type="refund.undo").reason_code
    core.prove()


def test_what_a_person_rejected_does_not_lapse() -> None:
    """A trace that a person ended is still ended after a day of silence."""
    core = Core(document())
    core.resolve(under_review(core), REJECT)
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.fact("k.note", 1)
    assert reasons.NO_FEASIBLE_PROPOSAL == core.decide([core.fact("order.status", "delivered")]).reason_code
    core.prove()


def test_a_trace_under_review_keeps_its_tool_evidence() -> None:
    """Once a review is resolved, observations of its trace are trusted as before: its tool results are still known."""
    core = Core(document())
    result = core.tool_result()
    review = under_review(core)
    core.resolve(review, REJECT)
    assert 2 == core.observe("order.note", "x", evidence=result).observation.trust_tier
    core.prove()


def test_a_second_verdict() -> None:
    """A review is resolved once; after that, and for what never was a review, the answer says why not."""
    core = Core(document())
    review = under_review(core)
    core.pass_time(60_001)
    left_open = core.resolve(review, APPROVE)
    messages = [core.fault(core.resolving(left_open, APPROVE)).message]
    core.resolve(review, REJECT)
    approval = core.approve("order/2", trace_id="trace-2")
    for decision in (review, approval):
        fault = core.fault(core.resolving(decision, APPROVE))
        assert WRONG_STATE == fault.reason
        messages.append(fault.message)
    expected = [f"left a review open, which is {review.event_id}", "has no open review any more", "has no open review: it did not ask"]
    assert [True] * 3 == [part in message for part, message in zip(expected, messages, strict=True)], messages
    assert NOT_FOUND == core.fault(core.resolving(review, APPROVE, decision_id=event_id(999_999))).reason
    core.prove()


def test_revoking_an_approval() -> None:
    """An approval that nobody has started is ended by a person's word: a FACT, a DECISION REVOKED, and the key is free."""
    core = Core(document())
    approval = core.approve()
    decision = core.revoke(approval).decision
    said = core.events[-2]
    assert ("RevocationRequested", SUBJECT, approval.event_id) == (said.event_name, said.subject, said.causation_id)
    requested = said.fact.revocation_requested
    assert (approval.event_id, "ada", "mistake") == (requested.decision_id, requested.revoked_by, requested.reason)
    assert (REVOKED, reasons.REVOKED, approval.event_id) == (decision.outcome, decision.reason_code, decision.previous_decision_id)
    assert ({}, {}) == (core.state.holds, core.state.decisions)
    assert reasons.REVOKED == core.refuse_start(approval).reason_code
    assert [] == core.tick(20_000)
    assert reasons.REVOKED == core.refuse_start(approval).reason_code
    core.approve(trace_id="trace-2")
    core.prove()


def test_an_executor_that_comes_with_the_revocation() -> None:
    """A start that was looked up before the revocation and decided after it hears REVOKED, not that it came too late."""
    core = Core(document())
    approval = core.approve()
    looked_up = core.references(core.renewal(core.start(core.approve("order/2"))))
    assert "" == looked_up.ending
    before = core.references(core.revoking(approval))
    assert reasons.EXPIRED == before.ending
    core.revoke(approval)
    core.references = lambda command: before  # type: ignore[method-assign]
    assert reasons.REVOKED == core.refuse_start(approval).reason_code


def test_revoking_too_late() -> None:
    """What has begun, ended, expired or was never approved cannot be revoked; the answer says which."""
    core = Core(document())
    begun, finished, expired, revoked = (core.approve(f"order/{number}", trace_id=f"trace-{number}") for number in range(4))
    started = core.start(begun, lease_ms=60_000)
    core.derive(core.report(core.start(finished), SUCCESS))
    core.revoke(revoked)
    core.tick(10_000)
    refused = core.propose([], trace_id="trace-9")
    expected = {
        begun.event_id: "its execution has begun",
        finished.event_id: "its execution has come to its end",
        expired.event_id: "it has expired",
        revoked.event_id: "it has been revoked",
        refused.event_id: "it is REJECTED",
    }
    for decision_id, part in expected.items():
        fault = core.fault(core.revoking(begun, decision_id=decision_id))
        assert (WRONG_STATE, True) == (fault.reason, part in fault.message), fault.message
    assert NOT_FOUND == core.fault(core.revoking(begun, decision_id=event_id(999_999))).reason
    core.report(started, SUCCESS)
    core.prove()


def test_a_verdict_that_comes_with_the_expiry() -> None:
    """Timers speak first: an approval whose time has come when a person takes it back has expired."""
    core = Core(document())
    approval = core.approve()
    core.pass_time(10_000)
    answer = core.run(core.revoking(approval))
    assert isinstance(answer, Fault)
    assert "it has expired" in answer.message
    assert "DecisionExpired" == core.events[-1].event_name
    core.prove()


def test_verdicts_are_undone_with_their_batch() -> None:
    """Whatever a verdict changes is taken back when its append fails."""
    core = Core(document())
    for number, verdict in enumerate((APPROVE, REJECT)):
        review = under_review(core, f"order/{number}", f"trace-{number}")
        before, mark = core.state.digest(), core.state.mark()
        command = core.resolving(review, verdict)
        assert 2 == len(handle(core.state, command, core.references(command), core.now_ms).events)
        core.state.undo(mark)
        assert before == core.state.digest()


def test_replay_that_starts_between_word_and_decision() -> None:
    """A replay may begin at the decision, whose word it then cannot compare, and goes on from there."""
    core = Core(document())
    core.resolve(under_review(core), REJECT)
    core.fact("k.note", 1)
    assert 1 == replayed(core.bus, core.records, compare_from=len(core.events) - 1).events


def test_a_forged_verdict_is_found() -> None:
    """A DECISION that does not follow from what the person said is found by replay."""
    core = Core(document())
    core.resolve(under_review(core), REJECT)
    core.events[-1].decision.outcome = APPROVED
    with pytest.raises(DivergedError) as found:
        replayed(core.bus, rechained(core.bus, core.events))
    assert len(core.events) == found.value.divergence.sequence_number


@pytest.mark.parametrize(("field", "forged"), [("key", "order.status"), ("max_age_ms", 5), ("observed_from", fact_pb2.OBSERVED_FROM_API)])
@pytest.mark.parametrize("revoked", [True, False])
def test_a_forged_word_is_found(field: str, forged: object, revoked: bool) -> None:
    """Of the FACT that holds a person's word, only the word itself is taken as it stands; replay makes the rest anew."""
    core = Core(document())
    _ = core.revoke(core.approve()) if revoked else core.resolve(under_review(core), REJECT)
    word = core.events[-2]
    assert word.event_name in ("RevocationRequested", "ReviewResolved")
    setattr(word.fact, field, forged)
    with pytest.raises(DivergedError) as found:
        replayed(core.bus, rechained(core.bus, core.events))
    assert word.sequence_number == found.value.divergence.sequence_number
    assert [f"fact.{field}"] == [difference.path for difference in found.value.divergence.differences]


def test_a_person_who_meets_too_low_a_tier_asks_for_facts() -> None:
    """Where the evidence at hand is not trusted enough for what a person approves, the facts are asked for, as after a refusal."""
    core = Core(document())
    review = under_review(core)
    core.fact("order.status", 7)
    core.observe("order.status", "delivered", tool="orders-db")
    answer = core.resolve(review, APPROVE)
    assert (REVIEW, reasons.INSUFFICIENT_EVIDENCE_TIER) == (answer.decision.outcome, answer.decision.reason_code)
    (asked,) = core.named("FactCollectionRequested")
    assert (answer.event_id, answer.sequence_number + 1) == (asked.causation_id, asked.sequence_number)
    assert answer.decision.retry_hint.fact_requirements == asked.agent_diagnostic.fact_collection.fact_requirements
    assert about(answer)[:2] == about(asked)[:2]
    core.prove()
