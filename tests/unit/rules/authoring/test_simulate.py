"""Simulation of a candidate rule set on a log (constitution §6.4)."""

from __future__ import annotations

from typing import Any

from gavel.v1 import decision_pb2
from gavel_rules.authoring.simulate import ChangedDecision, Simulation

from tests.support.driver import BUS, RULES, Core, compile_cached, document
from tests.support.histories.story import STORY, story

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED


def changes(core: Core, candidate: str) -> tuple[list[ChangedDecision], Simulation]:
    """Feed a log to a simulation; return the changes and the simulation."""
    simulation = Simulation(BUS, compile_cached(candidate))
    changed = [simulation.feed(record.sequence_number, record.envelope) for record in core.records]
    return [change for change in changed if change is not None], simulation


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
