"""Closes of contests that are undone, repeated from the log, replayed, or interrupted by faults (constitution §6.2)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, fact_pb2
from gavel.v1.common_pb2 import EventReference
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.arbitration.contest import EarlyJudgement
from gavel_rules.arbitration.evaluation import evaluator
from gavel_rules.authoring.simulate import ChangedDecision, Simulation
from gavel_rules.commands import ActivateRuleSet, ContestEntry, DeployRuleSet, RuleSetPosition, Tick
from gavel_rules.decider import handle
from gavel_rules.errors import NetworkFaultError
from gavel_rules.events.citation import cited_event
from gavel_rules.language.engines.rete import Network
from gavel_rules.preflight import preflight
from gavel_rules.replay import DivergedError, Recomputation
from gavel_rules.state.records import OpenContest
from gavel_rules.state.state import State

from tests.support.driver import AGENT, BUS, Core, compile_cached, replay_log
from tests.support.entries import rechain
from tests.support.histories.contests import APPROVED, REJECTED, REVIEW, WINDOW_MS, contest_document, deliver, verdict


def test_entry_and_close_are_undone() -> None:
    """An entry and a close can be undone. Repeated, they give the same result, even if the entry has another time."""
    core = Core(contest_document())
    fact = deliver(core)
    core.enter([fact], trace_id="a")
    digest, mark = core.state.digest(), core.state.mark()
    command = core.proposal([fact], trace_id="b")
    handle(core.state, command, core.references(command), core.now_ms)
    assert digest != core.state.digest()
    core.state.undo(mark)
    assert (digest, False) == (core.state.digest(), command.envelope.proposal.HasField("contest"))
    core.pass_time(10)
    assert isinstance(core.run(command), ContestEntry)
    digest, mark = core.state.digest(), core.state.mark()
    first = [
        Envelope.FromString(event.SerializeToString()) for event in handle(core.state, Tick(1), now_ms=core.now_ms + WINDOW_MS).envelopes
    ]
    core.state.undo(mark)
    assert digest == core.state.digest()
    assert first == core.tick(WINDOW_MS)


def test_replica_closes_a_contest_from_the_log() -> None:
    """A replica that has only read the log makes the same decisions; citations are not looked up again."""
    core = Core(contest_document())
    fact = deliver(core)
    evidence = core.tool_result("a")
    observation = core.observe("order.score", 0.1, evidence=evidence, trace_id="a")
    core.enter([fact, observation], trace_id="a", priority=1)
    core.enter([fact], trace_id="b", priority=2)
    other = State(BUS)
    for record in core.records:
        other.apply(Envelope.FromString(record.envelope))
    assert core.state.digest() == other.digest()
    replica_events = handle(other, Tick(10), now_ms=core.now_ms + WINDOW_MS).envelopes
    assert [event.SerializeToString() for event in replica_events] == [event.SerializeToString() for event in core.tick(WINDOW_MS)]


def test_replay_finds_a_changed_contest() -> None:
    """A replay finds a changed winner and a changed entry at their events."""
    core = Core(contest_document())
    fact = deliver(core)
    candidate = core.enter([fact], trace_id="a")
    core.enter([fact], trace_id="b")
    core.tick(WINDOW_MS)
    for number, alter in ((candidate.sequence_number, _later_close), (len(core.events) - 1, _other_score)):
        forgery = [Envelope.FromString(event.SerializeToString()) for event in core.events]
        alter(forgery[number - 1])
        with pytest.raises(DivergedError) as divergence:
            replay_log(BUS, rechain(BUS, forgery))
        assert number == divergence.value.divergence.sequence_number


def _later_close(event: Envelope) -> None:
    event.proposal.contest.closes_at.seconds += 1


def _other_score(event: Envelope) -> None:
    event.decision.contest.candidates[0].score += 1


def test_reference_engine_replays_contests() -> None:
    """The reference engine alone decides the same contests."""
    core = Core(contest_document())
    fact = deliver(core)
    core.enter([fact], trace_id="a", priority=1)
    core.enter([fact], trace_id="b", priority=2)
    core.tick(WINDOW_MS)
    assert core.state.digest() == replay_log(BUS, core.records, engine=decision_pb2.ENGINE_REFERENCE).state.digest()


@pytest.mark.parametrize("failing", [False, True])
def test_candidates_judged_ahead(failing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A close with the judgements of an early judging makes the same events as one without, and evaluates no candidate again."""
    core = Core(contest_document())
    text = contest_document(version=2, score="-double(proposal.priority)")
    core.run(DeployRuleSet(core.new_id(), compile_cached(text), text))
    core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None, shadow=True))
    fact = deliver(core)
    for priority in (3, 1, 2):
        core.enter([fact], trace_id=f"t{priority}", priority=priority)
    core.pass_time(WINDOW_MS)
    match = Network.match
    calls = 0

    def counting(network: Network, text: str) -> list[int]:
        nonlocal calls
        calls += 1
        if failing:
            raise NetworkFaultError("broken")
        return match(network, text)

    monkeypatch.setattr(Network, "match", counting)
    mark = core.state.mark()
    expected = [event.SerializeToString() for event in handle(core.state, Tick(1), now_ms=core.now_ms).envelopes]
    core.state.undo(mark)
    open_contest = core.state.next_due(core.now_ms)
    assert isinstance(open_contest, OpenContest)
    ahead = EarlyJudgement(core.state, open_contest, core.now_ms, evaluator(core.state, core.state.head + 1, decision_pb2.ENGINE_RETE))
    steps = 0
    while ahead.step():
        steps += 1
    evaluations = calls
    closed = handle(core.state, Tick(1, judgements=ahead.judgements), now_ms=core.now_ms)
    assert 6 == steps
    assert expected == [event.SerializeToString() for event in closed.envelopes]
    assert failing or evaluations == calls
    monkeypatch.undo()


