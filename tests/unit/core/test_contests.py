"""Contests: proposals for one conflict key within a window, and what decides between them (seeds 002 §6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from gavel.v1 import common_pb2, decision_pb2, error_pb2, fact_pb2
from gavel.v1.common_pb2 import EventReference, Producer
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reasons
from gavel_rules.authoring.impact import Impact
from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, RuleSetAt, Tick, Waiting
from gavel_rules.decider import handle
from gavel_rules.errors import NetworkFaultError
from gavel_rules.evidence import cited
from gavel_rules.first_decisions import first_decision_id
from gavel_rules.language.network import Network
from gavel_rules.limits import CONTEST_CANDIDATES_MAX, CONTEST_CANDIDATES_OF_PRODUCER_MAX
from gavel_rules.projection import State
from gavel_rules.replay import DivergedError
from gavel_server.services.arbitration import _would_decide
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.driver import ACTION, BUS, FACTS, PARAMS, RULES, SUCCESS, Core, compiled, document, rechained, replayed

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
EXPIRED = decision_pb2.OUTCOME_EXPIRED
WINDOW_MS = 1_000
NONE_APPROVED: list[dict[str, Any]] = [
    {"id": "never", "when": "facts.status != '' || has(facts.score)", "effect": "reject", "reason_code": "NEVER"}
]


def contested(**action: Any) -> str:
    """The default rule set with a window."""
    return document(**{"contest_window_ms": WINDOW_MS, **action})


def delivered(core: Core, subject: str = "order/1") -> Envelope:
    """The fact that the default rules approve on."""
    return core.fact("order.status", "delivered", subject=subject)


def verdict(decision: Decision) -> tuple[int, str]:
    """What a decision says."""
    return decision.outcome, decision.reason_code


def test_the_highest_score_wins_when_the_window_closes() -> None:
    """Proposals are in the log at once and decided together when the window closes: the best is approved, the others name it."""
    core = Core(contested())
    fact = delivered(core)
    low, high, middle = (core.enter([fact], trace_id=f"t{priority}", priority=priority) for priority in (1, 3, 2))
    assert [] == core.tick(WINDOW_MS - 1)
    assert ["DecisionApproved", "DecisionRejected", "DecisionRejected"] == [event.event_name for event in core.tick(1)]
    winner, second, third = (core.decided(proposal) for proposal in (high, middle, low))
    assert [(APPROVED, ""), (REJECTED, "OUTRANKED"), (REJECTED, "OUTRANKED")] == [verdict(one) for one in (winner, second, third)]
    assert [[], [high.event_id], [high.event_id]] == [list(one.conflict_with_proposal_ids) for one in (winner, second, third)]
    ranking = [(one.proposal_id, one.sequence_number, one.score, one.reason_code) for one in winner.contest.candidates]
    assert [
        (high.event_id, high.sequence_number, 300.0, ""),
        (middle.event_id, middle.sequence_number, 200.0, ""),
        (low.event_id, low.sequence_number, 100.0, ""),
    ] == ranking
    assert winner.contest == second.contest == third.contest
    assert (low.recorded_at, winner.evaluated_at) == (winner.contest.opened_at, winner.contest.closed_at)
    assert ("gavel", "", []) == (second.policy_id, second.rule_id, list(second.pinned_facts))
    assert (True, 10_000) == (second.retry_hint.retryable, second.retry_hint.retry_after_ms)
    assert (1, 1) == (second.consecutive_rejections, second.rejection_counts.conflict)
    assert ({}, {}, {}) == (core.state.contests, core.state.open_proposals, core.state.waiting_of_subject)
    core.prove()


def test_equals_go_to_the_earlier() -> None:
    """Of equal scores the lower sequence number wins."""
    core = Core(contested(score="1.5"))
    fact = delivered(core)
    first, second = core.enter([fact], trace_id="a", priority=1), core.enter([fact], trace_id="b", priority=9)
    core.tick(WINDOW_MS)
    assert [(APPROVED, ""), (REJECTED, "OUTRANKED")] == [verdict(core.decided(first)), verdict(core.decided(second))]


def test_the_default_score() -> None:
    """Without a score of its own an action ranks by priority, risk, cost and the worst evidence."""
    core = Core(contested())
    fact = delivered(core)
    evidence = core.tool_result("a")
    observed = core.observe("order.score", 0.1, evidence=evidence, trace_id="a")
    proposal = core.enter([fact, observed], trace_id="a", priority=2, risk=0.5, cost=7.0)
    core.tick(WINDOW_MS)
    assert 2 * 100.0 - 0.5 * 10.0 - 7.0 - (2 - 1) * 5.0 == core.decided(proposal).contest.candidates[0].score


def test_a_proposal_alone_is_approved_when_the_window_closes() -> None:
    """Nobody needs a rival to win."""
    core = Core(contested())
    proposal = core.enter([delivered(core)])
    core.tick(WINDOW_MS)
    decision = core.decided(proposal)
    assert (APPROVED, 1) == (decision.outcome, len(decision.contest.candidates))
    assert core.state.recorded_at_ms + 10_000 == decision.valid_until.ToMilliseconds()
    core.derive(core.report(core.start(core.by_id[decision.decision_id]), SUCCESS))
    assert {} == core.state.holds
    core.prove()


def test_what_could_not_be_approved_is_decided_at_once() -> None:
    """Refusals and reviews do not wait, whoever competes meanwhile, and take part in nothing."""
    core = Core(contested())
    fact = delivered(core)
    waiting = core.enter([fact], trace_id="a")
    no_input = core.decide([], trace_id="b")
    invalid = core.decide([fact], trace_id="c", amount=-1)
    evidence = core.tool_result("d")
    suspicious = core.decide([fact, core.observe("order.score", 0.95, evidence=evidence, trace_id="d")], trace_id="d")
    assert [(REJECTED, "NO_FACT_INPUT"), (REJECTED, "INVALID_PARAMS"), (REVIEW, "FRAUD_SUSPECTED")] == [
        verdict(one) for one in (no_input, invalid, suspicious)
    ]
    assert not any(one.HasField("contest") for one in (no_input, invalid, suspicious))
    assert (waiting.event_id,) == core.state.contests[f"{ACTION} order/1"].candidates
    core.prove()


def test_other_keys_are_other_contests() -> None:
    """Each conflict key has a contest of its own, closed in the order of their openings."""
    core = Core(contested())
    first = core.enter([delivered(core)], trace_id="a")
    core.pass_time(400)
    second = core.enter([delivered(core, "order/2")], subject="order/2", trace_id="b")
    assert [first_decision_id(first)] == [event.event_id for event in core.tick(WINDOW_MS - 400)]
    assert [first_decision_id(second)] == [event.event_id for event in core.tick(400)]
    core.prove()


def test_a_held_key_opens_no_contest() -> None:
    """Whoever comes while a decision holds the key is refused at once."""
    core = Core(contested())
    fact = delivered(core)
    winner = core.enter([fact], trace_id="a")
    core.tick(WINDOW_MS)
    late = core.decide([fact], trace_id="b")
    assert ((REJECTED, "CONFLICTING_DECISION"), [winner.event_id]) == (verdict(late), list(late.conflict_with_proposal_ids))


def test_expiry_frees_the_key_for_the_next_contest() -> None:
    """A winner that nobody starts expires like any approval, and the key may be contested again."""
    core = Core(contested())
    fact = delivered(core)
    core.enter([fact], trace_id="a")
    core.tick(WINDOW_MS)
    assert [EXPIRED] == [event.decision.outcome for event in core.tick(10_000)]
    again = core.enter([fact], trace_id="b")
    core.tick(WINDOW_MS)
    assert APPROVED == core.decided(again).outcome
    core.prove()


def test_another_action_takes_the_key_at_once() -> None:
    """An action without a window is judged at once; its approval makes the candidates fail when their window closes."""
    core = Core(two_actions())
    fact = delivered(core)
    waiting = core.enter([fact], trace_id="a", priority=9)
    other = core.propose([fact], trace_id="b", action_type="order.note")
    assert APPROVED == other.decision.outcome
    core.tick(WINDOW_MS)
    decision = core.decided(waiting)
    assert ((REJECTED, "CONFLICTING_DECISION"), [other.decision.proposal_id]) == (
        verdict(decision),
        list(decision.conflict_with_proposal_ids),
    )
    assert [("CONFLICTING_DECISION", 0.0)] == [(one.reason_code, one.score) for one in decision.contest.candidates]
    core.prove()


def two_actions() -> str:
    """A contested action and one that is not, for the same keys."""
    status = {"status": FACTS["status"]}
    note = {"params": PARAMS, "facts": status, "decision_ttl_ms": 10_000}
    approves = {"id": "note", "action": "order.note", "priority": 1, "when": 'facts.status == "delivered"', "effect": "approve"}
    return contested(rules=[*RULES, approves], more_actions={"order.note": note})


def test_a_better_candidate_that_fails_leaves_the_key_to_the_next() -> None:
    """All are judged again when the window closes; the best of those that still pass wins, and the contest says why others did not."""
    core = Core(contested())
    fact = delivered(core)
    best = core.enter([fact], trace_id="a", priority=3, max_fact_age_ms=WINDOW_MS - 1)
    next_best = core.enter([fact], trace_id="b", priority=2)
    core.tick(WINDOW_MS)
    assert [(REJECTED, "STALE_FACTS"), (APPROVED, "")] == [verdict(core.decided(best)), verdict(core.decided(next_best))]
    ranking = [(one.proposal_id, one.reason_code) for one in core.decided(best).contest.candidates]
    assert [(next_best.event_id, ""), (best.event_id, "STALE_FACTS")] == ranking
    assert ["order.status"] == list(core.decided(best).retry_hint.missing_fact_keys)
    core.prove()


def test_evidence_of_the_close_counts() -> None:
    """A fact that changes while a contest is open is what its candidates are judged by, each by what it cites."""
    core = Core(contested())
    fact = delivered(core)
    waiting = core.enter([fact], trace_id="a")
    pinned = core.enter([fact], trace_id="b", projection_version=core.state.head)
    core.fact("order.status", "cancelled")
    core.tick(WINDOW_MS)
    assert [(REJECTED, "FACT_SUPERSEDED"), (REJECTED, "PROJECTION_CHANGED")] == [verdict(core.decided(one)) for one in (waiting, pinned)]
    assert {} == core.state.holds
    core.prove()


def test_a_review_at_the_close_never_wins() -> None:
    """What needs a person by the time the window closes goes to one, however high it would have scored, and keeps its proposal."""
    core = Core(contested())
    fact = delivered(core)
    evidence = core.tool_result("a")
    suspected = core.enter([fact], trace_id="a", priority=9, max_fact_age_ms=5_000)
    core.observe("order.score", 0.95, evidence=evidence, trace_id="a")
    core.tick(WINDOW_MS)
    decision = core.decided(suspected)
    assert ((REVIEW, "FRAUD_SUSPECTED"), "FRAUD_SUSPECTED") == (verdict(decision), decision.contest.candidates[0].reason_code)
    review = core.state.reviews[decision.decision_id]
    assert suspected.event_id == review.proposal.event_id
    assert APPROVED == core.resolve(core.by_id[decision.decision_id], fact_pb2.REVIEW_VERDICT_APPROVE).decision.outcome
    core.prove()


def test_the_rule_sets_of_the_close_decide() -> None:
    """A version that comes into force while a contest is open decides it; the window stays as it was opened."""
    core = Core(contested())
    fact = delivered(core)
    waiting = core.enter([fact], trace_id="a")
    core.activate(contested(rules=NONE_APPROVED, version=2, contest_window_ms=60_000))
    core.tick(WINDOW_MS)
    assert (REJECTED, "NEVER") == verdict(core.decided(waiting))
    core.prove()


def test_a_contest_outlives_its_rule_set() -> None:
    """Where nothing governs the action any more when the window closes, all candidates are refused."""
    core = Core(contested())
    waiting = core.enter([delivered(core)])
    core.deactivate("refunds")
    core.tick(WINDOW_MS)
    assert (REJECTED, "NO_ACTIVE_POLICY") == verdict(core.decided(waiting))
    core.prove()


def test_who_comes_after_the_window_was_abolished_still_competes() -> None:
    """While a contest is open, a proposal for its key joins it, also under a version without a window."""
    core = Core(contested())
    fact = delivered(core)
    first = core.enter([fact], trace_id="a", priority=1)
    core.activate(document(version=2))
    second = core.enter([fact], trace_id="b", priority=2)
    core.tick(WINDOW_MS)
    assert [(REJECTED, "OUTRANKED"), (APPROVED, "")] == [verdict(core.decided(first)), verdict(core.decided(second))]
    assert APPROVED == core.propose([delivered(core, "order/2")], subject="order/2", trace_id="c").decision.outcome
    core.prove()


@pytest.mark.parametrize("score", ["1.0 / (params.amount - 50.0)", "double([1, 2][int(params.amount)])", "0.0 / (params.amount - 50.0)"])
def test_a_score_without_a_value_is_an_evaluation_error(score: str) -> None:
    """Infinite, not a number or an error: what cannot be ranked is refused at once, and loudly."""
    core = Core(contested(score=score))
    decision = core.decide([delivered(core)])
    assert ((REJECTED, "EVALUATION_ERROR"), "gavel", "") == (verdict(decision), decision.policy_id, decision.rule_id)
    assert [("EVALUATION_ERROR", "refunds/score")] == [(warning.code, warning.message) for warning in decision.warnings]
    core.prove()


def test_a_score_that_fails_at_the_close() -> None:
    """A score is computed when the window closes; one that has no value then never wins."""
    core = Core(contested(score=f"1.0 / double(evidence.oldest_age_ms - {WINDOW_MS})"))
    fact = delivered(core)
    failing = core.enter([fact], trace_id="a")
    core.tick(WINDOW_MS)
    assert (REJECTED, "EVALUATION_ERROR") == verdict(core.decided(failing))
    assert ["EVALUATION_ERROR"] == [one.reason_code for one in core.decided(failing).contest.candidates]
    core.prove()


def test_rejections_are_counted_at_the_close() -> None:
    """Waiting counts for nothing; losing does, one by one, until a person is called; then the trace's other candidates are shut out."""
    core = Core(contested(rejection_limit=2))
    fact = delivered(core)
    winner = core.enter([fact], trace_id="w", priority=9)
    losers = [core.enter([fact], trace_id="a", amount=amount) for amount in (1, 2, 3)]
    assert 0 == core.state.rejections("a", core.now_ms).total
    core.tick(WINDOW_MS)
    assert APPROVED == core.decided(winner).outcome
    assert [(REJECTED, "OUTRANKED"), (REVIEW, "REJECTION_LIMIT"), (REJECTED, "UNDER_REVIEW")] == [
        verdict(core.decided(loser)) for loser in losers
    ]
    assert ["OUTRANKED"] == [warning.code for warning in core.decided(losers[1]).warnings]
    assert [core.decided(losers[1]).decision_id] == [review.decision_id for review in core.state.pending_reviews()]
    assert 1 == len(core.named("NeedsHumanReview"))
    core.prove()


