"""Contests: proposals for one conflict key within a window, and what decides between them (seeds 002 §6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from gavel.v1 import error_pb2, fact_pb2
from gavel_rules import reasons
from gavel_rules.commands import Tick
from gavel_rules.first_decisions import first_decision_id
from gavel_rules.limits import CONTEST_BYTES_MAX, CONTEST_CANDIDATES_MAX, CONTEST_CANDIDATES_OF_PRODUCER_MAX
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.contesting import APPROVED, EXPIRED, REJECTED, REVIEW, WINDOW_MS, agent, contested, delivered, verdict
from tests.unit.core.driver import ACTION, FACTS, PARAMS, RULES, SUCCESS, Core, document

NONE_APPROVED: list[dict[str, Any]] = [
    {"id": "never", "when": "facts.status != '' || has(facts.score)", "effect": "reject", "reason_code": "NEVER"}
]


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
    small = core.enter([fact], trace_id="small", params={"amount": 1, "notes": ["x" * 20_000]})
    # What is left, to the byte, and one more: a replay must find the same room. A text in a list takes 8 bytes besides.
    left_bytes = CONTEST_BYTES_MAX - core.state.contests[f"{ACTION} order/1"].size_bytes - small.proposal.ByteSize()
    more, rest = divmod(left_bytes, 40_008)
    notes = ["x" * 40_000] * more
    over = core.proposal([fact], trace_id="last", params={"amount": 1, "notes": [*notes, "x" * (20_000 + rest + 1)]})
    assert error_pb2.ERROR_REASON_QUEUE_FULL == core.fault(over).reason
    core.enter([fact], trace_id="last", params={"amount": 1, "notes": [*notes, "x" * (20_000 + rest)]})
    assert CONTEST_BYTES_MAX == core.state.contests[f"{ACTION} order/1"].size_bytes
    core.prove()


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
