"""Simulation of a candidate rule set on a log (constitution §6.4)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1 import decision_pb2, fact_pb2
from gavel_rules.authoring.derived_facts import DerivedFact
from gavel_rules.authoring.simulate import ChangedDecision, ChangedFacts, Simulation

from tests.support.driver import ACTION, BUS, FAILED, RULES, SOURCE, SUCCESS, Core, compile_cached, document
from tests.support.histories.story import STORY, story

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED


def changes(core: Core, candidate: str) -> tuple[list[ChangedDecision], Simulation]:
    """Feed a log to a simulation; return the changed decisions and the simulation."""
    simulation = Simulation(BUS, compile_cached(candidate))
    changed = [simulation.feed(record.sequence_number, record.envelope) for record in core.records]
    return [change for change in changed if isinstance(change, ChangedDecision)], simulation


def changed_facts(core: Core, candidate: str) -> tuple[list[ChangedFacts], Simulation]:
    """Feed a log to a simulation; return the reports with other facts and the simulation."""
    simulation = Simulation(BUS, compile_cached(candidate))
    changed = [simulation.feed(record.sequence_number, record.envelope) for record in core.records]
    return [change for change in changed if isinstance(change, ChangedFacts)], simulation


FACTS: dict[str, Any] = {
    "status": {"key": "order.status", "type": "string", "max_age_ms": 1_000_000, "sources": [SOURCE]},
    "team": {"key": "order.team", "type": "string", "max_age_ms": 1_000_000},
}


def deriving(
    value: str,
    subject: str = '"team/" + facts.team',
    *,
    version: int = 1,
    window_ms: int = 5_000,
    when: str = 'facts.status == "delivered"',
) -> str:
    """Return a rule set that derives a fact of this value and subject from each report of a failure."""
    data = json.loads(
        document(FACTS, [{"id": "all", "when": when, "effect": "approve"}], gavel="v2", version=version, retry={"max_attempts": 2})
    )
    data["counters"] = {"failures": {"of": "executions", "action": ACTION, "where": 'execution.status == "FAILED"', "window_ms": window_ms}}
    on = {"action": ACTION, "status": "FAILED"}
    data["derivations"] = [{"id": "unstable", "version": 1, "on": on, "key": "team.unstable", "value": value, "subject": subject}]
    return json.dumps(data)


def failures(text: str) -> Core:
    """Return a bus of that rule set on which two executions have failed, 10 s apart, and then succeeded."""
    core = Core(text)
    for number in (1, 2):
        subject = f"order/{number}"
        cited = [core.fact("order.status", "delivered", subject=subject), core.fact("order.team", "red", subject=subject)]
        decision = core.propose(cited, subject=subject, trace_id=f"trace-{number}", max_fact_age_ms=1_000_000)
        core.derive(core.report(core.start(decision), FAILED))
        core.pass_time(1_000)
        core.derive(core.report(core.start(decision), SUCCESS))
        core.pass_time(9_000)
    return core


def test_the_same_rules_change_nothing() -> None:
    """A candidate with the same rules changes no decision."""
    core = Core(document())
    core.approve()
    core.decide([core.fact("order.status", "cancelled", subject="order/2")], subject="order/2", trace_id="t2")
    core.decide([core.fact("k.note", "x")], trace_id="t3")
    differences, simulation = changes(core, document())
    assert ([], 3) == (differences, simulation.decisions)


def test_changed_decisions_are_listed_with_both_sides() -> None:
    """Each changed first decision is reported with its sequence number; later decisions on the same proposal are not simulated."""
    core = Core(document())
    approval = core.approve()
    core.tick(10_000)
    core.decide([core.fact("order.status", "lost", subject="order/2")], subject="order/2", trace_id="t2")
    stricter: list[dict[str, Any]] = [
        RULES[1],
        {"id": "lost", "when": 'facts.status == "lost"', "effect": "approve"},
        {"id": "small", "when": 'facts.status == "delivered" && params.amount < 10.0', "effect": "approve"},
    ]
    differences, simulation = changes(core, document(rules=stricter, version=2))
    outcomes = [(change.recorded.outcome, change.simulated.outcome) for change in differences]
    assert ([(APPROVED, REJECTED), (REJECTED, APPROVED)], 2) == (outcomes, simulation.decisions)
    assert approval.sequence_number == differences[0].sequence_number
    assert approval.decision == differences[0].recorded
    assert ("NO_RULE_MATCHED", "lost") == (differences[0].simulated.reason_code, differences[1].simulated.rule_id)


def test_consequences_are_not_simulated() -> None:
    """The consequences of a changed decision are not simulated."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    core.propose([status], trace_id="a")
    core.propose([status], trace_id="b")
    rules = [{"id": "no", "when": "facts.status != '' || has(facts.score)", "effect": "reject", "reason_code": "NEVER"}]
    differences, _ = changes(core, document(rules=rules))
    # The recorded approval of the first proposal still refuses the second one.
    assert ["NEVER"] == [change.simulated.reason_code for change in differences]


