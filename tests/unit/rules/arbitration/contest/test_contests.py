"""Contests: proposals for one conflict key within a window, and the choice between them (constitution §6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from gavel.v1 import error_pb2, fact_pb2
from gavel.v1.common_pb2 import EventReference
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.arbitration.first_decision import first_decision_id
from gavel_rules.commands import Tick
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.limits import (
    CONTEST_BYTES_MAX,
    CONTEST_BYTES_OF_PRODUCER_MAX,
    CONTEST_CANDIDATES_MAX,
    CONTEST_CANDIDATES_OF_PRODUCER_MAX,
    CONTEST_CITATIONS_BYTES_MAX,
    EXTRACTED_FIELDS_MAX,
    FACT_KEY_LENGTH_MAX,
    MESSAGE_BYTES_MAX,
)
from gavel_rules.values import python_to_value
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.driver import ACTION, AGENT, FACTS, PARAMS, RULES, SUCCESS, Core, document, observation_envelope
from tests.support.histories.contests import APPROVED, EXPIRED, REJECTED, REVIEW, WINDOW_MS, agent, contest_document, deliver, verdict

# Params of any size.
NOTES = {"type": "object", "properties": {"amount": {"type": "number"}, "notes": {"type": "array"}}}
NONE_APPROVED: list[dict[str, Any]] = [
    {"id": "never", "when": "facts.status != '' || has(facts.score)", "effect": "reject", "reason_code": "NEVER"}
]


def test_the_highest_score_wins_when_the_window_closes() -> None:
    """Proposals are recorded at once and decided when the window closes: the best is approved, the others name it."""
    core = Core(contest_document())
    fact = deliver(core)
    low, high, middle = (core.enter([fact], trace_id=f"t{priority}", priority=priority) for priority in (1, 3, 2))
    assert [] == core.tick(WINDOW_MS - 1)
    assert ["DecisionApproved", "DecisionRejected", "DecisionRejected"] == [event.event_name for event in core.tick(1)]
    winner, second, third = (core.first_decision(proposal) for proposal in (high, middle, low))
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
    assert ({}, {}, {}) == (core.state.contests, core.state.open_proposals, core.state.open_proposals_by_subject)
    core.prove()


def test_earlier_of_equal_scores_wins() -> None:
    """Of equal scores the one with the lower sequence number wins."""
    core = Core(contest_document(score="1.5"))
    fact = deliver(core)
    first, second = core.enter([fact], trace_id="a", priority=1), core.enter([fact], trace_id="b", priority=9)
    core.tick(WINDOW_MS)
    assert [(APPROVED, ""), (REJECTED, "OUTRANKED")] == [verdict(core.first_decision(first)), verdict(core.first_decision(second))]


def test_the_default_score() -> None:
    """Without a score of its own an action ranks by priority, risk, cost and the worst evidence."""
    core = Core(contest_document())
    fact = deliver(core)
    evidence = core.tool_result("a")
    observation = core.observe("order.score", 0.1, evidence=evidence, trace_id="a")
    proposal = core.enter([fact, observation], trace_id="a", priority=2, risk=0.5, cost=7.0)
    core.tick(WINDOW_MS)
    assert 2 * 100.0 - 0.5 * 10.0 - 7.0 - (2 - 1) * 5.0 == core.first_decision(proposal).contest.candidates[0].score


def test_single_candidate_wins() -> None:
    """A candidate without a rival wins."""
    core = Core(contest_document())
    proposal = core.enter([deliver(core)])
    core.tick(WINDOW_MS)
    decision = core.first_decision(proposal)
    assert (APPROVED, 1) == (decision.outcome, len(decision.contest.candidates))
    assert core.state.recorded_at_ms + 10_000 == decision.valid_until.ToMilliseconds()
    core.derive(core.report(core.start(core.by_id[decision.decision_id]), SUCCESS))
    assert {} == core.state.conflict_keys
    core.prove()


def test_refusals_and_reviews_are_decided_at_once() -> None:
    """Refusals and reviews do not wait and do not take part in the contest."""
    core = Core(contest_document())
    fact = deliver(core)
    candidate = core.enter([fact], trace_id="a")
    no_input = core.decide([], trace_id="b")
    invalid = core.decide([fact], trace_id="c", amount=-1)
    evidence = core.tool_result("d")
    review = core.decide([fact, core.observe("order.score", 0.95, evidence=evidence, trace_id="d")], trace_id="d")
    assert [(REJECTED, "NO_FACT_INPUT"), (REJECTED, "INVALID_PARAMS"), (REVIEW, "FRAUD_SUSPECTED")] == [
        verdict(one) for one in (no_input, invalid, review)
    ]
    assert not any(one.HasField("contest") for one in (no_input, invalid, review))
    assert (candidate.event_id,) == core.state.contests[f"{ACTION} order/1"].candidates
    core.prove()


def test_each_key_has_its_own_contest() -> None:
    """Each conflict key has its own contest; they close in the order of their openings."""
    core = Core(contest_document())
    first = core.enter([deliver(core)], trace_id="a")
    core.pass_time(400)
    second = core.enter([deliver(core, "order/2")], subject="order/2", trace_id="b")
    assert [first_decision_id(first)] == [event.event_id for event in core.tick(WINDOW_MS - 400)]
    assert [first_decision_id(second)] == [event.event_id for event in core.tick(400)]
    core.prove()


def test_a_held_key_opens_no_contest() -> None:
    """A proposal on a held key is refused at once."""
    core = Core(contest_document())
    fact = deliver(core)
    winner = core.enter([fact], trace_id="a")
    core.tick(WINDOW_MS)
    refusal = core.decide([fact], trace_id="b")
    assert ((REJECTED, "CONFLICTING_DECISION"), [winner.event_id]) == (verdict(refusal), list(refusal.conflict_with_proposal_ids))


def test_expiry_frees_the_key_for_the_next_contest() -> None:
    """A winner that no executor starts expires like any approval, and its key may be contested again."""
    core = Core(contest_document())
    fact = deliver(core)
    core.enter([fact], trace_id="a")
    core.tick(WINDOW_MS)
    assert [EXPIRED] == [event.decision.outcome for event in core.tick(10_000)]
    next_candidate = core.enter([fact], trace_id="b")
    core.tick(WINDOW_MS)
    assert APPROVED == core.first_decision(next_candidate).outcome
    core.prove()


def test_another_action_takes_the_key_at_once() -> None:
    """An approval of an action without a window takes the key at once, and the candidates of an open contest are refused."""
    core = Core(two_actions())
    fact = deliver(core)
    candidate = core.enter([fact], trace_id="a", priority=9)
    other = core.propose([fact], trace_id="b", action_type="order.note")
    assert APPROVED == other.decision.outcome
    core.tick(WINDOW_MS)
    decision = core.first_decision(candidate)
    assert ((REJECTED, "CONFLICTING_DECISION"), [other.decision.proposal_id]) == (
        verdict(decision),
        list(decision.conflict_with_proposal_ids),
    )
    assert [("CONFLICTING_DECISION", 0.0)] == [(one.reason_code, one.score) for one in decision.contest.candidates]
    core.prove()


def two_actions() -> str:
    """A rule set with an action that has a contest window and one that has none, for the same keys."""
    status = {"status": FACTS["status"]}
    note = {"params": PARAMS, "facts": status, "decision_ttl_ms": 10_000}
    approves = {"id": "note", "action": "order.note", "priority": 1, "when": 'facts.status == "delivered"', "effect": "approve"}
    return contest_document(rules=[*RULES, approves], more_actions={"order.note": note})


def test_best_passing_candidate_wins() -> None:
    """All candidates are arbitrated at the close; the best one that passes wins, and the contest lists the others' reason codes."""
    core = Core(contest_document())
    fact = deliver(core)
    best = core.enter([fact], trace_id="a", priority=3, max_fact_age_ms=WINDOW_MS - 1)
    next_best = core.enter([fact], trace_id="b", priority=2)
    core.tick(WINDOW_MS)
    assert [(REJECTED, "STALE_FACTS"), (APPROVED, "")] == [verdict(core.first_decision(best)), verdict(core.first_decision(next_best))]
    ranking = [(one.proposal_id, one.reason_code) for one in core.first_decision(best).contest.candidates]
    assert [(next_best.event_id, ""), (best.event_id, "STALE_FACTS")] == ranking
    assert ["order.status"] == list(core.first_decision(best).retry_hint.missing_fact_keys)
    core.prove()


