"""A proposal as arbitration reads it: what every stage asks for, taken out of the message once.

A field of a message is looked up and made a Python object anew at every reading, and there are more than a dozen stages.
"""

from __future__ import annotations

from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal

# An event that a proposal cites: its sequence number and its event_id.
Citation = tuple[int, str]


class Proposed:
    """A proposal and what it is about. It says nothing that the envelope does not say, which must not change meanwhile.

    `citations` are what it cites, if they have been read already.
    """

    def __init__(self, envelope: Envelope, citations: list[Citation] | None = None) -> None:
        proposal = envelope.proposal
        self.envelope: Final = envelope
        self.proposal: Final = proposal
        self.action_type: Final = proposal.action_type
        self.subject: Final = envelope.subject
        self.trace_id: Final = envelope.trace_id
        # Whether it waits in a contest, or did until that closed.
        self.competes: Final = proposal.HasField("contest")
        self.citations: Final = citations_in(proposal) if citations is None else citations


def citations_in(proposal: Proposal) -> list[Citation]:
    """Return what a proposal cites, in its order."""
    # A slice is a list: walking through a repeated field itself ends with an exception, which takes as long as two items do.
    return [(reference.sequence_number, reference.event_id) for reference in proposal.based_on_events[:]]