def test_decisions_of_people_stay() -> None:
    """Verdicts on reviews and revocations stay as recorded and are counted apart; the first decisions before them are simulated."""
    rules: list[dict[str, Any]] = [
        {"id": "large", "priority": 2, "when": "params.amount > 40.0", "effect": "review", "reason_code": "LARGE"},
        {"id": "small", "priority": 1, "when": 'facts.status == "delivered"', "effect": "approve"},
    ]
    core = Core(document(rules=rules))
    review = core.propose([core.fact("order.status", "delivered")])
    assert decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW == review.decision.outcome
    verdict = core.resolve(review, fact_pb2.REVIEW_VERDICT_APPROVE)
    assert APPROVED == verdict.decision.outcome
    core.revoke(verdict)

    differences, simulation = changes(core, document(rules=[{**rules[0], "effect": "reject"}, rules[1]], version=2))

    assert (1, 2) == (simulation.decisions, simulation.human_decisions)
    assert [(review.sequence_number, "large", REJECTED)] == [
        (one.sequence_number, one.simulated.rule_id, one.simulated.outcome) for one in differences
    ]


def test_a_candidate_of_another_name() -> None:
    """A candidate of another name is in force besides the active rule sets."""
    core = Core(document())
    core.approve()
    other = [{"id": "no", "when": "facts.status != '' || has(facts.score)", "effect": "reject", "reason_code": "NEVER"}]
    differences, _ = changes(core, document(rule_set="another", rules=other))
    assert [("NEVER", "another")] == [(change.simulated.reason_code, change.simulated.policy_id) for change in differences]
    assert ["another", "refunds"] == list(differences[0].simulated.active_policy_ids)


def test_disagreeing_candidate_has_a_warning() -> None:
    """If the candidate disagrees with a rule set in force about an action, each simulated decision on it has a warning."""
    core = Core(document())
    core.approve()
    core.tick(10_000)
    core.deactivate("refunds")
    core.activate(document(rule_set="other", conflict_key="'refunds'"))
    core.approve(trace_id="t2")
    differences, simulation = changes(core, document(rule_set="another", conflict_key="'refunds'"))
    assert 2 == simulation.decisions
    change, agreed = differences
    assert (APPROVED, "another") == (agreed.simulated.outcome, agreed.simulated.policy_id)
    assert (REJECTED, "EVALUATION_ERROR") == (change.simulated.outcome, change.simulated.reason_code)
    (warning,) = change.simulated.warnings
    assert ("RULE_SETS_DISAGREE", True) == (warning.code, "conflict_key of action refund.create" in warning.message)
    assert change.recorded == core.events_named("DecisionApproved")[0].decision