def test_evidence_at_the_close_counts() -> None:
    """Candidates are arbitrated on the facts at the close, each with its own citations."""
    core = Core(contest_document())
    fact = deliver(core)
    candidate = core.enter([fact], trace_id="a")
    pinned = core.enter([fact], trace_id="b", projection_version=core.state.head)
    core.fact("order.status", "cancelled")
    core.tick(WINDOW_MS)
    assert [(REJECTED, "FACT_SUPERSEDED"), (REJECTED, "PROJECTION_CHANGED")] == [
        verdict(core.first_decision(one)) for one in (candidate, pinned)
    ]
    assert {} == core.state.conflict_keys
    core.prove()


def test_a_review_at_the_close_never_wins() -> None:
    """A candidate that needs review at the close never wins, whatever its score."""
    core = Core(contest_document())
    fact = deliver(core)
    evidence = core.tool_result("a")
    reviewed = core.enter([fact], trace_id="a", priority=9, max_fact_age_ms=5_000)
    core.observe("order.score", 0.95, evidence=evidence, trace_id="a")
    core.tick(WINDOW_MS)
    decision = core.first_decision(reviewed)
    assert ((REVIEW, "FRAUD_SUSPECTED"), "FRAUD_SUSPECTED") == (verdict(decision), decision.contest.candidates[0].reason_code)
    review = core.state.reviews[decision.decision_id]
    assert reviewed.event_id == review.proposal.event_id
    assert APPROVED == core.resolve(core.by_id[decision.decision_id], fact_pb2.REVIEW_VERDICT_APPROVE).decision.outcome
    core.prove()


