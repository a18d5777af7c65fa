"""Reviews that need several persons: quorum, groups, separation of duties, veto, comments and escalation."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.commands import EventAnswer, Fault
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.limits import REVIEW_COMMENTS_BYTES_MAX, REVIEW_COMMENTS_MAX
from gavel_rules.replay import DivergedError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.driver import RULES, SUCCESS, Core, document, replay_log
from tests.support.entries import rechain
from tests.unit.rules.execution.test_reviews import under_review

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
APPROVE = fact_pb2.REVIEW_VERDICT_APPROVE
REJECT = fact_pb2.REVIEW_VERDICT_REJECT
COMMENT = fact_pb2.REVIEW_VERDICT_COMMENT
WRONG_STATE = error_pb2.ERROR_REASON_WRONG_STATE
RIGHT_LACKING = error_pb2.ERROR_REASON_RIGHT_LACKING
HOUR_MS = 3_600_000
POLICY: dict[str, Any] = {
    "quorum": 2,
    "groups": ["risk"],
    "separation": True,
    "escalate_after_ms": 4 * HOUR_MS,
    "escalate_to": ["risk-leads"],
}

AGENT = Principal("refund-agent", "jwt", actors=("planner",))
ADA = Principal("ada", "jwt", groups=("risk",))
BEN = Principal("ben", "jwt", groups=("risk", "staff"))
EVE = Principal("eve", "jwt", groups=("staff",))
LEA = Principal("lea", "jwt", groups=("risk-leads",))


def opened(policy: dict[str, Any] = POLICY, proposer: Principal = AGENT) -> tuple[Core, Envelope]:
    """Return a bus with an open review of a rule, under a policy of the action."""
    facts_that_last = {
        "status": {"key": "order.status", "type": "string", "max_age_ms": 100 * HOUR_MS},
        "score": {"key": "order.score", "type": "number", "min_trust": 2, "max_age_ms": 100 * HOUR_MS, "optional": True},
    }
    core = Core(document(facts_that_last, review=policy))
    core.principal = proposer
    return core, under_review(core, max_fact_age_ms=100 * HOUR_MS)


def vote(
    core: Core, review: Envelope, voter: Principal, verdict: fact_pb2.ReviewVerdict.ValueType = APPROVE, **changes: str
) -> Envelope | Fault:
    """Return the event that answers a vote, or the fault."""
    command = core.resolution(review, verdict, **{"reviewer": voter.name, **changes})
    answer = core.run(command, principal=voter)
    assert isinstance(answer, EventAnswer | Fault), answer
    return answer if isinstance(answer, Fault) else answer.envelope


def accepted(
    core: Core, review: Envelope, voter: Principal, verdict: fact_pb2.ReviewVerdict.ValueType = APPROVE, **changes: str
) -> Envelope:
    """Return the event that answers a vote, which must be taken."""
    answer = vote(core, review, voter, verdict, **changes)
    assert isinstance(answer, Envelope), answer
    return answer


def refused(core: Core, review: Envelope, voter: Principal, verdict: fact_pb2.ReviewVerdict.ValueType = APPROVE, **changes: str) -> Fault:
    """Return the fault that answers a vote, which must leave nothing in the log."""
    before = len(core.events)
    answer = vote(core, review, voter, verdict, **changes)
    assert isinstance(answer, Fault), answer
    assert before == len(core.events)
    return answer


def test_a_quorum_of_two() -> None:
    """The first vote is a FACT with its count and the voter's attestation; the decision follows the second one."""
    core, review = opened()
    policy = review.decision.review_policy
    assert (2, ["risk"], True) == (policy.quorum, list(policy.groups), policy.separation)
    first = accepted(core, review, ADA)
    voted = first.fact.review_voted
    assert ("ReviewVoted", "gavel.review_voted", review.event_id) == (first.event_name, first.fact.key, first.causation_id)
    assert ("ada", "seen", APPROVE, 1, 2) == (voted.reviewer, voted.reason, voted.verdict, voted.votes, voted.quorum)
    assert ("ada", ["risk"]) == (first.attestation.principal, list(first.attestation.groups))
    decision = accepted(core, review, BEN)
    assert (APPROVED, review.event_id) == (decision.decision.outcome, decision.decision.previous_decision_id)
    assert "ben" == core.events[-2].fact.review_resolved.reviewer
    core.principal = ANONYMOUS
    core.derive(core.report(core.start(decision), SUCCESS))
    core.prove()


