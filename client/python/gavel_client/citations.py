"""What a proposal cites, as it grows from try to try: new evidence takes the place of what an earlier try had fetched.

What the agent itself cited stays. Of what was added here, an event leaves once all that it says has been said anew, so that the
number of citations does not grow with the number of tries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gavel.v1.common_pb2 import EventReference
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal

# Subject, fact key, and whose word it is: words of different sources stand beside each other.
Said = tuple[str, str, str]


class Citations:
    """The references of the next proposal, in the order in which they were added."""

    def __init__(self, references: Iterable[EventReference]) -> None:
        self._references = {reference.event_id: reference for reference in references}
        self._says: dict[str, set[Said]] = {}

    def add(self, reference: EventReference, says: Sequence[Said]) -> bool:
        """Cite an event that says this; return whether it was not cited yet."""
        if reference.event_id in self._references:
            return False
        for event_id, said in list(self._says.items()):
            said.difference_update(says)
            if not said:
                del self._says[event_id], self._references[event_id]
        self._references[reference.event_id] = reference
        self._says[reference.event_id] = set(says)
        return True

    def add_event(self, event: Envelope) -> bool:
        """Cite a recorded FACT or OBSERVATION; return whether it was not cited yet."""
        reference = EventReference(event_id=event.event_id, sequence_number=event.sequence_number)
        if event.WhichOneof("payload") == "fact":
            return self.add(reference, [(event.subject, event.fact.key, event.producer.id)])
        source = event.observation.source_tool
        return self.add(reference, [(event.subject, key, source) for key in event.observation.extracted_fields])

    def replace_own(self, references: Iterable[EventReference]) -> None:
        """Let these take the place of what the agent itself has cited so far."""
        added = {event_id: self._references[event_id] for event_id in self._says}
        self._references = {reference.event_id: reference for reference in references} | added

    def cite_in(self, proposal: Proposal) -> None:
        """Make these the citations of a proposal."""
        del proposal.based_on_events[:]
        proposal.based_on_events.extend(self._references.values())
