"""Responses from records are those that protobuf serializes."""

from __future__ import annotations

from gavel.v1.arbitration_service_pb2 import (
    BatchSubmitProposalsResponse,
    ProposalResult,
    StreamProposalsResponse,
    SubmitProposalResponse,
)
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.log import Record
from gavel_server.rpc.framing import batch_response, decision_response, stream_response
from google.rpc.status_pb2 import Status

from tests.support.histories.story import story

STATUS = Status(code=8, message="full")


def decisions() -> list[tuple[Record, Envelope]]:
    """Return the decisions of a log, as records and as messages with their chain hash."""
    records = []
    for record in story().records:
        envelope = Envelope.FromString(record.envelope)
        if envelope.HasField("decision"):
            envelope.chain_hash = record.chain_hash
            records.append((record, envelope))
    return records


def test_decision_response() -> None:
    """A record becomes the response with its decision."""
    for record, envelope in decisions():
        assert SubmitProposalResponse(decision=envelope) == SubmitProposalResponse.FromString(decision_response(record))


def test_stream_response() -> None:
    """A record or a status becomes the response with its request_id."""
    for record, envelope in decisions():
        expected = StreamProposalsResponse(request_id="r", decision=envelope)
        assert expected == StreamProposalsResponse.FromString(stream_response("r", record))
    assert StreamProposalsResponse(request_id="r", error=STATUS) == StreamProposalsResponse.FromString(
        stream_response("r", STATUS.SerializeToString())
    )
    assert StreamProposalsResponse(error=STATUS) == StreamProposalsResponse.FromString(stream_response("", STATUS.SerializeToString()))


def test_batch_response() -> None:
    """Records and statuses become the results of one response, in their order; none become no bytes."""
    records = decisions()
    expected = BatchSubmitProposalsResponse(
        results=[*(ProposalResult(decision=envelope) for _, envelope in records), ProposalResult(error=STATUS)]
    )
    response = batch_response([*(record for record, _ in records), STATUS.SerializeToString()])
    assert expected == BatchSubmitProposalsResponse.FromString(response)
    assert b"" == batch_response([])