def test_a_trace_may_win_and_lose() -> None:
    """An approval resets its trace's count before its other candidates are refused."""
    core = Core(contested())
    fact = delivered(core)
    core.decide([], trace_id="a")
    high, low = core.enter([fact], trace_id="a", priority=2), core.enter([fact], trace_id="a", priority=1, amount=7)
    core.tick(WINDOW_MS)
    assert [(APPROVED, 0), (REJECTED, 1)] == [(core.decided(one).outcome, core.decided(one).consecutive_rejections) for one in (high, low)]
    core.prove()


def test_a_repeated_proposal_is_refused_before_it_competes() -> None:
    """What the trace was refused last is a duplicate, in a contest as elsewhere."""
    core = Core(contested())
    cancelled = core.fact("order.status", "cancelled")
    core.decide([cancelled], trace_id="a")
    assert (REJECTED, "NO_FEASIBLE_PROPOSAL") == verdict(core.decide([cancelled], trace_id="a"))
    stale = core.fact("order.status", "delivered", subject="order/2", occurred_at_ms=core.now_ms - 61_000)
    core.decide([stale], subject="order/2", trace_id="b")
    core.fact("order.status", "delivered", subject="order/2")
    again = core.decide([stale], subject="order/2", trace_id="b")
    assert (REJECTED, "FACT_SUPERSEDED") == verdict(again)


