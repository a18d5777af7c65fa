"""A proposal competes once: the same of the same trace is refused while it waits, and takes nobody's place (seeds 002 §6.2, §6.3)."""

from __future__ import annotations

import pytest
from gavel.v1 import decision_pb2, error_pb2
from gavel.v1.common_pb2 import VersionBinding
from gavel_rules import reasons
from gavel_rules.commands import Waiting
from gavel_rules.decider import handle
from gavel_rules.limits import CONTEST_CANDIDATES_MAX
from gavel_server.services.arbitration import would_decide

from tests.unit.core.contesting import APPROVED, REJECTED, REVIEW, WINDOW_MS, agent, contested, delivered, verdict
from tests.unit.core.driver import Core


def test_a_copy_is_refused_and_names_what_waits() -> None:
    """It is told which proposal to come back for, and when; that one wins alone, and its trace starts anew."""
    core = Core(contested())
    fact = delivered(core)
    waiting = core.enter([fact])
    core.pass_time(300)
    copy = core.decide([fact])
    assert ((REJECTED, reasons.DUPLICATE_PROPOSAL), "gavel") == (verdict(copy), copy.policy_id)
    assert ([waiting.event_id], False) == (list(copy.conflict_with_proposal_ids), copy.HasField("contest"))
    assert (True, WINDOW_MS - 300) == (copy.retry_hint.retryable, copy.retry_hint.retry_after_ms)
    assert (1, 1) == (copy.consecutive_rejections, copy.rejection_counts.policy)
    assert isinstance(core.run(core.proposal([fact], event_id=waiting.event_id)), Waiting)
    core.tick(WINDOW_MS - 300)
    decision = core.decided(waiting)
    assert ((APPROVED, ""), 1) == (verdict(decision), len(decision.contest.candidates))
    assert (0, {}) == (core.state.rejections(waiting.trace_id, core.now_ms).total, core.state.waiting_of_trace)
    core.prove()


def test_copies_take_nobodys_place() -> None:
    """However often a client tries anew, a better proposal of somebody else finds room, and wins."""
    core = Core(contested(rejection_limit=1_000))
    fact = delivered(core)
    core.enter([fact], trace_id="a", priority=1)
    copies = [core.decide([fact], trace_id="a", priority=1) for _ in range(2 * CONTEST_CANDIDATES_MAX)]
    assert {reasons.DUPLICATE_PROPOSAL} == {copy.reason_code for copy in copies}
    better = core.enter([fact], trace_id="b", priority=2)
    core.tick(WINDOW_MS)
    decision = core.decided(better)
    assert (APPROVED, 2) == (decision.outcome, len(decision.contest.candidates))
    core.prove()


def test_what_is_no_copy() -> None:
    """Other params, another trace or other citations are another proposal; priority, estimates and versions are not."""
    core = Core(contested(rejection_limit=1_000))
    fact, note = delivered(core), core.fact("k.note", "x")
    waiting = core.enter([fact])
    core.enter([fact], amount=7)
    core.enter([fact], trace_id="other")
    core.enter([fact, note])
    for changes in ({"priority": 9}, {"risk": 0.9}, {"cost": 2.0}, {"version_binding": VersionBinding(planner_version="9")}):
        assert [waiting.event_id] == list(core.decide([fact], **changes).conflict_with_proposal_ids)
    assert 4 == len(core.state.open_proposals)
    core.tick(WINDOW_MS)
    assert {} == core.state.waiting_of_trace
    core.prove()


def test_who_repeats_himself_on_and_on_is_brought_to_a_person() -> None:
    """Each copy counts as any repetition does: an agent in a loop reaches its limit, and its trace is closed to what waits, too."""
    core = Core(contested(rejection_limit=2))
    fact = delivered(core)
    waiting = core.enter([fact], trace_id="a")
    copies = [core.decide([fact], trace_id="a") for _ in range(3)]
    assert [(REJECTED, "DUPLICATE_PROPOSAL"), (REVIEW, "REJECTION_LIMIT"), (REJECTED, "UNDER_REVIEW")] == [verdict(one) for one in copies]
    core.tick(WINDOW_MS)
    assert (REJECTED, "UNDER_REVIEW") == verdict(core.decided(waiting))
    core.prove()


