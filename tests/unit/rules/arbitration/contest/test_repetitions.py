"""A proposal competes once: while it waits, a copy in its trace is refused and takes no place (constitution §6.2, §6.3)."""

from __future__ import annotations

import pytest
from gavel.v1 import decision_pb2, error_pb2
from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reason_codes
from gavel_rules.commands import ContestEntry
from gavel_rules.decider import handle
from gavel_rules.limits import CONTEST_CANDIDATES_MAX
from gavel_rules.preflight import preflight

from tests.support.driver import AGENT, Core
from tests.support.histories.contests import APPROVED, REJECTED, REVIEW, WINDOW_MS, agent, contest_document, deliver, verdict


def test_copy_is_refused_and_names_the_waiting_proposal() -> None:
    """The refusal names the waiting proposal and the remaining time. The waiting proposal wins, and its trace's count starts anew."""
    core = Core(contest_document())
    fact = deliver(core)
    candidate = core.enter([fact])
    core.pass_time(300)
    copy = core.decide([fact])
    assert ((REJECTED, reason_codes.DUPLICATE_PROPOSAL), "gavel") == (verdict(copy), copy.policy_id)
    assert ([candidate.event_id], False) == (list(copy.conflict_with_proposal_ids), copy.HasField("contest"))
    assert (True, WINDOW_MS - 300) == (copy.retry_hint.retryable, copy.retry_hint.retry_after_ms)
    assert (1, 1) == (copy.consecutive_rejections, copy.rejection_counts.policy)
    assert isinstance(core.run(core.proposal([fact], event_id=candidate.event_id)), ContestEntry)
    core.tick(WINDOW_MS - 300)
    decision = core.first_decision(candidate)
    assert ((APPROVED, ""), 1) == (verdict(decision), len(decision.contest.candidates))
    assert (0, {}) == (
        core.state.rejections(candidate.trace_id, AGENT.type, AGENT.id, core.now_ms).total,
        core.state.open_proposals_by_trace,
    )
    core.prove()


def test_copies_take_no_place() -> None:
    """However often a client repeats a proposal, there is room for a better proposal of another producer, which wins."""
    core = Core(contest_document(rejection_limit=1_000))
    fact = deliver(core)
    core.enter([fact], trace_id="a", priority=1)
    copies = [core.decide([fact], trace_id="a", priority=1) for _ in range(2 * CONTEST_CANDIDATES_MAX)]
    assert {reason_codes.DUPLICATE_PROPOSAL} == {copy.reason_code for copy in copies}
    better = core.enter([fact], trace_id="b", priority=2)
    core.tick(WINDOW_MS)
    decision = core.first_decision(better)
    assert (APPROVED, 2) == (decision.outcome, len(decision.contest.candidates))
    core.prove()


def test_proposals_that_are_not_copies() -> None:
    """Other params, another trace or other citations make another proposal; other priority, estimates or versions do not."""
    core = Core(contest_document(rejection_limit=1_000))
    fact, note = deliver(core), core.fact("k.note", "x")
    candidate = core.enter([fact])
    core.enter([fact], amount=7)
    core.enter([fact], trace_id="other")
    core.enter([fact, note])
    for changes in ({"priority": 9}, {"risk": 0.9}, {"cost": 2.0}, {"version_binding": VersionBinding(planner_version="9")}):
        assert [candidate.event_id] == list(core.decide([fact], **changes).conflict_with_proposal_ids)
    assert 4 == len(core.state.open_proposals)
    core.tick(WINDOW_MS)
    assert {} == core.state.open_proposals_by_trace
    core.prove()


def test_repeated_copies_reach_the_rejection_limit() -> None:
    """Each copy counts as a rejection, so repeated copies open a review of the trace."""
    core = Core(contest_document(rejection_limit=2))
    fact = deliver(core)
    candidate = core.enter([fact], trace_id="a")
    copies = [core.decide([fact], trace_id="a") for _ in range(3)]
    assert [(REJECTED, "DUPLICATE_PROPOSAL"), (REVIEW, "REJECTION_LIMIT"), (REJECTED, "UNDER_REVIEW")] == [verdict(one) for one in copies]
    core.tick(WINDOW_MS)
    assert (REJECTED, "UNDER_REVIEW") == verdict(core.first_decision(candidate))
    core.prove()