def test_one_rejection_ends_the_review() -> None:
    """A veto decides whatever votes to approve there are, also if its voter had approved before."""
    for vetoer in (ADA, BEN):
        core, review = opened()
        accepted(core, review, ADA)
        decision = accepted(core, review, vetoer, REJECT).decision
        assert (REJECTED, reason_codes.REVIEW_REJECTED) == (decision.outcome, decision.reason_code)
        assert ({}, []) == (core.state.reviews, list(core.state.store.timers))
        core.prove()


def test_nobody_votes_twice() -> None:
    """A second vote to approve of one principal is refused, and the message says how many are missing."""
    core, review = opened()
    accepted(core, review, ADA)
    fault = refused(core, review, ADA)
    assert (WRONG_STATE, True) == (fault.reason, "1 more" in fault.message)
    fault = refused(core, review, Principal("ada", "token", groups=("risk",)))
    assert WRONG_STATE == fault.reason


def test_a_person_and_those_who_act_for_it_have_one_vote() -> None:
    """An actor does not approve for itself after it has approved for a person, nor the reverse; a gateway of two persons counts twice."""
    ada_by_bot = Principal("ada", "jwt", groups=("risk",), actors=("gateway", "bot"))
    bot = Principal("bot", "token", groups=("risk",))
    for first, second in ((ada_by_bot, bot), (bot, ada_by_bot)):
        core, review = opened()
        accepted(core, review, first)
        fault = refused(core, review, second)
        assert (WRONG_STATE, True, True) == (fault.reason, "bot has voted to approve already" in fault.message, "1 more" in fault.message)
        accepted(core, review, second, COMMENT)
        assert APPROVED == accepted(core, review, Principal("ben", "jwt", groups=("risk",), actors=("gateway",))).decision.outcome
        core.prove()
    core, review = opened()
    accepted(core, review, ada_by_bot)
    assert REJECTED == accepted(core, review, bot, REJECT).decision.outcome


@pytest.mark.parametrize("verdict", [APPROVE, REJECT])
def test_members_of_other_groups_do_not_vote(verdict: fact_pb2.ReviewVerdict.ValueType) -> None:
    """Only members of the policy's groups vote; they may all comment."""
    core, review = opened()
    fault = refused(core, review, EVE, verdict)
    assert (RIGHT_LACKING, True) == (fault.reason, "members of risk" in fault.message and "eve" in fault.message)
    accepted(core, review, EVE, COMMENT)
    assert [review.event_id] == list(core.state.reviews)


@pytest.mark.parametrize(
    "voter",
    [
        Principal("refund-agent", "jwt", groups=("risk",)),
        Principal("planner", "mtls", groups=("risk",)),
        Principal("ada", "jwt", groups=("risk",), actors=("refund-agent",)),
    ],
)
def test_the_proposer_does_not_vote(voter: Principal) -> None:
    """With separation neither the proposer, nor anybody in its chain of actors, nor anybody through one of them votes."""
    core, review = opened()
    assert RIGHT_LACKING == refused(core, review, voter).reason
    core, review = opened({**POLICY, "separation": False})
    accepted(core, review, voter)


def test_without_authentication_groups_are_nobodys() -> None:
    """Without authentication a policy with groups or separation allows no approval, says so, and still allows a rejection."""
    for policy in (POLICY, {"groups": ["risk"]}, {"separation": True}):
        core, review = opened(policy, ANONYMOUS)
        fault = refused(core, review, ANONYMOUS)
        assert (WRONG_STATE, True) == (fault.reason, "does not authenticate its callers" in fault.message)
        assert REJECTED == accepted(core, review, ANONYMOUS, REJECT).decision.outcome
        core.prove()