def test_rule_sets_at_the_close_decide() -> None:
    """The version that is active at the close decides the contest; an activation does not change the window."""
    core = Core(contest_document())
    fact = deliver(core)
    candidate = core.enter([fact], trace_id="a")
    core.activate(contest_document(rules=NONE_APPROVED, version=2, contest_window_ms=60_000))
    core.tick(WINDOW_MS)
    assert (REJECTED, "NEVER") == verdict(core.first_decision(candidate))
    core.prove()


def test_a_contest_outlives_its_rule_set() -> None:
    """If no rule set governs the action at the close, all candidates are refused."""
    core = Core(contest_document())
    candidate = core.enter([deliver(core)])
    core.deactivate("refunds")
    core.tick(WINDOW_MS)
    assert (REJECTED, "NO_ACTIVE_POLICY") == verdict(core.first_decision(candidate))
    core.prove()


def test_proposal_joins_an_open_contest_without_a_window() -> None:
    """A proposal for the key of an open contest joins it, even if the active version has no window."""
    core = Core(contest_document())
    fact = deliver(core)
    first = core.enter([fact], trace_id="a", priority=1)
    core.activate(document(version=2))
    second = core.enter([fact], trace_id="b", priority=2)
    core.tick(WINDOW_MS)
    assert [(REJECTED, "OUTRANKED"), (APPROVED, "")] == [verdict(core.first_decision(first)), verdict(core.first_decision(second))]
    assert APPROVED == core.propose([deliver(core, "order/2")], subject="order/2", trace_id="c").decision.outcome
    core.prove()