def test_a_contest_is_bounded() -> None:
    """Who finds a contest full is told when to come back; nothing is recorded, and the others compete on."""
    core = Core(contested())
    fact = delivered(core)
    for number in range(CONTEST_CANDIDATES_MAX):
        core.enter([fact], trace_id=f"t{number}", producer=agent(number // CONTEST_CANDIDATES_OF_PRODUCER_MAX))
    core.pass_time(400)
    fault = core.fault(core.proposal([fact], trace_id="late", priority=9, producer=agent(9)))
    assert (error_pb2.ERROR_REASON_QUEUE_FULL, WINDOW_MS - 400) == (fault.reason, fault.retry_after_ms)
    assert fault.message.startswith("64 proposals compete for order/1 already; ")
    made = core.tick(WINDOW_MS)
    assert CONTEST_CANDIDATES_MAX == len(made)
    core.prove()


def agent(number: int) -> Producer:
    """One of several agents."""
    return Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id=f"agent-{number}")


def test_no_producer_takes_all_places() -> None:
    """A quarter of the places is one producer's at most, in whatever traces; others still find room, and may win."""
    core = Core(contested())
    fact = delivered(core)
    other = core.enter([fact], trace_id="other", producer=agent(2), priority=9)
    for number in range(CONTEST_CANDIDATES_OF_PRODUCER_MAX):
        core.enter([fact], trace_id=f"t{number}", producer=agent(1))
    digest = core.state.digest()
    fault = core.fault(core.proposal([fact], trace_id="late", producer=agent(1)))
    assert (error_pb2.ERROR_REASON_QUEUE_FULL, WINDOW_MS) == (fault.reason, fault.retry_after_ms)
    assert fault.message.startswith("16 proposals of producer agent-1 compete for order/1 already; ")
    assert digest == core.state.digest()
    core.enter([fact], trace_id="late", producer=agent(2))
    core.enter([delivered(core, "order/2")], subject="order/2", trace_id="late", producer=agent(1))
    core.tick(WINDOW_MS)
    assert APPROVED == core.decided(other).outcome
    core.prove()


def test_a_contest_is_bounded_in_bytes() -> None:
    """Few large proposals fill a contest as many small ones do."""
    core = Core(contested())
    fact = delivered(core)
    note = ["x" * 60_000] * 15
    text = contested(params={"type": "object", "properties": {"amount": {"type": "number"}, "notes": {"type": "array"}}}, version=2)
    core.activate(text)
    for number in range(4):
        core.enter([fact], trace_id=f"t{number}", params={"amount": 1, "notes": note})
    fault = core.fault(core.proposal([fact], trace_id="late", params={"amount": 1, "notes": note}))
    assert error_pb2.ERROR_REASON_QUEUE_FULL == fault.reason
    assert isinstance(core.run(core.proposal([fact], trace_id="small")), Waiting)


def test_a_proposal_that_waits_is_not_proposed_again() -> None:
    """The same again waits for the same contest and adds nothing, whatever the store knows of event_ids; other content is refused."""
    core = Core(contested())
    fact = delivered(core)
    waiting = core.enter([fact])
    head = core.state.head
    assert (waiting, head) == (core.enter([fact], event_id=waiting.event_id), core.state.head)
    fault = core.fault(core.proposal([fact], event_id=waiting.event_id, amount=7))
    assert error_pb2.ERROR_REASON_EVENT_ID_REUSED == fault.reason
    core.tick(WINDOW_MS)
    core.prove()


def test_a_tick_closes_a_contest_whole() -> None:
    """However few timers may speak, a contest is decided in one go; others wait for the next."""
    core = Core(contested())
    for number in range(2):
        fact = delivered(core, f"order/{number}")
        for trace in range(3):
            core.enter([fact], subject=f"order/{number}", trace_id=f"t{number}-{trace}")
    core.pass_time(WINDOW_MS)
    assert 6 == core.state.due_count(core.now_ms)
    before = len(core.events)
    core.run(Tick(1))
    assert (3, 3) == (len(core.events) - before, core.state.due_count(core.now_ms))
    core.run(Tick(1))
    core.prove()


def test_a_command_closes_what_is_due_before_it() -> None:
    """The first command after the window closes the contest: a proposal that comes too late finds the key taken."""
    core = Core(contested())
    fact = delivered(core)
    waiting = core.enter([fact], trace_id="a")
    core.pass_time(WINDOW_MS)
    late = core.decide([fact], trace_id="b", priority=9)
    assert [(APPROVED, ""), (REJECTED, "CONFLICTING_DECISION")] == [verdict(core.decided(waiting)), verdict(late)]
    core.prove()


def test_what_is_undone_leaves_no_trace() -> None:
    """Entering and closing can be taken back, and come out the same the next time, at another time of entry as well."""
    core = Core(contested())
    fact = delivered(core)
    core.enter([fact], trace_id="a")
    digest, mark = core.state.digest(), core.state.mark()
    command = core.proposal([fact], trace_id="b")
    handle(core.state, command, core.references(command), core.now_ms)
    assert digest != core.state.digest()
    core.state.undo(mark)
    assert (digest, False) == (core.state.digest(), command.envelope.proposal.HasField("contest"))
    core.pass_time(10)
    assert isinstance(core.run(command), Waiting)
    digest, mark = core.state.digest(), core.state.mark()
    first = [Envelope.FromString(event.SerializeToString()) for event in handle(core.state, Tick(1), now_ms=core.now_ms + WINDOW_MS).events]
    core.state.undo(mark)
    assert digest == core.state.digest()
    assert first == core.tick(WINDOW_MS)


def test_the_log_alone_closes_a_contest() -> None:
    """Who has read the log and nothing else makes the same decisions: what candidates cite is looked up by nobody again."""
    core = Core(contested())
    fact = delivered(core)
    evidence = core.tool_result("a")
    observed = core.observe("order.score", 0.1, evidence=evidence, trace_id="a")
    core.enter([fact, observed], trace_id="a", priority=1)
    core.enter([fact], trace_id="b", priority=2)
    other = State(BUS)
    for record in core.records:
        other.apply(Envelope.FromString(record.envelope))
    assert core.state.digest() == other.digest()
    elsewhere = handle(other, Tick(10), now_ms=core.now_ms + WINDOW_MS).events
    assert [event.SerializeToString() for event in elsewhere] == [event.SerializeToString() for event in core.tick(WINDOW_MS)]


def test_a_made_up_contest_does_not_pass_a_replay() -> None:
    """Neither who won nor what a proposal entered can be altered without the replay saying where."""
    core = Core(contested())
    fact = delivered(core)
    waiting = core.enter([fact], trace_id="a")
    core.enter([fact], trace_id="b")
    core.tick(WINDOW_MS)
    for number, alter in ((waiting.sequence_number, _later_close), (len(core.events) - 1, _other_score)):
        forged = [Envelope.FromString(event.SerializeToString()) for event in core.events]
        alter(forged[number - 1])
        with pytest.raises(DivergedError) as diverged:
            replayed(BUS, rechained(BUS, forged))
        assert number == diverged.value.divergence.sequence_number


def _later_close(event: Envelope) -> None:
    event.proposal.contest.closes_at.seconds += 1


def _other_score(event: Envelope) -> None:
    event.decision.contest.candidates[0].score += 1


def test_a_reference_replay_proves_contests() -> None:
    """The second engine alone comes to the same contests."""
    core = Core(contested())
    fact = delivered(core)
    core.enter([fact], trace_id="a", priority=1)
    core.enter([fact], trace_id="b", priority=2)
    core.tick(WINDOW_MS)
    assert core.state.digest() == replayed(BUS, core.records, engine=decision_pb2.ENGINE_REFERENCE).state.digest()


def test_shadows_hold_the_contest_as_well() -> None:
    """A shadow lets the same candidates compete under its own rules; a difference is noted with the decision, once."""
    core = Core(contested())
    text = contested(version=2, score="-double(proposal.priority)")
    rule_set = compiled(text)
    core.run(DeployRuleSet(core.new_id(), rule_set, text))
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None, shadow=True)), RuleSetAt)
    fact = delivered(core)
    low, high = core.enter([fact], trace_id="a", priority=1), core.enter([fact], trace_id="b", priority=2)
    assert [] == core.named("ShadowDifference")
    core.tick(WINDOW_MS)
    found = {event.agent_diagnostic.shadow_difference.decision_id: event for event in core.named("ShadowDifference")}
    assert {core.decided(low).decision_id, core.decided(high).decision_id} == found.keys()
    other = found[core.decided(high).decision_id].agent_diagnostic.shadow_difference
    assert ((APPROVED, ""), (REJECTED, "OUTRANKED")) == (
        (other.decided.outcome, other.decided.reason_code),
        (other.shadowed.outcome, other.shadowed.reason_code),
    )
    assert 2 == core.state.shadows["refunds"].differences
    core.prove()


