"""An event of the log with what is known of it, so that nobody looks up in the message what its maker knew.

A field of a message is found by its name and made a Python object anew at every reading, and everything that the state does with an event,
and who stores it, begins with the same few of them.
"""

from __future__ import annotations

from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal
from mypy_extensions import mypyc_attr

from gavel_rules.proposed import Proposed
from gavel_rules.records import Kept

_has_field: Final = Proposal.HasField


@mypyc_attr(acyclic=True)
class Made:
    """An event in its place, and what it says of itself.

    `payload` names the field that it has; `outcome` is that of a decision, else 0. `asked` is what a proposal asks for, if that has been
    read already.
    """

    def __init__(
        self,
        envelope: Envelope,
        sequence_number: int,
        payload: str,
        event_id: str,
        trace_id: str,
        subject: str,
        outcome: Outcome.ValueType = decision_pb2.OUTCOME_UNSPECIFIED,
        asked: Proposed | None = None,
    ) -> None:
        self.envelope: Final = envelope
        self.sequence_number: Final = sequence_number
        self.payload: Final = payload
        self.event_id: Final = event_id
        self.trace_id: Final = trace_id
        self.subject: Final = subject
        self.outcome: Final = outcome
        self._asked = asked
        self._kept: Kept | None = None

    @property
    def kept(self) -> Kept:
        """The event, for the state to keep."""
        kept = self._kept
        if kept is None:
            kept = self._kept = Kept(self.envelope)
        return kept

    def pack(self, content: bytes) -> None:
        """Tell the event's bytes, as the log has them: what the state keeps of it, or will, is these."""
        self.kept.pack(content)

    @property
    def asked(self) -> Proposed:
        """What a proposal asks for."""
        asked = self._asked
        if asked is None:
            asked = self._asked = Proposed(self.envelope)
        return asked

    @property
    def competes(self) -> bool:
        """Whether a proposal waits in a contest, or did until that closed."""
        return self._asked.competes if self._asked is not None else _has_field(self.envelope.proposal, "contest")


def read(envelope: Envelope) -> Made:
    """Return an event of the log, read."""
    payload = str(envelope.WhichOneof("payload"))
    outcome = envelope.decision.outcome if payload == "decision" else decision_pb2.OUTCOME_UNSPECIFIED
    return Made(envelope, envelope.sequence_number, payload, envelope.event_id, envelope.trace_id, envelope.subject, outcome)
