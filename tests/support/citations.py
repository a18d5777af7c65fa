"""References: those of a proposal to events, and those that the shell looks up in the log for a command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gavel.v1 import decision_pb2
from gavel.v1.common_pb2 import EventReference
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.commands import Command, References, ResolveReview, SubmitProposal, decision_id_of
from gavel_rules.events.citation import CitedEvent
from gavel_rules.events.ids import derived_event_id
from gavel_rules.execution.faults import coming_end_reason
from gavel_rules.state.state import State


def references_for(command: Command, state: State, known: Mapping[int, CitedEvent], events: Mapping[str, Envelope]) -> References:
    """Return the references for a command. `known` holds citable events by sequence number, `events` all events by event_id."""
    if isinstance(command, SubmitProposal):
        return References(cited_events=known)
    if isinstance(command, ResolveReview):
        about = _decision_references(command.envelope.fact.review_resolved.decision_id, state, events)
        return References(known, about.decision, about.end_reason)
    decision_id = decision_id_of(command)
    return _decision_references(decision_id, state, events) if decision_id else References()


def references_to(events: Iterable[Envelope]) -> list[EventReference]:
    """Return the references of a proposal to events."""
    return [EventReference(event_id=event.event_id, sequence_number=event.sequence_number) for event in events]


def _decision_references(decision_id: str, state: State, events: Mapping[str, Envelope]) -> References:
    live = state.live_decision(decision_id)
    if live is not None:
        return References(decision=live.decision, end_reason=coming_end_reason(live))
    decision = events.get(decision_id)
    if decision is None or not decision.HasField("decision"):
        return References()
    decision = _approval(decision, events)
    for reason_code in (reason_codes.EXPIRED, reason_codes.REVOKED):
        if derived_event_id(decision.event_id, decision.sequence_number, reason_code.lower()) in events:
            return References(decision=decision, end_reason=reason_code)
    aborted = events.get(derived_event_id(decision.event_id, decision.sequence_number, "aborted"))
    return References(decision=decision, end_reason="" if aborted is None else aborted.execution.reason_code)


def _approval(decision: Envelope, events: Mapping[str, Envelope]) -> Envelope:
    """Return the approval that a grant extends, else the decision itself."""
    review = events.get(decision.decision.previous_decision_id)
    approval = events.get(review.decision.previous_decision_id) if review is not None else None
    is_grant = decision.decision.outcome == decision_pb2.OUTCOME_APPROVED and not decision.decision.compensates_decision_id
    return approval if is_grant and approval is not None else decision