@pytest.mark.parametrize("score", ["1.0 / (params.amount - 50.0)", "double([1, 2][int(params.amount)])", "0.0 / (params.amount - 50.0)"])
def test_a_score_without_a_value_is_an_evaluation_error(score: str) -> None:
    """A proposal whose score is infinite, NaN or an error is refused at once."""
    core = Core(contest_document(score=score))
    decision = core.decide([deliver(core)])
    assert ((REJECTED, "EVALUATION_ERROR"), "gavel", "") == (verdict(decision), decision.policy_id, decision.rule_id)
    assert [("EVALUATION_ERROR", "refunds/score")] == [(warning.code, warning.message) for warning in decision.warnings]
    core.prove()


def test_a_score_that_fails_at_the_close() -> None:
    """The score is computed again at the close; a candidate without a score never wins."""
    core = Core(contest_document(score=f"1.0 / double(evidence.oldest_age_ms - {WINDOW_MS})"))
    fact = deliver(core)
    failing = core.enter([fact], trace_id="a")
    core.tick(WINDOW_MS)
    assert (REJECTED, "EVALUATION_ERROR") == verdict(core.first_decision(failing))
    assert ["EVALUATION_ERROR"] == [one.reason_code for one in core.first_decision(failing).contest.candidates]
    core.prove()


def test_rejections_are_counted_at_the_close() -> None:
    """Rejections count at the close, one by one, until a human review is requested; then the trace's other candidates are UNDER_REVIEW."""
    core = Core(contest_document(rejection_limit=2))
    fact = deliver(core)
    winner = core.enter([fact], trace_id="w", priority=9)
    losers = [core.enter([fact], trace_id="a", amount=amount) for amount in (1, 2, 3)]
    assert 0 == core.state.rejections("a", AGENT.type, AGENT.id, core.now_ms).total
    core.tick(WINDOW_MS)
    assert APPROVED == core.first_decision(winner).outcome
    assert [(REJECTED, "OUTRANKED"), (REVIEW, "REJECTION_LIMIT"), (REJECTED, "UNDER_REVIEW")] == [
        verdict(core.first_decision(loser)) for loser in losers
    ]
    assert ["OUTRANKED"] == [warning.code for warning in core.first_decision(losers[1]).warnings]
    assert [core.first_decision(losers[1]).decision_id] == [review.decision_id for review in core.state.pending_reviews()]
    assert 1 == len(core.events_named("NeedsHumanReview"))
    core.prove()


def test_a_trace_may_win_and_lose() -> None:
    """An approval resets the count of its trace before the trace's other candidates are refused."""
    core = Core(contest_document())
    fact = deliver(core)
    core.decide([], trace_id="a")
    high, low = core.enter([fact], trace_id="a", priority=2), core.enter([fact], trace_id="a", priority=1, amount=7)
    core.tick(WINDOW_MS)
    assert [(APPROVED, 0), (REJECTED, 1)] == [
        (core.first_decision(one).outcome, core.first_decision(one).consecutive_rejections) for one in (high, low)
    ]
    core.prove()


def test_a_repeated_proposal_is_refused_before_it_competes() -> None:
    """A repetition of the trace's last refused proposal is a duplicate, also while a contest is open."""
    core = Core(contest_document())
    cancelled = core.fact("order.status", "cancelled")
    core.decide([cancelled], trace_id="a")
    assert (REJECTED, "NO_FEASIBLE_PROPOSAL") == verdict(core.decide([cancelled], trace_id="a"))
    stale = core.fact("order.status", "delivered", subject="order/2", occurred_at_ms=core.now_ms - 61_000)
    core.decide([stale], subject="order/2", trace_id="b")
    core.fact("order.status", "delivered", subject="order/2")
    next_candidate = core.decide([stale], subject="order/2", trace_id="b")
    assert (REJECTED, "FACT_SUPERSEDED") == verdict(next_candidate)


