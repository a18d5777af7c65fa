"""Preflight: the decision that a proposal would get now, without a trace in the log or the state.

Time is an argument, as for `decider.handle`. Timers that are due fire first, as they would before a submission; everything is undone
before a function returns or raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.arbitration_service_pb2 import RuleExplanation
from gavel.v1.decision_pb2 import ENGINE_RETE, Decision

from gavel_rules.arbitration.action_view import case_of, view_action
from gavel_rules.arbitration.evaluation import evaluator
from gavel_rules.arbitration.history import read_history
from gavel_rules.arbitration.pipeline import arbitrate
from gavel_rules.arbitration.submission import version_fault
from gavel_rules.authorization import attestation_of, preflight_fault
from gavel_rules.commands import Fault, Tick
from gavel_rules.decider import handle
from gavel_rules.events.citation import CitedEvent
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet
from gavel_rules.language.shared_action_settings import find_disagreements, format_disagreements
from gavel_rules.state.active_actions import actions_by_type
from gavel_rules.state.state import State

_EVENTS_PER_TICK: Final = 512


def preflight(
    state: State,
    proposal: ProposalView,
    cited_events: Mapping[int, CitedEvent],
    now_ms: int,
    actions: tuple[CompiledAction, ...] | None = None,
    principal: Principal = ANONYMOUS,
) -> Decision | Fault:
    """Return the decision on a proposal at `now_ms`, or a fault if its projection_version is ahead of the log.

    It is also a fault if the grants in force do not let `principal`, the caller, try the proposal.

    `cited_events` holds the events that the proposal cites, by sequence number. `actions` stand in for the active rule sets: see
    `actions_with`. The decision has the state_version that it was made on, and no ids.
    """
    head = state.head
    fault = preflight_fault(state, proposal, principal) or version_fault(proposal.projection_version, head)
    if fault is not None:
        return fault
    proposal.attest(attestation_of(principal) if state.semantics.attests else None)
    next_timer_ms = state.next_timer_ms()
    mark = state.mark() if next_timer_ms is not None and next_timer_ms <= now_ms else None
    try:
        while mark is not None and handle(state, Tick(_EVENTS_PER_TICK), now_ms=now_ms).events:
            pass
        decision = arbitrate(state, proposal, cited_events, now_ms, evaluator(state, head + 2, ENGINE_RETE), actions)
    finally:
        if mark is not None:
            state.undo(mark)
    decision.state_version = head
    return decision


def actions_with(state: State, override: CompiledRuleSet, action_type: str) -> tuple[CompiledAction, ...] | Fault:
    """Return what governs an action if `override` replaces the active version of its rule set.

    Returns a fault if the override disagrees with another active rule set about a shared action.
    """
    active = {policy_id: active.rule_set for policy_id, active in state.active_rule_sets.items()}
    disagreements = find_disagreements(override, active.values(), compares_counters=state.semantics.compares_counters)
    if disagreements:
        return Fault(error_pb2.ERROR_REASON_RULE_SETS_DISAGREE, format_disagreements(disagreements))
    return actions_by_type({**active, override.policy_id: override}.values()).get(action_type, ())


def explain(state: State, proposal: ProposalView, now_ms: int, actions: tuple[CompiledAction, ...] | None = None) -> list[RuleExplanation]:
    """Return how every rule that governs a proposal evaluates, for each rule set whose schema its params fit.

    `actions` as above. The proposal has its proposer's groups: it is recorded, or `preflight` has seen it.
    """
    if actions is None:
        actions = state.active_actions.get(proposal.action_type, ())
    return [explanation for action, case in read_cases(state, proposal, now_ms, actions) for explanation in action.explain(case)]


def read_cases(state: State, proposal: ProposalView, now_ms: int, actions: tuple[CompiledAction, ...]) -> list[tuple[CompiledAction, Case]]:
    """Return what the rules that govern a proposal read of it, for each of `actions` whose schema its params fit."""
    cases: list[tuple[CompiledAction, Case]] = []
    for action in actions:
        if not action.violations(proposal.params):
            view = view_action(state, action, actions, proposal, now_ms)
            case = case_of(state, proposal, now_ms, view)
            if action.has_counters:
                case = case.with_history(read_history(state, action, case, now_ms, proposal.event_id).numbers)
            cases.append((action, case))
    return cases
