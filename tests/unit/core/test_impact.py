"""What a candidate rule set would have changed in the past (seeds 002 §6.4)."""

from __future__ import annotations

from typing import Any

from gavel.v1 import decision_pb2
from gavel_rules.authoring.impact import ChangedDecision, Impact

from tests.unit.core.driver import BUS, RULES, Core, compiled, document
from tests.unit.core.story import STORY, told

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED


def changes(core: Core, candidate: str) -> tuple[list[ChangedDecision], Impact]:
    """Feed a log and return what would have changed."""
    impact = Impact(BUS, compiled(candidate))
    changed = [impact.feed(record.sequence_number, record.envelope) for record in core.records]
    return [change for change in changed if change is not None], impact


def test_the_same_rules_change_nothing() -> None:
    """A candidate that says the same leaves every decision as it was, whatever happened around it."""
    core = Core(document())
    core.approve()
    core.decide([core.fact("order.status", "cancelled", subject="order/2")], subject="order/2", trace_id="t2")
    core.decide([core.fact("k.note", "x")], trace_id="t3")
    found, impact = changes(core, document())
    assert ([], 3) == (found, impact.decisions)


def test_changed_decisions_are_listed_with_both_sides() -> None:
    """Each first decision that would come out otherwise is listed where it stands; later decisions are not judged."""
    core = Core(document())
    approval = core.approve()
    core.tick(10_000)
    core.decide([core.fact("order.status", "lost", subject="order/2")], subject="order/2", trace_id="t2")
    stricter: list[dict[str, Any]] = [
        RULES[1],
        {"id": "lost", "when": 'facts.status == "lost"', "effect": "approve"},
        {"id": "small", "when": 'facts.status == "delivered" && params.amount < 10.0', "effect": "approve"},
    ]
    found, impact = changes(core, document(rules=stricter, version=2))
    outcomes = [(change.recorded.outcome, change.simulated.outcome) for change in found]
    assert ([(APPROVED, REJECTED), (REJECTED, APPROVED)], 2) == (outcomes, impact.decisions)
    assert approval.sequence_number == found[0].sequence_number
    assert approval.decision == found[0].recorded
    assert ("NO_RULE_MATCHED", "lost") == (found[0].simulated.reason_code, found[1].simulated.rule_id)


def test_everything_else_stays_as_it_was() -> None:
    """The forecast asks decision by decision: what a changed decision would have led to is not played out."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    core.propose([status], trace_id="a")
    core.propose([status], trace_id="b")
    never = [{"id": "no", "when": "facts.status != '' || has(facts.score)", "effect": "reject", "reason_code": "NEVER"}]
    found, _ = changes(core, document(rules=never))
    # The second proposal met the first one's approval, and still does.
    assert ["NEVER"] == [change.simulated.reason_code for change in found]


def test_a_candidate_stands_in_for_the_rule_set_of_its_name() -> None:
    """A rule set of another name governs beside those that were active."""
    core = Core(document())
    core.approve()
    other = [{"id": "no", "when": "facts.status != '' || has(facts.score)", "effect": "reject", "reason_code": "NEVER"}]
    found, _ = changes(core, document(rule_set="another", rules=other))
    assert [("NEVER", "another")] == [(change.simulated.reason_code, change.simulated.policy_id) for change in found]
    assert ["another", "refunds"] == list(found[0].simulated.active_policy_ids)


def test_a_candidate_that_disagrees_could_not_have_been_in_force() -> None:
    """Where it shares an action with a rule set then in force and wants it otherwise, the forecast says so, decision by decision."""
    core = Core(document())
    core.approve()
    core.tick(10_000)
    core.deactivate("refunds")
    core.activate(document(rule_set="other", conflict_key="'refunds'"))
    core.approve(trace_id="t2")
    found, impact = changes(core, document(rule_set="another", conflict_key="'refunds'"))
    assert 2 == impact.decisions
    change, agreed = found
    assert (APPROVED, "another") == (agreed.simulated.outcome, agreed.simulated.policy_id)
    assert (REJECTED, "EVALUATION_ERROR") == (change.simulated.outcome, change.simulated.reason_code)
    (warning,) = change.simulated.warnings
    assert ("RULE_SETS_DISAGREE", True) == (warning.code, "conflict_key of action refund.create" in warning.message)
    assert change.recorded == core.named("DecisionApproved")[0].decision


def test_a_contest_under_a_candidate_that_disagrees() -> None:
    """Of a contest that closed beside a rule set that wanted another window, every candidate is listed."""
    core = Core(document(contest_window_ms=1_000))
    status = core.fact("order.status", "delivered")
    for trace_id in ("a", "b"):
        core.enter([status], trace_id=trace_id)
    core.tick(1_000)
    found, impact = changes(core, document(rule_set="another"))
    assert ([("RULE_SETS_DISAGREE",)] * 2, 2) == (
        [tuple(warning.code for warning in change.simulated.warnings) for change in found],
        impact.decisions,
    )


def test_a_forecast_reads_any_log() -> None:
    """Reviews, timers, executions and rule set changes are followed as they were."""
    found, impact = changes(told(), STORY)
    # Where another version was active, or none, the candidate would have spoken instead.
    assert {"trace-10", "trace-11"} >= {told().events[change.sequence_number - 1].trace_id for change in found}
    decisions = [event.decision for event in told().events if event.HasField("decision")]
    assert len([decision for decision in decisions if not decision.previous_decision_id]) == impact.decisions