@pytest.mark.parametrize("changes", [{}, {"max_fact_age_ms": 1}, {"required_facts": ["order.missing"]}])
def test_refused_copy_does_not_affect_the_waiting_proposal(changes: dict[str, object]) -> None:
    """At the close a waiting proposal is not a duplicate of its refused copies."""
    core = Core(contest_document())
    fact = deliver(core)
    candidate = core.enter([fact])
    core.pass_time(2)
    assert REJECTED == core.decide([fact], **changes).outcome
    core.tick(WINDOW_MS)
    assert (APPROVED, "") == verdict(core.first_decision(candidate))
    core.prove()


def test_same_proposal_is_accepted_after_the_close() -> None:
    """After the close the same proposal may be submitted again once the key is free."""
    core = Core(contest_document())
    fact = deliver(core)
    loser = core.enter([fact], trace_id="a", priority=1)
    core.decide([fact], trace_id="a")
    core.enter([fact], trace_id="b", priority=2)
    core.tick(WINDOW_MS)
    assert (REJECTED, "OUTRANKED") == verdict(core.first_decision(loser))
    core.tick(10_000)
    next_candidate = core.enter([fact], trace_id="a")
    core.tick(WINDOW_MS)
    assert APPROVED == core.first_decision(next_candidate).outcome
    core.prove()


def test_same_proposal_for_another_key_is_not_a_copy() -> None:
    """If the key depends on the producer, two agents of one trace may submit the same proposal for two keys."""
    core = Core(contest_document(conflict_key="producer.id"))
    fact = deliver(core)
    proposals = [core.enter([fact], producer=agent(number)) for number in (1, 2)]
    assert reason_codes.DUPLICATE_PROPOSAL == core.decide([fact], producer=agent(2)).reason_code
    core.tick(WINDOW_MS)
    assert ([APPROVED] * 2, {}) == ([core.first_decision(one).outcome for one in proposals], core.state.open_proposals_by_trace)
    core.prove()


def test_waiting_event_id_is_not_arbitrated_again() -> None:
    """A repeated event_id joins the wait even if the proposal would be refused by now; with other content it is refused."""
    core = Core(contest_document())
    fact = deliver(core)
    first, second = core.enter([fact]), core.enter([fact], amount=7)
    core.fact("order.status", "cancelled")
    digest = core.state.digest()
    assert first == core.enter([fact], event_id=first.event_id)
    fault = core.fault(core.proposal([fact], event_id=first.event_id, amount=7))
    assert error_pb2.ERROR_REASON_EVENT_ID_REUSED == fault.reason
    assert (digest, second.event_id) == (
        core.state.digest(),
        core.state.open_duplicate(core.proposal([fact], amount=7).proposal, "order/1"),
    )
    core.tick(WINDOW_MS)
    core.prove()


def test_preflight_of_a_copy() -> None:
    """A preflight of a copy gives DUPLICATE_PROPOSAL; a preflight of the waiting proposal itself describes its contest."""
    core = Core(contest_document())
    fact = deliver(core)
    candidate = core.enter([fact])
    answers = {
        event_id: preflight(
            core.state,
            core.proposal([fact], event_id=event_id).proposal,
            core.references(core.proposal([fact])).cited_events,
            core.now_ms,
            None,
        )
        for event_id in (candidate.event_id, core.new_id())
    }
    assert [(decision_pb2.OUTCOME_APPROVED, True), (decision_pb2.OUTCOME_REJECTED, False)] == [
        (decision.outcome, decision.HasField("contest")) for decision in answers.values() if isinstance(decision, Decision)
    ]


def test_undo_restores_the_indexes_of_waiting_proposals() -> None:
    """Undoing an entry restores the indexes of waiting proposals."""
    core = Core(contest_document())
    fact = deliver(core)
    before, mark = core.state.digest(), core.state.mark()
    command = core.proposal([fact])
    handle(core.state, command, core.references(command), core.now_ms)
    assert command.envelope.event_id == core.state.open_duplicate(core.proposal([fact]).proposal, "order/1")
    core.state.undo(mark)
    assert (before, {}) == (core.state.digest(), core.state.open_proposals_by_trace)
