"""Closes of contests: taken back, repeated from the log, proved by replays, and broken off by faults (seeds 002 §6.2)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, fact_pb2
from gavel.v1.common_pb2 import EventReference
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reasons
from gavel_rules.authoring.impact import Impact
from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, RuleSetAt, Tick, Waiting
from gavel_rules.decider import handle
from gavel_rules.errors import NetworkFaultError
from gavel_rules.evidence import cited
from gavel_rules.language.network import Network
from gavel_rules.projection import State
from gavel_rules.replay import DivergedError
from gavel_server.services.arbitration import would_decide

from tests.unit.core.contesting import APPROVED, REJECTED, REVIEW, WINDOW_MS, contested, delivered, verdict
from tests.unit.core.driver import BUS, Core, compiled, rechained, replayed


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
    asked = core.proposal([fact], trace_id="d").asked
    with pytest.raises(RuntimeError):
        would_decide(core.state, asked, {fact.sequence_number: cited(fact)}, core.now_ms + WINDOW_MS, None)
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
