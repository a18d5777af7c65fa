"""What the shell looks up in the log for a command before the core decides."""

from __future__ import annotations

from collections.abc import Mapping

from gavel.v1 import decision_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reasons
from gavel_rules.commands import (
    Command,
    References,
    ResolveReview,
    SubmitProposal,
    decision_id_of,
)
from gavel_rules.events import derived_event_id
from gavel_rules.evidence import Cited
from gavel_rules.projection import State
from gavel_rules.records import APPROVED


def references_for(command: Command, state: State, known: Mapping[int, Cited], events: Mapping[str, Envelope]) -> References:
    """What the shell finds in the log for a command: `known` what may be cited, by number, `events` all events, by id."""
    if isinstance(command, SubmitProposal):
        return References(cited=known)
    if isinstance(command, ResolveReview):
        about = _ended(command.envelope.fact.review_resolved.decision_id, state, events)
        return References(known, about.decision, about.ending)
    decision_id = decision_id_of(command)
    return _ended(decision_id, state, events) if decision_id else References()


def _ended(decision_id: str, state: State, events: Mapping[str, Envelope]) -> References:
    live = state.live(decision_id)
    if live is not None:
        return References(decision=live.decision, ending=reasons.EXPIRED if live.phase == APPROVED else "")
    decision = events.get(decision_id)
    if decision is None or not decision.HasField("decision"):
        return References()
    decision = _approval(decision, events)
    for reason_code in (reasons.EXPIRED, reasons.REVOKED):
        if derived_event_id(decision.event_id, decision.sequence_number, reason_code.lower()) in events:
            return References(decision=decision, ending=reason_code)
    return References(decision=decision)


def _approval(decision: Envelope, events: Mapping[str, Envelope]) -> Envelope:
    """The approval that a grant is about, or the decision itself."""
    review = events.get(decision.decision.previous_decision_id)
    approval = events.get(review.decision.previous_decision_id) if review is not None else None
    granted = decision.decision.outcome == decision_pb2.OUTCOME_APPROVED and not decision.decision.compensates_decision_id
    return approval if granted and approval is not None else decision
