"""Citations: the events that a proposal names as its basis, with the fields of each that decisions read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal

from gavel_rules.events.kinds import fact_keys

# An event that a proposal cites: its sequence number and its event_id.
Citation = tuple[int, str]


class CitedEvent(NamedTuple):
    """The fields of a cited event that decisions read."""

    sequence_number: int
    event_id: str
    category: int
    subject: str
    keys: tuple[str, ...]
    evidence_ref: str  # of an observation: the tool result that it names


def citations_in(proposal: Proposal) -> list[Citation]:
    """Return a proposal's citations in its order."""
    # Slice the repeated field: docs/performance.md#lists.
    return [(reference.sequence_number, reference.event_id) for reference in proposal.based_on_events[:]]


def cited_event(envelope: Envelope) -> CitedEvent:
    """Return the citable part of a recorded event."""
    keys = fact_keys(envelope)
    evidence_ref = envelope.observation.evidence_ref if envelope.HasField("observation") else ""
    return CitedEvent(envelope.sequence_number, envelope.event_id, envelope.event_category, envelope.subject, keys, evidence_ref)


def resolve_citations(citations: list[Citation], known: Mapping[int, CitedEvent]) -> tuple[list[CitedEvent], list[Citation]]:
    """Split citations into those of known facts and observations, and the unknown rest.

    `known` holds cited events by sequence number. A citation is known if its event_id matches and the event states a fact key.
    """
    events: list[CitedEvent] = []
    unknown: list[Citation] = []
    for number, event_id in citations:
        event = known.get(number)
        if event is None or event.event_id != event_id or not event.keys:
            unknown.append((number, event_id))
        else:
            events.append(event)
    return events, unknown