def test_without_authentication_names_are_counted() -> None:
    """Without authentication a quorum counts the names that the requests give."""
    core, review = opened({"quorum": 2}, ANONYMOUS)
    accepted(core, review, ANONYMOUS, reviewer="ada")
    assert WRONG_STATE == refused(core, review, ANONYMOUS, reviewer="ada").reason
    assert APPROVED == accepted(core, review, ANONYMOUS, reviewer="ben").decision.outcome
    core.prove()


def test_a_proposal_from_before_authentication() -> None:
    """If the proposer is unknown, separation allows no approval; the groups may still reject."""
    core, review = opened(proposer=ANONYMOUS)
    fault = refused(core, review, ADA)
    assert (WRONG_STATE, True) == (fault.reason, "without authentication" in fault.message)
    assert RIGHT_LACKING == refused(core, review, EVE, REJECT).reason
    assert REJECTED == accepted(core, review, ADA, REJECT).decision.outcome
    core.prove()


def test_evidence_counts_at_the_last_vote() -> None:
    """If evidence is missing at the last vote the review stays open with the earlier votes, and the last one is taken again."""
    core, review = opened()
    accepted(core, review, ADA)
    core.fact("order.status", None)
    answer = accepted(core, review, BEN).decision
    assert (REVIEW, reason_codes.NEED_MORE_FACTS, 2) == (answer.outcome, answer.reason_code, answer.review_policy.quorum)
    assert WRONG_STATE == refused(core, review, ADA).reason
    core.fact("order.status", "delivered")
    assert APPROVED == accepted(core, review, BEN).decision.outcome
    core.prove()


