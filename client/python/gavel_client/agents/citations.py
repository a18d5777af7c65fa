"""The citations of an agent's proposals: new evidence replaces evidence that was added earlier.

The agent's own citations stay. An event that was added is removed once newer events repeat all its statements, so that the
number of citations does not grow with the number of proposals. A proposal cites at most CITATIONS_MAX events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gavel.v1.common_pb2 import EventReference, TrustTier
from gavel.v1.decision_pb2 import FactRequirement
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.projection_service_pb2 import ProjectedFact, ProjectedObservation
from gavel.v1.proposal_pb2 import Proposal

from gavel_client.envelopes import reference as reference_to

# The contract's limit on `based_on_events`.
CITATIONS_MAX: Final = 256


class Statement(NamedTuple):
    """One value that an event states. As in the rules, statements of different sources, tiers and kinds do not replace each other."""

    subject: str
    key: str
    is_fact: bool
    source: str
    """The producer of a fact, or the tool of an observation."""
    trust_tier: TrustTier.ValueType

    @classmethod
    def of_row(cls, subject: str, row: ProjectedFact | ProjectedObservation) -> Statement:
        """Return the statement of a row of a projection."""
        if isinstance(row, ProjectedFact):
            return cls(subject, row.key, True, row.producer.id, row.trust_tier)
        return cls(subject, row.key, False, row.source_tool, row.trust_tier)

    @classmethod
    def all_of(cls, event: Envelope) -> list[Statement]:
        """Return the statements of a recorded FACT or OBSERVATION."""
        if event.WhichOneof("payload") == "fact":
            return [cls(event.subject, event.fact.key, True, event.producer.id, event.fact.trust_tier)]
        observation = event.observation
        return [cls(event.subject, key, False, observation.source_tool, observation.trust_tier) for key in observation.extracted_fields]


class Citations:
    """The references that the next proposal cites, in the order of their addition. `references` are the agent's own."""

    def __init__(self, references: Iterable[EventReference] = ()) -> None:
        self._references = {reference.event_id: reference for reference in references}
        self._statements: dict[str, set[Statement]] = {}  # of the events that were added
        self._required: set[tuple[str, str]] = set()  # subjects and keys

    @property
    def references(self) -> list[EventReference]:
        """The references, at most CITATIONS_MAX: first those with a required key, then the agent's own, then the newest."""
        references = list(self._references.values())
        if len(references) <= CITATIONS_MAX:
            return references
        cited = {one.event_id for one in sorted(references, key=self._rank, reverse=True)[:CITATIONS_MAX]}
        return [one for one in references if one.event_id in cited]

    def require(self, requirements: Iterable[FactRequirement]) -> None:
        """Note what a rejection requires: events that state it are the last to be left out."""
        self._required.update((row.subject, row.key) for row in requirements)

    def add(self, reference: EventReference, statements: Sequence[Statement]) -> bool:
        """Cite an event with these statements, or note further statements of a cited one; return whether the event is new."""
        event_id = reference.event_id
        if event_id in self._references:
            if event_id in self._statements:
                self._statements[event_id].update(statements)
            return False
        for other_id, remaining in list(self._statements.items()):
            if self._references[other_id].sequence_number < reference.sequence_number:
                remaining.difference_update(statements)
            if not remaining:
                del self._statements[other_id], self._references[other_id]
        self._references[event_id] = reference
        self._statements[event_id] = set(statements)
        return True

    def add_event(self, event: Envelope) -> bool:
        """Cite a recorded FACT or OBSERVATION; return whether it is new."""
        return self.add(reference_to(event), Statement.all_of(event))

    def replace_agent_citations(self, references: Iterable[EventReference]) -> None:
        """Replace the agent's own citations."""
        added = {event_id: self._references[event_id] for event_id in self._statements}
        self._references = {reference.event_id: reference for reference in references} | added

    def cite_in(self, proposal: Proposal) -> None:
        """Set the citations of a proposal."""
        del proposal.based_on_events[:]
        proposal.based_on_events.extend(self.references)

    def _rank(self, reference: EventReference) -> tuple[bool, bool, int]:
        statements = self._statements.get(reference.event_id)
        is_required = any((one.subject, one.key) in self._required for one in statements or ())
        return is_required, statements is None, reference.sequence_number


def is_repetition(next_proposal: Envelope, last_proposal: Envelope) -> bool:
    """Return whether the server would refuse a proposal as a duplicate: its action, params, subject and set of citations are the same."""
    after, before = next_proposal.proposal, last_proposal.proposal
    cited_after, cited_before = ({(item.event_id, item.sequence_number) for item in one.based_on_events} for one in (after, before))
    return (
        next_proposal.subject == last_proposal.subject
        and after.action_type == before.action_type
        and after.params == before.params
        and cited_after == cited_before
    )
