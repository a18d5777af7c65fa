"""The citations of a loop's proposals: new evidence replaces evidence that the loop added earlier.

The agent's own citations stay. An event that the loop added is removed once newer events repeat all its statements, so that the
number of citations does not grow with the number of proposals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gavel.v1.common_pb2 import EventReference
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal

# Subject, fact key and source. Statements of different sources do not replace each other.
Statement = tuple[str, str, str]


class Citations:
    """The references that the next proposal cites, in the order of their addition."""

    def __init__(self, references: Iterable[EventReference]) -> None:
        self._references = {reference.event_id: reference for reference in references}
        self._statements: dict[str, set[Statement]] = {}

    def add(self, reference: EventReference, statements: Sequence[Statement]) -> bool:
        """Cite an event with these statements; return whether it is new."""
        if reference.event_id in self._references:
            return False
        for event_id, remaining in list(self._statements.items()):
            remaining.difference_update(statements)
            if not remaining:
                del self._statements[event_id], self._references[event_id]
        self._references[reference.event_id] = reference
        self._statements[reference.event_id] = set(statements)
        return True

    def add_event(self, event: Envelope) -> bool:
        """Cite a recorded FACT or OBSERVATION; return whether it is new."""
        reference = EventReference(event_id=event.event_id, sequence_number=event.sequence_number)
        if event.WhichOneof("payload") == "fact":
            return self.add(reference, [(event.subject, event.fact.key, event.producer.id)])
        source = event.observation.source_tool
        return self.add(reference, [(event.subject, key, source) for key in event.observation.extracted_fields])

    def replace_agent_citations(self, references: Iterable[EventReference]) -> None:
        """Replace the agent's own citations."""
        added = {event_id: self._references[event_id] for event_id in self._statements}
        self._references = {reference.event_id: reference for reference in references} | added

    def cite_in(self, proposal: Proposal) -> None:
        """Set the citations of a proposal."""
        del proposal.based_on_events[:]
        proposal.based_on_events.extend(self._references.values())


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