def test_replay_judges_candidates_ahead() -> None:
    """A replay that steps the early judging of each contest before it feeds the close proves the log; other events have none."""
    core = Core(contest_document())
    fact = deliver(core)
    for priority in (3, 1, 2):
        core.enter([fact], trace_id=f"t{priority}", priority=priority)
    core.tick(WINDOW_MS)
    recomputation = Recomputation(BUS)
    steps: dict[int, int] = {}
    for number, record in enumerate(core.records, 1):
        early_judgement = recomputation.early_judgement(record.envelope)
        while early_judgement is not None and early_judgement.step():
            steps[number] = steps.get(number, 0) + 1
        recomputation.feed(number, record.envelope)
    recomputation.finish(at_head=True)
    assert {len(core.records) - 2: 3} == steps
    assert core.state.digest() == recomputation.state.digest()
    assert recomputation.early_judgement(b"\xff") is None


def test_shadow_decides_the_contest() -> None:
    """A shadow decides the contest by its own rules; a difference is recorded once, with the decision."""
    core = Core(contest_document())
    text = contest_document(version=2, score="-double(proposal.priority)")
    rule_set = compile_cached(text)
    core.run(DeployRuleSet(core.new_id(), rule_set, text))
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None, shadow=True)), RuleSetPosition)
    fact = deliver(core)
    low, high = core.enter([fact], trace_id="a", priority=1), core.enter([fact], trace_id="b", priority=2)
    assert [] == core.events_named("ShadowDifference")
    core.tick(WINDOW_MS)
    differences = {event.agent_diagnostic.shadow_difference.decision_id: event for event in core.events_named("ShadowDifference")}
    assert {core.first_decision(low).decision_id, core.first_decision(high).decision_id} == differences.keys()
    other = differences[core.first_decision(high).decision_id].agent_diagnostic.shadow_difference
    assert ((APPROVED, ""), (REJECTED, "OUTRANKED")) == (
        (other.decided.outcome, other.decided.reason_code),
        (other.shadowed.outcome, other.shadowed.reason_code),
    )
    assert 2 == core.state.shadows["refunds"].differences
    core.prove()


def test_simulation_repeats_contests() -> None:
    """A simulation repeats contests: the same rules change nothing, and another score changes the winner."""
    core = Core(contest_document())
    fact = deliver(core)
    for priority in (1, 3, 2):
        core.enter([fact], trace_id=f"t{priority}", priority=priority)
    core.tick(WINDOW_MS)
    repeated, reverse = (
        Simulation(BUS, compile_cached(text))
        for text in (contest_document(version=2), contest_document(version=2, score="-double(proposal.priority)"))
    )
    changed = [[impact.feed(record.sequence_number, record.envelope) for record in core.records] for impact in (repeated, reverse)]
    assert ([], 3) == ([one for one in changed[0] if one], repeated.decisions)
    differences = [(one.recorded.outcome, one.simulated.outcome) for one in changed[1] if isinstance(one, ChangedDecision)]
    assert [(APPROVED, REJECTED), (REJECTED, APPROVED)] == differences