def test_the_impact_of_a_candidate_rule_set_on_past_contests() -> None:
    """A simulation lets those compete who competed: the same rules change nothing, another score another winner."""
    core = Core(contested())
    fact = delivered(core)
    for priority in (1, 3, 2):
        core.enter([fact], trace_id=f"t{priority}", priority=priority)
    core.tick(WINDOW_MS)
    same, reverse = (
        Impact(BUS, compiled(text)) for text in (contested(version=2), contested(version=2, score="-double(proposal.priority)"))
    )
    changed = [[impact.feed(record.sequence_number, record.envelope) for record in core.records] for impact in (same, reverse)]
    assert ([], 3) == ([one for one in changed[0] if one], same.decisions)
    found = [(one.recorded.outcome, one.simulated.outcome) for one in changed[1] if one]
    assert [(APPROVED, REJECTED), (REJECTED, APPROVED)] == found


@pytest.mark.parametrize("error", [NetworkFaultError("the engine is gone"), RuntimeError("a bug"), KeyError("another one")])
def test_a_broken_engine_does_not_keep_a_contest_open(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """What cannot be judged when the window closes is left to a person; the others get their decisions; a replay knows of it."""
    core = Core(contested())
    fact = delivered(core)
    first, second, third = (core.enter([fact], trace_id=f"t{priority}", priority=priority) for priority in (3, 1, 2))
    match = Network.match
    calls = 0

    def broken(network: Network, text: str) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise error
        return match(network, text)

    monkeypatch.setattr(Network, "match", broken)
    core.pass_time(WINDOW_MS)
    mark = core.state.mark()
    handled = handle(core.state, Tick(1), now_ms=core.now_ms)
    assert [(first.event_id, error)] == list(handled.failures)
    core.state.undo(mark)
    calls = 0
    core.tick()
    assert [(REVIEW, "NOT_JUDGED"), (REJECTED, "OUTRANKED"), (APPROVED, "")] == [
        verdict(core.decided(one)) for one in (first, second, third)
    ]
    assert ["", "", "NOT_JUDGED"] == [one.reason_code for one in core.decided(third).contest.candidates]
    assert core.decided(first).decision_id == core.state.open_review("t3")
    assert "gavel" == core.decided(first).policy_id
    core.prove()


@pytest.mark.parametrize("shadowed", [False, True])
def test_a_close_that_fails_leaves_all_to_a_person(shadowed: bool) -> None:
    """Where a close comes upon a bug after its candidates were judged, none of that stands: all are left to a person."""

    class Failing(dict[str, Any]):
        """Fails once, when something is put into it."""

        failed = False

        def __setitem__(self, key: str, value: Any) -> None:
            super().__setitem__(key, value)
            if not self.failed:
                self.failed = True
                raise RuntimeError("a bug")

    core = Core(contested())
    if shadowed:
        other = contested(version=2, score="-double(proposal.priority)")
        core.run(DeployRuleSet(core.new_id(), compiled(other), other))
        assert isinstance(core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None, shadow=True)), RuleSetAt)
    fact = delivered(core)
    waiting = [core.enter([fact], trace_id=f"t{priority}", priority=priority) for priority in (1, 2)]
    core.state.holds = Failing(core.state.holds)
    core.tick(WINDOW_MS)
    assert [(REVIEW, "NOT_JUDGED")] * 2 == [verdict(core.decided(one)) for one in waiting]
    assert ({}, {}) == (core.state.contests, core.state.holds)
    assert 2 == len(core.state.reviews)
    core.prove()


