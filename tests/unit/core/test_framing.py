"""Answers made of the log's own bytes are what protobuf itself would have made."""

from __future__ import annotations

from collections.abc import Sequence

from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsResponse, ProposalResult, SubmitProposalResponse
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.framing import envelope_bytes, field_1, results
from gavel_server.log import Record
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.story import told

HASH = bytes(range(32))


def record(envelope: Envelope) -> Record:
    """A stored envelope."""
    return Record(envelope.sequence_number, envelope.SerializeToString(), HASH)


envelopes = st.builds(lambda number, text: Envelope(sequence_number=number, trace_id=text), st.integers(0, 2**62), st.text(max_size=400))
statuses = st.builds(lambda code, text: Status(code=code, message=text), st.integers(0, 16), st.text(max_size=300))
items = st.lists(st.one_of(envelopes, statuses))


def test_every_event_of_a_log() -> None:
    """An Envelope with its chain hash is read back whole from the stored bytes, whatever its payload."""
    for stored in told().records:
        expected = Envelope.FromString(stored.envelope)
        expected.chain_hash = stored.chain_hash
        assert expected == Envelope.FromString(envelope_bytes(stored))


@given(envelopes)
def test_one_decision(envelope: Envelope) -> None:
    """A response of one field is what protobuf serializes, for short and for long contents."""
    answer = field_1(envelope_bytes(record(envelope)))
    envelope.chain_hash = HASH
    assert SubmitProposalResponse(decision=envelope) == SubmitProposalResponse.FromString(answer)
    plain = Envelope(event_id="x" * envelope.ByteSize())
    assert SubmitProposalResponse(decision=plain).SerializeToString() == field_1(plain.SerializeToString())


@given(items)
def test_a_batch(sent: Sequence[Envelope | Status]) -> None:
    """Decisions and errors of a batch, in their order, are what protobuf serializes, byte for byte."""
    content = [record(item) if isinstance(item, Envelope) else item for item in sent]
    for item in sent:
        if isinstance(item, Envelope):
            item.chain_hash = HASH
    expected = BatchSubmitProposalsResponse(
        results=[ProposalResult(decision=item) if isinstance(item, Envelope) else ProposalResult(error=item) for item in sent]
    )
    assert expected.SerializeToString() == results(content)


def test_an_empty_batch() -> None:
    """No results are no bytes."""
    assert b"" == results([])