def test_a_contest_under_a_candidate_that_disagrees() -> None:
    """If the candidate disagrees about the contest window, every proposal of a contest gets the warning."""
    core = Core(document(contest_window_ms=1_000))
    status = core.fact("order.status", "delivered")
    for trace_id in ("a", "b"):
        core.enter([status], trace_id=trace_id)
    core.tick(1_000)
    differences, simulation = changes(core, document(rule_set="another"))
    assert ([("RULE_SETS_DISAGREE",)] * 2, 2) == (
        [tuple(warning.code for warning in change.simulated.warnings) for change in differences],
        simulation.decisions,
    )


def test_a_simulation_reads_any_log() -> None:
    """Reviews, timers, executions and rule set changes are applied as recorded."""
    differences, simulation = changes(story(), STORY)
    # Only where another version or none was active does the candidate decide otherwise.
    assert {"trace-10", "trace-11"} >= {story().events[change.sequence_number - 1].trace_id for change in differences}
    decisions = [event.decision for event in story().events if event.HasField("decision")]
    assert len([decision for decision in decisions if not decision.previous_decision_id]) == simulation.decisions


@pytest.mark.parametrize(
    ("candidate", "before", "after"),
    [
        (deriving("history.failures() >= 2", version=2), [], []),
        (deriving("history.failures() >= 1", version=2), [("team/red", False)] * 2, [("team/red", True)] * 2),
        (deriving("history.failures() >= 2", '"group/" + facts.team', version=2), [("team/red", False)] * 2, [("group/red", False)] * 2),
        # Without a change of the derivation: the second report finds the first one in the window.
        (deriving("history.failures() >= 2", version=2, window_ms=60_000), [("team/red", False)], [("team/red", True)]),
        # No such value: the candidate derives nothing.
        (deriving("execution.result.missing", version=2), [("team/red", False)] * 2, []),
    ],
)
def test_changed_facts(candidate: str, before: list[tuple[str, bool]], after: list[tuple[str, bool]]) -> None:
    """A report is listed if the candidate derives another fact from it, with what its own counters give after the report."""
    core = failures(deriving("history.failures() >= 2"))
    listed, simulation = changed_facts(core, candidate)
    assert (4, 2) == (simulation.reports, simulation.decisions)
    assert [DerivedFact("team.unstable", *one) for one in before] == [fact for change in listed for fact in change.recorded]
    assert [DerivedFact("team.unstable", *one) for one in after] == [fact for change in listed for fact in change.simulated]
    failed = [event.sequence_number for event in core.events if event.execution.status == FAILED]
    assert {change.sequence_number for change in listed} <= {*failed}
    assert {ACTION} >= {change.decision.action_type for change in listed}


def test_derivations_that_only_one_side_has() -> None:
    """A candidate without the derivation derives nothing, and one with a new derivation derives from recorded facts."""
    core = failures(deriving("history.failures() >= 2"))
    without = json.loads(deriving("true", version=2))
    without["derivations"] = []
    listed, _ = changed_facts(core, json.dumps(without))
    assert [(1, 0)] * 2 == [(len(change.recorded), len(change.simulated)) for change in listed]
    listed, _ = changed_facts(failures(json.dumps({**without, "version": 1})), deriving("history.failures()", version=2, window_ms=60_000))
    assert [((), (DerivedFact("team.unstable", "team/red", number),)) for number in (1.0, 2.0)] == [
        (change.recorded, change.simulated) for change in listed
    ]


def test_facts_of_a_changed_decision() -> None:
    """Facts are not derived again where the decision changes: its consequences are not simulated."""
    core = failures(deriving("history.failures() >= 2"))
    candidate = deriving("history.failures() >= 1", version=2, when='facts.status == "lost"')
    assert ([], 0) == (changed_facts(core, candidate)[0], changed_facts(core, candidate)[1].reports)
    assert 2 == len(changes(core, candidate)[0])


def test_an_ended_approval_is_forgotten() -> None:
    """A simulation holds no approval whose execution has ended."""
    _, simulation = changed_facts(failures(deriving("history.failures() >= 2")), deriving("true", version=2))
    assert {} == simulation._approvals