def test_what_was_not_judged_is_released_by_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who approves it approves no action, which no rule has looked at: the trace may propose again, and is judged."""
    core = Core(contested())
    fact = delivered(core)
    waiting = core.enter([fact])

    def broken(network: Network, text: str) -> list[int]:
        raise NetworkFaultError("the engine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Network, "match", broken)
        core.tick(WINDOW_MS)
    review = core.by_id[core.decided(waiting).decision_id]
    assert reasons.UNDER_REVIEW == core.decide([fact]).reason_code
    released = core.resolve(review, fact_pb2.REVIEW_VERDICT_APPROVE).decision
    assert (REJECTED, "REVIEW_RELEASED") == verdict(released)
    again = core.enter([fact])
    core.tick(WINDOW_MS)
    assert APPROVED == core.decided(again).outcome
    core.prove()


def test_a_preflight_that_fails_leaves_the_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preflight lets contests close that are due, and takes it back even where that comes upon a bug."""
    core = Core(contested())
    fact = delivered(core)
    core.enter([fact], trace_id="a")
    core.enter([fact], trace_id="b")
    before = core.state.digest()

    def broken(network: Network, text: str) -> list[int]:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Network, "match", broken)
    asked = core.proposal([fact], trace_id="d").envelope
    with pytest.raises(RuntimeError):
        _would_decide(core.state, asked, {fact.sequence_number: cited(fact)}, core.now_ms + WINDOW_MS, None)
    assert (before, False) == (core.state.digest(), core.state.tentative)


