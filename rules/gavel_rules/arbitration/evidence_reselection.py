"""The evidence with which a recorded decision was made. Approvals and terminal refusals pin theirs; that of others is selected again."""

from __future__ import annotations

from typing import Final

from gavel.v1.decision_pb2 import Decision

from gavel_rules import reason_codes
from gavel_rules.arbitration.action_view import view_actions
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.state.state import State

# Reason codes of decisions that were made before evidence was selected, or without it.
_CODES_WITHOUT_EVIDENCE: Final = frozenset({reason_codes.UNDER_REVIEW, reason_codes.NO_FEASIBLE_PROPOSAL, reason_codes.NOT_JUDGED})


def reselect_evidence(state: State, proposal: ProposalView, decision: Decision) -> list[tuple[int, str]]:
    """Return (sequence number, key) of the evidence that all rule sets selected for the first decision on a proposal.

    `state` is the state after the decision and the events that were recorded with it: they change no evidence.
    """
    actions = state.active_actions.get(proposal.action_type, ())
    if decision.reason_code in _CODES_WITHOUT_EVIDENCE or any(action.violations(proposal.params) for action in actions):
        return []
    views = view_actions(state, proposal, milliseconds(decision.evaluated_at), actions)
    selections = [selection for view in views for selection in view.evidence.selections]
    evidence = [(one.candidate.sequence_number, one.declaration.key) for one in selections if one.candidate is not None]
    return list(dict.fromkeys(evidence))
