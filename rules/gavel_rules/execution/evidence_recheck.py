"""The check of an approval's evidence when an attempt begins (constitution §4.4)."""

from __future__ import annotations

from typing import Final, NamedTuple

from gavel_rules import reason_codes
from gavel_rules.arbitration.evidence import STALE, select_evidence
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.state.records import LiveDecision
from gavel_rules.state.state import State

# The number of facts that a message names: rule sets that share an action may declare very many.
FACTS_NAMED_MAX: Final = 20

CHANGE_MESSAGES: Final = {
    reason_codes.STALE_FACT: "what the approval rests on is no longer fresh, propose again with current facts",
    reason_codes.FACT_SUPERSEDED: "what the approval rests on has changed, propose again with current facts",
}


class EvidenceChange(NamedTuple):
    """Facts of an approval that no longer hold, as (key, subject), and the reason code for it."""

    reason_code: str
    facts: frozenset[tuple[str, str]]

    @property
    def message(self) -> str:
        """The reason, and the facts by name up to FACTS_NAMED_MAX."""
        names = [f"{key} of {subject}" for key, subject in sorted(self.facts)]
        more = len(names) - FACTS_NAMED_MAX
        if more > 0:
            names[FACTS_NAMED_MAX:] = [f"and {more} more"]
        return f"{CHANGE_MESSAGES[self.reason_code]}: {', '.join(names)}"


def check_evidence(state: State, live: LiveDecision, now_ms: int) -> EvidenceChange | None:
    """Return what no longer holds of an approval's evidence, or None. A compensation rests on no evidence.

    The selection is repeated for each rule set that was consulted, subject templates included. Every pinned key must yield the same
    version, still fresh, and no optional fact that was absent may have appeared.
    """
    if live.compensates:
        return None
    decision = live.basis.decision
    actions = state.actions_of(live.decision.decision)
    proposal = ProposalView(live.proposal)
    params = proposal.params
    policy_ids = [action.policy_id for action in actions]
    pinned = {
        (policy_id, pin.key, pin.subject, pin.event_id) for pin in decision.pinned_facts for policy_id in pin.policy_ids or policy_ids
    }
    absent = {(policy_id, fact.key, fact.subject) for fact in decision.absent_facts for policy_id in fact.policy_ids or policy_ids}
    pinned_now: set[tuple[str, str, str, str]] = set()
    absent_now: set[tuple[str, str, str]] = set()
    stale: set[tuple[str, str]] = set()
    changed: set[tuple[str, str]] = set()
    for action in actions:
        policy_id = action.policy_id
        for selection in select_evidence(state, action, actions, proposal, action.typed_params(params), now_ms).selections:
            key, subject = selection.declaration.key, selection.subject
            if selection.candidate is not None:
                pinned_now.add((policy_id, key, subject, selection.candidate.event_id))
            elif not selection.state:
                absent_now.add((policy_id, key, subject))
            elif selection.state == STALE and _is_latest(state, pinned, policy_id, key, subject):
                stale.add((key, subject))
            else:
                changed.add((key, subject))
    changed.update((key, subject) for _, key, subject, _ in pinned_now - pinned)
    changed.update((key, subject) for _, key, subject in absent_now - absent)
    if not changed and not stale:
        # Templates that depend on a stale fact have no subject. The selections of these templates are missing although nothing has changed.
        changed.update((key, subject) for _, key, subject, _ in pinned - pinned_now)
        changed.update((key, subject) for _, key, subject in absent - absent_now)
    if changed:
        return EvidenceChange(reason_codes.FACT_SUPERSEDED, frozenset(changed))
    return EvidenceChange(reason_codes.STALE_FACT, frozenset(stale)) if stale else None


def _is_latest(state: State, pinned: set[tuple[str, str, str, str]], policy_id: str, key: str, subject: str) -> bool:
    """Return whether the version that a rule set pinned is still the latest of its source: then it is only stale."""
    candidates = state.evidence_of(subject).get(key, ())
    return any((policy_id, key, subject, candidate.event_id) in pinned for candidate in candidates)