def test_citations_stand_in_the_proposal() -> None:
    """What a candidate cites was looked up when it entered: the PROPOSAL says so, and what it refers to is not asked again."""
    core = Core(contested())
    fact = delivered(core)
    waiting = core.enter([fact])
    assert [("order/1", ["order.status"], "")] == [
        (one.subject, list(one.keys), one.evidence_ref) for one in waiting.proposal.contest.citations
    ]
    unknown = EventReference(event_id=fact.event_id, sequence_number=fact.sequence_number + 1)
    assert (REJECTED, "UNKNOWN_EVENT") == verdict(core.decide([], references=[unknown], trace_id="b"))


Entry = tuple[int, int, int]  # priority, risk in tenths, pause before it


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 10), st.integers(0, 150)), min_size=1, max_size=6), st.randoms())
def test_the_order_of_arrival_does_not_matter(entries: Sequence[Entry], randomness: Any) -> None:
    """Whatever the order in which candidates arrive within a window, one with the highest score wins, and the others name it."""
    shuffled = list(entries)
    randomness.shuffle(shuffled)
    best = {_winner(order) for order in (entries, shuffled)}
    assert {max((priority * 100.0 - risk / 10 * 10.0 for priority, risk, _ in entries))} == best


def _winner(entries: Sequence[Entry]) -> float:
    core = Core(contested())
    fact = delivered(core)
    proposals = []
    for number, (priority, risk, pause_ms) in enumerate(entries):
        proposals.append(core.enter([fact], trace_id=f"t{number}", priority=priority, risk=risk / 10))
        core.pass_time(pause_ms)
    core.tick(WINDOW_MS)
    decisions = [core.decided(proposal) for proposal in proposals]
    (winner,) = (decision for decision in decisions if decision.outcome == APPROVED)
    for decision in decisions:
        assert decision is winner or (reasons.OUTRANKED, [winner.proposal_id]) == (
            decision.reason_code,
            list(decision.conflict_with_proposal_ids),
        )
    core.prove()
    return winner.contest.candidates[0].score
