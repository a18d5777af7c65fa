"""Responses assembled from stored bytes parse as messages built field by field."""

from __future__ import annotations

from collections.abc import Sequence

from gavel.v1.arbitration_service_pb2 import (
    BatchSubmitProposalsResponse,
    ProposalResult,
    ResolveReviewResponse,
    RevokeDecisionResponse,
    StreamProposalsResponse,
    SubmitProposalResponse,
)
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.codec.responses import (
    encode_decision_response,
    encode_decision_result,
    encode_error_result,
    encode_stream_decision,
    encode_stream_error,
    with_chain_hash,
)
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from tests.support.histories.story import story

HASH = bytes(range(32))
ENVELOPES = st.builds(lambda number, text: Envelope(sequence_number=number, trace_id=text), st.integers(0, 2**62), st.text(max_size=400))
STATUSES = st.builds(lambda code, text: Status(code=code, message=text), st.integers(0, 16), st.text(max_size=300))


def with_hash(envelope: Envelope) -> Envelope:
    """Return a copy of an envelope with HASH as its chain hash."""
    copy = Envelope(chain_hash=HASH)
    copy.MergeFrom(envelope)
    return copy


def test_chain_hash() -> None:
    """Every event of a log parses with its chain hash, whatever its payload."""
    for record in story().records:
        expected = Envelope.FromString(record.envelope)
        expected.chain_hash = record.chain_hash
        assert expected == Envelope.FromString(with_chain_hash(record.envelope, record.chain_hash))


@given(ENVELOPES)
def test_decision_response(envelope: Envelope) -> None:
    """A decision is the response to three methods, for short and for long decisions."""
    response = encode_decision_response(envelope.SerializeToString(), HASH)
    decision = with_hash(envelope)
    assert SubmitProposalResponse(decision=decision).SerializeToString() == response
    assert ResolveReviewResponse(decision=decision) == ResolveReviewResponse.FromString(response)
    assert RevokeDecisionResponse(decision=decision) == RevokeDecisionResponse.FromString(response)


@given(st.text(min_size=1, max_size=200), ENVELOPES, STATUSES)
def test_stream_response(request_id: str, envelope: Envelope, status: Status) -> None:
    """A stream response has its request_id and either a decision or an error."""
    decision = encode_stream_decision(request_id, envelope.SerializeToString(), HASH)
    assert StreamProposalsResponse(request_id=request_id, decision=with_hash(envelope)).SerializeToString() == decision
    error = encode_stream_error(request_id, status.SerializeToString())
    assert StreamProposalsResponse(request_id=request_id, error=status).SerializeToString() == error


@given(st.lists(st.one_of(ENVELOPES, STATUSES)))
def test_batch_results(results: Sequence[Envelope | Status]) -> None:
    """Results that follow one another are a batch response with decisions and errors in their order."""
    response = b"".join(
        part
        for result in results
        for part in (
            encode_decision_result(result.SerializeToString(), HASH)
            if isinstance(result, Envelope)
            else encode_error_result(result.SerializeToString())
        )
    )
    expected = BatchSubmitProposalsResponse(
        results=[
            ProposalResult(decision=with_hash(result)) if isinstance(result, Envelope) else ProposalResult(error=result)
            for result in results
        ]
    )
    assert expected.SerializeToString() == response