def test_a_contest_is_bounded() -> None:
    """A proposal to a full contest gets a fault with a retry delay, and nothing is recorded."""
    core = Core(contest_document())
    fact = deliver(core)
    for number in range(CONTEST_CANDIDATES_MAX):
        core.enter([fact], trace_id=f"t{number}", producer=agent(number // CONTEST_CANDIDATES_OF_PRODUCER_MAX))
    core.pass_time(400)
    fault = core.fault(core.proposal([fact], trace_id="late", priority=9, producer=agent(9)))
    assert (error_pb2.ERROR_REASON_QUEUE_FULL, WINDOW_MS - 400) == (fault.reason, fault.retry_after_ms)
    assert fault.message.startswith("64 proposals already compete for order/1; ")
    decisions = core.tick(WINDOW_MS)
    assert CONTEST_CANDIDATES_MAX == len(decisions)
    core.prove()


def test_places_per_producer_are_limited() -> None:
    """One producer has at most a quarter of the places, over all its traces; other producers still find room."""
    core = Core(contest_document())
    fact = deliver(core)
    other = core.enter([fact], trace_id="other", producer=agent(2), priority=9)
    for number in range(CONTEST_CANDIDATES_OF_PRODUCER_MAX):
        core.enter([fact], trace_id=f"t{number}", producer=agent(1))
    digest = core.state.digest()
    fault = core.fault(core.proposal([fact], trace_id="late", producer=agent(1)))
    assert (error_pb2.ERROR_REASON_QUEUE_FULL, WINDOW_MS) == (fault.reason, fault.retry_after_ms)
    assert fault.message.startswith("16 proposals of producer agent-1 already compete for order/1; ")
    assert digest == core.state.digest()
    core.enter([fact], trace_id="late", producer=agent(2))
    core.enter([deliver(core, "order/2")], subject="order/2", trace_id="late", producer=agent(1))
    core.tick(WINDOW_MS)
    assert APPROVED == core.first_decision(other).outcome
    core.prove()


def test_a_contest_is_bounded_in_bytes() -> None:
    """A contest is also bounded by the size of its proposals."""
    core = Core(contest_document(params=NOTES))
    fact = deliver(core)
    note = ["x" * 60_000] * 15
    for number in range(4):
        core.enter([fact], trace_id=f"t{number}", params={"amount": 1, "notes": note}, producer=agent(number))
    fault = core.fault(core.proposal([fact], trace_id="late", params={"amount": 1, "notes": note}, producer=agent(4)))
    assert error_pb2.ERROR_REASON_QUEUE_FULL == fault.reason
    small = core.enter([fact], trace_id="small", params={"amount": 1, "notes": ["x" * 20_000]}, producer=agent(5))
    # What is left, to the byte, and one more: a replay must find the same room. A text in a list takes 8 bytes besides.
    left_bytes = CONTEST_BYTES_MAX - core.state.contests[f"{ACTION} order/1"].size_bytes - small.proposal.ByteSize()
    more, rest = divmod(left_bytes, 40_008)
    notes = ["x" * 40_000] * more
    params = {"amount": 1, "notes": [*notes, "x" * (20_000 + rest + 1)]}
    assert error_pb2.ERROR_REASON_QUEUE_FULL == core.fault(core.proposal([fact], trace_id="last", params=params, producer=agent(5))).reason
    params = {"amount": 1, "notes": [*notes, "x" * (20_000 + rest)]}
    core.enter([fact], trace_id="last", params=params, producer=agent(5))
    assert CONTEST_BYTES_MAX == core.state.contests[f"{ACTION} order/1"].size_bytes
    core.prove()


def test_bytes_per_producer_are_limited() -> None:
    """One producer has at most a quarter of the bytes, over all its traces; other producers still find room."""
    core = Core(contest_document(params=NOTES))
    fact = deliver(core)
    params = {"amount": 1, "notes": ["x" * 60_000] * 9}
    other = core.enter([fact], trace_id="other", params=params, producer=agent(2), priority=9)
    core.enter([fact], trace_id="t0", params=params, producer=agent(1))
    fault = core.fault(core.proposal([fact], trace_id="t1", params=params, producer=agent(1)))
    assert (error_pb2.ERROR_REASON_QUEUE_FULL, WINDOW_MS) == (fault.reason, fault.retry_after_ms)
    assert f"{CONTEST_BYTES_OF_PRODUCER_MAX} of the {CONTEST_BYTES_MAX} bytes" in fault.message
    core.enter([fact], trace_id="t1", producer=agent(1))
    core.enter([fact], trace_id="t2", params=params, producer=agent(3))
    core.tick(WINDOW_MS)
    assert APPROVED == core.first_decision(other).outcome
    core.prove()


def observe_many_keys(core: Core) -> Envelope:
    """Publish an observation with as many and as long keys as one may have."""
    envelope = observation_envelope("k.first", 1, subject="note/1")
    for number in range(1, EXTRACTED_FIELDS_MAX):
        envelope.observation.extracted_fields[f"k.n{number}".ljust(FACT_KEY_LENGTH_MAX, "x")].CopyFrom(python_to_value(1))
    return core.publish(envelope)


def test_what_a_candidate_cites_is_limited() -> None:
    """A proposal that cites more than CONTEST_CITATIONS_BYTES_MAX neither opens nor joins a contest, and leaves its room to others."""
    core = Core(contest_document())
    fact, observation = deliver(core), observe_many_keys(core)
    reference = EventReference(event_id=observation.event_id, sequence_number=observation.sequence_number)
    for candidates in range(2):
        fault = core.fault(core.proposal([fact], references=[reference] * 255, trace_id="a"))
        assert (error_pb2.ERROR_REASON_INVALID_REQUEST, 0) == (fault.reason, fault.retry_after_ms)
        assert ["envelope.proposal.based_on_events"] == [field for field, _ in fault.violations]
        assert "cite fewer events" in fault.message
        assert candidates == len(core.state.open_proposals)
        core.enter([fact], references=[reference], trace_id=f"t{candidates}", priority=candidates)
    core.tick(WINDOW_MS)
    core.prove()


def test_a_candidate_is_no_larger_than_a_message() -> None:
    """A proposal that exceeds the limit of an event together with what it cites does not compete, not even alone."""
    core = Core(contest_document(params=NOTES))
    fact, observation = deliver(core), observe_many_keys(core)
    notes = ["x" * 60_000] * (MESSAGE_BYTES_MAX // 60_008)
    alone = core.proposal([fact], params={"amount": 1, "notes": notes}).envelope.proposal.ByteSize()
    params = {"amount": 1, "notes": [*notes, "x" * (MESSAGE_BYTES_MAX - alone - CONTEST_CITATIONS_BYTES_MAX // 20)]}
    fault = core.fault(core.proposal([fact, observation], params=params))
    assert (error_pb2.ERROR_REASON_INVALID_REQUEST, ["envelope.proposal"]) == (fault.reason, [field for field, _ in fault.violations])
    core.enter([fact], params=params)
    core.tick(WINDOW_MS)
    core.prove()


def test_candidates_of_version_2_are_not_limited_by_what_they_cite() -> None:
    """A bus of arbiter version 2 goes on as its log shows: it has no limit of citations, and none of the bytes of a producer."""
    core = Core(contest_document(), arbiter_version=2)
    fact, observation = deliver(core), observe_many_keys(core)
    reference = EventReference(event_id=observation.event_id, sequence_number=observation.sequence_number)
    for trace_id in ("a", "b"):
        core.enter([fact], references=[reference] * 60, trace_id=trace_id)
    assert CONTEST_BYTES_OF_PRODUCER_MAX < core.state.contests[f"{ACTION} order/1"].size_bytes
    core.tick(WINDOW_MS)
    core.prove()


def test_repeated_event_id_joins_the_contest() -> None:
    """A repeated event_id with the same content waits for the same decision; with other content it is refused."""
    core = Core(contest_document())
    fact = deliver(core)
    candidate = core.enter([fact])
    head = core.state.head
    assert (candidate, head) == (core.enter([fact], event_id=candidate.event_id), core.state.head)
    fault = core.fault(core.proposal([fact], event_id=candidate.event_id, amount=7))
    assert error_pb2.ERROR_REASON_EVENT_ID_REUSED == fault.reason
    core.tick(WINDOW_MS)
    core.prove()


def test_repeated_event_id_of_another_caller_does_not_join_the_contest() -> None:
    """Another caller that repeats a waiting proposal does not wait for its decision, and learns only that the event_id is taken."""
    core = Core(contest_document())
    fact = deliver(core)
    core.principal = Principal("ada", "token")
    candidate = core.enter([fact])
    for other in (Principal("mallory", "token"), Principal("ada", "jwt", "https://issuer.example"), ANONYMOUS):
        core.principal = other
        fault = core.fault(core.proposal([fact], event_id=candidate.event_id))
        assert f"event_id {candidate.event_id} is taken; choose a new event_id" == fault.message
    core.principal = Principal("ada", "token")
    assert candidate == core.enter([fact], event_id=candidate.event_id)
    core.tick(WINDOW_MS)
    core.prove()


def test_a_tick_closes_a_contest_whole() -> None:
    """A tick with a small limit still closes a contest whole; other contests wait for the next tick."""
    core = Core(contest_document())
    for number in range(2):
        fact = deliver(core, f"order/{number}")
        for trace in range(3):
            core.enter([fact], subject=f"order/{number}", trace_id=f"t{number}-{trace}")
    core.pass_time(WINDOW_MS)
    assert 6 == core.state.due_count(core.now_ms)
    before = len(core.events)
    core.run(Tick(1))
    assert (3, 3) == (len(core.events) - before, core.state.due_count(core.now_ms))
    core.run(Tick(1))
    core.prove()


def test_command_closes_due_contests_first() -> None:
    """The first command after the window closes the contest; a late proposal finds the key held."""
    core = Core(contest_document())
    fact = deliver(core)
    candidate = core.enter([fact], trace_id="a")
    core.pass_time(WINDOW_MS)
    refusal = core.decide([fact], trace_id="b", priority=9)
    assert [(APPROVED, ""), (REJECTED, "CONFLICTING_DECISION")] == [verdict(core.first_decision(candidate)), verdict(refusal)]
    core.prove()


Entry = tuple[int, int, int]  # priority, risk in tenths, pause before it


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 10), st.integers(0, 150)), min_size=1, max_size=6), st.randoms())
def test_the_order_of_arrival_does_not_matter(entries: Sequence[Entry], randomness: Any) -> None:
    """A candidate with the highest score wins in any order of arrival, and the others name it."""
    shuffled = list(entries)
    randomness.shuffle(shuffled)
    best = {_winner(order) for order in (entries, shuffled)}
    assert {max((priority * 100.0 - risk / 10 * 10.0 for priority, risk, _ in entries))} == best


def _winner(entries: Sequence[Entry]) -> float:
    core = Core(contest_document())
    fact = deliver(core)
    proposals = []
    for number, (priority, risk, pause_ms) in enumerate(entries):
        proposals.append(core.enter([fact], trace_id=f"t{number}", priority=priority, risk=risk / 10))
        core.pass_time(pause_ms)
    core.tick(WINDOW_MS)
    decisions = [core.first_decision(proposal) for proposal in proposals]
    (winner,) = (decision for decision in decisions if decision.outcome == APPROVED)
    for decision in decisions:
        assert decision is winner or (reason_codes.OUTRANKED, [winner.proposal_id]) == (
            decision.reason_code,
            list(decision.conflict_with_proposal_ids),
        )
    core.prove()
    return winner.contest.candidates[0].score
