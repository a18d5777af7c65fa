"""Composite keys of the state's tables. Their parts are joined by a space, which none but the last part can contain."""

from __future__ import annotations

from gavel_rules.events.arbiter_versions import Semantics
from gavel_rules.events.fingerprint import fingerprint
from gavel_rules.events.proposal_view import ProposalView


def action_key(action_type: str, target: str) -> str:
    """Return the key of an action on a subject or, for its contest, on a conflict key. No decision_id equals it."""
    return f"{action_type} {target}"


def duplicate_key(proposal: ProposalView, semantics: Semantics, conflict_key: str) -> str:
    """Return the key that equal proposals of a producer for one conflict key share."""
    # Both names may contain spaces; the length keeps one pair of them from reading as another.
    producer = semantics.refusals_key(proposal.producer_type, proposal.producer_id)
    return f"{fingerprint(proposal)} {len(producer)} {producer} {conflict_key}"


def reading_key(subject: str, key: str) -> str:
    """Return the table key of a subject's fact key."""
    return f"{subject} {key}"


def parts_of_reading_key(reading: str) -> tuple[str, str]:
    """Return the subject and the fact key of a `reading_key`. A fact key contains no space."""
    subject, _, key = reading.rpartition(" ")
    return subject, key