@pytest.mark.parametrize("error", [NetworkFaultError("the engine is gone"), RuntimeError("a bug"), KeyError("another one")])
def test_a_broken_engine_does_not_keep_a_contest_open(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """If the arbitration of a candidate fails, that candidate needs review, the others are decided, and a replay agrees."""
    core = Core(contest_document())
    fact = deliver(core)
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
        verdict(core.first_decision(one)) for one in (first, second, third)
    ]
    assert ["", "", "NOT_JUDGED"] == [one.reason_code for one in core.first_decision(third).contest.candidates]
    assert core.first_decision(first).decision_id == core.state.open_review("t3", AGENT.type, AGENT.id)
    assert "gavel" == core.first_decision(first).policy_id
    core.prove()


@pytest.mark.parametrize("shadowed", [False, True])
def test_a_close_that_fails_leaves_all_to_a_person(shadowed: bool) -> None:
    """A close that fails after the arbitration of its candidates is undone, and all candidates need review."""

    class Failing(dict[str, Any]):
        """A table that raises once, when an entry is put into it."""

        failed = False

        def __setitem__(self, key: str, value: Any) -> None:
            super().__setitem__(key, value)
            if not self.failed:
                self.failed = True
                raise RuntimeError("a bug")

    core = Core(contest_document())
    if shadowed:
        other = contest_document(version=2, score="-double(proposal.priority)")
        core.run(DeployRuleSet(core.new_id(), compile_cached(other), other))
        assert isinstance(core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None, shadow=True)), RuleSetPosition)
    fact = deliver(core)
    candidate = [core.enter([fact], trace_id=f"t{priority}", priority=priority) for priority in (1, 2)]
    core.state.store.conflict_keys = Failing(core.state.conflict_keys)
    core.tick(WINDOW_MS)
    assert [(REVIEW, "NOT_JUDGED")] * 2 == [verdict(core.first_decision(one)) for one in candidate]
    assert ({}, {}) == (core.state.contests, core.state.store.conflict_keys)
    assert 2 == len(core.state.reviews)
    core.prove()


def test_approving_a_failed_arbitration_approves_no_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """Approving the review of a failed arbitration approves no action; the trace may propose again."""
    core = Core(contest_document())
    fact = deliver(core)
    candidate = core.enter([fact])

    def broken(network: Network, text: str) -> list[int]:
        raise NetworkFaultError("the engine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Network, "match", broken)
        core.tick(WINDOW_MS)
    review = core.by_id[core.first_decision(candidate).decision_id]
    assert reason_codes.UNDER_REVIEW == core.decide([fact]).reason_code
    refusal = core.resolve(review, fact_pb2.REVIEW_VERDICT_APPROVE).decision
    assert (REJECTED, "REVIEW_RELEASED") == verdict(refusal)
    second = core.enter([fact])
    core.tick(WINDOW_MS)
    assert APPROVED == core.first_decision(second).outcome
    core.prove()


def test_failed_preflight_restores_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preflight closes contests that are due, and undoes that even if a close fails."""
    core = Core(contest_document())
    fact = deliver(core)
    core.enter([fact], trace_id="a")
    core.enter([fact], trace_id="b")
    before = core.state.digest()

    def broken(network: Network, text: str) -> list[int]:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Network, "match", broken)
    proposal_copy = core.proposal([fact], trace_id="d").proposal
    with pytest.raises(RuntimeError):
        preflight(core.state, proposal_copy, {fact.sequence_number: cited_event(fact)}, core.now_ms + WINDOW_MS, None)
    assert (before, False) == (core.state.digest(), core.state.has_uncommitted_changes)


def test_proposal_records_its_resolved_citations() -> None:
    """The PROPOSAL of a candidate records what its citations resolved to; the close does not resolve them again."""
    core = Core(contest_document())
    fact = deliver(core)
    candidate = core.enter([fact])
    assert [("order/1", ["order.status"], "")] == [
        (one.subject, list(one.keys), one.evidence_ref) for one in candidate.proposal.contest.citations
    ]
    unknown = EventReference(event_id=fact.event_id, sequence_number=fact.sequence_number + 1)
    assert (REJECTED, "UNKNOWN_EVENT") == verdict(core.decide([], references=[unknown], trace_id="b"))
