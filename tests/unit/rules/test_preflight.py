"""Preflight: the decision that a proposal would get now, without a change of the state."""

from __future__ import annotations

from gavel.v1 import decision_pb2, error_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules.commands import Fault
from gavel_rules.language.rule_set import compile_rule_set
from gavel_rules.preflight import actions_with, explain, preflight

from tests.support.driver import ACTION, Core, document


def test_a_preflight_is_the_decision_that_follows() -> None:
    """A preflight gives the decision of the submission, without ids, and leaves the state as it is."""
    core = Core(document())
    command = core.proposal([core.fact("order.status", "delivered")])
    digest = core.state.digest()
    result = preflight(core.state, command.proposal, core.references(command).cited_events, core.now_ms)
    assert digest == core.state.digest()
    assert isinstance(result, Decision)
    decision = core.propose(core.events[-1:], event_id=command.proposal.envelope.event_id).decision
    for name in ("decision_id", "proposal_id", "state_version"):
        decision.ClearField(name)
        result.ClearField(name)
    assert result == decision


def test_timers_fire_first() -> None:
    """For a preflight, an approval that is due to expire no longer holds its key; the state afterwards still has it."""
    core = Core(document())
    core.approve()
    command = core.proposal([core.fact("order.status", "delivered")], trace_id="trace-2")
    cited_events = core.references(command).cited_events
    digest = core.state.digest()
    now = preflight(core.state, command.proposal, cited_events, core.now_ms)
    later = preflight(core.state, command.proposal, cited_events, core.now_ms + 10_000)
    assert isinstance(now, Decision)
    assert isinstance(later, Decision)
    assert ["CONFLICTING_DECISION", ""] == [now.reason_code, later.reason_code]
    assert digest == core.state.digest()


def test_a_projection_version_ahead_of_the_log_is_a_fault() -> None:
    """A proposal on a state that the log has not reached gets a fault that names the field."""
    core = Core(document())
    command = core.proposal([core.fact("order.status", "delivered")], projection_version=core.state.head + 2)
    fault = preflight(core.state, command.proposal, core.references(command).cited_events, core.now_ms)
    assert isinstance(fault, Fault)
    assert error_pb2.ERROR_REASON_INVALID_REQUEST == fault.reason
    assert ["envelope.proposal.projection_version"] == [field for field, _ in fault.violations]


def test_an_override_replaces_the_active_version() -> None:
    """With an override, the rules of the override decide and are explained."""
    core = Core(document())
    rules = [
        {"id": "never", "when": 'facts.status != ""', "effect": "reject", "reason_code": "NEVER"},
        {"id": "fine", "when": "false", "effect": "approve"},
    ]
    actions = actions_with(core.state, compile_rule_set(document(rules=rules, version=2)), ACTION)
    assert not isinstance(actions, Fault)
    command = core.proposal([core.fact("order.status", "delivered")])
    decision = preflight(core.state, command.proposal, core.references(command).cited_events, core.now_ms, actions)
    assert isinstance(decision, Decision)
    assert (decision_pb2.OUTCOME_REJECTED, "NEVER") == (decision.outcome, decision.reason_code)
    assert ["never", "fine"] == [rule.rule_id for rule in explain(core.state, command.proposal, core.now_ms, actions)]


def test_an_override_that_disagrees_is_a_fault() -> None:
    """An override that disagrees with another active rule set about a shared action gets a fault."""
    core = Core(document())
    override = compile_rule_set(document(rule_set="other", conflict_key='"elsewhere"'))
    fault = actions_with(core.state, override, ACTION)
    assert isinstance(fault, Fault)
    assert error_pb2.ERROR_REASON_RULE_SETS_DISAGREE == fault.reason
