"""A rule set's view of a proposal: its typed params, its evidence, and the case that its rules evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gavel_rules.arbitration.evidence import Evidence, select_evidence
from gavel_rules.events.kinds import PRODUCER_TYPE_NAMES
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.language.engines.case import NO_HISTORY, Case
from gavel_rules.language.rule_set import CompiledAction
from gavel_rules.state.state import State


class ActionView:
    """The view of one rule set that governs the action."""

    def __init__(self, action: CompiledAction, params: dict[str, object], evidence: Evidence) -> None:
        self.action: Final = action
        self.params: Final = params
        self.evidence: Final = evidence
        self.case: Case | None = None  # with what its counters give, once they are read


def view_action(state: State, action: CompiledAction, actions: Sequence[CompiledAction], proposal: ProposalView, now_ms: int) -> ActionView:
    """Return an action's view of a proposal whose params are valid. `actions` are the action of each governing rule set."""
    params = action.typed_params(proposal.params)
    return ActionView(action, params, select_evidence(state, action, actions, proposal, params, now_ms))


def view_actions(state: State, proposal: ProposalView, now_ms: int, actions: Sequence[CompiledAction]) -> list[ActionView]:
    """Return the view of every rule set that governs the proposal's action."""
    return [view_action(state, action, actions, proposal, now_ms) for action in actions]


def case_of(state: State, proposal: ProposalView, now_ms: int, view: ActionView) -> Case:
    """Return the case that the rules of one rule set evaluate."""
    # Passed by position: sixteen keyword arguments would take as long as the rest of the function.
    return Case(
        view.params,
        view.evidence.facts,
        proposal.risk,
        proposal.cost,
        proposal.confidence,
        proposal.priority,
        proposal.expected_outcome,
        proposal.subject,
        PRODUCER_TYPE_NAMES[proposal.producer_type],
        proposal.producer_id,
        proposal.producer_version,
        view.evidence.present,
        view.evidence.worst_trust,
        view.evidence.oldest_age_ms,
        state.rejections(proposal.trace_id, proposal.producer_type, proposal.producer_id, now_ms).total,
        now_ms,
        NO_HISTORY,
        proposal.producer_groups,
    )