def test_comments() -> None:
    """Comments are kept and bounded in number and size; they change no count and leave room for votes."""
    core, review = opened()
    comment = accepted(core, review, EVE, COMMENT, reason="why so much?").fact.review_voted
    assert (COMMENT, 0, 2) == (comment.verdict, comment.votes, comment.quorum)
    for number in range(REVIEW_COMMENTS_MAX - 1):
        accepted(core, review, EVE, COMMENT, reason=str(number))
    assert "64 comments" in refused(core, review, EVE, COMMENT).message
    accepted(core, review, ADA)
    assert REVIEW_COMMENTS_MAX + 1 == len(core.state.reviews[review.event_id].votes)
    core.prove()
    core, review = opened()
    for _ in range(4):
        accepted(core, review, EVE, COMMENT, reason="x" * (REVIEW_COMMENTS_BYTES_MAX // 4))
    assert "bytes" in refused(core, review, EVE, COMMENT, reason="x").message
    core, review = opened({})
    accepted(core, review, EVE, COMMENT)
    assert APPROVED == accepted(core, review, EVE).decision.outcome


def test_escalation() -> None:
    """When its time has passed an unresolved review is escalated once, and the further groups may vote beside the first ones."""
    core, review = opened()
    accepted(core, review, ADA)
    assert RIGHT_LACKING == refused(core, review, LEA).reason
    assert [] == core.tick(4 * HOUR_MS - 1)
    (escalated,) = core.tick(1)
    notice = escalated.agent_diagnostic
    assert ("ReviewEscalated", "ReviewEscalated") == (escalated.event_name, notice.kind)
    assert (review.event_id, ["risk-leads"]) == (notice.review_escalated.decision_id, list(notice.review_escalated.groups))
    assert (review.event_id, review.trace_id, review.subject) == (escalated.causation_id, escalated.trace_id, escalated.subject)
    assert [] == core.tick(4 * HOUR_MS)
    assert RIGHT_LACKING == refused(core, review, EVE).reason
    assert APPROVED == accepted(core, review, LEA).decision.outcome
    core.prove()


def test_a_resolved_review_is_not_escalated() -> None:
    """The timer of the escalation ends with the review."""
    core, review = opened()
    accepted(core, review, BEN, REJECT)
    assert [] == core.tick(5 * HOUR_MS)
    assert None is core.state.next_timer_ms()
    core.prove()


def test_a_rule_with_its_own_policy() -> None:
    """The policy of the deciding rule replaces that of the action; Gavel's own reviews have that of the action."""
    rules = [{**rule, "review": {"quorum": 3}} if rule["effect"] == "review" else rule for rule in RULES]
    core = Core(document(rules=rules, review={"quorum": 2}, rejection_limit=1))
    assert 3 == under_review(core).decision.review_policy.quorum
    at_the_limit = core.decide([core.fact("k.note", 1)], trace_id="trace-2", subject="order/2")
    assert (reason_codes.REJECTION_LIMIT, 2) == (at_the_limit.reason_code, at_the_limit.review_policy.quorum)


def test_reviews_of_executions() -> None:
    """The review of an execution, opened by a timer, has the policy of its action; each attempt needs the votes again."""
    core = Core(document(review={"quorum": 2}))
    approval = core.approve()
    core.start(approval)
    (called,) = core.tick(60_000)
    assert (REVIEW, 2) == (called.decision.outcome, called.decision.review_policy.quorum)
    core.fact("order.status", "delivered")
    accepted(core, called, ANONYMOUS, reviewer="ada")
    assert APPROVED == accepted(core, called, ANONYMOUS, reviewer="ben").decision.outcome
    core.prove()


def test_votes_are_proved() -> None:
    """A replay refuses a log in which a voter is another one, has another group, or has voted twice."""
    core, review = opened()
    accepted(core, review, ADA)
    accepted(core, review, BEN)
    number = next(index for index, event in enumerate(core.events) if event.event_name == "ReviewResolved")
    for change in ("group", "name"):
        events = [Envelope.FromString(event.SerializeToString()) for event in core.events]
        if change == "group":
            events[number].attestation.groups[:] = ["staff"]
        else:
            events[number].attestation.principal = events[number].fact.review_resolved.reviewer = "ada"
        with pytest.raises(DivergedError) as diverged:
            replay_log(core.bus, rechain(core.bus, events))
        assert (number + 1, "refused-event") == (diverged.value.divergence.sequence_number, diverged.value.divergence.kind)


def test_older_semantics() -> None:
    """A bus of arbiter version 2 keeps no comments and activates no rule set with a review policy."""
    core = Core(document(), arbiter_version=2)
    review = under_review(core)
    assert "arbiter version 2" in refused(core, review, ANONYMOUS, COMMENT).message
    with pytest.raises(AssertionError, match="has a review policy"):
        core.activate(document(review={"quorum": 2}, version=2))
    assert APPROVED == accepted(core, review, ANONYMOUS).decision.outcome
    core.prove()


VOTERS = (
    ADA,
    BEN,
    EVE,
    LEA,
    AGENT,
    Principal("refund-agent", "jwt", groups=("risk",)),
    Principal("cay", "mtls", groups=("risk",)),
    ANONYMOUS,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(VOTERS), st.sampled_from([APPROVE, APPROVE, APPROVE, REJECT, COMMENT])),
        st.just((None, None)),  # five hours pass
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), STEPS)
def test_no_order_of_votes_evades_the_policy(quorum: int, steps: list[tuple[Any, Any]]) -> None:
    """An approval has as many different eligible principals as the quorum, the first eligible veto ends the review, and replay agrees."""
    core, review = opened({**POLICY, "quorum": quorum})
    escalated, approvers, ended = False, set[str](), False
    for voter, verdict in steps:
        if voter is None:
            core.tick(5 * HOUR_MS)
            escalated = True
            continue
        groups = {"risk", "risk-leads"} if escalated else {"risk"}
        eligible = not voter.is_anonymous and voter.name != "refund-agent" and bool(groups & set(voter.groups))
        answer = vote(core, review, voter, verdict)
        decided = isinstance(answer, Envelope) and answer.HasField("decision")
        if ended:
            assert isinstance(answer, Fault)
        elif verdict == APPROVE and eligible and voter.name not in approvers:
            approvers.add(voter.name)
            assert (len(approvers) == quorum) == decided
        elif verdict == REJECT and (eligible or voter.is_anonymous):
            assert decided
        else:
            assert not decided
        ended = ended or decided
    core.prove()
