"""A proposal as admission and arbitration read it: what their checks and stages ask for, taken out of the message once.

A field of a message is looked up and made a Python object anew at every reading, and there are more than a dozen stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gavel.v1.common_pb2 import ProducerType
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal
from mypy_extensions import mypyc_attr

from gavel_rules.values import struct_to_dict

# An event that a proposal cites: its sequence number and its event_id.
Citation = tuple[int, str]

# Looked up once: a message asked for a method searches its fields for the name first, at every call.
_has_field: Final = Proposal.HasField


@mypyc_attr(acyclic=True)
class Header:
    """What an envelope says of its event and its producer. Whoever fills in one of these in the envelope does so here as well."""

    def __init__(self, envelope: Envelope) -> None:
        producer = envelope.producer
        self.event_id = envelope.event_id
        self.event_name = envelope.event_name
        self.trace_id = envelope.trace_id
        self.causation_id: Final = envelope.causation_id
        self.subject: Final = envelope.subject
        self.producer_type: ProducerType.ValueType = producer.type
        self.producer_id = producer.id
        self.producer_version: Final = producer.version


@mypyc_attr(acyclic=True)
class Proposed:
    """A proposal and what it is about. It says nothing that the envelope does not say, which must not change meanwhile.

    `header` is the envelope's, if that has been read already.
    """

    def __init__(self, envelope: Envelope, header: Header | None = None) -> None:
        proposal = envelope.proposal
        self.envelope: Final = envelope
        self.header: Final = Header(envelope) if header is None else header
        self.subject: Final = self.header.subject
        self.action_type: Final = proposal.action_type
        struct = proposal.params
        self.struct: Final = struct  # the params as they were sent
        self.params: Final = struct_to_dict(struct)
        self.proposal: Final = proposal
        self.risk: Final = proposal.risk
        self.cost: Final = proposal.cost
        self.confidence: Final = proposal.confidence
        self.priority: Final = proposal.priority
        self.expected_outcome: Final = proposal.expected_outcome
        self.max_fact_age_ms: Final = proposal.max_fact_age_ms
        self.required_facts: Final[Sequence[str]] = proposal.required_facts
        # The state of the log that it rests on; None where it does not say.
        self.projection_version: Final = proposal.projection_version if _has_field(proposal, "projection_version") else None
        # Whether it waits in a contest, or did until that closed.
        self.competes: Final = _has_field(proposal, "contest")
        self.citations: Final = citations_in(proposal)

    @property
    def trace_id(self) -> str:
        """The attempt, of one or more proposals, that it belongs to. Empty until whoever admits it has given it one."""
        return self.header.trace_id


def citations_in(proposal: Proposal) -> list[Citation]:
    """Return what a proposal cites, in its order."""
    # A slice is a list: walking through a repeated field itself ends with an exception, which takes as long as two items do.
    return [(reference.sequence_number, reference.event_id) for reference in proposal.based_on_events[:]]
