"""A proposal as admission and arbitration read it: the fields that their checks and stages need, read once from the message.

Each read of a protobuf field creates a Python object, and a dozen stages read them (docs/performance.md#protobuf-fields).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gavel.v1.common_pb2 import ProducerType
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.identity_pb2 import Attestation
from gavel.v1.proposal_pb2 import Proposal

from gavel_rules.events.citation import citations_in
from gavel_rules.events.envelope_header import EnvelopeHeader
from gavel_rules.values import struct_to_dict

# Bound once: docs/performance.md#module-constants
_has_field: Final = Proposal.HasField
_is_attested: Final = Envelope.HasField


class ProposalView:
    """A proposal with its envelope's header, read once. The envelope must be complete; neither changes afterwards.

    `trace_id` is empty only while a proposal that names its cause has not inherited the trace (`with_trace`).
    """

    def __init__(self, envelope: Envelope, header: EnvelopeHeader | None = None) -> None:
        """`header` is the envelope's, if it has been read. It may have been read before the server set event_id and trace_id."""
        if header is None:
            header = EnvelopeHeader(envelope)
        proposal = envelope.proposal
        self.envelope: Final = envelope
        self.event_id: Final = header.event_id or envelope.event_id
        self.trace_id: Final = header.trace_id or envelope.trace_id
        self.causation_id: Final = header.causation_id
        self.subject: Final = header.subject
        self.producer_type: Final[ProducerType.ValueType] = header.producer_type
        self.producer_id: Final = header.producer_id
        self.producer_version: Final = header.producer_version
        self.action_type: Final = proposal.action_type
        struct = proposal.params
        self.struct: Final = struct  # the params as sent
        self.params: Final = struct_to_dict(struct)
        self.message: Final = proposal
        self.risk: Final = proposal.risk
        self.cost: Final = proposal.cost
        self.confidence: Final = proposal.confidence
        self.priority: Final = proposal.priority
        self.expected_outcome: Final = proposal.expected_outcome
        self.max_fact_age_ms: Final = proposal.max_fact_age_ms
        self.required_facts: Final[Sequence[str]] = proposal.required_facts
        # The log's head that the proposal rests on; None if it names none.
        self.projection_version: Final = proposal.projection_version if _has_field(proposal, "projection_version") else None
        # Whether the proposal has entered a contest.
        self.competes: Final = _has_field(proposal, "contest")
        self.citations: Final = citations_in(proposal)
        # The verified groups of the caller that proposed. A recorded proposal has them in its attestation.
        # Slices of repeated fields: docs/performance.md#lists.
        self.producer_groups: tuple[str, ...] = tuple(envelope.attestation.groups[:]) if _is_attested(envelope, "attestation") else ()

    def attest(self, attestation: Attestation | None) -> None:
        """Take the groups of the caller that proposes, before the proposal is recorded with the attestation."""
        self.producer_groups = tuple(attestation.groups[:]) if attestation is not None else ()

    def with_trace(self, trace_id: str) -> ProposalView:
        """Return the proposal in an envelope of its own that has this trace_id."""
        envelope = Envelope()
        envelope.CopyFrom(self.envelope)
        envelope.trace_id = trace_id
        return ProposalView(envelope)
