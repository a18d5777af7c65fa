"""A proposal as arbitration reads it: what every stage asks for, taken out of the message once.

A field of a message is looked up and made a Python object anew at every reading, and there are more than a dozen stages.
"""

from __future__ import annotations

from typing import Final

from gavel.v1.envelope_pb2 import Envelope


class Proposed:
    """A proposal and what it is about. It says nothing that the envelope does not say, which must not change meanwhile."""

    def __init__(self, envelope: Envelope) -> None:
        proposal = envelope.proposal
        self.envelope: Final = envelope
        self.proposal: Final = proposal
        self.action_type: Final = proposal.action_type
        self.subject: Final = envelope.subject
        self.trace_id: Final = envelope.trace_id
        # Whether it waits in a contest, or did until that closed.
        self.competes: Final = proposal.HasField("contest")
