"""What an approval rests on, looked at again when somebody begins to carry it out (seeds 002 §4.4)."""

from __future__ import annotations

from typing import Final, NamedTuple

from gavel_rules import reasons
from gavel_rules.evidence import STALE, gather
from gavel_rules.projection import State
from gavel_rules.proposed import Proposed
from gavel_rules.records import LiveDecision

# How many facts a refusal names; rule sets that share an action may have declared very many.
FACTS_NAMED_MAX: Final = 20

_MESSAGES: Final = {
    reasons.STALE_FACT: "what the approval rests on is no longer fresh, propose again with current facts",
    reasons.FACT_SUPERSEDED: "what the approval rests on has changed, propose again with current facts",
}


class Changed(NamedTuple):
    """Facts that an approval rests on and that hold no more: why it may not be begun, and which they are, as (key, subject)."""

    reason_code: str
    facts: frozenset[tuple[str, str]]

    @property
    def message(self) -> str:
        """For people: the reason and the facts by name, as far as a message has room for them."""
        named = [f"{key} of {subject}" for key, subject in sorted(self.facts)]
        more = len(named) - FACTS_NAMED_MAX
        if more > 0:
            named[FACTS_NAMED_MAX:] = [f"and {more} more"]
        return f"{_MESSAGES[self.reason_code]}: {', '.join(named)}"


def changed_facts(state: State, live: LiveDecision, now_ms: int) -> Changed | None:
    """Return what no longer holds of what an approval rests on, or None. A compensation rests on nothing.

    The selection is repeated exactly as when it was made, subject templates included, for each rule set that was consulted, by
    itself: every pinned key must yield the same version, still fresh, and no optional fact that was absent may have appeared.
    """
    if live.compensates:
        return None
    decision = live.basis.decision
    actions = state.actions_of(live.decision.decision)
    asked = Proposed(live.proposal)
    params = asked.params
    consulted = [action.policy_id for action in actions]
    was_absent = {(policy_id, fact.key, fact.subject) for fact in decision.absent_facts for policy_id in fact.policy_ids or consulted}
    pinned = {(policy_id, pin.key, pin.subject, pin.event_id) for pin in decision.pinned_facts for policy_id in pin.policy_ids or consulted}
    selected: set[tuple[str, str, str, str]] = set()
    absent: set[tuple[str, str, str]] = set()
    stale: set[tuple[str, str]] = set()
    changed: set[tuple[str, str]] = set()
    for action in actions:
        policy_id = action.policy_id
        for piece in gather(state, action, actions, asked, action.typed_params(params), now_ms).pieces:
            key, subject = piece.declared.key, piece.subject
            if piece.candidate is not None:
                selected.add((policy_id, key, subject, piece.candidate.event_id))
            elif not piece.state:
                absent.add((policy_id, key, subject))
            elif piece.state == STALE and _still_latest(state, pinned, policy_id, key, subject):
                stale.add((key, subject))
            else:
                changed.add((key, subject))
    changed.update((key, subject) for _, key, subject, _ in selected - pinned)
    changed.update((key, subject) for _, key, subject in absent - was_absent)
    if not changed and not stale:
        # Whose fact a template means cannot be said while one that it takes is stale: then not all pieces are there to compare.
        changed.update((key, subject) for _, key, subject, _ in pinned - selected)
        changed.update((key, subject) for _, key, subject in was_absent - absent)
    if changed:
        return Changed(reasons.FACT_SUPERSEDED, frozenset(changed))
    return Changed(reasons.STALE_FACT, frozenset(stale)) if stale else None


def _still_latest(state: State, pinned: set[tuple[str, str, str, str]], policy_id: str, key: str, subject: str) -> bool:
    """Whether a version that was pinned for a rule set is still its source's latest: then it is merely too old, not superseded."""
    candidates = state.evidence.get(subject, {}).get(key, ())
    return any((policy_id, key, subject, candidate.event_id) in pinned for candidate in candidates)