@pytest.mark.parametrize("changes", [{}, {"max_fact_age_ms": 1}, {"required_facts": ["order.missing"]}])
def test_what_becomes_of_a_copy_does_not_harm_what_waits(changes: dict[str, object]) -> None:
    """Whatever a copy was refused for, what waits is no repetition of it when its contest closes."""
    core = Core(contested())
    fact = delivered(core)
    waiting = core.enter([fact])
    core.pass_time(2)
    assert REJECTED == core.decide([fact], **changes).outcome
    core.tick(WINDOW_MS)
    assert (APPROVED, "") == verdict(core.decided(waiting))
    core.prove()


def test_after_the_close_the_same_may_be_proposed_again() -> None:
    """Once the first is decided nothing of it waits: who was outranked may try again when the key is free."""
    core = Core(contested())
    fact = delivered(core)
    loser = core.enter([fact], trace_id="a", priority=1)
    core.decide([fact], trace_id="a")
    core.enter([fact], trace_id="b", priority=2)
    core.tick(WINDOW_MS)
    assert (REJECTED, "OUTRANKED") == verdict(core.decided(loser))
    core.tick(10_000)
    again = core.enter([fact], trace_id="a")
    core.tick(WINDOW_MS)
    assert APPROVED == core.decided(again).outcome
    core.prove()


def test_the_same_for_another_key_is_no_copy() -> None:
    """Where the key says who proposes, two agents of one trace compete for two keys with the same proposal."""
    core = Core(contested(conflict_key="producer.id"))
    fact = delivered(core)
    proposals = [core.enter([fact], producer=agent(number)) for number in (1, 2)]
    assert reasons.DUPLICATE_PROPOSAL == core.decide([fact], producer=agent(2)).reason_code
    core.tick(WINDOW_MS)
    assert ([APPROVED] * 2, {}) == ([core.decided(one).outcome for one in proposals], core.state.waiting_of_trace)
    core.prove()


def test_an_event_id_that_waits_is_never_judged_again() -> None:
    """It joins the wait, even where the same again would be refused by now; other content is refused, even where it waits itself."""
    core = Core(contested())
    fact = delivered(core)
    first, second = core.enter([fact]), core.enter([fact], amount=7)
    core.fact("order.status", "cancelled")
    digest = core.state.digest()
    assert first == core.enter([fact], event_id=first.event_id)
    fault = core.fault(core.proposal([fact], event_id=first.event_id, amount=7))
    assert error_pb2.ERROR_REASON_EVENT_ID_REUSED == fault.reason
    assert (digest, second.event_id) == (core.state.digest(), core.state.waits_already(core.proposal([fact], amount=7).asked, "order/1"))
    core.tick(WINDOW_MS)
    core.prove()


def test_a_preflight_says_so_too() -> None:
    """A preflight of a copy is a duplicate; one of the very proposal that waits says what it competes for."""
    core = Core(contested())
    fact = delivered(core)
    waiting = core.enter([fact])
    asked = {
        event_id: would_decide(
            core.state, core.proposal([fact], event_id=event_id).asked, core.references(core.proposal([fact])).cited, core.now_ms, None
        )
        for event_id in (waiting.event_id, core.new_id())
    }
    assert [(decision_pb2.OUTCOME_APPROVED, True), (decision_pb2.OUTCOME_REJECTED, False)] == [
        (decision.outcome, decision.HasField("contest")) for decision in asked.values()
    ]


def test_entering_and_closing_are_undone_whole() -> None:
    """What is known of those that wait is part of the state, and goes with what made it."""
    core = Core(contested())
    fact = delivered(core)
    before, mark = core.state.digest(), core.state.mark()
    command = core.proposal([fact])
    handle(core.state, command, core.references(command), core.now_ms)
    assert command.envelope.event_id == core.state.waits_already(core.proposal([fact]).asked, "order/1")
    core.state.undo(mark)
    assert (before, {}) == (core.state.digest(), core.state.waiting_of_trace)
