"""A recorded event with its hot header fields cached.

The state and the shell read the same few fields of every event, and reading protobuf fields is slow: docs/performance.md#protobuf-fields.
"""

from __future__ import annotations

from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal

from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.stored_event import StoredEvent

# Bound once: docs/performance.md#module-constants.
_has_field: Final = Proposal.HasField


class RecordedEvent:
    """An event with its place in the log.

    `payload` names its payload field. `outcome` is that of a decision, else 0. `proposal` is the view of a proposal, if the caller has it.
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
        proposal: ProposalView | None = None,
    ) -> None:
        self.envelope: Final = envelope
        self.sequence_number: Final = sequence_number
        self.payload: Final = payload
        self.event_id: Final = event_id
        self.trace_id: Final = trace_id
        self.subject: Final = subject
        self.outcome: Final = outcome
        self._proposal = proposal
        self._stored: StoredEvent | None = None

    @property
    def stored(self) -> StoredEvent:
        """The event as the state stores it."""
        stored = self._stored
        if stored is None:
            stored = self._stored = StoredEvent(self.envelope)
        return stored

    def pack(self, content: bytes) -> None:
        """Store the event as its bytes in the log."""
        self.stored.pack(content)

    @property
    def proposal(self) -> ProposalView:
        """The view of a proposal."""
        proposal = self._proposal
        if proposal is None:
            proposal = self._proposal = ProposalView(self.envelope)
        return proposal

    @property
    def proposer(self) -> tuple[int, str]:
        """The type and id of a proposal's producer."""
        proposal = self._proposal
        if proposal is not None:
            return proposal.producer_type, proposal.producer_id
        producer = self.envelope.producer
        return producer.type, producer.id

    @property
    def competes(self) -> bool:
        """Whether a proposal has entered a contest."""
        return self._proposal.competes if self._proposal is not None else _has_field(self.envelope.proposal, "contest")


def read_event(envelope: Envelope) -> RecordedEvent:
    """Return an event of the log with its header read."""
    payload = str(envelope.WhichOneof("payload"))
    outcome = envelope.decision.outcome if payload == "decision" else decision_pb2.OUTCOME_UNSPECIFIED
    return RecordedEvent(envelope, envelope.sequence_number, payload, envelope.event_id, envelope.trace_id, envelope.subject, outcome)
