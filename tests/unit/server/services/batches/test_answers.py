"""The answers to a batch together."""

from __future__ import annotations

import grpc
from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsResponse
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelError
from gavel_rules.commands import EventAnswer
from gavel_server.bus.request import CommittedAnswer
from gavel_server.log import Record
from gavel_server.rpc.limits import BATCH_ANSWER_BYTES_MAX
from gavel_server.services.batches.answers import BatchAnswers

ITEM_BYTES = 1_000_000


def test_large_answers() -> None:
    """Decisions beyond the limit are answered with an error that names their event, and those before it as they are."""
    responses: list[bytes] = []
    answers = BatchAnswers("gavel.v1.ArbitrationService/BatchSubmitProposals", 20, responses.append)
    envelope = Envelope(event_name="x" * ITEM_BYTES)
    for index in range(20):
        record = Record(100 + index, envelope.SerializeToString(), b"h" * 32)
        answers.take(index, CommittedAnswer(EventAnswer(envelope), record))

    (response,) = responses
    assert len(response) < BATCH_ANSWER_BYTES_MAX + ITEM_BYTES
    results = BatchSubmitProposalsResponse.FromString(response).results
    fitting = BATCH_ANSWER_BYTES_MAX // ITEM_BYTES
    assert ["decision"] * fitting + ["error"] * (20 - fitting) == [result.WhichOneof("result") for result in results]
    error = GavelError.from_status(results[19].error)
    assert (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL") == (error.code, error.reason)
    assert "event 119" in error.message
