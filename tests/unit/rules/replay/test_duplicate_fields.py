"""Recorded bytes in which a singular field occurs twice."""

from __future__ import annotations

import pytest
from gavel.v1.common_pb2 import EventReference
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact
from gavel.v1.proposal_pb2 import Proposal
from gavel_rules.codec.fields import Field
from gavel_rules.replay.duplicate_fields import find_duplicate_field
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct, Value

from tests.support.histories.story import story

DECISION = Field(Envelope, "decision")
PROPOSAL = Field(Envelope, "proposal")
PARAMS = Field(Proposal, "params")
AMOUNT = Struct(fields={"amount": Value(number_value=1)})
BASED_ON_EVENTS = Field(Proposal, "based_on_events")


def twice(message: Message) -> bytes:
    """Return the bytes of a message, twice: of each of its fields there are two."""
    return message.SerializeToString() * 2


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (twice(Envelope(bus="a")), "bus"),
        (twice(Envelope(sequence_number=1)), "sequence_number"),
        (twice(Envelope(decision=Decision())), "decision"),
        (Envelope(fact=Fact()).SerializeToString() + Envelope(proposal=Proposal()).SerializeToString(), "proposal"),
        (DECISION.content(twice(Decision(outcome=OUTCOME_APPROVED))), "decision.outcome"),
        (PROPOSAL.content(twice(Proposal(projection_version=1))), "proposal.projection_version"),
        (PROPOSAL.content(BASED_ON_EVENTS.content(twice(EventReference(event_id="e")))), "proposal.based_on_events.event_id"),
        (PROPOSAL.content(PARAMS.content(twice(AMOUNT))), "proposal.params.fields"),
        (PROPOSAL.content(PARAMS.content(twice(Struct(fields={"": Value(number_value=1)})))), "proposal.params.fields"),
    ],
)
def test_duplicates(content: bytes, path: str) -> None:
    """A singular field or a key of a map that occurs twice is found at any depth, also as another member of its oneof."""
    Envelope.FromString(content)
    assert path == find_duplicate_field(content, Envelope.DESCRIPTOR)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        PROPOSAL.content(twice(Proposal(based_on_events=[EventReference(event_id="e")], required_facts=["order.status"]))),
        PROPOSAL.content(PARAMS.content(AMOUNT.SerializeToString() + Struct(fields={"note": Value(number_value=1)}).SerializeToString())),
        bytes([0xFA, 0x3F, 1, 65]) * 2,
    ],
)
def test_fields_that_may_occur_twice(content: bytes) -> None:
    """Repeated fields, and fields that the contract does not have, may occur twice."""
    assert not find_duplicate_field(content, Envelope.DESCRIPTOR)


def test_recorded_events() -> None:
    """The events that a bus records have no duplicates."""
    assert {""} == {find_duplicate_field(record.envelope, Envelope.DESCRIPTOR) for record in story().records}
